//! The choice of how a call on device memory is carried out: into slices of which length it is cut,
//! whether they overlap, and which calls one kernel does without slices.
//!
//! All ranks choose alike, because they choose from the same numbers: rank 0's, whatever
//! calibration, cores or environment each of them has. The times are those of
//! [`pipeline`](super::pipeline) and [`one_shot`], with the host's part by the cost model of calls
//! on memory of the host.

use super::DeviceConstants;
use super::one_shot;
use super::pipeline::{Line, Pipeline, SLICE_BYTES_MIN, Shape, Stage, slices_in_flight};
use crate::types::Collective;

/// Alignment of a slice's part of each block: a cache line.
const PART_ALIGN_BYTES: u64 = 64;

/// One kernel does what should take at most this part of the time that slices take: what a program
/// computes on the device is slower meanwhile.
const WORTH_WHILE: f64 = 0.9;

/// The executor of a call on device memory.
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

/// A call as the choice sees it: facts that are equal on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct DeviceQuestion {
    pub collective: Collective,
    /// Bytes of the vector, or of all blocks together.
    pub bytes: u64,
    /// Bytes of the vector, or of the longest block.
    pub longest_bytes: u64,
    /// Number of blocks of the longer buffer; 1 for a vector.
    pub blocks: u64,
    /// Whether each pair of ranks has a count that no third rank knows.
    pub is_pairwise: bool,
    /// Whether devices can do it in the slots of all ranks.
    pub goes_by_slots: bool,
    /// Whether a kernel has the operation.
    pub has_kernel: bool,
}

/// How a call is carried out.
#[derive(Clone, Copy, Debug)]
pub struct DevicePlan {
    pub carried: Carried,
    /// The most bytes of a slice in a slot, which all slices but the last have.
    pub slice_bytes: u64,
    /// Whether slices overlap where the host handles them: a slice that is late then holds up the
    /// one before, which costs more than it gains unless the host takes longest.
    pub overlaps: bool,
    /// The time in slices, and by one kernel: infinitely long if none does it.
    pub times_us: [f64; 2],
    /// The longest stage of a slice.
    pub busiest: Stage,
}

/// The inputs of the choice.
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
    /// The predicted microseconds of a call on host memory, by its bytes.
    pub host_us: &'a dyn Fn(Collective, u64) -> f64,
    /// The predicted microseconds of the host's part of a direct slice: all ranks' words, and sums
    /// in place.
    pub slots_us: &'a dyn Fn(Collective, u64) -> f64,
}

/// The tuner of one lane.
#[derive(Debug)]
pub struct DeviceTuner {
    ranks: usize,
    constants: DeviceConstants,
    slot_bytes: u64,
    slice_bytes: Option<u64>,
    is_direct: bool,
    one_shot_bytes: u64,
    is_one_shot_asked: bool,
    /// By collective: a call in slices, the same if slices overlap where the host handles them, and
    /// how many slots a slice of it fills.
    pipelines: Vec<([Pipeline; 2], u64)>,
    helpers_max: usize,
}

impl Setting<'_> {
    /// A call in slices, without and with overlap, and how many slots a slice of it fills.
    fn pipelines(&self, collective: Collective) -> ([Pipeline; 2], u64) {
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
        let pipelines = match is_direct {
            true => {
                let threads = self.threads_of_slice(collective, host);
                let host = Line {
                    us_per_byte: host.us_per_byte / threads as f64,
                    ..host
                };
                let pipeline = Pipeline::direct(collective, shape, constants, host);
                [pipeline.clone(), pipeline]
            }
            false => {
                // Slices in flight share what a slice costs beside its bytes.
                let overlapped = Line {
                    each_us: host.each_us / f64::from(slices_in_flight(shape.depth)),
                    ..host
                };
                [host, overlapped].map(|host| Pipeline::new(collective, shape, constants, host))
            }
        };
        (pipelines, slots)
    }

    /// The time of the host's part of a slice that fills `slots` slots, by one thread.
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

    /// The number of threads that combine slices at the rate of the link, at most `self.threads`;
    /// `host` is the time of one thread.
    fn threads_of_slice(&self, collective: Collective, host: Line) -> usize {
        let pipeline = Pipeline::direct(collective, self.shape, &self.constants, host);
        let needed = pipeline.host_over_link(self.slot_bytes).ceil() as usize;
        needed.clamp(1, self.threads.max(1))
    }
}

impl DeviceTuner {
    /// The tuner of a lane. The host's times are asked for here, and not later.
    pub fn new(setting: &Setting<'_>) -> DeviceTuner {
        let each = Collective::ALL.iter().copied();
        let sums = Collective::AllReduce;
        let threads = setting.threads_of_slice(sums, setting.host(sums, 1, true));
        DeviceTuner {
            ranks: setting.shape.ranks,
            constants: setting.constants,
            slot_bytes: setting.slot_bytes,
            slice_bytes: setting.slice_bytes,
            is_direct: setting.is_direct,
            one_shot_bytes: setting.one_shot_bytes,
            is_one_shot_asked: setting.is_one_shot_asked,
            pipelines: each.map(|each| setting.pipelines(each)).collect(),
            helpers_max: threads - 1,
        }
    }

