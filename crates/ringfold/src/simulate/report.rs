//! Results of a simulation: times, traffic, the critical path, broken promises.

use super::Scenario;
use super::timed::Timed;
use crate::error::Error;
use crate::simulate::network::World;
pub use crate::simulate::network::record::{LinkUse, PathKind, PathPart, TimelineLane, TraceEvent};

/// Result of simulating a [`Scenario`]. All times are picoseconds since the ranks began.
#[derive(Clone, Debug)]
pub struct Report {
    /// The scenario, with the tuner's choices filled in.
    pub scenario: Scenario,
    /// Time at which the last rank's call returned.
    pub finished_ps: u64,
    /// Completion time of the last of `chunks`; `finished_ps` if there are none.
    pub results_ps: u64,
    /// Completion time of each rank's last reduction: in a ring and in a direct reduction, that of
    /// the rank's own part. Empty with barriers.
    pub chunks: Vec<ChunkResult>,
    /// Report of each rank.
    pub ranks: Vec<RankReport>,
    /// Traffic by sender and receiver; empty with barriers, which send, too.
    pub links: Vec<LinkUse>,
    /// The critical path, from the start without gaps: each part ends where the next begins.
    pub critical_path: Vec<PathPart>,
    /// Time of the critical path spent on each rank: reducing, copying, sending, being late. A
    /// wire's latency counts for no rank.
    pub blame_ps: Vec<u64>,
    /// Number of events of the simulated machines.
    pub events: u64,
    /// Broken promises; empty if all is well.
    pub promises: Vec<BrokenPromise>,
    /// Timelines of all ranks, if the scenario asks for them.
    pub trace: Vec<TraceEvent>,
}

/// Completion of a result on the rank that computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkResult {
    /// Number of the chunk: its owner's.
    pub chunk: u32,
    /// The rank that owns the chunk.
    pub owner: usize,
    /// Completion time.
    pub complete_ps: u64,
}

/// Report of one rank.
#[derive(Clone, Debug)]
pub struct RankReport {
    /// Time at which the rank's call returned or the rank died; with barriers, the call's duration.
    pub finished_ps: u64,
    /// Result of the rank's call; for a rank that died, the error that the others get.
    pub outcome: Result<(), Error>,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Number of messages sent.
    pub sent_messages: u64,
    /// Time spent on reductions, including the delays of slow ones; concurrent ones each count.
    pub reduce_ps: u64,
    /// Time of the call in which the rank computed nothing.
    pub waited_ps: u64,
}

/// A promise of the design, checked during a simulation and at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// A call that returns Ok has the right result.
    Exact,
    /// No rank waits forever.
    NoDeadlock,
    /// A call ends by its deadline.
    Deadline,
    /// Every survivor of a death learns in time which rank died.
    Detection,
    /// The class of an error is the same on all ranks.
    SameClass,
    /// The output of a failed call is no longer touched.
    Untouched,
    /// Every message is consumed exactly once.
    ExactlyOnce,
}

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenPromise {
    /// The promise.
    pub promise: Promise,
    /// Time at which the violation was detected.
    pub at_ps: u64,
    /// The rank concerned, if it is a single one.
    pub rank: Option<usize>,
    /// Description of the violation.
    pub what: String,
}

impl Report {
    /// Builds the report of a run.
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

    /// Whether every rank returned Ok and every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.promises.is_empty() && self.ranks.iter().all(|rank| rank.outcome.is_ok())
    }
}

/// Returns the parts that the last rank waited for, up to the end of its call.
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

/// Returns the network's timelines, with the ranks' calls and stalls.
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
        trace.push(whole(rank, TimelineLane::Call, begin_ps, end_ps));
        for (from_ps, until_ps) in scenario.stalls(rank) {
            trace.push(whole(rank, TimelineLane::Stall, from_ps, until_ps));
        }
    }
    trace.sort_by_key(|event| (event.rank, event.lane, event.begin_ps));
    trace
}
