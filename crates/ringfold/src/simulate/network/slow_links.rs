//! Links with reduced bandwidth.

use std::collections::BTreeMap;

use crate::simulate::model::LinkEnds;
use crate::simulate::scenario::{Disturbance, Scenario};

/// Factors by which a byte takes longer on slow links.
#[derive(Default)]
pub(in crate::simulate) struct SlowLinks {
    /// Factors of ports, by rank; empty if no link is slow.
    ports: Vec<f64>,
    /// Factors of paths, by sender and receiver.
    pairs: BTreeMap<(u32, u32), f64>,
}

impl SlowLinks {
    pub fn new(scenario: &Scenario) -> SlowLinks {
        let mut slow = SlowLinks::default();
        for disturbance in &scenario.disturbances {
            let Disturbance::SlowLink { ends, factor } = disturbance else {
                continue;
            };
            slow.ports.resize(scenario.ranks, 1.0);
            match *ends {
                LinkEnds::Port(rank) => slow.ports[rank] *= factor,
                LinkEnds::Pair(from, to) => {
                    *slow.pairs.entry((from as u32, to as u32)).or_insert(1.0) *= factor;
                }
            }
        }
        slow
    }

    /// Returns the time at the sender's port and at the receiver's of a message that takes
    /// `base_ps` on a normal link.
    #[inline(always)]
    pub fn apply(&self, from: u32, to: u32, base_ps: u64) -> (u64, u64) {
        if self.ports.is_empty() {
            return (base_ps, base_ps);
        }
        let times = |factor: f64| match factor {
            1.0 => base_ps,
            _ => (base_ps as f64 * factor).round() as u64,
        };
        let pair = self.pairs.get(&(from, to)).copied().unwrap_or(1.0);
        let sending = pair.max(self.ports[from as usize]);
        (times(sending), times(self.ports[to as usize]))
    }
}
