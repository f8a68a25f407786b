//! The table operation × data type × CPU level, and its entries.

use std::ops::Range;

use super::fold::{
    Brain, E4m3, E5m2, ElementFormat, FoldBrain, FoldLoop, Plain, SoftwareHalf, Truth,
    check_regions,
};
use super::level::{CompiledLoop, Level, compiled};
use super::ops::{Band, Bor, Bxor, Join, Max, Min, Prod, Sum};
use super::rows;
#[cfg(target_arch = "x86_64")]
use super::rows::FoldRows;
use super::scale::{Factor, scale};
use super::spread::{self, Spread, SpreadScaled, Targets};
use super::store::{BLOCK_BYTES, Store, fence_stores, put};
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx512, F16c};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::types::{DType, Op};

/// The reduction loop of one operation and data type, chosen for this CPU.
#[derive(Clone, Copy, Debug)]
pub struct ReductionKernel {
    dtype: DType,
    /// The type of the results.
    result: DType,
    run: CompiledLoop<()>,
    /// The loop from a few sources into several targets at once; `None`: blocks go through `run`.
    spread: Option<CompiledLoop<Targets>>,
}

impl ReductionKernel {
    /// Returns the kernel of `op` (its combining part: `Avg` and `PremulSum` are sums) for `dtype`.
    pub fn new(op: Op, dtype: DType) -> Result<ReductionKernel> {
        ReductionKernel::at_level(op, dtype, Level::current())
    }

    /// Returns the kernel for a CPU with no more than `level`.
    #[doc(hidden)]
    pub fn at_level(op: Op, dtype: DType, level: Level) -> Result<ReductionKernel> {
        op.check(dtype)?;
        if !level.is_available() {
            return Err(Error::Unsupported(format!(
                "this CPU does not support {}",
                level.name()
            )));
        }
        // Bit operations are the same at any width.
        let run = match (op.combining(), dtype) {
            (op, DType::Bool) => truth(op, level),
            (Op::Bor, _) => plain::<Bor, u8>(level),
            (Op::Band, _) => plain::<Band, u8>(level),
            (Op::Bxor, _) => plain::<Bxor, u8>(level),
            (Op::Min, _) => ordered::<Min>(dtype, level),
            (Op::Max, _) => ordered::<Max>(dtype, level),
            (Op::Prod, _) => wrapping::<Prod>(dtype, level),
            (Op::Sum | Op::Avg | Op::PremulSum(_), _) => wrapping::<Sum>(dtype, level),
        };
        let spread = match op.combining() {
            Op::Sum => spread_sum(dtype, level),
            _ => None,
        };
        Ok(ReductionKernel {
            dtype,
            result: dtype,
            run,
            spread,
        })
    }

    /// Returns the kernel of a sum or a product from elements of type `from` to results of type
    /// `to`: the same type, or a short float and `F32`, the type of its partial results.
    pub fn between(op: Op, (from, to): (DType, DType), level: Level) -> Result<ReductionKernel> {
        let kernel = ReductionKernel::at_level(op, from, level)?;
        let run = match op.combining() {
            _ if from == to => return Ok(kernel),
            Op::Sum => rows::between::<Sum>(from, to, level),
            Op::Prod => rows::between::<Prod>(from, to, level),
            _ => None,
        };
        let refused = || Error::Unsupported(format!("{op} from {from} to {to}"));
        Ok(ReductionKernel {
            result: to,
            run: run.ok_or_else(refused)?,
            spread: None,
            ..kernel
        })
    }

    /// Returns the bytes of each source that are combined to these bytes of the result.
    pub(super) fn sources_of(&self, result: Range<usize>) -> Range<usize> {
        let of = |bytes: usize| bytes / self.result.size_bytes() * self.dtype.size_bytes();
        of(result.start)..of(result.end)
    }

