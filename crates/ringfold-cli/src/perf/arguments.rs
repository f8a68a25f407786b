//! The flags of `ringfold perf`, and their combinations.
//!
//! The letters and the underscored names are nccl-tests'. Flags of nccl-tests that do not apply
//! here are recognised, so that a script gets the reason instead of an unknown flag.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use ringfold::StragglerPolicy;
use ringfold::internals::schedule::{Access, Schedule};
use ringfold::internals::setup::Injection;
use ringfold::internals::simulate::Slow;
use ringfold::{Collective, DType, Op, Weighting};

use super::refused::Refused;
use crate::bench::{BenchSettings, Case, DeviceFlags, JobFlags, SizeSpan};
use crate::output::is_stdout;
use crate::parse::{
    OpName, Selection, parse_algorithm, parse_bytes, parse_collective, parse_dtype, parse_duration,
    parse_op, parse_root,
};

/// Maximum number of iterations, whose times are kept and gathered.
const MAX_ITERATIONS: u32 = 1 << 20;

/// Measure a collective and check its results
///
/// Under a launcher (ringfold run, torchrun, srun, mpirun, Kubernetes), joins the launcher's job;
/// otherwise, or with --ranks, starts the ranks itself. By default, every iteration begins after a
/// barrier, and its time is the slowest rank's. The table shows the median over iterations. Results
/// are compared element by element with zero tolerance. Sizes accept K, M and G (binary). The exit
/// status is 1 if an element is wrong.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PerfArguments {
    /// all_reduce, broadcast, reduce, all_gather, reduce_scatter, gather, scatter, all_to_all,
    /// sendrecv or barrier
    #[arg(default_value = "all_reduce", value_parser = parse_collective)]
    pub collective: Collective,

    #[command(flatten)]
    pub job: JobFlags,

    /// Run the ranks as threads of this process instead of processes
    #[arg(long)]
    pub threads: bool,

    #[command(flatten)]
    pub span: SizeSpan,

    #[command(flatten)]
    pub on: DeviceFlags,

    /// Timed iterations (-n as in nccl-tests; in `ringfold run`, -n is --ranks)
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(1..=MAX_ITERATIONS as i64),
    )]
    pub iters: u32,

    /// Untimed warm-up iterations
    #[arg(
        short = 'w',
        long = "warmup-iters",
        alias = "warmup_iters",
        value_name = "N",
        default_value_t = 1
    )]
    pub warmup_iters: u32,

    /// Checked iterations, each with new data; 0 checks nothing
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1)]
    pub check: u32,

    /// Operation: sum, prod, min, max, avg, premul_sum, band, bor, bxor, or all
    #[arg(short = 'o', long, value_name = "OP", default_value = "sum", value_parser = parse_op)]
    pub op: Selection<OpName>,

    /// Data type: int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, bool,
    /// float8_e4m3, float8_e5m2, or all
    #[arg(
        short = 'd',
        long,
        alias = "dtype",
        value_name = "TYPE",
        default_value = "float32",
        value_parser = parse_dtype,
    )]
    pub datatype: Selection<DType>,

    /// Root rank, or all
    #[arg(short = 'r', long, value_name = "RANK", default_value = "0", value_parser = parse_root)]
    pub root: Selection<usize>,

    /// Number of times to run the whole sweep; 0 runs it until interrupted
    #[arg(
        short = 'N',
        long = "run-cycles",
        alias = "run_cycles",
        value_name = "N",
        default_value_t = 1
    )]
    pub run_cycles: u32,

    /// Time of an iteration, from the ranks' times: 0 is rank 0's, 1 the mean, 2 the fastest, 3 the
    /// slowest
    #[arg(
        short = 'a',
        long,
        value_name = "HOW",
        default_value_t = 3,
        value_parser = clap::value_parser!(u8).range(0..=3),
    )]
    pub average: u8,

    /// Put a barrier before every timed call (1), or call back to back (0)
    ///
    /// On devices, 1 also makes the host wait for each call to finish; with 0, all calls are
    /// enqueued, and the host waits for the last one.
    #[arg(
        short = 'z',
        long,
        value_name = "0|1",
        default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(0..=1),
    )]
    pub blocking: u8,

    /// Write one element of every cache line of the input before each iteration, untimed, as a
    /// training step would: data that is never rewritten stays in the reader's cache and makes
    /// results look better than they are
    #[arg(long)]
    pub rewrite: bool,

    /// Add a table of late ranks: how often they were late, and by how much; also added to the JSON
    #[arg(long)]
    pub stats: bool,

    /// Add columns with the minimum, the maximum and the spread of iterations, and add the time of
    /// each iteration to the JSON; -I alone means 1
    #[arg(
        short = 'I',
        long = "per-iter-timing",
        alias = "per_iter_timing",
        value_name = "0|1",
        default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=1),
        num_args = 0..=1,
        default_missing_value = "1",
    )]
    pub per_iter_timing: u8,

    /// Add the time of day to every line; -S alone means 1
    #[arg(
        short = 'S',
        long = "report-timestamps",
        alias = "report_timestamps",
        value_name = "0|1",
        default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=1),
        num_args = 0..=1,
        default_missing_value = "1",
    )]
    pub report_timestamps: u8,

    /// Use this algorithm instead of the tuner's choice: flat, ring, tree, recursive_doubling,
    /// rabenseifner, direct, one_shot, push, hierarchical, leader, multi_leader, claim, serve,
    /// stragglar
    #[arg(short = 'A', long, value_name = "NAME", value_parser = parse_algorithm)]
    pub algorithm: Option<ringfold::Method>,

    /// The rank that arrives late, for --algorithm stragglar [default: RINGFOLD_LATE_RANK]
    #[arg(long, value_name = "RANK")]
    pub late_rank: Option<usize>,

    /// Bypass a slow rank in all_reduce and reduce_scatter above 32K: off, next2, tail [default:
    /// RINGFOLD_STRAGGLER, else off]
    ///
    /// off: no bypass. next2: a late sum bypasses the next rank. tail: a late sum goes straight to
    /// the rank that owns the result. See docs/guides/stragglers.md.
    #[arg(long, value_name = "POLICY")]
    pub straggler: Option<StragglerPolicy>,

    /// For experiments: duration of every reduction of a message, as if a device did it, such as
    /// 10ms
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub reduce_time: Option<Duration>,

    /// For experiments: delay of some reductions, as in `ringfold sim`:
    /// rank=1,step=1,delay=60ms,p=0.5
    ///
    /// May be repeated. Applies to messages: with --straggler, or --algorithm ring.
    #[arg(long, value_name = "WORDS")]
    pub slow: Vec<Slow>,

    /// Maximum number of independent pipelines of a collective over messages [default: 1; over
    /// RDMA, one for each rail]
    #[arg(long, value_name = "N")]
    pub channels: Option<usize>,

    /// Each rank's share of all-reduces above 32K: auto, or a number per rank
    ///
    /// 1,1,1,0: three ranks own a third each; the last rank, with a slow link, owns nothing. auto:
    /// the shares are measured once, before the table. Only the algorithm direct has shares, so
    /// --algorithm must be direct or omitted.
    #[arg(long, value_name = "LIST|auto")]
    pub weights: Option<Weighting>,

    /// Bytes of a slice, the pipeline's unit [default: the tuner's]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub slice_bytes: Option<u64>,

    /// Draw bus bandwidth over size into this file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,

    /// Write all results as JSON in nccl-tests' format; - is standard output, without the table
    #[arg(
        short = 'J',
        long = "json",
        alias = "output_file",
        alias = "output-file",
        value_name = "FILE|-"
    )]
    pub json: Option<PathBuf>,

    /// Write one line per size and placement as CSV; - is standard output, without the table
    #[arg(long, value_name = "FILE|-")]
    pub csv: Option<PathBuf>,

    #[command(flatten)]
    pub refused: Refused,
}

