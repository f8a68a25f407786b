//! Ranks that wait for each other in different calls.
//!
//! Over messages a call is compared when one of its messages comes. Two ranks that both wait for a
//! message of the other hear nothing, and would wait until their deadline. So a rank that has
//! waited for [`CLAIM_AFTER`] says in which call, once, and so does every member that is asked how
//! far it is. Two calls with the same place in the order of calls that ask for different things are
//! a `Mismatch`, no matter which is late: no rank that is merely behind is ever taken for one.
//!
//! Messages between two ranks have no common order and are not compared. Neither is how a call is
//! carried out: ranks that give up one way for another do so one after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::call::Call;
use crate::error::Error;
use crate::transport::header::mismatch;

/// How long a rank waits in a call before it says so: far longer than calls take among ranks that
/// are there, and short for a person who looks for a mistake.
pub const CLAIM_AFTER: Duration = Duration::from_secs(1);

/// What each rank of a communicator waited in when it last said so.
#[derive(Debug, Default)]
pub struct Claims(BTreeMap<u32, Call>);

impl Claims {
    /// `rank` waits in `call`. The error, if another rank waits or waited in a different one
    /// instead.
    pub fn compare(&mut self, rank: u32, call: Call) -> Option<Error> {
        if call.is_message() {
            return None;
        }
        self.0.insert(rank, call);
        let (other, theirs) = self.0.iter().find(|(_, theirs)| call.contradicts(theirs))?;
        let ranks = [rank, *other].map(|rank| rank as usize);
        Some(mismatch(ranks, [&call, theirs]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{PAIRWISE, Qualifier};
    use crate::types::{Algorithm, Collective, DType};

    fn call(collective: Collective, qualifier: Qualifier, sequence: u64) -> Call {
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
            sequence,
            cut: 0,
        }
    }

    #[test]
    fn two_ranks_that_both_wait_for_the_other_are_told() {
        let mut claims = Claims::default();
        let from = |root| call(Collective::Broadcast, Qualifier::Root(root), 5);
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
        let by_pair = |count, sequence| Call {
            count,
            lists: PAIRWISE,
            ..call(Collective::AllToAll, Qualifier::None, sequence)
        };
        for (rank, call) in [
            (0, sum),
            (1, other_way),
            (2, message),
            (3, call(Collective::Broadcast, Qualifier::Root(0), 6)),
            (4, by_pair(4, 9)),
            (5, by_pair(5, 9)),
        ] {
            assert!(claims.compare(rank, call).is_none(), "{call}");
        }
        let registration = call(Collective::AllGather, Qualifier::Registration, 8);
        assert!(claims.compare(0, registration).is_none());
        let error = claims.compare(1, call(Collective::AllGather, Qualifier::None, 8));
        assert!(matches!(error, Some(Error::Mismatch { .. })));
    }
}
