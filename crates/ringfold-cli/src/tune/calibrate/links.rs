//! One rank of a job of several hosts, in which messages are measured: within rank 0's host and
//! from there to another.
//!
//! A pair at a time exchanges messages, and all others wait in a barrier. Every number is the
//! median of repetitions. What the numbers mean is the library's (`tune::links`).

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ringfold::Communicator;
use ringfold::internals::random::SplitMix64;
use ringfold::internals::tune::calibration::{LinkCosts, LinkTimes};
use rustix::time::{ClockId, clock_gettime};

use crate::statistics::median;

/// Repetitions of each measurement.
const ROUNDS: usize = 41;

/// Small messages in a row, and large ones.
const SMALL_MESSAGES: usize = 64;
const LARGE_MESSAGES: usize = 16;

/// Elements of a large message: as schedules send them.
const LARGE: usize = (256 << 10) / size_of::<f32>();

/// Pauses before a message, in microseconds: the receiver sleeps after one of them.
const PAUSES_US: [u64; 9] = [2, 4, 8, 16, 32, 64, 128, 256, 2000];

/// Elements that are combined, of which both operands fit the second cache.
const COMBINED: usize = (128 << 10) / size_of::<f32>();

/// The tag of all messages.
const TAG: u32 = 0;

/// The costs of messages, on rank 0: all ranks take part. What has no link in this job keeps its
/// default.
pub fn measure(communicator: &Communicator) -> Result<LinkCosts> {
    let hosts = hosts(communicator)?;
    let of_host = |is_own: bool| {
        let others = hosts.iter().enumerate().skip(1);
        let found = others.filter(|(_, host)| (**host == hosts[0]) == is_own);
        found.map(|(rank, _)| rank).next()
    };
    let mut costs = LinkCosts::default();
    if let Some(peer) = of_host(true) {
        let pair = Pair::new(communicator, peer)?;
        let (times, _) = pair.times()?;
        (costs.ring_alpha_us, costs.ring_overhead_us) = times.latency_us();
        // Both ends copy at the same time.
        costs.ring_work_us_per_byte = times.one_way_us_per_byte;
    }
    let peer = of_host(false).context("all ranks are on one host")?;
    let pair = Pair::new(communicator, peer)?;
    let (times, processor_us_per_byte) = pair.times()?;
    (costs.socket_alpha_us, costs.socket_overhead_us) = times.latency_us();
    (costs.socket_us_per_byte, costs.socket_work_us_per_byte) =
        times.byte_us(processor_us_per_byte);
    (costs.spin_us, costs.wake_us) = pair.sleep(times.hop_us)?;
    costs.reduce_us_per_byte = reduction();
    Ok(costs)
}

/// A number for each rank's host, alike on ranks that share one.
fn hosts(communicator: &Communicator) -> Result<Vec<u64>> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let name = format!("{boot}{}", namespace.display());
    let digest = name.bytes().fold(0, |digest, byte| {
        SplitMix64::stream(digest, byte.into()).next_u64()
    });
    let mut all = vec![0; communicator.world_size()];
    communicator.all_gather(&[digest], &mut all)?;
    Ok(all)
}

/// Rank 0 and another, seen from any rank.
struct Pair<'a> {
    communicator: &'a Communicator,
    /// The two alone; `None` on the others. They poll as ranks do that have learnt nothing yet.
    alone: Option<Communicator>,
}

