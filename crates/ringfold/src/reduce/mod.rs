//! Elementwise arithmetic over several buffers.
//!
//! A [`Kernel`] is one entry of the table operation × data type × CPU level. The loops behind it
//! are generic bodies (`kernels`, for half precision on x86 `x86`) that are compiled once per level
//! (`level`); what an operation does with two elements stands in `ops`, the 16- and 8-bit floats in
//! `convert`.
//!
//! Invariants: the order of the sources is the order of the additions; nothing is reassociated or
//! contracted to a fused multiply-add, so that all levels give the same bits, NaN payloads
//! excepted. The thread's floating-point settings (flush-to-zero, rounding) change nothing on
//! x86-64 (`environment`). Buffers need not be aligned. Nothing allocates. fp8 has no arithmetic:
//! its range is too small for sums, and ranks only move it.

use crate::error::{Error, Result};
use crate::memory::Region;
use crate::types::{DType, Op};

pub(crate) mod convert;
mod environment;
mod kernels;
mod level;
mod ops;
pub(crate) mod parallel;
mod scale;
mod spread;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

pub use level::Level;
pub(crate) use parallel::Parallel;
pub use scale::{Factor, scale};
use spread::Targets;
pub use spread::{Store, spread_copy};

use kernels::{Fold, FoldBrain, Half, Plain};
use level::{Run, compiled};
use ops::{Band, Bor, Bxor, Join, Max, Min, Prod, Sum};

/// The combining loop of one operation and data type, chosen for this CPU.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    dtype: DType,
    run: Run<()>,
    /// Into several places from a few sources at once; where there is none, the general way serves.
    spread: Option<Run<Targets>>,
}

impl Kernel {
    /// The kernel of `op` (its combining part: `Avg` and `PremulSum` are sums) for `dtype`.
    pub fn new(op: Op, dtype: DType) -> Result<Kernel> {
        Kernel::at_level(op, dtype, Level::current())
    }

    /// The kernel as it is on a CPU with no more than `level`.
    #[doc(hidden)]
    pub fn at_level(op: Op, dtype: DType, level: Level) -> Result<Kernel> {
        op.check(dtype)?;
        if !level.is_available() {
            return Err(Error::Unsupported(format!(
                "this cpu has no {}",
                level.name()
            )));
        }
        let run = match op.combining() {
            Op::Prod => product(dtype, level),
            Op::Min => minimum(dtype, level),
            Op::Max => maximum(dtype, level),
            Op::Band => bytewise::<Band>(level),
            Op::Bor => bytewise::<Bor>(level),
            Op::Bxor => bytewise::<Bxor>(level),
            Op::Sum | Op::Avg | Op::PremulSum(_) => sum(dtype, level),
        };
        let spread = match op.combining() {
            Op::Sum => spread::sum(dtype, level),
            _ => None,
        };
        Ok(Kernel { dtype, run, spread })
    }

    /// The type of the elements that it combines.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sets every element of `into` to the combination of that element of `sources`, from first to
    /// last.
    ///
    /// All regions have the same length, a multiple of the element's size. `into` may be one of the
    /// sources; it may not overlap one in part. At least one source. 16-bit floats are accumulated
    /// in `F32` and rounded once.
    pub fn fold(&self, into: Region, sources: &[Region]) {
        self.check(into, sources);
        // SAFETY: the lengths are equal and no overlap is partial, as just checked; `at_level` has
        // chosen a loop of this machine for elements of this size.
        unsafe { (self.run)(into, sources, ()) }
    }

    /// Panics unless the regions are such as [`fold`](Kernel::fold) takes.
    pub(crate) fn check(&self, into: Region, sources: &[Region]) {
        check_regions(self.dtype, into, sources);
    }
}

