//! The simulator: the product's own engines and schedules, in virtual time.
//!
//! A [`Scenario`] says what is called, by how many ranks, over what network, and what goes wrong meanwhile. A [`Report`]
//! says how long it took, where the time went, and whether every promise was kept.

mod control;
#[cfg(test)]
mod late_merge_fuzz;
#[cfg(test)]
mod late_merge_tests;
mod oracle;
mod prepare;
mod promises;
mod report;
mod run;
mod scenario;
mod sweep;
#[cfg(test)]
mod tests;

pub use crate::engine::late_merge::{Policy, Signals, Target, Timers};
pub use crate::transport::faulty::Faults;
pub use crate::transport::sim::model::{
    Compute, LinkEnds, Links, Network, Ports, Sending, Server, Switch,
};
pub use crate::transport::slow::{Delay, Slow};
pub use prepare::resolve;
pub use report::{
    BrokenPromise, ChunkResult, Lane, LinkUse, PathKind, PathPart, Promise, RankReport, Report,
    TraceEvent,
};
pub use run::run;
pub use scenario::{Disturbance, Payload, Scenario};
pub use sweep::{SweepReport, SweptRank, fits_sweep, sweep};
