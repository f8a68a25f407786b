//! Detection of ranks that wait for each other in different calls.
//!
//! Over messages, calls are compared when a message arrives. Two ranks that wait for a message from
//! each other receive none, and would wait until their deadline. So a rank that has waited for
//! [`CLAIM_AFTER`] reports its call once, and so does every member that is asked for its progress.
//! Two different calls at the same position in the order of calls are a `Mismatch`, no matter which
//! is late: a rank that is merely behind is never reported.
//!
//! A rank whose collective has another root than the others' may receive nothing, while the others
//! have already finished. So a claim has [digests](crate::call::RootedCalls) of the last
//! collectives with a root. Each claiming rank also searches its streams for unexpected messages
//! ([`Transport::unexpected`](crate::transport::Transport::unexpected)): those that the root sent,
//! however far it has continued since.
//!
//! Messages between two ranks have no common order and are not compared. Neither is the way of a
//! call: ranks that fall back from one way to another do so at different times.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::call::CallPosition;
use crate::error::Error;
use crate::transport::header::{earlier_mismatch, mismatch};

/// Waiting time after which a rank reports its call: far longer than calls take among ranks that
/// are present, and short for a person who debugs.
pub const CLAIM_AFTER: Duration = Duration::from_secs(1);

/// The position that each rank of a communicator last reported.
#[derive(Debug, Default)]
pub struct Claims(BTreeMap<u32, CallPosition>);

