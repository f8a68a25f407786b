//! `ringfold tune calibrate`: measures this machine for the tuner's cost model, once, in seconds.
//!
//! Jobs of as many ranks as there are cores, of twice as many, and of two, over shared memory and
//! over sockets of this machine, call a few collectives by every way in turn. The library makes
//! constants and corrections of the times (`tune::fit::calibrate`) and keeps them in a file
//! (`tune::calibration`) that rank 0 of every later job reads.
//!
//! The command is its own launcher: [`worker`] is what a rank of such a job does. In a job that
//! another launcher has started on several hosts, [`links`] measures messages instead: over RDMA or
//! over sockets, whichever joins them. What was kept of the machine stays, and of the other
//! network.

mod links;
mod pair;
mod rdma;
mod rows;
mod worker;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ringfold::env::Environment;
use ringfold::internals::lane;
use ringfold::internals::topology::Machine;
use ringfold::internals::tune::calibration::{
    self, Calibration, CalibrationContext, CalibrationSource,
};
use ringfold::internals::tune::fit::calibrate::{Sample, fit};
use ringfold::internals::tune::{Parameter, ParameterTable};
use ringfold::{Bind, Communicator, Config};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bench::devices::Devices;
use crate::launch::{self, Job, itself};
use crate::output;
use crate::statistics::percentile;
use links::NetworkCosts;

/// The exit status after Ctrl-C.
const INTERRUPTED: u8 = 128 + 2;

/// Where `proc` and `sys` are.
const ROOT: &str = "/";

/// Variables that would have the jobs measured otherwise than they are by themselves.
const VARIABLES_OFF: [&str; 8] = [
    "RINGFOLD_ALGO",
    "RINGFOLD_PROTO",
    "RINGFOLD_TUNER_CONFIG",
    "RINGFOLD_TUNER_PLUGIN",
    "RINGFOLD_LIMITS",
    "RINGFOLD_SLICE_BYTES",
    "RINGFOLD_STRAGGLER",
    "RINGFOLD_WEIGHTS",
];

/// Measure this machine for the tuner's cost model, in seconds; later jobs read the result
///
/// In a job on several hosts, measures the links within a host and between hosts instead, and adds
/// the results to the calibration on rank 0's machine. Results over RDMA apply to jobs over RDMA,
/// results over sockets to all other jobs. A new measurement over one of these networks keeps the
/// results of the other.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CalibrateArguments {
    /// Print the current calibration, and measure nothing
    #[arg(long)]
    show: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Write to this file instead of the user's cache folder; jobs read it if RINGFOLD_CALIBRATION
    /// names it
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Measure a device and its link to the host instead, and add the results to the calibration:
    /// cuda, hip (AMD) or soft (devices in software); cuda:1 is the second device
    #[arg(long, value_name = "DEVICE", conflicts_with = "show")]
    device: Option<Devices>,
    /// Measure nothing: fit the constants of links and reductions to a file of `ringfold perf
    /// --csv`, and print them as settings of `ringfold sim`
    #[arg(long, value_name = "FILE.csv", conflicts_with_all = ["show", "json", "file", "device"])]
    rows: Option<PathBuf>,
    /// How this command's ranks know what they are
    #[arg(long, hide = true, value_name = "FILE")]
    samples: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  ringfold tune calibrate                     measure, and keep the result for later jobs
  ringfold tune calibrate --show              the calibration of this machine
  ringfold tune calibrate --device cuda       measure device 0, and add the result
  ringfold tune calibrate --file here.toml    for jobs with RINGFOLD_CALIBRATION=here.toml
  ringfold perf --algorithm ring --csv rows.csv && ringfold tune calibrate --rows rows.csv";

