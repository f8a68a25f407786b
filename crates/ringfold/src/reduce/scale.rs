//! Multiplication of a whole buffer by one factor: the first step of `PremulSum` and the last of
//! `Avg`.

use std::hint::black_box;
use std::marker::PhantomData;

use super::environment::Environment;
use super::fold::{Brain, Format, Half, Plain, check_regions};
use super::level::{Body, Level, Run, compiled};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::types::DType;

/// What a buffer is scaled by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factor {
    /// Multiplied; floats only.
    Multiply(f64),
    /// Divided by a count: integers are truncated, floats multiplied by the reciprocal.
    Divide(u64),
}

/// Sets every element of `into` to that of `from`, scaled.
///
/// Both have the same length, a multiple of the element's size; `into` may be `from`, and may not
/// overlap it in part. The factor is rounded to the element's type (`F32` for 16-bit floats) and
/// the product is rounded once.
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
    check_regions(dtype, into, &[from]);
    if factor == Factor::Divide(0) {
        return Err(Error::InvalidArgument("cannot divide a buffer by 0".into()));
    }
    let _environment = Environment::standard();
    let multiplier = match factor {
        Factor::Multiply(multiplier) => multiplier,
        // The compiler must not divide before the environment is set.
        Factor::Divide(divisor) => 1.0 / black_box(divisor) as f64,
    };
    match (dtype, factor) {
        (DType::F16, _) => run(half_loop(level), into, from, multiplier as f32),
        (DType::BF16, _) => run(multiply::<Brain>(level), into, from, multiplier as f32),
        (DType::F32, _) => run(multiply::<Plain<f32>>(level), into, from, multiplier as f32),
        (DType::F64, _) => run(
            compiled::<Multiply<Plain<f64>>, f64>(level),
            into,
            from,
            multiplier,
        ),
        (_, Factor::Divide(divisor)) => divide(dtype, level, into, from, divisor)?,
        (_, Factor::Multiply(_)) => {
            return Err(Error::InvalidArgument(format!(
                "{dtype} cannot be multiplied by a factor; use a floating-point type"
            )));
        }
    }
    Ok(())
}

fn divide(dtype: DType, level: Level, into: Region, from: Region, divisor: u64) -> Result<()> {
    let narrow = divisor as f64;
    match dtype {
        DType::I8 => run(compiled::<Divide<i8>, f64>(level), into, from, narrow),
        DType::U8 => run(compiled::<Divide<u8>, f64>(level), into, from, narrow),
        DType::I16 => run(compiled::<Divide<i16>, f64>(level), into, from, narrow),
        DType::U16 => run(compiled::<Divide<u16>, f64>(level), into, from, narrow),
        DType::I32 => run(compiled::<Divide<i32>, f64>(level), into, from, narrow),
        DType::U32 => run(compiled::<Divide<u32>, f64>(level), into, from, narrow),
        DType::I64 => run(compiled::<Divide<i64>, u64>(level), into, from, divisor),
        DType::U64 => run(compiled::<Divide<u64>, u64>(level), into, from, divisor),
        _ => {
            return Err(Error::InvalidArgument(format!("{dtype} cannot be divided")));
        }
    }
    Ok(())
}

fn run<Extra>(run: Run<Extra>, into: Region, from: Region, extra: Extra) {
    // SAFETY: `check_regions` has found equal lengths and no partial overlap; the level is one of
    // this machine's.
    unsafe { run(into, &[from], extra) }
}

fn multiply<F: Format<Wide = f32>>(level: Level) -> Run<f32> {
    compiled::<Multiply<F>, f32>(level)
}

fn half_loop(level: Level) -> Run<f32> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => compiled::<super::x86::ScaleHalf<super::x86::F16c>, f32>(level),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => compiled::<super::x86::ScaleHalf<super::x86::Avx512>, f32>(level),
        _ => multiply::<Half>(level),
    }
}

/// The multiplying loop over elements of format `F`.
struct Multiply<F>(PhantomData<F>);

impl<F: Format> Body<F::Wide> for Multiply<F>
where
    F::Wide: std::ops::Mul<Output = F::Wide>,
{
    #[inline(always)]
    unsafe fn run(into: Region, sources: &[Region], factor: F::Wide) {
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

/// Division by way of a float, which unlike integer division has vector instructions. Exact: a
/// quotient that is no integer is further from one, by at least `1 / divisor`, than the float
/// rounds; a divisor too large for the float leaves less than 1.
macro_rules! divide_as_float {
    ($($t:ty, $float:ty, $quotient:ty;)*) => {
        $(
            impl Body<f64> for Divide<$t> {
                #[inline(always)]
                unsafe fn run(into: Region, sources: &[Region], divisor: f64) {
                    let divisor = divisor as $float;
                    let quotient = |value: $t| {
                        let quotient = <$float>::from(value) / divisor;
                        // `as` would saturate, which does not vectorise.
                        // SAFETY: `divisor` is 1 or more, so that the quotient is no larger than
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

impl Body<u64> for Divide<u64> {
    #[inline(always)]
    unsafe fn run(into: Region, sources: &[Region], divisor: u64) {
        // SAFETY: the same contract.
        unsafe { map(into, sources[0], |value: u64| value / divisor) }
    }
}

impl Body<u64> for Divide<i64> {
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

/// `into[i] = f(from[i])`.
///
/// # Safety
/// As [`Body::run`].
#[inline(always)]
unsafe fn map<T: Copy>(into: Region, from: Region, f: impl Fn(T) -> T) {
    let count = into.bytes() / size_of::<T>();
    let (into, from) = (into.address().cast::<T>(), from.address().cast::<T>());
    // As in `kernels`: in place is a loop of its own, lest the compiler's check for overlap choose
    // the scalar one.
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
