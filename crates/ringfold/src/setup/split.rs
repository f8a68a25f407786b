//! Splitting a communicator into communicators of some of its ranks.

use std::time::Instant;

use super::establish::establish;
use crate::communicator::Communicator;
use crate::communicator::group::{Inherited, RankGroup};
use crate::control::Cancel;
use crate::control::limit::Limit;
use crate::control::wire::wire_struct;
use crate::error::{Error, GONE, Result};

/// Splits a communicator and returns this rank's part; `cancel` ends the split.
pub(super) fn split(
    parent: &Communicator,
    color: Option<u32>,
    key: i64,
    cancel: Option<&Cancel>,
) -> Result<Option<Communicator>> {
    let Some(group) = parent.membership.group() else {
        return Err(Error::Unsupported("split of ranks that are threads".into()));
    };
    let number = parent.membership.next_split();
    let watch = parent.driver.watch();
    let requests = exchange(parent, group, number, SplitRequest { color, key })?;
    let Some(color) = color else { return Ok(None) };
    let mut ranks: Vec<usize> = (0..requests.len())
        .filter(|rank| requests[*rank].color == Some(color))
        .collect();
    ranks.sort_by_key(|rank| (requests[*rank].key, *rank));
    let place = ranks.iter().position(|rank| *rank == group.rank);
    let rank = place.unwrap_or_else(|| unreachable!("this rank's own request has its color"));
    // A probe was made with all ranks; its results mean little for fewer.
    let is_as_large = ranks.len() == requests.len();
    let tuning = &parent.policy.tuning;
    let mut part = RankGroup {
        id: part_id(group.id, number, color),
        world_ranks: ranks.iter().map(|rank| group.world_ranks[*rank]).collect(),
        rank,
        inherited: Inherited {
            rules: Some(tuning.rules.clone()),
            measured: is_as_large.then(|| (tuning.constants.clone(), tuning.limits)),
            reads: Some(parent.policy.read_bytes_min.is_some()),
        },
        ..group.clone()
    };
    // Demanded perhaps by ranks that are not in the part.
    part.settings.reproducible = parent.policy.is_reproducible;
    let server = group.world_ranks.iter().position(|rank| *rank == 0);
    // A rank that fails in the parent does not join, and ranks that split meanwhile must not wait
    // for it.
    let parents_end = || {
        let fault = watch.fault()?;
        let reason = format!("the parent communicator failed: {fault}");
        Some(Error::Aborted { rank, reason })
    };
    let made = establish(part, cancel, &parents_end).map(Some);
    made.map_err(|error| match (watch.fault(), error, server) {
        (Some(fault), ..) => fault,
        // The rank that had the server is a member of the parent, too, which fails with it.
        (_, Error::Bootstrap(_), Some(rank)) if group.session.has_lost_server() => {
            let reason = GONE.into();
            let site = None;
            let suspicion = Error::PeerFailed { rank, reason, site };
            watch.report_fault(suspicion, watch.crash_grace())
        }
        // The part does not exist: errors name its ranks by their numbers in the parent.
        (_, error, _) => error.renumbered(&ranks),
    })
}

/// Exchanges the requests of all ranks for split `number`; returns them in rank order.
fn exchange(
    parent: &Communicator,
    group: &RankGroup,
    number: u64,
    own: SplitRequest,
) -> Result<Vec<SplitRequest>> {
    let watch = parent.driver.watch();
    let deadline = Instant::now() + group.settings.connect_timeout;
    let verdict = || watch.fault();
    let topic = format!("split {number}");
    let requests = group.agree(&topic, &own, Limit::new(deadline, &verdict));
    requests.map_err(|error| match error {
        // The peer is a member of the parent, which fails with one error on all ranks.
        Error::PeerFailed { .. } => watch.report_fault(error, watch.crash_grace()),
        other => other,
    })
}

/// Returns the number of part `color` of split `number` of communicator `parent`: the same on all
/// its ranks, and different for every part.
fn part_id(parent: u64, number: u64, color: u32) -> u64 {
    let mut mixed = parent;
    for word in [number + 1, color as u64] {
        mixed = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^= mixed >> 29;
    }
    // 0 is the job's own communicator.
    mixed | 1
}

/// A rank's request in a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SplitRequest {
    color: Option<u32>,
    key: i64,
}

wire_struct!(SplitRequest { color, key });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::wire;

    #[test]
    fn a_request_reads_back_as_it_was_written_and_as_nothing_else() {
        for color in [None, Some(0), Some(u32::MAX)] {
            let request = SplitRequest { color, key: -7 };
            let record = wire::encode(&request);
            assert_eq!(wire::decode(&record), Some(request));
            for length in 0..record.len() {
                assert_eq!(wire::decode::<SplitRequest>(&record[..length]), None);
            }
            let longer = [record, vec![0]].concat();
            assert_eq!(wire::decode::<SplitRequest>(&longer), None);
        }
        assert_eq!(wire::decode::<SplitRequest>(&[2; 16]), None);
    }

    #[test]
    fn every_part_has_a_number_of_its_own() {
        let numbers = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (7, 0, 0)];
        let mut numbers = numbers.map(|(parent, number, color)| part_id(parent, number, color));
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(!numbers.contains(&0));
    }
}
