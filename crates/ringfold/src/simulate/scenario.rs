//! What is simulated: the call, the machines, and their disturbances.

use crate::communicator::{CallOptions, Counts, Request, Target};
use crate::engine::late_ring::LateMergePolicy;
use crate::error::Result;
use crate::lane::cut::Cut;
use crate::lane::decide::question;
use crate::lane::one_shot::limits::bytes_max;
use crate::lane::staging::Bank;
use crate::memory::Region;
use crate::simulate::devices::Devices;
use crate::simulate::model::{Compute, LinkEnds, Network};
use crate::simulate::program::Program;
use crate::testing::delay_spec::Slow;
use crate::tune::cost::weighted::RankSpeed;
use crate::tune::devices::choice::{Carried, DevicePlan, DeviceTuner, Setting};
use crate::tune::devices::pipeline::Shape;
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
    pub straggler: Option<LateMergePolicy>,
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
            target: Target::of(self.collective, self.root),
            options: CallOptions {
                algorithm: self.algorithm,
                ..CallOptions::default()
            },
            ..Request::new(
                self.collective,
                self.dtype,
                counts,
                Region::EMPTY,
                Region::EMPTY,
            )
        }
    }

    /// What a lane makes of the call of `rank`, with data on devices.
    pub(super) fn program(&self, rank: usize) -> Result<Program> {
        let (carried, slice_bytes) = match self.staged() {
            Some(plan) => (plan.carried, plan.slice_bytes),
            None => (Carried::Host, u64::MAX),
        };
        let slice_bytes = usize::try_from(slice_bytes).unwrap_or(usize::MAX);
        let element_bytes = self.dtype.size_bytes();
        let (count, bank) = (self.count(), self.bank());
        if carried == Carried::OneShot {
            return Ok(Program::OneShot {
                bytes: count * element_bytes as u64,
                ranks: self.ranks,
            });
        }
        let cut = Cut::of_host(self.request(), rank, self.ranks, slice_bytes, bank);
        Ok(Program::Cut(Box::new(cut?)))
    }

    /// How a lane carries the call out: as the product decides it, but that the time of the host's
    /// part is that of any algorithm that moves as little as possible. Nothing without devices.
    pub(super) fn staged(&self) -> Option<DevicePlan> {
        let devices = self.devices.as_ref()?;
        let is_direct = self.reaches_slots(devices);
        let may_meet =
            is_direct && devices.one_shot != Some(false) && devices.ranks_per_device == 1;
        let slot_bytes = usize::try_from(devices.slot_bytes).unwrap_or(usize::MAX);
        let setting = Setting {
            shape: Shape {
                ranks: self.ranks,
                ranks_per_device: devices.ranks_per_device,
                depth: devices.depth,
            },
            constants: devices.constants(),
            slot_bytes: devices.slot_bytes,
            slice_bytes: devices.slice_bytes,
            is_direct,
            threads: 1,
            one_shot_bytes: match may_meet {
                true => bytes_max(self.ranks, slot_bytes) as u64,
                false => 0,
            },
            is_one_shot_asked: devices.one_shot == Some(true),
            host_us: &|collective, bytes| self.host_us(collective, bytes),
            slots_us: &|collective, bytes| self.slots_us(collective, bytes),
        };
        let planned = DeviceTuner::new(&setting).plan(&question(&self.request(), self.ranks));
        Some(DevicePlan {
            carried: devices.carried.unwrap_or(planned.carried),
            ..planned
        })
    }

    /// What a call of the host's should take that moves as little as possible.
    fn host_us(&self, collective: Collective, bytes: u64) -> f64 {
        use Collective::{AllGather, AllToAll, Barrier};
        let (links, _) = self.network.links_between(0, self.ranks - 1);
        let n = self.ranks as f64;
        let part = (n - 1.0) / n;
        let (hops, sent, combined) = match collective {
            Barrier => (2.0, 0.0, 0.0),
            AllGather | AllToAll => (1.0, part, 0.0),
            _ => (2.0, 2.0 * part, part),
        };
        let grant_ps = links.grant_ps(bytes).unwrap_or(0);
        let hop_ps = (links.alpha_ps + 2 * links.overhead_ps + grant_ps) as f64;
        // Each rank sends, and receives.
        let sent_ps = sent * (links.ps_per_byte + 2 * links.work_ps_per_byte) as f64;
        let combined_ps = combined * self.compute.reduce_ps_per_byte as f64;
        (hops * hop_ps + (sent_ps + combined_ps) * bytes as f64) / PS_PER_US
    }

    /// What the host's part of a slice takes that devices move through slots: two barriers, and
    /// this rank's share of the sums between them.
    fn slots_us(&self, collective: Collective, bytes: u64) -> f64 {
        let barrier_us = self.host_us(Collective::Barrier, 0);
        match collective.reduces() {
            true => 2.0 * barrier_us + self.share_ps(bytes / self.ranks as u64) as f64 / PS_PER_US,
            false => barrier_us,
        }
    }

    /// What a rank takes to combine `bytes` bytes of every rank in place.
    pub(super) fn share_ps(&self, bytes: u64) -> u64 {
        self.compute
            .reduction_ps(self.dtype, (self.ranks as u64 - 1) * bytes)
    }

    /// By what a lane carries the call out; nothing without devices.
    pub(super) fn carried(&self) -> Option<Carried> {
        self.staged().map(|plan| plan.carried)
    }

    /// Whether devices read the slots of all ranks: those of one host.
    fn reaches_slots(&self, devices: &Devices) -> bool {
        let are_apart = self.network.host(0) != self.network.host(self.ranks - 1);
        devices.direct && !are_apart && self.ranks > 1
    }

    /// Which slots the call uses, with data on devices: those that devices of all ranks read, where
    /// they are on one host.
    pub(super) fn bank(&self) -> Bank {
        match self.carried() {
            Some(Carried::Direct | Carried::OneShot) => Bank::Direct,
            Some(Carried::Host) | None => Bank::Host,
        }
    }

    /// The size of what the host carries out at once: the longest slice, with data on devices.
    pub(super) fn host_bytes(&self) -> u64 {
        let slice_bytes = self.staged().map(|plan| plan.slice_bytes);
        self.bytes.min(slice_bytes.unwrap_or(u64::MAX))
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
    pub fn paces(&self) -> Vec<RankSpeed> {
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
        let pace = |rank| RankSpeed {
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
