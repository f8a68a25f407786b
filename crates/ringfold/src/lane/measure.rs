//! What a device and its link to the host are like: the constants of the cost model, measured.
//!
//! The measurement uses what lanes use: pinned memory, two streams, words, and kernels. A kernel
//! that meets others meets itself here: its own flag stands for those of all ranks. Times are
//! medians. Every wait has a limit: a device that does not go on is an error.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::guard::Guard;
use super::one_shot::OneShot;
use super::one_shot::area::Area;
use super::open::has_memory_operations;
use super::request::{DeviceBuffer, DeviceRequest};
use super::staging::{Bank, Layout, Staging};
use super::words::Word;
use crate::communicator::{Communicator, Counts};
use crate::device::{Current, Device, DeviceMemory, DeviceRegion, Driver, Stream};
use crate::error::{Error, Result};
use crate::tune::DeviceConstants;
use crate::tune::devices::pipeline::Line;
use crate::tune::parameters::ParameterTable;
use crate::types::{Collective, DType};

/// The lengths of copies: a short one's time is mostly its own, a long one's mostly its bytes'.
const SHORT_BYTES: usize = 64 << 10;
const LONG_BYTES: usize = 4 << 20;

const LAYOUT: Layout = Layout {
    slot_bytes: LONG_BYTES,
    depth: 2,
    has_direct: false,
    one_shot: Some(AREA),
};

/// Copies that are timed together.
const IN_A_ROW: u32 = 16;

/// Kernels that are timed together: fewer, because a driver that interprets them takes long.
const KERNELS_IN_A_ROW: u32 = 4;

/// How often each time is measured.
const TIMES: usize = 9;

/// Vectors of a kernel that meets itself, short and long, and where.
const SHORT_VECTOR_BYTES: usize = 1 << 10;
const LONG_VECTOR_BYTES: usize = 128 << 10;
const AREA: Area = Area::new(LONG_VECTOR_BYTES);

/// For how many ranks such a kernel is: with the second, it reads so many rows more.
const FEW_RANKS: usize = 2;
const MANY_RANKS: usize = 4;

/// Until a stream has begun to wait.
const SETTLE: Duration = Duration::from_micros(50);

/// How long a device may take for what is timed: much more than any does, also one in software
/// whose cores have other work.
const LIMIT: Duration = Duration::from_secs(60);

/// How long a wait keeps its core: longer than what it must see at once.
const SPIN: Duration = Duration::from_millis(10);

/// The constants of device `ordinal` of `driver`. What it does not have (kernels, streams that wait
/// for words) keeps its default. Takes a second or so; blocks meanwhile. For a device that nothing
/// else uses.
///
/// # Errors
/// The driver's, and `System` if the device does not go on.
pub fn measure(driver: &'static Driver, ordinal: usize) -> Result<DeviceConstants> {
    let device = Device::open(driver, ordinal)?;
    let communicator = Communicator::threads(1).swap_remove(0);
    let bytes = LAYOUT.bytes().expect("a few slots");
    let memory = communicator.alloc(bytes)?;
    memory.region().touch();
    let current = device.enter()?;
    let staging = Arc::new(Staging::new(memory, &current, LAYOUT)?);
    let memory = current.allocate(2 * LONG_BYTES)?;
    let has_words = has_memory_operations(&device, &current, &staging)?;
    let rig = Rig {
        current,
        staging: &staging,
        memory: &memory,
        has_words,
        released: Cell::new(0),
    };
    let measured = rig.measure();
    // Memory is given back only when nothing uses it.
    let idle = rig.wait_until_idle().and_then(|()| staging.unpin());
    measured.and_then(|constants| idle.map(|()| constants))
}

struct Rig<'a> {
    current: Current<'a>,
    staging: &'a Staging,
    memory: &'a DeviceMemory,
    /// Whether streams wait for words and write them.
    has_words: bool,
    /// The last value of the word for which streams wait.
    released: Cell<u32>,
}

