//! Tests that every way of every collective, over every transport, detects lists of counts that
//! differ between ranks.
//!
//! If lists with equal sums were not detected, ranks would read pieces of each other's blocks, and
//! stale content of slots.

use super::oracle::pairwise;
use super::tests::{shm, tcp};
use super::{Case, EngineWorld, ways};
use crate::communicator::Counts;
use crate::error::Error;
use crate::transport::local::{Local, local, rendezvous};
use crate::types::Access;
use crate::types::{Collective, Method};

const RANKS: usize = 3;

const SEED: u64 = 20_261_122;

/// Returns the constructors of worlds, one for each way to transfer bytes.
fn worlds() -> [fn() -> EngineWorld; 5] {
    [
        || EngineWorld::new(shm(RANKS), SEED),
        || EngineWorld::new(shm(RANKS), SEED).registered(),
        || EngineWorld::new(tcp(RANKS), SEED),
        || EngineWorld::new::<Local>(local(RANKS), SEED),
        || EngineWorld::new::<Local>(rendezvous(RANKS), SEED),
    ]
}

fn expect_mismatch(world: &mut EngineWorld, cases: &[Case], hint: &str) {
    println!("{cases:?}");
    let error = world.run_each(cases).expect_err("ranks with other lists");
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    assert!(error.to_string().contains(hint), "{error}");
}

#[test]
fn ranks_with_other_lists_of_one_sum_are_told() {
    use Collective::{AllGather, Gather, ReduceScatter, Scatter};
    for make in worlds() {
        for collective in [AllGather, Gather, ReduceScatter, Scatter] {
            for way in ways(collective, RANKS) {
                let mut world = make();
                if !world.serves(way) || way.0 == Method::RecursiveDoubling {
                    continue;
                }
                let cases =
                    [[100, 300, 200], [200, 200, 200], [200, 200, 200]].map(|counts| Case {
                        counts: Counts::PerRank(counts.into()),
                        root: 1,
                        ..Case::new(collective, way.0, way.1, 0)
                    });
                expect_mismatch(&mut world, &cases, "the same list");
            }
        }
    }
}

/// Covers differences of whole slices, which no single message shows, and blocks of which only one
/// of two ranks knows.
#[test]
fn ranks_that_expect_other_counts_than_are_given_are_told() {
    const SLICE: u64 = 16;
    let less = [0, pairwise(0, 1) / SLICE * SLICE, pairwise(0, 1) - 1];
    for make in worlds() {
        for less in less {
            for gives_less in [true, false] {
                let mut world = make();
                let way = (Method::Direct, Access::Messages);
                if !world.serves(way) {
                    continue;
                }
                let cases: Vec<Case> = (0..RANKS)
                    .map(|rank| {
                        let mut input: Vec<u64> = (0..RANKS).map(|to| pairwise(rank, to)).collect();
                        let mut output: Vec<u64> =
                            (0..RANKS).map(|from| pairwise(from, rank)).collect();
                        match (rank, gives_less) {
                            (0, true) => input[1] = less,
                            (1, false) => output[0] = less,
                            _ => {}
                        }
                        Case {
                            counts: Counts::Pairwise { input, output },
                            slice_bytes: SLICE as usize * 4,
                            ..Case::new(Collective::AllToAll, way.0, way.1, 0)
                        }
                    })
                    .collect();
                expect_mismatch(&mut world, &cases, "the counts differ");
            }
        }
    }
}
