//! Hosts connected by RDMA: grants and copies against closed forms, and the cost model's prices
//! against simulated times.

use super::*;
use crate::simulate::prepare::choice;
use crate::tune::{Constants, Question, RdmaCosts, model};

/// Bytes of a message that needs a grant.
const M: u64 = 10_000;

/// Picoseconds per microsecond.
const PS_PER_US: f64 = 1e6;

/// Returns one message in each direction between two ranks, in which only messages take time.
fn exchange(bytes: u64, links: Links) -> Scenario {
    Scenario {
        collective: Collective::SendRecv,
        algorithm: Some(Method::Direct),
        ranks: 2,
        bytes,
        slice_bytes: Some(u64::MAX),
        compute: Compute::FREE,
        network: Network {
            links,
            ..Network::default()
        },
        ..Scenario::default()
    }
}

fn grants(grant_ps: u64) -> Option<Grants> {
    Some(Grants {
        whole_bytes_max: RdmaCosts::WHOLE_BYTES_MAX as u64,
        grant_ps,
    })
}

#[test]
fn a_long_message_departs_with_its_grant_and_a_short_one_without() {
    let links = Links {
        overhead_ps: 300_000,
        grants: grants(2_000_000),
        ..Links::default()
    };
    let time = |bytes, links| time_ps(&exchange(bytes, links));
    let sent_ps = |bytes| links.alpha_ps + bytes * links.ps_per_byte;
    assert_eq!(time(4096, links), 300_000 + sent_ps(4096) + 300_000);
    assert_eq!(time(4100, links), 2_000_000 + sent_ps(4100) + 300_000);
    // A message does not wait for a grant that arrives before the message is ready.
    let soon = Links {
        grants: grants(200_000),
        ..links
    };
    assert_eq!(time(M, soon), 300_000 + sent_ps(M) + 300_000);
}

#[test]
fn a_grant_begins_with_its_receive() {
    let links = Links {
        grants: grants(2_000_000),
        ..Links::default()
    };
    let mut scenario = exchange(M, links);
    let delay_ps = 50_000_000;
    scenario.disturbances = vec![Disturbance::Late { rank: 1, delay_ps }];
    let sent_ps = links.alpha_ps + M * links.ps_per_byte;
    assert_eq!(time_ps(&scenario), delay_ps + 2_000_000 + sent_ps);
}

#[test]
fn memory_that_is_not_registered_is_copied_at_both_ends_unless_it_is_combined() {
    let links = Links {
        work_ps_per_byte: 55,
        grants: grants(0),
        ..Links::default()
    };
    let sent_ps = links.alpha_ps + M * links.ps_per_byte;
    assert_eq!(time_ps(&exchange(M, links)), sent_ps + 2 * 55 * M);
    let mut combined = exchange(M, links);
    combined.collective = Collective::Reduce;
    combined.algorithm = Some(Method::Flat);
    assert_eq!(time_ps(&combined), sent_ps + 55 * M);
}

#[test]
fn grants_are_for_eager_messages() {
    let mut scenario = exchange(M, Links::default());
    scenario.network.links.grants = grants(1);
    scenario.network.sending = Sending::Rendezvous;
    let error = scenario.check().unwrap_err().to_string();
    assert!(error.contains("send eagerly"), "{error}");
}

/// Returns a call of ranks on a host each, with the defaults of RDMA; chunks are long enough to
/// need grants.
fn call(collective: Collective, method: Method, ranks: usize, is_registered: bool) -> Scenario {
    let costs = RdmaCosts::default();
    let ps = |us: f64| (us * PS_PER_US).round() as u64;
    let work_us_per_byte = match is_registered {
        true => 0.0,
        false => costs.staging_us_per_byte,
    };
    Scenario {
        collective,
        algorithm: Some(method),
        ranks,
        bytes: 65_536 * ranks as u64,
        slice_bytes: Some(u64::MAX),
        payload: Payload::Hollow,
        network: Network {
            links: Links {
                alpha_ps: ps(costs.rdma_alpha_us),
                overhead_ps: ps(costs.rdma_overhead_us),
                work_ps_per_byte: ps(work_us_per_byte),
                grants: grants(ps(costs.rdma_grant_us)),
                ..Links::default()
            },
            // Pieces are copied while others travel.
            segment_bytes: (!is_registered).then_some(8 << 10),
            ..Network::default()
        },
        ..Scenario::default()
    }
}

