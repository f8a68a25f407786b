//! The longest path: the time of a call by one pass over the rounds of its schedules, for worlds
//! that are too large for engines.
//!
//! Without contention, no decision depends on events during the call: the end of a step follows
//! from the steps before it, so the total time is the longest path through them. The pass follows
//! all ranks round by round and keeps the state between rounds: each rank's clock, until when its
//! ports and its server are taken, and the steps that are not complete. Steps are generated when
//! they are due ([`Rounds`]), so memory grows with the ranks and not with the steps.
//!
//! It gives the same times as [`run`](super::run), to the picosecond, or none: if the order of two
//! messages at a port or of two reductions is not the order of the rounds, [`longest_path`] returns
//! `Unsupported`, and the simulation must be run. A message may wait for a port, as long as the
//! order is clear. No data is moved, and no guarantee is checked: use `run` for that.

mod pending;
mod rank;
mod round;

use super::scenario::{Disturbance, Scenario};
use super::{Sending, prepare};
use crate::engine::geometry::{Blocks, Geometry};
use crate::error::{Error, Result};
use crate::schedule::rounds::Rounds;
use crate::schedule::{Access, Cut, Schedule, Spec, Step};
use crate::simulate::network::model::Ports;
use round::Pass;

/// The most steps of all ranks together that are kept where they cannot be made round by round.
const STEPS_KEPT_MAX: usize = 1 << 24;

/// What in a call makes a pass over it impossible.
type Refusal = &'static str;

/// What the pass found. All times are picoseconds since the ranks began.
#[derive(Clone, Debug, PartialEq)]
pub struct LongestPath {
    /// What was simulated, with what the tuner chose filled in.
    pub scenario: Scenario,
    /// When the last rank's call returned.
    pub finished_ps: u64,
    /// When the last reduction was done; `finished_ps` where nothing is reduced.
    pub results_ps: u64,
    /// Each rank's part.
    pub ranks: Vec<RankOnPath>,
}

/// One rank's part in the longest path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankOnPath {
    /// When its call returned.
    pub finished_ps: u64,
    /// When it had done its last reduction, if it had any.
    pub reduced_ps: Option<u64>,
    /// Payload that it sent.
    pub sent_bytes: u64,
    /// Messages that it sent.
    pub sent_messages: u64,
}

/// Whether nothing in a scenario rules out a [`longest_path`]. The order of events may still turn
/// out not to be that of the rounds, because of slow ranks, in all algorithms except rings.
pub fn fits_longest_path(scenario: &Scenario) -> bool {
    obstacle(scenario).is_none()
}

/// Simulates one call by a single pass. Deterministic; blocks for some 50 ns per message.
///
/// # Errors
///
/// `InvalidArgument` for impossible scenarios, `Unsupported` for those that need
/// `run`: see [`fits_longest_path`].
pub fn longest_path(scenario: &Scenario) -> Result<LongestPath> {
    scenario.check()?;
    if let Some(what) = obstacle(scenario) {
        return Err(unsupported(what));
    }
    let choice = prepare::choice(scenario)?;
    let resolved = prepare::resolve(scenario)?;
    let source = Source::new(&Spec {
        root: scenario.root as u32,
        ..Spec::new(
            scenario.collective,
            choice.algorithm,
            Access::Messages,
            scenario.ranks as u32,
        )
    })?;
    let longest_bytes = scenario.count() * scenario.dtype.size_bytes() as u64;
    // As a request rounds it.
    let slice_bytes = choice.slice_bytes.max(64) as u64 / 64 * 64;
    if longest_bytes > slice_bytes && !source.needs_one_slice() {
        return Err(unsupported("a call in several slices"));
    }
    if choice.channels > 1 {
        return Err(unsupported("several channels"));
    }
    let ranks = Pass::new(&resolved, &source)
        .run(source)
        .map_err(unsupported)?;
    let last = |of: fn(&RankOnPath) -> Option<u64>| ranks.iter().filter_map(of).max();
    let finished_ps = last(|rank| Some(rank.finished_ps)).unwrap_or(0);
    Ok(LongestPath {
        finished_ps,
        results_ps: last(|rank| rank.reduced_ps).unwrap_or(finished_ps),
        ranks,
        scenario: resolved,
    })
}

