//! `tune sweep`: measures every way at every size, beside the default's pick.
//!
//! All ranks take the same turns: rounds, sizes within a round, and ways at a size, in an order
//! that is drawn for each round. Only rank 0 has the file and knows which measurements are missing;
//! before each size it tells the others. A way is requested by a rule, as by an operator, so that
//! the measured calls are those of a tuned job.

pub mod arguments;
mod placement;
mod record;
mod ways;

use std::collections::HashMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ringfold::internals::random::SplitMix64;
use ringfold::internals::tune::Rules;
use ringfold::{Communicator, Config};

use arguments::MORE_ITERATIONS;
pub use arguments::SweepArguments;
use record::{Record, Subject};
use ways::Candidate;

use super::rows::{Asked, Way};
use super::series;
use crate::bench::{Bench, Case, Measurement, Size, shuffled_order};
use crate::launch::itself;
use crate::numbers::{bytes_label, number};
use crate::output;
use crate::statistics::median;
use crate::status::usage;

/// Maximum number of candidates at one size.
const MAX_CANDIDATES: usize = 512;

/// Target duration of a measurement: short calls are repeated to reach it, as far as
/// [`MORE_ITERATIONS`] allows.
const MEASUREMENT_US: f64 = 3000.0;

/// Sweeps and returns the exit status: 1 if a checked element was wrong.
pub fn run(arguments: &SweepArguments) -> Result<u8> {
    arguments.check().map_err(usage)?;
    if let Some(rank) = arguments.job.rank()? {
        return take_part(arguments, rank);
    }
    let checked = arguments.check_root(arguments.job.count());
    checked.map_err(usage)?;
    let largest = arguments.sizes()?.last().copied().unwrap_or(0);
    let outcome = arguments.job.launch("sweep", largest, "the sweep ends")?;
    if let (true, Some(path)) = (outcome.interrupted, arguments.file()) {
        output::complain(&format!(
            "interrupted; run the same command to resume `{}`",
            path.display()
        ));
    }
    Ok(outcome.status())
}

/// Runs one rank, from joining to leaving.
fn take_part(arguments: &SweepArguments, rank: usize) -> Result<u8> {
    let swept = join(arguments).and_then(|mut communicator| {
        let wrong = Sweep::begin(&mut communicator, arguments)?.run()?;
        communicator.close()?;
        Ok(wrong)
    });
    let failed = |error| itself::fail_as(rank, arguments.job.launched, error);
    Ok(swept.map_or_else(failed, |wrong| u8::from(wrong > 0)))
}

fn join(arguments: &SweepArguments) -> Result<Communicator> {
    ringfold::env::init_logging()?;
    let most = arguments.channels.iter().max();
    Ok(Communicator::connect(Config {
        max_channels: most.map(|&most| usize::try_from(most)).transpose()?,
        ..arguments.job.config()
    })?)
}

/// A sweep in progress, on one rank.
struct Sweep<'a> {
    arguments: &'a SweepArguments,
    bench: Bench<'a>,
    case: Case,
    /// The communicator's own rules.
    own: Rules,
    sizes: Vec<(Size, Vec<Candidate>)>,
    /// The report, on rank 0 only.
    report: Option<SweepReport>,
    wrong: u64,
}

/// The state that only rank 0 has.
struct SweepReport {
    record: Record,
    progress: ProgressBar,
    /// Times of each way so far, by bytes and the way's index.
    times_us: HashMap<(u64, usize), Vec<f64>>,
}

