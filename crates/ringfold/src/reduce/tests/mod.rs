//! The kernels compared with a naive oracle, on every level.

use proptest::prelude::*;

mod fp8;
mod rows;
mod spread;

use super::scale::scale_at_level;
use super::*;
use crate::memory::Region;
use crate::random::SplitMix64;
use crate::types::{DType, Op};

const OPS: [Op; 9] = [
    Op::Sum,
    Op::Prod,
    Op::Min,
    Op::Max,
    Op::Avg,
    Op::PremulSum(0.5),
    Op::Band,
    Op::Bor,
    Op::Bxor,
];

/// Returns `count` elements: arbitrary bits among small numbers and special ones.
fn random_elements(dtype: DType, count: usize, random: &mut SplitMix64) -> Vec<u8> {
    const SPECIAL: [f64; 7] = [
        0.0,
        -0.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        1e-7,
        3e4,
    ];
    let mut bytes = Vec::with_capacity(count * dtype.size_bytes());
    for _ in 0..count {
        let (kind, bits) = (random.next_u64() % 8, random.next_u64());
        let number = match kind {
            0 => SPECIAL[bits as usize % SPECIAL.len()],
            _ => (bits % 4096) as f64 / 64.0 - 32.0,
        };
        let any_bits = (1..4).contains(&kind);
        match dtype {
            DType::Bool => bytes.push(if any_bits { bits as u8 } else { bits as u8 & 1 }),
            DType::F16 if !any_bits => bytes.extend(half::f16::from_f64(number).to_le_bytes()),
            DType::BF16 if !any_bits => bytes.extend(half::bf16::from_f64(number).to_le_bytes()),
            DType::F8E4M3 | DType::F8E5M2 if !any_bits => {
                bytes.push(fp8::Format::of(dtype).nearest(number as f32));
            }
            DType::F32 if !any_bits => bytes.extend((number as f32).to_le_bytes()),
            DType::F64 if !any_bits => bytes.extend(number.to_le_bytes()),
            _ => bytes.extend(&bits.to_le_bytes()[..dtype.size_bytes()]),
        }
    }
    bytes
}

/// Computes the fold as documented, one element at a time.
fn oracle(op: Op, dtype: DType, sources: &[Vec<u8>]) -> Vec<u8> {
    let size = dtype.size_bytes();
    (0..sources[0].len() / size)
        .flat_map(|index| {
            let elements = sources.iter().map(|s| &s[index * size..][..size]);
            oracle_element(op.combining(), dtype, elements)
        })
        .collect()
}

/// Combines values in the order of the canonical tree.
fn tree<T: Copy>(values: &[T], join: &impl Fn(T, T) -> T) -> T {
    if let [only] = values {
        return *only;
    }
    let (first, rest) = values.split_at(values.len().next_power_of_two() / 2);
    join(tree(first, join), tree(rest, join))
}

fn oracle_element<'a>(op: Op, dtype: DType, elements: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    macro_rules! integer {
        ($t:ty) => {
            elements
                .map(|e| <$t>::from_le_bytes(e.try_into().unwrap()))
                .reduce(|a, b| match op {
                    Op::Sum => a.wrapping_add(b),
                    Op::Prod => a.wrapping_mul(b),
                    Op::Min => a.min(b),
                    Op::Max => a.max(b),
                    Op::Band => a & b,
                    Op::Bor => a | b,
                    _ => a ^ b,
                })
                .unwrap()
                .to_le_bytes()
                .to_vec()
        };
    }
    macro_rules! float {
        ($t:ty, $widen:expr, $narrow:expr) => {{
            let wide: Vec<$t> = elements.map($widen).collect();
            let result = tree(&wide, &|a: $t, b: $t| match op {
                Op::Sum => a + b,
                Op::Prod => a * b,
                _ if a.is_nan() || b.is_nan() => <$t>::NAN,
                // The total order has -0 below +0.
                Op::Min if a.total_cmp(&b).is_lt() => a,
                Op::Max if a.total_cmp(&b).is_gt() => a,
                _ => b,
            });
            $narrow(result).to_le_bytes().to_vec()
        }};
    }
    let pair = |e: &[u8]| u16::from_le_bytes(e.try_into().unwrap());
    match dtype {
        DType::I8 => integer!(i8),
        DType::U8 => integer!(u8),
        DType::I16 => integer!(i16),
        DType::U16 => integer!(u16),
        DType::I32 => integer!(i32),
        DType::U32 => integer!(u32),
        DType::I64 => integer!(i64),
        DType::U64 => integer!(u64),
        DType::F16 => float!(
            f32,
            |e| half::f16::from_bits(pair(e)).to_f32(),
            half::f16::from_f32
        ),
        DType::BF16 => float!(
            f32,
            |e| half::bf16::from_bits(pair(e)).to_f32(),
            half::bf16::from_f32
        ),
        DType::F32 => float!(f32, |e| f32::from_le_bytes(e.try_into().unwrap()), |v| v),
        DType::F64 => float!(f64, |e| f64::from_le_bytes(e.try_into().unwrap()), |v| v),
        DType::Bool => vec![oracle_bool(op, elements).into()],
        DType::F8E4M3 | DType::F8E5M2 => {
            let format = fp8::Format::of(dtype);
            float!(f32, |e| format.value(e[0]), |v| format.nearest(v))
        }
    }
}

