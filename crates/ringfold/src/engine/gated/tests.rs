//! Gated calls of engines whose devices are a random order of events.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::call::Way;
use crate::communicator::{Counts, Request, Target};
use crate::engine::{Engine, Gate, SharedSlots};
use crate::error::Error;
use crate::memory::{Pool, Region};
use crate::random::SplitMix64;
use crate::reduce::Parallel;
use crate::sync::lock;
use crate::transport::Time;
use crate::transport::shm::Shm;
use crate::types::{Collective, DType};

const TIMEOUT: Duration = Duration::from_secs(1);

/// How far each rank has come, in slices.
#[derive(Debug, Default)]
struct Progress {
    published: u32,
    reduced: u32,
    released: u32,
    taken: u32,
}

/// The ranks of a call, which share what they have done.
#[derive(Debug)]
struct TestRanks {
    slices: u32,
    depth: u32,
    each: Vec<Mutex<Progress>>,
    /// Attempts to reduce that a fault has spoiled.
    spoiled: AtomicU32,
}

impl TestRanks {
    fn all(&self, has: impl Fn(&Progress) -> bool) -> bool {
        self.each.iter().all(|rank| has(&lock(rank)))
    }

    /// Has the device of a rank do what it can; whether that was anything.
    fn step_device(&self, rank: usize) -> bool {
        let taken = self.each.iter().map(|rank| lock(rank).taken).min();
        let mut own = lock(&self.each[rank]);
        if own.taken < own.released {
            own.taken += 1;
            return true;
        }
        let has_slot = own.published < taken.unwrap_or(0) + self.depth;
        let publishes = own.published < self.slices && has_slot;
        own.published += u32::from(publishes);
        publishes
    }
}

/// The gate of one rank, which checks the order of what it is asked.
#[derive(Debug)]
struct TestGate {
    ranks: Arc<TestRanks>,
    rank: usize,
}

impl SharedSlots for TestGate {
    fn slices(&self) -> u32 {
        self.ranks.slices
    }

    fn bytes(&self) -> usize {
        0
    }

    fn helpers_max(&self) -> usize {
        0
    }

    fn has_begun(&self) -> bool {
        self.ranks.slices == 0 || self.is_published(self.rank, 0)
    }

    fn is_published(&self, rank: usize, slice: u32) -> bool {
        lock(&self.ranks.each[rank]).published > slice
    }

    fn reduce(&self, slice: u32, _parallel: &mut Parallel) -> Result<bool> {
        assert!(
            self.ranks.all(|rank| rank.published > slice),
            "slice {slice}"
        );
        assert!(
            self.ranks.all(|rank| rank.taken <= slice),
            "slice {slice} again"
        );
        // Relaxed: one thread runs all ranks.
        if self.ranks.spoiled.load(Ordering::Relaxed) > 0 {
            self.ranks.spoiled.fetch_sub(1, Ordering::Relaxed);
            return Ok(false);
        }
        let mut own = lock(&self.ranks.each[self.rank]);
        assert_eq!(own.reduced, slice);
        own.reduced += 1;
        Ok(true)
    }

    fn is_reduced(&self, rank: usize, slice: u32) -> bool {
        lock(&self.ranks.each[rank]).reduced > slice
    }

    fn release(&self, slice: u32) {
        assert!(self.ranks.all(|rank| rank.reduced > slice), "slice {slice}");
        let mut own = lock(&self.ranks.each[self.rank]);
        assert_eq!(own.released, slice);
        own.released += 1;
    }

    fn reuse(&self) {}

    fn readers(&self, slice: u32) -> Vec<usize> {
        let due = (slice + 1).saturating_sub(self.ranks.depth);
        let behind = |rank: &usize| lock(&self.ranks.each[*rank]).taken < due;
        (0..self.ranks.each.len()).filter(behind).collect()
    }
}

fn ranks(world_size: usize, slices: u32, depth: u32) -> Arc<TestRanks> {
    Arc::new(TestRanks {
        slices,
        depth,
        each: (0..world_size).map(|_| Mutex::default()).collect(),
        spoiled: AtomicU32::new(0),
    })
}

fn engines(world_size: usize) -> Vec<Engine> {
    let engine = |(rank, transport)| {
        let transport: Box<Shm> = Box::new(transport);
        Engine::new(transport, rank, world_size, Pool::default())
    };
    Shm::threads(world_size, 4, 1)
        .enumerate()
        .map(engine)
        .collect()
}

/// Submits an all-reduce of `count` elements behind the gate of `rank`.
fn submit(engine: &mut Engine, rank: usize, all: &Arc<TestRanks>, count: u64) {
    let (counts, nothing) = (Counts::Even(count), Region::EMPTY);
    let request = Request {
        target: Target::None,
        ..Request::new(Collective::AllReduce, DType::F32, counts, nothing, nothing)
    };
    let gate = Arc::new(TestGate {
        ranks: all.clone(),
        rank,
    });
    let way = Way::by_slots(4096);
    let job = request.check_gated(rank, all.each.len(), &way, TIMEOUT, Gate::Shared(gate));
    engine.submit(job.expect("a call")).expect("room");
}