impl<'a> Sweep<'a> {
    fn begin(
        communicator: &'a mut Communicator,
        arguments: &'a SweepArguments,
    ) -> Result<Sweep<'a>> {
        let case = arguments.case()?;
        let world_size = communicator.world_size();
        arguments.check_root(world_size)?;
        let subject = Subject::new(arguments, &communicator.hosts_of_ranks())?;
        let mut sizes: Vec<Size> = arguments
            .sizes()?
            .into_iter()
            .map(|bytes| Size::nearest(arguments.collective, case.dtype, world_size, bytes))
            .filter(|size| size.bytes > 0)
            .collect();
        sizes.dedup();
        let largest = sizes.last().map_or(0, |size| size.bytes);
        let is_rank_0 = communicator.rank() == 0;
        let own = communicator.rules().clone();
        let bench = Bench::new(communicator, arguments.settings(), largest)?;
        let mut sweep = Sweep {
            arguments,
            bench,
            case,
            own,
            sizes: Vec::new(),
            report: None,
            wrong: 0,
        };
        for size in sizes {
            let request = sweep.bench.request_of(case, size, arguments.in_place);
            let request = request.with_context(|| arguments.no_such_form())?;
            let communicator = &mut *sweep.bench.communicator;
            let candidates = ways::candidates(communicator, arguments, &sweep.own, &request)?;
            if candidates.len() > MAX_CANDIDATES {
                bail!("more than {MAX_CANDIDATES} candidates at one size; name fewer --channels");
            }
            sweep.sizes.push((size, candidates));
        }
        if is_rank_0 {
            sweep.report = Some(sweep.open(subject)?);
        }
        Ok(sweep)
    }

    /// Opens the file, and loads the results of an earlier run.
    fn open(&self, subject: Subject) -> Result<SweepReport> {
        let (record, resumed, rows) = Record::open(self.arguments, subject)?;
        let shown = self.arguments.output.display();
        let mut times_us: HashMap<(u64, usize), Vec<f64>> = HashMap::new();
        for row in rows {
            let is_default = row.asked == Asked::Default;
            let of_size = self.sizes.iter().find(|(size, _)| size.bytes == row.bytes);
            let Some((Size { bytes, .. }, candidates)) = of_size else {
                continue;
            };
            let now = candidates[0].row_way();
            if is_default
                && (&now.algorithm, &now.protocol) != (&row.way.algorithm, &row.way.protocol)
            {
                bail!(
                    "in `{shown}` the default picks {}/{} at {bytes} bytes, and now {}/{}; choose \
                     another --output, or --overwrite",
                    row.way.algorithm,
                    row.way.protocol,
                    now.algorithm,
                    now.protocol,
                );
            }
            let is_it = |candidate: &Candidate| {
                candidate.row_way() == row.way && candidate.is_default == is_default
            };
            if let (Some(index), Some(time)) = (candidates.iter().position(is_it), row.time_us()) {
                times_us.entry((*bytes, index)).or_default().push(time);
            }
        }
        if resumed > 0 {
            output::complain(&format!(
                "resuming `{shown}`, which has {resumed} measurements"
            ));
        }
        let steps: usize = self
            .sizes
            .iter()
            .map(|(_, candidates)| candidates.len())
            .sum();
        let progress = ProgressBar::new(steps as u64 * u64::from(self.arguments.rounds));
        progress.set_style(ProgressStyle::with_template(
            "{bar:30} {pos}/{len} {msg} {eta} left",
        )?);
        Ok(SweepReport {
            record,
            progress,
            times_us,
        })
    }

    /// Runs all rounds. Returns the number of wrong elements.
    fn run(mut self) -> Result<u64> {
        for round in 0..self.arguments.rounds {
            for at in 0..self.sizes.len() {
                self.turns(round, at)?;
            }
        }
        if let Some(report) = &self.report {
            report.progress.finish_and_clear();
            if self.arguments.file().is_some() {
                output::print(&summary(&report.record)?)?;
            }
        }
        Ok(self.wrong)
    }

    /// Measures one size in one round.
    fn turns(&mut self, round: u32, at: usize) -> Result<()> {
        let count = self.sizes[at].1.len();
        let (wanted, iters) = self.agree(round, at)?;
        self.bench.settings.iters = iters;
        // The same on all ranks, and in a sweep that resumes.
        let mut random = SplitMix64::stream(self.sizes[at].0.bytes, round.into());
        for index in shuffled_order(count, &mut random) {
            if !wanted[index] {
                continue;
            }
            let row = self.measure(at, index)?;
            self.note(round, at, index, row)?;
        }
        self.bench.communicator.set_rules(self.own.clone());
        Ok(())
    }

    /// Agrees on the ways to measure, and on the iterations: rank 0 decides, and tells all.
    fn agree(&mut self, round: u32, at: usize) -> Result<(Vec<bool>, u32)> {
        let (size, candidates) = &self.sizes[at];
        let mut told = vec![0.0; candidates.len() + 1];
        if let Some(report) = &self.report {
            for (index, candidate) in candidates.iter().enumerate() {
                let is_there = report.record.has(candidate, size.bytes, round);
                let is_hopeless = report.is_hopeless(size.bytes, index, self.arguments.give_up);
                let is_wanted = !is_there && !is_hopeless;
                told[index] = f64::from(u8::from(is_wanted));
                if !is_wanted {
                    report.progress.inc(1);
                }
            }
            told[candidates.len()] = report.best_us(size.bytes).unwrap_or(0.0);
        }
        let all = self.bench.gather_numbers(&told)?;
        let mut best_us = all[0][candidates.len()];
        let wanted = all[0][..candidates.len()].iter();
        let wanted: Vec<bool> = wanted.map(|&number| number > 0.0).collect();
        if best_us == 0.0 && wanted.contains(&true) {
            // The time of a call is not known yet.
            self.bench.settings.iters = self.arguments.iters;
            best_us = self.measure(at, 0)?.median_us();
        }
        let fitting = (MEASUREMENT_US / best_us.max(0.01)) as u32;
        let least = self.arguments.iters;
        Ok((wanted, fitting.clamp(least, least * MORE_ITERATIONS)))
    }

    fn measure(&mut self, at: usize, index: usize) -> Result<Measurement> {
        let (size, candidates) = &self.sizes[at];
        let (size, candidate) = (*size, &candidates[index]);
        if let Some(report) = &self.report {
            let (algorithm, protocol) = candidate.way;
            let size = bytes_label(size.bytes as f64);
            let name = self.arguments.collective;
            report
                .progress
                .set_message(format!("{name} {size} {algorithm}/{protocol}"));
        }
        self.bench.communicator.set_rules(candidate.rules.clone());
        let arguments = self.arguments;
        let row = self.bench.measure(self.case, size, arguments.in_place)?;
        let row = row.with_context(|| arguments.no_such_form())?;
        // Nothing else detects a difference between the library's explanation and its choice.
        let wanted = format!("{}/{}", candidate.way.0, candidate.way.1);
        let done = format!("{}/{}", row.algorithm, row.protocol);
        if wanted != done {
            bail!(
                "at {} bytes the library explained its choice as {wanted}, but used {done}",
                size.bytes
            );
        }
        Ok(row)
    }

    /// Adds a measurement to the file.
    fn note(&mut self, round: u32, at: usize, index: usize, row: Measurement) -> Result<()> {
        self.wrong += row.wrong.unwrap_or(0);
        let Some(report) = &mut self.report else {
            return Ok(());
        };
        let (Size { bytes, .. }, candidates) = &self.sizes[at];
        let times = report.times_us.entry((*bytes, index)).or_default();
        times.push(row.median_us());
        report.record.add(&candidates[index], round, row)?;
        report.progress.inc(1);
        Ok(())
    }
}