const EXAMPLES: &str = "\
Examples:
  ringfold perf                                   all_reduce, 8 B to 64 MiB, one rank per core
  ringfold perf --ranks 4 -b 1M -e 256M           four ranks, larger sizes
  ringfold perf all_gather -d bfloat16 -n 100     another collective, type and number of iterations
  ringfold perf --algorithm ring --transport tcp  one algorithm and transport
  ringfold perf --plot curve.svg --csv rows.csv   a curve and a file for other programs
  ringfold perf --device cuda -e 256M             on GPUs, one rank each in turn
  mpirun -n 4 ringfold perf                       under a launcher: no --ranks";

impl PerfArguments {
    /// Returns the slowdown of reductions, if one is requested.
    pub fn injection(&self) -> Option<Injection> {
        let is_wanted = self.reduce_time.is_some() || !self.slow.is_empty();
        is_wanted.then(|| Injection {
            reduce: self.reduce_time.unwrap_or_default(),
            slow: self.slow.clone(),
            seed: 0,
        })
    }

    /// Returns the parameters of the measurement, the same for every size.
    pub fn settings(&self) -> BenchSettings {
        BenchSettings {
            collective: self.collective,
            iters: self.iters,
            warmup_iters: self.warmup_iters,
            check: self.check,
            average: self.average,
            has_barriers: self.blocking == 1,
            rewrite: self.rewrite,
            is_registered: self.job.local_register == 1,
            stats: self.stats,
            algorithm: self.algorithm,
            timeout: self.job.timeout,
            devices: self
                .on
                .device
                .clone()
                .map(|devices| (devices, self.on.config())),
        }
    }

