//! The suite, instantiated for every transport.

mod mismatches;

use std::iter;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::{Case, EngineWorld, oracle, ways};
use crate::communicator::Counts;
use crate::error::Error;
use crate::random::SplitMix64;
use crate::schedule::{Groups, Weights};
use crate::simulate::Scenario;
use crate::simulate::network::{Sim, SimNetwork};
use crate::simulate::{Compute, Network, Sending};
use crate::sys::unshared::Unshared;
use crate::transport::bell::Bells;
use crate::transport::local::{Local, local, rendezvous};
use crate::transport::rdma;
use crate::transport::routes;
use crate::transport::shm::{Segment, SegmentShape, Shm};
use crate::transport::suite::fault_injector::{FaultInjector, Faults};
use crate::transport::tcp::{Sockets, Tcp, TcpOptions};
use crate::types::{Access, Assignment, Collective, DType, Method, Op, Protocol};

/// Element counts: none, fewer than ranks, near the sizes of lines and slices, many slices.
const COUNTS: [u64; 6] = [0, 1, 3, 17, 300, 2500];

fn collectives() -> impl Iterator<Item = Collective> {
    Collective::ALL
        .iter()
        .copied()
        .filter(|collective| *collective != Collective::Recv)
}

fn can_be_in_place(collective: Collective) -> bool {
    use Collective::{AllToAll, Barrier, Send, SendRecv};
    !matches!(collective, AllToAll | Barrier | Send | SendRecv)
}

/// Checks every collective by every algorithm, with odd sizes and roots, in place and out of place.
fn moves_and_reduces(make: impl Fn(usize) -> EngineWorld, sizes: &[usize]) {
    for &world_size in sizes {
        let mut world = make(world_size);
        for collective in collectives() {
            if collective == Collective::Send && world_size < 2 {
                continue;
            }
            for (algorithm, access) in ways(collective, world_size) {
                if !world.serves((algorithm, access)) {
                    continue;
                }
                for (index, count) in COUNTS.into_iter().enumerate() {
                    let mut case = Case::new(collective, algorithm, access, count);
                    case.root = index % world_size;
                    world.check(&case);
                    if can_be_in_place(collective) {
                        case.in_place = true;
                        world.check(&case);
                    }
                }
            }
        }
    }
}

/// Checks that every data type is moved exactly, and reduced by every operation defined for it.
fn knows_every_type_and_operation(make: impl Fn(usize) -> EngineWorld) {
    let mut world = make(3);
    for &dtype in DType::ALL {
        for collective in [Collective::AllGather, Collective::Broadcast] {
            for (algorithm, access) in ways(collective, 3) {
                if world.serves((algorithm, access)) {
                    world.check(&Case {
                        dtype,
                        ..Case::new(collective, algorithm, access, 77)
                    });
                }
            }
        }
        let ops = [
            Op::Sum,
            Op::Prod,
            Op::Min,
            Op::Max,
            Op::PremulSum(2.0),
            Op::Band,
            Op::Bor,
            Op::Bxor,
        ];
        for op in ops.into_iter().filter(|op| op.check(dtype).is_ok()) {
            for collective in [
                Collective::AllReduce,
                Collective::Reduce,
                Collective::ReduceScatter,
            ] {
                for (algorithm, access) in ways(collective, 3) {
                    if world.serves((algorithm, access)) {
                        let case = Case {
                            dtype,
                            op,
                            root: 1,
                            ..Case::new(collective, algorithm, access, 131)
                        };
                        world.check(&case);
                        world.check(&Case {
                            in_place: true,
                            ..case
                        });
                    }
                }
            }
        }
    }
}

/// Checks that averages of integers truncate.
fn averages(make: impl Fn(usize) -> EngineWorld) {
    let mut world = make(2);
    for dtype in [DType::I32, DType::U8, DType::I64] {
        for collective in [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::Reduce,
        ] {
            for (algorithm, access) in ways(collective, 2) {
                if world.serves((algorithm, access)) {
                    let case = Case::new(collective, algorithm, access, 700);
                    world.check(&Case {
                        dtype,
                        op: Op::Avg,
                        ..case
                    });
                }
            }
        }
    }
}

