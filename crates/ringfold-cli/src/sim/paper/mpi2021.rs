//! *Implementing All-Reduce with MPI* (a laboratory report, 2021): in-place all_reduce by master and worker, and by a ring,
//! for 4, 8 and 16 processes and 4 to 100 MB.
//!
//! The ring's printed formula is right. The master's, `2(α + S/B) + N·S·C`, cannot be: solved for the table that is printed
//! below it, it gives a negative bandwidth. Everything passes through the master's port, one after the other, so it is
//! `(N − 1)(2(α + S/B) + S·C)`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use ringfold::simulate::{self, Compute, Links, Network, Payload, Scenario};
use ringfold::{Algorithm, Collective};
use serde_json::json;

use super::super::arguments::Arguments;
use super::super::fit::{self, Fit};
use crate::numbers::significant;
use crate::output;
use crate::plot::{Axis, Chart, Corner, Curve, Scale, Style};

/// The table's sizes in megabytes, and processes.
const SIZES_MB: [u32; 5] = [4, 8, 16, 32, 100];
const PROCESSES: [u32; 3] = [4, 8, 16];

/// The table: seconds by algorithm, processes and size.
const TABLE: [Part; 2] = [
    Part {
        algorithm: Algorithm::Flat,
        name: "master and worker",
        seconds: [
            [0.030918, 0.059034, 0.143740, 0.304914, 0.950648],
            [0.067289, 0.119806, 0.305247, 0.684425, 2.084829],
            [0.276184, 0.553833, 1.375983, 2.875176, 8.750173],
        ],
    },
    Part {
        algorithm: Algorithm::Ring,
        name: "ring",
        seconds: [
            [0.061386, 0.145172, 0.268803, 0.513543, 1.564591],
            [0.069678, 0.146112, 0.272159, 0.548818, 1.759283],
            [0.896696, 0.495705, 0.883620, 1.444635, 3.877275],
        ],
    },
];

/// The one time that is above that of twice the size: no model explains it, so it takes no part in the fit.
const OUTLIER: (Algorithm, u32, u32) = (Algorithm::Ring, 16, 4);

/// How many cores the machine may have had.
const CORES: std::ops::RangeInclusive<u32> = 4..=16;

struct Part {
    algorithm: Algorithm,
    name: &'static str,
    seconds: [[f64; SIZES_MB.len()]; PROCESSES.len()],
}

/// One cell of the table, printed and simulated.
struct Cell {
    algorithm: Algorithm,
    name: &'static str,
    processes: u32,
    megabytes: u32,
    printed_s: f64,
    simulated_s: f64,
}

/// What an algorithm's messages cost where every process has a core.
struct Constants {
    alpha_us: f64,
    /// β + γ/2: both algorithms move two bytes for each that they reduce, so the table cannot tell them apart.
    beta_us_per_byte: f64,
    fit: Fit,
}

impl Part {
    fn cells(&self) -> impl Iterator<Item = (u32, u32, f64)> {
        PROCESSES
            .iter()
            .zip(&self.seconds)
            .flat_map(|(&processes, row)| {
                SIZES_MB
                    .iter()
                    .zip(row)
                    .map(move |(&megabytes, &seconds)| (processes, megabytes, seconds))
            })
    }

    /// Messages one after the other, and bytes through the busiest port, of the right formulas.
    fn counts(&self, processes: u32, megabytes: u32) -> (f64, f64) {
        let (n, bytes) = (f64::from(processes), bytes(megabytes) as f64);
        match self.algorithm {
            Algorithm::Flat => (2.0 * (n - 1.0), 2.0 * (n - 1.0) * bytes),
            _ => (2.0 * (n - 1.0), 2.0 * (n - 1.0) / n * bytes),
        }
    }

    /// Least squares, with processes that wait taking turns on so many cores.
    fn constants(&self, cores: u32) -> Result<Constants> {
        let kept: Vec<_> = self
            .cells()
            .filter(|&(processes, megabytes, _)| (self.algorithm, processes, megabytes) != OUTLIER)
            .collect();
        let column = |of: &dyn Fn((f64, f64)) -> f64| -> Vec<f64> {
            let turns = |processes| turns(processes, cores);
            kept.iter()
                .map(|&(n, mb, _)| of(self.counts(n, mb)) * turns(n))
                .collect()
        };
        let times: Vec<f64> = kept.iter().map(|&(_, _, seconds)| seconds * 1e6).collect();
        let columns = [column(&|counts| counts.1), column(&|counts| counts.0)];
        let fit = fit::fit(&columns, &times).context("the table has no fit")?;
        Ok(Constants {
            beta_us_per_byte: fit.values[0].number(),
            alpha_us: fit.values[1].number(),
            fit,
        })
    }
}

fn bytes(megabytes: u32) -> u64 {
    u64::from(megabytes) * 1_000_000
}

