//! What processors do with messages, and what ranks that outnumber cores wait for, against closed
//! forms.

use super::*;

/// Bytes of a segment, and segments of a message.
const SEGMENT: u64 = 4096;
const SEGMENTS: u64 = 4;

/// What a segment costs the processor at each end, and at the port.
const WORK_PS: u64 = 100 * SEGMENT;
const PORT_PS: u64 = 80 * SEGMENT;

const ALPHA_PS: u64 = 5_000_000;
const OVERHEAD_PS: u64 = 300_000;
const WAKE_PS: u64 = 2_000_000;
const SWITCH_PS: u64 = 700_000;

/// The root sends one message of several segments to the other rank.
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
        // A segment that no window holds goes alone.
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
    // Each on a host of its own, with a core.
    assert_eq!(time_ps(&scenario), 2 * OVERHEAD_PS);
    // On one machine: one sends; the other sends and receives; the first receives. Each keeps the
    // core until its engine has seen that there is nothing more to do.
    scenario.network.hosts_per_machine = 2;
    assert_eq!(time_ps(&scenario), 4 * OVERHEAD_PS + 2 * (SWITCH_PS + 1));
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
