//! Checks the work of processors on messages, and the waits of ranks that outnumber cores, against
//! closed forms.

use super::*;
use crate::simulate::model::PACKET_BYTES;

/// Bytes per segment, and segments per message.
const SEGMENT: u64 = 4096;
const SEGMENTS: u64 = 4;

/// Time of a segment on the processor at each end, and at the port.
const WORK_PS: u64 = 100 * SEGMENT;
const PORT_PS: u64 = 80 * SEGMENT;

const ALPHA_PS: u64 = 5_000_000;
const OVERHEAD_PS: u64 = 300_000;
const WAKE_PS: u64 = 2_000_000;
const SWITCH_PS: u64 = 700_000;

/// Returns a call in which the root sends one message of several segments to the other rank.
fn message() -> Scenario {
    let mut scenario = Scenario {
        collective: Collective::Broadcast,
        algorithm: Some(Method::Flat),
        ranks: 2,
        bytes: SEGMENTS * SEGMENT,
        ..Scenario::default()
    };
    scenario.network.links.work_ps_per_byte = 100;
    scenario
}

#[test]
fn a_processor_moves_every_byte_at_both_ends() {
    let due = SEGMENTS * (2 * WORK_PS + PORT_PS) + ALPHA_PS;
    assert_eq!(time_ps(&message()), due);
}

#[test]
fn segments_are_sent_while_others_are_received() {
    let mut scenario = message();
    scenario.network.segment_bytes = Some(SEGMENT);
    let due = SEGMENTS * WORK_PS + PORT_PS + ALPHA_PS + WORK_PS;
    assert_eq!(time_ps(&scenario), due);
}

#[test]
fn a_stream_that_is_full_waits_for_its_receiver() {
    let mut scenario = message();
    scenario.network.segment_bytes = Some(SEGMENT);
    let one = 2 * WORK_PS + PORT_PS + ALPHA_PS;
    for (window, due) in [
        (SEGMENT, SEGMENTS * one),
        // A segment larger than the window goes alone.
        (64, SEGMENTS * one),
        (2 * SEGMENT, SEGMENTS / 2 * one + WORK_PS),
        (SEGMENTS * SEGMENT, one + (SEGMENTS - 1) * WORK_PS),
    ] {
        scenario.network.links.window_bytes = Some(window);
        assert_eq!(time_ps(&scenario), due, "{window}");
    }
}

#[test]
fn a_rank_that_waits_for_longer_than_it_spins_has_to_wake() {
    let mut scenario = message();
    scenario.network.links.work_ps_per_byte = 0;
    scenario.network.links.overhead_ps = OVERHEAD_PS;
    scenario.compute.wake_ps = WAKE_PS;
    let awake = 2 * OVERHEAD_PS + ALPHA_PS + SEGMENTS * PORT_PS;
    for (spin_ps, due) in [(0, awake + WAKE_PS), (awake, awake)] {
        scenario.compute.spin_ps = spin_ps;
        assert_eq!(time_ps(&scenario), due, "{spin_ps}");
    }
}

#[test]
fn ranks_of_one_core_take_turns() {
    let mut scenario = Scenario {
        collective: Collective::AllReduce,
        algorithm: Some(Method::RecursiveDoubling),
        ranks: 2,
        compute: Compute {
            switch_ps: SWITCH_PS,
            server: Server::Serial,
            ..Compute::FREE
        },
        ..Scenario::default()
    };
    scenario.network.links = Links {
        alpha_ps: 0,
        ps_per_byte: 0,
        overhead_ps: OVERHEAD_PS,
        ..Links::default()
    };
    scenario.network.cores_per_host = Some(1);
    // Each rank has a host of its own, with a core.
    assert_eq!(time_ps(&scenario), 2 * OVERHEAD_PS);
    // On one machine: one rank sends; the other sends and receives; the first receives. Each rank
    // keeps the core until its engine has seen that there is nothing more to do.
    scenario.network.hosts_per_machine = 2;
    for spin_ps in [0, 1_000_000_000] {
        scenario.compute.spin_ps = spin_ps;
        let due = 4 * OVERHEAD_PS + 2 * (SWITCH_PS + 1);
        assert_eq!(time_ps(&scenario), due, "{spin_ps}");
    }
}

#[test]
fn ranks_that_share_cores_make_few_attempts_and_have_turns_between_them() {
    let network = Network {
        hosts_per_machine: 2,
        ranks_per_host: 2,
        cores_per_host: Some(2),
        ..Network::default()
    };
    let compute = Compute {
        spin_ps: 5 * 1000,
        switch_ps: 10,
        ..Compute::FREE
    };
    assert_eq!(network.polling_ps(&compute, 2), 5 * 1000);
    assert_eq!(network.polling_ps(&compute, 3), 2 * (1000 + 10 * 10));
    assert_eq!(network.polling_ps(&compute, 4), 2 * (1000 + 10 * 10));
}