/// Measures or shows, and returns the exit status.
pub fn run(arguments: &CalibrateArguments) -> Result<u8> {
    if let Some(path) = &arguments.samples {
        return worker::run(path);
    }
    if let Some(path) = &arguments.rows {
        return rows::run(path).map(|()| 0);
    }
    let launched = itself::rank(false, None)?;
    if let (Some(rank), false) = (launched, arguments.show) {
        let done = take_part(arguments);
        return Ok(done.map_or_else(|error| itself::fail_as(rank, false, error), |()| 0));
    }
    let machine = calibration::describe(Path::new(ROOT));
    let path = file(arguments, &machine)?;
    if arguments.show && !path.exists() {
        bail!(
            "this machine is not calibrated: there is no `{}`; `ringfold tune calibrate` makes \
             it, in seconds",
            path.display()
        );
    }
    if arguments.show {
        let kept = Calibration::read(&path, &machine)?;
        say(arguments.json, &kept, &path, &machine, &[])?;
        return Ok(0);
    }
    if let Some(devices) = &arguments.device {
        let kept = with_devices(devices, &path, &machine)?;
        kept.write(&path, &machine)?;
        say(arguments.json, &kept, &path, &machine, &[])?;
        return Ok(0);
    }
    let here = Machine::here();
    let mut samples = Vec::new();
    let contexts = contexts(here.cores);
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}")?;
    let bar = ProgressBar::new(contexts.len() as u64).with_style(style);
    for context in contexts {
        bar.set_message(context.to_string());
        let Some(more) = measured(context)? else {
            bar.finish_and_clear();
            output::complain("interrupted; nothing was kept");
            return Ok(INTERRUPTED);
        };
        samples.extend(more);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut kept = fit(&samples, &here);
    // What a job of several hosts has measured stays, and what is known of devices.
    if let Ok(earlier) = Calibration::read(&path, &machine) {
        (kept.links, kept.rdma, kept.devices) = (earlier.links, earlier.rdma, earlier.devices);
    }
    kept.write(&path, &machine)?;
    say(arguments.json, &kept, &path, &machine, &samples)?;
    Ok(0)
}

/// What is kept of this machine, with the constants of a device that is measured now.
fn with_devices(devices: &Devices, path: &Path, machine: &str) -> Result<Calibration> {
    let driver = devices.driver()?;
    let measured = lane::measure(driver, devices.ordinal(0, driver.devices()?)?)?;
    Ok(Calibration {
        devices: Some(measured),
        ..earlier(path, machine)?
    })
}

/// What is kept already.
fn earlier(path: &Path, machine: &str) -> Result<Calibration> {
    match path.exists() {
        true => Ok(Calibration::read(path, machine)?),
        false => Ok(Calibration::default()),
    }
}

/// Where the calibration of this machine is kept: where jobs of this environment look for it.
fn file(arguments: &CalibrateArguments, machine: &str) -> Result<PathBuf> {
    if let Some(path) = &arguments.file {
        return Ok(path.clone());
    }
    match Environment::from_lookup(&ringfold::env::process)?.calibration {
        Some(CalibrationSource::File(path)) => Ok(path),
        _ => calibration::path(&ringfold::env::process, machine)
            .context("no cache folder: neither XDG_CACHE_HOME nor HOME is set; use --file"),
    }
}

/// A rank's part in measuring the links of a job; rank 0 keeps what was measured.
fn take_part(arguments: &CalibrateArguments) -> Result<()> {
    ringfold::env::init_logging()?;
    let communicator = Communicator::connect(Config::default())?;
    if communicator.hosts() < 2 {
        bail!(
            "this job has one host; `ringfold tune calibrate` outside of a job measures a host, \
             and in a job of several the links between them"
        );
    }
    let measured = links::measure(&communicator)?;
    if communicator.rank() == 0 {
        let machine = calibration::describe(Path::new(ROOT));
        let path = file(arguments, &machine)?;
        let mut kept = earlier(&path, &machine)?;
        match measured {
            NetworkCosts::Sockets(costs) => kept.links = Some(costs),
            NetworkCosts::Rdma(costs) => kept.rdma = Some(costs),
        }
        kept.write(&path, &machine)?;
        say(arguments.json, &kept, &path, &machine, &[])?;
    }
    communicator.close()?;
    Ok(())
}

/// What is measured: two ranks, a core for each, and two ranks a core; over shared memory and over
/// sockets.
fn contexts(cores: usize) -> Vec<CalibrationContext> {
    let mut ranks = vec![2, cores.max(2), 2 * cores.max(2)];
    ranks.dedup();
    let over = |is_shared| {
        ranks
            .iter()
            .map(move |&ranks| CalibrationContext { is_shared, ranks })
    };
    over(true).chain(over(false)).collect()
}

/// The times of one job; `None` if a signal ended it.
fn measured(context: CalibrationContext) -> Result<Option<Vec<Sample>>> {
    let again = itself::Again::new()?;
    let path = std::env::temp_dir().join(format!("ringfold-calibrate-{}", std::process::id()));
    let outcome = launch::launch(&Job {
        ranks: context.ranks,
        place: None,
        command: &|_| {
            let mut rank = again.command();
            rank.args(["tune", "calibrate", "--samples"]).arg(&path);
            for name in VARIABLES_OFF {
                rank.env_remove(name);
            }
            rank.env("RINGFOLD_TRANSPORT", context.transport());
            rank.envs([("RINGFOLD_CALIBRATION", "0"), ("RINGFOLD_PROBE", "0")]);
            rank
        },
        prefix: false,
        input: false,
        bind: Some(Bind::Auto),
        death_signal: Some(Signal::KILL),
    });
    let samples = outcome.and_then(|outcome| match outcome.failure {
        _ if outcome.interrupted => Ok(None),
        None => read(&path, context).map(Some),
        _ => bail!("the job of {context} failed; nothing was kept"),
    });
    // A job that failed may have left none.
    let _ = std::fs::remove_file(&path);
    samples
}

