//! The sizes at which the model changes from one way to another.

use super::*;
use crate::topology::Machine;
use crate::topology::machine::DataCache;
use crate::tune::choose::{cost_table, finish};
use crate::tune::terms::is_two_levels;
use crate::tune::{Limits, Tuning};
use crate::types::Protocol;

/// Maximum number of bytes that a rank publishes in these tests.
const SLOT_BYTES: usize = 256 << 10;

pub(in crate::tune) fn two_cores() -> Machine {
    let cache = |bytes, shared_by| DataCache { bytes, shared_by };
    Machine {
        l1: cache(32 << 10, 1),
        l2: cache(1 << 20, 1),
        last: cache(32 << 20, 2),
        cores: 2,
    }
}

/// Returns a question for ranks of one host.
pub(in crate::tune) fn on_one_host(
    collective: Collective,
    bytes: u64,
    world_size: usize,
) -> Question {
    Question {
        slot_bytes: Some(SLOT_BYTES),
        ..Question::new(collective, bytes, world_size)
    }
}

/// Returns a question for ranks with a host each.
fn apart(collective: Collective, bytes: u64, world_size: usize) -> Question {
    Question {
        hosts: world_size,
        ..Question::new(collective, bytes, world_size)
    }
}

/// Returns the price of a way on a machine of two cores.
fn price(question: &Question, algorithm: Method, protocol: Protocol, constants: &Constants) -> f32 {
    let limits = Limits::derive(&two_cores(), question.world_size);
    let tuning = Tuning::new(constants.clone(), limits);
    let way = finish(question, &tuning, (algorithm, protocol), None);
    super::price(question, &way, constants)
}

/// Returns the cheapest way without registered buffers.
fn best(question: &Question, constants: &Constants) -> Method {
    least(question, constants)
}

/// Returns the cheapest way if all buffers are registered.
fn best_registered(question: &Question, constants: &Constants) -> Method {
    let is_registered = true;
    least(
        &Question {
            is_registered,
            ..*question
        },
        constants,
    )
}

fn least(question: &Question, constants: &Constants) -> Method {
    let limits = Limits::derive(&two_cores(), question.world_size);
    let tuning = Tuning::new(constants.clone(), limits);
    let table = cost_table(question, &tuning);
    let plain = table
        .usable()
        .filter(|((_, protocol), _)| *protocol != Protocol::Ll);
    let cheapest = plain.min_by(|(_, one), (_, other)| one.total_cmp(other));
    cheapest.expect("a way").0.0
}

/// Returns the ways of a call as its size grows, each with the smallest size of its range.
fn ways(
    at: impl Fn(u64) -> Question,
    constants: &Constants,
    best: fn(&Question, &Constants) -> Method,
) -> Vec<(u64, Method)> {
    let mut ways: Vec<(u64, Method)> = Vec::new();
    for bytes in (3..=26).flat_map(|shift| [4, 5, 6, 7].map(|part| (1 << shift) / 4 * part)) {
        let algorithm = best(&at(bytes), constants);
        if ways.last().is_none_or(|(_, last)| *last != algorithm) {
            ways.push((bytes, algorithm));
        }
    }
    ways
}

#[test]
fn combining_in_shared_memory_has_a_rate_of_its_own() {
    let usual = Constants::derive(&two_cores(), 2);
    let mut slow = usual.clone();
    slow.reduce_us_per_byte = 1e-3;
    let question = on_one_host(Collective::AllReduce, 1 << 20, 2);
    // Each of two ranks reduces half of the vector.
    let more_us = (1e-3 - usual.reduce_us_per_byte) * f64::from(1 << 19);
    for (method, part) in [(Method::Direct, 1.0), (Method::Push, usual.pushed_factor)] {
        let price = |constants| f64::from(price(&question, method, Protocol::Simple, constants));
        let due = price(&usual) + part * more_us;
        assert!((0.99..1.01).contains(&(price(&slow) / due)), "{method}");
    }
}

