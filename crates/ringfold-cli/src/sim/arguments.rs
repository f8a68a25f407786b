//! The flags of `ringfold sim` beside the settings of what is simulated.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::outcome::Method;
use super::settings::Settings;
use super::vary::Variation;
use crate::output::is_stdout;

/// Simulate a collective in virtual time: its time, traffic and critical path, and the effect of
/// slow or dead ranks
///
/// The library's own engine runs its own schedules over a simulated network, so order, bytes and
/// messages are those of a real run; flags or a scenario file set the cost of a message or a
/// reduction. The same scenario and seed give the same result. Times are written 5us or 20ms, rates
/// 100Gbit/s or 12.5GB/s, sizes 64K or 8M (binary). A violated guarantee or a call that fails makes
/// the exit status 1.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// A scenario file, whose settings flags replace, or a collective's name
    #[arg(value_name = "SCENARIO.toml|COLLECTIVE")]
    pub what: Option<String>,

    #[command(flatten)]
    pub settings: Settings,

    /// Simulate for many values of a setting: bytes=1K..64M doubles, ranks=4..64*4 multiplies,
    /// delay=0us..60us+2us adds, bandwidth=10Gbit/s,25Gbit/s lists. `delay` is that of --slow and
    /// --late
    #[arg(long, value_name = "KEY=VALUES", help_heading = RUNS)]
    pub sweep: Option<Variation>,

    /// Compare simulations: algorithms (ring,direct), policies (off,tail), values of a setting
    /// (ports=full,half), or other scenario files
    #[arg(long, value_name = "WHAT", help_heading = RUNS)]
    pub compare: Option<String>,

    /// How to simulate
    #[arg(long, value_name = "HOW", value_enum, default_value = "auto", help_heading = RUNS)]
    pub method: Method,

    /// Fit the constants of links and reductions to the measurements of `ringfold perf --csv`, and
    /// print them as flags
    #[arg(
        long,
        value_name = "FILE.csv",
        help_heading = RUNS,
        conflicts_with_all = ["what", "sweep", "compare"],
    )]
    pub calibrate: Option<PathBuf>,

    /// Take links and processors from a file of `ringfold tune calibrate`, written in a job of
    /// several hosts, and devices from one written with `--device`
    #[arg(long, value_name = "FILE.toml", help_heading = RUNS)]
    pub constants: Option<PathBuf>,

    /// A publication; scripts reproduce them now
    #[arg(long, value_name = "NAME", hide = true)]
    pub paper: Option<String>,

    /// Write everything as JSON; - is standard output, without the table
    #[arg(short = 'J', long, value_name = "FILE|-", help_heading = OUTPUT)]
    pub json: Option<PathBuf>,

    /// Write one line per simulation as CSV; - is standard output, without the table
    #[arg(long, value_name = "FILE|-", help_heading = OUTPUT)]
    pub csv: Option<PathBuf>,

    /// Write what each rank does when, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE.json", help_heading = OUTPUT, conflicts_with_all = MANY)]
    pub trace: Option<PathBuf>,

    /// Draw what each rank does when
    #[arg(long, value_name = "FILE.svg", help_heading = OUTPUT, conflicts_with_all = MANY)]
    pub gantt: Option<PathBuf>,

    /// Write the schedules of all ranks as GOAL, for LogGOPSim and other simulators; - is standard
    /// output, without the table
    #[arg(long, value_name = "FILE|-", help_heading = OUTPUT, conflicts_with_all = MANY)]
    pub goal: Option<PathBuf>,

    /// Draw the time over what --sweep varies, or bus bandwidth if that is the size
    #[arg(long, value_name = "FILE.svg", help_heading = OUTPUT)]
    pub plot: Option<PathBuf>,
}

/// What makes more than one simulation.
const MANY: [&str; 2] = ["sweep", "compare"];

/// Headings of the help.
const RUNS: &str = "What is run";
const OUTPUT: &str = "Output";

const EXAMPLES: &str = "\
Examples:
  ringfold sim                                              4 ranks, 8 MiB, 100 Gbit/s
  ringfold sim --ranks 64 --bytes 256M --compare ring,rabenseifner,direct
  ringfold sim --algorithm ring --sweep bytes=1K..1G --plot curve.svg
  ringfold sim examples/sim/slow-rank.toml --gantt ranks.svg --trace ranks.json
  ringfold sim --algorithm ring --slow rank=1,step=1,delay=8us --sweep delay=0us..30us+2us
  ringfold sim --ranks 4 --bytes 64M --device 25GB/s --alpha 500ns --bandwidth 100GB/s
  ringfold sim examples/papers/bupt2024.toml --sweep delay=0us..30us+2us
  ringfold perf --algorithm ring --csv rows.csv && ringfold sim --calibrate rows.csv";

impl Arguments {
    /// Checks what can be checked before anything is simulated.
    pub fn check(&self) -> Result<()> {
        if let Some(name) = &self.paper {
            bail!(
                "`--paper` is now a script; run `python3 examples/papers/{name}.py`, which takes \
                 `--plot`, `--csv` and `--json`, too (see docs/explanation/papers.md)"
            );
        }
        if let [one, other, ..] = self.stdout_data()[..] {
            bail!(
                "`{one} -` and `{other} -` would mix on standard output; write one of them to a \
                 file"
            );
        }
        if self.plot.is_some() && self.sweep.is_none() {
            bail!(
                "`--plot` draws curves over what `--sweep` varies; `--gantt` draws one simulation"
            );
        }
        let unscaled = self.sweep.as_ref().filter(|sweep| sweep.scale.is_none());
        if let (Some(_), Some(Variation { key, .. })) = (&self.plot, unscaled) {
            bail!("`--plot` needs numbers along its axis, and the values of `{key}` are none");
        }
        Ok(())
    }

    /// Whether standard output belongs to a file's data.
    pub fn stdout_is_data(&self) -> bool {
        !self.stdout_data().is_empty()
    }

    /// The flags whose data goes to standard output.
    fn stdout_data(&self) -> Vec<&'static str> {
        let files = [
            ("--csv", &self.csv),
            ("--json", &self.json),
            ("--goal", &self.goal),
        ];
        let data = files.into_iter().filter(|(_, path)| is_stdout(path));
        data.map(|(flag, _)| flag).collect()
    }
}