    /// Returns the type of the elements that the kernel combines.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sets every element of `into` to the combination of that element of `sources`, in the order
    /// of the canonical tree.
    ///
    /// All regions have equally many elements. `into` may be one of the sources if both have the
    /// same type, but may not overlap a source in part. There is at least one source. 16- and
    /// 8-bit floats are accumulated in `F32` and rounded once.
    pub fn fold(&self, into: Region, sources: &[Region]) {
        self.check(into, sources);
        // SAFETY: `check` has verified equal numbers of elements and no partial overlap;
        // `at_level` or `between` has chosen a loop of this machine for elements of these sizes.
        unsafe { (self.run)(into, sources, ()) }
    }

    /// Panics unless the regions satisfy the contract of [`fold`](ReductionKernel::fold).
    pub(crate) fn check(&self, into: Region, sources: &[Region]) {
        check_regions((self.dtype, self.result), into, sources);
    }

    /// Sets every element of all `targets` to the reduction of that element of `sources`, in the
    /// order of the canonical tree, scaled by `factor`. `parts` is scratch space for a list.
    ///
    /// The regions must satisfy the contract of [`fold`](ReductionKernel::fold); each target may be
    /// one of the sources, and no two targets overlap. The bits are those of a fold followed by a
    /// scaling. Streamed stores are complete on return, for any thread that sees this thread's next
    /// store.
    pub fn spread(
        &self,
        targets: &[Region],
        sources: &[Region],
        factor: Option<Factor>,
        store: Store,
        parts: &mut Vec<Region>,
    ) -> Result<()> {
        for target in targets {
            check_regions((self.dtype, self.dtype), *target, sources);
        }
        let rows = self.spread_rows(targets, sources, factor, store);
        let mut block = StackBlock([0; BLOCK_BYTES]);
        let bytes = sources[0].bytes();
        for start in (rows..bytes).step_by(BLOCK_BYTES) {
            let range = start..bytes.min(start + BLOCK_BYTES);
            if let ([target], None, Store::Cached) = (targets, factor, store) {
                parts.clear();
                parts.extend(sources.iter().map(|source| source.part(range.clone())));
                self.fold(target.part(range), parts);
                continue;
            }
            // SAFETY: the block outlives the loop, and nothing refers to it but this region.
            let block = unsafe { Region::new((&raw mut block.0).cast(), range.len()) };
            parts.clear();
            parts.extend(sources.iter().map(|source| source.part(range.clone())));
            self.fold(block, parts);
            if let Some(factor) = factor {
                scale(self.dtype, block, block, factor)?;
            }
            for target in targets {
                put(target.part(range.clone()), block, store);
            }
        }
        fence_stores(store);
        Ok(())
    }

    /// Sums whole rows with the loop for a few sources, if one exists. Returns the bytes summed.
    fn spread_rows(
        &self,
        targets: &[Region],
        sources: &[Region],
        factor: Option<Factor>,
        store: Store,
    ) -> usize {
        let factor = match factor {
            None => None,
            Some(Factor::Multiply(factor)) => Some(factor),
            Some(Factor::Divide(_)) => return 0,
        };
        let Some(run) = self.spread else { return 0 };
        let row_bytes = spread::ROW * self.dtype.size_bytes();
        let bytes = sources[0].bytes() / row_bytes * row_bytes;
        let Some(targets) = Targets::new(targets, sources, bytes, factor, store) else {
            return 0;
        };
        // SAFETY: `check_regions` has verified lengths and overlap, here cut to whole rows;
        // `Targets::new` has checked that a loop exists for these numbers of sources and targets
        // and that streamed targets begin at lines; `at_level` has chosen a loop of this machine.
        unsafe { run(Region::EMPTY, sources, targets) };
        bytes
    }
}

/// A block on the stack, aligned to a cache line.
#[repr(align(64))]
struct StackBlock([u8; BLOCK_BYTES]);