/// Checks counts that differ from rank to rank.
fn takes_uneven_counts(make: impl Fn(usize) -> EngineWorld) {
    for world_size in [2, 3, 5] {
        let mut world = make(world_size);
        let per_rank: Vec<u64> = (0..world_size as u64)
            .map(|rank| rank * 211 % 700)
            .collect();
        for collective in [
            Collective::AllGather,
            Collective::Gather,
            Collective::ReduceScatter,
            Collective::Scatter,
        ] {
            for (algorithm, access) in ways(collective, world_size) {
                if !world.serves((algorithm, access)) {
                    continue;
                }
                let counts = Counts::PerRank(per_rank.clone());
                let case = Case {
                    counts,
                    root: 1,
                    ..Case::new(collective, algorithm, access, 0)
                };
                world.check(&case);
                world.check(&Case {
                    in_place: true,
                    ..case
                });
            }
        }
    }
}

/// Checks all-reduces on two channels, which are independent pipelines of one call.
fn runs_on_several_channels(make: impl Fn(usize) -> EngineWorld) {
    let mut world = make(3);
    for (algorithm, access) in ways(Collective::AllReduce, 3) {
        if access == Access::Messages {
            for op in [Op::Sum, Op::Avg] {
                let case = Case::new(Collective::AllReduce, algorithm, access, 6000);
                world.check(&Case {
                    channels: 2,
                    dtype: DType::I32,
                    op,
                    ..case
                });
            }
        }
    }
}

/// Messages are delayed at random, so one channel gets ahead of the other by more slices than may
/// be in flight. The last slice is shorter, so its chunks have other offsets than those of the
/// other slices.
#[test]
fn a_channel_may_come_long_after_the_others() {
    for (world_size, seed) in (2..5).flat_map(|n| (0..8).map(move |seed| (n, seed))) {
        let faults = Faults {
            seed: SEED + 100 * seed,
            delay: 30,
            delay_limit: Duration::from_micros(50),
            ..Faults::default()
        };
        let mut world = EngineWorld::new(faulty(world_size, faults), SEED + seed);
        let slice_elements = [256, 384][seed as usize % 2];
        let count = slice_elements * 23 / 2;
        for (algorithm, access) in ways(Collective::AllReduce, world_size) {
            if access == Access::Messages {
                world.check(&Case {
                    channels: 2,
                    dtype: DType::I32,
                    slice_bytes: slice_elements as usize * 4,
                    ..Case::new(Collective::AllReduce, algorithm, access, count)
                });
            }
        }
    }
}

/// Checks that sums do not depend on the ownership weights, some of which are 0.
fn owns_by_weights(make: impl Fn(usize) -> EngineWorld, sizes: &[usize]) {
    let way = (Method::Direct, Access::Messages);
    let mut random = SplitMix64(SEED);
    for &world_size in sizes.iter().filter(|size| **size > 1) {
        let mut world = make(world_size);
        if !world.serves(way) {
            continue;
        }
        for (index, count) in COUNTS.into_iter().enumerate() {
            let mut each: Vec<u32> = (0..world_size).map(|_| random.index(4) as u32).collect();
            each[index % world_size] += 1;
            let weights = Weights::new(&each, 1).expect("somebody owns something");
            for (channels, in_place) in [(1, false), (1, true), (2, index % 2 == 0)] {
                world.check(&Case {
                    weights: Some(weights.clone()),
                    channels,
                    in_place,
                    ..Case::new(Collective::AllReduce, way.0, way.1, count)
                });
            }
        }
    }
}