impl Pair<'_> {
    fn new(communicator: &Communicator, other: usize) -> Result<Pair<'_>> {
        let rank = communicator.rank();
        let is_part = rank == 0 || rank == other;
        let alone = communicator.split(is_part.then_some(0), rank as i64)?;
        Ok(Pair {
            communicator,
            alone,
        })
    }

    /// The median of what `part` returns on rank 0, in microseconds; 0 on the other ranks. The
    /// argument of `part` is true on rank 0.
    fn median_us(&self, part: impl Fn(&Communicator, bool) -> Result<f64>) -> Result<f64> {
        let mut times_us = Vec::with_capacity(ROUNDS);
        if let Some(alone) = &self.alone {
            let is_first = alone.rank() == 0;
            for _ in 0..ROUNDS {
                alone.barrier()?;
                times_us.push(part(alone, is_first)?);
            }
        }
        self.communicator.barrier()?;
        // The first makes plans.
        Ok(times_us.get(1..).map_or(0.0, median))
    }

    /// `count` messages in one direction, and an answer; what each took.
    fn stream_us(&self, count: usize, elements: usize) -> Result<f64> {
        let mut data = vec![1f32; elements];
        let data = std::cell::RefCell::new(&mut data);
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

    /// Large messages in both directions at once; what a byte took of time, and of rank 0's
    /// processor.
    fn exchange_us_per_byte(&self) -> Result<(f64, f64)> {
        let input = vec![1f32; LARGE * LARGE_MESSAGES];
        let output = std::cell::RefCell::new(vec![0f32; input.len()]);
        let bytes = size_of_val(&input[..]) as f64;
        let of_clock = |clock: &dyn Fn() -> f64| {
            self.median_us(|pair, _| {
                let begun = clock();
                pair.sendrecv(&input, &mut output.borrow_mut()[..])?;
                Ok((clock() - begun) * 1e6 / bytes)
            })
        };
        let start = Instant::now();
        let wall = of_clock(&|| start.elapsed().as_secs_f64())?;
        Ok((wall, of_clock(&processor_s)?))
    }

    fn times(&self) -> Result<(LinkTimes, f64)> {
        let small = [0f32; 2];
        let hop_us = self.median_us(|communicator, is_first| {
            let begun = Instant::now();
            if is_first {
                communicator.send(&small, peer(communicator), TAG)?;
            } else {
                communicator.recv(&mut [0f32; 2], peer(communicator), TAG)?;
            }
            answer(communicator, is_first)?;
            Ok(begun.elapsed().as_secs_f64() * 1e6 / 2.0)
        })?;
        let (exchange_us_per_byte, processor_us_per_byte) = self.exchange_us_per_byte()?;
        let large_us = self.stream_us(LARGE_MESSAGES, LARGE)?;
        let times = LinkTimes {
            hop_us,
            message_us: self.stream_us(SMALL_MESSAGES, small.len())?,
            one_way_us_per_byte: large_us / (LARGE * size_of::<f32>()) as f64,
            exchange_us_per_byte,
        };
        Ok((times, processor_us_per_byte))
    }

    /// How long the other rank polls before it sleeps, and what waking it takes: by what a message
    /// takes longer that comes after a pause.
    fn sleep(&self, hop_us: f64) -> Result<(f64, f64)> {
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
        // Rank 0 sleeps, too, while the other one wakes, if that takes long.
        let wakes = if longest_us / 2.0 > spin_us { 2.0 } else { 1.0 };
        Ok((spin_us, longest_us / wakes))
    }
}

/// The other one of a pair.
fn peer(pair: &Communicator) -> usize {
    1 - pair.rank()
}

/// An empty message back.
fn answer(communicator: &Communicator, is_first: bool) -> ringfold::Result<()> {
    match is_first {
        true => communicator.recv(&mut [0f32], peer(communicator), TAG),
        false => communicator.send(&[0f32], peer(communicator), TAG),
    }
}

/// The time that this thread has had a core.
fn processor_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// What combining a byte takes, in a cache.
fn reduction() -> f64 {
    let (mut sum, other) = (vec![1f32; COMBINED], vec![1f32; COMBINED]);
    let times_us = (0..ROUNDS).map(|_| {
        let begun = Instant::now();
        for (sum, other) in sum.iter_mut().zip(std::hint::black_box(&other)) {
            *sum += other;
        }
        std::hint::black_box(&mut sum);
        begun.elapsed().as_secs_f64() * 1e6 / (COMBINED * size_of::<f32>()) as f64
    });
    median(&times_us.collect::<Vec<_>>())
}
