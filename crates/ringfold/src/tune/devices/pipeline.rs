//! What a call on device memory should take: closed forms.
//!
//! A lane cuts a call into slices, and slices that follow each other are in different stages at the
//! same time: one is enqueued, one copied from the device, one handled by the host, one copied to
//! the device. So a call takes the whole way of one slice, and for each further slice the *period*:
//! the time of the stage that takes longest. A slot that is used again, K slices later, is a stage
//! of its own, which takes a K-th of the time for which a slice has it.
//!
//! ```text
//! T(c) = way(c) + (S/c - 1) period(c)        S bytes in slices of c
//! ```
//!
//! Larger slices have fewer periods, smaller ones a shorter way. With a period of `o + p c` and a
//! way of `w + b c`, T is least at `c* = √(S o / (b - p))`: the rate `h' = 1 / (b - p)` is that of
//! the way beside the busiest stage.
//!
//! What the host's collectives take is the caller's to say, as a [`Line`]. The forms leave out what
//! other programs do on the link, and slices that are shorter than the others.

use std::iter;
use std::ops::{Add, Mul};

use super::DeviceConstants;
use crate::types::Collective;

/// The shortest slices that calls are cut into: those of shorter ones cost more calls of the driver
/// than they gain.
pub const SLICE_BYTES_MIN: u64 = 256 << 10;

/// Microseconds: so many for each, and so many for each byte of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Line {
    /// For each.
    pub each_us: f64,
    /// For each byte.
    pub us_per_byte: f64,
}

/// How a lane is made, as far as times depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of ranks.
    pub ranks: usize,
    /// Ranks on each device, which share its links.
    pub ranks_per_device: usize,
    /// Slices that may be under way at the same time.
    pub depth: u32,
}

/// With so many slots, the word behind a copy is written by the call of the driver that waits for
/// the next slice. With fewer, that would wait for what is still to be enqueued.
const BATCHED_DEPTH_MIN: u32 = 4;

/// Whether a stream's word is written together with its next wait, among so many slots.
pub const fn is_batched(depth: u32) -> bool {
    depth >= BATCHED_DEPTH_MIN
}

/// The number of slices of the host's bank that may be in flight, among `depth` slots: not more
/// than are enqueued before the first is taken, with the words that say so.
pub const fn slices_in_flight(depth: u32) -> u32 {
    match is_batched(depth) {
        true => depth - 2,
        false => depth,
    }
}

/// Calls of the driver for the words of a slice in one stream.
pub const fn word_calls(depth: u32) -> u32 {
    if is_batched(depth) { 1 } else { 2 }
}

/// What may take longest of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The calls of the driver.
    Enqueue,
    /// The stream from the device.
    Out,
    /// The host.
    Host,
    /// The stream to the device.
    In,
    /// The link from the device, with the slices of all ranks that share it.
    LinkOut,
    /// The same to the device.
    LinkIn,
    /// A slot, until it may be filled again.
    Slot,
    /// A result's place, likewise.
    Result,
}

impl Stage {
    /// All stages, in the order of their numbers.
    pub const ALL: [Stage; 8] = [
        Stage::Enqueue,
        Stage::Out,
        Stage::Host,
        Stage::In,
        Stage::LinkOut,
        Stage::LinkIn,
        Stage::Slot,
        Stage::Result,
    ];

    /// The name in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Enqueue => "calls of the driver",
            Stage::Out => "the stream from the device",
            Stage::Host => "the host",
            Stage::In => "the stream to the device",
            Stage::LinkOut => "the link from the device",
            Stage::LinkIn => "the link to the device",
            Stage::Slot => "the number of slots",
            Stage::Result => "the number of results' places",
        }
    }
}

/// The stages of a slice.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// The time of each stage for a slice, by [`Stage`].
    stages: [Line; Stage::ALL.len()],
    /// From the first call of the driver until the last word is seen.
    way: Line,
}

impl Line {
    /// The line through the times of two sizes; it falls nowhere, and begins at 0 or above.
    pub fn through([short, long]: [(u64, f64); 2]) -> Line {
        let rise = (long.1 - short.1) / (long.0.saturating_sub(short.0)).max(1) as f64;
        let us_per_byte = rise.clamp(0.0, long.1 / long.0.max(1) as f64);
        let each_us = long.1 - us_per_byte * long.0 as f64;
        Line {
            each_us,
            us_per_byte,
        }
    }

