//! `ringfold perf`: measures a collective and checks its results, as nccl-tests does.
//!
//! The command is its own launcher: without another launcher, it starts itself once per rank. Every
//! rank then runs [`take_part`]; rank 0 also reports.

mod arguments;
mod curve;
mod files;
mod on_device;
mod refused;
mod report;
mod table;

use std::io::Write;
use std::thread;

use anyhow::Result;
use ringfold::{Bind, Communicator, Config, Error};

use crate::bench::{Bench, Case, JobFlags, Size};
use crate::launch::itself;
use crate::status::usage;

pub use arguments::PerfArguments;
use files::PerfRun;
use report::PerfReport;

/// Measures, and returns the exit status: 1 if an element was wrong.
pub fn run(arguments: PerfArguments) -> Result<u8> {
    let checked = arguments.check();
    let checked = checked.and_then(|()| on_device::check(&arguments));
    checked.map_err(usage)?;
    if let (Some(rank), false) = (arguments.job.rank()?, arguments.threads) {
        return take_part(&arguments, rank, arguments.job.config());
    }
    lines(&arguments, arguments.job.count()).map_err(usage)?;
    for path in [&arguments.csv, &arguments.json, &arguments.plot]
        .into_iter()
        .flatten()
    {
        crate::output::check(path)?;
    }
    if arguments.threads {
        return on_threads(arguments);
    }
    let largest = arguments.sizes(1)?.last().copied().unwrap_or(0);
    let ended = "the measurement ends";
    Ok(arguments.job.launch("perf", largest, ended)?.status())
}

/// Runs all ranks as threads of this process.
fn on_threads(arguments: PerfArguments) -> Result<u8> {
    let ranks = arguments.job.count();
    // The error of one rank is enough, as among processes.
    let job = JobFlags {
        launched: true,
        ..arguments.job.clone()
    };
    let arguments = &PerfArguments { job, ..arguments };
    let name = u64::from_le_bytes(ringfold::internals::control::random()?);
    let address = &format!("unix:@ringfold-perf-{name:x}");
    let statuses = thread::scope(|scope| {
        let rank = |rank| {
            let config = Config {
                rank: Some(rank),
                world_size: Some(ranks),
                address: Some(address.clone()),
                bind: Some(Bind::None),
                ..arguments.job.config()
            };
            scope.spawn(move || take_part(arguments, rank, config))
        };
        let ranks: Vec<_> = (0..ranks).map(rank).collect();
        let ends = ranks.into_iter().map(|rank| rank.join());
        // The panic of a rank is shown where it is.
        let statuses = ends.map(|end| end.unwrap_or(Ok(PANICKED)));
        statuses.collect::<Result<Vec<u8>>>()
    })?;
    Ok(statuses.into_iter().max().unwrap_or(0))
}

/// The status of a rank that panicked, as Rust has it.
const PANICKED: u8 = 101;

/// Runs one rank, from joining to leaving; messages name it by `rank`.
fn take_part(arguments: &PerfArguments, rank: usize, config: Config) -> Result<u8> {
    let is_launched = arguments.job.launched;
    let mut communicator = match join(arguments, config) {
        Ok(communicator) => communicator,
        Err(error) => return Ok(itself::fail_as(rank, is_launched, error)),
    };
    let swept = sweep(&mut communicator, arguments, &mut std::io::stdout());
    let wrong = swept.and_then(|wrong| {
        communicator.close()?;
        Ok(wrong)
    });
    match wrong {
        Ok(wrong) => Ok(u8::from(wrong > 0)),
        // Reported before the communicator is dropped, which may take longer than the launcher's
        // grace period for survivors.
        Err(error) => {
            // An error that only this rank knows of, such as a closed output.
            if error.downcast_ref::<Error>().is_none() {
                communicator.abort(&format!("{error:#}"));
            }
            Ok(itself::fail_as(rank, is_launched, error))
        }
    }
}

fn join(arguments: &PerfArguments, config: Config) -> Result<Communicator> {
    ringfold::env::init_logging()?;
    let config = Config {
        max_channels: arguments.channels,
        late_rank: arguments.late_rank,
        straggler: arguments.straggler,
        slice_bytes: arguments.slice_bytes.map(usize::try_from).transpose()?,
        weights: arguments.weights.clone(),
        ..config
    };
    Ok(ringfold::internals::setup::connect_slowed(
        config,
        arguments.injection(),
    )?)
}