/// How many processes share a core: all of them run all the time, because MPI waits by asking again and again.
fn turns(processes: u32, cores: u32) -> f64 {
    (f64::from(processes) / f64::from(cores)).max(1.0)
}

/// Prints the table as it was printed, what follows from it, and as it is simulated.
pub fn run(arguments: &Arguments) -> Result<()> {
    let cores = cores()?;
    let constants = TABLE
        .iter()
        .map(|part| part.constants(cores))
        .collect::<Result<Vec<_>>>()?;
    let mut cells = Vec::new();
    for (part, constants) in TABLE.iter().zip(&constants) {
        for (processes, megabytes, printed_s) in part.cells() {
            let scenario = scenario(part.algorithm, processes, megabytes, cores, constants);
            let report = simulate::run(&scenario)?;
            cells.push(Cell {
                algorithm: part.algorithm,
                name: part.name,
                processes,
                megabytes,
                printed_s,
                simulated_s: report.finished_ps as f64 * 1e-12,
            });
        }
    }
    if let Some(path) = &arguments.csv {
        write_csv(path, &cells)?;
    }
    if let Some(path) = &arguments.json {
        write_json(path, cores, &constants, &cells)?;
    }
    if !arguments.stdout_is_data() {
        super::super::print(&text(cores, &constants, &cells))?;
    }
    match &arguments.plot {
        Some(folder) => draw(folder, &cells),
        None => Ok(()),
    }
}

/// The number of cores with which both algorithms' times fit best.
fn cores() -> Result<u32> {
    let error = |cores: u32| -> Result<f64> {
        let parts = TABLE
            .iter()
            .map(|part| Ok(part.constants(cores)?.fit.mean_error));
        parts.sum::<Result<f64>>()
    };
    let tried = CORES
        .map(|cores| Ok((error(cores)?, cores)))
        .collect::<Result<Vec<_>>>()?;
    let best = tried
        .into_iter()
        .min_by(|one, other| one.0.total_cmp(&other.0));
    best.map(|(_, cores)| cores)
        .ok_or_else(|| anyhow!("no number of cores"))
}

/// A cell as the simulator takes it. All time is in the links, since the table cannot tell it from that of reductions.
fn scenario(
    algorithm: Algorithm,
    processes: u32,
    megabytes: u32,
    cores: u32,
    constants: &Constants,
) -> Scenario {
    let slower = turns(processes, cores) * 1e6;
    let ps = |us: f64| (us * slower).round() as u64;
    Scenario {
        collective: Collective::AllReduce,
        algorithm: Some(algorithm),
        ranks: processes as usize,
        bytes: bytes(megabytes),
        slice_bytes: Some(u64::MAX),
        network: Network {
            links: Links {
                alpha_ps: ps(constants.alpha_us),
                ps_per_byte: ps(constants.beta_us_per_byte),
                ..Links::default()
            },
            ..Network::default()
        },
        compute: Compute::FREE,
        payload: Payload::Hollow,
        ..Scenario::default()
    }
}

fn text(cores: u32, constants: &[Constants], cells: &[Cell]) -> String {
    let mut text =
        "# Implementing All-Reduce with MPI (2021): all_reduce in place, seconds\n".to_owned();
    text += &printed_formula();
    text += &right_formulas();
    let _ = writeln!(
        text,
        "#\n# Fitted: {cores} cores, which {} processes and more share; the 4 MB of the ring at 16 left out, because 8 MB took less",
        cores + 1,
    );
    for (part, constants) in TABLE.iter().zip(constants) {
        let Constants {
            alpha_us,
            beta_us_per_byte,
            fit,
        } = constants;
        let _ = writeln!(
            text,
            "#   {:<18} α {} us, β + γ/2 {} ns/B; R² {:.4}, off by {:.1} % on average and {:.1} % at most",
            part.name,
            significant((alpha_us * 1e3).round() / 1e3),
            significant((beta_us_per_byte * 1e6).round() / 1e3),
            fit.r_squared,
            100.0 * fit.mean_error,
            100.0 * fit.worst_error,
        );
    }
    text += "#   One pair of constants does not explain both: the report's ring moved a byte several times as slowly.\n";
    text +=
        "#\n# algorithm           ranks    size (MB)     printed (s)   simulated (s)   off by\n";
    for cell in cells {
        let _ = writeln!(
            text,
            "  {:<18}  {:>5}  {:>11}  {:>14.6}  {:>14.6}  {:>+6.1} %",
            cell.name,
            cell.processes,
            cell.megabytes,
            cell.printed_s,
            cell.simulated_s,
            100.0 * (cell.simulated_s / cell.printed_s - 1.0),
        );
    }
    text
}