    /// The most helper threads that are worthwhile for sums in slots.
    pub fn helpers_max(&self) -> usize {
        self.helpers_max
    }

    /// How a call is carried out.
    pub fn plan(&self, question: &DeviceQuestion) -> DevicePlan {
        let ([drained, overlapped], slots) = &self.pipelines[question.collective as usize];
        let bytes = question.bytes;
        let in_slots = |bytes: u64| bytes.min(self.slot_bytes).saturating_mul(*slots);
        let slice_bytes = |pipeline: &Pipeline| match self.slice_bytes {
            Some(asked) => in_slots(asked),
            None => pipeline.slice_bytes(bytes, in_slots(self.slot_bytes)),
        };
        let overlaps = drained.busiest(slice_bytes(drained)) == Stage::Host;
        let pipeline = if overlaps { overlapped } else { drained };
        let slice_bytes = slice_bytes(pipeline);
        let slices_us = pipeline.time_us(bytes, slice_bytes);
        let is_small = (1..=self.one_shot_bytes).contains(&bytes);
        let fits = question.collective == Collective::AllReduce && question.has_kernel && is_small;
        let one_shot_us = match fits {
            true => one_shot::time_us(self.ranks, &self.constants, bytes),
            false => f64::INFINITY,
        };
        let is_faster = one_shot_us <= WORTH_WHILE * slices_us;
        let carried = match fits && (self.is_one_shot_asked || is_faster) {
            true => Carried::OneShot,
            false if self.is_direct && question.goes_by_slots => Carried::Direct,
            false => Carried::Host,
        };
        let busiest = pipeline.busiest(slice_bytes);
        DevicePlan {
            carried,
            slice_bytes: match question.is_pairwise {
                // The number of slices is for a pair to know.
                true => self.slot_bytes,
                false => question.even_slice_bytes(carried, slice_bytes / slots, self.slot_bytes),
            },
            overlaps,
            times_us: [slices_us, one_shot_us],
            busiest,
        }
    }
}

