//! Both fp8 formats compared with their definition: every number, every rounding boundary, and
//! every pair of numbers under every operation.

use super::*;
use crate::element::convert::{e4m3_to_f32, e5m2_to_f32, f32_to_e4m3, f32_to_e5m2};

/// An 8-bit float format by its definition.
#[derive(Clone, Copy)]
pub(super) struct Format {
    mantissa_bits: i32,
    bias: i32,
    /// The code of the first number that the format lacks: infinity or NaN. Its even neighbour
    /// decides ties, as everywhere.
    overflow: u8,
    has_infinity: bool,
    widen: fn(u8) -> f32,
    narrow: fn(f32) -> u8,
}

const E4M3: Format = Format {
    mantissa_bits: 3,
    bias: 7,
    overflow: 0x7f,
    has_infinity: false,
    widen: e4m3_to_f32,
    narrow: f32_to_e4m3,
};

const E5M2: Format = Format {
    mantissa_bits: 2,
    bias: 15,
    overflow: 0x7c,
    has_infinity: true,
    widen: e5m2_to_f32,
    narrow: f32_to_e5m2,
};

impl Format {
    pub(super) fn of(dtype: DType) -> Format {
        match dtype {
            DType::F8E4M3 => E4M3,
            DType::F8E5M2 => E5M2,
            _ => panic!("{dtype} is not fp8"),
        }
    }

    /// Returns the magnitude of a code by the rule for finite numbers.
    fn magnitude(&self, code: u8) -> f64 {
        let exponent = i32::from(code) >> self.mantissa_bits;
        let ones = f64::from(1 << self.mantissa_bits);
        let fraction = f64::from(code) % ones / ones;
        match exponent {
            0 => fraction * 2f64.powi(1 - self.bias),
            _ => (1.0 + fraction) * 2f64.powi(exponent - self.bias),
        }
    }

    /// Returns the number that `byte` stands for.
    pub(super) fn value(&self, byte: u8) -> f32 {
        let code = byte & 0x7f;
        let magnitude = match code {
            _ if code < self.overflow => self.magnitude(code) as f32,
            _ if code == self.overflow && self.has_infinity => f32::INFINITY,
            _ => f32::NAN,
        };
        if byte & 0x80 == 0 {
            magnitude
        } else {
            -magnitude
        }
    }

    /// Returns the code of the nearest number, ties to the even code, by comparing distances.
    pub(super) fn nearest(&self, value: f32) -> u8 {
        let sign = (value.to_bits() >> 24) as u8 & 0x80;
        if value.is_nan() {
            return sign | 0x7f;
        }
        let magnitude = f64::from(value.abs()).min(self.magnitude(self.overflow));
        let (mut low, mut high) = (0, self.overflow);
        while high - low > 1 {
            let middle = low.midpoint(high);
            match self.magnitude(middle) <= magnitude {
                true => low = middle,
                false => high = middle,
            }
        }
        let below = magnitude - self.magnitude(low);
        let above = self.magnitude(high) - magnitude;
        let is_above = above < below || (above == below && high % 2 == 0);
        sign | if is_above { high } else { low }
    }
}

const DTYPES: [DType; 2] = [DType::F8E4M3, DType::F8E5M2];

#[test]
fn every_number_is_its_definition_and_survives_the_way_back() {
    for format in DTYPES.map(Format::of) {
        for byte in 0..=u8::MAX {
            let (found, due) = ((format.widen)(byte), format.value(byte));
            if due.is_nan() {
                let sign = if byte & 0x80 == 0 { 0x7f } else { 0xff };
                assert!(found.is_nan(), "{byte:#04x}: {found}");
                assert_eq!((format.narrow)(found), sign, "{byte:#04x}");
            } else {
                assert_eq!(found.to_bits(), due.to_bits(), "{byte:#04x}");
                assert_eq!((format.narrow)(found), byte);
            }
        }
    }
}

#[test]
fn rounding_is_right_on_every_boundary() {
    for format in DTYPES.map(Format::of) {
        let centres = (0..format.overflow).flat_map(|low| {
            let (below, above) = (format.magnitude(low), format.magnitude(low + 1));
            [below, (below + above) / 2.0]
        });
        let near = centres.flat_map(|centre| {
            let bits = (centre as f32).to_bits();
            bits.saturating_sub(2)..=bits + 2
        });
        let exponents = (0..=255_u32).flat_map(|exponent| {
            [0, 1, 0x0f_ffff, 0x10_0000, 0x7f_ffff].map(|rest| exponent << 23 | rest)
        });
        for bits in near
            .chain(exponents)
            .flat_map(|bits| [bits, bits | 1 << 31])
        {
            let value = f32::from_bits(bits);
            assert_eq!((format.narrow)(value), format.nearest(value), "{value:e}");
        }
    }
    assert_eq!(f32_to_e4m3(464.0), 0x7e);
    assert_eq!(f32_to_e4m3(464.1), 0x7f);
    assert_eq!(f32_to_e4m3(f32::NEG_INFINITY), 0xff);
    assert_eq!(f32_to_e5m2(61439.9), 0x7b);
    assert_eq!(f32_to_e5m2(61440.0), 0x7c);
    assert_eq!(f32_to_e5m2(f32::MIN), 0xfc);
}

/// Returns all pairs of bytes, as two sources.
fn all_pairs() -> [Vec<u8>; 2] {
    let pairs = || (0..=u8::MAX).flat_map(|a| (0..=u8::MAX).map(move |b| (a, b)));
    [
        pairs().map(|pair| pair.0).collect(),
        pairs().map(|pair| pair.1).collect(),
    ]
}

#[test]
fn every_pair_is_combined_as_the_oracle_says() {
    let pairs = all_pairs();
    for dtype in DTYPES {
        for op in [Op::Sum, Op::Prod, Op::Min, Op::Max] {
            let due = oracle(op, dtype, &pairs);
            for level in Level::available() {
                let kernel = ReductionKernel::at_level(op, dtype, level).unwrap();
                let found = fold(kernel, &pairs, None, 1);
                assert!(same(dtype, &found, &due), "{op} of {dtype} on {level:?}");
            }
        }
    }
}

#[test]
fn every_number_is_scaled_with_one_rounding() {
    let all: Vec<u8> = (0..=u8::MAX).collect();
    for dtype in DTYPES {
        let format = Format::of(dtype);
        for factor in [1.0, 0.999, 1.0 / 3.0, -0.3, 700.0, 1.5e-5] {
            let due: Vec<u8> = (all.iter())
                .map(|byte| format.nearest(format.value(*byte) * factor as f32))
                .collect();
            for found in scaled(dtype, &all, Factor::Multiply(factor), |byte| [*byte]) {
                assert!(same(dtype, &found, &due), "{dtype} times {factor}");
            }
        }
    }
}

#[test]
fn sums_round_once() {
    // 16 + 1 is rounded to 16 in both formats, so rounded partial sums would all be 16.
    for dtype in DTYPES {
        let format = Format::of(dtype);
        let sources = [16.0, 1.0, 1.0, 1.0, 1.0].map(|value| vec![format.nearest(value)]);
        for level in Level::available() {
            let kernel = ReductionKernel::at_level(Op::Sum, dtype, level).unwrap();
            assert_eq!(format.value(fold(kernel, &sources, None, 0)[0]), 20.0);
        }
    }
}
