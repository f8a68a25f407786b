//! Divided steps compared with undivided ones.

use super::pool::{PIECE_ALIGN_BYTES, PIECES_PER_THREAD, piece_bytes};
use super::*;
use crate::memory::Owned;
use crate::random::SplitMix64;
use crate::types::{DType, Op};

/// Returns bytes that depend only on `seed`. No float among them is a NaN, whose payload is not
/// guaranteed.
fn noise(bytes: usize, seed: u64) -> Owned {
    let mut random = SplitMix64(seed);
    let data: Vec<u8> = (0..bytes).map(|_| random.below(64) as u8).collect();
    let owned = Owned::zeroed(bytes);
    owned.region().write(&data);
    owned
}

/// Returns an executor with `helpers` helpers, in a call large enough to divide.
fn helped(helpers: usize) -> Parallel {
    let mut parallel = Parallel::new(helpers, 1 << 20);
    parallel.begin_call(1 << 20);
    parallel
}

fn copy(parallel: &mut Parallel, into: Region, from: Region) {
    for store in [Store::Cached, Store::Streamed] {
        parallel.copy(into, from, store).expect("a copy");
    }
}

fn content(region: Region) -> Vec<u8> {
    let mut bytes = vec![0; region.bytes()];
    region.read(&mut bytes);
    bytes
}

#[test]
fn a_helped_fold_has_the_bits_of_a_lonely_one() {
    let mut parallel = helped(3);
    // Odd lengths: the last piece is short, and may end inside a vector register.
    for (dtype, bytes) in [
        (DType::F32, 400_004),
        (DType::BF16, 333_334),
        (DType::F64, 800_008),
        (DType::U8, 262_145),
    ] {
        for sources in [1, 2, 5] {
            let inputs: Vec<Owned> = (0..sources).map(|seed| noise(bytes, seed + 7)).collect();
            let regions: Vec<Region> = inputs.iter().map(Owned::region).collect();
            let (alone, helped) = (Owned::zeroed(bytes), Owned::zeroed(bytes));
            let kernel = ReductionKernel::new(Op::Sum, dtype).expect("a sum");
            kernel.fold(alone.region(), &regions);
            parallel.fold(kernel, helped.region(), &regions);
            assert!(
                content(alone.region()) == content(helped.region()),
                "{dtype}, {sources}"
            );
            // In place, into the last source.
            parallel.fold(kernel, regions[regions.len() - 1], &regions);
            assert!(
                content(alone.region()) == content(regions[regions.len() - 1]),
                "{dtype}"
            );
        }
    }
}

#[test]
fn a_helped_spread_fills_every_target_with_the_same_bits() {
    let mut parallel = helped(2);
    let bytes = 300_004;
    let inputs: Vec<Owned> = (0..3).map(|seed| noise(bytes, seed + 11)).collect();
    let sources: Vec<Region> = inputs.iter().map(Owned::region).collect();
    let kernel = ReductionKernel::new(Op::Sum, DType::F32).expect("a sum");
    for store in [Store::Cached, Store::Streamed] {
        let outputs: Vec<Owned> = (0..3).map(|_| Owned::zeroed(bytes)).collect();
        let targets: Vec<Region> = outputs.iter().map(Owned::region).collect();
        let alone = Owned::zeroed(bytes);
        let (factor, mut parts) = (Some(Factor::Multiply(0.25)), Vec::new());
        kernel
            .spread(&[alone.region()], &sources, factor, store, &mut parts)
            .expect("a spread");
        parallel
            .spread(&kernel, &targets, &sources, (factor, store), &mut parts)
            .expect("a spread");
        for target in &targets {
            assert!(content(*target) == content(alone.region()), "{store:?}");
        }
        parallel
            .spread_copy(&targets, sources[0], store)
            .expect("a copy");
        for target in &targets {
            assert!(content(*target) == content(sources[0]), "{store:?}");
        }
    }
    let wrong = Some(Factor::Divide(0));
    let error = parallel.spread(
        &kernel,
        &sources,
        &sources,
        (wrong, Store::Cached),
        &mut Vec::new(),
    );
    assert!(error.is_err());
}

#[test]
fn a_helped_copy_is_whole_and_one_that_overlaps_is_right() {
    let mut parallel = helped(2);
    let from = noise(3_000_001, 3);
    let into = Owned::zeroed(3_000_001);
    copy(&mut parallel, into.region(), from.region());
    assert!(content(into.region()) == content(from.region()));
    let expected = content(from.region().part(0..2_999_000));
    let (first, shifted) = (0..2_999_000, 1001..3_000_001);
    let (into, from_first) = (
        from.region().part(shifted.clone()),
        from.region().part(first),
    );
    parallel
        .copy(into, from_first, Store::Streamed)
        .expect("a copy");
    assert!(content(from.region().part(shifted)) == expected);
}

