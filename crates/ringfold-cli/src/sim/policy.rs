//! The settings of rings that bypass a slow rank.

use std::str::FromStr;

use anyhow::Result;
use ringfold::Collective;
use ringfold::internals::engine::slices_in_flight;
use ringfold::internals::schedule::Access;
use ringfold::internals::simulate::{
    self, LateMergePolicy, MergeTarget, Scenario, Server, Signals, Timers,
};
use serde::{Deserialize, Deserializer};

use super::parse::{TimeSpan, one_of, read_from_text, text, words};

/// The straggler policy, which is for rings.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySettings {
    #[serde(deserialize_with = "policy")]
    pub policy: Option<Option<MergeTarget>>,
    pub alpha_threshold: Option<Factor>,
    #[serde(deserialize_with = "signals")]
    pub signals: Option<Signals>,
    #[serde(deserialize_with = "timers")]
    pub timers: Option<Usual>,
    pub floor: Option<TimeSpan>,
}

/// The destination of a slow rank's sum, by name; `off` leaves the ring as it is.
pub const POLICIES: [(&str, Option<MergeTarget>); 3] = [
    ("off", None),
    ("next2", Some(MergeTarget::Next2)),
    ("tail", Some(MergeTarget::Tail)),
];

/// Where ranks know from what is usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usual {
    /// From the scenario, undisturbed.
    Fixed,
    /// From estimates that begin with nothing in this call.
    Running,
}

words! { timers: Usual = "fixed" => Usual::Fixed, "running" => Usual::Running }
words! {
    signals: Signals =
    "late" => Signals { skip: false, ..Signals::BOTH },
    "skip" => Signals { late: false, ..Signals::BOTH },
    "both" => Signals::BOTH,
    "silent" => Signals { late: false, skip: false, silent: true }
}

fn policy<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<MergeTarget>>, D::Error> {
    text(from, |text| one_of(text, POLICIES)).map(Some)
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
    pub fn policy(&self, scenario: &Scenario) -> Result<Option<LateMergePolicy>> {
        let Some(target) = self.policy.flatten() else {
            return Ok(None);
        };
        let usual = LateMergePolicy::new(target, false);
        let Timers::Running { alpha, floor_ps } = usual.timers else {
            return Ok(Some(usual));
        };
        let alpha = self.alpha_threshold.map_or(alpha, |factor| factor.0);
        let timers = match self.timers.unwrap_or(Usual::Fixed) {
            Usual::Running => Timers::Running {
                alpha,
                floor_ps: self.floor.map_or(floor_ps, |time| time.ps),
            },
            Usual::Fixed => fixed(scenario, alpha)?,
        };
        Ok(Some(LateMergePolicy {
            target,
            signals: self.signals.unwrap_or(Signals::BOTH),
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