/// Returns the loop for `Bool`: every byte but 0 is true, and results are 0 or 1.
fn truth(op: Op, level: Level) -> CompiledLoop<()> {
    let level = level.min(Level::Avx2);
    match op {
        Op::Bxor => compiled::<FoldLoop<Bxor, Truth>, ()>(level),
        Op::Min | Op::Prod | Op::Band => compiled::<FoldLoop<Band, Truth>, ()>(level),
        _ => compiled::<FoldLoop<Bor, Truth>, ()>(level),
    }
}

/// Returns the loop of `Sum` or `Prod`, whose bits are the same for signed and unsigned integers.
fn wrapping<J>(dtype: DType, level: Level) -> CompiledLoop<()>
where
    J: Join<u8> + Join<u16> + Join<u32> + Join<u64> + Join<f32> + Join<f64>,
{
    match dtype {
        DType::I8 | DType::U8 => plain::<J, u8>(level),
        DType::I16 | DType::U16 => plain::<J, u16>(level),
        DType::I32 | DType::U32 => plain::<J, u32>(level),
        DType::I64 | DType::U64 => plain::<J, u64>(level),
        _ => float::<J>(dtype, level),
    }
}

/// Returns the loop of `Min` or `Max`, for which the sign of integers matters.
fn ordered<J>(dtype: DType, level: Level) -> CompiledLoop<()>
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

fn float<J: Join<f32> + Join<f64>>(dtype: DType, level: Level) -> CompiledLoop<()> {
    match dtype {
        #[cfg(target_arch = "x86_64")]
        DType::F16 if level == Level::Avx2 => compiled::<FoldRows<J, F16c>, ()>(level),
        #[cfg(target_arch = "x86_64")]
        DType::F16 if level == Level::Avx512 => compiled::<FoldRows<J, Avx512>, ()>(level),
        DType::F16 => compiled::<FoldLoop<J, SoftwareHalf>, ()>(level),
        DType::BF16 => compiled::<FoldBrain<J>, ()>(level),
        DType::F8E4M3 => compiled::<FoldLoop<J, E4m3>, ()>(level),
        DType::F8E5M2 => compiled::<FoldLoop<J, E5m2>, ()>(level),
        DType::F32 => plain::<J, f32>(level),
        DType::F64 => plain::<J, f64>(level),
        _ => unreachable!("only floats have no loop of integers"),
    }
}

/// Returns a loop of at most 256-bit vectors, which suffice for operands from memory or another
/// core: loops of wider vectors measured a sixth slower than memory.
fn plain<J: Join<T>, T>(level: Level) -> CompiledLoop<()>
where
    Plain<T>: ElementFormat<Wide = T>,
{
    compiled::<FoldLoop<J, Plain<T>>, ()>(level.min(Level::Avx2))
}

/// Returns the loop that sums a few sources into as many targets, if the type has one.
fn spread_sum(dtype: DType, level: Level) -> Option<CompiledLoop<Targets>> {
    Some(match dtype {
        DType::I8 | DType::U8 => compiled::<Spread<Plain<u8>>, _>(level),
        DType::I16 | DType::U16 => compiled::<Spread<Plain<u16>>, _>(level),
        DType::I32 | DType::U32 => compiled::<Spread<Plain<u32>>, _>(level),
        DType::I64 | DType::U64 => compiled::<Spread<Plain<u64>>, _>(level),
        DType::F32 => compiled::<SpreadScaled<Plain<f32>>, _>(level),
        DType::F64 => compiled::<SpreadScaled<Plain<f64>>, _>(level),
        DType::BF16 => compiled::<SpreadScaled<Brain>, _>(level),
        #[cfg(target_arch = "x86_64")]
        DType::F16 if level == Level::Avx2 => compiled::<SpreadScaled<F16c>, _>(level),
        #[cfg(target_arch = "x86_64")]
        DType::F16 if level == Level::Avx512 => compiled::<SpreadScaled<Avx512>, _>(level),
        _ => return None,
    })
}
