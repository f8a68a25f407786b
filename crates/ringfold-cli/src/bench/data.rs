//! Data whose reduction is exact in every type, in any order, on any number of ranks.
//!
//! Every element is a hash of seed, index and rank, shaped so that no partial result rounds: small
//! whole numbers for float sums, signs and a few factors for float products, any value for
//! integers, whose arithmetic wraps. The result thus does not depend on the order of additions, and
//! a lost, duplicated or swapped chunk is detected. The idea is nccl-tests' (`verifiable/`).
//! Without a reduction, elements are random bits.
//!
//! Values are blocks of `i64`. The expected result is computed from them in rank order,
//! independently of the library's kernels; `encode` converts values to their type.

use half::{bf16, f16};
use ringfold::internals::random::mix;
use ringfold::{DType, F8E4M3, F8E5M2};

use crate::parse::OpName;

/// Number of elements generated and compared at a time: a block of values and its bytes stay in the
/// cache.
pub const BLOCK: usize = 2048;

/// The distribution of the elements' values.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Random bits: data that is only moved, and integers for a wrapping `sum` or `bxor`.
    Bits,
    /// Odd numbers, whose wrapping product is never zero: integers' `prod`.
    Odd,
    /// Whole numbers so small that every sum is exact: floats' `sum` and `premul_sum`, and `avg` of
    /// all types.
    Small { limit: i64, signed: bool },
    /// 1 and -1, times 2 or 3 on at most two ranks: floats' `prod`.
    Factors,
    /// Numbers that the type holds exactly: `min`, `max`.
    Within { span: u64, low: i64 },
    /// All bits but one: `band`.
    AllButOne,
    /// One bit: `bor`.
    OneBit,
    /// 0 and 1, mostly the operation's neutral value: `bool`.
    Rare { usual: i64 },
}

/// Combines the second slice into the first, element by element.
type Combine = fn(&mut [i64], &[i64]);

/// The data of one check: every rank's input, and the expected result.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    dtype: DType,
    op: Option<OpName>,
    shape: Shape,
    combine: Combine,
    world_size: u64,
    seed: u64,
}

impl Data {
    /// Creates data for `op` on `dtype`; with `None`, elements are only moved.
    pub fn new(dtype: DType, op: Option<OpName>, world_size: usize, seed: u64) -> Data {
        let (shape, combine) = shape(dtype, op);
        Data {
            dtype,
            op,
            shape,
            combine,
            world_size: world_size as u64,
            seed,
        }
    }

    /// Returns the rank's factor for `premul_sum`: 1 on even ranks, 2 on odd ones.
    pub fn factor(rank: usize) -> i64 {
        1 + (rank as i64 & 1)
    }

    /// Writes elements `first..` of `rank`'s input to `values`.
    pub fn give(&self, rank: usize, first: u64, values: &mut [i64]) {
        let base = mix(self.seed ^ mix(rank as u64 + 1));
        let own = |index: u64| mix(base.wrapping_add(index));
        let shared = |index: u64| mix(self.seed.wrapping_add(index));
        let (rank, n) = (rank as u64, self.world_size);
        match self.shape {
            Shape::Bits => fill(values, first, |i| own(i) as i64),
            Shape::Odd => fill(values, first, |i| own(i) as i64 | 1),
            Shape::Small { limit, signed } => {
                let reach = (limit as u64 / n).min(1 << 30);
                let low = if signed { -(reach as i64) } else { 0 };
                let span = (reach as i64 - low + 1) as u64;
                if reach > 0 {
                    fill(values, first, |i| scale(own(i), span) as i64 + low);
                } else {
                    // More ranks than an exact sum allows: `limit` ranks, chosen by index,
                    // contribute 1.
                    fill(values, first, |i| {
                        ((rank + shared(i) % n) % n < limit as u64) as i64
                    });
                }
            }
            Shape::Factors => fill(values, first, |i| {
                let common = shared(i);
                let chosen = [scale(common, n), scale(common << 32, n)].contains(&rank);
                let size = if chosen { 2 + (common & 1) as i64 } else { 1 };
                if own(i) >> 63 == 0 { size } else { -size }
            }),
            Shape::Within { span, low } => {
                fill(values, first, |i| scale(own(i), span) as i64 + low);
            }
            Shape::AllButOne => fill(values, first, |i| !(1 << (own(i) & 63))),
            Shape::OneBit => fill(values, first, |i| 1 << (own(i) & 63)),
            Shape::Rare { usual } => fill(values, first, |i| {
                if scale(own(i), 2 * n) == 0 {
                    1 - usual
                } else {
                    usual
                }
            }),
        }
    }

    /// Writes elements `first..` of the combination of all ranks' inputs to `values`.
    pub fn combined(&self, first: u64, values: &mut [i64]) {
        let mut given = [0; BLOCK];
        let given = &mut given[..values.len()];
        self.give(0, first, values);
        self.weigh(0, values);
        for rank in 1..self.world_size as usize {
            self.give(rank, first, given);
            self.weigh(rank, given);
            (self.combine)(values, given);
        }
    }

