//! Checks every model against a closed form, and all of them together against the promises.

use super::*;
use crate::random::SplitMix64;
use crate::schedule::{Access, Schedule};
use crate::types::DType;

/// Bytes of a message in these tests.
const M: u64 = 1000;

/// Time of a message of [`M`] bytes at a port.
const PORT_PS: u64 = 80 * M;

const ALPHA_PS: u64 = 5_000_000;

/// Returns a call of one collective in one slice, in which computing is free.
fn call(collective: Collective, algorithm: Method, ranks: usize) -> Scenario {
    Scenario {
        collective,
        algorithm: Some(algorithm),
        ranks,
        bytes: M,
        compute: Compute::FREE,
        ..Scenario::default()
    }
}

/// Returns a call in which every rank sends to the next.
fn shift(ranks: usize) -> Scenario {
    call(Collective::SendRecv, Method::Direct, ranks)
}

#[test]
fn a_message_costs_its_overhead_at_both_ends() {
    for server in [Server::Serial, Server::Parallel] {
        let mut scenario = shift(2);
        scenario.network.links.overhead_ps = 300_000;
        scenario.compute.server = server;
        assert_eq!(time_ps(&scenario), 2 * 300_000 + ALPHA_PS + PORT_PS);
    }
}

#[test]
fn messages_of_one_rank_follow_each_other_by_overhead_or_gap() {
    // The root sends to five others.
    let time = |overhead_ps, gap_ps| {
        let mut scenario = call(Collective::Broadcast, Method::Flat, 6);
        scenario.network.links.overhead_ps = overhead_ps;
        scenario.network.links.gap_ps = gap_ps;
        time_ps(&scenario)
    };
    assert_eq!(time(0, 0), 5 * PORT_PS + ALPHA_PS);
    assert_eq!(time(0, 7_000), 5 * PORT_PS + 4 * 7_000 + ALPHA_PS);
    assert_eq!(time(300_000, 0), 5 * 300_000 + PORT_PS + ALPHA_PS + 300_000);
    assert_eq!(
        time(1_000, 7_000),
        1_000 + 5 * PORT_PS + 4 * 7_000 + ALPHA_PS + 1_000
    );
}

#[test]
fn a_half_duplex_port_sends_before_it_receives() {
    let time = |ports, alpha_ps| {
        let mut scenario = shift(2);
        scenario.network.ports = ports;
        scenario.network.links.alpha_ps = alpha_ps;
        time_ps(&scenario)
    };
    assert_eq!(time(Ports::Full, 0), PORT_PS);
    assert_eq!(time(Ports::Half, 0), 2 * PORT_PS);
    assert_eq!(time(Ports::Half, 2 * PORT_PS), 3 * PORT_PS);
}

#[test]
fn messages_within_a_host_pass_its_memory_one_after_the_other() {
    let mut scenario = shift(4);
    scenario.network.ranks_per_host = 4;
    scenario.network.local = Some(Links {
        alpha_ps: 200_000,
        ps_per_byte: 10,
        ..Links::default()
    });
    assert_eq!(time_ps(&scenario), 200_000 + 10 * M);
    scenario.network.memory_ps_per_byte = Some(25);
    assert_eq!(time_ps(&scenario), 200_000 + 4 * 25 * M);
    // With two hosts, two of the four messages stay within a host.
    scenario.network.ranks_per_host = 2;
    assert_eq!(time_ps(&scenario), ALPHA_PS + PORT_PS);
}

#[test]
fn reductions_wait_for_their_hosts_cores() {
    const REDUCE_PS: u64 = 700_000;
    let time = |cores, server| {
        let mut scenario = call(Collective::AllReduce, Method::RecursiveDoubling, 2);
        scenario.network.ranks_per_host = 2;
        scenario.network.cores_per_host = cores;
        scenario.compute.reduce_ps = REDUCE_PS;
        scenario.compute.server = server;
        time_ps(&scenario)
    };
    for server in [Server::Serial, Server::Parallel] {
        assert_eq!(time(None, server), ALPHA_PS + PORT_PS + REDUCE_PS);
        assert_eq!(time(Some(2), server), ALPHA_PS + PORT_PS + REDUCE_PS);
        assert_eq!(time(Some(1), server), ALPHA_PS + PORT_PS + 2 * REDUCE_PS);
    }
}

#[test]
fn a_reduction_costs_by_its_type() {
    let mut scenario = call(Collective::AllReduce, Method::RecursiveDoubling, 2);
    scenario.compute.reduce_ps_per_byte = 50;
    scenario.compute.reduce_ps_per_byte_of = vec![(DType::F16, 110)];
    assert_eq!(time_ps(&scenario), ALPHA_PS + PORT_PS + 50 * M);
    scenario.dtype = DType::F16;
    assert_eq!(time_ps(&scenario), ALPHA_PS + PORT_PS + 110 * M);
}

