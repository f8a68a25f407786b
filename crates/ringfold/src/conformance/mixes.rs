//! Tests every collective by every method over messages on one to four hosts with one to four ranks
//! each, in any mix and order. Types, operations, sizes and roots are random.

use super::{Case, EngineWorld, ways};
use crate::communicator::Counts;
use crate::random::SplitMix64;
use crate::schedule::Groups;
use crate::transport::local::{Local, rendezvous};
use crate::transport::routes;
use crate::types::{Access, Collective, DType, Method, Op};

/// The host of each rank, for an ordinary run: few hosts and many, of equal and unequal size, with
/// ranks in order and interleaved.
const MIXES: [&[usize]; 8] = [
    &[0],
    &[0, 1, 1, 1, 1],
    &[0, 0, 1, 2, 2, 2],
    &[0, 1, 0, 2, 1, 0, 2],
    &[0, 0, 0, 1, 2],
    &[0, 1, 2, 3, 3, 3, 3],
    &[3, 1, 3, 0, 2, 1, 3],
    &[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3],
];

const HOSTS_MAX: usize = 4;
const RANKS_OF_A_HOST_MAX: usize = 4;

/// Maximum number of ranks of a world with real sockets, of which each pair of ranks has several.
const RANKS_WITH_SOCKETS_MAX: usize = 8;

const COUNTS: [u64; 7] = [0, 1, 3, 17, 255, 300, 2500];

/// Types in which sums of sixteen ranks are exact, and their operations.
const DTYPES: [DType; 8] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::U16,
    DType::I32,
    DType::I64,
];
const OPS: [Op; 5] = [Op::Sum, Op::Min, Op::Max, Op::PremulSum(2.0), Op::Bxor];

const SEED: u64 = 20_261_123;

/// Checks every method over messages `draws` times, with the other parameters at random.
fn every_way(mut world: EngineWorld, hosts: &[usize], draws: usize, random: &mut SplitMix64) {
    println!("{hosts:?}");
    let world_size = hosts.len();
    for collective in Collective::ALL.iter().copied() {
        let is_pointed = matches!(collective, Collective::Send | Collective::Recv);
        if is_pointed {
            continue;
        }
        let ways = ways(collective, world_size);
        for (method, _) in ways.iter().filter(|way| way.1 == Access::Messages) {
            for _ in 0..draws {
                world.check(&drawn(collective, *method, world_size, random));
            }
        }
    }
}

fn drawn(
    collective: Collective,
    method: Method,
    world_size: usize,
    random: &mut SplitMix64,
) -> Case {
    use Collective::{AllGather, AllReduce, AllToAll, Barrier, Gather, ReduceScatter, Scatter};
    let count = COUNTS[random.index(COUNTS.len())];
    let dtype = DTYPES[random.index(DTYPES.len())];
    let op = OPS[random.index(OPS.len())];
    let is_listed = matches!(collective, AllGather | Gather | ReduceScatter | Scatter);
    let may_be_uneven = is_listed && method != Method::RecursiveDoubling;
    let counts = match may_be_uneven && random.index(2) == 0 {
        true => {
            let count = |_| COUNTS[random.index(COUNTS.len() - 1)];
            Counts::PerRank((0..world_size).map(count).collect())
        }
        false => Counts::Even(count),
    };
    let has_two_buffers = matches!(collective, AllToAll | Barrier | Collective::SendRecv);
    Case {
        dtype,
        op: if op.check(dtype).is_ok() { op } else { Op::Sum },
        root: random.index(world_size),
        counts,
        in_place: !has_two_buffers && random.index(2) == 0,
        channels: if collective == AllReduce {
            1 + random.index(2)
        } else {
            1
        },
        ..Case::new(collective, method, Access::Messages, count)
    }
}

fn over_rendezvous(hosts: &[usize]) -> EngineWorld {
    EngineWorld::new::<Local>(rendezvous(hosts.len()), SEED).on_hosts(&Groups::new(hosts))
}

fn over_routes(hosts: &[usize]) -> EngineWorld {
    let ranks = routes::tests::ranks_on(hosts);
    EngineWorld::new(ranks, SEED).on_hosts(&Groups::new(hosts))
}

#[test]
fn mixes_of_hosts_are_exact() {
    let mut random = SplitMix64(SEED);
    for hosts in MIXES {
        every_way(over_rendezvous(hosts), hosts, 2, &mut random);
        if hosts.len() <= RANKS_WITH_SOCKETS_MAX {
            let world = over_routes(hosts);
            every_way(world.partly_registered(), hosts, 1, &mut random);
        }
    }
}

/// A rank sends to its neighbour twice: a part to reduce, and a reduced part. All its traffic with
/// its counterpart on the other host uses sockets.
#[test]
fn two_levels_lend_what_is_registered_and_nothing_else() {
    for method in [Method::Hierarchical, Method::MultiLeader] {
        let case = Case {
            in_place: true,
            ..Case::new(Collective::AllReduce, method, Access::Messages, 64)
        };
        let mut world = over_routes(&[0, 0, 1, 1]);
        world.check(&case);
        assert_eq!(world.messages_lent(), [0; 4], "{method:?}, ordinary memory");
        let mut world = over_routes(&[0, 0, 1, 1]).registered();
        world.check(&case);
        let lent = world.messages_lent();
        assert!(lent.iter().all(|count| *count > 0), "{method:?}: {lent:?}");
    }
    let mut world = over_routes(&[0, 1]).registered();
    let flat = Case::new(Collective::AllReduce, Method::Ring, Access::Messages, 64);
    world.check(&flat);
    assert_eq!(world.messages_lent(), [0; 2], "nothing between hosts");
}

/// Checks every list of host sizes, with the ranks placed host by host and at random.
#[test]
#[ignore = "deep: takes minutes"]
fn every_mix_of_hosts_is_exact() {
    let mut random = SplitMix64(SEED);
    let mixes = (1..=HOSTS_MAX).map(|hosts| RANKS_OF_A_HOST_MAX.pow(hosts as u32));
    for (hosts, mixes) in (1..).zip(mixes) {
        for mix in 0..mixes {
            let size =
                |host: usize| mix / RANKS_OF_A_HOST_MAX.pow(host as u32) % RANKS_OF_A_HOST_MAX;
            let ranks = |host| std::iter::repeat_n(host, 1 + size(host));
            let mut seats: Vec<usize> = (0..hosts).flat_map(ranks).collect();
            for _ in 0..2 {
                every_way(over_rendezvous(&seats), &seats, 4, &mut random);
                if seats.len() <= RANKS_WITH_SOCKETS_MAX {
                    every_way(over_routes(&seats), &seats, 1, &mut random);
                    let world = over_routes(&seats);
                    every_way(world.partly_registered(), &seats, 2, &mut random);
                }
                for last in (1..seats.len()).rev() {
                    seats.swap(last, random.index(last + 1));
                }
            }
        }
    }
}
