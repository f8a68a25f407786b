//! The late-merge ring: a ring reduction that bypasses a slow rank and stays exact.
//!
//! # Model
//!
//! In a ring each chunk of a vector travels once around: position 0 sends what it has, every next
//! position adds its own, and the last one, the chunk's *owner*, has the result. A slow rank holds
//! up all ranks behind it. Here a partial sum is a *piece* that says which positions it holds,
//! always an [`Interval`](station::Interval), and a rank need not wait for the one before it: it
//! *splits*, sends its own contribution alone and lets the late piece go past it. Two signals keep
//! neighbours together:
//!
//! * `LATE`, from a rank that sees that its own reduction takes too long, to the next: go on
//!   without me, my sum goes past you.
//! * `SKIP`, from a rank that has waited too long and split, to the one before: if your sum has not
//!   left, send it past me.
//!
//! Where the late sum goes is the [`Target`]: to the rank after the next, which waits for both
//! (`next2`, as in the paper that this comes from: "skip the slow node", 邮电设计技术 2024-02), or
//! straight to the owner while the chain goes on without it (`tail`, which hides more).
//!
//! # Invariants
//!
//! * Custody: every contribution is in one place, a rank's buffer or one message; sending moves it.
//! * Pieces that meet are disjoint, else the call ends as `Corrupt`. The owner is done when it has
//!   all positions.
//! * A piece only ever moves to a higher position, so it arrives.
//! * A rank that has split stays until each piece that could still come to it has passed or was
//!   announced by `LATE` to go past it. So nothing but `SKIP` can come after a call's end, and that
//!   has a channel of its own.
//! * Timers make it faster or slower, never wrong.
//!
//! [`station`] is one chunk at one rank, without I/O; [`timers`] says when a rank is late, [`wire`]
//! what stands in headers; [`LateRing`] runs them over a transport.

mod carry;
mod clock;
pub mod places;
mod receive;
mod run;
pub mod station;
pub mod timers;
pub mod wire;

use places::Places;
pub use run::LateRing;
use timers::Estimates;

use super::Job;
use super::executor::Operation;
use crate::error::{Error, Result};
use crate::types::{Access, Algorithm, Collective};
use crate::units::nearest;

/// The most ranks: headers have ten bits for a position.
pub const RANKS_MAX: usize = 1 << wire::POSITION_BITS;

/// Where the sum of a late rank goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// To the rank after the next, which waits for it.
    Next2,
    /// To the chunk's owner; the ranks between do not wait.
    Tail,
}

impl Target {
    /// Both of them.
    pub const ALL: [Target; 2] = [Target::Next2, Target::Tail];

    /// The name used in commands and variables.
    pub fn name(self) -> &'static str {
        match self {
            Target::Next2 => "next2",
            Target::Tail => "tail",
        }
    }
}

impl std::str::FromStr for Target {
    type Err = Error;
    fn from_str(text: &str) -> Result<Target> {
        let known = Target::ALL.iter().find(|target| target.name() == text);
        known.copied().ok_or_else(|| {
            let nearest = nearest(text, Target::ALL.iter().map(|target| target.name()));
            Error::InvalidArgument(format!(
                "unknown target `{text}`; did you mean {nearest}? One of next2, tail"
            ))
        })
    }
}

/// Which ranks decide to split, and which signals they send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signals {
    /// A rank whose reduction takes too long sends `LATE` to the next one, which then splits.
    pub late: bool,
    /// A rank that waits too long splits, and sends `SKIP` to the one before.
    pub skip: bool,
    /// The paper's literal rule: both act by their own timers, and neither acts on a signal.
    pub silent: bool,
}

impl Signals {
    /// What the product does.
    pub const BOTH: Signals = Signals {
        late: true,
        skip: true,
        silent: false,
    };

    /// Whether a rank watches its own reductions.
    pub fn watches(self) -> bool {
        self.late || self.silent
    }

    /// Whether a rank that waits too long splits.
    pub fn times_out(self) -> bool {
        self.skip || self.silent
    }
}

