//! What is simulated: the call, the machines, and their disturbances.

use crate::engine::late_ring::{Policy, RANKS_MAX};
use crate::error::{Error, Result};
use crate::schedule::Weights;
use crate::simulate::network::model::{Compute, LinkEnds, Links, Network, Server};
use crate::testing::delay_spec::Slow;
use crate::tune::cost::weighted::Pace;
use crate::types::{Collective, DType, Method, Op};

/// One call by all ranks, and everything that its time depends on. The same scenario gives the same
/// [`Report`](super::Report).
///
/// The default is an `all_reduce` of 8 MiB of `f32` by the ring in one slice, on four ranks, over
/// links of 5 µs and 100 Gbit/s, with reductions of 20 GB/s.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What is called.
    pub collective: Collective,
    /// How; `None`: what the tuner chooses for ranks on different hosts.
    pub algorithm: Option<Method>,
    /// The elements' type.
    pub dtype: DType,
    /// How they are combined.
    pub op: Op,
    /// The root, where there is one.
    pub root: usize,
    /// How many ranks.
    pub ranks: usize,
    /// The size as nccl-tests counts it: the larger of a rank's two buffers. Rounded down to whole
    /// elements, and blocks.
    pub bytes: u64,
    /// The pipeline's unit, bytes of the vector or of each block; `None`: the tuner's choice;
    /// `u64::MAX`: one slice.
    pub slice_bytes: Option<u64>,
    /// Each rank's share of an all-reduce by `direct` (requested, or because of this); `None`:
    /// equal shares.
    pub weights: Option<Vec<u32>>,
    /// The network and the hosts.
    pub network: Network,
    /// What computing costs.
    pub compute: Compute,
    /// Whether the ranks come out of a barrier and go on to another, as those of `ringfold perf`
    /// do; the time is that of the rank which takes longest. Otherwise all begin at once.
    pub has_barriers: bool,
    /// What goes wrong.
    pub disturbances: Vec<Disturbance>,
    /// How rings of `all_reduce` and `reduce_scatter` go around slow ranks, if they do.
    pub straggler: Option<Policy>,
    /// What all random numbers follow from.
    pub seed: u64,
    /// How long the call may take.
    pub timeout_ps: u64,
    /// How long it takes until the survivors of a death learn of it.
    pub detect_ps: u64,
    /// Whether data is moved.
    pub payload: Payload,
    /// Whether the report has a [`trace`](super::Report::trace).
    pub traces: bool,
}

/// The longest call that is simulated: half of the range of virtual time.
const DURATION_PS_MAX: u64 = u64::MAX / 2;

/// What a simulation does with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Payload {
    /// Moves and combines it; every result is compared with one computed from the definition.
    Real,
    /// Counts its bytes: for large worlds.
    Hollow,
}

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Disturbance {
    /// Reductions that take longer.
    Slow(Slow),
    /// A rank makes its call later than the others.
    Late {
        /// Which.
        rank: usize,
        /// By how much.
        delay_ps: u64,
    },
    /// A rank's process is frozen for a while: it neither posts nor computes. Messages in the
    /// network proceed.
    Stall {
        /// Which.
        rank: usize,
        /// From when on.
        from_ps: u64,
        /// Until when.
        until_ps: u64,
    },
    /// A link of less bandwidth.
    SlowLink {
        /// Where.
        ends: LinkEnds,
        /// How many times as long a byte takes, at least 1.
        factor: f64,
    },
    /// A rank's process dies.
    Dead {
        /// Which.
        rank: usize,
        /// When.
        at_ps: u64,
    },
}

impl Default for Scenario {
    fn default() -> Scenario {
        Scenario {
            collective: Collective::AllReduce,
            algorithm: Some(Method::Ring),
            dtype: DType::F32,
            op: Op::Sum,
            root: 0,
            ranks: 4,
            bytes: 8 << 20,
            slice_bytes: Some(u64::MAX),
            weights: None,
            network: Network::default(),
            compute: Compute::default(),
            has_barriers: false,
            disturbances: Vec::new(),
            straggler: None,
            seed: 0,
            timeout_ps: 60_000_000_000_000,
            detect_ps: 10_000_000_000,
            payload: Payload::Real,
            traces: false,
        }
    }
}

impl Scenario {
    /// Elements as the collective counts them: of the vector, or of a rank's block.
    pub fn count(&self) -> u64 {
        use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        let elements = self.bytes / self.dtype.size_bytes() as u64;
        match self.collective {
            AllGather | AllToAll | Gather | ReduceScatter | Scatter => elements / self.ranks as u64,
            Collective::Barrier => 0,
            _ => elements,
        }
    }

