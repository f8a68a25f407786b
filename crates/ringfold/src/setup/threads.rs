//! Communicators whose ranks are threads of one process: no discovery, and the terms of one
//! machine.

use std::sync::Arc;
use std::time::Duration;

use crate::communicator::membership::Membership;
use crate::communicator::watch::ThreadWatch;
use crate::communicator::{ChoicePolicy, Communicator, EngineDriver, RankPosition};
use crate::engine::Engine;
use crate::memory::Pool;
use crate::reduce::Parallel;
use crate::topology::Machine;
use crate::transport::shm::Shm;
use crate::transport::{P2P_CHANNEL, Transport};
use crate::tune::{Constants, Limits, Tuning};
use crate::wait::Patience;

/// The deadline of operations between threads.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Creates one communicator for each thread.
pub(super) fn threads(world_size: usize) -> Vec<Communicator> {
    threads_with(world_size, |_| Parallel::none())
}

/// Like [`threads`], with the helpers that `parallel` returns for each rank.
pub(crate) fn threads_with(
    world_size: usize,
    parallel: impl Fn(usize) -> Parallel,
) -> Vec<Communicator> {
    let watch = Arc::new(ThreadWatch::default());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let machine = Machine::here();
    let limits = Limits::derive(&machine, world_size);
    let constants = Constants::derive(&machine, world_size);
    let tuning = Tuning::new(constants, limits);
    let streams = P2P_CHANNEL + 1 + tuning.channels_max;
    Shm::threads(world_size, streams, cores)
        .enumerate()
        .map(|(rank, transport)| {
            let health = watch.register(transport.waker());
            let slot_bytes = transport.windows().map(|windows| windows.slot_bytes());
            let mut engine = Engine::new(Box::new(transport), rank, world_size, Pool::default());
            *engine.parallel() = parallel(rank);
            let place = RankPosition {
                rank,
                world_size,
                local_rank: rank,
                local_size: world_size,
                hosts: 1,
                runs: 1,
                are_blocks: true,
                transport: "local",
            };
            let policy = ChoicePolicy {
                timeout: TIMEOUT,
                slot_bytes,
                ..ChoicePolicy::new(tuning.clone())
            };
            let patience = Patience::new(world_size, cores);
            let driver = EngineDriver::new(engine, rank, Box::new(health), patience);
            Communicator::new(driver, place, policy, Membership::default())
        })
        .collect()
}