#[test]
fn slices_are_reduced_and_released_in_order_whatever_devices_do() {
    let mut random = SplitMix64::stream(39, 0);
    for round in 0..300 {
        let world_size = 1 + random.index(8);
        let depth = 1 + random.index(5) as u32;
        let mut engines = engines(world_size);
        for _ in 0..3 {
            let slices = random.index(10) as u32;
            let all = ranks(world_size, slices, depth);
            all.spoiled.store(random.index(3) as u32, Ordering::Relaxed);
            for (rank, engine) in engines.iter_mut().enumerate() {
                submit(engine, rank, &all, 1000);
            }
            let mut finished = vec![false; world_size];
            let mut steps = 0;
            while finished.contains(&false) || !all.all(|rank| rank.taken == slices) {
                let rank = random.index(world_size);
                match random.index(2) {
                    0 => drop(all.step_device(rank)),
                    _ => {
                        engines[rank].progress(Time(0)).expect("no fault");
                        finished[rank] |= engines[rank].take_finished().is_some();
                    }
                }
                steps += 1;
                assert!(steps < 100_000, "round {round}: {all:?}");
            }
        }
    }
}

#[test]
fn a_rank_in_another_call_is_a_mismatch_before_anything_is_reduced() {
    let (all, mut engines) = (ranks(2, 3, 4), engines(2));
    for (rank, engine) in engines.iter_mut().enumerate() {
        submit(engine, rank, &all, 1000 + rank as u64);
        while all.step_device(rank) {}
    }
    let _ = engines[0].progress(Time(0)).expect("the first announces");
    let error = engines[1].progress(Time(0)).expect_err("another count");
    assert_eq!(error.class(), "Mismatch", "{error}");
    assert!(all.all(|rank| rank.reduced == 0));
}

/// A peer that has not ended a call of many slices holds up the next, although all data is there.
#[test]
fn a_rank_that_may_not_announce_its_call_has_a_deadline() {
    let (all, mut engines) = (ranks(2, 8, 8), engines(2));
    for (rank, engine) in engines.iter_mut().enumerate() {
        submit(engine, rank, &all, 1000);
        while all.step_device(rank) {}
    }
    // Rank 1 combines all and stops before it ends the call.
    for turn in [1, 0, 1, 0, 1, 0] {
        if turn == 0 || !all.all(|rank| rank.reduced == 8) {
            engines[turn].progress(Time(0)).expect("no fault");
        }
    }
    assert!(
        engines[0].take_finished().is_some(),
        "it needs no more of rank 1"
    );
    let next = ranks(2, 1, 8);
    while next.step_device(0) {}
    submit(&mut engines[0], 0, &next, 7);
    engines[0].progress(Time(0)).expect("no fault");
    let late = Time(TIMEOUT.as_nanos() * 1000 + 1);
    let checked = [Time(0), late].map(|now| engines[0].check_deadlines(now));
    let error = checked[1].as_ref().expect_err("rank 1 is late");
    assert_eq!(error.class(), "Timeout", "{error}");
}

/// What the program does before the call has no deadline; then each wait names who is late.
#[test]
fn deadlines_count_from_the_first_slice_and_name_the_rank_that_is_late() {
    let (all, mut engines) = (ranks(3, 3, 4), engines(3));
    let late = Time(TIMEOUT.as_nanos() * 1000 + 1);
    let check = |engine: &mut Engine| {
        engine.check_deadlines(Time(0))?;
        engine.check_deadlines(late)
    };
    for (rank, engine) in engines.iter_mut().enumerate() {
        submit(engine, rank, &all, 1000);
        engine.progress(Time(0)).expect("no fault");
        check(engine).expect("its data is not there");
        assert_eq!(engine.words(), Some(WordWait::Lull));
    }
    let waits_for = |engine: &mut Engine, late: &[usize]| {
        engine.progress(Time(0)).expect("no fault");
        match check(engine).expect_err("a rank is late") {
            Error::Timeout { waiting_for, .. } => assert_eq!(waiting_for, late),
            error => panic!("{error}"),
        }
    };
    // TestRanks 0 and 1 have their first slice, and then all; rank 2 has one slice.
    assert!(all.step_device(0) && all.step_device(1));
    engines[1].progress(Time(0)).expect("no fault");
    waits_for(&mut engines[0], &[2]);
    assert_eq!(engines[0].words(), None, "peers wake it");
    while all.step_device(0) || all.step_device(1) {}
    assert!(all.step_device(2));
    for _ in 0..2 {
        for engine in &mut engines {
            engine.progress(Time(0)).expect("no fault");
        }
    }
    assert!(all.all(|rank| rank.reduced == 1));
    waits_for(&mut engines[0], &[2]);
    assert_eq!(engines[0].words(), Some(WordWait::Flight));
    // Its own device is late, and nobody holds its slot.
    waits_for(&mut engines[2], &[2]);
}
