//! Probes calls by two methods in turn, at the start of a communicator, and sets constants from the
//! results for all its ranks.
//!
//! The probes are ordinary calls on memory that the user never sees, so they end like all calls if
//! a rank fails or the time for connecting is over. The probes are timed as by `ringfold perf`:
//! every rank rewrites its input, all ranks meet, and the slowest rank's time counts. Rank 0
//! decides and sends its constants.

use std::time::{Duration, Instant};

use super::choice::TUNING_LOG;
use super::{Communicator, Counts, Request};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::tune::Constants;
use crate::tune::constants::TEXT_BYTES_MAX;
use crate::tune::fit::Pairs;
use crate::tune::limits::NEVER;
use crate::tune::probe::{PROBE_CASES, ProbeCase};
use crate::types::{DType, Op};

/// Time after which no further call begins for a case: a third of the time that probes may add to
/// connecting.
const BUDGET_US: f64 = 3000.0;

/// Number of pairs of calls at each size, after one pair that makes plans and is not counted.
const ROUNDS: usize = 7;

/// Bytes of a message by which reading is probed.
const READING_BYTES: usize = 512 << 10;

/// Bytes of a cache line, or fewer.
const LINE_BYTES: usize = 64;

/// Probes the doubtful choices and sets constants from the results. Every rank of the communicator
/// calls this.
pub fn probe(communicator: &mut Communicator) -> Result<()> {
    for case in PROBE_CASES {
        let (samples, elapsed) = try_both(communicator, case)?;
        if communicator.rank() == 0 {
            log_samples(case, &samples, elapsed);
        }
        let asked = case.sizes.iter().zip(samples).map(|(bytes, pairs)| {
            let (counts, nothing) = (Counts::Even(0), Region::EMPTY);
            let request = Request::new(case.collective, DType::F32, counts, nothing, nothing);
            (communicator.question(&request, *bytes, false), pairs)
        });
        let asked: Vec<_> = asked.collect();
        let tuning = &mut communicator.policy.tuning;
        tuning.constants = case.settle(tuning, &asked);
    }
    let constants = &communicator.policy.tuning.constants;
    communicator.policy.tuning.constants = from_rank_0(communicator, constants)?;
    communicator.choices.forget();
    log::debug!(
        target: TUNING_LOG,
        "constants after the probe: {}",
        communicator.policy.tuning.constants
    );
    Ok(())
}

/// Whether ranks that read messages from each other's memory are quicker than ranks that copy them
/// through cells: the same answer on all ranks. Every rank of the communicator calls this, and has
/// agreed that all can read; afterwards no messages are read.
///
/// The first two ranks send a message there and back. Both ends copy through cells at the same
/// time, but a rank with messages in both directions serves both ends, so that time counts twice.
pub fn is_reading_quicker(communicator: &Communicator) -> Result<bool> {
    let set_bytes_min = |bytes_min| {
        let set = |engine: &mut Engine| engine.set_read_bytes_min(bytes_min);
        communicator.driver.with_engine(set);
    };
    let mut pairs = Pairs::default();
    if communicator.rank() < 2 {
        let mut data = vec![1u8; READING_BYTES];
        for round in 0..=ROUNDS {
            let mut time_us = |bytes_min| -> Result<f64> {
                set_bytes_min(bytes_min);
                let begun = Instant::now();
                there_and_back(communicator, &mut data)?;
                Ok(begun.elapsed().as_secs_f64() * 1e6)
            };
            let pair = [time_us(1)?, 2.0 * time_us(NEVER)?];
            if round > 0 {
                pairs.0.push(pair);
            }
        }
    }
    let [read, copied] = pairs.medians();
    let mut is_quicker = [u8::from(pairs.is_clear() && read < copied)];
    communicator.broadcast(&mut is_quicker, 0)?;
    if communicator.rank() == 0 {
        log::debug!(
            target: TUNING_LOG,
            "probed reading {READING_BYTES} bytes there and back: {read:.0} us, copying at both \
             ends {copied:.0} us"
        );
    }
    Ok(is_quicker == [1])
}

/// Sends `data` from rank 0 to rank 1 and back.
fn there_and_back(communicator: &Communicator, data: &mut [u8]) -> Result<()> {
    let peer = 1 - communicator.rank();
    if peer == 1 {
        communicator.send(data, peer, 0)?;
    }
    communicator.recv(data, peer, 0)?;
    if peer == 0 {
        communicator.send(data, peer, 0)?;
    }
    Ok(())
}

