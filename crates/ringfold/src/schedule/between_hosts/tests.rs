//! The traffic of each host's cable, counted from the schedules of all ranks, is minimal.

use crate::schedule::action::{Action, Buffer};
use crate::schedule::check::schedules;
use crate::schedule::{Groups, Schedule, Spec};
use crate::types::{Access, Collective, Method};

/// Numbers of chunks that a host sends and receives.
#[derive(Clone, Copy, Default)]
struct Cable {
    out: u32,
    into: u32,
}

/// Returns each host's traffic, and the number of chunks of the vector or of all ranks' blocks. A
/// chunk of wide elements counts twice.
fn cables(spec: &Spec) -> (Vec<Cable>, u32) {
    let schedules = schedules(spec).expect("a schedule");
    let chunks = schedules[0].input.chunks();
    let mut cables = vec![Cable::default(); spec.hosts.count() as usize];
    for schedule in &schedules {
        let from = spec.hosts.of(schedule.spec.rank);
        for step in schedule.channels.iter().flatten() {
            let Action::Send { peer, span } = step.action else {
                continue;
            };
            let to = spec.hosts.of(peer);
            let is_wide = spec.is_wide && span.buffer == Buffer::Scratch;
            let len = span.len * if is_wide { 2 } else { 1 };
            if from != to {
                cables[from as usize].out += len;
                cables[to as usize].into += len;
            }
        }
    }
    (cables, chunks.max(schedules[0].output.chunks()))
}

/// Returns calls of a collective by its two-level methods: on hosts of equal and unequal sizes,
/// with consecutive and scattered ranks, and with several roots.
fn calls(collective: Collective) -> impl Iterator<Item = Spec> {
    let hosts: [&[u32]; 6] = [
        &[0, 0, 1, 1],
        &[0, 0, 0, 1, 1, 1, 2, 2, 2],
        &[0, 1, 2, 0, 1, 2, 0, 1],
        &[0, 0, 0, 1],
        &[0, 1, 1, 2, 2, 2, 3, 3, 3, 3],
        &[0, 1, 1, 0, 2, 3, 4, 4],
    ];
    let methods = [Method::Hierarchical, Method::MultiLeader, Method::Leader];
    let is_served = move |method: &Method| Schedule::exists(collective, *method, Access::Messages);
    hosts.into_iter().flat_map(move |of_ranks| {
        let n = of_ranks.len() as u32;
        let methods = methods.into_iter().filter(is_served);
        methods.flat_map(move |method| {
            [0, n / 2, n - 1].map(|root| Spec {
                hosts: Groups::new(of_ranks),
                root,
                ..Spec::new(collective, method, Access::Messages, n)
            })
        })
    })
}

/// Checks each host's traffic, given the number of its ranks, the number of all ranks, and whether
/// the host has the root.
#[track_caller]
fn assert_cables(collective: Collective, is_due: impl Fn(Cable, u32, u32, bool) -> bool) {
    for spec in calls(collective) {
        let (cables, _) = cables(&spec);
        let root = spec.hosts.of(spec.root) as usize;
        for (host, members) in spec.hosts.members(spec.world_size).iter().enumerate() {
            let Cable { out, into } = cables[host];
            assert!(
                is_due(
                    cables[host],
                    members.len() as u32,
                    spec.world_size,
                    host == root
                ),
                "host {host} sends {out} and receives {into} blocks: {spec:?}"
            );
        }
    }
}

#[test]
fn a_block_enters_each_host_once() {
    assert_cables(Collective::AllGather, |cable, own, all, _| {
        cable.into == all - own
    });
    assert_cables(Collective::Scatter, |cable, own, all, is_root| {
        cable.into == if is_root { 0 } else { own }
            && cable.out == if is_root { all - own } else { 0 }
    });
}

#[test]
fn a_combined_block_leaves_each_host_once() {
    assert_cables(Collective::ReduceScatter, |cable, own, all, _| {
        cable.out == all - own
    });
    assert_cables(Collective::Gather, |cable, own, all, is_root| {
        cable.out == if is_root { 0 } else { own }
            && cable.into == if is_root { all - own } else { 0 }
    });
}

#[test]
fn what_ranks_exchange_passes_each_cable_once() {
    assert_cables(Collective::AllToAll, |cable, own, all, _| {
        let between = own * (all - own);
        (cable.out, cable.into) == (between, between)
    });
}

#[test]
fn a_vector_enters_or_leaves_each_host_once() {
    for (collective, is_reduce) in [(Collective::Broadcast, false), (Collective::Reduce, true)] {
        for spec in calls(collective) {
            let (cables, chunks) = cables(&spec);
            let root = spec.hosts.of(spec.root) as usize;
            for (host, cable) in cables.iter().enumerate() {
                let (once, other) = match is_reduce {
                    true => (cable.out, cable.into),
                    false => (cable.into, cable.out),
                };
                assert_eq!(once, if host == root { 0 } else { chunks }, "{spec:?}");
                // In a chain no host passes the vector on twice.
                let is_chain = spec.method() == Method::Hierarchical;
                assert!(!is_chain || other <= chunks, "{spec:?}");
            }
        }
    }
}

/// `hierarchical` sends the ring's 2(H - 1)/H, the minimum; pairs send one vector in each round.
#[test]
fn an_all_reduce_sends_as_much_as_one_rank_a_host_would() {
    for spec in calls(Collective::AllReduce) {
        let (cables, chunks) = cables(&spec);
        let hosts = spec.hosts.count();
        for Cable { out, into } in cables {
            if spec.method() == Method::Hierarchical {
                let due = 2 * (hosts - 1) * chunks / hosts;
                assert_eq!((out, into), (due, due), "{spec:?}");
            } else if hosts.is_power_of_two() {
                let due = hosts.ilog2() * chunks;
                assert_eq!((out, into), (due, due), "{spec:?}");
            }
        }
    }
}

/// Wide partial results are twice as long, results are not.
#[test]
fn reproducible_columns_send_as_much_and_wide_ones_once_and_a_half() {
    for (size, hosts) in [(2, 2), (4, 2), (2, 3), (4, 4), (3, 2)] {
        let n = size * hosts;
        let of_ranks: Vec<u32> = (0..n).map(|rank| rank / size).collect();
        for (collective, passes) in [
            (Collective::AllReduce, [2, 3]),
            (Collective::ReduceScatter, [1, 2]),
        ] {
            for (is_wide, passes) in [false, true].into_iter().zip(passes) {
                let spec = Spec {
                    hosts: Groups::new(&of_ranks),
                    is_reproducible: true,
                    is_wide,
                    ..Spec::new(collective, Method::Hierarchical, Access::Messages, n)
                };
                let (cables, chunks) = cables(&spec);
                let due = passes * (hosts - 1) * chunks / hosts;
                for Cable { out, into } in cables {
                    assert_eq!((out, into), (due, due), "{spec:?}");
                }
            }
        }
    }
}
