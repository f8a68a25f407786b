//! What a simulation found: times, traffic, the critical path, broken promises.

use super::Scenario;
use super::timed::Timed;
use crate::error::Error;
use crate::simulate::network::World;
pub use crate::simulate::network::record::{Lane, LinkUse, PathKind, PathPart, TraceEvent};
use crate::types::Collective;

/// What came out of a [`Scenario`]. All times are picoseconds since the ranks began.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was simulated, with what the tuner chose filled in.
    pub scenario: Scenario,
    /// When the last rank's call returned.
    pub finished_ps: u64,
    /// When the last of `chunks` was complete; `finished_ps` where nothing is reduced.
    pub results_ps: u64,
    /// When each rank had completed its last reduction: in a ring and in a direct reduction, that
    /// of the part that it owns. Empty with barriers.
    pub chunks: Vec<ChunkResult>,
    /// Each rank's part.
    pub ranks: Vec<RankReport>,
    /// The bytes sent, by sender and receiver; empty with barriers, which send, too.
    pub links: Vec<LinkUse>,
    /// The critical path, from the start without gaps: each part ends where the next begins.
    pub critical_path: Vec<PathPart>,
    /// How much of the critical path was spent on each rank: reducing, copying, sending, being
    /// late. A wire's latency counts for no rank.
    pub blame_ps: Vec<u64>,
    /// Things that happened.
    pub events: u64,
    /// Promises that were not kept. Empty is good.
    pub promises: Vec<BrokenPromise>,
    /// What each rank did when, if the scenario asked for it.
    pub trace: Vec<TraceEvent>,
}

/// When a result was complete on the rank that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkResult {
    /// Which chunk: its owner's number.
    pub chunk: u32,
    /// The rank.
    pub owner: usize,
    /// When.
    pub complete_ps: u64,
}

/// One rank's part in a simulation.
#[derive(Clone, Debug)]
pub struct RankReport {
    /// When its call returned, or when it died.
    pub finished_ps: u64,
    /// The result of its call; for a rank that died, the error of the others.
    pub outcome: Result<(), Error>,
    /// Payload that it sent.
    pub sent_bytes: u64,
    /// Messages that it sent.
    pub sent_messages: u64,
    /// How long it reduced, slow reductions with their delay; those side by side count each.
    pub reduce_ps: u64,
    /// How much of its call it computed nothing at all.
    pub waited_ps: u64,
}

/// The promises that are checked after every event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// Ok means the right result.
    Exact,
    /// No rank waits for ever.
    NoDeadlock,
    /// A call ends by its deadline.
    Deadline,
    /// Every survivor of a death learns in time which rank died.
    Detection,
    /// The class of an error is the same on all ranks.
    SameClass,
    /// After an error a call's output is not touched any more.
    Untouched,
    /// What was posted is reported complete once.
    ExactlyOnce,
}

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenPromise {
    /// Which.
    pub promise: Promise,
    /// When that was seen.
    pub at_ps: u64,
    /// On which rank, if on one.
    pub rank: Option<usize>,
    /// In words.
    pub what: String,
}

impl Report {
    /// What the network and the ranks say after a run.
    pub(super) fn new(
        scenario: Scenario,
        world: &World,
        ranks: Vec<RankReport>,
        timed: &[Timed],
        promises: Vec<BrokenPromise>,
    ) -> Report {
        let finished_ps = ranks.iter().map(|rank| rank.finished_ps).max().unwrap_or(0);
        let states = world.ranks.iter().filter(|_| timed.is_empty());
        let reductions = states.enumerate().filter_map(|(rank, state)| {
            Some(ChunkResult {
                chunk: rank as u32,
                owner: rank,
                complete_ps: state.account.last_reduction_ps?,
            })
        });
        let chunks: Vec<ChunkResult> = reductions.collect();
        let results_ps = chunks.iter().map(|chunk| chunk.complete_ps).max();
        let critical_path = critical_path(world, &ranks, timed, finished_ps);
        let mut blame_ps = vec![0; ranks.len()];
        let not_wire = |part: &&PathPart| part.kind != PathKind::Wire;
        for part in critical_path.iter().filter(not_wire) {
            blame_ps[part.rank] += part.end_ps - part.begin_ps;
        }
        Report {
            finished_ps,
            results_ps: results_ps.unwrap_or(finished_ps),
            chunks,
            links: match scenario.has_barriers {
                true => Vec::new(),
                false => world.traffic(),
            },
            critical_path,
            blame_ps,
            events: world.events_passed,
            promises,
            trace: trace(world, &scenario, &ranks),
            ranks,
            scenario,
        }
    }

    /// Bytes per second of the call as nccl-tests defines them.
    pub fn algbw_bytes_per_s(&self) -> f64 {
        match self.finished_ps {
            0 => 0.0,
            ps => self.scenario.bytes as f64 / (ps as f64 * 1e-12),
        }
    }

    /// `algbw` times the minimum that the collective moves over a rank's port, as nccl-tests
    /// defines it.
    pub fn busbw_bytes_per_s(&self) -> f64 {
        use Collective::{AllGather, AllReduce, AllToAll, Gather, ReduceScatter, Scatter};
        let n = self.scenario.ranks as f64;
        let factor = match self.scenario.collective {
            AllReduce => 2.0 * (n - 1.0) / n,
            AllGather | ReduceScatter | AllToAll | Gather | Scatter => (n - 1.0) / n,
            _ => 1.0,
        };
        self.algbw_bytes_per_s() * factor
    }

    /// Whether every rank returned Ok and every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.promises.is_empty() && self.ranks.iter().all(|rank| rank.outcome.is_ok())
    }
}

/// What the last rank waited for, up to its end.
fn critical_path(
    world: &World,
    ranks: &[RankReport],
    timed: &[Timed],
    finished_ps: u64,
) -> Vec<PathPart> {
    let last = ranks
        .iter()
        .position(|rank| rank.finished_ps == finished_ps);
    let Some(rank) = last else {
        return Vec::new();
    };
    let mut path = match timed.get(rank) {
        Some(timed) => timed.path(world),
        None => world.path(rank),
    };
    let begin_ps = path.last().map_or(0, |part| part.end_ps);
    if begin_ps < finished_ps {
        let kind = match path.is_empty() {
            true => PathKind::Start,
            false => PathKind::Wait,
        };
        path.push(PathPart {
            rank,
            peer: None,
            kind,
            begin_ps,
            end_ps: finished_ps,
        });
    }
    path
}

/// The network's timelines, with the calls and what befell the ranks.
fn trace(world: &World, scenario: &Scenario, ranks: &[RankReport]) -> Vec<TraceEvent> {
    if !scenario.traces {
        return Vec::new();
    }
    let whole = |rank, lane, begin_ps, end_ps| TraceEvent {
        rank,
        lane,
        begin_ps,
        end_ps,
        peer: None,
        bytes: 0,
        slice: 0,
    };
    let mut trace = world.record.trace.clone();
    for (rank, begin_ps) in scenario.begins_ps().into_iter().enumerate() {
        let end_ps = ranks[rank].finished_ps;
        trace.push(whole(rank, Lane::Call, begin_ps, end_ps));
        for (from_ps, until_ps) in scenario.stalls(rank) {
            trace.push(whole(rank, Lane::Stall, from_ps, until_ps));
        }
    }
    trace.sort_by_key(|event| (event.rank, event.lane, event.begin_ps));
    trace
}