/// Panics unless the regions are such as a loop takes.
fn check_regions(dtype: DType, into: Region, sources: &[Region]) {
    assert!(!sources.is_empty(), "a fold of no sources");
    let bytes = into.bytes();
    assert!(
        bytes.is_multiple_of(dtype.size_bytes()),
        "{bytes} bytes are no whole number of {dtype} elements"
    );
    for source in sources {
        assert_eq!(bytes, source.bytes(), "regions of different lengths");
        let distance = into.address().addr().abs_diff(source.address().addr());
        assert!(
            distance == 0 || distance >= bytes,
            "a region overlaps its source in part"
        );
    }
}

fn sum(dtype: DType, level: Level) -> Run<()> {
    match dtype {
        DType::I8 | DType::U8 => plain::<Sum, u8>(level),
        DType::I16 | DType::U16 => plain::<Sum, u16>(level),
        DType::I32 | DType::U32 => plain::<Sum, u32>(level),
        DType::I64 | DType::U64 => plain::<Sum, u64>(level),
        DType::Bool => bytewise::<Bor>(level),
        _ => float::<Sum>(dtype, level),
    }
}

fn product(dtype: DType, level: Level) -> Run<()> {
    match dtype {
        DType::I8 | DType::U8 => plain::<Prod, u8>(level),
        DType::I16 | DType::U16 => plain::<Prod, u16>(level),
        DType::I32 | DType::U32 => plain::<Prod, u32>(level),
        DType::I64 | DType::U64 => plain::<Prod, u64>(level),
        DType::Bool => bytewise::<Band>(level),
        _ => float::<Prod>(dtype, level),
    }
}

fn minimum(dtype: DType, level: Level) -> Run<()> {
    match dtype {
        DType::Bool => bytewise::<Band>(level),
        _ => ordered::<Min>(dtype, level),
    }
}

fn maximum(dtype: DType, level: Level) -> Run<()> {
    match dtype {
        DType::Bool => bytewise::<Bor>(level),
        _ => ordered::<Max>(dtype, level),
    }
}

/// `Min` or `Max`, for which the sign of integers matters.
fn ordered<J>(dtype: DType, level: Level) -> Run<()>
where
    J: Join<i8> + Join<i16> + Join<i32> + Join<i64>,
    J: Join<u8> + Join<u16> + Join<u32> + Join<u64>,
    J: Join<f32> + Join<f64>,
{
    match dtype {
        DType::I8 => plain::<J, i8>(level),
        DType::U8 => plain::<J, u8>(level),
        DType::I16 => plain::<J, i16>(level),
        DType::U16 => plain::<J, u16>(level),
        DType::I32 => plain::<J, i32>(level),
        DType::U32 => plain::<J, u32>(level),
        DType::I64 => plain::<J, i64>(level),
        DType::U64 => plain::<J, u64>(level),
        _ => float::<J>(dtype, level),
    }
}

fn float<J: Join<f32> + Join<f64>>(dtype: DType, level: Level) -> Run<()> {
    match dtype {
        DType::F16 => half::<J>(level),
        DType::BF16 => compiled::<FoldBrain<J>, ()>(level),
        DType::F32 => plain::<J, f32>(level),
        DType::F64 => plain::<J, f64>(level),
        _ => unreachable!("`Op::check` lets only floats with arithmetic come here"),
    }
}

fn half<J: Join<f32>>(level: Level) -> Run<()> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => compiled::<x86::FoldHalf<J, x86::F16c>, ()>(level),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => compiled::<x86::FoldHalf<J, x86::Avx512>, ()>(level),
        _ => compiled::<Fold<J, Half>, ()>(level),
    }
}

/// Vectors of 256 bits suffice: what is combined comes from memory or from another core, and there
/// loops of wider ones were a sixth slower than memory where we measured.
fn plain<J: Join<T>, T: Copy>(level: Level) -> Run<()> {
    compiled::<Fold<J, Plain<T>>, ()>(level.min(Level::Avx2))
}

/// Bit operations are the same at any width.
fn bytewise<J: Join<u8>>(level: Level) -> Run<()> {
    plain::<J, u8>(level)
}
