//! How calls on device memory are carried out: into slices of which length they are cut, and what
//! combines their elements.
//!
//! Rank 0 decides for all ranks when a lane is made, for each collective and each *size class*, the
//! sizes above a power of two up to the next, and sends the table to all. So all ranks cut and
//! combine alike, whatever calibration, cores or environment each of them has. The times are those
//! of [`pipeline`], with what the host's calls take by the communicator's own cost model.

#![forbid(unsafe_code)]

use std::collections::HashSet;

use crate::communicator::{Counts, Request};
use crate::config::Reducer;
use crate::error::{Error, Result};
use crate::tune::DeviceConstants;
use crate::tune::devices::pipeline::{Blocks, Line, Pipeline, SLICE_BYTES_MIN, Shape};
use crate::types::Collective;

/// Size classes: up to 2⁰ bytes, 2¹ and so on; the last one has all larger sizes, too.
const CLASSES: usize = 41;

/// Of a slice's part of a block, the bytes are a multiple of this: a cache line.
const PART_ALIGN_BYTES: u64 = 64;

/// Devices combine where that takes at most this part of the time that it takes the CPUs: what a
/// program computes on the device is slower meanwhile.
const WORTH_WHILE: f64 = 0.9;

/// The numbers of a choice, as ranks send it.
const CHOICE_WORDS: usize = 5;

/// What the decisions for a lane are made from.
pub struct Setting<'a> {
    pub shape: Shape,
    pub constants: DeviceConstants,
    pub slot_bytes: u64,
    /// Whether devices read the slots of all ranks.
    pub is_direct: bool,
    /// What a call of the host's should take in microseconds, by its bytes.
    pub host_us: &'a dyn Fn(Collective, u64) -> f64,
}

/// By what a call is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// The host's collectives.
    Host,
    /// Devices that read the slots of all ranks.
    Direct,
    /// Devices that combine.
    Folded,
}

/// What was decided for a collective in a size class.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Choice {
    /// Whether devices combine.
    is_folded: bool,
    /// The most bytes of a slice in a slot, where the CPUs combine and where devices do.
    slice_bytes: [u64; 2],
    /// What a call of the class' largest size should take, likewise.
    times_us: [f64; 2],
}

/// All decisions for a lane.
#[derive(Debug)]
pub struct Policy {
    /// By collective, and then by size class.
    choices: Vec<Choice>,
    slot_bytes: u64,
    world_size: usize,
    /// What is in the log.
    logged: HashSet<usize>,
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

    fn folded(&self) -> Pipeline {
        let blocks = match self.is_direct {
            true => Blocks::Read(self.meeting() * 2.0),
            false => Blocks::Moved(self.host(&[Collective::AllToAll, Collective::AllGather])),
        };
        Pipeline::device(self.shape, &self.constants, blocks)
    }
}

