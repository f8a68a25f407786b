//! The late-merge ring: a ring reduction that bypasses a slow rank and stays exact.
//!
//! # Model
//!
//! In a ring each chunk of a vector travels once around: position 0 sends what it has, every next
//! position adds its own, and the last one, the chunk's *owner*, has the result. A slow rank holds
//! up all ranks behind it. Here a partial sum is a *piece* that says which positions it holds,
//! always an [`Interval`](station::Interval), and a rank need not wait for the one before it: it
//! *splits*, sends its own contribution alone and lets the late piece go past it. Two signals keep
//! neighbours together:
//!
//! * `LATE`, from a rank that sees that its own reduction takes too long, to the next: go on
//!   without me, my sum goes past you.
//! * `SKIP`, from a rank that has waited too long and split, to the one before: if your sum has not
//!   left, send it past me.
//!
//! Where the late sum goes is the [`Target`]: to the rank after the next, which waits for both
//! (`next2`, as in the paper that this comes from: "skip the slow node", 邮电设计技术 2024-02), or
//! straight to the owner while the chain goes on without it (`tail`, which hides more).
//!
//! # Invariants
//!
//! * Custody: every contribution is in one place, a rank's buffer or one message; sending moves it.
//! * Pieces that meet are disjoint, else the call ends as `Corrupt`. The owner is done when it has
//!   all positions.
//! * A piece only ever moves to a higher position, so it arrives.
//! * A rank that has split stays until each piece that could still come to it has passed or was
//!   announced by `LATE` to go past it. So nothing but `SKIP` can come after a call's end, and that
//!   has a channel of its own.
//! * Timers make it faster or slower, never wrong.
//!
//! [`station`] is one chunk at one rank, without I/O; [`timers`] says when a rank is late, [`wire`]
//! what stands in headers; [`LateRing`] runs them over a transport.

mod attempt;
mod carry;
mod clock;
mod places;
mod policy;
mod receive;
mod run;
mod state;
pub mod station;
pub mod timers;
pub mod wire;

pub use places::Places;
pub use policy::{Policy, Signals, Target, Timers};
pub use state::{LateMergeState, LateRing, RANKS_MAX};
