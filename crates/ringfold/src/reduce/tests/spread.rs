//! Spreads compared with folds, bit for bit.

use super::super::*;
use crate::memory::{Owned, Region};
use crate::types::{DType, Op};

fn filled(bytes: usize, seed: u8) -> Owned {
    let owned = Owned::zeroed(bytes);
    let data: Vec<u8> = (0..bytes).map(|i| (i as u8).wrapping_mul(seed)).collect();
    owned.region().write(&data);
    owned
}

fn bytes_of(region: Region) -> Vec<u8> {
    let mut bytes = vec![0; region.bytes()];
    region.read(&mut bytes);
    bytes
}

/// Compares a spread with a fold and a scaling, bit for bit, at every target.
fn compare(kernel: &ReductionKernel, ranks: usize, elements: usize, way: SpreadCase) {
    let SpreadCase {
        factor,
        store,
        shift,
        in_place,
    } = way;
    let size = kernel.dtype().size_bytes();
    let (begin, bytes) = (shift * size, elements * size);
    let part = |owned: &Owned| owned.region().part(begin..begin + bytes);
    let memory = |rank: usize| filled(begin + bytes, 3 + 2 * rank as u8);
    let inputs: Vec<_> = (0..ranks).map(memory).collect();
    let outputs: Vec<_> = (0..ranks).map(memory).collect();
    let sources: Vec<_> = inputs.iter().map(part).collect();
    let expected = Owned::zeroed(bytes);
    let expected = expected.region();
    kernel.fold(expected, &sources);
    if let Some(factor) = factor {
        scale(kernel.dtype(), expected, expected, factor).unwrap();
    }
    let targets: Vec<_> = if in_place {
        sources.clone()
    } else {
        outputs.iter().map(part).collect()
    };
    kernel
        .spread(&targets, &sources, factor, store, &mut Vec::new())
        .unwrap();
    for target in targets {
        assert_eq!(
            bytes_of(target),
            bytes_of(expected),
            "{} from {ranks}, {elements} elements, {way:?}",
            kernel.dtype()
        );
    }
}

#[derive(Clone, Copy, Debug)]
struct SpreadCase {
    factor: Option<Factor>,
    store: Store,
    /// Number of elements before the first one used.
    shift: usize,
    in_place: bool,
}

#[test]
fn a_spread_gives_all_targets_what_a_fold_gives_one() {
    let (times, divide) = (Some(Factor::Multiply(0.3)), Some(Factor::Divide(3)));
    let kinds = [
        (DType::U8, Op::Sum, None),
        (DType::I16, Op::Sum, divide),
        (DType::I32, Op::Max, None),
        (DType::U64, Op::Sum, None),
        (DType::BF16, Op::Sum, None),
        (DType::BF16, Op::Sum, times),
        (DType::F16, Op::Sum, None),
        (DType::F16, Op::Sum, times),
        (DType::F32, Op::Sum, None),
        (DType::F32, Op::Sum, times),
        (DType::F64, Op::Prod, None),
        (DType::F64, Op::Sum, times),
    ];
    let stores = [
        (Store::Cached, 0),
        (Store::Cached, 1),
        (Store::Streamed, 0),
        (Store::Streamed, 1),
    ];
    for level in Level::available() {
        for (dtype, op, factor) in kinds {
            let kernel = ReductionKernel::at_level(op, dtype, level).unwrap();
            for (ranks, elements) in [(2, 0), (2, 15), (2, 16), (3, 1000), (4, 3001), (5, 3001)] {
                for (store, shift) in stores {
                    for in_place in [false, true] {
                        let way = SpreadCase {
                            factor,
                            store,
                            shift,
                            in_place,
                        };
                        compare(&kernel, ranks, elements, way);
                    }
                }
            }
        }
    }
}

#[test]
fn a_copy_reaches_all_targets() {
    for store in [Store::Cached, Store::Streamed] {
        let source = filled(10_000, 7);
        let others = [filled(10_000, 1), filled(10_000, 1)];
        let targets = [source.region(), others[0].region(), others[1].region()];
        spread_copy(&targets, source.region(), store);
        for target in targets {
            assert_eq!(bytes_of(target), bytes_of(filled(10_000, 7).region()));
        }
    }
}
