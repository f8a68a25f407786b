//! How calls on device memory are carried out: into slices of which length they are cut, and which
//! ones one kernel does without slices.
//!
//! That is decided when a lane is made, for each collective and each *size class*, the sizes above
//! a power of two up to the next. All ranks decide alike, because they decide from the same
//! numbers: rank 0's, whatever calibration, cores or environment each of them has. The times are
//! those of [`pipeline`] and [`one_shot`], with what the host's calls take by the communicator's
//! own cost model.

#![forbid(unsafe_code)]

use std::collections::HashSet;

use super::cut::goes_by_slots;
use super::one_shot::is_combined;
use crate::communicator::{Counts, Request};
use crate::tune::DeviceConstants;
use crate::tune::devices::one_shot;
use crate::tune::devices::pipeline::{Line, Pipeline, SLICE_BYTES_MIN, Shape, Stage};
use crate::types::Collective;

/// Size classes: up to 2⁰ bytes, 2¹ and so on; the last one has all larger sizes, too.
const CLASSES: usize = 41;

/// Of a slice's part of a block, the bytes are a multiple of this: a cache line.
const PART_ALIGN_BYTES: u64 = 64;

/// One kernel does what should take at most this part of the time that slices take: what a program
/// computes on the device is slower meanwhile.
const WORTH_WHILE: f64 = 0.9;

/// What the decisions for a lane are made from.
pub struct Setting<'a> {
    pub shape: Shape,
    pub constants: DeviceConstants,
    pub slot_bytes: u64,
    /// The most bytes of a slice, if that is asked for.
    pub slice_bytes: Option<u64>,
    /// Whether devices read the slots of all ranks.
    pub is_direct: bool,
    /// The threads that each rank has to combine a slice there.
    pub threads: usize,
    /// The most bytes of an all-reduce that one kernel can do; 0 if none can.
    pub one_shot_bytes: u64,
    /// Whether one kernel does all that it can, or what should be faster.
    pub is_one_shot_asked: bool,
    /// What a call of the host's should take in microseconds, by its bytes.
    pub host_us: &'a dyn Fn(Collective, u64) -> f64,
    /// What the host's part of a direct slice should take: all ranks' words, and sums in place.
    pub slots_us: &'a dyn Fn(Collective, u64) -> f64,
}

/// By what a call on device memory is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carried {
    /// The host's collectives.
    Host,
    /// Devices that read the slots of all ranks.
    Direct,
    /// One kernel of each device, without slices.
    OneShot,
}

impl Carried {
    /// The name of what is done in place of an algorithm of the host's, if something is.
    pub fn in_place_of_algorithm(self) -> Option<&'static str> {
        match self {
            Carried::Host => None,
            Carried::Direct => Some("devices"),
            Carried::OneShot => Some("one kernel"),
        }
    }
}

/// How a call is carried out.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub carried: Carried,
    /// The most bytes of a slice in a slot.
    pub slice_bytes: u64,
    /// Whether slices overlap where the host handles them.
    pub overlaps: bool,
}

/// What was decided for a collective in a size class.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Choice {
    /// Whether one kernel does what fits into it.
    is_one_shot: bool,
    /// The most bytes of a slice in a slot.
    slice_bytes: u64,
    /// What a call of the class' largest size should take in slices, and by one kernel: the largest
    /// that fits, and infinitely long where none does.
    times_us: [f64; 2],
    /// What takes longest of such slices.
    busiest: Stage,
}

impl Choice {
    /// Whether slices overlap where the host handles them: a slice that is late then holds up the
    /// one before, which costs more than it gains unless the host takes longest.
    fn overlaps(&self) -> bool {
        self.busiest == Stage::Host
    }
}

/// All decisions for a lane.
#[derive(Debug)]
pub struct Policy {
    /// By collective, and then by size class.
    choices: Vec<Choice>,
    slot_bytes: u64,
    world_size: usize,
    /// The most helper threads that are worthwhile for sums in slots.
    helpers_max: usize,
    /// What is in the log.
    logged: HashSet<(usize, Carried)>,
}

