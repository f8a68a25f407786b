//! Up to which size a call goes by the protocol `ll`: what fits beside a call in the head of a
//! slot.
//!
//! Whether it pays is decided by the cost model.

#![forbid(unsafe_code)]

use crate::types::{Collective, Method};

use Collective::{
    AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};
use Method::{Direct, Flat, OneShot};

/// What a rank's head of a slot has room for.
pub const LL_SHARED_BYTES: u64 = 32;

/// The largest call that [`Protocol::Ll`](crate::types::Protocol::Ll) carries, counted as the tuner
/// counts (the vector, or all ranks' blocks together); `None` if it carries none of this kind. Only
/// through published memory, and of calls with the same counts on all ranks.
pub fn ll_bytes_max(collective: Collective, method: Method, world_size: usize) -> Option<u64> {
    // How many inputs of a rank make up what is counted, where inputs are published whole.
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