/// What in a scenario makes things wait for each other in an order that follows from time alone.
fn obstacle(scenario: &Scenario) -> Option<Refusal> {
    let network = &scenario.network;
    let local = network.local.iter();
    let mut links = local.chain([&network.links]);
    let breaks = |disturbance: &Disturbance| {
        matches!(
            disturbance,
            Disturbance::Stall { .. } | Disturbance::Dead { .. }
        )
    };
    if network.sending != Sending::Eager {
        Some("rendezvous")
    } else if network.ports != Ports::Full {
        Some("half-duplex ports")
    } else if !network.switches.is_empty() {
        Some("shared switches")
    } else if network.memory_ps_per_byte.is_some() || network.cores_per_host.is_some() {
        Some("hosts that share memory or cores")
    } else if links.any(|links| links.overhead_ps > 0) {
        Some("overheads on a processor")
    } else if scenario.disturbances.iter().any(breaks) {
        Some("ranks that stall or die")
    } else if scenario.weights.is_some() {
        Some("weighted ranks")
    } else if scenario.straggler.is_some() {
        Some("ranks that go around each other")
    } else {
        None
    }
}

#[cold]
fn unsupported(what: Refusal) -> Error {
    Error::Unsupported(format!(
        "the longest path of {what} is not known; run the simulation instead"
    ))
}

/// Where steps come from.
enum Source {
    Rounds(Rounds),
    /// All of them, by rank, and how many are used up.
    Whole(Vec<Schedule>, Vec<usize>),
}

impl Source {
    fn new(spec: &Spec) -> Result<Source> {
        if let Some(rounds) = Rounds::new(spec)? {
            return Ok(Source::Rounds(rounds));
        }
        let ranks = spec.world_size as usize;
        let mut schedules = Vec::with_capacity(ranks);
        let mut steps = 0;
        for rank in 0..spec.world_size {
            let schedule = Schedule::new(Spec { rank, ..*spec })?;
            steps += schedule.channels.iter().map(Vec::len).sum::<usize>();
            if steps > STEPS_KEPT_MAX {
                return Err(unsupported("so many steps that are not made one by one"));
            }
            schedules.push(schedule);
        }
        Ok(Source::Whole(schedules, vec![0; ranks]))
    }

    fn needs_one_slice(&self) -> bool {
        match self {
            Source::Rounds(_) => false,
            Source::Whole(schedules, _) => schedules.iter().any(Schedule::needs_one_slice),
        }
    }

    fn rounds(&self) -> u32 {
        match self {
            Source::Rounds(rounds) => rounds.count(),
            Source::Whole(schedules, _) => schedules[0].rounds,
        }
    }

    fn cuts(&self) -> (Cut, Cut) {
        match self {
            Source::Rounds(rounds) => rounds.cuts(),
            Source::Whole(schedules, _) => (schedules[0].input, schedules[0].output),
        }
    }

    /// What a rank does in a round; rounds are asked for in order.
    #[inline(always)]
    fn steps(&mut self, rank: usize, round: u32) -> &[Step] {
        match self {
            Source::Rounds(rounds) => rounds.steps(rank as u32, round),
            Source::Whole(schedules, used) => {
                let begin = used[rank];
                let rest = &schedules[rank].channels[0][begin..];
                let count = rest.partition_point(|step| step.round == round);
                used[rank] = begin + count;
                &rest[..count]
            }
        }
    }
}

/// Where each chunk of a buffer begins, in bytes, and where the last one ends.
pub(super) struct Chunks(Vec<u64>);

impl Chunks {
    pub fn new(cut: Cut, scenario: &Scenario) -> Chunks {
        let count = scenario.count();
        let (chunks, size) = (cut.chunks(), scenario.dtype.size_bytes());
        let geometry = Geometry::new(cut, Blocks::Even(count), size, count, 1);
        let starts = (0..chunks).map(|chunk| geometry.range(chunk, 1, 0).start as u64);
        let end = geometry.range(0, chunks, 0).end as u64;
        Chunks(starts.chain([end]).collect())
    }

    pub fn bytes(&self, first: u32, len: u32) -> u64 {
        self.0[(first + len) as usize] - self.0[first as usize]
    }
}

#[cfg(test)]
mod tests;
