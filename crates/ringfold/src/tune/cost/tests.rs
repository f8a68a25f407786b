//! Prices by the closed forms.

use super::*;
use crate::types::{Access, Collective, Method};

/// Returns the spec of a schedule over messages.
fn spec(collective: Collective, algorithm: Method, world_size: u32) -> Spec {
    Spec::new(collective, algorithm, Access::Messages, world_size)
}

#[test]
fn sixteen_ranks_cross_over_from_latency_to_bandwidth() {
    let costs = Costs::default();
    let best = |bytes: u64| {
        let time = |&algorithm: &Method| {
            predict(&spec(Collective::AllReduce, algorithm, 16), bytes, &costs)
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
    let ring = spec(Collective::AllReduce, Method::Ring, 16);
    let time = predict(&ring, 1 << 20, &Costs::default());
    let size = f64::from(1 << 20);
    let expected = 30.0 * 5.0 + 30.0 / 16.0 * size * 8e-5 + 15.0 / 16.0 * size * 5e-5;
    assert!((time.unwrap() - expected).abs() < 1e-6);
}

#[test]
fn a_chain_is_cheaper_in_slices_than_hop_by_hop() {
    let costs = Costs::default();
    let time = |algorithm| predict(&spec(Collective::Broadcast, algorithm, 8), 1 << 26, &costs);
    assert!(time(Method::Ring) < time(Method::Tree));
}
