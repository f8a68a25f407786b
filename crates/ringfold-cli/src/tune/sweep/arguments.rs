//! The flags of `ringfold tune sweep`.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use ringfold::{Collective, DType, Protocol};

use crate::bench::{BenchSettings, Case, JobFlags, SizeSpan};
use crate::parse::{OpName, Selection, parse_algorithm, parse_collective, parse_dtype, parse_op};

/// Maximum factor of the iterations for short calls, whose times spread more.
pub const MORE_ITERATIONS: u32 = 20;

/// Maximum number of iterations, whose times are kept and gathered.
const MAX_ITERATIONS: u32 = 1 << 14;

/// Measure all candidates for a collective at every size, and the default choice
///
/// A candidate is an algorithm with a protocol, and with --channels a number of channels. All
/// candidates alternate in one job, so they run under the same conditions. Every call begins after
/// a barrier, with data that was just written; its time is the slowest rank's. The output has a row
/// for each candidate, size and round, written as soon as it is measured. The same command resumes
/// an interrupted sweep. Under a launcher, joins the launcher's job; otherwise, or with --ranks,
/// starts the ranks itself.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SweepArguments {
    /// all_reduce, broadcast, reduce, all_gather, reduce_scatter, gather, scatter or all_to_all
    #[arg(default_value = "all_reduce", value_parser = parse_collective)]
    pub collective: Collective,

    #[command(flatten)]
    pub job: JobFlags,

    #[command(flatten)]
    pub span: SizeSpan,

    /// Timed calls per round; short calls get up to 20 times as many
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=MAX_ITERATIONS as i64),
    )]
    pub iters: u32,

    /// Untimed warm-up calls before the timed ones
    #[arg(
        short = 'w',
        long = "warmup-iters",
        value_name = "N",
        default_value_t = 2
    )]
    pub warmup_iters: u32,

    /// Number of rounds; 6 or more give 95 % confidence intervals of medians
    #[arg(
        long,
        value_name = "N",
        default_value_t = 6,
        value_parser = clap::value_parser!(u32).range(1..=1000),
    )]
    pub rounds: u32,

    /// Checked calls per measurement
    #[arg(short = 'c', long, value_name = "N", default_value_t = 0)]
    pub check: u32,

    /// Measure only these algorithms, and the default choice
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        value_parser = parse_algorithm,
    )]
    pub algorithms: Vec<ringfold::Method>,

    /// Measure only these protocols: ll, simple, zero_copy
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub protocols: Vec<Protocol>,

    /// Measure candidates over messages with each of these numbers of channels [default: the
    /// library's choice]
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=64),
    )]
    pub channels: Vec<u32>,

    /// Stop measuring a candidate once it has taken this many times as long as the best
    #[arg(long, value_name = "FACTOR", default_value_t = 4.0)]
    pub give_up: f64,

    /// File for the rows, as CSV; - is standard output. An existing file is continued
    #[arg(short = 'o', long, value_name = "FILE|-", default_value = "sweep.csv")]
    pub output: PathBuf,

    /// Replace an existing file
    #[arg(long)]
    pub overwrite: bool,

    /// Data type
    #[arg(
        short = 'd',
        long,
        value_name = "TYPE",
        default_value = "float32",
        value_parser = parse_dtype,
    )]
    pub datatype: Selection<DType>,

    /// Operation: sum, prod, min, max, avg, premul_sum, band, bor or bxor
    #[arg(long, value_name = "OP", default_value = "sum", value_parser = parse_op)]
    pub op: Selection<OpName>,

    /// Root rank
    #[arg(short = 'r', long, value_name = "RANK", default_value_t = 0)]
    pub root: usize,

    /// Measure in place
    #[arg(long)]
    pub in_place: bool,
}

const EXAMPLES: &str = "\
Examples:
  ringfold tune sweep                                   all_reduce, 8 B to 64 MiB, one rank per core
  ringfold tune sweep --ranks 4 -b 1M -o large.csv         four ranks, large sizes
  ringfold tune sweep --transport tcp --channels 1,2,4     candidates with more connections
  mpirun -n 4 ringfold tune sweep all_gather               under a launcher: no --ranks
  RINGFOLD_TUNER_CONFIG=tuned.csv ringfold tune sweep -o tuned-sweep.csv";

impl SweepArguments {
    /// Checks everything that can be checked without the ranks.
    pub fn check(&self) -> Result<()> {
        self.sizes()?;
        if self.give_up.is_nan() || self.give_up <= 1.0 {
            bail!(
                "`--give-up {}` would measure nothing twice; choose more than 1",
                self.give_up
            );
        }
        match self.collective {
            Collective::Send | Collective::Recv | Collective::SendRecv | Collective::Barrier => {
                bail!(
                    "`{}` has one candidate only; there is nothing to sweep",
                    self.collective
                )
            }
            _ => self.case().map(|_| ()),
        }
    }

    /// Checks that the root is a rank.
    pub fn check_root(&self, world_size: usize) -> Result<()> {
        let (root, last) = (self.root, world_size - 1);
        if self.collective.has_root() && root > last {
            bail!("there is no root rank {root}; ranks are 0 to {last}");
        }
        Ok(())
    }

    pub fn sizes(&self) -> Result<Vec<u64>> {
        self.span.sizes(self.collective, 1)
    }

    /// Returns the type, operation and root of every row.
    pub fn case(&self) -> Result<Case> {
        let Selection::One(dtype) = self.datatype else {
            bail!("a sweep has one data type; name it");
        };
        let Selection::One(op) = self.op else {
            bail!("a sweep has one operation; name it");
        };
        if self.collective.reduces() {
            op.parse::<ringfold::Op>()?.check(dtype)?;
        }
        Ok(Case {
            dtype,
            op: self.collective.reduces().then_some(op),
            root: self.collective.has_root().then_some(self.root),
        })
    }

    /// Returns the parameters of every measurement.
    pub fn settings(&self) -> BenchSettings {
        BenchSettings {
            collective: self.collective,
            iters: self.iters,
            warmup_iters: self.warmup_iters,
            check: self.check,
            average: SLOWEST,
            has_barriers: true,
            rewrite: true,
            is_registered: self.job.local_register == 1,
            stats: false,
            algorithm: None,
            timeout: self.job.timeout,
            devices: None,
        }
    }

    /// Returns the error for a collective without an in-place form.
    pub fn no_such_form(&self) -> String {
        format!("`{}` has no in-place form", self.collective)
    }

    /// Returns the output file, unless the rows go to standard output.
    pub fn file(&self) -> Option<&Path> {
        (self.output != Path::new("-")).then_some(self.output.as_path())
    }
}

/// The aggregation by the slowest rank's time, for which the others wait.
const SLOWEST: u8 = 3;