    /// Encodes values of inputs, or of results that need no division.
    pub fn encode(&self, values: &[i64], bytes: &mut [u8]) {
        if matches!(self.shape, Shape::Bits) {
            encode_bits(self.dtype, values, bytes);
        } else {
            encode_numbers(self.dtype, values, 1, bytes);
        }
    }

    /// Encodes values of a result: like `encode`, but divided by the world size for `avg`.
    pub fn encode_result(&self, values: &[i64], bytes: &mut [u8]) {
        if self.op == Some("avg") {
            encode_numbers(self.dtype, values, self.world_size, bytes);
        } else {
            self.encode(values, bytes);
        }
    }

    fn weigh(&self, rank: usize, values: &mut [i64]) {
        if self.op == Some("premul_sum") {
            values.iter_mut().for_each(|v| *v *= Data::factor(rank));
        }
    }
}

/// Combines `given` into `values`. Generic, so that the compiler sees the operation in the loop.
fn zip(values: &mut [i64], given: &[i64], combine: impl Fn(i64, i64) -> i64) {
    for (value, &other) in values.iter_mut().zip(given) {
        *value = combine(*value, other);
    }
}

fn shape(dtype: DType, op: Option<OpName>) -> (Shape, Combine) {
    const SUM: Combine = |values, given| zip(values, given, i64::wrapping_add);
    const PROD: Combine = |values, given| zip(values, given, i64::wrapping_mul);
    const MIN: Combine = |values, given| zip(values, given, i64::min);
    const MAX: Combine = |values, given| zip(values, given, i64::max);
    const BAND: Combine = |values, given| zip(values, given, |a, b| a & b);
    const BOR: Combine = |values, given| zip(values, given, |a, b| a | b);
    const BXOR: Combine = |values, given| zip(values, given, |a, b| a ^ b);
    let Some(op) = op else {
        return (Shape::Bits, |_, _| ());
    };
    let is_bool = dtype == DType::Bool;
    match op {
        "prod" | "min" | "band" if is_bool => (Shape::Rare { usual: 1 }, BAND),
        "bxor" if is_bool => (Shape::Rare { usual: 0 }, BXOR),
        _ if is_bool => (Shape::Rare { usual: 0 }, BOR),
        "sum" if !dtype.is_float() => (Shape::Bits, SUM),
        "prod" if !dtype.is_float() => (Shape::Odd, PROD),
        "prod" => (Shape::Factors, PROD),
        "min" => (within(dtype), MIN),
        "max" => (within(dtype), MAX),
        "premul_sum" => (small(dtype, exact_limit(dtype) / 2), SUM),
        "band" => (Shape::AllButOne, BAND),
        "bor" => (Shape::OneBit, BOR),
        "bxor" => (Shape::Bits, BXOR),
        _ => (small(dtype, exact_limit(dtype)), SUM),
    }
}

fn small(dtype: DType, limit: i64) -> Shape {
    Shape::Small {
        limit,
        signed: is_signed(dtype),
    }
}

fn is_signed(dtype: DType) -> bool {
    !matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64)
}

/// Returns the shape for `min` and `max`: numbers that the type holds exactly, of both signs if the
/// type is signed.
fn within(dtype: DType) -> Shape {
    let limit = exact_limit(dtype).min(1 << 30);
    let low = if is_signed(dtype) { -limit } else { 0 };
    let span = (limit - low + 1) as u64;
    Shape::Within { span, low }
}

/// Returns the largest number up to which, with either sign, the type holds all whole numbers and
/// their sums.
fn exact_limit(dtype: DType) -> i64 {
    match dtype {
        DType::Bool => 1,
        DType::I8 => i8::MAX.into(),
        DType::U8 => u8::MAX.into(),
        DType::I16 => i16::MAX.into(),
        DType::U16 => u16::MAX.into(),
        DType::I32 => i32::MAX.into(),
        DType::U32 => u32::MAX.into(),
        DType::I64 | DType::U64 => 1 << 62,
        DType::F8E5M2 => 1 << 3,
        DType::F8E4M3 => 1 << 4,
        DType::F16 => 1 << 11,
        DType::BF16 => 1 << 8,
        DType::F32 => 1 << 24,
        DType::F64 => 1 << 53,
    }
}

fn fill(values: &mut [i64], first: u64, element: impl Fn(u64) -> i64) {
    for (offset, value) in values.iter_mut().enumerate() {
        *value = element(first + offset as u64);
    }
}

/// Maps the upper half of `hash` to a number below `span`, which is at most 2^32.
fn scale(hash: u64, span: u64) -> u64 {
    ((hash >> 32) * span) >> 32
}

fn encode_bits(dtype: DType, values: &[i64], bytes: &mut [u8]) {
    match dtype.size_bytes() {
        1 if dtype == DType::Bool => put(values, bytes, |v| [(v & 1) as u8]),
        1 => put(values, bytes, |v| [v as u8]),
        2 => put(values, bytes, |v| (v as u16).to_ne_bytes()),
        4 => put(values, bytes, |v| (v as u32).to_ne_bytes()),
        _ => put(values, bytes, |v| v.to_ne_bytes()),
    }
}

