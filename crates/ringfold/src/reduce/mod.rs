//! Elementwise arithmetic over several buffers.
//!
//! A [`Kernel`] is one entry of the table operation × data type × CPU level. The loops behind it
//! are generic bodies that are compiled once per level (`level`): `fold` combines into one place,
//! `spread` into several at once, `x86` is for half precision there. What an operation does with
//! two elements stands in `ops`, the 16- and 8-bit floats in `convert`, stores past the caches in
//! `store`; `digest` sums memory to check messages.
//!
//! Invariants: the order of the sources is the order of the additions; nothing is reassociated or
//! contracted to a fused multiply-add, so that all levels give the same bits, NaN payloads
//! excepted. The thread's floating-point settings (flush-to-zero, rounding) change nothing on
//! x86-64 and 64-bit ARM (`environment`). Buffers need not be aligned. Nothing allocates. fp8 has
//! no arithmetic: its range is too small for sums, and ranks only move it.

pub(crate) mod convert;
mod digest;
mod environment;
mod fold;
mod kernel;
mod level;
mod ops;
pub(crate) mod parallel;
mod scale;
mod spread;
mod store;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

pub use digest::Digest;
pub use kernel::Kernel;
pub use level::Level;
pub(crate) use parallel::Parallel;
pub use scale::{Factor, scale};
pub use store::{Store, spread_copy};
