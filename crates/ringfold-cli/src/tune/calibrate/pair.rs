//! Times of the messages and calls of rank 0 and another rank of a job, alone with each other.
//!
//! Every number is the median of repetitions, while all other ranks wait in a barrier.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ringfold::internals::topology::binding::set;
use ringfold::internals::topology::cores;
use ringfold::internals::tune::calibration::{LinkTimes, crowded_us};
use ringfold::{Collective, Communicator, Counts, DType, Method, Op, Request};
use rustix::thread::{sched_setaffinity, sched_yield};
use rustix::time::{ClockId, clock_gettime};

use crate::bench::memory::{Memory, carry_out};
use crate::statistics::median;

/// Repetitions of each measurement; `FEW_ROUNDS` are those of the measurements with the most data.
pub(super) const ROUNDS: usize = 41;
const FEW_ROUNDS: usize = 7;

/// Bytes of a call whose messages have one packet. `BOTH_WAYS` are the sizes of two calls that
/// differ only in the time for bytes, in both directions at once.
pub(super) const ONE_PACKET: usize = 8;
pub(super) const BOTH_WAYS: [usize; 2] = [16 << 10, 256 << 10];

/// Number of small messages in a row.
const SMALL_MESSAGES: usize = 64;

/// Number of calls in a row.
const CALLS: usize = 8;

/// Pauses before a message, in microseconds: from one of them on, the receiver sleeps.
const PAUSES_US: [u64; 10] = [2, 4, 8, 16, 24, 32, 48, 64, 128, 256];

/// Number of times that two ranks on one core yield it to each other.
const YIELDS: u32 = 1000;

/// The tag of all messages.
const TAG: u32 = 0;

/// Rank 0 and another rank, seen from any rank.
pub(super) struct Pair<'a> {
    communicator: &'a Communicator,
    /// Communicator of the two ranks, whose polling has not adapted yet; `None` on other ranks.
    alone: Option<Communicator>,
    /// Restores the affinity when dropped.
    _seat: Seat,
}

