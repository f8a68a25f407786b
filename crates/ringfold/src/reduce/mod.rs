//! Elementwise arithmetic over several buffers.
//!
//! A [`ReductionKernel`] is one entry of the table operation × data type × CPU level. Its loops are
//! generic bodies that are compiled once per level (`level`): `fold` reduces into one target,
//! `spread` into several at once, `rows` to another type or with the conversions of `x86`. `ops`
//! defines the operations on two elements, `tree` the order in which many are combined, and `store`
//! non-temporal stores; `digest` computes checksums of messages.
//!
//! Invariants: sources are combined in the order of `tree`. Nothing is reassociated or contracted
//! to a fused multiply-add, so all levels give the same bits, NaN payloads excepted. On x86-64 and
//! 64-bit ARM the thread's floating-point settings (flush-to-zero, rounding) change nothing
//! (`environment`). Buffers need not be aligned. Nothing allocates.

mod digest;
mod environment;
mod fold;
mod kernel;
mod level;
mod ops;
pub(crate) mod parallel;
mod rows;
mod scale;
mod spread;
mod store;
mod tree;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

pub use digest::Digest;
pub use kernel::ReductionKernel;
pub use level::Level;
pub(crate) use parallel::Parallel;
pub use scale::{Factor, scale};
pub use store::{Store, spread_copy};
