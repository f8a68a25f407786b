//! What the choice of every call depends on, beside the call itself, and how a choice is explained.
//!
//! A [`Tuning`] is data: constants and limits of the machine, and what an operator wants instead of
//! what the model says. [`choose`](super::choose) reads it and changes nothing. A [`Plugin`] is the
//! one part of it that is foreign code, and it can only reprice usable ways.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use super::bounds::Bounds;
use super::plugin::Plugin;
use super::{AlgoFilter, Constants, CostTable, Limits, Rules};
use crate::call::Way;
use crate::types::Protocol;

/// What the choices of a communicator are made from.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// What the model prices by. The same on all ranks.
    pub constants: Constants,
    /// Pieces and stores. The same on all ranks.
    pub limits: Limits,
    /// The operator's table. The same on all ranks.
    pub rules: Rules,
    /// What the operator's variables allow.
    pub allowed: AlgoFilter,
    /// The protocol of every call that can use it, if one is configured.
    pub protocol: Option<Protocol>,
    /// How many channels a call over messages may have.
    pub channels: Bounds,
    /// What one message carries, if that is configured.
    pub chunk_bytes: Option<usize>,
    /// The slice size, if that is configured.
    pub slice_bytes: Option<usize>,
    /// Foreign code that may reprice usable ways.
    pub plugin: Option<Arc<dyn Plugin>>,
}

impl Tuning {
    /// No override.
    pub fn new(constants: Constants, limits: Limits) -> Tuning {
        Tuning {
            constants,
            limits,
            rules: Rules::default(),
            allowed: AlgoFilter::default(),
            protocol: None,
            channels: Bounds::default(),
            chunk_bytes: None,
            slice_bytes: None,
            plugin: None,
        }
    }
}

/// Who decided a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The call itself, or the configuration of its communicator.
    Requested,
    /// A straggler policy or ownership weights, which are carried out in one way only.
    Policy,
    /// `RINGFOLD_ALGO` or `RINGFOLD_PROTO` bar what would be cheaper.
    Variable,
    /// This line of the table of rules.
    Rule {
        /// Counted from 1.
        line: usize,
    },
    /// The plugin of this name.
    Plugin(String),
    /// The least cost by the model.
    Model,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Requested => f.write_str("asked for"),
            Reason::Policy => f.write_str("by the straggler policy or the weights"),
            Reason::Variable => f.write_str("by RINGFOLD_ALGO or RINGFOLD_PROTO"),
            Reason::Rule { line } => write!(f, "by line {line} of the rules"),
            Reason::Plugin(name) => write!(f, "by the plugin {name}"),
            Reason::Model => f.write_str("by the model"),
        }
    }
}

/// A choice, what else there was, and why.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The modelled cost of each way that is usable here, also of those that are barred.
    pub prices: CostTable,
    /// The same as the choice was made from: what is barred is unusable, and a plugin's costs stand
    /// instead.
    pub table: CostTable,
    /// What was chosen.
    pub way: Way,
    /// Who decided it.
    pub reason: Reason,
}

impl Explanation {
    /// The way, its cut and the reason, in a short line.
    pub fn decision(&self) -> String {
        let way = &self.way;
        format!(
            "{} ({}) over {}, channels: {}, slices of {} bytes, {}",
            way.method(),
            way.protocol(),
            way.access.medium(),
            way.channels,
            way.slice_bytes,
            self.reason
        )
    }
}

/// One line: the way, its cut, the reason, and what all ways should cost, the cheapest first.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; microseconds by the model:", self.decision())?;
        let mut ways: Vec<_> = self.prices.usable().collect();
        ways.sort_by(|one, other| one.1.total_cmp(&other.1));
        for (index, (way, cost_us)) in ways.into_iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma} {} ({}) {cost_us:.1}", way.0, way.1)?;
            match self.table.get(way) {
                None => f.write_str(" barred")?,
                Some(tuned_us) if tuned_us != cost_us => write!(f, " tuned to {tuned_us:.1}")?,
                Some(_) => {}
            }
        }
        Ok(())
    }
}
