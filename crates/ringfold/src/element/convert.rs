//! Conversions between `f32` and the shorter floating-point formats.
//!
//! The conversions have no branches, so that loops over them vectorise on every CPU level, and do
//! not touch `f32` denormals, so that a caller's flush-to-zero mode does not change a
//! half-precision result. Rounding is to nearest, ties to even; a NaN stays a NaN. Half precision
//! and both fp8 formats differ only in mantissa width, bias and overflow, and share one pair of
//! functions; bfloat16 is the upper half of an `f32`.
//!
//! fp8 follows the Open Compute Project's specification without saturation: `e4m3` (the "fn"
//! format) has no infinity and overflows to NaN, `e5m2` overflows to infinity. The codes are those
//! of torch, except that torch saturates `e4m3` since version 2.12.

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7f80_0000;

/// Returns the `f32` bits of `magnitude`, a finite number of a format with `MANTISSA` explicit bits
/// and `BIAS`, without its sign.
#[inline(always)]
fn widen<const MANTISSA: u32, const BIAS: u32>(magnitude: u32) -> u32 {
    let shifted = magnitude << (23 - MANTISSA);
    let normal = shifted.wrapping_add((127 - BIAS) << 23);
    // With the exponent of the smallest normal number, a denormal is too large by exactly that
    // number.
    let smallest_normal = (128 - BIAS) << 23;
    let denormal = f32::from_bits(smallest_normal | shifted) - f32::from_bits(smallest_normal);
    if magnitude < 1 << MANTISSA {
        denormal.to_bits()
    } else {
        normal
    }
}

/// Rounds the `f32` bits `magnitude` to the nearest number of the format, as if its exponent had no
/// limit; the inverse of [`widen`].
#[inline(always)]
fn narrow<const MANTISSA: u32, const BIAS: u32>(magnitude: u32) -> u32 {
    let shift = 23 - MANTISSA;
    let odd = (magnitude >> shift) & 1;
    let normal = magnitude
        .wrapping_add((1 << (shift - 1)) - 1 + odd)
        .wrapping_sub((127 - BIAS) << 23)
        >> shift;
    // The FPU rounds the sum to the magic number's last place, the format's smallest denormal.
    let magic = (127 + 24 - BIAS - MANTISSA) << 23;
    let denormal = (f32::from_bits(magnitude) + f32::from_bits(magic)).to_bits();
    if magnitude < (128 - BIAS) << 23 {
        denormal.wrapping_sub(magic)
    } else {
        normal
    }
}

/// Converts half precision to `f32`; exact.
#[inline(always)]
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff);
    let sign = u32::from(half & 0x8000) << 16;
    let finite = widen::<10, 15>(magnitude);
    let special = INFINITY | magnitude << 13;
    let bits = if magnitude >= 0x7c00 { special } else { finite };
    f32::from_bits(sign | bits)
}

/// Rounds to the nearest half-precision number.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & !SIGN;
    let finite = narrow::<10, 15>(magnitude);
    // Values from 2^16 on overflow; those between the largest number and 2^16 are already rounded
    // to one of the two.
    let finite = if magnitude >= 0x4780_0000 {
        0x7c00
    } else {
        finite
    };
    let nan = 0x7e00 | (magnitude >> 13 & 0x03ff);
    let result = if magnitude > INFINITY { nan } else { finite };
    (result | (bits & SIGN) >> 16) as u16
}

/// Converts bfloat16 to `f32`; exact.
#[inline(always)]
pub(crate) fn bf16_to_f32(brain: u16) -> f32 {
    f32::from_bits(u32::from(brain) << 16)
}

/// Rounds to bfloat16 in the upper 16 bits; the lower bits are left over from rounding.
#[inline(always)]
pub(crate) fn round_to_upper_half(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    if bits & !SIGN > INFINITY {
        bits | 0x0040_0000
    } else {
        rounded
    }
}

/// Rounds to the nearest bfloat16 number.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    (round_to_upper_half(value) >> 16) as u16
}

/// Converts fp8 `e4m3` to `f32`; exact.
#[inline(always)]
pub(crate) fn e4m3_to_f32(byte: u8) -> f32 {
    let magnitude = u32::from(byte & 0x7f);
    let sign = u32::from(byte & 0x80) << 24;
    let finite = widen::<3, 7>(magnitude);
    let nan = INFINITY | magnitude << 20;
    let bits = if magnitude == 0x7f { nan } else { finite };
    f32::from_bits(sign | bits)
}

