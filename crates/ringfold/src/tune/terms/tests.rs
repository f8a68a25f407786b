//! The terms, compared with the schedules of all ranks.

use super::*;
use crate::schedule::check::{check, schedules};
use crate::schedule::{Access, Action, Buffer, Groups, Span};

/// Returns the number of chunks of a message; a wide one counts twice.
fn length(spec: &Spec, span: Span) -> u32 {
    match (spec.is_wide, span.buffer) {
        (true, Buffer::Scratch) => 2 * span.len,
        _ => span.len,
    }
}

/// Counts the loads in the schedules of all ranks: the sum over rounds of the largest load of a
/// rank, and the load of all ranks together.
fn counted(spec: &Spec) -> [Load; 2] {
    let schedules = schedules(spec).unwrap();
    let chunks = schedules[0]
        .input
        .chunks()
        .max(schedules[0].output.chunks());
    let mut most = vec![[0u32; 3]; schedules[0].rounds as usize];
    let mut all = [0u32; 3];
    for schedule in &schedules {
        let mut loads = vec![[0u32; 6]; schedule.rounds as usize];
        for step in schedule.channels.iter().flatten() {
            let load = &mut loads[step.round as usize];
            let peers = spec.world_size - 1;
            let added = match step.action {
                Action::Send { span, .. } => [1, 0, length(spec, span), 0, 0, 0],
                Action::Recv { span, .. } => [0, 1, 0, length(spec, span), 0, 0],
                Action::RecvReduce { into, .. } => [0, 1, 0, into.len, 0, into.len],
                Action::RecvLeaf { like, .. } => [0, 1, 0, length(spec, like), 0, 0],
                Action::Fold { leaves, .. } => [0, 0, 0, 0, 0, leaves.len],
                Action::Reduce { into, .. } => [0, 0, 0, 0, 0, into.len],
                Action::Publish { span, .. } => [0, 0, 0, 0, span.len, 0],
                Action::GiveBack { span, .. } => [0, 0, 0, 0, peers * span.len, 0],
                Action::CopyFrom { into, .. }
                | Action::TakeBack { into, .. }
                | Action::Collect {
                    access: Access::Staged,
                    into,
                } => [0, 0, 0, 0, into.len, 0],
                Action::ReduceFrom { into, .. } => [0, 0, 0, 0, 0, peers * into.len],
                Action::Combine(combine) => {
                    let reduced = combine.sources.count - 1;
                    // The first store of a result is part of its reduction.
                    let stores = combine.targets.count - u32::from(reduced > 0);
                    let len = combine.into.len;
                    [0, 0, 0, 0, stores * len, reduced * len]
                }
                Action::Copy { .. }
                | Action::Await { .. }
                | Action::Expose { .. }
                | Action::Collect { .. } => [0; 6],
            };
            for (load, added) in load.iter_mut().zip(added) {
                *load += added;
            }
        }
        for (most, [sent, received, out, inward, copied, reduced]) in most.iter_mut().zip(loads) {
            all = [all[0] + sent, all[1] + out + copied, all[2] + reduced];
            most[0] = most[0].max(sent).max(received);
            most[1] = most[1].max(out).max(inward).max(copied);
            most[2] = most[2].max(reduced);
        }
    }
    // A barrier's chunks are empty.
    let bytes = f64::from(u8::from(spec.collective != Collective::Barrier));
    let most = |kind: usize| most.iter().map(|round| round[kind]).sum::<u32>();
    let load = |[messages, moved, reduced]: [u32; 3]| {
        let part = |count: u32| f64::from(count) / f64::from(chunks);
        Load::from([f64::from(messages), bytes * part(moved), part(reduced)])
    };
    [load([0, 1, 2].map(most)), load(all)]
}

/// Whether both loads are the same; publications are not compared.
fn is_same(one: Load, other: Load, access: Access) -> bool {
    let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
    close(one.bytes, other.bytes)
        && close(one.reduced, other.reduced)
        && (access.is_shared() || close(one.messages, other.messages))
}