impl Policy {
    /// What rank 0 decides for lanes of which `reducer` is asked for.
    pub fn decide(setting: &Setting<'_>, reducer: Reducer) -> Policy {
        let (slot_bytes, folded) = (setting.slot_bytes, setting.folded());
        let of_collective = |collective| {
            let (host, slots) = setting.unfolded(collective);
            let folds = collective == Collective::AllReduce && reducer != Reducer::Host;
            let device = if folds { &folded } else { &host };
            let both = [host.clone(), device.clone()];
            (0..CLASSES).map(move |class| {
                let bytes = 1 << class;
                let most = slot_bytes.saturating_mul(slots);
                let slice_bytes = both.each_ref().map(|it| it.slice_bytes(bytes, most));
                let time_us = |which: usize| both[which].time_us(bytes, slice_bytes[which]);
                let times_us = [time_us(0), time_us(1)];
                let is_faster = times_us[1] <= WORTH_WHILE * times_us[0];
                Choice {
                    is_folded: folds && (reducer == Reducer::Device || is_faster),
                    slice_bytes: slice_bytes.map(|bytes| bytes.div_ceil(slots)),
                    times_us,
                }
            })
        };
        Policy {
            choices: Collective::ALL
                .iter()
                .copied()
                .flat_map(of_collective)
                .collect(),
            slot_bytes,
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
            let times = choice.times_us.map(f64::to_bits);
            [
                u64::from(choice.is_folded),
                host,
                device,
                times[0],
                times[1],
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
            (words[0] <= 1 && has_room).then(|| Choice {
                is_folded: words[0] == 1,
                slice_bytes,
                times_us: [words[3], words[4]].map(f64::from_bits),
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

    /// Whether devices combine anything.
    pub fn folds(&self) -> bool {
        self.choices.iter().any(|choice| choice.is_folded)
    }

    /// The CPUs combine everything.
    pub fn without_folds(&mut self) {
        for choice in &mut self.choices {
            choice.is_folded = false;
        }
    }

    /// Whether devices combine calls like `request`.
    pub fn is_folded(&self, request: &Request) -> bool {
        self.choice(request).is_folded
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
            || !self.logged.insert(self.place(request))
        {
            return;
        }
        let Choice {
            slice_bytes,
            times_us: [host_us, device_us],
            ..
        } = self.choice(request);
        let most = 1u64 << class(request.bytes(self.world_size));
        let slice_bytes = slice_bytes[usize::from(carried == Carried::Folded)];
        let collective = request.collective;
        let combined = match (collective, carried) {
            (Collective::AllReduce, Carried::Folded) => "; devices combine",
            (Collective::AllReduce, _) => "; the CPUs combine",
            _ => "",
        };
        log::info!(
            target: "ringfold::device",
            "{collective} up to {most} bytes: slices of {slice_bytes} bytes or less{combined}; \
             microseconds by the model: {host_us:.1} by the host, {device_us:.1} by devices"
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
mod tests {
    use super::*;
    use crate::memory::Region;
    use crate::types::DType;

    const SLOT_BYTES: u64 = 1 << 20;

    fn request(collective: Collective, count: u64) -> Request {
        let counts = Counts::Even(count);
        Request::new(collective, DType::F32, counts, Region::EMPTY, Region::EMPTY)
    }

    /// The policy for four ranks whose host takes so long for each byte of a call.
    fn policy(us_per_byte: f64, is_direct: bool, reducer: Reducer) -> Policy {
        let host_us = |_, bytes| 1.0 + us_per_byte * bytes as f64;
        let setting = Setting {
            shape: Shape {
                ranks: 4,
                ranks_per_device: 1,
                depth: 4,
            },
            constants: DeviceConstants::default(),
            slot_bytes: SLOT_BYTES,
            is_direct,
            host_us: &host_us,
        };
        Policy::decide(&setting, reducer)
    }

    #[test]
    fn a_policy_survives_its_words() {
        let policy = policy(1e-4, false, Reducer::Auto);
        let words = policy.words();
        assert_eq!(words.len(), Policy::WORDS);
        let read = Policy::from_words(&words, SLOT_BYTES, 4).expect("a policy");
        assert_eq!(read.choices, policy.choices);
        let refused = |words: &[u64], slot_bytes| {
            let read = Policy::from_words(words, slot_bytes, 4);
            assert!(
                matches!(read, Err(Error::Corrupt { peer: 0, .. })),
                "{read:?}"
            );
        };
        refused(&words[1..], SLOT_BYTES);
        refused(&words, SLOT_BYTES / 2);
        for (index, value) in [(0, 2), (1, 0), (2, SLOT_BYTES + 1)] {
            let mut spoiled = words.clone();
            spoiled[index] = value;
            refused(&spoiled, SLOT_BYTES);
        }
    }

    #[test]
    fn devices_combine_large_calls_where_cores_are_slow() {
        let folds = |us_per_byte, reducer| {
            let policy = policy(us_per_byte, true, reducer);
            let folds = |count| policy.is_folded(&request(Collective::AllReduce, count));
            [1 << 10, 16 << 20].map(folds)
        };
        // 50 GB/s, and 0.5.
        assert_eq!(folds(2e-5, Reducer::Auto), [false, false]);
        assert_eq!(folds(2e-3, Reducer::Auto), [false, true]);
        assert_eq!(folds(2e-3, Reducer::Host), [false, false]);
        assert_eq!(folds(2e-5, Reducer::Device), [true, true]);
        // What the host moves is not faster where it is slow.
        let moved = policy(2e-3, false, Reducer::Auto);
        assert!(!moved.folds());
    }

    #[test]
    fn small_calls_have_shorter_slices() {
        let policy = policy(2e-5, false, Reducer::Host);
        let slice = |collective, count| {
            let request = request(collective, count);
            policy.slice_bytes(&request, Carried::Host)
        };
        let reduced = |bytes: u64| slice(Collective::AllReduce, bytes / 4);
        assert_eq!(reduced(64 << 20), 1 << 20);
        assert!((128 << 10..1 << 20).contains(&reduced(2 << 20)));
        assert_eq!(reduced(64 << 10), 64 << 10);
        assert_eq!(reduced(0), 64);
        assert_eq!(slice(Collective::Send, 1 << 10), 1 << 20);
    }

    #[test]
    fn slices_are_equal_and_whole_lines_of_each_block() {
        let even =
            |request: &Request, carried| even_slice_bytes(request, 3, carried, [1 << 16, 1 << 20]);
        // 200 000 bytes are four slices of 50 000, up to a line.
        assert_eq!(
            even(&request(Collective::AllReduce, 50_000), Carried::Host),
            50_048
        );
        // Three blocks of 40 000 bytes are two slices of 20 000 bytes of each.
        assert_eq!(
            even(&request(Collective::AllGather, 10_000), Carried::Host),
            3 * 20_032
        );
        // Three parts of 66 667 bytes are four slices.
        assert_eq!(
            even(&request(Collective::AllReduce, 50_000), Carried::Folded),
            3 * 16_704
        );
        assert_eq!(
            even(&request(Collective::AllReduce, 1), Carried::Folded),
            3 * 64
        );
        // A slot has only the rank's own block.
        let own = even(&request(Collective::AllGather, 10_000), Carried::Direct);
        assert_eq!(own, 40_000);
        let most = [1 << 16, 1 << 16];
        let huge = request(Collective::AllGather, u64::MAX / 2);
        assert_eq!(even_slice_bytes(&huge, 3, Carried::Host, most), 1 << 16);
    }
}