/// Rounds to the nearest fp8 `e4m3` number; NaN beyond 464.
#[inline(always)]
pub(crate) fn f32_to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & !SIGN;
    // Values that round beyond 448, infinity and NaN included, have codes of at least 0x7f, which
    // the limit turns into NaN.
    let code = narrow::<3, 7>(magnitude).min(0x7f);
    ((bits >> 24 & 0x80) | code) as u8
}

/// Converts fp8 `e5m2` to `f32`; exact.
#[inline(always)]
pub(crate) fn e5m2_to_f32(byte: u8) -> f32 {
    let magnitude = u32::from(byte & 0x7f);
    let sign = u32::from(byte & 0x80) << 24;
    let finite = widen::<2, 15>(magnitude);
    let quiet = u32::from(magnitude > 0x7c) << 22;
    let special = INFINITY | magnitude << 21 | quiet;
    let bits = if magnitude >= 0x7c { special } else { finite };
    f32::from_bits(sign | bits)
}

/// Rounds to the nearest fp8 `e5m2` number; infinity from 61440 on. All NaNs of one sign become the
/// same NaN.
#[inline(always)]
pub(crate) fn f32_to_e5m2(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = bits & !SIGN;
    let number = narrow::<2, 15>(magnitude).min(0x7c);
    let code = if magnitude > INFINITY { 0x7f } else { number };
    ((bits >> 24 & 0x80) | code) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all `f32` at which rounding to 16 bits can go wrong: every 16-bit number, every
    /// midpoint between neighbours, and the `f32` next to each, with both signs.
    fn rounding_boundaries(to_f32: impl Fn(u16) -> f32) -> Vec<f32> {
        let mut values = Vec::new();
        for low in 0..0x7fff_u16 {
            let (below, above) = (to_f32(low), to_f32(low + 1));
            if !above.is_finite() {
                break;
            }
            let middle = ((f64::from(below) + f64::from(above)) / 2.0) as f32;
            for centre in [below, middle] {
                let bits = centre.to_bits();
                for near in bits.saturating_sub(2)..=bits + 2 {
                    values.push(f32::from_bits(near));
                    values.push(-f32::from_bits(near));
                }
            }
        }
        values.extend([f32::MAX, -f32::MAX, f32::INFINITY, -f32::INFINITY]);
        values.extend([65504.0, 65519.99, 65520.0, 65520.01, 65535.0, 65536.0, 1e30]);
        for exponent in 0..=255_u32 {
            values.extend(
                [0, 1, 0x7fff, 0x8000, 0x1000, 0x7f_ffff]
                    .map(|m| f32::from_bits(exponent << 23 | m)),
            );
        }
        values
    }

    #[test]
    fn every_half_widens_as_the_oracle_says() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:#06x}: {ours} {theirs}"
            );
            let (ours, theirs) = (bf16_to_f32(bits), half::bf16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:#06x}: {ours} {theirs}"
            );
        }
    }

    #[test]
    fn rounding_to_16_bits_is_right_on_every_boundary() {
        for value in rounding_boundaries(f16_to_f32) {
            let (ours, theirs) = (f32_to_f16(value), half::f16::from_f32(value));
            let same = ours == theirs.to_bits() || f16_to_f32(ours).is_nan() && theirs.is_nan();
            assert!(
                same,
                "f16 of {value:e}: {ours:#06x} {:#06x}",
                theirs.to_bits()
            );
        }
        for value in rounding_boundaries(bf16_to_f32) {
            let (ours, theirs) = (f32_to_bf16(value), half::bf16::from_f32(value));
            let same = ours == theirs.to_bits() || bf16_to_f32(ours).is_nan() && theirs.is_nan();
            assert!(
                same,
                "bf16 of {value:e}: {ours:#06x} {:#06x}",
                theirs.to_bits()
            );
        }
    }

    #[test]
    fn nan_stays_nan_in_every_format() {
        for bits in [
            0x7f80_0001,
            0x7fc0_0000,
            0x7fff_ffff,
            0xff80_0001,
            0xffff_ffff,
        ] {
            let nan = f32::from_bits(bits);
            assert!(f16_to_f32(f32_to_f16(nan)).is_nan());
            assert!(bf16_to_f32(f32_to_bf16(nan)).is_nan());
            assert!(e4m3_to_f32(f32_to_e4m3(nan)).is_nan());
            assert!(e5m2_to_f32(f32_to_e5m2(nan)).is_nan());
        }
    }
}