    /// The time of so many bytes.
    pub fn at(self, bytes: f64) -> f64 {
        self.each_us + self.us_per_byte * bytes
    }

    /// So many for each, whatever its length.
    pub fn of_each(each_us: f64) -> Line {
        Line {
            each_us,
            us_per_byte: 0.0,
        }
    }
}

impl Add for Line {
    type Output = Line;

    fn add(self, other: Line) -> Line {
        Line {
            each_us: self.each_us + other.each_us,
            us_per_byte: self.us_per_byte + other.us_per_byte,
        }
    }
}

impl Mul<f64> for Line {
    type Output = Line;

    fn mul(self, factor: f64) -> Line {
        Line {
            each_us: self.each_us * factor,
            us_per_byte: self.us_per_byte * factor,
        }
    }
}

/// What a slice has on its device's link.
struct Traffic {
    /// Copies out and in, ...
    copies: [f64; 2],
    /// ... and what part of the slice they have.
    shares: [f64; 2],
}

impl Traffic {
    /// The copies of each direction in their stream, alone.
    fn alone(&self, constants: &DeviceConstants) -> [Line; 2] {
        let rates = [constants.out_us_per_byte(), constants.in_us_per_byte()];
        [0, 1].map(|side| Line {
            each_us: self.copies[side] * constants.copy_us(),
            us_per_byte: self.shares[side] * rates[side],
        })
    }

    /// The same while both directions are busy, as long as both have something.
    fn together(&self, constants: &DeviceConstants) -> [Line; 2] {
        let alone = self.alone(constants);
        let shared = alone[0].us_per_byte.min(alone[1].us_per_byte);
        let more = shared * (1.0 / constants.device_duplex - 1.0);
        alone.map(|line| Line {
            us_per_byte: line.us_per_byte + more,
            ..line
        })
    }

    /// The time of a slice of each of the ranks that share the link, by direction. A copy has the
    /// link for its gap, too.
    fn link(&self, constants: &DeviceConstants, ranks: f64) -> [Line; 2] {
        let together = self.together(constants);
        [0, 1].map(|side| Line {
            each_us: ranks * self.copies[side] * constants.device_gap_us,
            us_per_byte: ranks * together[side].us_per_byte,
        })
    }
}

impl Pipeline {
    /// A call whose slices the host handles, each in the time `host`. Bytes are those of the larger
    /// of a rank's buffers.
    pub fn new(
        collective: Collective,
        shape: Shape,
        constants: &DeviceConstants,
        host: Line,
    ) -> Pipeline {
        use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        let n = shape.ranks as f64;
        // Blocks are not next to each other in the call's buffer: a copy for each.
        let (out, into) = match collective {
            AllGather | Gather => ((1.0, 1.0 / n), (n, 1.0)),
            ReduceScatter | Scatter => ((n, 1.0), (1.0, 1.0 / n)),
            AllToAll => ((n, 1.0), (n, 1.0)),
            _ => ((1.0, 1.0), (1.0, 1.0)),
        };
        let traffic = Traffic {
            copies: [out.0, into.0],
            shares: [out.1, into.1],
        };
        Pipeline::of_traffic(shape, constants, &traffic, host)
    }

    /// The same of a call whose slices devices copy from the slots of all ranks, with the time
    /// `host` until all ranks have combined them there. A slot waits for all devices; there are no
    /// results.
    pub fn direct(
        collective: Collective,
        shape: Shape,
        constants: &DeviceConstants,
        host: Line,
    ) -> Pipeline {
        let mut pipeline = Pipeline::new(collective, shape, constants, host);
        let depth = f64::from(shape.depth);
        let [out, result] = [Stage::Out, Stage::In].map(|stage| pipeline.stages[stage as usize]);
        let signals = Line::of_each(3.0 * constants.device_signal_us);
        pipeline.stages[Stage::Slot as usize] = (signals + out + host + result) * (1.0 / depth);
        pipeline.stages[Stage::Result as usize] = Line::of_each(0.0);
        pipeline
    }