#[test]
fn calls_of_ranks_that_share_cores_are_chosen_as_theirs() {
    let chosen = |cores_per_host| {
        let mut scenario = Scenario {
            collective: Collective::Barrier,
            algorithm: None,
            ranks: 8,
            bytes: 0,
            ..Scenario::default()
        };
        scenario.network.ranks_per_host = 4;
        scenario.network.hosts_per_machine = 2;
        scenario.network.cores_per_host = cores_per_host;
        resolve(&scenario).unwrap().algorithm
    };
    assert_eq!(chosen(Some(2)), Some(Method::Leader));
    assert_ne!(chosen(None), Some(Method::Leader));
}

#[test]
fn a_message_of_several_packets_costs_both_ends_more() {
    let time = |bytes, packets_ps| {
        let mut scenario = message();
        scenario.bytes = bytes;
        scenario.network.links.packets_ps = packets_ps;
        time_ps(&scenario)
    };
    let one = PACKET_BYTES;
    assert_eq!(time(one, 7000), time(one, 0));
    assert_eq!(time(one + 4, 7000), time(one + 4, 0) + 2 * 7000);
}

#[test]
fn a_message_costs_more_where_ranks_outnumber_cores() {
    let time = |cores_per_host, crowded_ps| {
        let mut scenario = message();
        scenario.network.hosts_per_machine = 2;
        scenario.network.cores_per_host = Some(cores_per_host);
        scenario.network.links.crowded_ps = crowded_ps;
        scenario.network.links.overhead_ps = 5000;
        time_ps(&scenario)
    };
    let without = time(1, None);
    assert_eq!(time(1, Some(8000)), without + 2 * 3000);
    assert_eq!(time(2, Some(8000)), time(2, None));
}

#[test]
fn bytes_that_no_cache_holds_cost_more() {
    const MISS_PS: u64 = 40;
    let bytes = SEGMENTS * SEGMENT;
    let mut scenario = message();
    scenario.compute.miss_ps_per_byte = MISS_PS;
    let without = time_ps(&scenario);
    // The footprint is three times the size on each of two hosts, each of which is a machine.
    let held = 3 * bytes;
    for (cache_bytes, missing) in [
        (2 * held, 0),
        (held * 4 / 3, bytes / 2),
        (held, bytes),
        (1, bytes),
    ] {
        scenario.network.cache_bytes = Some(cache_bytes);
        let due = without + 2 * missing * MISS_PS;
        assert_eq!(time_ps(&scenario), due, "{cache_bytes}");
    }
    // Of the ranks of a machine, only those that run at one time count.
    scenario.network.hosts_per_machine = 2;
    scenario.network.cache_bytes = Some(2 * held);
    assert_eq!(time_ps(&scenario), without + 2 * bytes * MISS_PS);
    scenario.network.cores_per_host = Some(1);
    assert_eq!(time_ps(&scenario), without);
    // A cell of a ring was just written when it is read.
    scenario.network.ranks_per_host = 2;
    scenario.network.local = Some(scenario.network.links);
    scenario.network.cache_bytes = Some(1);
    assert_eq!(time_ps(&scenario), without + bytes * MISS_PS);
}

#[test]
fn barriers_let_ranks_begin_as_they_come_out_of_them() {
    let mut scenario = message();
    scenario.network.links = Links {
        alpha_ps: ALPHA_PS,
        ps_per_byte: 0,
        ..Links::default()
    };
    let alone = run(&scenario).unwrap();
    scenario.has_barriers = true;
    let report = run(&scenario).unwrap();
    assert!(report.is_clean());
    // The root is done when it has sent, so its peer enters the barrier later, and leaves it first.
    let times = |report: &Report| [0, 1].map(|rank| report.ranks[rank].finished_ps);
    assert_eq!(times(&alone), [0, ALPHA_PS]);
    assert_eq!(times(&report), [0, 2 * ALPHA_PS]);
    let sent = |report: &Report| report.ranks[0].sent_messages;
    assert_eq!((sent(&alone), sent(&report)), (1, 1));
    // The peer waits for the message, and before that for the root to leave the barrier.
    let path = &report.critical_path;
    let (first, last) = (&path[0], &path[path.len() - 1]);
    assert_eq!((first.begin_ps, last.end_ps), (0, 2 * ALPHA_PS));
    scenario.disturbances = vec![Disturbance::Late {
        rank: 1,
        delay_ps: 1,
    }];
    let error = run(&scenario).unwrap_err().to_string();
    assert!(error.contains("leave out the barriers"), "{error}");
}

#[test]
fn what_threads_do_is_refused_where_ranks_are_none() {
    let mut scenario = message();
    scenario.network.segment_bytes = Some(SEGMENT);
    scenario.compute.server = Server::Parallel;
    let error = run(&scenario).unwrap_err().to_string();
    assert!(error.contains("parallel server"), "{error}");
    scenario.compute.server = Server::Serial;
    scenario.network.sending = Sending::Rendezvous;
    let error = run(&scenario).unwrap_err().to_string();
    assert!(error.contains("send eagerly"), "{error}");
}
