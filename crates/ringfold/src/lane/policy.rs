//! How calls on device memory are carried out: into slices of which length they are cut, what
//! combines their elements, and which ones one kernel does without slices.
//!
//! Rank 0 decides for all ranks when a lane is made, for each collective and each *size class*, the
//! sizes above a power of two up to the next, and sends the table to all. So all ranks cut and
//! combine alike, whatever calibration, cores or environment each of them has. The times are those
//! of [`pipeline`] and [`one_shot`], with what the host's calls take by the communicator's own cost
//! model.

#![forbid(unsafe_code)]

use std::collections::HashSet;

use super::cut::only_moves;
use super::fold;
use crate::communicator::{Counts, Request};
use crate::config::Reducer;
use crate::error::{Error, Result};
use crate::tune::DeviceConstants;
use crate::tune::devices::one_shot;
use crate::tune::devices::pipeline::{Blocks, Line, Pipeline, SLICE_BYTES_MIN, Shape, Stage};
use crate::types::Collective;

/// Size classes: up to 2⁰ bytes, 2¹ and so on; the last one has all larger sizes, too.
const CLASSES: usize = 41;

/// Of a slice's part of a block, the bytes are a multiple of this: a cache line.
const PART_ALIGN_BYTES: u64 = 64;

/// Devices combine where that takes at most this part of the time that it takes the CPUs: what a
/// program computes on the device is slower meanwhile.
const WORTH_WHILE: f64 = 0.9;

/// The numbers of a choice, as ranks send it.
const CHOICE_WORDS: usize = 7;

/// The flags in the first of them: devices combine, one kernel does it.
const FOLDED: u64 = 1;
const ONE_SHOT: u64 = 2;

/// What the decisions for a lane are made from.
pub struct Setting<'a> {
    pub shape: Shape,
    pub constants: DeviceConstants,
    pub slot_bytes: u64,
    /// The most bytes of a slice, if that is asked for.
    pub slice_bytes: Option<u64>,
    /// Whether devices read the slots of all ranks.
    pub is_direct: bool,
    /// The most bytes of an all-reduce that one kernel does; 0 if none does.
    pub one_shot_bytes: u64,
    /// What a call of the host's should take in microseconds, by its bytes.
    pub host_us: &'a dyn Fn(Collective, u64) -> f64,
}

/// By what a call on device memory is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carried {
    /// The host's collectives.
    Host,
    /// Devices that read the slots of all ranks.
    Direct,
    /// Devices that combine slices.
    Folded,
    /// One kernel of each device, without slices.
    OneShot,
}

impl Carried {
    /// The name of what is done in place of an algorithm of the host's, if something is.
    pub fn in_place_of_algorithm(self) -> Option<&'static str> {
        match self {
            Carried::Host => None,
            Carried::Direct | Carried::Folded => Some("devices"),
            Carried::OneShot => Some("one kernel"),
        }
    }
}

/// What was decided for a collective in a size class.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Choice {
    /// Whether devices combine.
    is_folded: bool,
    /// Whether one kernel does what fits into it.
    is_one_shot: bool,
    /// The most bytes of a slice in a slot, where the CPUs combine and where devices do.
    slice_bytes: [u64; 2],
    /// What a call of the class' largest size should take, likewise, and by one kernel: the largest
    /// that fits, and infinitely long where none does.
    times_us: [f64; 3],
    /// What takes longest of such slices.
    busiest: Stage,
}

/// All decisions for a lane.
#[derive(Debug)]
pub struct Policy {
    /// By collective, and then by size class.
    choices: Vec<Choice>,
    slot_bytes: u64,
    world_size: usize,
    /// What is in the log.
    logged: HashSet<(usize, Carried)>,
}