    /// Checks everything that can be checked without the ranks.
    pub fn check(&self) -> Result<()> {
        self.sizes(1)?;
        if is_stdout(&self.csv) && is_stdout(&self.json) {
            bail!(
                "`--csv -` and `--json -` would mix on standard output; write one of them to a file"
            );
        }
        if self.run_cycles == 0 && (self.json.is_some() || self.plot.is_some()) {
            bail!(
                "`--run-cycles 0` never ends, so `--json` and `--plot` would never be written; use \
                 `--csv`"
            );
        }
        if matches!(self.collective, Collective::Send | Collective::Recv) {
            bail!(
                "`{}` is only one end of a message; measure `sendrecv`",
                self.collective
            );
        }
        self.check_weights()?;
        self.check_algorithm()?;
        self.cases(1).map(|_| ())
    }

    /// Checks that the algorithm serves the collective, over any medium.
    fn check_algorithm(&self) -> Result<()> {
        let Some(algorithm) = self.algorithm else {
            return Ok(());
        };
        let served = |access: &Access| Schedule::methods(self.collective, *access);
        let served = Access::ALL.iter().flat_map(served);
        let names: BTreeSet<&str> = served.map(ringfold::Method::name).collect();
        if !names.contains(algorithm.name()) {
            let names: Vec<&str> = names.into_iter().collect();
            bail!(
                "`{algorithm}` is no algorithm of {}; there are {}",
                self.collective,
                names.join(", ")
            );
        }
        Ok(())
    }

    /// Checks that weights are for all_reduce by direct only.
    fn check_weights(&self) -> Result<()> {
        let algorithm = self.algorithm.unwrap_or(ringfold::Method::Direct);
        match (self.collective, algorithm) {
            _ if self.weights.is_none() => Ok(()),
            (Collective::AllReduce, ringfold::Method::Direct) => Ok(()),
            (collective, _) => bail!(
                "`--weights` are for all_reduce by direct, not for {collective} by {algorithm}; \
                 omit one of them"
            ),
        }
    }

    /// Whether standard output belongs to `--csv -` or `--json -`.
    pub fn stdout_is_data(&self) -> bool {
        is_stdout(&self.csv) || is_stdout(&self.json)
    }

    /// Returns the requested sizes, in bytes.
    pub fn sizes(&self, element_bytes: u64) -> Result<Vec<u64>> {
        self.span.sizes(self.collective, element_bytes)
    }

    /// Returns every requested combination of type, operation and root.
    pub fn cases(&self, world_size: usize) -> Result<Vec<Case>> {
        let roots = match self.collective.has_root() {
            true => self
                .root
                .among(0..world_size)
                .into_iter()
                .map(Some)
                .collect(),
            false => vec![None],
        };
        let mut cases = Vec::new();
        for dtype in self.datatype.among(DType::ALL.iter().copied()) {
            for op in self.ops_for(dtype)? {
                cases.extend(roots.iter().map(|&root| Case { dtype, op, root }));
            }
        }
        if self.collective == Collective::Barrier {
            cases.truncate(1);
        }
        Ok(cases)
    }