/// Asserts that the ways follow each other in this order, from sizes within the expected ranges.
#[track_caller]
fn assert_crossings(ways: &[(u64, Method)], expected: &[(Method, std::ops::RangeInclusive<u64>)]) {
    let algorithms: Vec<_> = ways.iter().map(|(_, algorithm)| *algorithm).collect();
    let names: Vec<_> = expected.iter().map(|(algorithm, _)| *algorithm).collect();
    assert_eq!(algorithms, names, "{ways:?}");
    for ((bytes, algorithm), (_, bounds)) in ways.iter().zip(expected) {
        assert!(
            bounds.contains(bytes),
            "{algorithm} from {bytes} bytes on; {ways:?}"
        );
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const FIRST: std::ops::RangeInclusive<u64> = 8..=8;

#[test]
fn with_a_core_each_one_synchronisation_is_saved_while_lines_are_few() {
    let constants = Constants::derive(&two_cores(), 2);
    let of = |collective| move |bytes| on_one_host(collective, bytes, 2);
    let staged = ways(of(Collective::AllReduce), &constants, best);
    let expected = [
        (Method::OneShot, FIRST),
        (Method::Direct, 32 * KIB..=128 * KIB),
    ];
    assert_crossings(&staged, &expected);
    // In one direction, both ends copy at the same time, through cells that stay in the cache.
    for (rooted, short, long) in [
        (Collective::Reduce, Method::Flat, Method::Ring),
        (Collective::Broadcast, Method::Direct, Method::Flat),
        (Collective::Gather, Method::Direct, Method::Flat),
        (Collective::Scatter, Method::Direct, Method::Flat),
    ] {
        let expected = [(short, FIRST), (long, 32 * KIB..=256 * KIB)];
        assert_crossings(&ways(of(rooted), &constants, best), &expected);
    }
    // With more ranks, each rank reads more.
    let enough = Machine {
        cores: 64,
        ..two_cores()
    };
    let last = |ranks| {
        let constants = Constants::derive(&enough, ranks);
        let at = |bytes| on_one_host(Collective::AllReduce, bytes, ranks);
        ways(at, &constants, best)[1].0
    };
    let sizes = [2, 3, 4, 8].map(last);
    assert!(sizes.is_sorted_by(|fewer, more| fewer > more), "{sizes:?}");
}

#[test]
fn ranks_that_take_turns_save_turns_for_longer() {
    let constants = Constants::derive(&two_cores(), 4);
    let at = |bytes| on_one_host(Collective::AllReduce, bytes, 4);
    let expected = [
        (Method::OneShot, FIRST),
        (Method::Direct, 8 * KIB..=16 * KIB),
    ];
    assert_crossings(&ways(at, &constants, best), &expected);
    // With four ranks per core it matters that a running rank continues.
    let constants = Constants::derive(&two_cores(), 8);
    let at = |bytes| on_one_host(Collective::AllReduce, bytes, 8);
    assert_eq!(best(&at(8), &constants), Method::OneShot);
    assert_eq!(best(&at(64 * KIB), &constants), Method::Claim);
}

#[test]
fn registered_buffers_are_worth_it_from_some_kilobytes_on() {
    for (ranks, least) in [(2, 8 * KIB), (4, 8 * KIB), (8, 4 * KIB)] {
        let constants = Constants::derive(&two_cores(), ranks);
        let at = |bytes| on_one_host(Collective::AllReduce, bytes, ranks);
        let is_staged = |bytes| !best_registered(&at(bytes), &constants).is_registered();
        assert!(is_staged(1024), "{ranks} ranks");
        assert!(
            (0..12).all(|shift| !is_staged((8 * least) << shift)),
            "{ranks} ranks"
        );
        assert_eq!(best_registered(&at(16 * MIB), &constants), Method::Push);
    }
}

#[test]
fn between_hosts_few_messages_win_first_and_few_bytes_then() {
    let constants = Constants::derive(&two_cores(), 1);
    let at = |ranks| move |bytes| apart(Collective::AllReduce, bytes, ranks);
    let of_16 = ways(at(16), &constants, best);
    let expected = [
        (Method::OneShot, FIRST),
        (Method::RecursiveDoubling, KIB..=16 * KIB),
        (Method::Rabenseifner, 32 * KIB..=256 * KIB),
        (Method::Ring, 32 * MIB..=128 * MIB),
    ];
    assert_crossings(&of_16, &expected);
    // If the number of ranks is no power of two, the ring needs fewer bytes.
    assert_eq!(best(&at(6)(64 * MIB), &constants), Method::Ring);
    let broadcast = |bytes| apart(Collective::Broadcast, bytes, 16);
    assert_eq!(best(&broadcast(32 * KIB), &constants), Method::Tree);
    assert_eq!(best(&broadcast(64 * MIB), &constants), Method::Ring);
}

/// Four namespaces on two cores, as measured: the same two cores do the work of all ranks.
#[test]
fn hosts_that_share_cores_want_few_messages() {
    let constants = Constants::derive(&two_cores(), 4);
    let at = |bytes| apart(Collective::AllReduce, bytes, 4);
    let expected = [
        (Method::RecursiveDoubling, FIRST),
        (Method::Rabenseifner, 64 * KIB..=256 * KIB),
        (Method::Ring, 8 * MIB..=16 * MIB),
    ];
    assert_crossings(&ways(at, &constants, best), &expected);
    // Measured 99 and 132 µs against 52.
    let price = |algorithm| price(&at(8), algorithm, Protocol::Simple, &constants);
    for slow in [Method::Direct, Method::Ring] {
        let quick = price(Method::RecursiveDoubling);
        assert!(price(slow) > 1.7 * quick, "{slow}");
    }
}

/// Two and four namespaces of one rank on two cores, as measured: a root that only receives does
/// half of the work of its messages, and reduces while it receives.
#[test]
fn a_root_with_a_host_for_each_rank_is_sent_few_large_messages() {
    for (bytes, ranks, due) in [
        (4 * KIB, 4, Method::Flat),
        (32 * KIB, 4, Method::Flat),
        (4 * MIB, 4, Method::Tree),
        (16 * MIB, 4, Method::Tree),
        (64 * KIB, 2, Method::Flat),
        (4 * MIB, 2, Method::Flat),
        (64 * MIB, 2, Method::Flat),
    ] {
        let constants = Constants::derive(&two_cores(), ranks);
        let question = apart(Collective::Reduce, bytes, ranks);
        assert_eq!(best(&question, &constants), due, "{bytes} bytes, {ranks}");
    }
}

/// Calls of two and of four ranks on two cores, as measured.
#[test]
fn messages_are_read_where_one_copy_is_quicker_than_two() {
    use Collective::{AllGather, AllToAll, Scatter};
    use Method::{Direct, Flat, RecursiveDoubling};
    for (collective, bytes, ranks, due) in [
        (AllToAll, 64 * KIB, 2, Direct),
        (AllToAll, 2 * MIB, 2, Flat),
        (AllGather, 64 * KIB, 2, Direct),
        (AllGather, 8 * MIB, 2, RecursiveDoubling),
        (AllToAll, 64 * KIB, 4, Direct),
        (AllToAll, 2 * MIB, 4, Flat),
        (Scatter, 64 * KIB, 4, Direct),
        (Scatter, 2 * MIB, 4, Flat),
        (AllGather, 8 * MIB, 4, Direct),
    ] {
        let constants = Constants::derive(&two_cores(), ranks);
        let question = Question {
            read_bytes_min: Some(Limits::default().read_bytes_min),
            ..on_one_host(collective, bytes, ranks)
        };
        let chosen = best(&question, &constants);
        assert_eq!(chosen, due, "{collective} of {bytes} bytes, {ranks} ranks");
    }
}

/// Two namespaces of two and of four ranks on two cores, as measured. The ranks of a host take
/// turns on its core, so its leader's messages are the fewest. Messages of several blocks are not
/// cut into slices, and large ones leave the cache.
#[test]
fn hosts_that_share_cores_send_little_data_through_leaders() {
    use Collective::{AllGather, AllReduce, AllToAll, Barrier, Gather, ReduceScatter, Scatter};
    use Method::{Direct, Flat, Hierarchical, Leader};
    for (collective, bytes, due) in [
        (AllReduce, 8, Leader),
        (AllReduce, 256 * KIB, Leader),
        (AllReduce, 16 * MIB, Hierarchical),
        (AllGather, 8, Leader),
        (AllGather, 64 * KIB, Leader),
        (AllGather, 16 * MIB, Hierarchical),
        (ReduceScatter, 8, Leader),
        (ReduceScatter, 64 * KIB, Leader),
        (ReduceScatter, 16 * MIB, Hierarchical),
        (Gather, 64 * KIB, Leader),
        (Gather, 16 * MIB, Flat),
        (Scatter, 4 * KIB, Leader),
        (Scatter, MIB, Leader),
        (Scatter, 16 * MIB, Flat),
        (AllToAll, 8, Hierarchical),
        (AllToAll, 64 * KIB, Hierarchical),
        (AllToAll, 16 * MIB, Direct),
        (Barrier, 0, Leader),
    ] {
        for ranks in [4, 8] {
            let constants = Constants::derive(&two_cores(), ranks);
            let question = Question {
                hosts: 2,
                ..Question::new(collective, bytes, ranks)
            };
            let chosen = best(&question, &constants);
            assert_eq!(chosen, due, "{collective} of {bytes} bytes, {ranks} ranks");
        }
    }
}

#[test]
fn two_levels_carry_much_data_between_hosts_of_several_ranks() {
    // Hosts that share cores, and hosts with enough cores on a line of 1 Gbit/s.
    let crowded = Constants::derive(&two_cores(), 8);
    let slow = Constants {
        socket_us_per_byte: 8e-3,
        ..Constants::derive(&two_cores(), 2)
    };
    for constants in [crowded, slow] {
        for (ranks, hosts) in [(4, 2), (8, 2), (16, 4)] {
            let at = |bytes| Question {
                hosts,
                ..Question::new(Collective::AllReduce, bytes, ranks)
            };
            let name = format!("{ranks} ranks on {hosts} hosts, {constants}");
            assert_eq!(
                best(&at(64 << 20), &constants),
                Method::Hierarchical,
                "{name}"
            );
            assert_ne!(best(&at(8), &constants), Method::Hierarchical, "{name}");
        }
    }
}

/// Blocks of ranks that are not consecutive are messages of their own.
#[test]
fn ranks_that_are_dealt_out_exchange_small_blocks_directly() {
    let constants = Constants::derive(&two_cores(), 2);
    let at = |collective, runs| Question {
        hosts: 2,
        runs,
        ..Question::new(collective, 512, 8)
    };
    for (collective, dealt_out) in [
        (Collective::AllToAll, Method::Direct),
        (Collective::Gather, Method::Flat),
    ] {
        let at = |runs| Question {
            bytes: 64,
            ..at(collective, runs)
        };
        assert!(is_two_levels(best(&at(2), &constants)), "{collective}");
        assert_eq!(best(&at(8), &constants), dealt_out, "{collective}");
    }
    // If ranks are dealt out, every message of a ring goes to another host.
    let ring = |runs| {
        let question = Question {
            bytes: MIB,
            ..at(Collective::AllReduce, runs)
        };
        price(&question, Method::Ring, Protocol::Simple, &constants)
    };
    assert!(ring(8) > 1.5 * ring(2), "{} and {}", ring(8), ring(2));
}

#[test]
fn the_rate_of_the_links_decides_from_where_on_two_levels_pay() {
    let constants = Constants::derive(&two_cores(), 2);
    let question = Question {
        hosts: 2,
        ..Question::new(Collective::AllReduce, 16 * MIB, 4)
    };
    let at = |rate_mbps| constants.clone().over_links(rate_mbps);
    assert_eq!(at(20_000).socket_us_per_byte, constants.socket_us_per_byte);
    let price = |rate_mbps| price(&question, Method::Ring, Protocol::Simple, &at(rate_mbps));
    assert!(price(1_000) > 1.5 * price(2_000));
    assert_eq!(best(&question, &at(1_000)), Method::Hierarchical);
    assert_eq!(best(&question, &at(200_000)), Method::Ring);
}

/// Covers every way of every collective, at sizes from tiny to absurd.
#[test]
fn every_price_is_a_price_and_grows_with_the_size() {
    for (ranks, load) in [(1, 1), (2, 2), (3, 2), (4, 4), (7, 64), (16, 1), (300, 300)] {
        let constants = Constants::derive(&two_cores(), load);
        for collective in Collective::ALL {
            for at in [on_one_host, apart] {
                for algorithm in Method::ALL {
                    for protocol in Protocol::ALL {
                        let mut last = 0.0;
                        for bytes in (0..=63).map(|shift| 1u64 << shift).chain([u64::MAX]) {
                            let question = at(*collective, bytes, ranks);
                            let cost_us = price(&question, *algorithm, *protocol, &constants);
                            let name = format!(
                                "{collective} {algorithm} {protocol}, {ranks} ranks, {bytes} bytes"
                            );
                            assert!(cost_us > 0.0 && cost_us.is_finite(), "{name}: {cost_us}");
                            assert!(cost_us >= last, "{name}: {cost_us} after {last}");
                            last = cost_us;
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_correction_multiplies_its_way_only() {
    let mut constants = Constants::derive(&two_cores(), 2);
    let question = on_one_host(Collective::AllReduce, MIB, 2);
    let cost =
        |algorithm, constants: &Constants| price(&question, algorithm, Protocol::Simple, constants);
    let before = [Method::Direct, Method::Ring].map(|way| cost(way, &constants));
    let way = "all_reduce.direct.simple".parse().expect("a way");
    constants.corrections.set(way, 20, 2.0);
    let after = [Method::Direct, Method::Ring].map(|way| cost(way, &constants));
    assert_eq!(after, [2.0 * before[0], before[1]]);
}

#[test]
fn lent_messages_are_priced_as_one_pass_and_short_ones_as_copies() {
    let constants = Constants::default();
    let at = |bytes, lends| Question {
        hosts: 2,
        lends,
        ..Question::new(Collective::AllReduce, bytes, 8)
    };
    for load in [1.0, 4.0] {
        let constants = Constants {
            load,
            ..constants.clone()
        };
        let both = |bytes| {
            [false, true].map(|lends| {
                let question = at(bytes, lends);
                price(
                    &question,
                    Method::Hierarchical,
                    Protocol::Simple,
                    &constants,
                )
            })
        };
        let [copied, lent] = both(16 << 20);
        assert!(lent < copied, "{lent} {copied}");
        let [copied, lent] = both(4 << 10);
        assert_eq!(lent, copied);
    }
    // Nothing is lent between hosts.
    let alone = |lends| Question {
        lends,
        ..apart(Collective::AllReduce, 16 << 20, 4)
    };
    let [copied, lent] =
        [false, true].map(|lends| price(&alone(lends), Method::Ring, Protocol::Simple, &constants));
    assert_eq!(lent, copied);
}

#[test]
fn what_leaves_from_scratch_is_not_priced_as_lent() {
    let constants = Constants::default();
    let gain = |collective, method| {
        let [copied, lent] = [false, true].map(|lends| {
            let question = Question {
                hosts: 2,
                lends,
                ..Question::new(collective, 16 << 20, 8)
            };
            price(&question, method, Protocol::Simple, &constants)
        });
        copied - lent
    };
    // In a gather, leaders lend nothing and ranks lend all that they send to their leader. In a
    // scatter, leaders lend only in the root's host, one of two; others pass on received data.
    let gather = gain(Collective::Gather, Method::Leader);
    let scatter = gain(Collective::Scatter, Method::Leader);
    assert!(
        0.0 < scatter && scatter < 0.6 * gather,
        "{scatter} {gather}"
    );
}