impl Setting<'_> {
    /// The time of the host's calls in which it handles a slice.
    fn host(&self, collectives: &[Collective]) -> Line {
        let long = self.slot_bytes.max(2);
        let short = SLICE_BYTES_MIN.min(long / 2);
        let times_us = |bytes| {
            let each = collectives.iter();
            let all: f64 = each.map(|each| (self.host_us)(*each, bytes)).sum();
            (bytes, all)
        };
        Line::through([times_us(short), times_us(long)])
    }

    /// The time of the host's part of a direct slice, in which ranks only compare their calls.
    fn meeting(&self) -> Line {
        Line::of_each((self.host_us)(Collective::Barrier, 0))
    }

    /// A call whose elements devices do not combine, and how many slots a slice of it fills.
    fn unfolded(&self, collective: Collective) -> (Pipeline, u64) {
        use Collective::{AllGather, AllToAll, Broadcast, Gather, Scatter};
        let (host, slots) = match collective {
            // A slot has only what its rank gives.
            AllGather | Gather if self.is_direct => (self.meeting(), self.shape.ranks as u64),
            AllToAll | Broadcast | Scatter if self.is_direct => (self.meeting(), 1),
            _ => (self.host(&[collective]), 1),
        };
        let pipeline = Pipeline::host(collective, self.shape, &self.constants, host);
        (pipeline, slots)
    }

    /// How `request` is carried out where `reducer` is asked for, and the most bytes of a slice in
    /// a slot: what a policy and the lane that has it decide together.
    pub fn plan(&self, reducer: Reducer, request: &Request) -> (Carried, u64) {
        let ranks = self.shape.ranks;
        let bytes = request.bytes(ranks);
        let ways = self.ways(request.collective, reducer, &self.folded());
        let choice = ways.choose(class_bytes(bytes));
        let is_reduced = request.collective == Collective::AllReduce
            && request.options.leave_reduction_open()
            && fold::is_folded(request.op, request.dtype);
        let fits = (1..=self.one_shot_bytes).contains(&bytes);
        let carried = if is_reduced && choice.is_one_shot && fits {
            Carried::OneShot
        } else if is_reduced && choice.is_folded {
            Carried::Folded
        } else if self.is_direct && only_moves(request) {
            Carried::Direct
        } else {
            Carried::Host
        };
        let most = choice.slice_bytes[usize::from(carried == Carried::Folded)];
        let most = [most, self.slot_bytes];
        (carried, even_slice_bytes(request, ranks, carried, most))
    }

    /// The ways of a collective; `folded` has devices combine.
    fn ways(&self, collective: Collective, reducer: Reducer, folded: &Pipeline) -> Ways<'_> {
        let (host, slots) = self.unfolded(collective);
        let may_fold = collective == Collective::AllReduce && reducer != Reducer::Host;
        let device = if may_fold { folded } else { &host };
        Ways {
            setting: self,
            pipelines: [host.clone(), device.clone()],
            slots,
            reducer,
            may_fold,
        }
    }

    fn folded(&self) -> Pipeline {
        let blocks = match self.is_direct {
            true => Blocks::Read(self.meeting() * 2.0),
            false => Blocks::Moved(self.host(&[Collective::AllToAll, Collective::AllGather])),
        };
        Pipeline::device(self.shape, &self.constants, blocks)
    }
}

/// The ways by which a collective can be carried out.
struct Ways<'a> {
    setting: &'a Setting<'a>,
    /// In slices: the CPUs combine, and devices do.
    pipelines: [Pipeline; 2],
    /// How many slots a slice fills.
    slots: u64,
    reducer: Reducer,
    /// Whether devices may combine.
    may_fold: bool,
}

impl Ways<'_> {
    /// What to do with calls of up to `bytes` bytes, and of more than half of that.
    fn choose(&self, bytes: u64) -> Choice {
        let Setting {
            shape,
            constants,
            slot_bytes,
            one_shot_bytes,
            ..
        } = *self.setting;
        let most = slot_bytes.saturating_mul(self.slots);
        let asked = self.setting.slice_bytes;
        let asked = asked.map(|bytes| bytes.min(slot_bytes).saturating_mul(self.slots));
        let slice_bytes = self
            .pipelines
            .each_ref()
            .map(|it| asked.unwrap_or_else(|| it.slice_bytes(bytes, most)));
        let times_us = |bytes| [0, 1].map(|it| self.pipelines[it].time_us(bytes, slice_bytes[it]));
        let [host_us, device_us] = times_us(bytes);
        let is_asked = self.reducer == Reducer::Device;
        let is_folded = self.may_fold && (is_asked || device_us <= WORTH_WHILE * host_us);
        // The largest of these calls that fit into one kernel, if any do.
        let fitting = bytes.min(one_shot_bytes);
        let one_shot_us = match self.may_fold && fitting > bytes / 2 {
            true => one_shot::time_us(shape.ranks, &constants, fitting),
            false => f64::INFINITY,
        };
        let is_one_shot = match (times_us(fitting), is_folded) {
            ([_, device_us], true) => one_shot_us <= device_us,
            ([host_us, _], false) => one_shot_us <= WORTH_WHILE * host_us,
        };
        Choice {
            is_folded,
            is_one_shot,
            slice_bytes: slice_bytes.map(|bytes| bytes.div_ceil(self.slots)),
            times_us: [host_us, device_us, one_shot_us],
            busiest: {
                let ways = usize::from(is_folded);
                self.pipelines[ways].busiest(slice_bytes[ways])
            },
        }
    }
}

impl Policy {
    /// What rank 0 decides for lanes of which `reducer` is asked for.
    pub fn decide(setting: &Setting<'_>, reducer: Reducer) -> Policy {
        let folded = setting.folded();
        let of_collective = |collective| {
            let ways = setting.ways(collective, reducer, &folded);
            (0..CLASSES).map(move |class| ways.choose(1 << class))
        };
        let each = Collective::ALL.iter().copied();
        Policy {
            choices: each.flat_map(of_collective).collect(),
            slot_bytes: setting.slot_bytes,
            world_size: setting.shape.ranks,
            logged: HashSet::new(),
        }
    }

