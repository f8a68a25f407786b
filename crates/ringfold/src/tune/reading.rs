//! The calls whose messages are read from the sender's memory: policy, as one pure function.
//!
//! A message within a host passes through cells of shared memory, which its two ends copy at the
//! same time, or the receiver alone reads it (`transport/shm/reading.rs`): one copy by the kernel,
//! which takes longer than one of the other two. So reading saves time if each rank has both ends
//! to serve, or ranks share cores; in one direction, only if a block no longer fits the caches.
//! `docs/explanation/measured-paths.md` has the measurements.

#![forbid(unsafe_code)]

use super::{Constants, Question};
use crate::types::Collective;

/// The block from which a call in one direction reads, as a multiple of the least block of others.
const ONE_WAY_FACTOR: u64 = 16;

/// Returns the length from which single messages are read, if calls read from `bytes_min` on.
pub fn single_bytes_min(bytes_min: u64) -> u64 {
    bytes_min.saturating_mul(ONE_WAY_FACTOR)
}

/// Whether the messages of a call over messages are read.
pub fn reads(question: &Question, constants: &Constants) -> bool {
    use Collective::{AllGather, AllToAll, Scatter, SendRecv};
    let Some(bytes_min) = question.read_bytes_min else {
        return false;
    };
    let block = match question.collective {
        SendRecv => question.bytes,
        _ => question.bytes / question.world_size as u64,
    };
    match question.collective {
        AllGather | AllToAll | SendRecv => block >= bytes_min,
        Scatter if constants.is_oversubscribed() => block >= bytes_min,
        Scatter => block >= single_bytes_min(bytes_min),
        // Cells of messages to be reduced are operands, and need no second copy. A root empties
        // cells of a gather, or fills those of a broadcast, while all others do the reverse.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_where_one_copy_is_quicker_than_two() {
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Scatter, SendRecv};
        let apart = Constants::default();
        let crowded = Constants {
            load: 2.0,
            ..Constants::default()
        };
        let least = |collective, constants| {
            let reads = |bytes: &u64| {
                let question = Question {
                    read_bytes_min: Some(1 << 10),
                    ..Question::new(collective, *bytes, 4)
                };
                reads(&question, constants)
            };
            (0..30).map(|shift| 1 << shift).find(reads)
        };
        for (collective, alone, sharing) in [
            (AllToAll, Some(4 << 10), Some(4 << 10)),
            (AllGather, Some(4 << 10), Some(4 << 10)),
            (SendRecv, Some(1 << 10), Some(1 << 10)),
            (Scatter, Some(64 << 10), Some(4 << 10)),
            (Broadcast, None, None),
            (Gather, None, None),
            (AllReduce, None, None),
        ] {
            let found = (least(collective, &apart), least(collective, &crowded));
            assert_eq!(found, (alone, sharing), "{collective}");
        }
        assert!(!reads(&Question::new(AllToAll, 1 << 30, 4), &apart));
    }
}
