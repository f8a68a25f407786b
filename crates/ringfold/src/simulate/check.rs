//! Rejects scenarios that cannot be simulated; the error names the obstacle.

use super::scenario::{Disturbance, Scenario};
use crate::engine::late_ring::RANKS_MAX;
use crate::error::{Error, Result};
use crate::schedule::Weights;
use crate::simulate::model::{LinkEnds, Links, Server};
use crate::types::{Collective, Method};

/// Longest duration of a simulated call: half of the range of virtual time.
const DURATION_PS_MAX: u64 = u64::MAX / 2;

impl Scenario {
    /// Rejects scenarios that cannot be simulated; the error says what to write instead.
    pub fn check(&self) -> Result<()> {
        if self.ranks == 0 || self.ranks > u32::MAX as usize / 2 {
            return Err(invalid(format!("{} ranks; at least 1", self.ranks)));
        }
        if matches!(self.collective, Collective::Send | Collective::Recv) {
            let text = "a single message has no schedule; simulate sendrecv";
            return Err(Error::Unsupported(text.into()));
        }
        self.network.check(self.ranks)?;
        let is_by_thread = self.network.segment_bytes.is_some() || self.compute.has_turns();
        if is_by_thread && self.compute.server == Server::Parallel {
            let text = "segments, or ranks that sleep, with a parallel server; use a serial one";
            return Err(Error::Unsupported(text.into()));
        }
        let is_of_one_call = |disturbance: &Disturbance| {
            !matches!(
                disturbance,
                Disturbance::Slow(_) | Disturbance::SlowLink { .. }
            )
        };
        if self.has_barriers && (self.traces || self.disturbances.iter().any(is_of_one_call)) {
            let text = "barriers around a call with a timeline, or with ranks that are late, stall \
                or die; leave out the barriers";
            return Err(Error::Unsupported(text.into()));
        }
        if self.collective.reduces() {
            self.op.check(self.dtype)?;
        }
        self.check_rank("root", self.root)?;
        self.check_straggler()?;
        self.check_weights()?;
        self.check_devices()?;
        self.disturbances
            .iter()
            .try_for_each(|disturbance| self.check_disturbance(disturbance))?;
        self.check_duration()
    }

    /// Rejects calls that could outlast virtual time, even if all events happened in sequence.
    fn check_duration(&self) -> Result<()> {
        let (network, compute) = (&self.network, &self.compute);
        let kinds = [
            &network.links,
            network.local.as_ref().unwrap_or(&network.links),
        ];
        let per_message = |links: &Links| {
            let overhead_ps = links.overhead_ps.max(links.crowded().overhead_ps);
            let message_ps = overhead_ps.saturating_add(links.packets_ps);
            let longest_ps = links.alpha_ps.max(links.gap_ps).max(message_ps);
            longest_ps + compute.wake_ps.max(compute.switch_ps)
        };
        let per_message = kinds.map(per_message).into_iter().max().unwrap_or(0);
        let per_byte = |links: &&Links| links.ps_per_byte.max(links.work_ps_per_byte);
        let rates = kinds.iter().map(per_byte);
        let rates = rates.chain(network.switches.iter().map(|switch| switch.ps_per_byte));
        let rates = rates.chain([compute.reduce_ps_per_byte, compute.copy_ps_per_byte]);
        let rates = rates.chain(network.memory_ps_per_byte);
        let per_byte = rates
            .chain(compute.reduce_ps_per_byte_of.iter().map(|(_, own)| *own))
            .max();
        let (mut slowest, mut factor) = (0, 1u128);
        for disturbance in &self.disturbances {
            match disturbance {
                Disturbance::Slow(slow) => slowest = slow.delay.longest_ps().max(slowest),
                Disturbance::SlowLink { factor: own, .. } => {
                    factor = factor.saturating_mul(own.ceil() as u128);
                }
                _ => {}
            }
        }
        let ranks = self.ranks as u128;
        // The tuner's slices have messages of at least 64 KiB (of weighted calls, 16 KiB).
        let slice = self.slice_bytes.map_or(ranks << 16, u128::from);
        let slices = u128::from(self.bytes) / slice.max(64);
        let messages = 4 * ranks * (slices + 1);
        let each =
            u128::from(per_message) * 4 + u128::from(compute.reduce_ps) + u128::from(slowest);
        let per_byte = u128::from(per_byte.unwrap_or(0)) + u128::from(compute.miss_ps_per_byte);
        let bytes = 4 * ranks * u128::from(self.bytes) * per_byte;
        let bytes = bytes.saturating_mul(factor);
        if messages.saturating_mul(each).saturating_add(bytes) > u128::from(DURATION_PS_MAX) {
            let text = "a call that could take months of virtual time; use less data or faster \
                machines";
            return Err(invalid(text.into()));
        }
        Ok(())
    }

