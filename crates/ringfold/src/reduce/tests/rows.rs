//! Combinations by way of partial results in `F32`, compared with folds.

use super::super::*;
use super::{Shifted, random_elements, same};
use crate::memory::{Owned, Region};
use crate::random::SplitMix64;
use crate::types::{DType, Op};

const SEED: u64 = 7;

const LEVELS: [Level; 3] = [Level::Baseline, Level::Avx2, Level::Avx512];

const SHORT: [DType; 4] = [DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2];

#[test]
fn partial_results_of_blocks_give_the_bits_of_all_values() {
    let mut random = SplitMix64(SEED);
    let levels = LEVELS.into_iter().filter(|level| level.is_available());
    for (level, dtype) in levels.flat_map(|level| SHORT.map(|dtype| (level, dtype))) {
        for (op, count, ranks) in [Op::Sum, Op::Prod]
            .into_iter()
            .flat_map(|op| [0, 1, 15, 16, 45].map(|count| (op, count)))
            .flat_map(|(op, count)| [1, 2, 3, 4, 7, 8, 11].map(|ranks| (op, count, ranks)))
        {
            let sources: Vec<_> = (0..ranks)
                .map(|_| random_elements(dtype, count, &mut random))
                .collect();
            let mut sources: Vec<_> = (0..)
                .zip(&sources)
                .map(|(shift, source)| Shifted::new(source, shift))
                .collect();
            let regions: Vec<Region> = sources.iter_mut().map(Shifted::region).collect();
            let mut expected = Shifted::new(&vec![0; count * dtype.size_bytes()], 0);
            let whole = ReductionKernel::at_level(op, dtype, level).unwrap();
            whole.fold(expected.region(), &regions);
            let kernel = |from, to| ReductionKernel::between(op, (from, to), level).unwrap();
            let (begin, end) = (kernel(dtype, DType::F32), kernel(DType::F32, dtype));
            for size in [1, 2, 4] {
                let mut partials: Vec<_> = regions
                    .chunks(size)
                    .map(|_| Shifted::new(&vec![0; count * 4], 3))
                    .collect();
                let wide: Vec<Region> = partials.iter_mut().map(Shifted::region).collect();
                for (into, block) in wide.iter().zip(regions.chunks(size)) {
                    begin.fold(*into, block);
                }
                let mut result = Shifted::new(&vec![0; count * dtype.size_bytes()], 5);
                end.fold(result.region(), &wide);
                let is_same = same(dtype, result.content(), expected.content());
                assert!(
                    is_same,
                    "{op} of {ranks} {dtype}, {count} elements, {level:?}, {size}"
                );
            }
        }
    }
}

#[test]
fn helpers_convert_the_same_elements() {
    let count = 300_001;
    let mut parallel = Parallel::new(2, 0);
    parallel.begin_call(count * 4);
    let values = random_elements(DType::BF16, count, &mut SplitMix64(SEED));
    let narrow = [(); 2].map(|()| Owned::zeroed(count * 2));
    let wide = [(); 2].map(|()| Owned::zeroed(count * 4));
    narrow[0].region().write(&values);
    let [given, made] = [0, 1].map(|i| narrow[i].region());
    let [alone, shared] = [0, 1].map(|i| wide[i].region());
    let kernel = |types| ReductionKernel::between(Op::Sum, types, Level::current()).unwrap();
    let begin = kernel((DType::BF16, DType::F32));
    begin.fold(alone, &[given, given]);
    parallel.fold(begin, shared, &[given, given]);
    let bytes = |region: Region| {
        let mut bytes = vec![0; region.bytes()];
        region.read(&mut bytes);
        bytes
    };
    assert!(same(DType::F32, &bytes(alone), &bytes(shared)));
    parallel.fold(kernel((DType::F32, DType::BF16)), made, &[shared]);
    let sum = Owned::zeroed(count * 2);
    let whole = ReductionKernel::new(Op::Sum, DType::BF16).unwrap();
    whole.fold(sum.region(), &[given, given]);
    assert!(same(DType::BF16, &bytes(made), &bytes(sum.region())));
}

#[test]
fn other_types_and_operations_have_no_partial_results() {
    for (op, types) in [
        (Op::Max, (DType::BF16, DType::F32)),
        (Op::Sum, (DType::F64, DType::F32)),
        (Op::Sum, (DType::BF16, DType::F16)),
    ] {
        let refused = ReductionKernel::between(op, types, Level::current());
        assert!(refused.is_err(), "{op} {types:?}");
    }
}
