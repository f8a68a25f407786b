//! Proofs of every generator, and tests that the checker can fail.

mod damage;

use std::hash::{BuildHasher, RandomState};

use super::*;
use crate::schedule::{Access, Groups, stragglar};
use crate::types::{Algorithm, Method};

/// Returns the specs of all methods listed for an access, at one world size and root.
fn specs(access: Access, world_size: u32, root: u32) -> Vec<Spec> {
    let mut specs = Vec::new();
    for &collective in Collective::ALL {
        for algorithm in Schedule::methods(collective, access) {
            let is_late = algorithm == Method::Stragglar;
            if (root != 0 && !collective.has_root() && !is_late)
                || (is_late && world_size > stragglar::WORLD_SIZE_MAX)
            {
                continue;
            }
            let point = matches!(collective, Collective::Send | Collective::Recv);
            let paired = algorithm == Method::RecursiveDoubling
                && matches!(
                    collective,
                    Collective::AllGather | Collective::ReduceScatter
                );
            if (point && world_size == 1) || (paired && !world_size.is_power_of_two()) {
                continue;
            }
            specs.push(Spec {
                rank: if point { world_size - 1 } else { 0 },
                root,
                ..Spec::new(collective, algorithm, access, world_size)
            });
        }
    }
    specs
}

fn prove(spec: &Spec, in_place: bool, slices: Slices) {
    let schedules = schedules(spec).unwrap();
    if let Err(error) = check_sliced(&schedules, in_place, slices) {
        panic!("{spec:?}, in place {in_place}, {slices:?}: {error}");
    }
}

/// Proves small worlds with every root and both aliasings, and samples of larger ones to save time.
fn prove_all(access: Access) {
    for world_size in 1..=64 {
        let mut roots = vec![0, 1 % world_size, world_size - 1];
        roots.sort_unstable();
        roots.dedup();
        if world_size > 16 {
            roots = vec![0, roots[1 + world_size as usize % 2]];
        }
        for root in roots {
            for (number, spec) in specs(access, world_size, root).iter().enumerate() {
                let turn = number as u32 + world_size;
                for in_place in [false, true] {
                    let taken = turn.is_multiple_of(3) && turn.is_multiple_of(2) == in_place;
                    if world_size <= 24 || taken {
                        prove(spec, in_place, Slices::ONE);
                    }
                }
            }
        }
    }
}

#[test]
fn every_schedule_over_messages_keeps_the_promises_of_its_collective() {
    prove_all(Access::Messages);
}

#[test]
fn every_schedule_over_shared_memory_keeps_the_promises_of_its_collective() {
    prove_all(Access::Staged);
    prove_all(Access::Registered);
}

/// Returns ways in which `world_size` ranks may share hosts: all together, one by one, in runs of
/// equal and unequal lengths, and interleaved.
fn divisions(world_size: u32) -> Vec<Groups> {
    let ranks = || 0..world_size;
    let by = |host: &dyn Fn(u32) -> u32| Groups::new(&ranks().map(host).collect::<Vec<_>>());
    vec![
        by(&|_| 0),
        by(&|rank| rank),
        by(&|rank| rank / 2),
        by(&|rank| rank % 2),
        by(&|rank| rank / 3),
        by(&|rank| rank % 3),
        by(&|rank| u32::from(rank == 0)),
        by(&|rank| u32::from(rank + 1 == world_size)),
        by(&|rank| (rank + 1).ilog2()),
        by(&|rank| rank * rank % 4),
        by(&|rank| (rank * 7 + 3) % 5),
    ]
}