impl SweepReport {
    /// Returns the least median time at this size.
    fn best_us(&self, bytes: u64) -> Option<f64> {
        let known = self.times_us.iter().filter(|((size, _), _)| *size == bytes);
        known.map(|(_, times)| median(times)).reduce(f64::min)
    }

    /// Whether this way took so much longer than the best that it need not be measured again. The
    /// default is always measured.
    fn is_hopeless(&self, bytes: u64, index: usize, give_up: f64) -> bool {
        let (Some(times), Some(best)) = (self.times_us.get(&(bytes, index)), self.best_us(bytes))
        else {
            return false;
        };
        index > 0 && median(times) > give_up * best
    }
}

/// Returns a line for each size: the times of the default and of the best other way.
fn summary(record: &Record) -> Result<String> {
    let mut text = String::new();
    for series in series::series(&record.table()?.rows, &[])? {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# {}", series.name());
        let _ = writeln!(
            text,
            "# {:>9}  {:<28} {:>10}  {:<28} {:>10}  {:>6}  interval",
            "size", "default", "us", "best other", "us", "ratio"
        );
        for (&bytes, point) in &series.points {
            let (Some(pick), Some((way, shots))) = (&point.pick, point.best_other()) else {
                continue;
            };
            let ratio = point.curve.over(shots);
            let _ = writeln!(
                text,
                "{:>11}  {:<28} {:>10}  {:<28} {:>10}  {:>6.2}  {:.2} to {:.2}",
                bytes,
                name(pick),
                number(point.curve.median_us(), 10),
                name(way),
                number(shots.median_us(), 10),
                ratio.middle,
                ratio.low,
                ratio.high,
            );
        }
    }
    Ok(text)
}

/// Names a way, without its channels if it has only one, as nearly all ways do.
fn name(way: &Way) -> String {
    match way.channels {
        1 => format!("{}/{}", way.algorithm, way.protocol),
        _ => way.to_string(),
    }
}