/// Runs calls of both methods at all sizes, in turn, while there is time. Returns the pairs of
/// times for each size, which are the slowest rank's, and the time spent.
fn try_both(communicator: &mut Communicator, case: &ProbeCase) -> Result<(Vec<Pairs>, Duration)> {
    let sizes = case.sizes;
    let longest = sizes.iter().max().map_or(0, |bytes| *bytes as usize);
    // Not zeros: the system would not allocate the pages of zeros yet.
    let mut data = vec![1f32; longest / size_of::<f32>()];
    let start = Instant::now();
    let mut samples = vec![Pairs::default(); sizes.len()];
    let rounds = (0..=ROUNDS).flat_map(|_| sizes);
    let ways = [case.tried.0, case.known.0];
    let calls = rounds.flat_map(|bytes| ways.map(|way| (*bytes, way)));
    let mut times_us = Vec::with_capacity(2 * (ROUNDS + 1) * sizes.len());
    for (bytes, way) in calls {
        let data = &mut data[..bytes as usize / size_of::<f32>()];
        communicator.force_algorithm(Some(way));
        // The first call finds lines where the other method has left them; its choice is remembered
        // for the second call.
        let mut is_time_left = meet(communicator, data, start)?;
        if is_time_left {
            communicator.all_reduce(data, Op::Sum)?;
            is_time_left = meet(communicator, data, start)?;
        }
        if is_time_left {
            let begun = Instant::now();
            communicator.all_reduce(data, Op::Sum)?;
            times_us.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        communicator.force_algorithm(None);
        if !is_time_left {
            break;
        }
    }
    communicator.all_reduce(&mut times_us, Op::Max)?;
    let pairs = times_us.chunks_exact(2).skip(sizes.len());
    for (number, pair) in pairs.enumerate() {
        samples[number % sizes.len()].0.push([pair[0], pair[1]]);
    }
    Ok((samples, start.elapsed()))
}

/// Rewrites the data and meets the other ranks. Returns whether there is time for another call, on
/// which all ranks agree.
fn meet(communicator: &Communicator, data: &mut [f32], start: Instant) -> Result<bool> {
    for line in data.chunks_mut(LINE_BYTES / size_of::<f32>()) {
        line[0] = 0.0;
    }
    let mut elapsed_us = [start.elapsed().as_secs_f64() * 1e6];
    communicator.all_reduce(&mut elapsed_us, Op::Max)?;
    Ok(elapsed_us[0] < BUDGET_US)
}

/// Returns rank 0's constants.
fn from_rank_0(communicator: &Communicator, own: &Constants) -> Result<Constants> {
    let mut text = own.to_string().into_bytes();
    text.resize(TEXT_BYTES_MAX, 0);
    communicator.broadcast(&mut text, 0)?;
    let end = text.iter().position(|byte| *byte == 0);
    let constants = Constants::decode(&text[..end.unwrap_or(TEXT_BYTES_MAX)]);
    let what = "invalid constants; use the same version of ringfold on all ranks";
    constants.ok_or_else(|| Error::corrupt(0, what))
}

fn log_samples(case: &ProbeCase, samples: &[Pairs], elapsed: Duration) {
    let elapsed_ms = elapsed.as_secs_f64() * 1e3;
    if samples.iter().all(|pairs| pairs.0.is_empty()) {
        log::debug!(
            target: TUNING_LOG,
            "no idle time to probe {}: other processes need the cores ({elapsed_ms:.1} ms)",
            case.collective
        );
        return;
    }
    let each = case.sizes.iter().zip(samples);
    let text: Vec<String> = each
        .map(|(bytes, pairs)| {
            let [tried, known] = pairs.medians();
            let sign = match pairs.is_clear() {
                true if tried < known => "<",
                true => ">",
                false => "~",
            };
            format!("{bytes} bytes {tried:.2} {sign} {known:.2}")
        })
        .collect();
    log::debug!(
        target: TUNING_LOG,
        "probed {} by {} against {}: medians of {} calls in microseconds: {}; after \
         {elapsed_ms:.1} ms",
        case.collective,
        case.tried.0,
        case.known.0,
        samples.first().map_or(0, |pairs| pairs.0.len()),
        text.join(", ")
    );
}