/// Returns the price of a call by the cost model.
fn price_us(scenario: &Scenario, is_registered: bool) -> f64 {
    let links = &scenario.network.links;
    let constants = RdmaCosts::default().over(Constants {
        call_us: 0.0,
        plan_us: 0.0,
        socket_us_per_byte: links.ps_per_byte as f64 / PS_PER_US,
        reduce_us_per_byte: scenario.compute.reduce_ps_per_byte as f64 / PS_PER_US,
        incast: 0.0,
        ..Constants::default()
    });
    let question = Question {
        hosts: scenario.ranks,
        runs: scenario.ranks,
        lends: is_registered,
        ..Question::new(scenario.collective, scenario.bytes, scenario.ranks)
    };
    f64::from(model::price(
        &question,
        &choice(scenario).unwrap(),
        &constants,
    ))
}

/// Checks the simulated time of a call, as a multiple of its price.
#[track_caller]
fn assert_ratio(
    (collective, method): (Collective, Method),
    is_registered: bool,
    bounds: std::ops::RangeInclusive<f64>,
) {
    for ranks in [2, 4, 8, 16] {
        let scenario = call(collective, method, ranks, is_registered);
        let simulated_us = time_ps(&scenario) as f64 / PS_PER_US;
        let price_us = price_us(&scenario, is_registered);
        let ratio = simulated_us / price_us;
        println!("{collective} by {method}, {ranks} ranks, {is_registered}: {ratio:.3}");
        assert!(
            bounds.contains(&ratio),
            "{collective} by {method}, {ranks} ranks: {simulated_us} µs, by the model {price_us}"
        );
    }
}

#[test]
fn calls_on_registered_memory_take_what_the_model_says() {
    use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Reduce, ReduceScatter};
    use Method::{Direct, Flat, OneShot, Rabenseifner, RecursiveDoubling, Ring, Tree};
    for of in [
        (AllReduce, Ring),
        (AllReduce, Tree),
        (AllReduce, RecursiveDoubling),
        (AllReduce, Rabenseifner),
        (AllReduce, Flat),
        (AllGather, Ring),
        (AllGather, RecursiveDoubling),
        (AllGather, Direct),
        (AllToAll, Direct),
        (ReduceScatter, Ring),
        (ReduceScatter, RecursiveDoubling),
        (Broadcast, Ring),
        (Broadcast, Tree),
        (Broadcast, Flat),
        (Reduce, Ring),
        (Reduce, Tree),
        (Reduce, Flat),
    ] {
        assert_ratio(of, true, 0.9..=1.03);
    }
    // Copies of a chunk are combined only when all have arrived.
    for of in [
        (Broadcast, Direct),
        (AllReduce, Direct),
        (AllReduce, OneShot),
        (ReduceScatter, Direct),
        (Reduce, Direct),
    ] {
        assert_ratio(of, true, 0.6..=1.6);
    }
}

/// One processor copies out of one piece and into another; the model does not add the two.
#[test]
fn calls_on_other_memory_take_at_most_a_copy_more() {
    use Collective::{AllGather, AllToAll, Broadcast};
    for of in [
        (AllGather, Method::Ring),
        (AllGather, Method::Direct),
        (AllToAll, Method::Direct),
        (Broadcast, Method::Tree),
    ] {
        assert_ratio(of, false, 0.95..=1.4);
    }
}