#[test]
fn ranks_with_other_weights_are_told() {
    for [one, other] in [[[1, 1, 0], [1, 0, 1]], [[1, 1, 1], [2, 2, 2]]] {
        let case = |each: &[u32], epoch| Case {
            weights: Some(Weights::new(each, epoch).expect("weights")),
            ..Case::new(Collective::AllReduce, Method::Direct, Access::Messages, 900)
        };
        for last in [case(&other, 1), case(&one, 2)] {
            let mut world = EngineWorld::new(local(3), SEED);
            let error = world.run_each(&[case(&one, 1), case(&one, 1), last]);
            assert!(matches!(error, Err(Error::Mismatch { .. })), "{error:?}");
        }
    }
}

macro_rules! conformance {
    ($($name:ident: $make:expr, $sizes:expr;)*) => { $(
        mod $name {
            use super::*;

            #[test]
            fn every_collective_by_every_algorithm_is_exact() {
                moves_and_reduces($make, $sizes);
            }

            #[test]
            fn every_type_and_operation_is_exact() {
                knows_every_type_and_operation($make);
            }

            #[test]
            fn averages_are_exact() {
                averages($make);
            }

            #[test]
            fn uneven_counts_are_exact() {
                takes_uneven_counts($make);
            }

            #[test]
            fn several_channels_are_exact() {
                runs_on_several_channels($make);
            }

            #[test]
            fn weighted_sums_are_exact() {
                owns_by_weights($make, $sizes);
            }
        }
    )* };
}

const SEED: u64 = 20_261_120;

conformance! {
    over_local: |n| EngineWorld::new::<Local>(local(n), SEED), &[1, 2, 3, 4, 5, 8];
    over_rendezvous: |n| EngineWorld::new::<Local>(rendezvous(n), SEED), &[1, 2, 3, 4, 5, 7, 9];
    over_shm: |n| EngineWorld::new(shm(n), SEED), &[1, 2, 3, 4, 5, 8, 9];
    in_domains_over_shm: |n| EngineWorld::new(shm_in_domains(n), SEED), &[4, 6, 8];
    over_tcp: |n| EngineWorld::new(tcp(n), SEED), &[1, 2, 3, 4, 5];
    over_rdma: |n| EngineWorld::new(rdma::tests::ranks(n), SEED), &[2, 3, 4];
    over_rdma_registering: |n| EngineWorld::new(rdma::tests::registering(n), SEED), &[2, 3, 4];
    on_two_hosts_over_routes: |n|
        EngineWorld::new(routes::tests::ranks(n), SEED).on_hosts(&dealt(n, 2)),
        &[2, 3, 4, 5, 7];
    on_hosts_over_rendezvous: |n|
        EngineWorld::new::<Local>(rendezvous(n), SEED).on_hosts(&unequal(n)),
        &[3, 4, 5, 8, 9];
    over_sim_eager: |n| EngineWorld::new(sim(n, Sending::Eager), SEED), &[1, 2, 3, 4, 5];
    over_sim_rendezvous: |n| EngineWorld::new(sim(n, Sending::Rendezvous), SEED), &[2, 3, 4, 6];
    in_partly_registered_memory_over_shm: |n| EngineWorld::new(shm(n), SEED).partly_registered(),
        &[1, 2, 3, 4, 5, 8];
    reading_over_shm: |n| EngineWorld::new(shm(n), SEED).reading(), &[2, 3, 4, 5, 8];
    reading_on_two_hosts_over_routes: |n|
        EngineWorld::new(routes::tests::ranks(n), SEED).on_hosts(&dealt(n, 2)).reading(),
        &[3, 4, 5];
    in_registered_memory_over_local: |n| EngineWorld::new::<Local>(local(n), SEED).registered(),
        &[1, 2, 3, 4, 5, 8];
    in_registered_memory_over_shm: |n| EngineWorld::new(shm(n), SEED).registered(),
        &[1, 2, 3, 4, 5, 8, 9];
}

/// Returns `hosts` hosts with the ranks assigned in turn.
fn dealt(world_size: usize, hosts: usize) -> Groups {
    Groups::new(&(0..world_size).map(|rank| rank % hosts).collect::<Vec<_>>())
}