    /// When each rank makes its call.
    pub(super) fn begins_ps(&self) -> Vec<u64> {
        let mut begins_ps = vec![0; self.ranks];
        for disturbance in &self.disturbances {
            if let Disturbance::Late { rank, delay_ps } = disturbance {
                begins_ps[*rank] += delay_ps;
            }
        }
        begins_ps
    }

    /// When a rank's process is frozen: from when, and until when.
    pub(super) fn stalls(&self, rank: usize) -> impl Iterator<Item = (u64, u64)> {
        self.disturbances.iter().filter_map(move |disturbance| {
            let Disturbance::Stall {
                rank: frozen,
                from_ps,
                until_ps,
            } = *disturbance
            else {
                return None;
            };
            (frozen == rank).then_some((from_ps, until_ps))
        })
    }

    /// Until when a rank's process is frozen that is frozen at `at_ps`.
    pub(super) fn frozen_until(&self, rank: usize, at_ps: u64) -> Option<u64> {
        let stalls = self.stalls(rank);
        let due = stalls.filter(|(from_ps, until_ps)| (*from_ps..*until_ps).contains(&at_ps));
        due.map(|(_, until_ps)| until_ps).max()
    }

    /// The reductions that take longer.
    pub(super) fn slow(&self) -> impl Iterator<Item = &Slow> {
        self.disturbances
            .iter()
            .filter_map(|disturbance| match disturbance {
                Disturbance::Slow(slow) => Some(slow),
                _ => None,
            })
    }

    /// Refuses what cannot be simulated; the error says what to write instead.
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
        self.disturbances
            .iter()
            .try_for_each(|disturbance| self.check_disturbance(disturbance))?;
        self.check_duration()
    }

    /// Refuses what could outlast virtual time, even if everything happened one after the other.
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
        // The tuner's slices have no smaller messages.
        let slice = self.slice_bytes.map_or(ranks << 16, u128::from);
        let slices = u128::from(self.bytes) / slice.max(64);
        let messages = 4 * ranks * (slices + 1);
        let each =
            u128::from(per_message) * 4 + u128::from(compute.reduce_ps) + u128::from(slowest);
        let per_byte = u128::from(per_byte.unwrap_or(0)) + u128::from(compute.miss_ps_per_byte);
        let bytes = 4 * ranks * u128::from(self.bytes) * per_byte;
        let bytes = bytes.saturating_mul(factor);
        if messages.saturating_mul(each).saturating_add(bytes) > u128::from(DURATION_PS_MAX) {
            let text = "a call that could take months of virtual time; take less data, or quicker \
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

    /// The results that a probe would have for each rank, from the links of its port and the cost
    /// of reductions: for [`balance`](crate::tune::weights::balance), which computes weights from
    /// them.
    pub fn paces(&self) -> Vec<Pace> {
        let factor = |rank: usize| {
            let of_port = |disturbance: &Disturbance| match disturbance {
                Disturbance::SlowLink {
                    ends: LinkEnds::Port(slow),
                    factor,
                } if *slow == rank => *factor,
                _ => 1.0,
            };
            self.disturbances.iter().map(of_port).product::<f64>()
        };
        const MEGABYTE: u64 = 1_000_000;
        let reduction_ps = self.compute.reduction_ps(self.dtype, MEGABYTE);
        let pace = |rank| Pace {
            link_ps: self.network.links.ps_per_byte as f64 * factor(rank),
            reduce_ps: reduction_ps as f64 / MEGABYTE as f64,
        };
        (0..self.ranks).map(pace).collect()
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
                    return Err(invalid(format!(
                        "a link {factor} times as slow; at least 1"
                    )));
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
impl Scenario {
    /// The slow-node paper's reduce-scatter: chunks of 8 KiB in one slice over 5 µs and 100 Gbit/s,
    /// reductions of 3 µs.
    pub(crate) fn slow_node_paper(ranks: usize, server: crate::simulate::Server) -> Scenario {
        Scenario {
            collective: Collective::ReduceScatter,
            ranks,
            bytes: 8192 * ranks as u64,
            compute: Compute {
                reduce_ps: 3_000_000,
                reduce_ps_per_byte: 0,
                server,
                ..Compute::default()
            },
            ..Scenario::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_counted_as_nccl_tests_counts_them() {
        let count = |collective, bytes| {
            let scenario = Scenario {
                collective,
                bytes,
                ..Scenario::default()
            };
            scenario.count()
        };
        assert_eq!(count(Collective::AllReduce, 1000), 250);
        assert_eq!(count(Collective::ReduceScatter, 1000), 62);
        assert_eq!(count(Collective::Barrier, 1000), 0);
    }

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