impl Rig<'_> {
    fn measure(&self) -> Result<DeviceConstants> {
        let mut constants = DeviceConstants::default();
        let mut set = |name: &str, value: f64| {
            let mut known = DeviceConstants::PARAMETERS.iter();
            let parameter = known.find(|parameter| parameter.name == name);
            parameter.expect("a constant").set(&mut constants, value);
        };
        // The first copies of a context are slow.
        self.copies_us([true; 2], LONG_BYTES)?;
        let [out, into] = [self.copy([true, false])?, self.copy([false, true])?];
        set("device_out_gbps", gbps(out));
        set("device_in_gbps", gbps(into));
        set("device_copy_us", (out.each_us + into.each_us) / 2.0);
        let together_us = self.copies_us([true; 2], LONG_BYTES)?;
        let alone_us = [out, into].map(|line| line.at(LONG_BYTES as f64));
        let duplex = duplex(alone_us, together_us);
        set("device_duplex", duplex);
        let short_us = self.copies_us([true; 2], SHORT_BYTES)?;
        let us_per_byte = out.us_per_byte.max(into.us_per_byte) / duplex;
        let gap_us = short_us - SHORT_BYTES as f64 * us_per_byte;
        set("device_gap_us", gap_us.max(0.0));
        set("device_enqueue_us", self.enqueue_us()?);
        if self.has_words {
            let chain_us = self.chains_us()? - short_us;
            set("device_chain_us", chain_us.max(0.0));
            set("device_signal_us", self.signal_us()?);
        }
        let guard = match Guard::new(&self.current) {
            Err(Error::Unsupported(_)) => return Ok(constants),
            made => made?,
        };
        let launch_us = self.launch_us(&guard)?;
        set("device_launch_us", launch_us);
        let [few, many] = [self.meet(FEW_RANKS)?, self.meet(MANY_RANKS)?];
        set("device_flag_us", (few.each_us - launch_us).max(0.0));
        let rows = (MANY_RANKS - FEW_RANKS) as f64;
        let read = Line {
            us_per_byte: (many.us_per_byte - few.us_per_byte).max(0.0) / rows,
            ..few
        };
        set("device_read_gbps", gbps(read));
        Ok(constants)
    }

    /// A copy of a direction, of many in a row.
    fn copy(&self, directions: [bool; 2]) -> Result<Line> {
        let time_us =
            |bytes| -> Result<_> { Ok((bytes as u64, self.copies_us(directions, bytes)?)) };
        Ok(Line::through([time_us(SHORT_BYTES)?, time_us(LONG_BYTES)?]))
    }

    /// What a copy of each of these directions (out, in) takes, of many in a row.
    fn copies_us(&self, [out, into]: [bool; 2], bytes: usize) -> Result<f64> {
        let (staging, current) = (self.staging, &self.current);
        let [source, target] = [0, LONG_BYTES].map(|begin| self.part(begin, bytes));
        self.in_a_row_us(|number| {
            if out {
                let slot = staging.slot(Bank::Host, number).part(0..bytes);
                current.bring(&staging.out, source, slot)?;
            }
            if into {
                let result = staging.result(number).part(0..bytes);
                current.take(&staging.into, result, target)?;
            }
            Ok(())
        })
    }

    /// What a wait, a short copy and a write take, of many in a row, in both directions at once.
    fn chains_us(&self) -> Result<f64> {
        let (staging, current) = (self.staging, &self.current);
        let word = |word| staging.word(Bank::Host, word);
        let [source, target] = [0, LONG_BYTES].map(|begin| self.part(begin, SHORT_BYTES));
        self.in_a_row_us(|number| {
            let slot = staging.slot(Bank::Host, number).part(0..SHORT_BYTES);
            let result = staging.result(number).part(0..SHORT_BYTES);
            // They are there.
            current.wait(&staging.out, word(Word::Free), 0)?;
            current.bring(&staging.out, source, slot)?;
            current.write(&staging.out, word(Word::Arrived), 0)?;
            current.wait(&staging.into, word(Word::Free), 0)?;
            current.take(&staging.into, result, target)?;
            current.write(&staging.into, word(Word::Taken), 0)
        })
    }

    /// The time of what `enqueue` puts into both streams, of many in a row. Streams that wait for
    /// words begin when all of it is enqueued.
    fn in_a_row_us(&self, enqueue: impl Fn(u32) -> Result<()>) -> Result<f64> {
        let (staging, words) = (self.staging, self.staging.words(Bank::Host));
        let mut times = Vec::with_capacity(TIMES);
        for _ in 0..TIMES {
            let enqueued = Instant::now();
            let round = self.next_round();
            if self.has_words {
                for stream in [&staging.out, &staging.into] {
                    let released = staging.word(Bank::Host, Word::Released);
                    self.current.wait(stream, released, round)?;
                }
            }
            let all = (0..IN_A_ROW).try_for_each(&enqueue);
            let begin = match self.has_words {
                true => {
                    thread::sleep(SETTLE);
                    Instant::now()
                }
                false => enqueued,
            };
            words.store(Word::Released, round);
            all?;
            self.wait_until_idle()?;
            times.push(us(begin.elapsed()));
        }
        Ok(median(times) / f64::from(IN_A_ROW))
    }

    /// The next value of the word for which streams wait.
    fn next_round(&self) -> u32 {
        self.released.set(self.released.get() + 1);
        self.released.get()
    }

    /// Memory of the device.
    fn part(&self, begin: usize, bytes: usize) -> DeviceRegion {
        // SAFETY: every measurement waits until the streams are idle, or fails; a device that does
        // not go on keeps its memory.
        let whole = unsafe { self.memory.region() };
        whole.part(begin..begin + bytes)
    }

    /// What a call costs its caller that enqueues, of those that a slice has.
    fn enqueue_us(&self) -> Result<f64> {
        let (staging, current) = (self.staging, &self.current);
        let (source, slot) = (self.part(0, size_of::<u32>()), staging.slot(Bank::Host, 0));
        let slot = slot.part(0..size_of::<u32>());
        let calls = if self.has_words {
            3 * IN_A_ROW
        } else {
            IN_A_ROW
        };
        let mut times = Vec::with_capacity(TIMES);
        for _ in 0..TIMES {
            let begin = Instant::now();
            for _ in 0..IN_A_ROW {
                if self.has_words {
                    // It is there.
                    current.wait(&staging.out, staging.word(Bank::Host, Word::Free), 0)?;
                    current.write(&staging.out, staging.word(Bank::Host, Word::Taken), 0)?;
                }
                current.bring(&staging.out, source, slot)?;
            }
            times.push(us(begin.elapsed()));
            self.wait_until_idle()?;
        }
        Ok(median(times) / f64::from(calls))
    }

    /// A word of one side until the other has seen it: half of the way there and back.
    fn signal_us(&self) -> Result<f64> {
        let (staging, words) = (self.staging, self.staging.words(Bank::Host));
        let mut times = Vec::with_capacity(TIMES);
        for _ in 0..TIMES {
            let (out, current, round) = (&staging.out, &self.current, self.next_round());
            current.wait(out, staging.word(Bank::Host, Word::Released), round)?;
            current.write(out, staging.word(Bank::Host, Word::Arrived), round)?;
            thread::sleep(SETTLE);
            let begin = Instant::now();
            words.store(Word::Released, round);
            spin_until(|| Ok(words.has_reached(Word::Arrived, round)))?;
            times.push(us(begin.elapsed()));
            self.wait_until_idle()?;
        }
        Ok(median(times) / 2.0)
    }

    /// A kernel that only looks at a word.
    fn launch_us(&self, guard: &Guard) -> Result<f64> {
        let output = self.part(0, SHORT_BYTES);
        let all_us = self.median_us(|| {
            for _ in 0..KERNELS_IN_A_ROW {
                guard.enqueue(&self.current, self.staging, output)?;
            }
            self.wait_until_idle()
        })?;
        Ok(all_us / f64::from(KERNELS_IN_A_ROW))
    }

    /// A byte of the vector of a kernel that is made for so many ranks, and meets itself.
    fn meet(&self, ranks: usize) -> Result<Line> {
        let staging = self.staging;
        let one_shot = OneShot::new(&self.current, AREA, [0, ranks], LONG_BYTES)?;
        let number = Cell::new(0);
        let launch = |bytes: usize| {
            number.set(number.get() + 1);
            let buffer = |begin| DeviceBuffer::new(vec![self.part(begin, bytes)]);
            let counts = Counts::Even((bytes / size_of::<f32>()) as u64);
            let (input, output) = (buffer(0), buffer(LONG_BYTES));
            let request =
                DeviceRequest::new(Collective::AllReduce, DType::F32, counts, input, output);
            let call = one_shot.call(staging, request, number.get());
            let flags = call.own.part(AREA.flags(call.number));
            // Peers' rows are apart, so that no cache has them.
            let row = |rank: usize| match rank {
                0 => call.own.part(AREA.row(call.number)),
                _ => {
                    let slot = staging.slot(Bank::Host, rank as u32);
                    let begin = rank * LONG_VECTOR_BYTES;
                    slot.part(begin..begin + LONG_VECTOR_BYTES)
                }
            };
            let places: Vec<_> = (0..ranks).map(|rank| [row(rank), flags]).collect();
            one_shot.launch_among(&self.current, staging, &call, call.number, &places)
        };
        let time_us = |bytes: usize| -> Result<_> {
            let all_us = self.median_us(|| {
                for _ in 0..KERNELS_IN_A_ROW {
                    launch(bytes)?;
                }
                self.wait_until_idle()
            })?;
            Ok((bytes as u64, all_us / f64::from(KERNELS_IN_A_ROW)))
        };
        Ok(Line::through([
            time_us(SHORT_VECTOR_BYTES)?,
            time_us(LONG_VECTOR_BYTES)?,
        ]))
    }

    fn median_us(&self, run: impl Fn() -> Result<()>) -> Result<f64> {
        let timed = || {
            let begin = Instant::now();
            run().map(|()| us(begin.elapsed()))
        };
        let times: Result<Vec<f64>> = (0..TIMES).map(|_| timed()).collect();
        times.map(median)
    }

    fn wait_until_idle(&self) -> Result<()> {
        let is_idle = |stream: &Stream| self.current.is_idle(stream);
        spin_until(|| Ok(is_idle(&self.staging.out)? && is_idle(&self.staging.into)?))
    }
}

