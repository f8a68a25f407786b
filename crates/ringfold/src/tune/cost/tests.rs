//! The closed forms, against what the schedules of all ranks need.

use super::*;
use crate::schedule::check::{check, schedules};
use crate::schedule::{Action, Ranks};

/// What the schedules of all ranks need: the sum over rounds of the most that a rank has in it.
fn counted(spec: &Spec) -> [f64; 3] {
    let schedules = schedules(spec).unwrap();
    let chunks = schedules[0]
        .input
        .chunks()
        .max(schedules[0].output.chunks());
    let mut most = vec![[0u32; 3]; schedules[0].rounds as usize];
    for schedule in &schedules {
        let mut loads = vec![[0u32; 6]; schedule.rounds as usize];
        for step in schedule.channels.iter().flatten() {
            let load = &mut loads[step.round as usize];
            let peers = spec.world_size - 1;
            let added = match step.action {
                Action::Send { span, .. } => [1, 0, span.len, 0, 0, 0],
                Action::Recv { span, .. } => [0, 1, 0, span.len, 0, 0],
                Action::RecvReduce { into, .. } => [0, 1, 0, into.len, 0, into.len],
                Action::Reduce { into, .. } => [0, 0, 0, 0, 0, into.len],
                Action::Publish { span, .. } => [0, 0, 0, 0, span.len, 0],
                Action::GiveBack { span, .. } => [0, 0, 0, 0, peers * span.len, 0],
                Action::CopyFrom { into, .. }
                | Action::TakeBack { into, .. }
                | Action::Collect { into } => [0, 0, 0, 0, into.len, 0],
                Action::Combine { len, .. } => [0, 0, 0, 0, 0, peers * len],
                Action::ReduceFrom { among, into, .. } => {
                    [0, 0, 0, 0, 0, (among.count - 1) * into.len]
                }
                Action::Push {
                    sources,
                    targets,
                    into,
                    ..
                }
                | Action::Serve {
                    sources,
                    targets,
                    into,
                    ..
                } => {
                    // The first store of what was combined goes with the combining.
                    let (n, reduces) = (spec.world_size, sources == Ranks::All);
                    let stores = targets.count(n) - u32::from(reduces);
                    let reduced = sources.count(n) - 1;
                    [0, 0, 0, 0, stores * into.len, reduced * into.len]
                }
                Action::Copy { .. }
                | Action::Await { .. }
                | Action::Expose { .. }
                | Action::AwaitServed { .. } => [0; 6],
            };
            for (load, added) in load.iter_mut().zip(added) {
                *load += added;
            }
        }
        for (most, [sent, received, out, inward, copied, reduced]) in most.iter_mut().zip(loads) {
            most[0] = most[0].max(sent).max(received);
            most[1] = most[1].max(out).max(inward).max(copied);
            most[2] = most[2].max(reduced);
        }
    }
    // A barrier's chunks hold nothing.
    let bytes = f64::from(u8::from(spec.collective != Collective::Barrier));
    let sum = |kind: usize| f64::from(most.iter().map(|round| round[kind]).sum::<u32>());
    [
        sum(0),
        bytes * sum(1) / f64::from(chunks),
        sum(2) / f64::from(chunks),
    ]
}

#[test]
fn the_formulas_are_what_the_schedules_need() {
    for world_size in 2..=64 {
        for &collective in Collective::ALL {
            for &access in Access::ALL {
                for &algorithm in Method::ALL {
                    let Some(terms) = terms(collective, algorithm, access, world_size) else {
                        continue;
                    };
                    let spec = Spec {
                        rank: world_size - 1,
                        ..Spec::new(collective, algorithm, access, world_size)
                    };
                    let [messages, bytes, reduced] = counted(&spec);
                    let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
                    assert!(
                        close(bytes, terms.bytes)
                            && close(reduced, terms.reduced)
                            && (access != Access::Messages || messages == terms.messages),
                        "{spec:?}: {terms:?}, counted {messages} {bytes} {reduced}"
                    );
                    if world_size <= 17 || world_size >= 63 {
                        let hops = check(&spec, false).unwrap().hops;
                        let is_bound =
                            algorithm == Method::Stragglar && !world_size.is_power_of_two();
                        assert!(
                            f64::from(hops) == terms.hops
                                || (is_bound && f64::from(hops) < terms.hops),
                            "{spec:?}: {hops}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn domains_are_priced_as_their_schedules_are() {
    for (world_size, domains) in [(4, 2), (9, 3), (16, 2), (16, 8), (48, 4), (64, 16)] {
        let spec = Spec {
            domains,
            ..Spec::new(
                Collective::AllReduce,
                Method::Hierarchical,
                Access::Staged,
                world_size,
            )
        };
        let terms = terms_for(&spec).unwrap();
        let [_, bytes, reduced] = counted(&spec);
        assert!((bytes - terms.bytes).abs() < 1e-9, "{spec:?}: {bytes}");
        assert!(
            (reduced - terms.reduced).abs() < 1e-9,
            "{spec:?}: {reduced}"
        );
        assert_eq!(f64::from(check(&spec, false).unwrap().hops), terms.hops);
    }
}

#[test]
fn sixteen_ranks_cross_over_from_latency_to_bandwidth() {
    let costs = Costs::default();
    let best = |bytes: u64| {
        let time = |&algorithm: &Method| {
            predict(
                Collective::AllReduce,
                algorithm,
                Access::Messages,
                16,
                bytes,
                &costs,
            )
        };
        let candidates = [
            Method::Ring,
            Method::Tree,
            Method::RecursiveDoubling,
            Method::Rabenseifner,
        ];
        candidates
            .into_iter()
            .min_by(|a, b| time(a).partial_cmp(&time(b)).unwrap())
            .unwrap()
    };
    assert_eq!(best(256), Method::RecursiveDoubling);
    assert_eq!(best(1 << 20), Method::Rabenseifner);
}

#[test]
fn the_ring_of_sixteen_costs_what_the_formula_says() {
    let time = predict(
        Collective::AllReduce,
        Method::Ring,
        Access::Messages,
        16,
        1 << 20,
        &Costs::default(),
    );
    let size = f64::from(1 << 20);
    let expected = 30.0 * 5.0 + 30.0 / 16.0 * size * 8e-5 + 15.0 / 16.0 * size * 5e-5;
    assert!((time.unwrap() - expected).abs() < 1e-6);
}

#[test]
fn a_spec_has_the_price_of_its_terms() {
    let spec = Spec::new(Collective::AllReduce, Method::Ring, Access::Messages, 4);
    let time_us = predict_for(&spec, 1 << 20, &Costs::default()).unwrap();
    assert_eq!(format!("{time_us:.2}"), "195.15");
    let Terms {
        hops,
        messages,
        bytes,
        reduced,
    } = terms_for(&spec).unwrap();
    assert_eq!((hops, messages, bytes, reduced), (6.0, 6.0, 1.5, 0.75));
}

#[test]
fn a_chain_is_cheaper_in_slices_than_hop_by_hop() {
    let costs = Costs::default();
    let chain = predict(
        Collective::Broadcast,
        Method::Ring,
        Access::Messages,
        8,
        1 << 26,
        &costs,
    );
    let tree = predict(
        Collective::Broadcast,
        Method::Tree,
        Access::Messages,
        8,
        1 << 26,
        &costs,
    );
    assert!(chain < tree);
}
