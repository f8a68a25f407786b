//! Rank 0's report of the measurements: table, files, progress, verdict.

use std::io::Write;
use std::time::SystemTime;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use ringfold::Stats;

use super::arguments::PerfArguments;
use super::curve;
use super::files;
use super::table;
use crate::bench::{Measurement, Participant, stats};
use crate::numbers::bytes_label;
use crate::output::{self, Csv};

/// The report of one run.
pub struct PerfReport<'a> {
    pub(super) arguments: &'a PerfArguments,
    pub(super) sizes: Vec<u64>,
    pub(super) participants: Vec<Participant>,
    /// The measurements, kept for the JSON and the plot.
    pub(super) rows: Vec<Measurement>,
    csv: Option<Csv>,
    json: Option<Box<dyn Write>>,
    progress: ProgressBar,
    pub(super) start_time: String,
    pub(super) wrong: u64,
    busbw_sum_gbps: f64,
    placements: u64,
    stdout: &'a mut dyn Write,
    extent: table::Extent,
}

impl<'a> PerfReport<'a> {
    /// Opens the files, so that an unwritable path fails before the measurement, and prints the
    /// header. `steps` is the number of sizes to measure.
    pub fn begin(
        arguments: &'a PerfArguments,
        sizes: Vec<u64>,
        participants: Vec<Participant>,
        weights: Option<&[u32]>,
        steps: u64,
        stdout: &'a mut dyn Write,
    ) -> Result<PerfReport<'a>> {
        if let Some(path) = &arguments.plot {
            output::open(path)?;
        }
        // The progress bar is hidden if stderr is no terminal.
        let progress = ProgressBar::new(steps);
        progress.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")?);
        let csv = arguments.csv.as_deref();
        let csv = csv.map(|path| Csv::create(path, files::heading(arguments)));
        let mut report = PerfReport {
            arguments,
            csv: csv.transpose()?,
            json: arguments.json.as_deref().map(output::open).transpose()?,
            sizes,
            participants,
            rows: Vec::new(),
            progress,
            start_time: table::utc(SystemTime::now()),
            wrong: 0,
            busbw_sum_gbps: 0.0,
            placements: 0,
            stdout,
            extent: table::Extent::of_stdout(),
        };
        let header = table::header(arguments, &report.participants, weights, report.extent);
        report.print(&header)?;
        Ok(report)
    }

    /// Shows the current measurement in the progress bar.
    pub fn announce(&self, bytes: u64) {
        let size = bytes_label(bytes as f64);
        self.progress
            .set_message(format!("{} {size}", self.arguments.collective));
    }

    /// Adds one size's measurements.
    pub fn add(&mut self, out: Measurement, in_place: Option<Measurement>) -> Result<()> {
        self.print(&table::row(
            self.arguments,
            &out,
            in_place.as_ref(),
            self.extent,
        ))?;
        for row in [Some(out), in_place].into_iter().flatten() {
            if let Some(csv) = &mut self.csv {
                csv.add(files::line(self.arguments, self.participants.len(), &row))?;
            }
            self.wrong += row.wrong.unwrap_or(0);
            self.busbw_sum_gbps += row.busbw_gbps();
            self.placements += 1;
            if self.arguments.json.is_some() || self.arguments.plot.is_some() {
                self.rows.push(row);
            }
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
        let average_busbw_gbps = self.average_busbw_gbps();
        self.print(&table::footer(
            self.arguments,
            self.wrong,
            average_busbw_gbps,
        ))?;
        if let Some(stats) = &stats {
            self.print(&stats::table(stats))?;
        }
        if let Some(json) = self.json.take() {
            let document = files::document(&self, stats.as_deref());
            output::write_json(json, &document).context("cannot write the JSON")?;
        }
        if let Some(path) = &self.arguments.plot {
            curve::draw(path, self.arguments, self.participants.len(), &self.rows)?;
        }
        Ok(self.wrong)
    }

    /// Returns the mean bus bandwidth over all sizes and placements.
    pub(super) fn average_busbw_gbps(&self) -> f64 {
        match self.placements {
            0 => 0.0,
            count => self.busbw_sum_gbps / count as f64,
        }
    }

    /// Writes to standard output, unless `--csv -` or `--json -` uses it.
    fn print(&mut self, text: &str) -> Result<()> {
        if self.arguments.stdout_is_data() {
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
