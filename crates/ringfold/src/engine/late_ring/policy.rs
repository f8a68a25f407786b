//! The policy by which the ranks of a communicator bypass a slow rank.

use crate::error::{Error, Result};
use crate::units::nearest;

/// The destination of a late rank's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MergeTarget {
    /// The rank after the next, which waits for the sum.
    Next2,
    /// The chunk's owner; the ranks between do not wait.
    Tail,
}

impl MergeTarget {
    /// Both targets.
    pub const ALL: [MergeTarget; 2] = [MergeTarget::Next2, MergeTarget::Tail];

    /// Returns the name used in commands and variables.
    pub fn name(self) -> &'static str {
        match self {
            MergeTarget::Next2 => "next2",
            MergeTarget::Tail => "tail",
        }
    }
}

impl std::str::FromStr for MergeTarget {
    type Err = Error;
    fn from_str(text: &str) -> Result<MergeTarget> {
        let known = MergeTarget::ALL.iter().find(|target| target.name() == text);
        known.copied().ok_or_else(|| {
            let nearest = nearest(text, MergeTarget::ALL.iter().map(|target| target.name()));
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
    /// The signals that ringfold uses.
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

/// The rule for when a wait or a reduction takes too long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Timers {
    /// From durations that are known beforehand, as in the paper.
    Fixed {
        /// The multiple of a reduction's duration that is too long.
        alpha: f64,
        /// The duration of a reduction in picoseconds.
        reduce_ps: u64,
        /// The duration of a message in picoseconds.
        transfer_ps: u64,
    },
    /// From running estimates for each size, see [`timers`](super::timers).
    Running {
        /// The multiple of the estimate that is too long.
        alpha: f64,
        /// The shortest time that is too long, in picoseconds: longer than a scheduler takes a core
        /// away.
        floor_ps: u64,
    },
}

/// The policy by which ranks bypass a slow one; the same on all ranks of a communicator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LateMergePolicy {
    /// The destination of the late sum.
    pub target: MergeTarget,
    /// The ranks that decide, and their signals.
    pub signals: Signals,
    /// The rule for when a rank is late.
    pub timers: Timers,
}

/// The multiple of the usual time that is too long: the paper's smallest.
pub const ALPHA: f64 = 1.8;

/// The shortest wait that is too long if each rank has a core.
pub const FLOOR_PS: u64 = 200_000_000;

/// The shortest wait that is too long if ranks outnumber cores.
pub const FLOOR_CROWDED_PS: u64 = 2_000_000_000;

impl LateMergePolicy {
    /// Returns ringfold's policy for this target.
    pub fn new(target: MergeTarget, is_oversubscribed: bool) -> LateMergePolicy {
        LateMergePolicy {
            target,
            signals: Signals::BOTH,
            timers: Timers::Running {
                alpha: ALPHA,
                floor_ps: if is_oversubscribed {
                    FLOOR_CROWDED_PS
                } else {
                    FLOOR_PS
                },
            },
        }
    }

    /// Returns the number of the policy's target and signals. This number is part of each call, so
    /// ranks with different numbers never combine their data.
    pub fn mark(&self) -> u32 {
        let Signals { late, skip, silent } = self.signals;
        let flags = [self.target == MergeTarget::Tail, late, skip, silent];
        flags
            .iter()
            .rev()
            .fold(0, |bits, flag| bits << 1 | u32::from(*flag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_differ_wherever_policies_do() {
        let mut marks = std::collections::HashSet::new();
        for target in MergeTarget::ALL {
            for bits in 0..8 {
                let signals = Signals {
                    late: bits & 1 != 0,
                    skip: bits & 2 != 0,
                    silent: bits & 4 != 0,
                };
                let policy = LateMergePolicy {
                    signals,
                    ..LateMergePolicy::new(target, false)
                };
                assert!(marks.insert(policy.mark()));
            }
        }
    }

    #[test]
    fn a_misspelt_target_is_told_its_neighbour() {
        let error = "tial".parse::<MergeTarget>().unwrap_err().to_string();
        assert!(error.contains("did you mean tail?"), "{error}");
    }
}