/// Measures all requested cases. Rank 0 prints the table to `stdout` and returns the number of
/// wrong elements. The others exit successfully, so that rank 0 has the time to write.
fn sweep(
    communicator: &mut Communicator,
    arguments: &PerfArguments,
    stdout: &mut dyn Write,
) -> Result<u64> {
    let world_size = communicator.world_size();
    let lines = lines(arguments, world_size)?;
    let max_bytes = lines.iter().map(|(_, size)| size.bytes).max().unwrap_or(0);
    let is_rank_0 = communicator.rank() == 0;
    let mut bench = Bench::new(communicator, arguments.settings(), max_bytes)?;
    let participants = bench.introduce()?;
    let weights = bench.weights();
    let mut report = match is_rank_0 {
        true => {
            let run = PerfRun::begin(arguments, arguments.sizes(1)?, participants);
            let steps = lines.len() as u64;
            Some(PerfReport::begin(run, weights.as_deref(), steps, stdout)?)
        }
        false => None,
    };
    let mut cycle = 0;
    while arguments.run_cycles == 0 || cycle < arguments.run_cycles {
        for &(case, size) in &lines {
            if let Some(report) = &report {
                report.announce(size.bytes);
            }
            let Some(out) = bench.measure(case, size, false)? else {
                continue;
            };
            let in_place = bench.measure(case, size, true)?;
            if let Some(report) = &mut report {
                report.add(out, in_place)?;
            }
        }
        cycle = cycle.saturating_add(1);
        if let Some(report) = &report {
            report.next_cycle();
        }
    }
    let stats = match arguments.stats {
        true => Some(bench.gather_stats()?),
        false => None,
    };
    bench.close()?;
    report.map_or(Ok(0), |report| report.conclude(stats))
}

/// Returns the lines of the table: every case with every size that it can have, each once.
fn lines(arguments: &PerfArguments, world_size: usize) -> Result<Vec<(Case, Size)>> {
    let mut lines = Vec::new();
    for case in arguments.cases(world_size)? {
        if let Some(root) = case.root.filter(|&root| root >= world_size) {
            let text = format!(
                "there is no root rank {root}; ranks are 0 to {}",
                world_size - 1
            );
            return Err(Error::InvalidArgument(text).into());
        }
        let asked = arguments.sizes(case.dtype.size_bytes() as u64)?;
        let mut sizes: Vec<Size> = asked
            .into_iter()
            .map(|bytes| Size::nearest(arguments.collective, case.dtype, world_size, bytes))
            .collect();
        sizes.dedup();
        lines.extend(sizes.into_iter().map(|size| (case, size)));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::arguments::tests::arguments;
    use super::*;

    /// Measures on ranks that are threads; returns the table's lines without comments.
    fn swept(ranks: usize, line: &str) -> Vec<String> {
        let arguments = arguments(line);
        let mut tables = vec![Vec::new(); ranks];
        std::thread::scope(|scope| {
            let arguments = &arguments;
            let ranks: Vec<_> = Communicator::threads(ranks)
                .into_iter()
                .zip(&mut tables)
                .map(|(mut communicator, table)| {
                    scope.spawn(move || sweep(&mut communicator, arguments, table))
                })
                .collect();
            for rank in ranks {
                assert_eq!(rank.join().unwrap().unwrap(), 0, "{line}");
            }
        });
        let table = String::from_utf8(tables.swap_remove(0)).unwrap();
        let rows = table.lines().filter(|line| !line.starts_with('#'));
        rows.map(str::to_owned).collect()
    }

    /// Returns the numbers of wrong elements, out of place and in place.
    fn wrong(row: &str) -> [&str; 2] {
        let words: Vec<&str> = row.split_whitespace().collect();
        [words[8], words[12]]
    }

    #[test]
    fn every_reduction_of_every_type_is_exact() {
        for collective in ["all_reduce", "reduce", "reduce_scatter"] {
            let rows = swept(
                3,
                &format!("{collective} -b 5002 -e 5002 -n 1 -w 0 -o all -d all"),
            );
            assert_eq!(rows.len(), 64 + 36 + 7, "{collective}");
            assert!(
                rows.iter().all(|row| wrong(row) == ["0", "0"]),
                "{collective}"
            );
        }
    }

    #[test]
    fn all_ranks_together_say_who_was_late() {
        for collective in ["all_reduce", "all_gather"] {
            let rows = swept(3, &format!("{collective} -b 8 -e 1M -f 128 -n 3 --stats"));
            assert_eq!(rows.len(), 3, "{collective}");
        }
    }

    #[test]
    fn every_movement_from_every_root_is_exact() {
        for collective in ["broadcast", "all_gather", "gather", "scatter"] {
            let rows = swept(
                3,
                &format!("{collective} -b 5002 -e 5002 -n 1 -w 0 -d all -r all"),
            );
            assert!(rows.len() >= 15, "{collective}");
            assert!(
                rows.iter().all(|row| wrong(row) == ["0", "0"]),
                "{collective}"
            );
        }
    }

    #[test]
    fn what_has_no_in_place_form_says_so() {
        for collective in ["all_to_all", "sendrecv"] {
            let rows = swept(3, &format!("{collective} -b 8 -e 4K -f 8 -n 2"));
            assert_eq!(rows.len(), 4, "{collective}");
            assert!(
                rows.iter().all(|row| wrong(row) == ["0", "N/A"]),
                "{collective}"
            );
        }
    }

    #[test]
    fn a_barrier_has_one_line() {
        let rows = swept(3, "barrier -n 3");
        assert_eq!(rows.len(), 1);
        let words: Vec<&str> = rows[0].split_whitespace().collect();
        assert_eq!(words[..2], ["0", "0"]);
    }
}
