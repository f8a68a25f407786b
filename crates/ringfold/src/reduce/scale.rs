//! Multiplication of a whole buffer by one factor: the first step of `PremulSum` and the last of
//! `Avg`.

use std::hint::black_box;
use std::marker::PhantomData;

use super::environment::FloatEnvironment;
use super::fold::{Brain, E4m3, E5m2, ElementFormat, Plain, SoftwareHalf, check_regions};
use super::level::{CompiledLoop, Level, LoopBody, compiled};
#[cfg(target_arch = "x86_64")]
use super::rows::ScaleRows;
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx512, F16c};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::types::DType;

/// The factor by which a buffer is scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factor {
    /// Multiplication by a number; floats only.
    Multiply(f64),
    /// Division by a count: integers are truncated, floats are multiplied by the reciprocal.
    Divide(u64),
}

impl Factor {
    /// Returns the factor that makes a sum of `count` elements an average.
    pub fn average(dtype: DType, count: usize) -> Factor {
        match dtype.is_float() {
            true => Factor::Multiply(1.0 / count as f64),
            false => Factor::Divide(count as u64),
        }
    }
}

/// Sets every element of `into` to that element of `from`, scaled.
///
/// Both regions have the same length, a multiple of the element's size. `into` may be `from`, but
/// may not overlap `from` in part. The factor is rounded to the element's type (`F32` for 16- and
/// 8-bit floats), and the product is rounded once.
pub fn scale(dtype: DType, into: Region, from: Region, factor: Factor) -> Result<()> {
    scale_at_level(dtype, into, from, factor, Level::current())
}

pub(super) fn scale_at_level(
    dtype: DType,
    into: Region,
    from: Region,
    factor: Factor,
    level: Level,
) -> Result<()> {
    check_regions((dtype, dtype), into, &[from]);
    if factor == Factor::Divide(0) {
        return Err(Error::InvalidArgument("cannot divide a buffer by 0".into()));
    }
    let _environment = FloatEnvironment::standard();
    let multiplier = match factor {
        Factor::Multiply(multiplier) => multiplier,
        // The compiler must not divide before the environment is set.
        Factor::Divide(divisor) => 1.0 / black_box(divisor) as f64,
    };
    if let Some(multiply) = multiplying(dtype, level) {
        run(multiply, into, from, multiplier);
        return Ok(());
    }
    match factor {
        Factor::Divide(divisor) => run(dividing(dtype, level)?, into, from, divisor),
        Factor::Multiply(_) => {
            return Err(Error::InvalidArgument(format!(
                "{dtype} cannot be multiplied by a factor; use a floating-point type"
            )));
        }
    }
    Ok(())
}

fn run<Extra>(run: CompiledLoop<Extra>, into: Region, from: Region, extra: Extra) {
    // SAFETY: `check_regions` has verified equal lengths and no partial overlap; the level is one
    // of this machine's.
    unsafe { run(into, &[from], extra) }
}

/// Returns the multiplying loop, if the type has one.
fn multiplying(dtype: DType, level: Level) -> Option<CompiledLoop<f64>> {
    Some(match dtype {
        #[cfg(target_arch = "x86_64")]
        DType::F16 if level == Level::Avx2 => compiled::<ScaleRows<F16c>, _>(level),
        #[cfg(target_arch = "x86_64")]
        DType::F16 if level == Level::Avx512 => compiled::<ScaleRows<Avx512>, _>(level),
        DType::F16 => compiled::<Multiply<SoftwareHalf>, _>(level),
        DType::BF16 => compiled::<Multiply<Brain>, _>(level),
        DType::F8E4M3 => compiled::<Multiply<E4m3>, _>(level),
        DType::F8E5M2 => compiled::<Multiply<E5m2>, _>(level),
        DType::F32 => compiled::<Multiply<Plain<f32>>, _>(level),
        DType::F64 => compiled::<Multiply<Plain<f64>>, _>(level),
        _ => return None,
    })
}