/// How long is too long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Timers {
    /// From times that are known beforehand, as the paper has it.
    Fixed {
        /// How many times a reduction's time is too long.
        alpha: f64,
        /// How long one takes.
        reduce_ps: u64,
        /// How long a message takes.
        transfer_ps: u64,
    },
    /// From running estimates for each size, see [`timers`].
    Running {
        /// How many times the estimate is too long.
        alpha: f64,
        /// The shortest time that is too long: more than what a scheduler takes a core away for.
        floor_ps: u64,
    },
}

/// How the ranks of a communicator bypass a slow one; the same on all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Where the late sum goes.
    pub target: Target,
    /// Which ranks decide.
    pub signals: Signals,
    /// When.
    pub timers: Timers,
}

/// How many times the usual is too long: the paper's smallest.
pub const ALPHA: f64 = 1.8;

/// The shortest wait that is too long where each rank has a core.
pub const FLOOR_PS: u64 = 200_000_000;

/// The same where ranks outnumber cores.
pub const FLOOR_CROWDED_PS: u64 = 2_000_000_000;

impl Policy {
    /// The product's policy for this target.
    pub fn new(target: Target, is_crowded: bool) -> Policy {
        Policy {
            target,
            signals: Signals::BOTH,
            timers: Timers::Running {
                alpha: ALPHA,
                floor_ps: if is_crowded {
                    FLOOR_CROWDED_PS
                } else {
                    FLOOR_PS
                },
            },
        }
    }

    /// A number for it in its calls, so that ranks with different policies never combine their
    /// data.
    pub fn mark(&self) -> u32 {
        let Signals { late, skip, silent } = self.signals;
        let flags = [self.target == Target::Tail, late, skip, silent];
        flags
            .iter()
            .rev()
            .fold(0, |bits, flag| bits << 1 | u32::from(*flag))
    }
}

/// What is kept from one late-merge call to the next.
#[derive(Debug)]
pub struct LateMergeState {
    /// How they go.
    pub policy: Policy,
    /// The channel of `SKIP`.
    pub signal_channel: usize,
    /// Where pieces land.
    pub places: Places,
    /// How long things take.
    pub estimates: Estimates,
    /// The bookkeeping of the last call, for the next one.
    spare: Option<Box<LateRing>>,
}

impl LateMergeState {
    /// Whether a call like `job` among `world_size` ranks is one of these.
    pub fn serves(job: &Job, world_size: usize) -> bool {
        let is_ring = matches!(
            job.collective,
            Collective::AllReduce | Collective::ReduceScatter
        ) && (job.way.algorithm, job.way.access)
            == (Algorithm::Ring, Access::Messages);
        // Between two ranks there is no way around either.
        is_ring && world_size > 2
    }

    /// The executor of `operation`, at its beginning.
    pub fn ring(
        &mut self,
        operation: &Operation,
        rank: usize,
        world_size: usize,
    ) -> Result<Box<LateRing>> {
        if world_size > RANKS_MAX {
            return Err(Error::Unsupported(format!(
                "a straggler policy for {world_size} ranks; {RANKS_MAX} at most"
            )));
        }
        let mut ring = self.spare.take().unwrap_or_default();
        ring.reset(operation, rank, world_size, self.policy.target);
        Ok(ring)
    }

    /// Keeps the executor of a call that is done.
    pub fn keep(&mut self, ring: Box<LateRing>) {
        self.spare = Some(ring);
    }

    /// Nothing known yet.
    pub fn new(policy: Policy, signal_channel: usize) -> LateMergeState {
        LateMergeState {
            policy,
            signal_channel,
            places: Places::default(),
            estimates: Estimates::new(policy.timers),
            spare: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_differ_wherever_policies_do() {
        let mut marks = std::collections::HashSet::new();
        for target in Target::ALL {
            for bits in 0..8 {
                let signals = Signals {
                    late: bits & 1 != 0,
                    skip: bits & 2 != 0,
                    silent: bits & 4 != 0,
                };
                let policy = Policy {
                    signals,
                    ..Policy::new(target, false)
                };
                assert!(marks.insert(policy.mark()));
            }
        }
    }

    #[test]
    fn a_misspelt_target_is_told_its_neighbour() {
        let error = "tial".parse::<Target>().unwrap_err().to_string();
        assert!(error.contains("did you mean tail?"), "{error}");
    }
}