impl Setting<'_> {
    /// A call in slices, and how many slots a slice of it fills.
    fn pipeline(&self, collective: Collective) -> (Pipeline, u64) {
        use Collective::{AllGather, Barrier, Gather, Recv, Send, SendRecv};
        let is_pair = matches!(collective, Barrier | Recv | Send | SendRecv);
        let is_direct = self.is_direct && !is_pair;
        let slots = match collective {
            // A slot has only what its rank gives.
            AllGather | Gather if is_direct => self.shape.ranks as u64,
            _ => 1,
        };
        let host = self.host(collective, slots, is_direct);
        let (shape, constants) = (self.shape, &self.constants);
        let pipeline = match is_direct {
            true => {
                let threads = self.threads_of_slice(collective, host);
                let host = Line {
                    us_per_byte: host.us_per_byte / threads as f64,
                    ..host
                };
                Pipeline::direct(collective, shape, constants, host)
            }
            false => Pipeline::new(collective, shape, constants, host),
        };
        (pipeline, slots)
    }

    /// What the host's part of a slice that fills so many slots takes one thread.
    fn host(&self, collective: Collective, slots: u64, is_direct: bool) -> Line {
        let time_us = if is_direct {
            self.slots_us
        } else {
            self.host_us
        };
        let long = self.slot_bytes.saturating_mul(slots).max(2);
        let short = SLICE_BYTES_MIN.min(long / 2);
        Line::through([short, long].map(|bytes| (bytes, time_us(collective, bytes))))
    }

    /// The threads that combine slices of all-reduces in slots.
    fn threads_of_sums(&self) -> usize {
        let collective = Collective::AllReduce;
        self.threads_of_slice(collective, self.host(collective, 1, true))
    }

    /// As many threads as combine slices at the rate of the link, of those that there are; one
    /// takes `host`.
    fn threads_of_slice(&self, collective: Collective, host: Line) -> usize {
        let pipeline = Pipeline::direct(collective, self.shape, &self.constants, host);
        let needed = pipeline.host_over_link(self.slot_bytes).ceil() as usize;
        needed.clamp(1, self.threads.max(1))
    }

    /// How `request` is carried out: what a policy and the lane that has it decide together.
    pub fn plan(&self, request: &Request) -> Plan {
        let ranks = self.shape.ranks;
        let bytes = request.bytes(ranks);
        let pipeline = self.pipeline(request.collective);
        let choice = self.choose(request.collective, &pipeline, class_bytes(bytes));
        let is_small = choice.is_one_shot && (1..=self.one_shot_bytes).contains(&bytes);
        let carried = match request.options.leave_reduction_open() {
            true if is_small && is_combined(request.op, request.dtype) => Carried::OneShot,
            _ if self.is_direct && goes_by_slots(request) => Carried::Direct,
            _ => Carried::Host,
        };
        let most = [choice.slice_bytes, self.slot_bytes];
        Plan {
            carried,
            slice_bytes: even_slice_bytes(request, ranks, carried, most),
            overlaps: choice.overlaps(),
        }
    }

    /// The choice for calls of up to `bytes` bytes, and of more than half of that, whose slices
    /// have this pipeline and fill so many slots each.
    fn choose(
        &self,
        collective: Collective,
        (pipeline, slots): &(Pipeline, u64),
        bytes: u64,
    ) -> Choice {
        let in_slots = |bytes: u64| bytes.min(self.slot_bytes).saturating_mul(*slots);
        let slice_bytes = match self.slice_bytes {
            Some(asked) => in_slots(asked),
            None => pipeline.slice_bytes(bytes, in_slots(self.slot_bytes)),
        };
        // The largest of these calls that fit into one kernel, if any do.
        let fitting = bytes.min(self.one_shot_bytes);
        let fits = collective == Collective::AllReduce && fitting > bytes / 2;
        let one_shot_us = match fits {
            true => one_shot::time_us(self.shape.ranks, &self.constants, fitting),
            false => f64::INFINITY,
        };
        let is_faster = one_shot_us <= WORTH_WHILE * pipeline.time_us(fitting, slice_bytes);
        Choice {
            is_one_shot: fits && (self.is_one_shot_asked || is_faster),
            slice_bytes: slice_bytes.div_ceil(*slots),
            times_us: [pipeline.time_us(bytes, slice_bytes), one_shot_us],
            busiest: pipeline.busiest(slice_bytes),
        }
    }
}

impl Policy {
    /// The decisions for all calls.
    pub fn decide(setting: &Setting<'_>) -> Policy {
        // The host's times, which are the same for all classes, are asked for once.
        let of_collective = |collective| {
            let pipeline = setting.pipeline(collective);
            (0..CLASSES).map(move |class| setting.choose(collective, &pipeline, 1 << class))
        };
        let each = Collective::ALL.iter().copied();
        Policy {
            choices: each.flat_map(of_collective).collect(),
            slot_bytes: setting.slot_bytes,
            world_size: setting.shape.ranks,
            helpers_max: setting.threads_of_sums() - 1,
            logged: HashSet::new(),
        }
    }

