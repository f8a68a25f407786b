//! Tests of the sockets and rails that follow from two ranks' records.

use std::net::{IpAddr, SocketAddr};

use super::*;
use crate::topology::link::Link;

/// Returns an endpoint on interface `interface`, whose link needs this many sockets.
fn endpoint(interface: u32, address: &str, prefix: u32, sockets: usize) -> Endpoint {
    let address: IpAddr = address.parse().expect("an address");
    Endpoint {
        address: SocketAddr::new(address, 1000 + interface as u16),
        prefix,
        interface,
        link: Link {
            rate_mbps: None,
            sockets,
        },
        is_rail: true,
    }
}

fn rank(endpoints: Vec<Endpoint>) -> PeerInfo {
    PeerInfo {
        endpoints,
        sockets_max: 100,
        ..PeerInfo::default()
    }
}

/// Returns rank `number` of those whose two interfaces are in two networks.
fn with_two_rails(number: u8) -> PeerInfo {
    rank(vec![
        endpoint(0, &format!("10.1.0.{number}"), 24, 1),
        endpoint(1, &format!("10.2.0.{number}"), 24, 1),
    ])
}

fn rails(bundle: &Bundle) -> Vec<String> {
    let text = |rail: &RailAddresses| format!("{} {}", rail.from, rail.to);
    bundle.rails.iter().map(text).collect()
}

#[test]
fn common_networks_are_rails_and_both_ends_use_them_alike() {
    let bundle = Bundle::between(&with_two_rails(1), &with_two_rails(2));
    assert_eq!(bundle.sockets, 2);
    assert_eq!(
        rails(&bundle),
        ["10.1.0.2 10.1.0.1:1000", "10.2.0.2 10.2.0.1:1001"]
    );
    // The lower rank's order applies, whatever the upper one prefers.
    let mut turned = with_two_rails(2);
    turned.endpoints.reverse();
    let bundle = Bundle::between(&with_two_rails(1), &turned);
    assert!(rails(&bundle)[0].starts_with("10.1.0.2"));
}

#[test]
fn one_interface_is_one_rail_whatever_its_addresses() {
    let both = |number: u8| {
        rank(vec![
            endpoint(0, &format!("10.1.0.{number}"), 24, 1),
            endpoint(0, &format!("fd00::{number}"), 64, 1),
        ])
    };
    let bundle = Bundle::between(&both(1), &both(2));
    assert_eq!((bundle.sockets, bundle.rails), (1, vec![]));
}

#[test]
fn what_is_not_common_or_not_to_be_used_beside_others_is_no_rail() {
    let mut others = with_two_rails(2);
    others.endpoints[1].is_rail = false;
    let elsewhere = rank(vec![
        endpoint(0, "10.1.0.2", 24, 1),
        endpoint(1, "10.3.0.2", 24, 1),
    ]);
    let narrower = rank(vec![
        endpoint(0, "10.1.0.2", 24, 1),
        endpoint(1, "10.2.0.2", 25, 1),
    ]);
    // Both ranks have the same address, as docker0 has on every host.
    let same = rank(vec![
        endpoint(0, "10.1.0.2", 24, 1),
        endpoint(1, "10.2.0.1", 24, 1),
    ]);
    for upper in [others, elsewhere, narrower, same] {
        let bundle = Bundle::between(&with_two_rails(1), &upper);
        assert_eq!((bundle.sockets, bundle.rails), (1, vec![]), "{upper:?}");
    }
}

#[test]
fn the_slower_link_and_the_descriptors_bound_what_nothing_asked_for() {
    let with = |number: u8, sockets: usize, sockets_max: usize| PeerInfo {
        sockets_max,
        ..rank(vec![endpoint(0, &format!("10.1.0.{number}"), 24, sockets)])
    };
    let sockets = |one: &PeerInfo, other: &PeerInfo| Bundle::between(one, other).sockets;
    assert_eq!(sockets(&with(1, 8, 100), &with(2, 8, 100)), 8);
    assert_eq!(sockets(&with(1, 8, 100), &with(2, 2, 100)), 2);
    assert_eq!(sockets(&with(1, 8, 3), &with(2, 8, 100)), 3);
    assert_eq!(sockets(&with(1, 8, 100), &with(2, 8, 0)), 1);
    // A peer's claim is bounded by this end's own values.
    assert_eq!(
        sockets(&with(1, 8, 100), &with(2, usize::MAX, usize::MAX)),
        8
    );
    assert_eq!(sockets(&with(1, 8, 100), &with(2, 0, 100)), 1);
    // Another network behind a router.
    let far = rank(vec![endpoint(0, "10.9.0.2", 24, 4)]);
    assert_eq!(sockets(&with(1, 8, 100), &far), 4);
}

