//! Up to which size a call can go by which protocol: what the transports' formats leave room for, as a pure function.
//!
//! Whether it pays is not said here: that is the cost model's.

#![forbid(unsafe_code)]

use super::Medium;
use crate::types::{Algorithm, Collective};

/// What a rank can bring along in the line by which it says that it has come.
pub const LL_SHARED_BYTES: u64 = 32;

/// The largest call that [`Protocol::Ll`](crate::types::Protocol::Ll) carries, counted as the tuner counts (the vector, or all
/// ranks' blocks together); `None` if it carries none of this kind. Only of calls with the same counts on all ranks.
pub fn ll_bytes_max(
    collective: Collective,
    algorithm: Algorithm,
    medium: Medium,
    world_size: usize,
) -> Option<u64> {
    use Collective::{
        AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    };
    match (collective, algorithm, medium) {
        (AllReduce, Algorithm::OneShot, Medium::Shared)
        | (Reduce, Algorithm::Flat, Medium::Shared)
        | (Broadcast, Algorithm::Direct, Medium::Shared)
        // Of these a rank's input is all blocks together.
        | (ReduceScatter | Scatter | AllToAll, Algorithm::Direct, Medium::Shared) => {
            Some(LL_SHARED_BYTES)
        }
        // Of these it is one of them.
        (AllGather | Gather, Algorithm::Direct, Medium::Shared) => {
            Some(LL_SHARED_BYTES.saturating_mul(world_size as u64))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;

    /// What carries payloads in its announcements is an algorithm of that medium.
    #[test]
    fn only_what_the_catalogue_has_goes_by_ll() {
        for &collective in Collective::ALL {
            for &algorithm in Algorithm::ALL {
                for medium in [Medium::Shared, Medium::Messages] {
                    let carries = ll_bytes_max(collective, algorithm, medium, 4).is_some();
                    let exists = Schedule::algorithms(collective, medium).contains(&algorithm);
                    assert!(
                        !carries || exists,
                        "{collective} by {algorithm} over {medium}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_gathered_counts_as_many_times_as_there_are_ranks() {
        let most = |collective, algorithm| ll_bytes_max(collective, algorithm, Medium::Shared, 4);
        assert_eq!(most(Collective::AllReduce, Algorithm::OneShot), Some(32));
        assert_eq!(most(Collective::AllGather, Algorithm::Direct), Some(128));
        assert_eq!(most(Collective::AllToAll, Algorithm::Direct), Some(32));
        assert_eq!(most(Collective::AllReduce, Algorithm::Direct), None);
        assert_eq!(most(Collective::Barrier, Algorithm::Direct), None);
    }
}