fn oracle_bool<'a>(op: Op, elements: impl Iterator<Item = &'a [u8]>) -> bool {
    let values = elements.map(|e| e[0] != 0);
    let combined = values.reduce(|a, b| match op {
        Op::Sum | Op::Max | Op::Bor => a || b,
        Op::Bxor => a != b,
        _ => a && b,
    });
    combined.unwrap()
}

/// Whether the elements are the same; any two NaNs count as the same.
fn same(dtype: DType, a: &[u8], b: &[u8]) -> bool {
    let is_nan = |e: &[u8]| match dtype {
        DType::F16 => half::f16::from_le_bytes(e.try_into().unwrap()).is_nan(),
        DType::BF16 => half::bf16::from_le_bytes(e.try_into().unwrap()).is_nan(),
        DType::F32 => f32::from_le_bytes(e.try_into().unwrap()).is_nan(),
        DType::F64 => f64::from_le_bytes(e.try_into().unwrap()).is_nan(),
        DType::F8E4M3 | DType::F8E5M2 => fp8::Format::of(dtype).value(e[0]).is_nan(),
        _ => false,
    };
    let size = dtype.size_bytes();
    a.len() == b.len()
        && a.chunks(size)
            .zip(b.chunks(size))
            .all(|(a, b)| a == b || is_nan(a) && is_nan(b))
}

/// A buffer offset by `shift` bytes from alignment, between guards that must not change.
struct Shifted {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

const GUARD: u8 = 0xa5;

impl Shifted {
    fn new(content: &[u8], shift: usize) -> Shifted {
        let mut bytes = vec![GUARD; content.len() + 128];
        let start = bytes.as_ptr().align_offset(64) + shift;
        bytes[start..start + content.len()].copy_from_slice(content);
        let length = content.len();
        Shifted {
            bytes,
            start,
            length,
        }
    }

    fn region(&mut self) -> Region {
        // SAFETY: inside `bytes`, which outlives the call under test.
        unsafe { Region::new(self.bytes.as_mut_ptr().add(self.start), self.length) }
    }