/// Returns hosts of one rank, two, three and so on.
fn unequal(world_size: usize) -> Groups {
    let sizes = (1..).flat_map(|size| iter::repeat_n(size, size));
    Groups::new(&sizes.take(world_size).collect::<Vec<usize>>())
}

pub(super) fn shm(world_size: usize) -> Vec<Shm> {
    let (segment, _fd) =
        Segment::create(SegmentShape::new(world_size, 3, 4 << 20), Bells::default())
            .expect("shared memory");
    (0..world_size)
        .map(|rank| Shm::new(segment.clone(), rank, false).lending_from(1))
        .collect()
}

/// Returns ranks in domains of two.
fn shm_in_domains(world_size: usize) -> Vec<Shm> {
    let ranks = shm(world_size).into_iter();
    ranks.map(|rank| rank.in_domains(world_size / 2)).collect()
}

pub(super) fn sim(world_size: usize, sending: Sending) -> Vec<Sim> {
    let network = Network {
        sending,
        ..Network::default()
    };
    let compute = Compute {
        reduce_ps: 700_000,
        copy_ps_per_byte: 10,
        ..Compute::default()
    };
    SimNetwork::new(&Scenario {
        ranks: world_size,
        network,
        compute,
        ..Scenario::default()
    })
}

pub(super) fn faulty(world_size: usize, faults: Faults) -> Vec<FaultInjector<Local>> {
    let seeded = |(rank, inner)| {
        FaultInjector::new(
            inner,
            rank,
            Faults {
                seed: faults.seed + rank as u64,
                ..faults
            },
        )
    };
    local(world_size)
        .into_iter()
        .enumerate()
        .map(seeded)
        .collect()
}

pub(super) fn tcp(world_size: usize) -> Vec<Tcp> {
    const CHANNELS: usize = 3;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let address = listener.local_addr().expect("its address");
    let pair = || {
        let one = TcpStream::connect(address).expect("a connection");
        let other = listener.accept().expect("its other end").0;
        (Unshared::adopt(one), Unshared::adopt(other))
    };
    // With an odd number of ranks, each stream has several sockets.
    let each = if world_size % 2 == 1 { 3 } else { 1 };
    let stream = || (0..each).map(|_| pair()).unzip();
    let mut sockets: Vec<Sockets> = Vec::new();
    for _rank in 0..world_size {
        let mut own = Vec::new();
        for lower in &mut sockets {
            let (theirs, mine) = (0..CHANNELS).map(|_| stream()).unzip();
            lower.push(theirs);
            own.push(mine);
        }
        own.push(Vec::new());
        sockets.push(own);
    }
    let ranks = sockets.into_iter().enumerate();
    ranks
        .map(|(rank, sockets)| Tcp::new(rank, sockets, TcpOptions::default()).expect("a transport"))
        .collect()
}

#[test]
fn an_uneven_all_to_all_is_exact() {
    for world_size in [2, 3, 5] {
        let make: [EngineWorld; 3] = [
            EngineWorld::new(shm(world_size), SEED),
            EngineWorld::new(tcp(world_size), SEED),
            EngineWorld::new(rendezvous(world_size), SEED),
        ];
        for mut world in make {
            uneven_all_to_all(&mut world, world_size);
        }
    }
}

/// Checks an uneven all-to-all, with a case for each rank, because the counts of ranks differ.
fn uneven_all_to_all(world: &mut EngineWorld, world_size: usize) {
    let (input, output) = (Vec::new(), Vec::new());
    let case = Case {
        counts: Counts::Pairwise { input, output },
        ..Case::new(Collective::AllToAll, Method::Direct, Access::Messages, 0)
    };
    let of_rank = |rank| Case {
        counts: oracle::call(&case, rank, world_size).counts_of(rank),
        ..case.clone()
    };
    let cases: Vec<_> = (0..world_size).map(of_rank).collect();
    world.check_each(&cases);
}