#[test]
fn copies_and_reductions_beside_messages_cost_time() {
    // A ring's all_gather copies this rank's own block, which nothing waits for.
    let mut scenario = call(Collective::AllGather, Method::Ring, 2);
    scenario.compute.copy_ps_per_byte = 100_000;
    assert_eq!(time_ps(&scenario), 500 * 100_000);
    // Direct: the copies of a rank's chunk are combined at once, when all have arrived.
    let mut scenario = call(Collective::ReduceScatter, Method::Direct, 4);
    scenario.bytes = 4 * M;
    scenario.compute.reduce_ps = 400_000;
    scenario.compute.server = Server::Serial;
    assert_eq!(time_ps(&scenario), ALPHA_PS + 3 * PORT_PS + 400_000);
}

#[test]
fn a_slow_port_slows_both_directions_and_no_other_messages() {
    let mut scenario = shift(2);
    let slow = |ends| Disturbance::SlowLink { ends, factor: 4.0 };
    scenario.disturbances = vec![slow(LinkEnds::Port(1))];
    assert_eq!(time_ps(&scenario), ALPHA_PS + 4 * PORT_PS);
    // Rank 1's piece arrives at rank 0 slowly; the others' arrive meanwhile.
    let mut gather = call(Collective::Gather, Method::Flat, 4);
    gather.bytes = 4 * M;
    assert_eq!(time_ps(&gather), ALPHA_PS + 3 * PORT_PS);
    gather.disturbances = vec![slow(LinkEnds::Port(1))];
    assert_eq!(time_ps(&gather), ALPHA_PS + 4 * PORT_PS);
    gather.disturbances = vec![slow(LinkEnds::Pair(1, 0))];
    assert_eq!(time_ps(&gather), ALPHA_PS + 4 * PORT_PS);
    gather.disturbances = vec![slow(LinkEnds::Pair(0, 1))];
    assert_eq!(time_ps(&gather), ALPHA_PS + 3 * PORT_PS);
}

fn switch(name: &str, ps_per_byte: u64, ranks: &[usize]) -> Switch {
    Switch {
        name: name.into(),
        ps_per_byte,
        ranks: ranks.into(),
    }
}

#[test]
fn messages_share_a_switch_evenly_and_max_min_fairly() {
    // Each of four ranks sends to the next: two messages stay on their side, one crosses each way.
    let mut scenario = shift(4);
    scenario.network.switches = vec![switch("uplink", 80, &[0, 1])];
    assert_eq!(time_ps(&scenario), ALPHA_PS + PORT_PS);
    scenario.network.switches = vec![switch("uplink", 320, &[0, 1])];
    assert_eq!(time_ps(&scenario), ALPHA_PS + 4 * PORT_PS);
    // Ranks 0 and 2 on one side: two cross out and two in, so each has half.
    scenario.network.switches = vec![switch("uplink", 80, &[0, 2])];
    assert_eq!(time_ps(&scenario), ALPHA_PS + 2 * PORT_PS);
    // 0 to 1 is limited to a quarter of the uplink by the other switch; 2 to 3 gets the remaining
    // three quarters.
    scenario.network.links.ps_per_byte = 1;
    scenario.network.switches = vec![switch("uplink", 96, &[0, 2]), switch("narrow", 384, &[1])];
    scenario.traces = true;
    let report = run(&scenario).unwrap();
    let sent_ps = |rank| {
        let own = |event: &&TraceEvent| event.rank == rank && event.lane == TimelineLane::Transmit;
        report.trace.iter().find(own).unwrap().end_ps
    };
    assert_eq!(sent_ps(0), 384 * M);
    assert_eq!(sent_ps(2), 128 * M);
}

#[test]
fn what_a_link_carried_is_counted() {
    let report = run(&call(Collective::AllReduce, Method::Ring, 4)).unwrap();
    assert_eq!(report.links.len(), 4);
    for link in &report.links {
        assert_eq!(link.to, (link.from + 1) % 4);
        assert_eq!(link.messages, 6);
        assert_eq!(link.busy_ps, 80 * link.bytes);
    }
    let bytes: u64 = report.links.iter().map(|link| link.bytes).sum();
    assert_eq!(bytes, 2 * 3 * M);
}

#[test]
fn the_blame_for_a_slow_reduction_is_its_ranks() {
    let mut scenario = paper(4, Server::Serial, &["rank=1,step=1,delay=50us"]);
    scenario.traces = true;
    let report = run(&scenario).unwrap();
    let slow = report
        .critical_path
        .iter()
        .find(|part| part.kind == PathKind::Slow)
        .unwrap();
    assert_eq!((slow.rank, slow.end_ps - slow.begin_ps), (1, 50_000_000));
    let most = report.blame_ps.iter().max().unwrap();
    assert_eq!(report.blame_ps[1], *most);
    let slow = report
        .trace
        .iter()
        .find(|event| event.lane == TimelineLane::Slow)
        .unwrap();
    assert_eq!((slow.rank, slow.begin_ps), (1, 5_655_360 + 3_000_000));
}

