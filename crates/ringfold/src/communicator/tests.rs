//! Tests of calls, with ranks that are threads.

mod rules;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Communicator;
use crate::memory::Region;
use crate::reduce::Parallel;
use crate::setup::threads::threads_with;
use crate::tune::{Reason, Rules};
use crate::types::{Collective, DType, Method, Op};
use crate::{Counts, Error, Request};

/// Limit of the lateness that a test tries: on no machine is any other rank as late.
const WATCHDOG: Duration = Duration::from_secs(120);

fn on_all<R: Send>(world_size: usize, f: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    on_each(Communicator::threads(world_size), f)
}

fn on_each<R: Send>(
    communicators: Vec<Communicator>,
    f: impl Fn(&Communicator) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|scope| {
        let f = &f;
        let spawned: Vec<_> = communicators
            .into_iter()
            .map(|communicator| scope.spawn(move || f(&communicator)))
            .collect();
        spawned
            .into_iter()
            .map(|thread| thread.join().expect("a rank"))
            .collect()
    })
}

#[test]
fn threads_reduce_what_they_give() {
    for world_size in 1..=5 {
        let results = on_all(world_size, |communicator| {
            let mut data = vec![communicator.rank() as f32 + 1.0; 1000];
            communicator
                .all_reduce(&mut data, Op::Sum)
                .expect("an all-reduce");
            data
        });
        let sum = (world_size * (world_size + 1) / 2) as f32;
        assert!(
            results.iter().flatten().all(|value| *value == sum),
            "{world_size} ranks"
        );
    }
}

/// Rank 1 arrives ever later, until the other ranks arrive before it and see which rank they wait
/// for.
#[test]
fn a_late_rank_is_counted_as_last_and_waits_for_no_peer() {
    const LATE: usize = 1;
    for (count, algorithm) in [
        (2, None),
        (300_000, None),
        (300_000, Some(Method::Ring)),
        (300_000, Some(Method::Direct)),
    ] {
        let is_blamed = AtomicBool::new(false);
        on_all(3, |communicator| {
            let mut data = vec![1f32; count];
            // SAFETY: the vector outlives the blocking calls below.
            let region = unsafe { Region::new(data.as_mut_ptr().cast(), 4 * count) };
            let counts = Counts::Even(count as u64);
            let mut request =
                Request::new(Collective::AllReduce, DType::F32, counts, region, region);
            request.options.algorithm = algorithm;
            let mut lateness = Duration::from_millis(20);
            // Written between two barriers and read after the second.
            while !is_blamed.load(Ordering::Relaxed) {
                communicator.barrier().expect("a barrier");
                communicator.reset_stats();
                if communicator.rank() == LATE {
                    std::thread::sleep(lateness);
                }
                // SAFETY: the region's vector lives in this scope.
                unsafe { communicator.run(&request, &mut || Ok(())) }.expect("an all-reduce");
                let stats = communicator.stats();
                assert_eq!(stats.calls, 1);
                let last: u64 = stats.peers.iter().map(|peer| peer.last).sum();
                assert!(stats.times_last + last <= 1, "{stats:?}");
                let peer = stats.peers[LATE];
                if communicator.rank() == 2 && peer.last == 1 && peer.most > lateness / 2 {
                    assert_eq!(peer.most, peer.lateness);
                    assert!(peer.waited <= stats.waited);
                    is_blamed.store(true, Ordering::Relaxed);
                }
                communicator.barrier().expect("a barrier");
                lateness *= 2;
                assert!(lateness < WATCHDOG, "{count} elements by {algorithm:?}");
            }
        });
    }
}