/// What rank 0 has written.
fn read(path: &Path, context: CalibrationContext) -> Result<Vec<Sample>> {
    let file = std::fs::File::open(path).with_context(|| format!("no times of {context}"))?;
    let line = |line: std::io::Result<String>| worker::parse(&line?, context);
    BufReader::new(file).lines().map(line).collect()
}

/// How far the model is from what was measured, among some ranks: the factor that half of all ways
/// stay within, and nine tenths.
fn misses(kept: &Calibration, samples: &[Sample]) -> BTreeMap<CalibrationContext, (f64, f64)> {
    let here = Machine::here();
    let mut factors: BTreeMap<CalibrationContext, Vec<f64>> = BTreeMap::new();
    for sample in samples {
        let placed = kept.constants.clone().on(&here, sample.context.ranks);
        let factor = sample.residue(&placed, &here).ln().abs().exp();
        factors.entry(sample.context).or_default().push(factor);
    }
    let miss = |factors: Vec<f64>| (percentile(&factors, 50.0), percentile(&factors, 90.0));
    let factors = factors.into_iter();
    factors
        .map(|(context, each)| (context, miss(each)))
        .collect()
}

/// What is kept, as JSON.
fn document(kept: &Calibration, path: &Path, machine: &str, samples: usize) -> Value {
    let constants = values(&kept.constants);
    let links = kept.links.as_ref().map(values);
    let rdma = kept.rdma.as_ref().map(values);
    let devices = kept.devices.as_ref().map(values);
    let corrections = kept.corrections.iter().map(|(context, factors)| {
        let points = factors.points().iter().map(|(way, log2_bytes, factor)| {
            json!({"way": way.to_string(), "log2_bytes": log2_bytes, "factor": factor})
        });
        json!({
            "shared": context.is_shared, "ranks": context.ranks,
            "factors": points.collect::<Vec<_>>(),
        })
    });
    json!({
        "file": path.display().to_string(), "machine": machine, "samples": samples,
        "constants": constants, "links": links, "rdma": rdma, "devices": devices,
        "corrections": corrections.collect::<Vec<_>>(),
    })
}

/// The values of a table by their names.
fn values<T: ParameterTable<Value = f64>>(table: &T) -> BTreeMap<&'static str, f64> {
    let fields = T::PARAMETERS.iter();
    fields
        .map(|field| (field.name, field.value(table)))
        .collect()
}

/// Lines of a table's names, with the default values and those that are kept.
fn listed<T: ParameterTable<Value = f64>>(kept: &T) -> String {
    let default = T::default();
    let line = |field: &Parameter<T>| {
        let [default, here] = [&default, kept].map(|table| field.value(table));
        format!("{:<26} {default:>12.4e} {here:>12.4e}\n", field.name)
    };
    T::PARAMETERS.iter().map(line).collect()
}

/// Prints what is kept.
fn say(
    json: bool,
    kept: &Calibration,
    path: &Path,
    machine: &str,
    samples: &[Sample],
) -> Result<()> {
    if json {
        let document = document(kept, path, machine, samples.len());
        return output::print(&format!("{document:#}\n"));
    }
    let mut text = format!(
        "{machine}\n{}\n\n{:<26} {:>12} {:>12}\n",
        path.display(),
        "constant",
        "default",
        "here"
    );
    text += &listed(&kept.constants);
    if let Some(links) = &kept.links {
        text += "\nmeasured in a job of several hosts:\n";
        text += &listed(links);
    }
    if let Some(rdma) = &kept.rdma {
        text += "\nmeasured between hosts that RDMA joins:\n";
        text += &listed(rdma);
    }
    text += match kept.devices {
        Some(_) => "\nmeasured on devices:\n",
        None => "\nassumed of devices, because nothing was measured:\n",
    };
    text += &listed(&kept.devices.unwrap_or_default());
    for (context, (half, most)) in misses(kept, samples) {
        text += &format!(
            "\n{context}: before corrections half of all ways are within a factor of {half:.2}, \
             nine tenths within {most:.2}"
        );
    }
    output::print(&(text + "\n"))
}