    fn check_straggler(&self) -> Result<()> {
        let is_ring = self
            .algorithm
            .is_none_or(|algorithm| algorithm == Method::Ring);
        let serves = matches!(
            self.collective,
            Collective::AllReduce | Collective::ReduceScatter
        );
        if self.straggler.is_some() && !(is_ring && serves && self.ranks <= RANKS_MAX) {
            return Err(Error::Unsupported(format!(
                "a straggler policy for {} by {} of {} ranks; it is for the ring of all_reduce and \
                 reduce_scatter of at most \
                 {RANKS_MAX} ranks",
                self.collective,
                self.algorithm.map_or("the tuner's choice", Method::name),
                self.ranks
            )));
        }
        Ok(())
    }

    fn check_devices(&self) -> Result<()> {
        let Some(devices) = &self.devices else {
            return Ok(());
        };
        let dies = |disturbance: &Disturbance| matches!(disturbance, Disturbance::Dead { .. });
        let what = if self.collective == Collective::Barrier {
            "a barrier, which has no data on devices"
        } else if self.straggler.is_some() {
            "a straggler policy, which is about whole calls of the host, with data on devices; \
             leave one of them out"
        } else if self.has_barriers {
            "barriers around a call with data on devices; leave out the barriers"
        } else if self.disturbances.iter().any(dies) {
            "ranks that die with data on devices; leave one of them out"
        } else {
            devices.check()?;
            return self.program(0).map(|_| ());
        };
        Err(Error::Unsupported(what.into()))
    }

    fn check_weights(&self) -> Result<()> {
        let Some(each) = &self.weights else {
            return Ok(());
        };
        Weights::new(each, 1)?;
        if each.len() != self.ranks {
            let text = format!("{} weights for {} ranks", each.len(), self.ranks);
            return Err(invalid(text));
        }
        match (self.collective, self.algorithm) {
            (Collective::AllReduce, None | Some(Method::Direct)) => Ok(()),
            _ => Err(invalid("weights are for all_reduce by direct".into())),
        }
    }

    fn check_disturbance(&self, disturbance: &Disturbance) -> Result<()> {
        match disturbance {
            Disturbance::Slow(slow) => slow
                .rank
                .map_or(Ok(()), |rank| self.check_rank("slow rank", rank)),
            Disturbance::Late { rank, .. } => self.check_rank("late rank", *rank),
            Disturbance::Dead { rank, .. } => self.check_rank("dead rank", *rank),
            Disturbance::Stall {
                rank,
                from_ps,
                until_ps,
            } if from_ps > until_ps => {
                let text = format!("the stall of rank {rank} ends before it begins");
                Err(invalid(text))
            }
            Disturbance::Stall { rank, .. } => self.check_rank("stalled rank", *rank),
            Disturbance::SlowLink { ends, factor } => {
                if !factor.is_finite() || *factor < 1.0 {
                    return Err(invalid(format!("slow-link factor {factor}; at least 1")));
                }
                match *ends {
                    LinkEnds::Port(rank) => self.check_rank("rank of a slow link", rank),
                    LinkEnds::Pair(from, to) => {
                        self.check_rank("rank of a slow link", from)?;
                        self.check_rank("rank of a slow link", to)
                    }
                }
            }
        }
    }

    fn check_rank(&self, what: &str, rank: usize) -> Result<()> {
        if rank < self.ranks {
            return Ok(());
        }
        Err(invalid(format!(
            "{what} {rank} of {} ranks; they count from 0",
            self.ranks
        )))
    }
}

fn invalid(text: String) -> Error {
    Error::InvalidArgument(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuses(scenario: Scenario, due: &str) {
        let error = scenario.check().unwrap_err().to_string();
        assert!(error.contains(due), "{error}");
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let default = Scenario::default;
        let no_ranks = Scenario {
            ranks: 0,
            ..default()
        };
        refuses(no_ranks, "0 ranks");
        let root_outside = Scenario {
            root: 4,
            ..default()
        };
        refuses(root_outside, "root 4 of 4");
        let too_few_weights = Scenario {
            weights: Some(vec![1, 1]),
            algorithm: None,
            ..default()
        };
        refuses(too_few_weights, "2 weights for 4");
        let weights_for_a_ring = Scenario {
            weights: Some(vec![1; 4]),
            ..default()
        };
        refuses(weights_for_a_ring, "by direct");
        let endless = Scenario {
            bytes: 1 << 50,
            ranks: 1000,
            ..default()
        };
        refuses(endless, "months");
    }

    #[test]
    fn disturbances_that_cannot_be_are_refused_by_name() {
        let slow_link = |ends, factor| Disturbance::SlowLink { ends, factor };
        let ends_early = Disturbance::Stall {
            rank: 1,
            from_ps: 2,
            until_ps: 1,
        };
        let slow = Disturbance::Slow("rank=7,delay=1us".parse().unwrap());
        let cases = [
            (Disturbance::Dead { rank: 9, at_ps: 0 }, "dead rank 9"),
            (slow, "slow rank 7"),
            (ends_early, "ends before it begins"),
            (slow_link(LinkEnds::Pair(0, 4), 2.0), "slow link 4"),
            (slow_link(LinkEnds::Port(0), 0.5), "at least 1"),
        ];
        for (disturbance, due) in cases {
            let scenario = Scenario {
                disturbances: vec![disturbance],
                ..Scenario::default()
            };
            refuses(scenario, due);
        }
    }
}
