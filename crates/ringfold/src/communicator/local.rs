//! Communicators whose ranks are threads of one process.

use std::sync::Arc;
use std::time::Duration;

use super::choices::Choices;
use super::connect::Joint;
use super::driver::Driver;
use super::watch::ThreadWatch;
use super::weigh::Agreed;
use super::{Communicator, Place, Policy};
use crate::engine::Engine;
use crate::memory::{Life, Pool};
use crate::reduce::Parallel;
use crate::topology::Machine;
use crate::transport::{Transport, local};
use crate::tune::{Constants, Limits, Tuning};
use crate::wait::Patience;

/// The deadline of operations between threads.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One communicator a thread.
pub(super) fn threads(world_size: usize) -> Vec<Communicator> {
    helped(world_size, |_| Parallel::none())
}

/// The same, each rank with its helpers.
fn helped(world_size: usize, parallel: impl Fn(usize) -> Parallel) -> Vec<Communicator> {
    let watch = Arc::new(ThreadWatch::default());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let machine = Machine::here();
    let limits = Limits::derive(&machine, world_size);
    let constants = Constants::derive(&machine, world_size);
    let ranks = local::local(world_size).into_iter().enumerate();
    ranks
        .map(|(rank, transport)| {
            let health = Box::new(watch.register(transport.waker()));
            let slot_bytes = transport.windows().map(|windows| windows.slot_bytes());
            let mut engine = Engine::new(Box::new(transport), rank, world_size, Pool::default());
            *engine.parallel() = parallel(rank);
            let place = Place {
                rank,
                world_size,
                local_rank: rank,
                local_size: world_size,
                hosts: 1,
                transport: "local",
            };
            Communicator {
                driver: Arc::new(Driver::new(
                    engine,
                    rank,
                    health,
                    Patience::new(world_size, cores),
                )),
                place,
                policy: Policy {
                    is_silent: false,
                    algorithm: None,
                    late_rank: None,
                    goes_around: false,
                    tuning: Tuning::new(constants.clone(), limits),
                    timeout: TIMEOUT,
                    domains: 1,
                    slot_bytes,
                },
                weights: Agreed::default(),
                choices: Choices::default(),
                joint: Joint::none(),
                life: Arc::new(Life::new()),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::memory::Region;
    use crate::tune::{Reason, Rules};
    use crate::types::{Algorithm, Collective, DType, Op};
    use crate::{Counts, Error, Request};

    /// Nobody is that late on any machine.
    const WATCHDOG: Duration = Duration::from_secs(30);

    fn on_all<R: Send>(world_size: usize, f: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
        on_each(threads(world_size), f)
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

    /// Rank 1 comes ever later, until the others are there before it and see whom they wait for.
    #[test]
    fn whoever_comes_late_is_blamed_and_waits_for_nobody() {
        const LATE: usize = 1;
        for (count, algorithm) in [
            (2, None),
            (300_000, None),
            (300_000, Some(Algorithm::Ring)),
            (300_000, Some(Algorithm::Direct)),
        ] {
            let is_blamed = AtomicBool::new(false);
            on_all(3, |communicator| {
                let mut data = vec![1f32; count];
                // SAFETY: the vector outlives the blocking calls below.
                let region = unsafe { Region::new(data.as_mut_ptr().cast(), 4 * count) };
                let counts = Counts::Even(count as u64);
                let mut request =
                    Request::new(Collective::AllReduce, DType::F32, counts, region, region);
                request.algorithm = algorithm;
                let mut lateness = Duration::from_millis(20);
                // Written between two barriers and read behind the second.
                while !is_blamed.load(Ordering::Relaxed) {
                    communicator.barrier().expect("a barrier");
                    communicator.reset_stats();
                    if communicator.rank() == LATE {
                        std::thread::sleep(lateness);
                    }
                    // SAFETY: the region's vector lives in this scope.
                    unsafe { communicator.run(&request) }.expect("an all-reduce");
                    let stats = communicator.stats();
                    assert_eq!(stats.calls, 1);
                    let last: u64 = stats.peers.iter().map(|peer| peer.last).sum();
                    assert!(stats.unawaited + last <= 1, "{stats:?}");
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

    /// The shortest way is the one-shot schedule written out: ranks on either way work together, bit for bit.
    #[test]
    fn the_shortest_way_and_the_schedule_are_one() {
        for world_size in [2, 3, 5] {
            let results = on_all(world_size, |communicator| {
                let mut outputs = Vec::new();
                for turn in 0..40usize {
                    let value = |index: usize| {
                        ((communicator.rank() + 1) * (index + turn + 1)) as f32 / 3.0
                    };
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
                    request.algorithm = Some(Algorithm::OneShot);
                    if (communicator.rank() + turn).is_multiple_of(2) {
                        // SAFETY: the regions' vectors live in this scope.
                        unsafe { communicator.run(&request) }.expect("an all-reduce");
                    } else {
                        // What the communicator's own thread carries out goes by the schedule.
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

    /// The straight way is the `direct` schedule written out: ranks on either way work together, bit for bit, whatever
    /// the number of slices, in place and not. All sizes are above the most that `one_shot` may get.
    #[test]
    fn the_straight_way_and_the_schedule_are_one() {
        for world_size in [2, 3, 5] {
            // A call that helpers share goes by the schedule's steps.
            let helpers = |rank: usize| match rank % 2 {
                0 => Parallel::none(),
                _ => Parallel::new(1, 0),
            };
            let communicators = helped(world_size, helpers);
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
                    let value = |index: usize| {
                        ((communicator.rank() + 1) * (index % 977 + turn)) as f32 / 3.0
                    };
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
                    request.algorithm = Some(Algorithm::Direct);
                    // SAFETY: the regions' vectors live in this scope.
                    unsafe { communicator.run(&request) }.expect("an all-reduce");
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

    #[test]
    fn an_abort_reaches_the_thread_that_waits() {
        let errors = on_all(2, |communicator| {
            if communicator.rank() == 0 {
                communicator.abort("enough");
                return communicator.barrier().unwrap_err();
            }
            communicator.barrier().unwrap_err()
        });
        for error in errors {
            assert!(
                matches!(&error, Error::Aborted { rank: 0, reason } if reason == "enough"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_rank_that_leaves_fails_whoever_needs_it() {
        let results = on_all(2, |communicator| {
            if communicator.rank() == 0 {
                communicator.close()
            } else {
                communicator.barrier()
            }
        });
        assert!(results[0].is_ok());
        assert!(
            matches!(results[1], Err(Error::PeerFailed { rank: 0, .. })),
            "{:?}",
            results[1]
        );
    }

    #[test]
    fn dropping_a_communicator_ends_the_calls_under_way() {
        let results = on_all(2, |communicator| {
            if communicator.rank() == 1 {
                return communicator.barrier();
            }
            let mut data = [0.0f32; 8];
            let bytes = size_of_val(&data);
            // SAFETY: `data` outlives the work, which is dropped before it.
            let region = unsafe { Region::new(data.as_mut_ptr().cast(), bytes) };
            let mut request = Request::new(
                Collective::Recv,
                DType::F32,
                Counts::Even(8),
                Region::EMPTY,
                region,
            );
            request.root = 1;
            // SAFETY: as above.
            let work =
                unsafe { communicator.start(request) }.expect("a receive that nobody serves");
            communicator.abandon();
            work.wait()
        });
        for result in results {
            assert!(
                matches!(result, Err(Error::Aborted { rank: 0, .. })),
                "{result:?}"
            );
        }
    }

    #[test]
    fn who_waits_and_who_is_waited_for_can_be_asked_for() {
        let mut ranks = threads(3).into_iter();
        let mut next = || ranks.next().expect("three ranks");
        let (zero, one, two) = (next(), next(), next());
        let patience = Duration::from_secs(1);
        std::thread::scope(|scope| {
            for waiting in [&zero, &one] {
                scope.spawn(|| waiting.all_reduce(&mut [1f32; 5], Op::Sum).expect("a sum"));
            }
            let end = std::time::Instant::now() + Duration::from_secs(30);
            let standings = loop {
                assert!(
                    std::time::Instant::now() < end,
                    "nobody says what it waits in"
                );
                let standings = two.standing(patience).expect("an open communicator");
                let standings: Option<Vec<_>> = standings.into_iter().collect();
                let standings = standings.expect("nobody has left");
                if standings[..2].iter().all(|rank| !rank.call.is_empty()) {
                    break standings;
                }
                std::thread::yield_now();
            };
            for rank in &standings[..2] {
                assert_eq!((rank.finished, rank.begun), (0, 1));
                assert!(
                    rank.call.starts_with("#1 all_reduce of 5 float32 sum"),
                    "{rank:?}"
                );
                assert!(rank.call.contains("waiting for rank"), "{rank:?}");
            }
            assert_eq!(standings[2], Default::default());
            two.all_reduce(&mut [1f32; 5], Op::Sum).expect("a sum");
        });
        for rank in [&zero, &one, &two] {
            let standings = rank.standing(patience).expect("an open communicator");
            for standing in standings.into_iter().flatten() {
                assert_eq!((standing.finished, standing.begun), (1, 1));
                assert_eq!(standing.call, "");
            }
        }
        one.close().expect("nothing is under way");
        let standings = zero.standing(patience).expect("an open communicator");
        assert_eq!(standings.iter().position(Option::is_none), Some(1));
        assert!(matches!(one.standing(patience), Err(Error::Closed)));
    }

    #[test]
    fn wrong_requests_are_refused_before_anything_moves() {
        let results = on_all(2, |communicator| {
            let mut data = [1.0f32; 8];
            let (input, output) = ([0f32; 4], &mut [0f32; 4]);
            let too_short = communicator.all_gather(&input, output).unwrap_err();
            let no_bits = communicator.all_reduce(&mut data, Op::Band).unwrap_err();
            let no_root = communicator.broadcast(&mut data, 2).unwrap_err();
            let usable = communicator.all_reduce(&mut data, Op::Sum);
            (too_short, no_bits, no_root, usable)
        });
        for (too_short, no_bits, no_root, usable) in results {
            for error in [too_short, no_bits, no_root] {
                assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
            }
            usable.expect("the communicator is as good as before");
        }
    }

    #[test]
    fn different_counts_are_a_mismatch_on_both() {
        let errors = on_all(2, |communicator| {
            let mut data = vec![1i32; 10 + communicator.rank()];
            communicator.all_reduce(&mut data, Op::Sum).unwrap_err()
        });
        assert!(
            errors.iter().all(|error| error.class() == "Mismatch"),
            "{errors:?}"
        );
    }

    #[test]
    fn ranks_that_choose_differently_are_told_where_to_look() {
        let tree = "allreduce,0,-1,tree,simple,-1,-1,-1";
        let ring = "allreduce,0,-1,ring,simple,-1,-1,-1";
        let direct = "allreduce,0,-1,direct,simple,-1,-1,-1";
        let claim = "allreduce,0,-1,claim,simple,-1,-1,-1";
        for (one, other) in [(tree, ring), (ring, direct), (direct, claim)] {
            let mut communicators = threads(2);
            for (communicator, rules) in communicators.iter_mut().zip([one, other]) {
                communicator.set_rules(Rules::parse(rules, "rules").expect("rules"));
            }
            let errors = on_each(communicators, |communicator| {
                let mut data = [1f32; 100];
                let first = communicator.all_reduce(&mut data, Op::Sum);
                // Who has published, or sent, and needs no answer, hears of it in the next call.
                let second = first.and_then(|()| communicator.barrier());
                second.unwrap_err()
            });
            for error in errors {
                assert_eq!(error.class(), "Mismatch");
                assert!(error.to_string().contains("RINGFOLD_ALGO"), "{error}");
            }
        }
    }

    #[test]
    fn a_slice_of_another_size_is_told() {
        let mut communicators = threads(2);
        communicators[1].policy.tuning.slice_bytes = Some(1 << 10);
        let errors = on_each(communicators, |communicator| {
            let mut data = vec![1f32; 100_000];
            communicator.all_reduce(&mut data, Op::Sum).unwrap_err()
        });
        for error in errors {
            assert!(
                error.to_string().contains("slices of another size"),
                "{error}"
            );
        }
    }

    /// New rules hold from the next call on.
    #[test]
    fn rules_can_be_changed_between_calls() {
        let mut communicators = threads(2);
        let names = ["ring", "tree", "direct"];
        let results = std::thread::scope(|scope| {
            let each = |communicator: &mut Communicator| {
                names.map(|name| {
                    let rules = format!("allreduce,0,-1,{name},simple,-1,-1,-1");
                    communicator.set_rules(Rules::parse(&rules, "rules").expect("rules"));
                    let mut data = [1f32; 1000];
                    communicator.all_reduce(&mut data, Op::Sum).expect("a sum");
                    assert_eq!(data, [2.0; 1000]);
                    let (counts, nothing) = (Counts::Even(1000), Region::EMPTY);
                    let request =
                        Request::new(Collective::AllReduce, DType::F32, counts, nothing, nothing);
                    let explanation = communicator.explain(&request).expect("a choice");
                    assert_eq!(explanation.reason, Reason::Rule { line: 1 });
                    let choice = communicator.choice(&request).expect("a choice");
                    assert_eq!(choice.algorithm, explanation.choice.algorithm);
                    choice.algorithm.name()
                })
            };
            let threads: Vec<_> = communicators
                .iter_mut()
                .map(|communicator| scope.spawn(move || each(communicator)))
                .collect();
            let joined = threads
                .into_iter()
                .map(|thread| thread.join().expect("a rank"));
            joined.collect::<Vec<_>>()
        });
        assert_eq!(results, [names, names]);
    }
}
