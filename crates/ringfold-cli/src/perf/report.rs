//! Rank 0's report of the measurements: table, files, progress, verdict.

use std::io::Write;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use ringfold::Stats;

use super::curve;
use super::files::{self, PerfRun};
use super::table::{self, Extent};
use crate::bench::{Measurement, stats};
use crate::numbers::bytes_label;
use crate::output::{self, Csv};

/// The report of one run.
pub struct PerfReport<'a> {
    run: PerfRun<'a>,
    csv: Option<Csv<Measurement>>,
    json: Option<Box<dyn Write>>,
    progress: ProgressBar,
    stdout: &'a mut dyn Write,
    extent: Extent,
}

impl<'a> PerfReport<'a> {
    /// Opens the files, so that an unwritable path fails before the measurement, and prints the
    /// header. `steps` is the number of sizes to measure.
    pub fn begin(
        run: PerfRun<'a>,
        weights: Option<&[u32]>,
        steps: u64,
        stdout: &'a mut dyn Write,
    ) -> Result<PerfReport<'a>> {
        let arguments = run.arguments;
        if let Some(path) = &arguments.plot {
            output::open(path)?;
        }
        // The progress bar is hidden if stderr is no terminal.
        let progress = ProgressBar::new(steps);
        progress.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")?);
        let csv = arguments.csv.as_deref();
        let csv = csv.map(|path| Csv::create(path, files::columns(arguments)));
        let mut report = PerfReport {
            csv: csv.transpose()?,
            json: arguments.json.as_deref().map(output::open).transpose()?,
            run,
            progress,
            stdout,
            extent: Extent::of_stdout(),
        };
        let participants = &report.run.participants;
        let header = table::header(arguments, participants, weights, report.extent);
        report.print(&header)?;
        Ok(report)
    }

    /// Shows the current measurement in the progress bar.
    pub fn announce(&self, bytes: u64) {
        let size = bytes_label(bytes as f64);
        self.progress
            .set_message(format!("{} {size}", self.run.arguments.collective));
    }

    /// Adds one size's measurements.
    pub fn add(&mut self, out: Measurement, in_place: Option<Measurement>) -> Result<()> {
        let arguments = self.run.arguments;
        self.print(&table::row(arguments, &out, in_place.as_ref(), self.extent))?;
        for row in [Some(out), in_place].into_iter().flatten() {
            if let Some(csv) = &mut self.csv {
                csv.add(&row)?;
            }
            self.run.add(row);
        }
        // One step per size, with two placements or one.
        self.progress.inc(1);
        Ok(())
    }

    /// Restarts the progress bar for another cycle.
    pub fn next_cycle(&self) {
        self.progress.reset();
    }

    /// Prints the footer and, if requested, the lateness; writes the files; returns the number of
    /// wrong elements.
    pub fn conclude(mut self, stats: Option<Vec<Stats>>) -> Result<u64> {
        self.progress.finish_and_clear();
        let arguments = self.run.arguments;
        let average_busbw_gbps = self.run.average_busbw_gbps();
        self.print(&table::footer(
            arguments,
            self.run.wrong,
            average_busbw_gbps,
        ))?;
        if let Some(stats) = &stats {
            self.print(&stats::table(stats))?;
        }
        let run = &self.run;
        if let Some(json) = self.json {
            let document = files::document(run, stats.as_deref());
            output::write_json(json, &document).context("cannot write the JSON")?;
        }
        if let Some(path) = &arguments.plot {
            curve::draw(path, arguments, run.participants.len(), &run.rows)?;
        }
        Ok(run.wrong)
    }

    /// Writes to standard output, unless `--csv -` or `--json -` uses it.
    fn print(&mut self, text: &str) -> Result<()> {
        if self.run.arguments.stdout_is_data() {
            return Ok(());
        }
        let stdout = &mut self.stdout;
        let write = || {
            stdout.write_all(text.as_bytes())?;
            stdout.flush()
        };
        self.progress
            .suspend(write)
            .context("cannot write the table")
    }
}