#[test]
fn what_was_asked_for_is_what_there_is() {
    let asked = |number: u8, count: usize| PeerInfo {
        sockets: Some(count),
        ..with_two_rails(number)
    };
    for (count, rails) in [(1, 0), (2, 2), (3, 2), (64, 2)] {
        let bundle = Bundle::between(&asked(1, count), &asked(2, count));
        let found = (bundle.sockets, bundle.rails.len());
        assert_eq!(found, (count, rails));
        let alone = Bundle::on_one_host(&asked(1, count));
        assert_eq!((alone.sockets, alone.rails.len()), (count, 0));
    }
    assert_eq!(Bundle::on_one_host(&with_two_rails(1)).sockets, 1);
}

#[test]
fn threads_help_where_a_link_needs_several_sockets_and_there_are_cores() {
    let with = |sockets, link_sockets| {
        let rails = Vec::new();
        vec![(
            1,
            Bundle {
                sockets,
                rails,
                link_sockets,
                rate_mbps: None,
            },
        )]
    };
    assert_eq!(threads(&with(8, 8), 10), THREADS_MAX);
    assert_eq!(threads(&with(2, 2), 10), 1);
    assert_eq!(threads(&with(8, 8), 2), 2);
    assert_eq!(threads(&with(8, 8), 0), 0);
    // One core can serve several rails, or several sockets of slow links.
    assert_eq!(threads(&with(4, 1), 10), 0);
    assert_eq!(threads(&[], 10), 0);
}

/// Returns a rank whose interfaces, each in a network of its own, have these rates.
fn with_rates(number: u8, rates: &[Option<u32>]) -> PeerInfo {
    let of_rate = |(interface, &rate_mbps): (usize, &Option<u32>)| {
        let address = format!("10.{interface}.0.{number}");
        let mut endpoint = endpoint(interface as u32, &address, 24, 1);
        endpoint.link.rate_mbps = rate_mbps;
        endpoint
    };
    rank(rates.iter().enumerate().map(of_rate).collect())
}

#[test]
fn the_links_that_are_used_have_a_rate_where_all_are_known() {
    let rate = |one: &[Option<u32>], other: &[Option<u32>]| {
        Bundle::between(&with_rates(1, one), &with_rates(2, other)).rate_mbps
    };
    let (one, ten) = (Some(1_000), Some(10_000));
    assert_eq!(rate(&[one], &[ten]), one);
    assert_eq!(rate(&[one, one], &[one, one]), Some(2_000));
    // All rails have the share of the slowest.
    assert_eq!(rate(&[ten, one], &[ten, ten]), Some(2_000));
    assert_eq!(rate(&[None], &[ten]), None);
    assert_eq!(rate(&[ten, None], &[ten, ten]), None);
    assert_eq!(rate(&[Some(0)], &[Some(0)]), None);
    // One flow does not fill the link.
    assert_eq!(rate(&[Some(400_000)], &[Some(400_000)]), Some(FLOW_MBPS));
    let bundles = |rates: &[Option<u32>]| {
        let of_rate =
            |&rate: &Option<u32>| Bundle::between(&with_rates(1, &[rate]), &with_rates(2, &[rate]));
        let bundles: Vec<_> = rates.iter().map(of_rate).enumerate().collect();
        rate_mbps(&bundles)
    };
    assert_eq!(bundles(&[ten, one]), one);
    assert_eq!(bundles(&[ten, None]), None);
    assert_eq!(bundles(&[]), None);
}
