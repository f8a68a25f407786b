//! The largest call of the protocol `ll`: the payload that fits beside a call in the head of a
//! slot.
//!
//! The cost model decides whether `ll` pays.

#![forbid(unsafe_code)]

use crate::types::{Collective, Method};

use Collective::{
    AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};
use Method::{Direct, Flat, OneShot};

/// Payload capacity of a rank's head of a slot.
pub const LL_SHARED_BYTES: u64 = 32;

/// Returns the size of the largest call that [`Protocol::Ll`](crate::types::Protocol::Ll) carries,
/// as the tuner counts it (the vector, or all ranks' blocks together); `None` if it carries none of
/// this kind. Only for published memory and calls with the same counts on all ranks.
pub fn ll_bytes_max(collective: Collective, method: Method, world_size: usize) -> Option<u64> {
    // Number of a rank's inputs in the counted size, if inputs are published whole.
    let inputs = match (collective, method) {
        (AllReduce, OneShot) | (Reduce, Flat) | (Broadcast, Direct) => 1,
        (ReduceScatter | Scatter | AllToAll, Direct) => 1,
        (AllGather | Gather, Direct) => world_size as u64,
        _ => return None,
    };
    Some(LL_SHARED_BYTES.saturating_mul(inputs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;
    use crate::types::Access;

    #[test]
    fn only_what_is_staged_goes_by_ll() {
        for &collective in Collective::ALL {
            for &method in Method::ALL {
                let carries = ll_bytes_max(collective, method, 4).is_some();
                let exists = Schedule::exists(collective, method, Access::Staged);
                assert!(!carries || exists, "{collective} by {method}");
            }
        }
    }

    #[test]
    fn what_is_gathered_counts_as_many_times_as_there_are_ranks() {
        let most = |collective, method| ll_bytes_max(collective, method, 4);
        assert_eq!(most(AllReduce, OneShot), Some(32));
        assert_eq!(most(AllGather, Direct), Some(128));
        assert_eq!(most(AllToAll, Direct), Some(32));
        assert_eq!(most(AllReduce, Direct), None);
        assert_eq!(most(Collective::Barrier, Direct), None);
    }
}