/// The shortest way is the one-shot schedule written out: ranks on either way interoperate, bit for
/// bit.
#[test]
fn the_shortest_way_and_the_schedule_are_one() {
    for world_size in [2, 3, 5] {
        let results = on_all(world_size, |communicator| {
            let mut outputs = Vec::new();
            for turn in 0..40usize {
                let value =
                    |index: usize| ((communicator.rank() + 1) * (index + turn + 1)) as f32 / 3.0;
                let input: Vec<f32> = (0..1 + turn * 13).map(value).collect();
                let mut output = vec![0.0f32; input.len()];
                let bytes = size_of_val(input.as_slice());
                // SAFETY: the vector outlives the blocking call below, which only reads it.
                let from = unsafe { Region::new(input.as_ptr().cast_mut().cast(), bytes) };
                // SAFETY: the vector outlives the blocking call below.
                let into = unsafe { Region::new(output.as_mut_ptr().cast(), bytes) };
                let counts = Counts::Even(input.len() as u64);
                let mut request =
                    Request::new(Collective::AllReduce, DType::F32, counts, from, into);
                request.options.algorithm = Some(Method::OneShot);
                if (communicator.rank() + turn).is_multiple_of(2) {
                    // SAFETY: the regions' vectors live in this scope.
                    unsafe { communicator.run(&request, &mut || Ok(())) }.expect("an all-reduce");
                } else {
                    // The communicator's own thread uses the schedule.
                    // SAFETY: as above.
                    let work = unsafe { communicator.start(request) }.expect("a start");
                    work.wait().expect("an all-reduce");
                }
                outputs.push(
                    output
                        .iter()
                        .map(|value| value.to_bits())
                        .collect::<Vec<_>>(),
                );
            }
            outputs
        });
        assert!(
            results.windows(2).all(|pair| pair[0] == pair[1]),
            "{world_size} ranks"
        );
        let sum: f32 = (1..=world_size).map(|rank| rank as f32 / 3.0).sum();
        assert!((f32::from_bits(results[0][0][0]) - sum).abs() < 1e-5);
    }
}

/// The straight way is the `direct` schedule written out: ranks on either way interoperate, bit for
/// bit, with any number of slices, in place and not. All sizes are above the maximum for
/// `one_shot`.
#[test]
fn the_straight_way_and_the_schedule_are_one() {
    for world_size in [2, 3, 5] {
        // A call that helpers share uses the schedule's steps.
        let helpers = |rank: usize| match rank % 2 {
            0 => Parallel::none(),
            _ => Parallel::new(1, 0),
        };
        let communicators = threads_with(world_size, helpers);
        let results = on_each(communicators, |communicator| {
            let mut outputs = Vec::new();
            for (turn, count) in [
                20_001usize,
                17_000,
                100_001,
                300_000,
                1_200_000,
                40_097,
                70_000,
            ]
            .into_iter()
            .enumerate()
            {
                let value =
                    |index: usize| ((communicator.rank() + 1) * (index % 977 + turn)) as f32 / 3.0;
                let mut data: Vec<f32> = (0..count).map(value).collect();
                let mut apart = vec![0.0f32; count];
                let bytes = size_of_val(data.as_slice());
                // SAFETY: the vector outlives the blocking call below.
                let from = unsafe { Region::new(data.as_mut_ptr().cast(), bytes) };
                // SAFETY: the vector outlives the blocking call below.
                let into = unsafe { Region::new(apart.as_mut_ptr().cast(), bytes) };
                let in_place = turn % 2 == 1;
                let into = if in_place { from } else { into };
                let counts = Counts::Even(count as u64);
                let mut request =
                    Request::new(Collective::AllReduce, DType::F32, counts, from, into);
                request.options.algorithm = Some(Method::Direct);
                // SAFETY: the regions' vectors live in this scope.
                unsafe { communicator.run(&request, &mut || Ok(())) }.expect("an all-reduce");
                let result = if in_place { data } else { apart };
                outputs.push(result.into_iter().map(f32::to_bits).collect::<Vec<_>>());
            }
            outputs
        });
        assert!(
            results.windows(2).all(|pair| pair[0] == pair[1]),
            "{world_size} ranks"
        );
        for (turn, output) in results[0].iter().enumerate() {
            for (index, bits) in output.iter().enumerate() {
                let sum: f32 = (1..=world_size)
                    .map(|rank| (rank * (index % 977 + turn)) as f32 / 3.0)
                    .fold(0.0, |sum, value| sum + value);
                assert_eq!(
                    f32::from_bits(*bits),
                    sum,
                    "{world_size} ranks, element {index}"
                );
            }
        }
    }
}
