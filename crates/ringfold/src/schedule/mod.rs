//! Schedules: the steps of each rank in a collective, as data.
//!
//! A generator (one file per algorithm) is a pure function from a [`Spec`] to this rank's
//! [`Schedule`]: steps over chunks. Generators do no I/O and read neither clock nor environment.
//! The engine runs schedules, the checker proves them, the cost model prices them, the simulator
//! times them and the printer prints them.
//!
//! # Model
//!
//! The engine cuts the buffers `Input`, `Output` and `Scratch` into chunks; a schedule only counts
//! them. The engine runs the whole schedule once for each *slice* (an independent part of every
//! chunk) and overlaps slices. Each step carries its *round*; a send and its receive have the same
//! round. Within a round, receives precede sends, so that no receive waits behind its rank's own
//! send.
//!
//! # Invariants (proved by [`check`])
//!
//! * On each ordered pair of ranks, the k-th send matches the k-th receive: same round, same number
//!   of elements.
//! * Steps are issued in order. A send, receive or receive-and-reduce may complete later; over
//!   messages, so may a copy or reduction. A step waits only for earlier steps that touch the same
//!   chunks (read-write, write-read, write-write). Under these rules nothing deadlocks, even if a
//!   send completes only after its receive was posted.
//! * Every contribution arrives exactly once wherever it is due. Reducing ranks end with the same
//!   expression, so the same bits.
//! * `Input` is never written, unless the call is in place: `Input` and `Output` are then the same
//!   memory and one buffer.
//!
//! A schedule knows ranks, hosts and chunks, but neither bytes, data types nor transports.
//! Generators use no randomness and no `unsafe`.

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
mod one_shot;
mod order;
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

pub use action::{Action, AwaitedPeers, Buffer, Combine, Span, Step};
pub(crate) use action::{input, output};
pub use groups::Groups;
pub use order::{Order, RankLayout};
pub use protocols::{LL_SHARED_BYTES, ll_bytes_max};
pub use spec::{BufferCut, Schedule, Spec};
pub use weights::{Weighting, Weights};

pub use crate::types::{Access, Assignment};