/// Returns the dividing loop.
fn dividing(dtype: DType, level: Level) -> Result<CompiledLoop<u64>> {
    Ok(match dtype {
        DType::I8 => compiled::<Divide<i8>, _>(level),
        DType::U8 => compiled::<Divide<u8>, _>(level),
        DType::I16 => compiled::<Divide<i16>, _>(level),
        DType::U16 => compiled::<Divide<u16>, _>(level),
        DType::I32 => compiled::<Divide<i32>, _>(level),
        DType::U32 => compiled::<Divide<u32>, _>(level),
        DType::I64 => compiled::<Divide<i64>, _>(level),
        DType::U64 => compiled::<Divide<u64>, _>(level),
        _ => return Err(Error::InvalidArgument(format!("{dtype} cannot be divided"))),
    })
}

/// The multiplying loop over elements of format `F`.
struct Multiply<F>(PhantomData<F>);

impl<F: ElementFormat> LoopBody<f64> for Multiply<F>
where
    F::Wide: std::ops::Mul<Output = F::Wide>,
{
    #[inline(always)]
    unsafe fn run(into: Region, sources: &[Region], factor: f64) {
        let factor = F::factor(factor);
        // SAFETY: the same contract.
        unsafe {
            map(into, sources[0], |value| {
                F::narrow(F::widen(value) * factor)
            })
        }
    }
}

/// The dividing loop over integers of type `T`.
struct Divide<T>(PhantomData<T>);

/// Divides as floats: unlike integer division, float division has vector instructions. Exact: a
/// quotient that is no integer is at least `1 / divisor` from the nearest integer, more than the
/// rounding error. A divisor too large for the float gives a quotient below 1.
macro_rules! divide_as_float {
    ($($t:ty, $float:ty, $quotient:ty;)*) => {
        $(
            impl LoopBody<u64> for Divide<$t> {
                #[inline(always)]
                unsafe fn run(into: Region, sources: &[Region], divisor: u64) {
                    let divisor = divisor as $float;
                    let quotient = |value: $t| {
                        let quotient = <$float>::from(value) / divisor;
                        // `as` would saturate, which does not vectorise.
                        // SAFETY: `divisor` is 1 or more, so the quotient is no larger than
                        // `value`.
                        unsafe { quotient.to_int_unchecked::<$quotient>() as $t }
                    };
                    // SAFETY: the same contract.
                    unsafe { map(into, sources[0], quotient) }
                }
            }
        )*
    };
}

divide_as_float! {
    i8, f32, i32;
    u8, f32, i32;
    i16, f32, i32;
    u16, f32, i32;
    i32, f64, i32;
    u32, f64, u32;
}

impl LoopBody<u64> for Divide<u64> {
    #[inline(always)]
    unsafe fn run(into: Region, sources: &[Region], divisor: u64) {
        // SAFETY: the same contract.
        unsafe { map(into, sources[0], |value: u64| value / divisor) }
    }
}

impl LoopBody<u64> for Divide<i64> {
    #[inline(always)]
    unsafe fn run(into: Region, sources: &[Region], divisor: u64) {
        let quotient = |value: i64| {
            let magnitude = (value.unsigned_abs() / divisor) as i64;
            if value < 0 {
                magnitude.wrapping_neg()
            } else {
                magnitude
            }
        };
        // SAFETY: the same contract.
        unsafe { map(into, sources[0], quotient) }
    }
}

/// Computes `into[i] = f(from[i])`.
///
/// # Safety
/// As [`LoopBody::run`].
#[inline(always)]
unsafe fn map<T: Copy>(into: Region, from: Region, f: impl Fn(T) -> T) {
    let count = into.bytes() / size_of::<T>();
    let (into, from) = (into.address().cast::<T>(), from.address().cast::<T>());
    // As in `fold`: the case in place has a loop of its own; otherwise the compiler's overlap check
    // would choose the scalar loop.
    if into.cast_const() == from.cast_const() {
        for index in 0..count {
            // SAFETY: `index` is below `count`.
            unsafe {
                let place = into.add(index);
                place.write_unaligned(f(place.read_unaligned()));
            }
        }
    } else {
        for index in 0..count {
            // SAFETY: as above.
            unsafe {
                into.add(index)
                    .write_unaligned(f(from.add(index).read_unaligned()))
            }
        }
    }
}