impl Pair<'_> {
    /// Creates a pair with each rank on a core of its own.
    pub(super) fn new(communicator: &Communicator, other: usize) -> Result<Pair<'_>> {
        let rank = communicator.rank();
        let is_part = rank == 0 || rank == other;
        let alone = communicator.split(is_part.then_some(0), rank as i64)?;
        let seat = Seat::default();
        if is_part {
            let own = if rank == 0 {
                seat.own.first()
            } else {
                seat.own.last()
            };
            seat.take(own.copied())?;
        }
        Ok(Pair {
            communicator,
            alone,
            _seat: seat,
        })
    }

    /// Creates a pair with both ranks on rank 0's first core; `None` if a rank cannot be bound to
    /// that core. The pair's communicator is created there, so both ranks poll like ranks that
    /// outnumber their cores.
    pub(super) fn on_one_core(
        communicator: &Communicator,
        other: usize,
    ) -> Result<Option<Pair<'_>>> {
        let rank = communicator.rank();
        let is_part = rank == 0 || rank == other;
        let seat = Seat::default();
        let mut core = [seat.own.first().map_or(0, |core| *core as u64)];
        communicator.broadcast(&mut core, 0)?;
        let is_seated = !is_part || seat.take(Some(core[0] as usize)).is_ok();
        let mut are_seated = [u32::from(is_seated)];
        communicator.all_reduce(&mut are_seated, Op::Min)?;
        if are_seated == [0] {
            return Ok(None);
        }
        let alone = communicator.split(is_part.then_some(0), rank as i64)?;
        Ok(Some(Pair {
            communicator,
            alone,
            _seat: seat,
        }))
    }

    /// Returns the median of this rank's results of `part`, in microseconds; 0 outside the pair.
    /// The argument of `part` is true on rank 0.
    fn median_us(&self, part: impl Fn(&Communicator, bool) -> Result<f64>) -> Result<f64> {
        self.median_of_us(ROUNDS, part)
    }

    fn median_of_us(
        &self,
        rounds: usize,
        part: impl Fn(&Communicator, bool) -> Result<f64>,
    ) -> Result<f64> {
        let mut times_us = Vec::with_capacity(rounds);
        if let Some(alone) = &self.alone {
            let is_first = alone.rank() == 0;
            for _ in 0..rounds {
                alone.barrier()?;
                times_us.push(part(alone, is_first)?);
            }
        }
        self.communicator.barrier()?;
        // Skips the first round, which creates plans.
        Ok(times_us.get(1..).map_or(0.0, median))
    }

    /// Measures the times of small messages.
    pub(super) fn single(&self) -> Result<LinkTimes> {
        Ok(LinkTimes {
            hop_us: self.hop_us()?,
            message_us: self.stream_us(SMALL_MESSAGES, 2)?,
            ..LinkTimes::default()
        })
    }

    /// Measures half of a small message's round trip.
    fn hop_us(&self) -> Result<f64> {
        self.median_us(|communicator, is_first| {
            let begun = Instant::now();
            if is_first {
                communicator.send(&[0f32; 2], peer(communicator), TAG)?;
            } else {
                communicator.recv(&mut [0f32; 2], peer(communicator), TAG)?;
            }
            answer(communicator, is_first)?;
            Ok(begun.elapsed().as_secs_f64() * 1e6 / 2.0)
        })
    }

    /// Measures `count` messages in one direction, and an answer; returns the time per message.
    pub(super) fn stream_us(&self, count: usize, elements: usize) -> Result<f64> {
        let mut data = vec![1f32; elements];
        let data = RefCell::new(&mut data);
        self.median_us(|communicator, is_first| {
            let begun = Instant::now();
            for _ in 0..count {
                match is_first {
                    true => communicator.send(*data.borrow(), peer(communicator), TAG)?,
                    false => communicator.recv(*data.borrow_mut(), peer(communicator), TAG)?,
                }
            }
            answer(communicator, is_first)?;
            Ok(begun.elapsed().as_secs_f64() * 1e6 / count as f64)
        })
    }

    /// Measures messages in both directions at once; returns the time per byte.
    pub(super) fn exchange_us_per_byte(&self, elements: usize) -> Result<f64> {
        let elements = if self.alone.is_some() { elements } else { 0 };
        let input = vec![1f32; elements];
        let output = RefCell::new(vec![0f32; elements]);
        self.median_of_us(FEW_ROUNDS, |pair, _| {
            let begun = Instant::now();
            pair.sendrecv(&input, &mut output.borrow_mut()[..])?;
            Ok(begun.elapsed().as_secs_f64() * 1e6 / size_of_val(&input[..]) as f64)
        })
    }

    /// Measures the time until the other rank runs after this rank has yielded the core of both.
    pub(super) fn switch_us(&self) -> Result<f64> {
        self.median_us(|_, _| {
            let begun = Instant::now();
            for _ in 0..YIELDS {
                sched_yield();
            }
            // A yield returns after two switches: to the other rank and back.
            Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(2 * YIELDS))
        })
    }

    /// Measures the cost of a message at each end on the core of both: no less than `overhead_us`,
    /// the cost with a core for each.
    pub(super) fn crowded_us(
        &self,
        alpha_us: f64,
        overhead_us: f64,
        switch_us: f64,
    ) -> Result<f64> {
        // A tree between two ranks has two hops in sequence.
        let hop_us = Calls::new(self, ONE_PACKET)?.us(Method::Tree, ONE_PACKET)? / 2.0;
        Ok(crowded_us(hop_us, alpha_us, switch_us).max(overhead_us))
    }

    /// Measures the time for which the other rank polls before it sleeps, and the time to wake it,
    /// by the delay of a message after a pause.
    pub(super) fn sleep(&self, hop_us: f64) -> Result<(f64, f64)> {
        let mut late_us = Vec::new();
        for pause_us in PAUSES_US {
            let there_and_back_us = self.median_us(|communicator, is_first| {
                let begun = Instant::now();
                if is_first {
                    while begun.elapsed() < Duration::from_micros(pause_us) {
                        std::hint::spin_loop();
                    }
                    communicator.send(&[0f32], peer(communicator), TAG)?;
                } else {
                    communicator.recv(&mut [0f32], peer(communicator), TAG)?;
                }
                answer(communicator, is_first)?;
                Ok(begun.elapsed().as_secs_f64() * 1e6 - pause_us as f64)
            })?;
            late_us.push((there_and_back_us - 2.0 * hop_us).max(0.0));
        }
        let longest_us = late_us.last().copied().unwrap_or(0.0);
        let asleep = late_us
            .iter()
            .position(|late_us| *late_us > longest_us / 2.0);
        let spin_us = PAUSES_US[asleep.unwrap_or(0)] as f64;
        // If waking the other rank takes long, rank 0 sleeps meanwhile and is woken, too.
        let wakes = if longest_us / 2.0 > spin_us { 2.0 } else { 1.0 };
        Ok((spin_us, longest_us / wakes))
    }
}