/// Makes the ranks threads, with random costs, on cores that outnumber them or not.
fn have_threads(scenario: &mut Scenario, random: &mut SplitMix64) {
    let (network, compute) = (&mut scenario.network, &mut scenario.compute);
    network.links.work_ps_per_byte = random.below(2) * 100;
    network.links.crowded_ps = random.happens(0.5).then(|| random.below(3_000_000));
    network.links.packets_ps = random.below(2) * 200_000;
    network.cache_bytes = random.happens(0.5).then(|| 1 + random.below(1 << 20));
    compute.miss_ps_per_byte = random.below(2) * 30;
    network.segment_bytes = random.happens(0.5).then(|| 64 * (1 + random.below(20)));
    network.links.window_bytes = random.happens(0.5).then(|| 64 * random.below(40));
    network.hosts_per_machine = 1 + random.index(3);
    compute.spin_ps = random.below(2) * 3_000_000;
    compute.wake_ps = random.below(2) * 2_000_000;
    compute.switch_ps = random.below(2) * 1_000_000;
}

/// Returns machines drawn at random.
fn any_machines(random: &mut SplitMix64, ranks: usize) -> Scenario {
    let mut scenario = Scenario {
        ranks,
        slice_bytes: Some([u64::MAX, 1024, 4096][random.index(3)]),
        ..Scenario::default()
    };
    let network = &mut scenario.network;
    network.links.overhead_ps = random.below(2) * 250_000;
    network.links.gap_ps = random.below(2) * 90_000;
    network.ranks_per_host = 1 + random.index(3);
    if random.happens(0.5) {
        network.sending = Sending::Rendezvous;
    }
    if random.happens(0.5) {
        network.local = Some(Links {
            alpha_ps: 300_000,
            ps_per_byte: 12,
            ..network.links
        });
        network.memory_ps_per_byte = Some(20);
    }
    if random.happens(0.3) {
        network.cores_per_host = Some(1 + random.index(2));
    }
    match random.below(3) {
        0 => network.ports = Ports::Half,
        1 => {
            network.switches = vec![
                switch("uplink", 150, &[0]),
                switch("spine", 60, &[0, ranks - 1]),
            ]
        }
        _ => {}
    }
    scenario.compute = Compute {
        reduce_ps: random.below(2) * 500_000,
        copy_ps_per_byte: random.below(2) * 30,
        server: [Server::Serial, Server::Parallel][random.index(2)],
        ..Compute::default()
    };
    let is_by_thread = scenario.compute.server == Server::Serial
        && scenario.network.sending == Sending::Eager
        && random.happens(0.5);
    if is_by_thread {
        have_threads(&mut scenario, random);
    }
    for _ in 0..random.below(3) {
        scenario
            .disturbances
            .push(any_disturbance(random, ranks as u64));
    }
    scenario
}

fn any_disturbance(random: &mut SplitMix64, ranks: u64) -> Disturbance {
    let rank = random.below(ranks) as usize;
    let at_ps = random.below(60_000_000);
    match random.below(4) {
        0 => Disturbance::Slow("rank=*,delay=exp(9us),p=0.3".parse().unwrap()),
        1 => Disturbance::Late {
            rank,
            delay_ps: at_ps,
        },
        2 => Disturbance::Stall {
            rank,
            from_ps: at_ps,
            until_ps: at_ps + 20_000_000,
        },
        _ => Disturbance::SlowLink {
            ends: LinkEnds::Port(rank),
            factor: 2.5,
        },
    }
}

#[test]
fn every_collective_is_right_on_every_machine() {
    const SEED: u64 = 20;
    let mut random = SplitMix64(SEED);
    let collectives = Collective::ALL.iter();
    for &collective in collectives.filter(|c| !matches!(c, Collective::Send | Collective::Recv)) {
        for algorithm in Schedule::methods(collective, Access::Messages) {
            for ranks in [1, 2, 3, 5, 8] {
                let mut scenario = any_machines(&mut random, ranks);
                let name = format!("{collective} by {algorithm}, seed {SEED}, {scenario:?}");
                (scenario.collective, scenario.algorithm) = (collective, Some(algorithm));
                scenario.bytes = random.below(20_000);
                scenario.root = random.index(ranks);
                match run(&scenario) {
                    Ok(report) => {
                        assert!(
                            report.is_clean(),
                            "{name}: {:?} {:?}",
                            report.promises,
                            report.ranks
                        );
                        check_path(&report);
                    }
                    Err(Error::Unsupported(_)) if !ranks.is_power_of_two() => {}
                    Err(error) => panic!("{name}: {error}"),
                }
            }
        }
    }
}

#[test]
fn every_death_is_told_on_every_machine() {
    const SEED: u64 = 33;
    let mut random = SplitMix64(SEED);
    for round in 0..100 {
        let ranks = 2 + random.index(7);
        let mut scenario = any_machines(&mut random, ranks);
        scenario.bytes = 20_000;
        scenario.disturbances.push(Disturbance::Dead {
            rank: random.index(ranks),
            at_ps: random.below(150_000_000),
        });
        let report = run(&scenario).unwrap();
        assert_eq!(
            report.promises,
            [],
            "seed {SEED}, round {round}, {scenario:?}"
        );
    }
}
