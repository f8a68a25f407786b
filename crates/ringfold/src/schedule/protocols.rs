//! The size up to which a call can use each protocol: the room in the transports' formats, as a
//! pure function.
//!
//! Whether it pays is decided by the cost model.

#![forbid(unsafe_code)]

use super::Access;
use super::catalogue::methods;
use crate::types::{Algorithm, Collective};

use Algorithm::{Direct, Flat, OneShot, RecursiveDoubling, Ring, Stragglar};
use Collective::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Recv, Reduce, ReduceScatter,
    Scatter, Send, SendRecv,
};

/// What a rank can bring along in the line by which it says that it has come.
pub const LL_SHARED_BYTES: u64 = 32;

/// The longest message whose payload is taken in with its header: longer ones gain nothing by it,
/// see docs/transports.md.
pub const LL_MESSAGE_BYTES: u64 = 16 << 10;

/// The largest call that [`Protocol::Ll`](crate::types::Protocol::Ll) carries, counted as the tuner
/// counts (the vector, or all ranks' blocks together); `None` if it carries none of this kind. Only
/// of calls with the same counts on all ranks.
pub fn ll_bytes_max(
    collective: Collective,
    algorithm: Algorithm,
    access: Access,
    world_size: usize,
) -> Option<u64> {
    let ranks = world_size as u64;
    match access {
        Access::Registered => None,
        Access::Staged => {
            let blocks = blocks_of_input(collective, algorithm, ranks)?;
            Some(LL_SHARED_BYTES.saturating_mul(blocks))
        }
        Access::Messages => {
            let messages = messages_of_call(collective, algorithm, ranks)?;
            Some(LL_MESSAGE_BYTES.saturating_mul(messages))
        }
    }
}

/// How many inputs of a rank make up what is counted, where inputs are published whole and at once.
fn blocks_of_input(collective: Collective, algorithm: Algorithm, ranks: u64) -> Option<u64> {
    match (collective, algorithm) {
        (AllReduce, OneShot) | (Reduce, Flat) | (Broadcast, Direct) => Some(1),
        (ReduceScatter | Scatter | AllToAll, Direct) => Some(1),
        (AllGather | Gather, Direct) => Some(ranks),
        _ => None,
    }
}

/// How many of the longest messages make up what is counted.
fn messages_of_call(collective: Collective, algorithm: Algorithm, ranks: u64) -> Option<u64> {
    match (collective, algorithm) {
        // It waits for a late rank with all it has; nothing is gained before.
        (_, Stragglar) => None,
        (AllReduce, Ring | Direct) | (Broadcast | Reduce, Direct) => Some(ranks),
        (AllGather | ReduceScatter, RecursiveDoubling) => Some(2),
        (AllGather | ReduceScatter | Gather | Scatter | AllToAll, _) => Some(ranks),
        (AllReduce | Broadcast | Reduce | Send | Recv | SendRecv, _) => Some(1),
        (Barrier, _) => None,
    }
    .filter(|_| methods(collective, Access::Messages).contains(&algorithm.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Action, Buffer, Cut, Schedule, Spec};

    /// What carries payloads in its announcements is an algorithm of that medium.
    #[test]
    fn only_what_the_catalogue_has_goes_by_ll() {
        for &collective in Collective::ALL {
            for &algorithm in Algorithm::ALL {
                for access in [Access::Staged, Access::Messages] {
                    let carries = ll_bytes_max(collective, algorithm, access, 4).is_some();
                    let exists = Schedule::methods(collective, access).contains(&algorithm.into());
                    let text = format!("{collective} by {algorithm} over {access}");
                    assert!(!carries || exists, "{text}");
                }
            }
        }
    }

    #[test]
    fn what_is_gathered_counts_as_many_times_as_there_are_ranks() {
        let most = |collective, algorithm| ll_bytes_max(collective, algorithm, Access::Staged, 4);
        assert_eq!(most(AllReduce, OneShot), Some(32));
        assert_eq!(most(AllGather, Direct), Some(128));
        assert_eq!(most(AllToAll, Direct), Some(32));
        assert_eq!(most(AllReduce, Direct), None);
        assert_eq!(most(Barrier, Direct), None);
    }

    /// No schedule sends a longer part of the vector, or of the blocks, at once than is said here.
    #[test]
    fn no_message_is_longer_than_what_ll_carries() {
        for &collective in Collective::ALL {
            for method in Schedule::methods(collective, Access::Messages) {
                let algorithm = method.algorithm();
                for ranks in [2, 3, 4, 5, 8] {
                    let Some(messages) = messages_of_call(collective, algorithm, ranks) else {
                        continue;
                    };
                    for rank in 0..ranks as u32 {
                        check(collective, algorithm, ranks as u32, rank, messages);
                    }
                }
            }
        }
    }

    fn check(collective: Collective, algorithm: Algorithm, ranks: u32, rank: u32, messages: u64) {
        let spec = Spec {
            rank,
            root: if rank == 0 { 1 } else { 0 },
            ..Spec::new(collective, algorithm, Access::Messages, ranks)
        };
        // Recursive doubling needs a power of two.
        let Ok(schedule) = Schedule::new(spec) else {
            return;
        };
        for step in schedule.channels.iter().flatten() {
            let Action::Send { span, .. } = step.action else {
                continue;
            };
            let cut = match span.buffer {
                Buffer::Output => schedule.output,
                Buffer::Input | Buffer::Scratch => schedule.input,
            };
            let whole = match cut {
                Cut::Vector(chunks) => chunks,
                Cut::Blocks(_) => ranks,
            };
            let text = format!("{collective} by {algorithm}, rank {rank} of {ranks}: {step:?}");
            assert!(span.len as u64 * messages <= whole as u64, "{text}");
        }
    }
}