    /// The most helper threads that are worthwhile for sums in slots.
    pub fn helpers_max(&self) -> usize {
        self.helpers_max
    }

    /// Whether one kernel does any calls.
    #[cfg(test)]
    fn has_one_shot(&self) -> bool {
        self.choices.iter().any(|choice| choice.is_one_shot)
    }

    /// Whether one kernel does calls like `request`, if they fit into it.
    pub fn is_one_shot(&self, request: &Request) -> bool {
        self.choice(request).is_one_shot
    }

    fn choice(&self, request: &Request) -> Choice {
        self.choices[self.place(request)]
    }

    /// Where a call's choice stands.
    fn place(&self, request: &Request) -> usize {
        request.collective as usize * CLASSES + class(request.bytes(self.world_size))
    }

    /// The most bytes of a slice of `request` in a slot, which all of its slices but the last have;
    /// those of a slot where counts are those of a pair of ranks.
    pub fn slice_bytes(&self, request: &Request, carried: Carried) -> usize {
        let is_pairwise = matches!(request.collective, Collective::Send | Collective::Recv)
            || matches!(request.counts, Counts::Pairwise { .. });
        if is_pairwise {
            return self.slot_bytes as usize;
        }
        let most = self.choice(request).slice_bytes;
        even_slice_bytes(request, self.world_size, carried, [most, self.slot_bytes]) as usize
    }

    /// Whether the slices of `request` overlap where the host handles them.
    pub fn overlaps(&self, request: &Request) -> bool {
        self.choice(request).overlaps()
    }

    /// Logs once for each size class how calls like `request` are carried out.
    pub fn log(&mut self, request: &Request, carried: Carried) {
        if !log::log_enabled!(target: "ringfold::device", log::Level::Info)
            || !self.logged.insert((self.place(request), carried))
        {
            return;
        }
        let Choice {
            slice_bytes,
            times_us: [slices_us, one_shot_us],
            busiest,
            ..
        } = self.choice(request);
        let (collective, busiest) = (request.collective, busiest.name());
        let most = 1u64 << class(request.bytes(self.world_size));
        let how = match carried {
            Carried::OneShot => "one kernel".to_owned(),
            Carried::Host | Carried::Direct => format!("slices of {slice_bytes} bytes or less"),
        };
        let by_one_kernel = match one_shot_us.is_finite() {
            true => format!(", {one_shot_us:.1} by one kernel"),
            false => String::new(),
        };
        log::info!(
            target: "ringfold::device",
            "{collective} up to {most} bytes: {how}; microseconds by the model: {slices_us:.1} in \
             slices{by_one_kernel}; busiest of a slice: {busiest}"
        );
    }
}

/// The size class of so many bytes: the power of two up to which it goes.
fn class(bytes: u64) -> usize {
    let log2 = u64::BITS - bytes.saturating_sub(1).leading_zeros();
    (log2 as usize).min(CLASSES - 1)
}

/// The size by which all calls of the class of `bytes` are priced.
pub fn class_bytes(bytes: u64) -> u64 {
    1 << class(bytes)
}

/// The bytes in a slot of equal slices of which none is longer than `most`, up to whole cache lines
/// of each block. All ranks give the same.
pub fn even_slice_bytes(
    request: &Request,
    world_size: usize,
    carried: Carried,
    [most, slot_bytes]: [u64; 2],
) -> u64 {
    use Collective::{AllGather, Gather};
    let ranks = world_size as u64;
    let longest = request.longest_block();
    let longest = longest.saturating_mul(request.dtype.size_bytes() as u64);
    let (blocks, longest) = match (carried, request.collective) {
        (Carried::Direct, AllGather | Gather) => (1, longest),
        _ if request.is_of_blocks() => (ranks, longest),
        _ => (1, longest),
    };
    let slices = longest.saturating_mul(blocks).div_ceil(most).max(1);
    let part = longest.div_ceil(slices).max(1);
    let part = part.checked_next_multiple_of(PART_ALIGN_BYTES);
    let slice = part.and_then(|part| part.checked_mul(blocks));
    slice.map_or(slot_bytes, |slice| slice.min(slot_bytes))
}

#[cfg(test)]
mod tests;