impl Claims {
    /// Records that `rank` waits at `mine`. Returns the error if another rank waits or waited in a
    /// different call instead, or made different calls before.
    pub fn compare(&mut self, rank: u32, mine: CallPosition) -> Option<Error> {
        if mine.call.is_message() {
            return None;
        }
        self.0.insert(rank, mine);
        let found = self.0.iter().find_map(|(other, theirs)| {
            let error = match () {
                () if mine.call.contradicts(&theirs.call) => mismatch,
                () if mine.parted_before(theirs) => earlier_mismatch,
                () => return None,
            };
            Some((*other, theirs, error))
        });
        let (other, theirs, error) = found?;
        let ranks = [rank, other].map(|rank| rank as usize);
        Some(error(ranks, [&mine.call, &theirs.call]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Call, PAIRWISE, PREPARED, Qualifier, Rooted};
    use crate::control::frame::{Frame, RANK_FRAME_BYTES_MAX, Splitter};
    use crate::types::{Algorithm, Collective, DType};

    fn call(collective: Collective, qualifier: Qualifier, number: u64) -> Call {
        Call {
            collective,
            dtype: DType::F32,
            op: 0,
            algorithm: Algorithm::Ring,
            access: crate::Access::Messages,
            assignment: crate::Assignment::Owner,
            is_inline: false,
            qualifier,
            count: 8,
            lists: 0,
            sequence: PREPARED + number,
            cut: 0,
        }
    }

    fn broadcast(root: u32, number: u64) -> Call {
        call(Collective::Broadcast, Qualifier::Root(root), number)
    }

    /// Returns the position of a rank that waits in `call` and made no rooted collective before.
    fn at(call: Call) -> CallPosition {
        after(&[call])
    }

    /// Returns the position of a rank that has made `calls` and waits in the last.
    fn after(calls: &[Call]) -> CallPosition {
        let mut rooted = Rooted::default();
        let qualified = calls.iter().map(|call| {
            let mut call = *call;
            rooted.qualify(&mut call);
            call
        });
        let call = qualified.last().expect("a call");
        CallPosition {
            call,
            rooted: rooted.marks(),
        }
    }

    /// Returns `position` as the server decodes it.
    fn received(position: CallPosition) -> CallPosition {
        let sent = Frame::Claim {
            communicator: 7,
            position: Box::new(position),
        };
        let mut splitter = Splitter::new(RANK_FRAME_BYTES_MAX);
        splitter.push(&sent.encode());
        match splitter.next_frame() {
            Ok(Some(Frame::Claim {
                communicator: 7,
                position,
            })) => *position,
            other => panic!("not a claim: {other:?}"),
        }
    }

    fn is_mismatch(error: Option<&Error>) -> bool {
        matches!(error, Some(Error::Mismatch { .. }))
    }

    #[test]
    fn two_ranks_that_both_wait_for_the_other_are_told() {
        let mut claims = Claims::default();
        let from = |root| at(broadcast(root, 5));
        assert!(claims.compare(1, from(0)).is_none());
        assert!(claims.compare(1, from(0)).is_none());
        let error = claims.compare(0, from(1)).expect("they differ");
        assert!(
            matches!(error, Error::Mismatch { ranks: [0, 1], .. }),
            "{error}"
        );
    }

    #[test]
    fn ranks_behind_in_messages_or_on_another_way_are_not_in_different_calls() {
        let mut claims = Claims::default();
        let sum = call(Collective::AllReduce, Qualifier::None, 7);
        let other_way = Call {
            algorithm: Algorithm::Direct,
            qualifier: Qualifier::Weights(3 << 16),
            cut: 9,
            ..sum
        };
        let message = Call {
            collective: Collective::Recv,
            ..sum
        };
        let by_pair = |count, number| Call {
            count,
            lists: PAIRWISE,
            ..call(Collective::AllToAll, Qualifier::None, number)
        };
        for (rank, call) in [
            (0, sum),
            (1, other_way),
            (2, message),
            (4, by_pair(4, 9)),
            (5, by_pair(5, 9)),
        ] {
            assert!(claims.compare(rank, at(call)).is_none(), "{call}");
        }
        let registration = call(Collective::AllGather, Qualifier::Registration, 8);
        assert!(claims.compare(0, at(registration)).is_none());
        let error = claims.compare(1, at(call(Collective::AllGather, Qualifier::None, 8)));
        assert!(is_mismatch(error.as_ref()));
    }

    /// Rank 0 takes itself for the root and waits for the others, which have finished.
    #[test]
    fn a_rank_that_waits_in_a_collective_of_its_own_root_is_told() {
        let later = [
            vec![
                broadcast(1, 5),
                call(Collective::Barrier, Qualifier::None, 6),
            ],
            (5..10).map(|number| broadcast(1, number)).collect(),
            vec![
                call(Collective::AllGather, Qualifier::None, 5),
                broadcast(0, 6),
            ],
        ];
        for theirs in later {
            for is_late_first in [true, false] {
                let mut both = [(0, after(&[broadcast(0, 5)])), (1, after(&theirs))];
                if is_late_first {
                    both.reverse();
                }
                let mut claims = Claims::default();
                assert!(claims.compare(both[0].0, both[0].1).is_none());
                let error = claims.compare(both[1].0, both[1].1).expect("they differ");
                assert!(is_mismatch(Some(&error)));
                assert!(
                    error.to_string().contains("an earlier collective"),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn a_position_is_the_same_on_the_wire() {
        for calls in [1, 15, 16, 17, 40] {
            let made: Vec<Call> = (1..=calls).map(|number| broadcast(1, number)).collect();
            let position = after(&made);
            assert_eq!(received(position), position, "after {calls} calls");
        }
    }

    #[test]
    fn a_rank_that_is_merely_ahead_is_not_in_different_calls() {
        let calls: Vec<Call> = (1..100)
            .map(|number| match number % 3 {
                0 => call(Collective::AllReduce, Qualifier::None, number),
                _ => broadcast(number as u32 % 2, number),
            })
            .collect();
        for (behind, ahead) in (1..99).flat_map(|behind| (behind..99).map(move |a| (behind, a))) {
            let mut claims = Claims::default();
            for (rank, until) in [(0, behind), (1, ahead)] {
                let error = claims.compare(rank, after(&calls[..until]));
                assert!(error.is_none(), "#{behind} and #{ahead}: {error:?}");
            }
        }
        // One rank is still in the calls that prepare the communicator.
        let early = Call {
            sequence: 3,
            ..broadcast(0, 0)
        };
        let mut claims = Claims::default();
        assert!(claims.compare(0, at(early)).is_none());
        assert!(claims.compare(1, after(&calls[..4])).is_none());
    }
}