/// Returns the other rank of a pair.
fn peer(pair: &Communicator) -> usize {
    1 - pair.rank()
}

/// Sends a small message back to rank 0.
fn answer(communicator: &Communicator, is_first: bool) -> ringfold::Result<()> {
    match is_first {
        true => communicator.recv(&mut [0f32], peer(communicator), TAG),
        false => communicator.send(&[0f32], peer(communicator), TAG),
    }
}

/// Calls of an `all_reduce` by a pair.
pub(super) struct Calls<'a> {
    pair: &'a Pair<'a>,
    input: Memory,
    output: Memory,
}

impl Calls<'_> {
    /// Prepares calls in ordinary memory.
    pub(super) fn new<'a>(pair: &'a Pair<'a>, most_bytes: usize) -> Result<Calls<'a>> {
        let bytes = if pair.alone.is_some() { most_bytes } else { 0 };
        Ok(Calls {
            pair,
            input: Memory::new(bytes)?,
            output: Memory::new(bytes)?,
        })
    }

    /// Prepares calls in memory that the pair has registered.
    pub(super) fn registered<'a>(pair: &'a Pair<'a>, most_bytes: usize) -> Result<Calls<'a>> {
        let memory = || match &pair.alone {
            Some(alone) => Memory::registered(alone, most_bytes),
            None => Memory::new(0),
        };
        Ok(Calls {
            pair,
            input: memory()?,
            output: memory()?,
        })
    }

    /// Measures the time of one call of `bytes` bytes.
    pub(super) fn us(&self, method: Method, bytes: usize) -> Result<f64> {
        let start = Instant::now();
        self.by_clock_us(method, bytes, &|| start.elapsed().as_secs_f64())
    }

    /// Measures the time of a message from the sender's call until the receiver's call returns.
    pub(super) fn hop_us(&self, bytes: usize) -> Result<f64> {
        let doubling_us = self.us(Method::RecursiveDoubling, bytes)?;
        // A tree between two ranks has two hops in sequence.
        Ok((doubling_us + self.us(Method::Tree, bytes)? / 2.0) / 2.0)
    }

    /// Measures the time per byte, by the difference of two sizes.
    pub(super) fn us_per_byte(&self, method: Method, [less, more]: [usize; 2]) -> Result<f64> {
        Ok((self.us(method, more)? - self.us(method, less)?) / (more - less) as f64)
    }

    /// Measures this rank's processor time per byte.
    pub(super) fn processor_us_per_byte(&self) -> Result<f64> {
        let [_, bytes] = BOTH_WAYS;
        Ok(self.by_clock_us(Method::RecursiveDoubling, bytes, &processor_s)? / bytes as f64)
    }

    fn by_clock_us(&self, method: Method, bytes: usize, clock: &dyn Fn() -> f64) -> Result<f64> {
        self.pair.median_us(|pair, _| {
            let (collective, dtype) = (Collective::AllReduce, DType::F32);
            let counts = Counts::Even((bytes / size_of::<f32>()) as u64);
            let regions = [&self.input, &self.output].map(|memory| memory.region(bytes));
            let [input, output] = regions;
            let mut request = Request::new(collective, dtype, counts, input, output);
            request.options.algorithm = Some(method);
            let begun = clock();
            for _ in 0..CALLS {
                carry_out(pair, &request, &[&self.input, &self.output])?;
            }
            Ok((clock() - begun) * 1e6 / CALLS as f64)
        })
    }
}

/// The cores that this thread may use, which are restored on drop.
struct Seat {
    own: Vec<usize>,
}

impl Default for Seat {
    fn default() -> Seat {
        Seat {
            own: cores::affinity(),
        }
    }
}

impl Seat {
    /// Binds this thread to one core.
    fn take(&self, core: Option<usize>) -> Result<()> {
        let cores: Vec<usize> = core.into_iter().collect();
        sched_setaffinity(None, &set(&cores)).context("cannot bind to one core")
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // If this fails, the thread keeps one core in a job that ends soon.
        let _ = sched_setaffinity(None, &set(&self.own));
    }
}

/// Returns this thread's processor time, in seconds.
fn processor_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