impl DeviceQuestion {
    /// The bytes in a slot of equal slices of which none is longer than `most`, up to whole cache
    /// lines of each block.
    fn even_slice_bytes(&self, carried: Carried, most: u64, slot_bytes: u64) -> u64 {
        use Collective::{AllGather, Gather};
        let blocks = match (carried, self.collective) {
            (Carried::Direct, AllGather | Gather) => 1,
            _ => self.blocks,
        };
        let longest = self.longest_bytes;
        let slices = longest.saturating_mul(blocks).div_ceil(most.max(1)).max(1);
        let part = longest.div_ceil(slices).max(1);
        let part = part.checked_next_multiple_of(PART_ALIGN_BYTES);
        let slice = part.and_then(|part| part.checked_mul(blocks));
        slice.map_or(slot_bytes, |slice| slice.min(slot_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT_BYTES: u64 = 1 << 20;
    const ONE_SHOT_BYTES: u64 = 140_000;

    fn question(collective: Collective, bytes: u64) -> DeviceQuestion {
        let is_of_blocks = collective == Collective::AllGather;
        let blocks = if is_of_blocks { 4 } else { 1 };
        DeviceQuestion {
            collective,
            bytes,
            longest_bytes: bytes / blocks,
            blocks,
            is_pairwise: collective == Collective::Send,
            goes_by_slots: collective != Collective::Send,
            has_kernel: true,
        }
    }

    /// The tuner of four ranks whose host takes 50 GB/s.
    fn tuner(is_direct: bool) -> DeviceTuner {
        tuner_of(DeviceConstants::default(), is_direct, false, 4e-5, 1)
    }

    /// The same for devices with these constants, and threads that combine so slowly.
    fn tuner_of(
        constants: DeviceConstants,
        is_direct: bool,
        is_one_shot_asked: bool,
        slots_us_per_byte: f64,
        threads: usize,
    ) -> DeviceTuner {
        DeviceTuner::new(&Setting {
            shape: Shape {
                ranks: 4,
                ranks_per_device: 1,
                depth: 4,
            },
            constants,
            slot_bytes: SLOT_BYTES,
            slice_bytes: None,
            is_direct,
            threads,
            one_shot_bytes: if is_direct { ONE_SHOT_BYTES } else { 0 },
            is_one_shot_asked,
            host_us: &|_, bytes| 1.0 + 2e-5 * bytes as f64,
            slots_us: &|_, bytes| 1.0 + slots_us_per_byte * bytes as f64,
        })
    }

    #[test]
    fn one_kernel_does_small_calls_where_ranks_meet_and_nothing_is_faster() {
        let by_one_kernel = |tuner: &DeviceTuner, collective, bytes| {
            tuner.plan(&question(collective, bytes)).carried == Carried::OneShot
        };
        let largest = |tuner: &DeviceTuner| {
            let sizes = (2..=40).map(|log2| 1 << log2);
            let sizes = sizes.chain([ONE_SHOT_BYTES]);
            let is_last = |bytes: &u64| by_one_kernel(tuner, Collective::AllReduce, *bytes);
            sizes.filter(is_last).max().unwrap_or(0)
        };
        let usual = tuner(true);
        assert_eq!(largest(&usual), ONE_SHOT_BYTES);
        assert!(!by_one_kernel(&usual, Collective::AllGather, 1024));
        assert_eq!(largest(&tuner(false)), 0);
        // A kernel that reads slowly, and one that begins late.
        let usual = DeviceConstants::default();
        let slow = DeviceConstants {
            device_read_gbps: 2.0,
            ..usual
        };
        let late = DeviceConstants {
            device_launch_us: 500.0,
            ..usual
        };
        let few = largest(&tuner_of(slow, true, false, 4e-5, 1));
        assert!((8192..65536).contains(&few), "{few}");
        assert_eq!(largest(&tuner_of(late, true, false, 4e-5, 1)), 0);
        // All that fit, if that is asked for.
        let asked = tuner_of(late, true, true, 4e-5, 1);
        assert_eq!(largest(&asked), ONE_SHOT_BYTES);
    }

    #[test]
    fn small_calls_have_shorter_slices() {
        let tuner = tuner(false);
        let slice = |collective, bytes| tuner.plan(&question(collective, bytes)).slice_bytes;
        let reduced = |bytes| slice(Collective::AllReduce, bytes);
        assert_eq!(reduced(64 << 20), 1 << 20);
        assert!((256 << 10..1 << 20).contains(&reduced(1 << 20)));
        assert_eq!(reduced(64 << 10), 64 << 10);
        assert_eq!(reduced(0), 64);
        assert_eq!(slice(Collective::Send, 4 << 10), 1 << 20);
    }

    #[test]
    fn slices_overlap_where_the_host_takes_longest() {
        let overlaps = |host_us_per_byte: f64| {
            let tuner = DeviceTuner::new(&Setting {
                shape: Shape {
                    ranks: 2,
                    ranks_per_device: 1,
                    depth: 4,
                },
                constants: DeviceConstants::default(),
                slot_bytes: SLOT_BYTES,
                slice_bytes: None,
                is_direct: false,
                threads: 1,
                one_shot_bytes: 0,
                is_one_shot_asked: false,
                host_us: &|_, bytes| host_us_per_byte * bytes as f64,
                slots_us: &|_, _| 0.0,
            });
            let question = question(Collective::AllReduce, 64 << 20);
            tuner.plan(&question).overlaps
        };
        // The link takes 40 ps for a byte.
        assert!(overlaps(1e-3) && !overlaps(1e-5));
    }

    #[test]
    fn slices_are_equal_and_whole_lines_of_each_block() {
        let three = |collective, longest_bytes, blocks| DeviceQuestion {
            longest_bytes,
            blocks,
            ..question(collective, 0)
        };
        let even = |question: DeviceQuestion, carried| {
            question.even_slice_bytes(carried, 1 << 16, 1 << 20)
        };
        // 200 000 bytes are four slices of 50 000, up to a line.
        let vector = three(Collective::AllReduce, 200_000, 1);
        assert_eq!(even(vector, Carried::Host), 50_048);
        // Three blocks of 40 000 bytes are two slices of 20 000 bytes of each.
        let blocks = three(Collective::AllGather, 40_000, 3);
        assert_eq!(even(blocks, Carried::Host), 3 * 20_032);
        // A slot has only the rank's own block.
        assert_eq!(even(blocks, Carried::Direct), 40_000);
        let huge = three(Collective::AllGather, u64::MAX / 2, 3);
        assert_eq!(
            huge.even_slice_bytes(Carried::Host, 1 << 16, 1 << 16),
            1 << 16
        );
    }

    #[test]
    fn as_many_threads_combine_as_the_link_needs_and_ranks_have() {
        let usual = DeviceConstants::default();
        // The link takes 40 ps for a byte.
        for (us_per_byte, threads, due) in [(1e-5, 8, 0), (7e-5, 8, 1), (7e-5, 1, 0), (1e-3, 8, 7)]
        {
            let tuner = tuner_of(usual, true, false, us_per_byte, threads);
            assert_eq!(tuner.helpers_max(), due, "{us_per_byte} {threads}");
        }
    }
}
