//! What is simulated: the call, the machines, and their disturbances.

use crate::communicator::{Counts, Request};
use crate::engine::late_ring::Policy;
use crate::error::Result;
use crate::lane::cut::{Cut, only_moves};
use crate::lane::policy::{self, Carried};
use crate::lane::staging::Bank;
use crate::memory::Region;
use crate::simulate::network::devices::Devices;
use crate::simulate::network::model::{Compute, LinkEnds, Network};
use crate::testing::delay_spec::Slow;
use crate::tune::cost::weighted::Pace;
use crate::tune::devices::pipeline::{Line, Pipeline, Shape};
use crate::types::{Collective, DType, Method, Op};

/// Picoseconds of a microsecond.
const PS_PER_US: f64 = 1e6;

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
    /// The devices that the data is on; `None`: it is in the hosts' memory.
    pub devices: Option<Devices>,
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
            devices: None,
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

    /// The call as the host makes it, without memory.
    pub(super) fn request(&self) -> Request {
        let counts = Counts::Even(self.count());
        Request {
            op: self.op,
            root: self.root,
            algorithm: self.algorithm,
            ..Request::new(
                self.collective,
                self.dtype,
                counts,
                Region::EMPTY,
                Region::EMPTY,
            )
        }
    }

    /// How a lane cuts the call of `rank` into slices, with data on devices.
    pub(super) fn cut(&self, rank: usize) -> Result<Cut> {
        let slice_bytes = usize::try_from(self.staged_bytes()).unwrap_or(usize::MAX);
        Cut::of_host(self.request(), rank, self.ranks, slice_bytes, self.bank())
    }

    /// The most bytes of a slice of a lane: as the product decides it, but that the time of the
    /// host's part is that of any algorithm that moves as little as possible.
    fn staged_bytes(&self) -> u64 {
        use Collective::{AllGather, Gather};
        let Some(devices) = &self.devices else {
            return u64::MAX;
        };
        if let Some(slice_bytes) = devices.slice_bytes {
            return slice_bytes.min(devices.slot_bytes);
        }
        let shape = Shape {
            ranks: self.ranks,
            ranks_per_device: devices.ranks_per_device,
            depth: devices.depth,
        };
        let request = self.request();
        let (carried, moved, slots) = match (self.bank(), self.collective) {
            // A slot has only what its rank gives.
            (Bank::Direct, AllGather | Gather) => (Carried::Direct, 0.0, self.ranks as u64),
            (Bank::Direct, _) => (Carried::Direct, 0.0, 1),
            (Bank::Host, _) => (Carried::Host, 1.0, 1),
        };
        let (links, n) = (&self.network.links, self.ranks as f64);
        let sent = 2.0 * (n - 1.0) / n * links.ps_per_byte as f64;
        let combined = (n - 1.0) / n * self.compute.reduce_ps_per_byte as f64;
        let host = Line {
            each_us: 2.0 * (links.alpha_ps + 2 * links.overhead_ps) as f64 / PS_PER_US,
            us_per_byte: moved * (sent + combined) / PS_PER_US,
        };
        let pipeline = Pipeline::host(self.collective, shape, &devices.constants(), host);
        let priced = policy::class_bytes(request.bytes(self.ranks));
        let longest = devices.slot_bytes.saturating_mul(slots);
        let most = pipeline.slice_bytes(priced, longest).div_ceil(slots);
        policy::even_slice_bytes(&request, self.ranks, carried, [most, devices.slot_bytes])
    }

    /// Which slots the call uses, with data on devices: those that devices of all ranks read, where
    /// they are on one host.
    pub(super) fn bank(&self) -> Bank {
        let wants = self.devices.as_ref().is_some_and(|devices| devices.direct);
        let are_apart = self.network.host(0) != self.network.host(self.ranks - 1);
        match wants && !are_apart && self.ranks > 1 && only_moves(&self.request()) {
            true => Bank::Direct,
            false => Bank::Host,
        }
    }

    /// The size of what the host carries out at once: the longest slice, with data on devices.
    pub(super) fn host_bytes(&self) -> u64 {
        self.bytes.min(self.staged_bytes())
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
}