#[test]
fn the_terms_are_what_the_schedules_need() {
    for world_size in 2..=64 {
        for &collective in Collective::ALL {
            let with_schedules = Access::ALL
                .iter()
                .filter(|access| **access != Access::Slots);
            for &access in with_schedules {
                for &algorithm in Method::ALL {
                    let spec = Spec {
                        rank: world_size - 1,
                        ..Spec::new(collective, algorithm, access, world_size)
                    };
                    if let Some(terms) = CostTerms::of(&spec) {
                        assert_counted(&spec, &terms);
                    }
                }
            }
        }
    }
}

#[track_caller]
fn assert_counted(spec: &Spec, terms: &CostTerms) {
    let Spec {
        collective,
        access,
        world_size,
        ..
    } = *spec;
    let algorithm = spec.method();
    let [busiest, all] = counted(spec);
    assert!(
        is_same(busiest, terms.busiest, access),
        "{spec:?}: {terms:?}, counted {busiest:?}"
    );
    // A pair has two ranks in any world. Dynamic assignment is known only at run time.
    let is_dynamic = matches!(algorithm, Method::Claim | Method::Serve);
    let is_bound = algorithm == Method::Stragglar;
    let is_pair = matches!(
        collective,
        Collective::Send | Collective::Recv | Collective::SendRecv
    );
    assert!(
        is_dynamic || is_bound || is_pair || is_same(all, terms.all, access),
        "{spec:?}: {terms:?}, counted {all:?} of all"
    );
    if world_size <= 17 || world_size >= 63 {
        let hops = f64::from(check(spec, false).unwrap().hops);
        let is_bound = is_bound && !world_size.is_power_of_two();
        assert!(
            hops == terms.hops || (is_bound && hops < terms.hops),
            "{spec:?}: {hops}"
        );
    }
}

#[test]
fn the_terms_of_two_levels_are_what_their_schedules_need() {
    for (hosts, size) in [
        (2, 2),
        (2, 3),
        (3, 2),
        (4, 4),
        (5, 3),
        (8, 2),
        (3, 1),
        (6, 4),
        (7, 2),
        (13, 1),
    ] {
        for &collective in Collective::ALL {
            for method in [Method::Hierarchical, Method::Leader, Method::MultiLeader] {
                let world_size = hosts * size;
                let spec = Spec {
                    hosts: Groups::equal(world_size, hosts).unwrap(),
                    ..Spec::new(collective, method, Access::Messages, world_size)
                };
                if let Some(terms) = CostTerms::of(&spec) {
                    assert_counted(&spec, &terms);
                }
            }
        }
    }
}

#[test]
fn the_terms_of_columns_in_order_are_what_their_schedules_need() {
    for (hosts, size) in [(2, 2), (2, 3), (3, 2), (4, 3), (8, 2), (3, 1), (5, 6)] {
        for collective in [Collective::AllReduce, Collective::ReduceScatter] {
            for (is_wide, width) in [(false, 1.0), (true, 2.0)] {
                let world_size = hosts * size;
                let spec = Spec {
                    hosts: Groups::equal(world_size, hosts).unwrap(),
                    is_reproducible: true,
                    is_wide,
                    ..Spec::new(
                        collective,
                        Method::Hierarchical,
                        Access::Messages,
                        world_size,
                    )
                };
                let mut terms = CostTerms::of(&spec).unwrap();
                terms.exchange_in_order(collective, width);
                assert_counted(&spec, &terms);
            }
        }
    }
}

/// Covers hosts to which runs of ranks are dealt in turn.
#[test]
fn the_terms_of_two_levels_count_the_runs_of_ranks() {
    for (hosts, length, turns) in [
        (2, 1, 2),
        (2, 2, 2),
        (3, 1, 4),
        (5, 1, 3),
        (4, 3, 2),
        (7, 2, 3),
    ] {
        let world_size = hosts * length * turns;
        let of_ranks: Vec<u32> = (0..world_size).map(|rank| rank / length % hosts).collect();
        for &collective in Collective::ALL {
            for method in [Method::Hierarchical, Method::Leader, Method::MultiLeader] {
                let spec = Spec {
                    hosts: Groups::new(&of_ranks),
                    ..Spec::new(collective, method, Access::Messages, world_size)
                };
                if let Some(terms) = CostTerms::of(&spec) {
                    assert_counted(&spec, &terms);
                }
            }
        }
    }
}