/// Looks until it holds, without a pause at first.
fn spin_until(holds: impl Fn() -> Result<bool>) -> Result<()> {
    let begin = Instant::now();
    while !holds()? {
        if begin.elapsed() > LIMIT {
            return Err(Error::System {
                what: format!("a device that is measured has not gone on for {LIMIT:?}"),
                kind: std::io::ErrorKind::TimedOut,
            });
        }
        match begin.elapsed() < SPIN {
            true => std::hint::spin_loop(),
            false => thread::yield_now(),
        }
    }
    Ok(())
}

/// The part of its rate that each direction has while both are busy, from the times of a copy of
/// each alone and of both together: the longer one takes as much more as the shorter one shares.
fn duplex([one_us, other_us]: [f64; 2], together_us: f64) -> f64 {
    let (short_us, long_us) = (one_us.min(other_us), one_us.max(other_us));
    short_us / (short_us + (together_us - long_us).max(0.0))
}

/// The rate of a line's bytes, in GB/s.
fn gbps(line: Line) -> f64 {
    1e-3 / line.us_per_byte
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Platform;
    use crate::lane::tests::driver;

    #[test]
    fn links_that_are_slower_both_ways_have_a_part_of_their_rate() {
        assert_eq!(duplex([100.0, 100.0], 100.0), 1.0);
        assert_eq!(duplex([100.0, 100.0], 200.0), 0.5);
        // The short one ends earlier; the long one has the whole link then.
        assert_eq!(duplex([50.0, 100.0], 150.0), 0.5);
        assert_eq!(duplex([100.0, 100.0], 90.0), 1.0);
    }

    #[test]
    fn what_is_measured_is_within_bounds() {
        // Its streams are held while it enqueues more, which a free of another test forbids.
        crate::lane::tests::alone(&[], || {
            let constants = measure(driver(Platform::Cuda), 0).expect("constants");
            let text = constants.to_string();
            assert_eq!(DeviceConstants::decode(&text), Some(constants), "{text}");
            // Without words and kernels.
            let usual = DeviceConstants::default();
            let without = measure(driver(Platform::Hip), 0).expect("constants");
            assert_eq!(without.device_signal_us, usual.device_signal_us);
            assert_eq!(without.device_launch_us, usual.device_launch_us);
            assert_eq!(without.device_read_gbps, usual.device_read_gbps);
        });
    }
}
