//! Which way a call goes: the policy.

pub mod choose;
pub mod cost;
pub mod cost_table;
pub mod limits;
pub mod probe;
pub mod tuning;
pub mod weights;

pub use cost_table::CostTable;
pub use limits::Limits;
pub use tuning::{Explanation, Plugin, PluginCall, Reason, Tuning};
