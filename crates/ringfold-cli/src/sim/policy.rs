//! How simulated ranks go around a slow one, as their user says it.

use std::str::FromStr;

use anyhow::Result;
use clap::{Args, ValueEnum};
use ringfold::Collective;
use ringfold::internals::engine::plan::slices_in_flight;
use ringfold::internals::schedule::Access;
use ringfold::internals::simulate::{self, Policy, Scenario, Server, Signals, Target, Timers};
use serde::Deserialize;

use super::parse::{Span, own_text};

/// A heading of the help.
const POLICY: &str = "Going around slow ranks";

/// The straggler policy, which is for rings.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySettings {
    /// The destination of a slow rank's sum: unchanged, the rank after the next, or the chunk's
    /// owner [default: off]
    #[arg(long, value_name = "TARGET", value_enum, help_heading = POLICY)]
    pub policy: Option<PolicyName>,

    /// How many times as long as usual is too long [default: 1.8]
    #[arg(long, value_name = "FACTOR", help_heading = POLICY)]
    pub alpha_threshold: Option<Factor>,

    /// Which rank signals that a rank is slow [default: both]
    #[arg(long, value_name = "WHICH", value_enum, help_heading = POLICY)]
    pub signals: Option<SignalsName>,

    /// From where ranks know what is usual [default: fixed]
    #[arg(long, value_name = "HOW", value_enum, help_heading = POLICY)]
    pub timers: Option<TimersName>,

    /// The shortest time that is too long, with --timers running [default: the library's 200us]
    #[arg(long, value_name = "TIME", help_heading = POLICY)]
    #[serde(deserialize_with = "own_text")]
    pub floor: Option<Span>,
}

/// A word for no policy or a [`Target`].
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum PolicyName {
    /// Everybody waits
    Off,
    /// To the rank after the next, which waits for it: the paper's
    Next2,
    /// To the chunk's owner, and no rank in between waits
    Tail,
}

/// A word for [`Signals`].
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SignalsName {
    /// A rank that reduces too long tells the next one
    Late,
    /// A rank that waits too long tells the previous one
    Skip,
    /// Both
    Both,
    /// Neither: both act by their own timers, which is the paper's literal rule
    Silent,
}

/// A word for [`Timers`].
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TimersName {
    /// What reductions and messages of this scenario take undisturbed
    Fixed,
    /// Estimates that begin with nothing in this call
    Running,
}

/// A number above 1.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(try_from = "f64")]
pub struct Factor(pub f64);

impl TryFrom<f64> for Factor {
    type Error = String;
    fn try_from(number: f64) -> Result<Factor, String> {
        match number {
            above if above.is_finite() && above > 1.0 => Ok(Factor(above)),
            _ => Err(format!("{number} times as long; it must be above 1")),
        }
    }
}

impl FromStr for Factor {
    type Err = String;
    fn from_str(text: &str) -> Result<Factor, String> {
        let number: f64 = text
            .parse()
            .map_err(|_| format!("`{text}` is not a number"))?;
        number.try_into()
    }
}

impl PolicySettings {
    /// Lets `over` win wherever it says something.
    pub fn overlay(&mut self, over: &PolicySettings) {
        self.policy = over.policy.or(self.policy);
        self.alpha_threshold = over.alpha_threshold.or(self.alpha_threshold);
        self.signals = over.signals.or(self.signals);
        self.timers = over.timers.or(self.timers);
        self.floor = over.floor.or(self.floor);
    }

    /// The policy for a scenario that is otherwise complete.
    pub fn policy(&self, scenario: &Scenario) -> Result<Option<Policy>> {
        let target = match self.policy.unwrap_or(PolicyName::Off) {
            PolicyName::Off => return Ok(None),
            PolicyName::Next2 => Target::Next2,
            PolicyName::Tail => Target::Tail,
        };
        let usual = Policy::new(target, false);
        let Timers::Running { alpha, floor_ps } = usual.timers else {
            return Ok(Some(usual));
        };
        let alpha = self.alpha_threshold.map_or(alpha, |factor| factor.0);
        let timers = match self.timers.unwrap_or(TimersName::Fixed) {
            TimersName::Running => Timers::Running {
                alpha,
                floor_ps: self.floor.map_or(floor_ps, |time| time.ps),
            },
            TimersName::Fixed => fixed(scenario, alpha)?,
        };
        Ok(Some(Policy {
            target,
            signals: match self.signals.unwrap_or(SignalsName::Both) {
                SignalsName::Late => Signals {
                    late: true,
                    skip: false,
                    silent: false,
                },
                SignalsName::Skip => Signals {
                    late: false,
                    skip: true,
                    silent: false,
                },
                SignalsName::Both => Signals::BOTH,
                SignalsName::Silent => Signals {
                    late: false,
                    skip: false,
                    silent: true,
                },
            },
            timers,
        }))
    }
}

/// The usual time to reduce and to send a piece. Concurrent slices share the port, and a serial
/// server runs one operation at a time.
fn fixed(scenario: &Scenario, alpha: f64) -> Result<Timers> {
    let chosen = simulate::resolve(scenario)?;
    let ranks = chosen.ranks as u64;
    // What is cut into slices: each block, or the vector, whose slices are cut into chunks.
    let (whole_bytes, pieces) = match chosen.collective {
        Collective::ReduceScatter => (chosen.bytes / ranks, 1),
        _ => (chosen.bytes, ranks),
    };
    let slice_bytes = chosen.slice_bytes.unwrap_or(u64::MAX).min(whole_bytes);
    let slices = whole_bytes.div_ceil(slice_bytes.max(1)).max(1);
    let at_once = slices.min(slices_in_flight(Access::Messages).into());
    let piece_bytes = slice_bytes / pieces;
    let links = &chosen.network.links;
    let reduce_ps = chosen.compute.reduction_ps(chosen.dtype, piece_bytes);
    Ok(Timers::Fixed {
        alpha,
        reduce_ps: match chosen.compute.server {
            Server::Serial => at_once * reduce_ps,
            Server::Parallel => reduce_ps,
        },
        transfer_ps: links.alpha_ps + at_once * piece_bytes * links.ps_per_byte,
    })
}
