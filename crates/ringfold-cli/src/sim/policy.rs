//! How simulated ranks go around a slow one, as their user says it.

use std::str::FromStr;

use anyhow::Result;
use clap::{Args, ValueEnum};
use ringfold::Collective;
use ringfold::internals::engine::slices_in_flight;
use ringfold::internals::schedule::Access;
use ringfold::internals::simulate::{self, Policy, Scenario, Server, Signals, Target, Timers};
use serde::Deserialize;

use super::parse::{Span, read_from_text, words};

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
    pub floor: Option<Span>,
}

words! {
    /// A word for no policy or a [`Target`].
    PolicyName for Option<Target>:
    /// Everybody waits
    Off => None,
    /// To the rank after the next, which waits for it: the paper's
    Next2 => Some(Target::Next2),
    /// To the chunk's owner, and no rank in between waits
    Tail => Some(Target::Tail),
}

words! {
    /// A word for [`Signals`].
    SignalsName for Signals:
    /// A rank that reduces too long tells the next one
    Late => Signals { skip: false, ..Signals::BOTH },
    /// A rank that waits too long tells the previous one
    Skip => Signals { late: false, ..Signals::BOTH },
    /// Both
    Both => Signals::BOTH,
    /// Neither: both act by their own timers, which is the paper's literal rule
    Silent => Signals { late: false, skip: false, silent: true },
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor(pub f64);

impl FromStr for Factor {
    type Err = String;
    fn from_str(text: &str) -> Result<Factor, String> {
        match text.parse::<f64>() {
            Ok(above) if above.is_finite() && above > 1.0 => Ok(Factor(above)),
            Ok(number) => Err(format!("{number} times as long; it must be above 1")),
            Err(_) => Err(format!("`{text}` is not a number")),
        }
    }
}

read_from_text!(Factor);

impl PolicySettings {
    /// The policy for a scenario that is otherwise complete.
    pub fn policy(&self, scenario: &Scenario) -> Result<Option<Policy>> {
        let Some(target) = self.policy.and_then(Option::from) else {
            return Ok(None);
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
            signals: self.signals.map_or(Signals::BOTH, Signals::from),
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