#[test]
fn many_steps_in_a_row_and_pauses_between_them_lose_nothing() {
    let mut parallel = helped(2);
    let ones = noise(512 << 10, 1);
    let sum = Owned::zeroed(512 << 10);
    let mut expected = vec![0u8; 512 << 10];
    let kernel = ReductionKernel::new(Op::Sum, DType::U8).expect("a sum");
    for turn in 0..60 {
        parallel.fold(kernel, sum.region(), &[sum.region(), ones.region()]);
        if turn % 20 == 19 {
            // Long enough for helpers to fall asleep; the result does not depend on it.
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
    for (total, one) in expected.iter_mut().zip(content(ones.region())) {
        *total = one.wrapping_mul(60);
    }
    assert!(content(sum.region()) == expected);
}

#[test]
fn small_steps_start_no_thread() {
    // Enough helpers that some take part even if other tests run concurrently.
    let mut parallel = helped(15);
    let (from, into) = (noise(64 << 10, 1), Owned::zeroed(64 << 10));
    copy(&mut parallel, into.region(), from.region());
    assert!(parallel.pool.is_none());
    let (from, into) = (noise(1 << 20, 1), Owned::zeroed(1 << 20));
    copy(&mut parallel, into.region(), from.region());
    assert!(parallel.pool.is_some());
    assert!(content(into.region()) == content(from.region()));
}

#[test]
fn only_cores_that_no_rank_needs_help() {
    assert_eq!(automatic(2, 2, 2), 0);
    assert_eq!(automatic(2, 8, 2), 0);
    assert_eq!(automatic(16, 4, 16), 3);
    assert_eq!(automatic(16, 4, 1), 0);
    assert_eq!(automatic(128, 2, 128), AUTOMATIC_MAX);
    assert_eq!(automatic(0, 0, 0), 0);
}

#[test]
fn pieces_are_whole_elements_and_not_too_many() {
    for bytes in [1usize, 4096, 300_000, 1 << 30] {
        for (regions, threads) in [(2, 2), (9, 64), (65, 4)] {
            let piece = piece_bytes(bytes, regions, threads);
            assert!(piece.is_multiple_of(PIECE_ALIGN_BYTES));
            assert!(bytes.div_ceil(piece) <= threads * PIECES_PER_THREAD);
        }
    }
}

#[test]
fn no_more_take_part_than_gain_from_it() {
    // Each case: helpers, bytes touched and other steps; then the expected number of helpers.
    let cases = [
        ((7, 1 << 30, 0), 7),
        ((7, 1 << 30, 1), 3),
        ((7, 1 << 30, 3), 1),
        ((7, 1 << 30, 7), 0),
        ((1, 1 << 30, 0), 1),
        ((1, 1 << 30, 1), 0),
        ((7, STEP_BYTES_MIN, 0), 1),
        ((7, 4 * THREAD_BYTES_MIN, 0), 3),
        ((7, THREAD_BYTES_MIN, 0), 0),
    ];
    for ((count, touched_bytes, others), due) in cases {
        let found = invited(count, touched_bytes, others);
        assert_eq!(
            found, due,
            "{count} helpers, {touched_bytes} bytes, {others} others"
        );
    }
}

#[test]
fn steps_of_several_communicators_at_once_have_the_bits_of_lonely_ones() {
    let bytes = 1_000_004;
    let steps = |seed: u64| {
        let mut parallel = helped(3);
        let inputs: Vec<Owned> = (0..2).map(|source| noise(bytes, seed + source)).collect();
        let regions: Vec<Region> = inputs.iter().map(Owned::region).collect();
        let kernel = ReductionKernel::new(Op::Sum, DType::F32).expect("a sum");
        let (alone, helped) = (Owned::zeroed(bytes), Owned::zeroed(bytes));
        kernel.fold(alone.region(), &regions);
        for _ in 0..50 {
            helped.region().write(&vec![0; bytes]);
            parallel.fold(kernel, helped.region(), &regions);
            assert!(content(alone.region()) == content(helped.region()));
        }
    };
    std::thread::scope(|scope| {
        for seed in 1..5 {
            scope.spawn(move || steps(100 * seed));
        }
    });
}

#[test]
fn a_small_call_is_not_divided() {
    let mut parallel = helped(3);
    parallel.begin_call((1 << 20) - 1);
    let (from, into) = (noise(1 << 20, 1), Owned::zeroed(1 << 20));
    copy(&mut parallel, into.region(), from.region());
    assert!(parallel.pool.is_none());
    assert!(content(into.region()) == content(from.region()));
}
