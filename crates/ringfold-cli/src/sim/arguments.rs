//! The flags of `ringfold sim`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::Value;

use super::outcome::SimulationMethod;
use super::settings::Layers;
use super::vary::Variation;
use crate::output::is_stdout;

/// Simulate a collective in virtual time: its time, traffic and critical path, and the effect of
/// slow or dead ranks
///
/// The library's own engine runs its own schedules over a simulated network, so order, bytes and
/// messages are those of a real run. The costs of messages and reductions are set by flags, by
/// `--set` or in a scenario file; docs/reference/simulator-settings.md lists all settings. The same
/// scenario and seed give the same result. Times are written 5us or 20ms, rates 100Gbit/s or
/// 12.5GB/s, sizes 64K or 8M (binary). The exit status is 1 if a guarantee is violated or a call
/// fails.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SimArguments {
    /// A scenario file, or the name of a collective; flags override the file's settings
    #[arg(value_name = "SCENARIO.toml|COLLECTIVE")]
    pub what: Option<String>,

    #[command(flatten)]
    pub settings: SettingFlags,

    /// Simulate many values of a setting: bytes=1K..64M doubles, ranks=4..64*4 multiplies,
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
    pub method: SimulationMethod,

    /// Use the constants in a file of `ringfold tune calibrate`: those of links and processors if
    /// it was written in a job on several hosts, those of devices if it was written with `--device`
    #[arg(long, value_name = "FILE.toml", help_heading = RUNS)]
    pub constants: Option<PathBuf>,

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

    /// Draw the time over the values of --sweep; if --sweep varies the size, draw the bus bandwidth
    #[arg(long, value_name = "FILE.svg", help_heading = OUTPUT)]
    pub plot: Option<PathBuf>,
}

/// The settings that have a flag of their own, each by its key, and `--set` for all.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct SettingFlags {
    /// Algorithm, over messages; `auto` is the tuner's choice [default: auto]
    #[arg(short = 'A', long, value_name = "NAME", help_heading = CALL)]
    algorithm: Option<String>,

    /// Number of ranks [default: 4]
    #[arg(long, value_name = "N", help_heading = CALL)]
    ranks: Option<String>,

    /// The size, as nccl-tests counts it [default: 8M]
    #[arg(short = 'b', long, value_name = "BYTES", help_heading = CALL)]
    bytes: Option<String>,

    /// The pipeline's unit, or `whole` [default: the tuner's]
    #[arg(long, value_name = "BYTES|whole", help_heading = CALL)]
    slice_bytes: Option<String>,

    /// Data type [default: float32]
    #[arg(short = 'd', long, alias = "dtype", value_name = "TYPE", help_heading = CALL)]
    datatype: Option<String>,

    /// Operation [default: sum]
    #[arg(short = 'o', long, value_name = "OP", help_heading = CALL)]
    op: Option<String>,

    /// Root rank; the late rank for stragglar [default: 0; for stragglar, the first of --late]
    #[arg(short = 'r', long, value_name = "RANK", help_heading = CALL)]
    root: Option<String>,

    /// Network between hosts: sockets or rdma, with the constants of --constants; without a file,
    /// the constants of rdma are assumed [default: sockets; rdma if --constants has only that]
    #[arg(long, value_name = "NETWORK", help_heading = MACHINES)]
    fabric: Option<String>,

    /// Latency of a message [default: 5us]
    #[arg(long, value_name = "TIME", help_heading = MACHINES)]
    alpha: Option<String>,

    /// Bandwidth of each rank's port: 100Gbit/s, 12.5GB/s or `unlimited` [default: 100Gbit/s]
    #[arg(long, value_name = "RATE", help_heading = MACHINES)]
    bandwidth: Option<String>,

    /// Ranks on each host, in rank order [default: 1]
    #[arg(long, value_name = "N", help_heading = MACHINES)]
    ranks_per_host: Option<String>,

    /// Place the data on devices (GPUs); the value is the bandwidth of a device's link to the host
    /// in each direction, or `measured` for that of --constants [default: data is on the hosts]
    #[arg(long, value_name = "RATE", help_heading = MACHINES)]
    device: Option<String>,

    /// Slower reductions: rank=3,step=*,delay=exp(20us),p=0.1 (also uniform(5us,20us)); may be
    /// repeated. A step is the number of the rank's reduction, from 1
    #[arg(long, value_name = "SPEC", help_heading = TROUBLE)]
    slow: Vec<String>,

    /// A rank that makes its call later: rank=1,delay=60us
    #[arg(long, value_name = "SPEC", help_heading = TROUBLE)]
    late: Vec<String>,

    /// A rank that is frozen for a while: rank=1,from=10us,until=2ms
    #[arg(long, value_name = "SPEC", help_heading = TROUBLE)]
    stall: Vec<String>,

    /// A link with less bandwidth: rank=1,factor=4 for a rank's port, from=1,to=2,factor=4 for one
    /// direction between two ranks
    #[arg(long, value_name = "SPEC", help_heading = TROUBLE)]
    slow_link: Vec<String>,

    /// A rank that dies: rank=1,at=100us
    #[arg(long, value_name = "SPEC", help_heading = TROUBLE)]
    dead: Vec<String>,

    /// Destination of a slow rank's sum in rings: off, next2 (the rank after the next), or tail
    /// (the chunk's owner) [default: off]
    #[arg(long, value_name = "TARGET", help_heading = TROUBLE)]
    policy: Option<String>,

    /// Any setting of a scenario file, such as reduce_rate=20GB/s; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE")]
    #[serde(skip)]
    set: Vec<String>,
}