    fn of_traffic(
        shape: Shape,
        constants: &DeviceConstants,
        traffic: &Traffic,
        host: Line,
    ) -> Pipeline {
        let sharing = shape.ranks_per_device as f64;
        let signal = Line::of_each(constants.device_signal_us);
        let enqueued = Line::of_each(constants.device_enqueue_us);
        let chain = Line::of_each(constants.device_chain_us);
        let [out, into] = traffic.together(constants).map(|copies| copies + chain);
        let depth = 1.0 / f64::from(shape.depth);
        let [link_out, link_in] = traffic.link(constants, sharing);
        // Those for the words of one stream.
        let word_calls = f64::from(word_calls(shape.depth));
        let stages = [
            enqueued * (2.0 * word_calls + traffic.copies[0] + traffic.copies[1]),
            out,
            host,
            into,
            link_out,
            link_in,
            (signal * 2.0 + out + host) * depth,
            (signal * 2.0 + host + into) * depth,
        ];
        let [out, into] = traffic.alone(constants).map(|copies| copies + chain);
        let gaps_us = traffic
            .copies
            .map(|copies| copies * constants.device_gap_us);
        // The last of those that share the link has it behind all others.
        let last = |line: Line, gaps_us: f64| Line {
            each_us: line.each_us + (sharing - 1.0) * gaps_us,
            us_per_byte: line.us_per_byte * sharing,
        };
        let [out, into] = [last(out, gaps_us[0]), last(into, gaps_us[1])];
        // A wait, the copies, and the word, which is batched with the next wait at best.
        let first = enqueued * (traffic.copies[0] + 2.0);
        Pipeline {
            stages,
            way: first + out + host + into + signal * 3.0,
        }
    }

    /// How many times as long as the busier link the host takes for a slice of `slice_bytes`.
    pub fn host_over_link(&self, slice_bytes: u64) -> f64 {
        let time_us = |stage: Stage| self.stages[stage as usize].at(slice_bytes as f64);
        let link_us = time_us(Stage::LinkOut).max(time_us(Stage::LinkIn));
        time_us(Stage::Host) / link_us.max(f64::MIN_POSITIVE)
    }

    /// The time of a call of `bytes` bytes, cut into equal slices of at most `slice_bytes`, in
    /// microseconds.
    pub fn time_us(&self, bytes: u64, slice_bytes: u64) -> f64 {
        let slices = bytes.div_ceil(slice_bytes.max(1)).max(1) as f64;
        let slice = bytes as f64 / slices;
        self.way.at(slice) + (slices - 1.0) * self.period_us(slice)
    }

    /// The length of slices with which a call of `bytes` bytes takes least, from
    /// [`SLICE_BYTES_MIN`] to `slot_bytes`.
    pub fn slice_bytes(&self, bytes: u64, slot_bytes: u64) -> u64 {
        let least = SLICE_BYTES_MIN.min(slot_bytes);
        // A whole number of slices, of the best length if this stage is the busiest.
        let best_for = |stage: &Line| {
            let beside = self.way.us_per_byte - stage.us_per_byte;
            // Without anything beside it, or without bytes, the longest slices are best.
            let best = (bytes as f64 * stage.each_us / beside.max(0.0)).sqrt();
            let slices = bytes as f64 / best.clamp(1.0, slot_bytes as f64);
            [slices.floor(), slices.ceil()].map(|slices| {
                let even = bytes.div_ceil((slices as u64).max(1));
                even.clamp(least, slot_bytes)
            })
        };
        let each = self.stages.iter().flat_map(best_for);
        let all = iter::once(slot_bytes).chain(each);
        let timed = all.map(|slice_bytes| (self.time_us(bytes, slice_bytes), slice_bytes));
        // Of equal ones the first, which is the longest.
        let best = timed.reduce(|best, next| if next.0 < best.0 { next } else { best });
        best.map_or(slot_bytes, |(_, slice_bytes)| slice_bytes)
    }

    /// The stage that takes longest for slices of `slice_bytes`.
    pub fn busiest(&self, slice_bytes: u64) -> Stage {
        let time_us = |stage: &Stage| self.stages[*stage as usize].at(slice_bytes as f64);
        let by_time = |one: &Stage, other: &Stage| time_us(one).total_cmp(&time_us(other));
        let busiest = Stage::ALL.into_iter().max_by(by_time);
        busiest.expect("some stages")
    }

    /// The time between the ends of two slices.
    fn period_us(&self, slice: f64) -> f64 {
        let stages = self.stages.iter().map(|stage| stage.at(slice));
        stages.fold(0.0, f64::max)
    }
}
