//! Calls by both ways around a limit, at the start of a communicator, and the limits that follow for all its ranks.
//!
//! They are ordinary calls on memory that nobody looks at, so they end like all calls when a rank fails or the time for
//! connecting is over. They are timed as `ringfold perf` does it: every rank rewrites its input, all meet, and the slowest
//! rank's time counts. Rank 0 decides and sends its table.

use std::time::{Duration, Instant};

use super::Communicator;
use crate::error::{Error, Result};
use crate::tune::Limits;
use crate::tune::limits::Overrides;
use crate::tune::probe::{Answer, DOUBTS, Doubt, Way};
use crate::types::{Collective, Op};

/// After this no further call begins for a doubt: a third of what connecting may cost more.
const BUDGET_US: f64 = 3000.0;

/// Pairs of calls at each size, after one that is not counted because it makes plans.
const ROUNDS: usize = 7;

/// Rank 0's table on its way: a text of [`Limits`] with zeros behind it.
const TABLE_BYTES: usize = 1024;

/// Bytes of a cache line, or fewer.
const LINE_BYTES: usize = 64;

/// Tries the doubted limits and sets what follows, except for those that rank 0's `overrides` name. `can_pull`: whether the
/// ranks can read each other's memory. Every rank of the communicator calls this.
pub fn probe(communicator: &mut Communicator, overrides: &Overrides, can_pull: bool) -> Result<()> {
    let mut limits = communicator.policy.tuning.limits;
    for doubt in DOUBTS
        .iter()
        .filter(|doubt| can_pull || !doubt.is_about_pull)
    {
        let (answers, elapsed) = try_both(communicator, doubt, limits)?;
        let settled = if overrides.names(doubt.name) {
            limits
        } else {
            doubt.settle(limits, &answers)
        };
        if communicator.rank() == 0 {
            log_answers(doubt, &answers, elapsed);
        }
        limits = from_rank_0(communicator, settled)?;
        communicator.set_limits(limits);
    }
    log::info!(target: "ringfold::tuning", "limits after the probe: {limits}");
    Ok(())
}

/// Calls by both ways at all sizes, in turn, while there is time. The times are the slowest rank's. Also says how long that took.
fn try_both(
    communicator: &mut Communicator,
    doubt: &Doubt,
    limits: Limits,
) -> Result<(Vec<Answer>, Duration)> {
    let sizes = doubt.sizes(limits);
    let longest = sizes.iter().max().map_or(0, |bytes| *bytes as usize);
    // Not zeros, of which the system would give no pages yet.
    let mut data = vec![1f32; longest / size_of::<f32>()];
    let mut gathered = match doubt.collective {
        Collective::AllGather => data.clone(),
        _ => Vec::new(),
    };
    let start = Instant::now();
    let answer = |bytes: &u64| Answer {
        bytes: *bytes,
        pairs: Vec::with_capacity(ROUNDS),
    };
    let mut answers: Vec<Answer> = sizes.iter().map(answer).collect();
    let rounds = (0..=ROUNDS).flat_map(|_| &sizes);
    let calls = rounds.flat_map(|bytes| [Way::Small, Way::Large].map(|way| (*bytes, way)));
    let mut times_us = Vec::with_capacity(2 * (ROUNDS + 1) * sizes.len());
    for (bytes, way) in calls {
        let whole = bytes as usize / size_of::<f32>();
        let block = whole / communicator.world_size();
        let is_gathered = doubt.collective == Collective::AllGather;
        let data = &mut data[..if is_gathered { block } else { whole }];
        if !meet(communicator, data, start)? {
            break;
        }
        communicator.set_limits(doubt.forcing(limits, way));
        let begun = Instant::now();
        if is_gathered {
            let into = &mut gathered[..block * communicator.world_size()];
            communicator.all_gather(data, into)?;
        } else {
            communicator.all_reduce(data, Op::Sum)?;
        }
        times_us.push(begun.elapsed().as_secs_f64() * 1e6);
        communicator.set_limits(limits);
    }
    communicator.all_reduce(&mut times_us, Op::Max)?;
    let pairs = times_us.chunks_exact(2).skip(sizes.len());
    for (number, pair) in pairs.enumerate() {
        answers[number % sizes.len()].pairs.push([pair[0], pair[1]]);
    }
    Ok((answers, start.elapsed()))
}

/// Rewrites the data and meets the other ranks. Whether there is time for another call, on which all agree.
fn meet(communicator: &Communicator, data: &mut [f32], start: Instant) -> Result<bool> {
    for line in data.chunks_mut(LINE_BYTES / size_of::<f32>()) {
        line[0] = 0.0;
    }
    let mut elapsed_us = [start.elapsed().as_secs_f64() * 1e6];
    communicator.all_reduce(&mut elapsed_us, Op::Max)?;
    Ok(elapsed_us[0] < BUDGET_US)
}

/// What rank 0 gave.
fn from_rank_0(communicator: &Communicator, own: Limits) -> Result<Limits> {
    let mut table = own.to_string().into_bytes();
    table.resize(TABLE_BYTES, 0);
    communicator.broadcast(&mut table, 0)?;
    let end = table.iter().position(|byte| *byte == 0);
    Limits::decode(&table[..end.unwrap_or(TABLE_BYTES)]).ok_or_else(|| Error::Corrupt {
        peer: 0,
        what: "a table of limits that means nothing; use one version everywhere".into(),
        site: None,
    })
}

fn log_answers(doubt: &Doubt, answers: &[Answer], elapsed: Duration) {
    let text: Vec<String> = answers
        .iter()
        .map(|answer| {
            let [small, large] = answer.medians();
            let verdict = match answer.verdict() {
                Some(Way::Small) => "<",
                Some(Way::Large) => ">",
                None => "~",
            };
            format!("{} bytes {small:.2} {verdict} {large:.2}", answer.bytes)
        })
        .collect();
    log::info!(
        target: "ringfold::tuning",
        "probed {}: µs of the way up to it and of the way beyond, medians of {} calls: {}; after {:.1} ms",
        doubt.name,
        answers.first().map_or(0, |answer| answer.pairs.len()),
        text.join(", "),
        elapsed.as_secs_f64() * 1e3
    );
}
