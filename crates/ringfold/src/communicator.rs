//! The public API: a communicator and what its ranks do together.

use std::time::Duration;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::types::{Algorithm, Collective, DType, Op};

/// How many elements a request is about.
///
/// `AllReduce`, `Broadcast`, `Reduce`, `Send`, `Recv`, `SendRecv`: the whole buffer. `AllGather`, `Gather`: one rank's
/// input (the output has `world_size` times that). `ReduceScatter`, `Scatter`: one rank's output (the input has
/// `world_size` times that). `AllToAll`: one block (both have `world_size` blocks). `Barrier`: 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counts {
    /// The same for every rank.
    Even(u64),
    /// One count a rank, for `AllGather`, `Gather` (what each rank gives), `ReduceScatter`, `Scatter` (what each rank
    /// gets): the same list on every rank.
    PerRank(Vec<u64>),
    /// `AllToAll` only: what this rank gives to each rank, and gets from each.
    Pairwise {
        /// Elements for each rank, in rank order in the input.
        input: Vec<u64>,
        /// Elements from each rank, in rank order in the output.
        output: Vec<u64>,
    },
}

/// One call, untyped: what the typed methods, the bindings and `perf` are made of.
#[derive(Clone, Debug)]
pub struct Request {
    /// What to do.
    pub collective: Collective,
    /// The elements' type.
    pub dtype: DType,
    /// How they are combined; ignored where nothing is.
    pub op: Op,
    /// The root; for `Send` and `Recv` the peer. Ignored where there is none.
    pub root: usize,
    /// For `Send` and `Recv`: a number that must be the same at both ends.
    pub tag: u32,
    /// How many elements.
    pub counts: Counts,
    /// What is read; empty on ranks that give nothing. Same memory as (its part of) `output` means in place.
    pub input: Region,
    /// What is filled; empty on ranks that get nothing.
    pub output: Region,
    /// How, instead of the tuner's choice.
    pub algorithm: Option<Algorithm>,
    /// The deadline, instead of the communicator's.
    pub timeout: Option<Duration>,
}

impl Request {
    /// A request with the usual rest: `Sum`, root 0, tag 0, chosen algorithm, the communicator's deadline.
    pub fn new(
        collective: Collective,
        dtype: DType,
        counts: Counts,
        input: Region,
        output: Region,
    ) -> Request {
        Request {
            collective,
            dtype,
            op: Op::Sum,
            root: 0,
            tag: 0,
            counts,
            input,
            output,
            algorithm: None,
            timeout: None,
        }
    }
}

/// A group of ranks that communicate.
///
/// Every rank makes the same collective calls in the same order; a difference is an `Error::Mismatch`. All methods may
/// be called from any thread; calls of several threads on one communicator are executed in the order in which they came.
#[derive(Debug)]
pub struct Communicator {
    rank: usize,
    world_size: usize,
}

/// A call that is under way. Dropping it waits for the call, because the call uses the caller's buffers.
#[derive(Debug)]
pub struct Work {}

/// What a communicator chose for a request: for `perf` and the log.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// `shm`, `tcp`, `shm+tcp` or `local`.
    pub transport: &'static str,
}

impl Communicator {
    /// Joins the job that the environment describes. One process without such an environment is a job of one rank.
    pub fn init() -> Result<Communicator> {
        Communicator::connect(Config::default())
    }

    /// Joins a job.
    pub fn connect(config: Config) -> Result<Communicator> {
        let _ = config;
        Err(Error::Unsupported("not written yet".into()))
    }

    /// This process' rank in this communicator.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// This rank's number among the ranks of its host.
    pub fn local_rank(&self) -> usize {
        0
    }

    /// The number of ranks on this host.
    pub fn local_size(&self) -> usize {
        1
    }

    /// The number of hosts.
    pub fn hosts(&self) -> usize {
        1
    }

    /// Does `request` and returns when it is done on this rank.
    ///
    /// # Safety
    /// The regions are valid until this returns, and nobody else writes to `input` or touches `output` meanwhile.
    pub unsafe fn run(&self, request: &Request) -> Result<()> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.run_with(request, &mut || Ok(())) }
    }

    /// Like `run`, and calls `on_wait` at least every 50 ms while it waits. When `on_wait` fails (Ctrl-C), the
    /// communicator is aborted on all ranks and the error is returned.
    ///
    /// # Safety
    /// As for `run`.
    pub unsafe fn run_with(
        &self,
        request: &Request,
        on_wait: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let _ = (request, on_wait);
        Err(Error::Unsupported("not written yet".into()))
    }

    /// Starts `request` and returns at once; it is carried out by the communicator's own thread.
    ///
    /// # Safety
    /// As for `run`, until the work is done (waited for, or `is_done`).
    pub unsafe fn start(&self, request: Request) -> Result<Work> {
        let _ = request;
        Err(Error::Unsupported("not written yet".into()))
    }

    /// What would be chosen for this request.
    pub fn choice(&self, request: &Request) -> Result<Choice> {
        let _ = request;
        Err(Error::Unsupported("not written yet".into()))
    }

    /// Makes communicators of the ranks with equal `color`, ordered by `key`, then by rank here. Every rank calls it;
    /// `None` as color takes part and gets nothing.
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>> {
        let _ = (color, key);
        Err(Error::Unsupported("not written yet".into()))
    }

    /// Ends this communicator on all ranks: whoever waits in it gets `Error::Aborted` with this rank and `reason`.
    pub fn abort(&self, reason: &str) {
        let _ = reason;
    }

    /// Leaves in good order: waits for this rank's outstanding work, tells the others, frees everything. Later calls
    /// fail with `Error::Closed`. Not collective.
    pub fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl Work {
    /// Waits until the call is done on this rank.
    pub fn wait(&self) -> Result<()> {
        Ok(())
    }

    /// Waits at most `timeout`; whether the call is done. The call goes on when it is not.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        let _ = timeout;
        Ok(true)
    }

    /// Whether the call is done, well or not; `wait` then returns at once.
    pub fn is_done(&self) -> bool {
        true
    }
}