/// Encodes values, divided by `by`, as numbers of the type; integers are cut to their width. As
/// `avg` specifies, integer quotients are truncated, and floats are multiplied once by the
/// reciprocal.
fn encode_numbers(dtype: DType, values: &[i64], by: u64, bytes: &mut [u8]) {
    let single = move |v: i64| v as f32 * (1.0 / by as f64) as f32;
    match dtype {
        DType::F64 => put(values, bytes, |v| {
            (v as f64 * (1.0 / by as f64)).to_ne_bytes()
        }),
        DType::F32 => put(values, bytes, |v| single(v).to_ne_bytes()),
        DType::BF16 => put(values, bytes, |v| bf16::from_f32(single(v)).to_ne_bytes()),
        DType::F16 => put(values, bytes, |v| f16::from_f32(single(v)).to_ne_bytes()),
        DType::F8E4M3 => put(values, bytes, |v| [F8E4M3::from_f32(single(v)).0]),
        DType::F8E5M2 => put(values, bytes, |v| [F8E5M2::from_f32(single(v)).0]),
        _ if by == 1 => encode_bits(dtype, values, bytes),
        _ => {
            let mut quotients = [0; BLOCK];
            let quotients = &mut quotients[..values.len()];
            quotients.copy_from_slice(values);
            quotients.iter_mut().for_each(|v| *v /= by as i64);
            encode_bits(dtype, quotients, bytes);
        }
    }
}

fn put<const N: usize>(values: &[i64], bytes: &mut [u8], encode: impl Fn(i64) -> [u8; N]) {
    let (elements, rest) = bytes.as_chunks_mut::<N>();
    assert!(rest.is_empty() && elements.len() == values.len());
    for (element, &value) in elements.iter_mut().zip(values) {
        *element = encode(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(data: &Data, rank: usize, count: usize) -> Vec<i64> {
        let mut values = vec![0; count];
        data.give(rank, 0, &mut values);
        values
    }

    #[test]
    fn float_sums_stay_exact_for_any_number_of_ranks() {
        for dtype in DType::ALL.iter().copied().filter(|dtype| dtype.is_float()) {
            for op in ["sum", "avg", "premul_sum"] {
                for n in [1, 2, 3, 8, 64, 129, 300, 5000] {
                    let data = Data::new(dtype, Some(op), n, 7);
                    let mut largest = [0; 32];
                    for rank in 0..n {
                        let mut values = given(&data, rank, 32);
                        data.weigh(rank, &mut values);
                        for (sum, value) in largest.iter_mut().zip(values) {
                            *sum += value.abs();
                        }
                    }
                    let limit = exact_limit(dtype);
                    assert!(largest.iter().all(|&sum| sum <= limit), "{dtype} {op} {n}");
                    assert!(largest.iter().any(|&sum| sum > 0), "{dtype} {op} {n}");
                }
            }
        }
    }

    #[test]
    fn integer_averages_do_not_wrap() {
        for n in [2, 3, 127, 200] {
            let data = Data::new(DType::I8, Some("avg"), n, 7);
            let mut values = [0; 64];
            data.combined(0, &mut values);
            assert!(values.iter().all(|v| v.abs() <= i8::MAX.into()), "{n}");
        }
    }

    #[test]
    fn every_rank_and_seed_gives_something_else() {
        for op in [None, Some("sum"), Some("max"), Some("bxor")] {
            let data = Data::new(DType::I32, op, 4, 1);
            assert_ne!(given(&data, 0, 16), given(&data, 1, 16));
            assert_ne!(
                given(&data, 0, 16),
                given(&Data::new(DType::I32, op, 4, 2), 0, 16)
            );
        }
    }

    #[test]
    fn a_lost_or_doubled_contribution_shows_in_every_operation() {
        for &dtype in DType::ALL {
            for op in ringfold::Op::NAMES {
                if op.parse::<ringfold::Op>().unwrap().check(dtype).is_err() {
                    continue;
                }
                let data = Data::new(dtype, Some(op), 4, 3);
                let mut whole = [0; BLOCK];
                data.combined(0, &mut whole);
                let mut without_last = [0; BLOCK];
                data.give(0, 0, &mut without_last);
                data.weigh(0, &mut without_last);
                for rank in 1..3 {
                    let mut values = given(&data, rank, BLOCK);
                    data.weigh(rank, &mut values);
                    (data.combine)(&mut without_last, &values);
                }
                assert_ne!(whole, without_last, "{dtype} {op}");
            }
        }
    }

    #[test]
    fn integer_averages_truncate() {
        let data = Data::new(DType::I16, Some("avg"), 2, 0);
        let mut bytes = [0; 6];
        data.encode_result(&[3, -3, 5], &mut bytes);
        let halves: Vec<_> = bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|b| i16::from_ne_bytes(*b))
            .collect();
        assert_eq!(halves, [1, -1, 2]);
    }
}