#[test]
fn ranks_of_any_hosts_keep_the_promises_of_two_levels() {
    let overlapped = Slices {
        count: 4,
        distance: 1,
    };
    for world_size in 2..=20 {
        for hosts in divisions(world_size) {
            for root in [0, world_size / 2, world_size - 1] {
                let listed = specs(Access::Messages, world_size, root).into_iter();
                let two_levels = [
                    Algorithm::Hierarchical,
                    Algorithm::Leader,
                    Algorithm::MultiLeader,
                ];
                for spec in listed.filter(|spec| two_levels.contains(&spec.algorithm)) {
                    for (in_place, is_reproducible) in
                        [(false, false), (true, false), (false, true), (true, true)]
                    {
                        let spec = Spec {
                            hosts: hosts.clone(),
                            is_reproducible,
                            ..spec.clone()
                        };
                        prove(&spec, in_place, Slices::ONE);
                        prove(&spec, in_place, overlapped);
                        if spec.collective.reduces() && spec.order() == Order::WidePartials {
                            let is_wide = true;
                            prove(&Spec { is_wide, ..spec }, in_place, overlapped);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn overlapped_slices_do_not_wait_for_each_other_in_a_circle() {
    for world_size in [2, 3, 4, 7, 8, 13] {
        for &access in Access::ALL {
            for spec in specs(access, world_size, world_size / 2)
                .iter()
                .chain(&specs(access, world_size, 0))
            {
                for distance in [1, 2, 5, 100] {
                    prove(spec, true, Slices { count: 4, distance });
                }
            }
        }
    }
}

#[test]
fn stripes_are_independent_schedules_of_their_own_part() {
    for world_size in [2, 3, 8, 11] {
        for &access in Access::ALL {
            for spec in specs(access, world_size, 0) {
                let striped: Vec<_> = schedules(&spec)
                    .unwrap()
                    .into_iter()
                    .map(|schedule| schedule.striped(3))
                    .collect();
                for in_place in [false, true] {
                    let slices = Slices {
                        count: 2,
                        distance: 1,
                    };
                    if let Err(error) = check_sliced(&striped, in_place, slices) {
                        panic!("{spec:?}: {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn large_worlds_drawn_at_random_keep_the_promises() {
    let seed = RandomState::new().hash_one(0);
    let draw = |number: u64, limit: usize| (value::mix(seed ^ number) % limit as u64) as usize;
    for number in 0..6 {
        let world_size = 65 + draw(3 * number, 236) as u32;
        let root = draw(3 * number + 1, world_size as usize) as u32;
        let mut all = specs(Access::Messages, world_size, root);
        all.extend(specs(Access::Staged, world_size, 0));
        all.extend(specs(Access::Registered, world_size, 0));
        let spec = &all[draw(3 * number + 2, all.len())];
        println!("seed {seed:#x}: {spec:?}");
        prove(spec, number % 2 == 0, Slices::ONE);
    }
}

#[test]
fn what_is_listed_exists_and_what_is_not_is_refused_with_what_is() {
    for &collective in Collective::ALL {
        for &access in Access::ALL {
            let listed: Vec<_> = Schedule::methods(collective, access).collect();
            for &algorithm in Method::ALL {
                for world_size in 2..=16 {
                    let spec = Spec {
                        rank: 1,
                        ..Spec::new(collective, algorithm, access, world_size)
                    };
                    // Some methods belong to one access only.
                    if spec.method() != algorithm {
                        continue;
                    }
                    let made = Schedule::new(spec);
                    let paired = algorithm == Method::RecursiveDoubling
                        && matches!(
                            collective,
                            Collective::AllGather | Collective::ReduceScatter
                        );
                    let exists =
                        listed.contains(&algorithm) && (!paired || world_size.is_power_of_two());
                    match made {
                        Ok(_) => assert!(exists),
                        Err(Error::Unsupported(text)) => {
                            assert!(!exists && text.contains("use "), "{text}");
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        }
    }
}

#[test]
fn only_messages_of_several_blocks_need_one_slice() {
    let need = |collective, algorithm| {
        let spec = Spec {
            rank: 3,
            ..Spec::new(collective, algorithm, Access::Messages, 8)
        };
        Schedule::new(spec).unwrap().needs_one_slice
    };
    assert!(need(Collective::AllGather, Algorithm::RecursiveDoubling));
    assert!(need(
        Collective::ReduceScatter,
        Algorithm::RecursiveDoubling
    ));
    assert!(!need(Collective::AllReduce, Algorithm::Rabenseifner));
    assert!(!need(Collective::AllGather, Algorithm::Ring));
    assert!(!need(Collective::AllToAll, Algorithm::Direct));
}

#[test]
fn messages_of_several_blocks_must_be_announced_by_all_ranks_alike() {
    let spec = Spec::new(
        Collective::AllGather,
        Algorithm::RecursiveDoubling,
        Access::Messages,
        4,
    );
    let what = |silent: &[usize]| {
        let mut schedules = schedules(&spec).unwrap();
        for rank in silent {
            schedules[*rank].needs_one_slice = false;
        }
        let checked = check_sliced(&schedules, false, Slices::ONE);
        checked.err().map(|violation| violation.what)
    };
    assert_eq!(what(&[]), None);
    assert!(what(&[0, 1, 2, 3]).unwrap().contains("several blocks"));
    assert!(what(&[2]).unwrap().contains("rank 0"));
}

#[test]
fn a_world_too_large_to_prove_is_refused() {
    let mut spec = specs(Access::Messages, 4, 0)[0].clone();
    spec.world_size = WORLD_SIZE_MAX + 1;
    assert!(matches!(
        check(&spec, false),
        Err(Error::InvalidArgument(_))
    ));
}
