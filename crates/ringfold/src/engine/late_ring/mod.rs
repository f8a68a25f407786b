//! The late-merge ring: a ring reduction that bypasses a slow rank and stays exact.
//!
//! # Model
//!
//! In a ring each chunk of a vector travels once around. Position 0 sends its contribution, and
//! every next position adds its own. The last position, the chunk's *owner*, has the result. A slow
//! rank delays all ranks behind it. In this ring a partial sum is a *piece* labelled with the
//! positions that it holds, always an [`Interval`](station::Interval). A rank need not wait for the
//! one before it: it *splits*, sends its own contribution alone and lets the late piece bypass it.
//! Two signals coordinate neighbours:
//!
//! * `LATE`, sent to the next rank by a rank whose own reduction takes too long: continue without
//!   me, my sum bypasses you.
//! * `SKIP`, sent to the rank before by a rank that has waited too long and split: if your sum has
//!   not been sent, send it past me.
//!
//! The [`MergeTarget`] is the destination of the late sum. With `next2`, the late sum goes to the
//! rank after the next, which waits for both pieces, as in the paper that describes this ring
//! ("skip the slow node", 邮电设计技术 2024-02). With `tail`, the late sum goes to the owner, while the
//! chain continues without the late sum, which hides more of the delay.
//!
//! # Invariants
//!
//! * Custody: every contribution is in one place, a rank's buffer or one message; sending moves it.
//! * Pieces that meet are disjoint, else the call fails as `Corrupt`. The owner is done when it has
//!   all positions.
//! * A piece only ever moves to a higher position, so it arrives.
//! * A rank that has split stays until each piece that could still reach it has passed, or `LATE`
//!   has announced that the piece bypasses it. So only `SKIP` can arrive after a call's end, and
//!   `SKIP` has its own channel.
//! * Timers affect only the speed, never the result.
//!
//! [`station`] is one chunk at one rank, without I/O; [`timers`] decides when a rank is late, and
//! [`wire`] encodes headers. [`LateRing`] runs them over a transport.

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

pub use policy::{LateMergePolicy, MergeTarget, Signals, Timers};
pub use state::{LateMergeState, LateRing, RANKS_MAX};