    /// The numbers of a policy.
    pub const WORDS: usize = CHOICE_WORDS * CLASSES * Collective::ALL.len();

    /// What ranks send.
    pub fn words(&self) -> Vec<u64> {
        let words = |choice: &Choice| {
            let [host, device] = choice.slice_bytes;
            let [host_us, device_us, one_shot_us] = choice.times_us.map(f64::to_bits);
            let flag = |is_set, flag| if is_set { flag } else { 0 };
            let flags = flag(choice.is_folded, FOLDED) | flag(choice.is_one_shot, ONE_SHOT);
            let busiest = choice.busiest as u64;
            [
                flags,
                host,
                device,
                host_us,
                device_us,
                one_shot_us,
                busiest,
            ]
        };
        self.choices.iter().flat_map(words).collect()
    }

    /// The policy that rank 0 has sent to `world_size` ranks with slots of `slot_bytes` bytes.
    ///
    /// # Errors
    /// `Corrupt` unless every slice has room in a slot.
    pub fn from_words(words: &[u64], slot_bytes: u64, world_size: usize) -> Result<Policy> {
        let choice = |words: &[u64]| {
            let slice_bytes = [words[1], words[2]];
            let has_room = slice_bytes.iter().all(|it| (1..=slot_bytes).contains(it));
            let busiest = usize::try_from(words[6]).ok();
            let busiest = *busiest.and_then(|number| Stage::ALL.get(number))?;
            (words[0] <= (FOLDED | ONE_SHOT) && has_room).then(|| Choice {
                is_folded: words[0] & FOLDED != 0,
                is_one_shot: words[0] & ONE_SHOT != 0,
                slice_bytes,
                times_us: [words[3], words[4], words[5]].map(f64::from_bits),
                busiest,
            })
        };
        let choices = words.chunks_exact(CHOICE_WORDS).map(choice);
        let choices: Option<Vec<Choice>> = choices.collect();
        match choices.filter(|choices| choices.len() == CLASSES * Collective::ALL.len()) {
            Some(choices) => Ok(Policy {
                choices,
                slot_bytes,
                world_size,
                logged: HashSet::new(),
            }),
            None => Err(Error::corrupt(0, "slices that do not fit the lane's slots")),
        }
    }

    /// Whether devices combine any slices.
    pub fn folds(&self) -> bool {
        self.choices.iter().any(|choice| choice.is_folded)
    }

    /// Whether one kernel does any calls.
    pub fn has_one_shot(&self) -> bool {
        self.choices.iter().any(|choice| choice.is_one_shot)
    }

    /// The CPUs combine all slices.
    pub fn without_folds(&mut self) {
        for choice in &mut self.choices {
            choice.is_folded = false;
        }
    }

    /// All calls are cut into slices.
    pub fn without_one_shot(&mut self) {
        for choice in &mut self.choices {
            choice.is_one_shot = false;
        }
    }

    /// Whether devices combine the slices of calls like `request`.
    pub fn is_folded(&self, request: &Request) -> bool {
        self.choice(request).is_folded
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
        let is_folded = carried == Carried::Folded;
        let most = self.choice(request).slice_bytes[usize::from(is_folded)];
        even_slice_bytes(request, self.world_size, carried, [most, self.slot_bytes]) as usize
    }

    /// Logs once for each size class how calls like `request` are carried out.
    pub fn log(&mut self, request: &Request, carried: Carried) {
        if !log::log_enabled!(target: "ringfold::device", log::Level::Info)
            || !self.logged.insert((self.place(request), carried))
        {
            return;
        }
        let Choice {
            slice_bytes: [by_host, by_devices],
            times_us: [host_us, device_us, one_shot_us],
            busiest,
            ..
        } = self.choice(request);
        let most = 1u64 << class(request.bytes(self.world_size));
        let slices = |most| format!("slices of {most} bytes or less");
        let collective = request.collective;
        let how = match (collective, carried) {
            (_, Carried::OneShot) => "one kernel".to_owned(),
            (_, Carried::Folded) => slices(by_devices) + "; devices combine",
            (Collective::AllReduce, _) => slices(by_host) + "; the CPUs combine",
            _ => slices(by_host),
        };
        let by_one_kernel = match one_shot_us.is_finite() {
            true => format!(", {one_shot_us:.1} by one kernel"),
            false => String::new(),
        };
        log::info!(
            target: "ringfold::device",
            "{collective} up to {most} bytes: {how}; microseconds by the model: {host_us:.1} by \
             the host, {device_us:.1} by devices{by_one_kernel}; busiest: {}",
            busiest.name()
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
/// of each block; of what devices combine, each rank's part is a block. All ranks give the same.
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
        (Carried::Folded, _) => (ranks, longest.div_ceil(ranks)),
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