    fn content(&self) -> &[u8] {
        let (before, rest) = self.bytes.split_at(self.start);
        let (content, after) = rest.split_at(self.length);
        assert!(before.iter().chain(after).all(|&b| b == GUARD), "guard hit");
        content
    }
}

/// Folds copies of `sources` into a buffer of its own, or into source `in_place`, and returns the
/// result.
fn fold(
    kernel: ReductionKernel,
    sources: &[Vec<u8>],
    in_place: Option<usize>,
    shift: usize,
) -> Vec<u8> {
    let mut buffers: Vec<_> = (sources.iter().enumerate())
        .map(|(i, s)| Shifted::new(s, (shift * (i + 1)) % 61))
        .collect();
    let regions: Vec<_> = buffers.iter_mut().map(Shifted::region).collect();
    let mut target = Shifted::new(&vec![0x5a; sources[0].len()], shift);
    let into = in_place.map_or_else(|| target.region(), |i| regions[i]);
    kernel.fold(into, &regions);
    for (index, (buffer, source)) in buffers.iter().zip(sources).enumerate() {
        if in_place != Some(index) {
            assert!(buffer.content() == source, "source {index} has changed");
        }
    }
    in_place.map_or(&target, |i| &buffers[i]).content().to_vec()
}

fn check_fold(op: Op, dtype: DType, count: usize, sources: usize, seed: u64) {
    let mut random = SplitMix64(seed);
    let inputs: Vec<_> = (0..sources)
        .map(|_| random_elements(dtype, count, &mut random))
        .collect();
    let expected = oracle(op, dtype, &inputs);
    for level in Level::available() {
        let kernel = ReductionKernel::at_level(op, dtype, level).unwrap();
        let places = [None, Some(0), Some(sources / 2), Some(sources - 1)];
        for (shift, place) in places.into_iter().enumerate() {
            let result = fold(kernel, &inputs, place, shift);
            assert!(
                same(dtype, &result, &expected),
                "{op} of {count} {dtype} from {sources} sources on {level:?}, in place {place:?}, \
                 seed {seed}"
            );
        }
    }
}

fn existing() -> impl Iterator<Item = (Op, DType)> {
    OPS.into_iter()
        .flat_map(|op| DType::ALL.iter().map(move |&dtype| (op, dtype)))
        .filter(|(op, dtype)| op.check(*dtype).is_ok())
}

#[test]
fn every_kernel_of_every_level_is_the_oracle() {
    for (op, dtype) in existing() {
        for count in [0, 1, 7, 63, 64, 65] {
            for sources in 1..=9 {
                check_fold(op, dtype, count, sources, 1 + count as u64);
            }
        }
        for sources in [2, 3, 5] {
            check_fold(op, dtype, 1000, sources, 2);
        }
    }
}

#[test]
fn blocks_follow_each_other_without_a_gap() {
    for dtype in [DType::I8, DType::BF16, DType::F16, DType::F64] {
        for sources in [3, 4, 9] {
            check_fold(Op::Sum, dtype, 9001, sources, 3);
        }
    }
}

#[test]
fn extrema_know_the_zeros_apart_and_keep_nan() {
    let zeros = [0.0_f32, -0.0].map(|z| z.to_le_bytes().to_vec());
    let nan = f32::NAN.to_le_bytes().to_vec();
    let one = 1_f32.to_le_bytes().to_vec();
    for level in Level::available() {
        for (a, b) in [(0, 1), (1, 0)] {
            let zeros = [zeros[a].clone(), zeros[b].clone()];
            let max = ReductionKernel::at_level(Op::Max, DType::F32, level).unwrap();
            assert_eq!(fold(max, &zeros, None, 0), 0.0_f32.to_le_bytes());
            let min = ReductionKernel::at_level(Op::Min, DType::F32, level).unwrap();
            assert_eq!(fold(min, &zeros, None, 0), (-0.0_f32).to_le_bytes());
            for kernel in [min, max] {
                for pair in [[nan.clone(), one.clone()], [one.clone(), nan.clone()]] {
                    let result = fold(kernel, &pair, Some(a), 0);
                    assert!(f32::from_le_bytes(result.try_into().unwrap()).is_nan());
                }
            }
        }
    }
}

#[test]
fn sixteen_bit_sums_round_once() {
    // 2048 + 1 is a tie in half precision, and 2048 + 1 + 1 would stay 2048 if each sum were
    // rounded.
    let sources = [2048.0, 1.0, 1.0].map(|v| half::f16::from_f32(v).to_le_bytes().to_vec());
    for level in Level::available() {
        let kernel = ReductionKernel::at_level(Op::Sum, DType::F16, level).unwrap();
        let sum = fold(kernel, &sources, None, 0).try_into().unwrap();
        assert_eq!(half::f16::from_le_bytes(sum).to_f32(), 2050.0);
    }
}

#[test]
fn half_conversions_of_every_level_are_those_in_software() {
    // The sum with zero widens and narrows every value; a factor near 1 gives values that need
    // rounding.
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let scaled = |level, factor| {
        let (mut from, mut into) = (Shifted::new(&all, 1), Shifted::new(&all, 3));
        let factor = Factor::Multiply(factor);
        scale_at_level(DType::F16, into.region(), from.region(), factor, level).unwrap();
        into.content().to_vec()
    };
    for factor in [1.0, 0.999, 1.0009765625, 0.5, 0.25, 1.5e-5, 700.0, -0.3] {
        let expected: Vec<u8> = (0..=u16::MAX)
            .flat_map(|bits| {
                half::f16::from_f32(half::f16::from_bits(bits).to_f32() * factor as f32)
                    .to_le_bytes()
            })
            .collect();
        for level in Level::available() {
            assert!(
                same(DType::F16, &scaled(level, factor), &expected),
                "times {factor} on {level:?}"
            );
        }
    }
}

fn scaled<T, const N: usize>(
    dtype: DType,
    from: &[T],
    factor: Factor,
    bytes: impl Fn(&T) -> [u8; N],
) -> Vec<Vec<u8>> {
    let from: Vec<u8> = from.iter().flat_map(bytes).collect();
    let mut results = Vec::new();
    for level in Level::available() {
        for in_place in [false, true] {
            let (mut source, mut target) = (Shifted::new(&from, 1), Shifted::new(&from, 2));
            let target_region = if in_place {
                source.region()
            } else {
                target.region()
            };
            scale_at_level(dtype, target_region, source.region(), factor, level).unwrap();
            let result = if in_place { &source } else { &target };
            results.push(result.content().to_vec());
        }
    }
    results
}

#[test]
fn integers_are_divided_towards_zero() {
    macro_rules! check {
        ($($t:ident $dtype:ident;)*) => {$(
            let (min, max) = (<$t>::MIN, <$t>::MAX);
            let values: Vec<$t> = [min, min + 1, max, max - 1, 0, 1, 2, 6, 7, 8, 100]
                .into_iter()
                .flat_map(|v| [v, v.wrapping_neg(), v.wrapping_mul(37)])
                .collect();
            for divisor in [1, 2, 3, 7, 8, 128, 1000, 1 << 31, (1 << 32) - 1, 1 << 63, u64::MAX] {
                let expected: Vec<u8> = values
                    .iter()
                    .flat_map(|&v| ((v as i128 / i128::from(divisor)) as $t).to_le_bytes())
                    .collect();
                let factor = Factor::Divide(divisor);
                for result in scaled(DType::$dtype, &values, factor, |v: &$t| v.to_le_bytes()) {
                    assert!(result == expected, "{} / {divisor}", stringify!($t));
                }
            }
        )*};
    }
    check! { i8 I8; u8 U8; i16 I16; u16 U16; i32 I32; u32 U32; i64 I64; u64 U64; }
}

#[test]
fn floats_are_scaled_with_one_rounding() {
    let values: Vec<f64> = (0..100).map(|i| f64::from(i) * 0.37 - 5.0).collect();
    let third = Factor::Divide(3);
    let expected: Vec<u8> = values
        .iter()
        .flat_map(|v| (v * (1.0 / 3.0)).to_le_bytes())
        .collect();
    for result in scaled(DType::F64, &values, third, |v: &f64| v.to_le_bytes()) {
        assert!(result == expected);
    }
    let expected: Vec<u8> = values
        .iter()
        .flat_map(|&v| (v as f32 * (1.0_f64 / 3.0) as f32).to_le_bytes())
        .collect();
    for result in scaled(DType::F32, &values, third, |&v: &f64| {
        (v as f32).to_le_bytes()
    }) {
        assert!(result == expected);
    }
    let brain = |v: f64| half::bf16::from_f64(v);
    let expected: Vec<u8> = values
        .iter()
        .flat_map(|&v| half::bf16::from_f32(brain(v).to_f32() * 0.7_f32).to_le_bytes())
        .collect();
    let factor = Factor::Multiply(0.7);
    for result in scaled(DType::BF16, &values, factor, |&v: &f64| {
        brain(v).to_le_bytes()
    }) {
        assert!(result == expected);
    }
}

#[test]
fn what_has_no_meaning_is_refused() {
    let mut buffer = Shifted::new(&[0; 8], 0);
    let region = buffer.region();
    let times_two = Factor::Multiply(2.0);
    for dtype in [DType::I32, DType::Bool] {
        assert!(scale(dtype, region, region, times_two).is_err());
    }
    assert!(scale(DType::Bool, region, region, Factor::Divide(2)).is_err());
    assert!(scale(DType::F32, region, region, Factor::Divide(0)).is_err());
    assert!(ReductionKernel::new(Op::Bor, DType::F8E5M2).is_err());
    assert!(ReductionKernel::new(Op::Bor, DType::F32).is_err());
}

#[test]
#[should_panic(expected = "overlaps its source in part")]
fn partial_overlap_is_refused() {
    let mut buffer = Shifted::new(&[0; 16], 0);
    let (low, high) = (buffer.region().part(0..12), buffer.region().part(4..16));
    ReductionKernel::new(Op::Sum, DType::F32)
        .unwrap()
        .fold(low, &[high]);
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 64,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_shape_is_the_oracle(
        which in 0..existing().count(),
        count in 0..700_usize,
        sources in 1..10_usize,
        seed in 1..u64::MAX,
    ) {
        let (op, dtype) = existing().nth(which).unwrap();
        check_fold(op, dtype, count, sources, seed);
    }
}