impl SettingFlags {
    /// Adds the settings to `layers`, those of `--set` last.
    pub fn lay_over(&self, layers: &mut Layers) -> Result<()> {
        let Value::Object(flags) = serde_json::to_value(self)? else {
            unreachable!("a structure is an object");
        };
        for (key, given) in flags {
            match given {
                Value::String(text) => layers.set(&key, &text, &[])?,
                Value::Array(texts) if !texts.is_empty() => {
                    let texts = texts.iter().filter_map(Value::as_str).map(str::to_owned);
                    layers.set_list(&key, &texts.collect::<Vec<_>>())?;
                }
                _ => {}
            }
        }
        for pair in &self.set {
            let wrong = || format!("`--set {pair}` is not of the form KEY=VALUE");
            let (key, text) = pair.split_once('=').with_context(wrong)?;
            layers.set(key.trim(), text.trim(), &[])?;
        }
        Ok(())
    }
}

/// What makes more than one simulation.
const MANY: [&str; 2] = ["sweep", "compare"];

/// Headings of the help.
const CALL: &str = "The call";
const MACHINES: &str = "Network and devices";
const TROUBLE: &str = "Slow and dead ranks";
const RUNS: &str = "Simulations";
const OUTPUT: &str = "Output";

const EXAMPLES: &str = "\
Examples:
  ringfold sim                                              4 ranks, 8 MiB, 100 Gbit/s
  ringfold sim --ranks 64 --bytes 256M --compare ring,rabenseifner,direct
  ringfold sim --algorithm ring --sweep bytes=1K..1G --plot curve.svg
  ringfold sim examples/sim/slow-rank.toml --gantt ranks.svg --trace ranks.json
  ringfold sim --algorithm ring --slow rank=1,step=1,delay=8us --sweep delay=0us..30us+2us
  ringfold sim --ranks 4 --bytes 64M --device 25GB/s --alpha 500ns --bandwidth 100GB/s
  ringfold sim examples/papers/bupt2024.toml --sweep delay=0us..30us+2us";

impl SimArguments {
    /// Checks what can be checked before anything is simulated.
    pub fn check(&self) -> Result<()> {
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
