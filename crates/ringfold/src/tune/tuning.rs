//! The inputs of every choice beside the call itself, and the explanation of a choice.
//!
//! A [`Tuning`] is data: constants and limits of the machine, and the operator's overrides of the
//! model. [`choose`](super::choose) reads a tuning and changes nothing. A [`Plugin`] is the one
//! part that is foreign code, and can only reprice usable ways and request channels.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use super::plugin::Plugin;
use super::{AlgoFilter, Constants, CostTable, Limits, Rules};
use crate::call::Way;
use crate::types::Protocol;

/// The inputs of a communicator's choices.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// The constants of the cost model. The same on all ranks.
    pub constants: Constants,
    /// The size limits. The same on all ranks.
    pub limits: Limits,
    /// The operator's rules. The same on all ranks.
    pub rules: Rules,
    /// The ways that the operator's variables allow.
    pub allowed: AlgoFilter,
    /// The protocol of every call that can use it, if one is configured.
    pub protocol: Option<Protocol>,
    /// Maximum number of channels of a call over messages.
    pub channels_max: usize,
    /// The configured slice size, if any.
    pub slice_bytes: Option<usize>,
    /// Foreign code that may reprice usable ways.
    pub plugin: Option<Arc<dyn Plugin>>,
}

impl Tuning {
    /// Returns a tuning without overrides.
    pub fn new(constants: Constants, limits: Limits) -> Tuning {
        Tuning {
            constants,
            limits,
            rules: Rules::default(),
            allowed: AlgoFilter::default(),
            protocol: None,
            channels_max: 1,
            slice_bytes: None,
            plugin: None,
        }
    }
}

/// The setting that decided a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The call itself, or the configuration of its communicator.
    Requested,
    /// A straggler policy or ownership weights, which are carried out in one way only.
    Policy,
    /// `RINGFOLD_ALGO` or `RINGFOLD_PROTO`, which bar a cheaper way.
    Variable,
    /// A line of the table of rules.
    Rule {
        /// The line's number, from 1.
        line: usize,
    },
    /// The plugin of this name.
    Plugin(String),
    /// The lowest cost by the model.
    Model,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Requested => f.write_str("requested"),
            Reason::Policy => f.write_str("by the straggler policy or the weights"),
            Reason::Variable => f.write_str("by RINGFOLD_ALGO or RINGFOLD_PROTO"),
            Reason::Rule { line } => write!(f, "by line {line} of the rules"),
            Reason::Plugin(name) => write!(f, "by the plugin {name}"),
            Reason::Model => f.write_str("by the model"),
        }
    }
}

/// A choice, its alternatives, and its reason. Displays as one line.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The modelled cost of each way that is usable here, including barred ways.
    #[doc(hidden)]
    pub prices: CostTable,
    /// The costs from which the way was chosen: barred ways are unusable, and the costs of a plugin
    /// or a rule replace those of the model.
    #[doc(hidden)]
    pub table: CostTable,
    /// The chosen way.
    pub way: Way,
    /// The setting that decided the choice.
    pub reason: Reason,
}

/// Writes one line: the way, its slicing, the reason, and the modelled costs of all ways, the
/// cheapest first.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = &self.way;
        write!(
            f,
            "{} ({}) over {}, channels: {}, slices of {} bytes, {}; microseconds by the model:",
            way.method(),
            way.protocol(),
            way.access.medium(),
            way.channels,
            way.slice_bytes,
            self.reason
        )?;
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