/// The printed formula for master and worker, solved for its own table.
fn printed_formula() -> String {
    let [four, eight, _] = &TABLE[0].seconds;
    let mut text = "#\n# Printed for master and worker: T = 2(α + S/B) + N·S·C. So T(8) − T(4) = 4·S·C, and\n# 2(α + S/B) = 2·T(4) − T(8):\n#   size (MB)      S·C (s)   2(α + S/B) (s)\n".to_owned();
    for ((megabytes, four), eight) in SIZES_MB.iter().zip(four).zip(eight) {
        let _ = writeln!(
            text,
            "    {megabytes:>9}  {:>11.6}  {:>15.6}",
            (eight - four) / 4.0,
            2.0 * four - eight,
        );
    }
    text + "#   A time below zero at every size: the formula is wrong. All N − 1 transfers share the master's port.\n"
}

/// What the right formulas make constant.
fn right_formulas() -> String {
    let mut text = "#\n# Right: T = (N − 1)(2(α + S/B) + S·C), so T/(N − 1) is the same for all N; for the ring, as printed,\n# T = 2(N − 1)(α + S/NB) + (N − 1)/N·S·C, so T·N/(N − 1) is (seconds):\n".to_owned();
    let _ = writeln!(
        text,
        "# {:<18}  {:>5}{}",
        "algorithm",
        "ranks",
        SIZES_MB.map(|size| format!("  {:>8} MB", size)).concat()
    );
    for part in &TABLE {
        for (processes, row) in PROCESSES.iter().zip(&part.seconds) {
            let n = f64::from(*processes);
            let share = match part.algorithm {
                Algorithm::Flat => 1.0 / (n - 1.0),
                _ => n / (n - 1.0),
            };
            let _ = writeln!(
                text,
                "  {:<18}  {processes:>5}{}",
                part.name,
                row.map(|s| format!("  {:>11.6}", s * share)).concat()
            );
        }
    }
    text + "#   Both hold from 4 to 8 and are off by two at 16 alike: more processes than cores.\n"
}

fn write_csv(path: &Path, cells: &[Cell]) -> Result<()> {
    let mut writer = csv::Writer::from_writer(output::open(path)?);
    writer
        .write_record(["algorithm", "ranks", "bytes", "printed_s", "simulated_s"])
        .map_err(std::io::Error::from)?;
    for cell in cells {
        let fields = [
            cell.algorithm.to_string(),
            cell.processes.to_string(),
            bytes(cell.megabytes).to_string(),
            cell.printed_s.to_string(),
            format!("{:.12}", cell.simulated_s),
        ];
        writer.write_record(fields).map_err(std::io::Error::from)?;
    }
    Ok(writer.flush()?)
}

fn write_json(path: &Path, cores: u32, constants: &[Constants], cells: &[Cell]) -> Result<()> {
    let constants = TABLE.iter().zip(constants).map(|(part, constants)| {
        json!({
            "algorithm": part.algorithm.name(),
            "alpha_us": constants.alpha_us,
            "beta_us_per_byte": constants.beta_us_per_byte,
            "r_squared": constants.fit.r_squared,
            "mean_error": constants.fit.mean_error,
        })
    });
    let cells = cells.iter().map(|cell| {
        json!({
            "algorithm": cell.algorithm.name(),
            "ranks": cell.processes,
            "bytes": bytes(cell.megabytes),
            "printed_s": cell.printed_s,
            "simulated_s": cell.simulated_s,
        })
    });
    let document = json!({
        "paper": "mpi2021",
        "cores": cores,
        "constants": constants.collect::<Vec<_>>(),
        "cells": cells.collect::<Vec<_>>(),
    });
    super::write_json(path, &document)
}

/// A chart for each algorithm: printed as points, simulated as broken lines.
fn draw(folder: &Path, cells: &[Cell]) -> Result<()> {
    super::make_folder(folder)?;
    for part in &TABLE {
        let mut curves = Vec::new();
        for (colour, &processes) in PROCESSES.iter().enumerate() {
            let own = || {
                cells
                    .iter()
                    .filter(|cell| cell.algorithm == part.algorithm && cell.processes == processes)
            };
            let x = |cell: &Cell| f64::from(cell.megabytes);
            curves.push(Curve {
                label: format!("{processes} ranks, printed"),
                style: Style::Filled,
                colour,
                points: own().map(|cell| (x(cell), cell.printed_s)).collect(),
            });
            curves.push(Curve {
                label: format!("{processes} ranks, simulated"),
                style: Style::Dashed,
                colour,
                points: own().map(|cell| (x(cell), cell.simulated_s)).collect(),
            });
        }
        let chart = Chart {
            title: format!(
                "all_reduce by {}: printed in 2021, and simulated",
                part.name
            ),
            x: Axis::new("size (MB)", Scale::Logarithmic),
            y: Axis::new("time (s)", Scale::Logarithmic),
            legend: Corner::LowerRight,
            curves,
            marks: Vec::new(),
        };
        chart.draw(&folder.join(format!("mpi2021-{}.svg", part.algorithm)))?;
    }
    Ok(())
}
