//! How the ranks of a communicator bypass a slow one.

use crate::error::{Error, Result};
use crate::units::nearest;

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
    /// From running estimates for each size, see [`timers`](super::timers).
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
    pub fn new(target: Target, is_oversubscribed: bool) -> Policy {
        Policy {
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