    /// Returns the operations to measure with `dtype`. Fails if a single operation is requested for
    /// a single type that does not have it.
    fn ops_for(&self, dtype: DType) -> Result<Vec<Option<OpName>>> {
        if !self.collective.reduces() {
            return Ok(vec![None]);
        }
        let exists = |name: OpName| name.parse::<Op>().and_then(|op| op.check(dtype));
        if let (Selection::One(op), Selection::One(_)) = (self.op, self.datatype) {
            exists(op)?;
        }
        let asked = self.op.among(Op::NAMES).into_iter();
        Ok(asked.filter(|&op| exists(op).is_ok()).map(Some).collect())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        arguments: PerfArguments,
    }

    /// Returns the arguments of `ringfold perf` with this command line.
    pub fn arguments(line: &str) -> PerfArguments {
        CommandLine::parse_from(format!("perf {line}").split_whitespace()).arguments
    }

    #[test]
    fn the_default_sweep_is_8_bytes_to_64_mebibytes_by_two() {
        let sizes = arguments("").sizes(4).unwrap();
        assert_eq!(sizes.len(), 24);
        assert_eq!((sizes[0], sizes[23]), (8, 64 << 20));
    }

    #[test]
    fn sizes_step_by_addition_when_told() {
        assert_eq!(
            arguments("-b 8 -e 20 -i 4").sizes(4).unwrap(),
            [8, 12, 16, 20]
        );
        assert_eq!(
            arguments("-b 1K -e 9K -f 3").sizes(4).unwrap(),
            [1024, 3072, 9216]
        );
        assert_eq!(arguments("-b 0 -e 16").sizes(4).unwrap(), [0, 4, 8, 16]);
        assert_eq!(arguments("-b 256M").sizes(4).unwrap(), [256 << 20]);
        assert_eq!(arguments("-e 4").sizes(4).unwrap(), [4]);
        assert!(arguments("-b 16 -e 8").check().is_err());
        assert!(arguments("-b 8 -e 16 -i 0").check().is_err());
        assert!(arguments("-b 0 -e 1G -i 1").check().is_err());
    }

    #[test]
    fn all_means_every_combination_that_exists() {
        let every = arguments("-o all -d all").cases(2).unwrap();
        let integers = 8 * 8;
        let floats = 6 * 6;
        let bools = 7;
        assert_eq!(every.len(), integers + floats + bools);
        assert_eq!(
            arguments("broadcast -d all -r all").cases(3).unwrap().len(),
            15 * 3
        );
        assert!(arguments("-o band -d float").check().is_err());
        assert_eq!(
            arguments("all_gather -o band").cases(2).unwrap()[0].op,
            None
        );
    }

    #[test]
    fn flags_of_nccl_tests_are_understood() {
        let given = arguments(
            "-b 8 -e 1M -f 2 -n 5 -w 2 -c 1 -o mulsum -d half -t 1 -g 1 -z 1 -T 30 -a 1 -N 2 -I 1 \
             -R 0",
        );
        given.check().unwrap();
        assert_eq!(given.op, Selection::One("premul_sum"));
        assert_eq!(given.datatype, Selection::One(DType::F16));
        assert_eq!(given.per_iter_timing, 1);
    }

    #[test]
    fn weights_are_for_all_reduce_by_direct() {
        let given = arguments("--weights 1,1,0 -A direct");
        given.check().unwrap();
        assert_eq!(given.weights, Some(Weighting::Each(vec![1, 1, 0])));
        arguments("--weights auto").check().unwrap();
        for line in ["--weights auto -A ring", "all_gather --weights 1,2"] {
            let error = arguments(line).check().unwrap_err().to_string();
            assert!(error.contains("--weights"), "{error}");
        }
    }

    #[test]
    fn flags_that_mean_nothing_here_say_why() {
        for (line, word) in [("-g 2", "--ranks"), ("-G 1", "graph")] {
            let words = format!("perf {line}");
            let parsed = CommandLine::try_parse_from(words.split_whitespace());
            let error = parsed.err().expect("an error").to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
