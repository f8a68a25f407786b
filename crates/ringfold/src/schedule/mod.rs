//! Schedules: what each rank does in a collective, as data.
//!
//! A generator (one file an algorithm) is a pure function from a [`Spec`] to this rank's
//! [`Schedule`]: steps over chunks. It does no I/O and reads no clock and no variable. The engine
//! runs schedules, the checker proves them, the cost model prices them, the simulator times them
//! and the printer shows them.
//!
//! # Model
//!
//! The buffers `Input`, `Output` and `Scratch` are cut into chunks by the engine; a schedule only
//! counts them. The engine runs the whole schedule once for each *slice* (an independent part of
//! every chunk) and overlaps slices. Steps carry the *round* in which they take place; a send and
//! its receive have the same round. Within a round, receives stand before sends, so that no
//! receive waits behind its rank's own send.
//!
//! # Invariants (proved by [`check`])
//!
//! * On each ordered pair of ranks, the k-th send matches the k-th receive: same round, same number
//!   of elements.
//! * Steps are issued in order; a send, receive or receive-and-reduce may complete later, over
//!   messages a copy or reduction, too. A step waits for earlier steps that touch the same chunks
//!   (read-write, write-read, write-write), and for nothing else. Under these rules nothing
//!   deadlocks, even if a send completes only when its receive was posted.
//! * Every contribution arrives exactly once where it must; reducing ranks end with the same
//!   expression, so the same bits.
//! * `Input` is never written, unless it is the same memory as `Output` (in place): then both are
//!   one buffer.

#![forbid(unsafe_code)]

pub mod check;
pub mod dependence;
pub mod print;
pub mod rounds;
pub mod stragglar;

mod action;
mod between_hosts;
mod build;
mod catalogue;
mod direct;
mod flat;
mod groups;
mod halving;
mod hierarchical;
mod one_shot;
mod point;
mod protocols;
mod rabenseifner;
mod recursive_doubling;
mod registered;
mod ring;
mod spec;
mod staged;
mod tree;
mod weights;

pub use action::{Action, Buffer, Combine, Members, Peers, Span, Step};
pub(crate) use action::{input, output};
pub use groups::Groups;
pub use protocols::{LL_SHARED_BYTES, ll_bytes_max};
pub use spec::{Cut, Schedule, Spec};
pub use weights::{Weighting, Weights};

pub use crate::types::{Access, Assignment};
