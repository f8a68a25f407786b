//! The simulator: the product's own engines and schedules, in virtual time.
//!
//! A [`Scenario`] specifies the call, the number of ranks, the network, and disturbances. A
//! [`Report`] has the time it took, where the time went, and whether every guarantee was kept.
//!
//! ```
//! use ringfold::internals::simulate::{Disturbance, Scenario, run};
//!
//! // Sixteen ranks reduce 1 MiB in a ring; rank 3 is slow once.
//! let mut scenario = Scenario { ranks: 16, bytes: 1 << 20, ..Scenario::default() };
//! let quick = run(&scenario)?;
//! scenario.disturbances.push(Disturbance::Slow("rank=3,step=2,delay=1ms".parse()?));
//! let slow = run(&scenario)?;
//! assert_eq!(slow.finished_ps - quick.finished_ps, 1_000_000_000);
//! assert_eq!(slow.blame_ps.iter().max(), Some(&slow.blame_ps[3]));
//! assert!(slow.is_clean());
//! # Ok::<(), ringfold::Error>(())
//! ```
//!
//! # Model
//!
//! The engines, plans and headers are the product's; [`run()`] takes the place of the driver.
//! [`network`] charges the costs of messages, reductions and copies, by the parameters in `model`.
//! Without contention, [`longest_path`](fn@longest_path) computes the same times without engines.
//!
//! # Invariants
//!
//! * A scenario has one report. No clock is read except to give the hub a start time that nothing
//!   depends on.
//! * All times are whole picoseconds.
//! * Nothing here knows an algorithm or a protocol: an error in a time is an error in a cost, never
//!   in an order.

mod check;
mod control;
mod deaths;
pub mod devices;
pub mod goal;
mod longest_path;
pub mod model;
pub mod network;
mod oracle;
mod prepare;
mod program;
mod promises;
mod report;
mod run;
mod scenario;
mod slices;
mod staged;
#[cfg(test)]
mod tests;
mod timed;

pub use crate::engine::late_ring::{LateMergePolicy, MergeTarget, Signals, Timers};
pub use crate::testing::delay_spec::{Delay, Slow};
pub use crate::tune::devices::choice::Carried;
pub use devices::Devices;
pub use longest_path::{LongestPath, RankOnPath, fits_longest_path, longest_path};
pub use model::{Compute, Grants, LinkEnds, Links, Network, Ports, Sending, Server, Switch};
pub use network::streams::copies_alone_ps;
pub use prepare::{resolve, steps};
pub use report::{
    BrokenPromise, ChunkResult, LinkUse, PathKind, PathPart, Promise, RankReport, Report,
    TimelineLane, TraceEvent,
};
pub use run::run;
pub use scenario::{Disturbance, Payload, Scenario};
