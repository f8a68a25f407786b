//! `ringfold sim`: simulates collectives in virtual time, with the library's own engine.
//!
//! ```text
//! constants, file, flags ─► layers ─► (sweep × compare) ─► Scenario ─► ringfold::simulate
//!     ─► Report ─► table, files, pictures
//! ```
//!
//! Nothing here knows how a collective works or what it costs: the library does. This module reads
//! the settings, runs the simulations with progress on a terminal, and shows the results.

mod arguments;
mod constants;
mod details;
mod disturbances;
mod files;
mod outcome;
mod parse;
mod pictures;
mod policy;
mod progress;
mod scenario;
mod settings;
mod table;
mod trace;
mod units;
mod vary;

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use ringfold::internals::simulate::{Scenario, goal};

pub use arguments::SimArguments;
use constants::MeasuredCosts;
use outcome::Outcome;
use settings::Layers;
use vary::{Value, Variant};

use crate::output;
use crate::parse::parse_collective;
use crate::status::usage;

/// Simulates, and returns the exit status: 1 when a call failed or a promise was broken.
pub fn run(arguments: SimArguments) -> Result<u8> {
    arguments.check().map_err(usage)?;
    let (name, layers) = base(&arguments)?;
    let variants = vary::variants(&layers, &name, arguments.compare.as_deref())?;
    let is_single = arguments.sweep.is_none() && arguments.compare.is_none();
    let outcomes = match is_single {
        true => vec![single(&arguments, &variants[0])?],
        false => many(&arguments, &variants)?,
    };
    write_files(&arguments, &outcomes)?;
    let is_clean = outcomes.iter().all(|outcome| outcome.summary.is_clean());
    Ok(u8::from(!is_clean))
}

/// The file's name, and the settings of constants, file and flags together.
fn base(arguments: &SimArguments) -> Result<(String, Layers)> {
    let mut layers = Layers::default();
    if let Some(path) = &arguments.constants {
        layers.measured = MeasuredCosts::read(path)?;
    }
    let mut name = "flags".to_owned();
    if let Some(what) = &arguments.what {
        let path = Path::new(what);
        match parse_collective(what) {
            Ok(collective) => layers.set("collective", collective.name(), &[])?,
            // A word without a dot or a slash is assumed to be a collective, unless there is such a
            // file.
            Err(error) if !what.contains(['.', '/']) && !path.exists() => {
                return Err(usage(error.into()));
            }
            Err(_) => {
                layers.read(path)?;
                name.clone_from(what);
            }
        }
    }
    arguments.settings.lay_over(&mut layers).map_err(usage)?;
    Ok((name, layers))
}

/// The scenario of these settings; if there is none, or the method cannot simulate it, that is an
/// error of the command line.
fn possible(arguments: &SimArguments, layers: &Layers, needs_all: bool) -> Result<Scenario> {
    let scenario = scenario::scenario(layers).map_err(usage)?;
    arguments
        .method
        .check(&scenario, needs_all)
        .map_err(usage)?;
    Ok(scenario)
}

/// Runs one simulation and prints all about it.
fn single(arguments: &SimArguments, variant: &Variant) -> Result<Outcome> {
    let traces = arguments.trace.is_some() || arguments.gantt.is_some();
    // What was asked for by `--json` is everything, and so is what a timeline shows.
    let needs_all = traces || arguments.json.is_some();
    let mut scenario = possible(arguments, &variant.layers, needs_all)?;
    if arguments.gantt.is_some() {
        pictures::check_gantt(scenario.ranks)?;
    }
    scenario.traces = traces;
    for path in [&arguments.trace, &arguments.gantt].into_iter().flatten() {
        output::open(path)?;
    }
    if let Some(path) = &arguments.goal {
        let text = goal::export(&scenario).map_err(|error| usage(error.into()))?;
        let written = output::open(path)?.write_all(text.as_bytes());
        written.with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    let progress = progress::begin(1)?;
    progress.set_message(scenario.collective.to_string());
    let simulated = arguments.method.simulate(&scenario, needs_all);
    drop(progress);
    let (summary, report) = simulated?;
    if !arguments.stdout_is_data() {
        output::print(&details::details(&summary, report.as_ref()))?;
    }
    let outcome = Outcome {
        variant: String::new(),
        value: None,
        summary,
        report,
    };
    if let Some(path) = &arguments.csv {
        files::csv(path)?.add(&outcome)?;
    }
    Ok(outcome)
}

/// Runs every variant at every value and prints a line for each as soon as it is there.
fn many(arguments: &SimArguments, variants: &[Variant]) -> Result<Vec<Outcome>> {
    let key = arguments.sweep.as_ref().map(|sweep| sweep.key.as_str());
    let values: Vec<Option<&Value>> = match &arguments.sweep {
        Some(sweep) => sweep.values.iter().map(Some).collect(),
        None => vec![None],
    };
    if let Some(path) = &arguments.plot {
        output::open(path)?;
    }
    let mut csv = arguments.csv.as_deref().map(files::csv).transpose()?;
    // What cannot be is said before the first simulation, and not after an hour of them.
    let needs_all = arguments.json.is_some();
    let mut cases = Vec::new();
    for value in values {
        for variant in variants {
            let mut layers = variant.layers.clone();
            if let (Some(key), Some(value)) = (key, value) {
                scenario::vary(&mut layers, key, &value.text).map_err(usage)?;
            }
            let scenario = possible(arguments, &layers, needs_all)?;
            cases.push((variant, value, scenario));
        }
    }
    let progress = progress::begin(cases.len())?;
    let say = |text: &str| match arguments.stdout_is_data() {
        true => Ok(()),
        false => progress.suspend(|| output::print(text)),
    };
    say(&table::header(key, variants))?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (variant, value, scenario) in cases {
        let value_label = value.map_or("", |value| &value.label);
        progress.set_message(format!("{value_label} {}", variant.label));
        let (summary, report) = arguments
            .method
            .simulate(&scenario, needs_all)
            .with_context(|| format!("{value_label} {}", variant.label).trim().to_owned())?;
        let outcome = Outcome {
            variant: variant.label.clone(),
            value: value.cloned(),
            summary,
            // Thousands of reports would not fit.
            report: report.filter(|_| needs_all),
        };
        let of_first = outcomes.len() / variants.len() * variants.len();
        let first = outcomes.get(of_first).unwrap_or(&outcome);
        say(&table::row(&outcome, first, variants.len() > 1))?;
        if let Some(csv) = &mut csv {
            csv.add(&outcome)?;
        }
        outcomes.push(outcome);
        progress.inc(1);
    }
    say(&table::footer(key, variants, &outcomes))?;
    Ok(outcomes)
}

/// The files that are written when all is done.
fn write_files(arguments: &SimArguments, outcomes: &[Outcome]) -> Result<()> {
    if let Some(path) = &arguments.json {
        files::write_json(path, arguments.sweep.as_ref(), outcomes)
            .with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    if let (Some(path), Some(sweep)) = (&arguments.plot, &arguments.sweep) {
        pictures::curves(sweep, outcomes).draw(path)?;
    }
    let [
        Outcome {
            report: Some(report),
            ..
        },
    ] = outcomes
    else {
        return Ok(());
    };
    if let Some(path) = &arguments.trace {
        trace::write(path, report).with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    if let Some(path) = &arguments.gantt {
        pictures::gantt(report)?.draw(path)?;
    }
    Ok(())
}
