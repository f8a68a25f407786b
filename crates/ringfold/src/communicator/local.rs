//! Communicators whose ranks are threads of one process.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::connect::Joint;
use super::driver::Driver;
use super::watch::{ThreadRank, ThreadWatch};
use super::{Communicator, Place, Policy};
use crate::engine::Engine;
use crate::memory::Pool;

use crate::transport::{Transport, local};
use crate::wait::Patience;

/// The deadline of operations between threads.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One communicator a thread.
pub(super) fn threads(world_size: usize) -> Vec<Communicator> {
    let watch = Arc::new(ThreadWatch::default());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let ranks = local::local(world_size).into_iter().enumerate();
    ranks
        .map(|(rank, mut transport)| {
            watch.register(transport.waker());
            let slot_bytes = transport.windows().map(|windows| windows.slot_bytes());
            let engine = Engine::new(Box::new(transport), rank, world_size, Pool::default());
            let health = Box::new(ThreadRank {
                watch: watch.clone(),
                rank,
            });
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
                    algorithm: None,
                    slice_bytes: None,
                    channels: None,
                    timeout: TIMEOUT,
                    slot_bytes,
                    is_oversubscribed: world_size > cores,
                },
                joint: Joint::none(),
                is_closed: AtomicBool::new(false),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Op;
    use crate::{Counts, Error};

    fn on_all<R: Send>(world_size: usize, f: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
        let communicators = threads(world_size);
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
        let _ = Counts::Even(0);
    }
}
