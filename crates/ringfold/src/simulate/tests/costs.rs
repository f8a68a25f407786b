//! The cost model's closed forms against simulated times.

use super::*;
use crate::schedule::Spec;
use crate::tune::cost::{Costs, predict};
use crate::types::Access;
use crate::types::{Collective, Method};

/// Bytes of a chunk: whole lines, so that all chunks are of one length.
const CHUNK_BYTES: u64 = 4096;

/// Returns the cost model's machine: α, β and γ, and no overhead.
fn costs() -> Costs {
    let (links, compute) = (Links::default(), Compute::default());
    Costs {
        alpha_us: links.alpha_ps as f64 * 1e-6,
        overhead_us: 0.0,
        beta_us_per_byte: links.ps_per_byte as f64 * 1e-6,
        gamma_us_per_byte: compute.reduce_ps_per_byte as f64 * 1e-6,
        ..Costs::default()
    }
}

fn scenario(collective: Collective, algorithm: Method, ranks: usize) -> Scenario {
    // A multiple of the number of chunks: the ring's, halving's, or that without the late rank.
    let chunks = match algorithm {
        Method::Rabenseifner => 1 << ranks.ilog2(),
        Method::Stragglar => ranks as u64 - 1,
        _ => ranks as u64,
    };
    Scenario {
        collective,
        algorithm: Some(algorithm),
        ranks,
        bytes: CHUNK_BYTES * chunks,
        payload: Payload::Hollow,
        ..Scenario::default()
    }
}

/// Returns the simulated and the predicted time.
fn times_us(scenario: &Scenario) -> (f64, f64) {
    let report = run(scenario).unwrap();
    let spec = Spec::new(
        scenario.collective,
        scenario.algorithm.unwrap(),
        Access::Messages,
        scenario.ranks as u32,
    );
    let predicted = predict(&spec, scenario.bytes, &costs());
    (report.finished_ps as f64 * 1e-6, predicted.unwrap())
}

fn is_close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-6 * other.max(1.0)
}

#[test]
fn what_goes_round_by_round_takes_the_time_of_its_formula() {
    for ranks in 2..=64usize {
        let mut exact = vec![
            (Collective::AllReduce, Method::Ring),
            (Collective::ReduceScatter, Method::Ring),
            (Collective::AllGather, Method::Ring),
        ];
        if ranks <= 24 {
            exact.extend([
                (Collective::AllReduce, Method::Direct),
                (Collective::AllReduce, Method::OneShot),
            ]);
        }
        if ranks.is_power_of_two() {
            exact.extend([
                (Collective::AllReduce, Method::Tree),
                (Collective::AllReduce, Method::Rabenseifner),
                (Collective::ReduceScatter, Method::RecursiveDoubling),
                (Collective::AllGather, Method::RecursiveDoubling),
                (Collective::Barrier, Method::RecursiveDoubling),
                (Collective::Broadcast, Method::Tree),
                (Collective::Reduce, Method::Tree),
            ]);
        }
        for (collective, algorithm) in exact {
            let (simulated, predicted) = times_us(&scenario(collective, algorithm, ranks));
            assert!(
                is_close(simulated, predicted),
                "{collective} by {algorithm}, {ranks} ranks: {simulated} µs, by the formula \
                 {predicted}"
            );
        }
    }
}

/// Formulas are approximate if ranks differ in what they do, or if reductions overlap with
/// messages. The bounds are simulated over predicted times.
#[test]
fn elsewhere_the_formulas_are_near() {
    let near = [
        // The formula adds the times of a reduction and of the next message, which overlap.
        (Method::Flat, 0.75, 1.0),
        (Method::Tree, 0.94, 1.0),
        // Folded ranks may or may not wait for each other.
        (Method::RecursiveDoubling, 0.92, 1.09),
        (Method::Rabenseifner, 1.0, 1.08),
        // The hops are a bound, and the two parts overlap.
        (Method::Stragglar, 0.72, 1.0),
    ];
    for ranks in 2..=64 {
        for (algorithm, least, most) in near {
            let (simulated, predicted) =
                times_us(&scenario(Collective::AllReduce, algorithm, ranks));
            let ratio = simulated / predicted;
            assert!(
                ratio > least - 1e-6 && ratio < most + 1e-6,
                "{algorithm}, {ranks} ranks: {simulated} µs, by the formula {predicted}"
            );
        }
    }
}
