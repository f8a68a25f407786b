//! Calls with data on devices: results, closed forms, and how near the copies' own time they are.

use super::*;
use crate::types::DType;

/// 25 GB/s each way, 10 µs a copy in its stream, slots of 1 MiB, and nothing else that takes time
/// on the device's side.
fn devices() -> Devices {
    Devices {
        slot_bytes: 1 << 20,
        copy_ps: 10_000_000,
        gap_ps: 0,
        chain_ps: 0,
        signal_ps: 0,
        enqueue_ps: 0,
        ..Devices::default()
    }
}

/// Ranks of a host whose processors keep up with the links; slices are as long as slots.
fn call(ranks: usize, bytes: u64, devices: Devices) -> Scenario {
    let devices = Devices {
        slice_bytes: Some(devices.slot_bytes),
        ..devices
    };
    let mut scenario = Scenario {
        ranks,
        bytes,
        algorithm: Some(Method::Direct),
        devices: Some(devices),
        ..Scenario::default()
    };
    let links = &mut scenario.network.links;
    (links.alpha_ps, links.ps_per_byte) = (500_000, 10);
    scenario.compute.reduce_ps_per_byte = 25;
    scenario
}

/// Ranks whose processors and network take no time at all.
fn free_host(ranks: usize, bytes: u64, devices: Devices) -> Scenario {
    let mut scenario = call(ranks, bytes, devices);
    let links = &mut scenario.network.links;
    (links.alpha_ps, links.ps_per_byte) = (0, 0);
    scenario.compute = Compute::FREE;
    scenario
}

#[test]
fn large_calls_are_within_12_percent_of_the_copies_alone() {
    for ranks in [2, 4, 8] {
        let scenario = Scenario {
            payload: Payload::Hollow,
            ..call(ranks, 64 << 20, Devices::default())
        };
        let alone_ps = copies_alone_ps(&scenario).unwrap();
        // Both directions at the same time: 32 copies of 2 MiB one after the other.
        assert_eq!(alone_ps, 32 * ((80 << 20) + 5_000_000));
        let time_ps = time_ps(&scenario);
        assert!(time_ps > alone_ps, "{ranks} ranks: {time_ps} ps");
        let of_limit = alone_ps as f64 / time_ps as f64;
        assert!(of_limit >= 0.88, "{ranks} ranks: {of_limit} of the limit");
    }
}

#[test]
fn slices_are_as_long_as_the_cost_model_has_them() {
    let whole_slots = call(2, 2 << 20, Devices::default());
    let by_cost = Scenario {
        devices: Some(Devices::default()),
        ..whole_slots.clone()
    };
    let slices = |scenario: &Scenario| scenario.program(0).unwrap().places();
    assert!(slices(&by_cost) > slices(&whole_slots));
    let (by_cost_ps, whole_ps) = (time_ps(&by_cost), time_ps(&whole_slots));
    assert!(by_cost_ps < whole_ps, "{by_cost_ps} {whole_ps}");
}

#[test]
fn slices_overlap_as_far_as_slots_allow() {
    let slice_ps = (40 << 20) + 10_000_000;
    for (depth, due) in [
        // Each slice is brought when the one before was handled, and taken when it was: the last
        // ends one copy after it was brought.
        (1, 8 + 1),
        (2, 8 + 1),
        (4, 8 + 1),
    ] {
        let devices = Devices { depth, ..devices() };
        let scenario = free_host(2, 8 << 20, devices);
        assert_eq!(time_ps(&scenario), due * slice_ps, "depth {depth}");
    }
    // With a host that takes twice as long as a copy, and one slot, bringing and handling take
    // turns.
    let one_slot = Devices {
        depth: 1,
        ..devices()
    };
    let mut scenario = free_host(1, 8 << 20, one_slot);
    scenario.compute.copy_ps_per_byte = 80;
    scenario.compute.server = Server::Serial;
    let host_ps = 80 << 20;
    assert_eq!(time_ps(&scenario), 8 * (slice_ps + host_ps) + slice_ps);
    scenario.devices = call(1, 0, devices()).devices;
    assert_eq!(time_ps(&scenario), 8 * host_ps + 2 * slice_ps);
}

#[test]
fn words_and_enqueuing_take_their_time() {
    let slow = Devices {
        signal_ps: 3_000_000,
        enqueue_ps: 1_000_000,
        ..devices()
    };
    // One slice: a step is enqueued, the copy, the word, nothing on the host, the word, the copy,
    // the word.
    let copy_ps = (40 << 10) + 10_000_000;
    let due_ps = 3_000_000 + copy_ps + 2 * 3_000_000 + copy_ps + 3_000_000;
    assert_eq!(time_ps(&free_host(2, 1 << 10, slow)), due_ps);
}

#[test]
fn ranks_of_one_device_share_its_links() {
    let shared = Devices {
        ranks_per_device: 4,
        ..devices()
    };
    let own = free_host(4, 16 << 20, devices());
    let same = free_host(4, 16 << 20, shared);
    // The link carries the data of four ranks, one copy after the other.
    let data_ps = 4 * (40 * (16 << 20));
    let alone_ps = copies_alone_ps(&same).unwrap();
    assert_eq!(alone_ps, data_ps + 10_000_000);
    let (own_ps, same_ps) = (time_ps(&own), time_ps(&same));
    assert!(
        same_ps >= alone_ps && same_ps > 3 * own_ps,
        "{own_ps} {same_ps}"
    );
    assert!(
        alone_ps as f64 >= 0.9 * same_ps as f64,
        "{alone_ps} {same_ps}"
    );
}

/// A link whose copies have gaps never has its rate, however many ranks share it: what one of them
/// takes beside its bytes is not hidden by the others.
#[test]
fn gaps_between_copies_are_the_links() {
    for ranks in [1, 2, 4] {
        let with_gaps = Devices {
            copy_ps: 3_000_000,
            gap_ps: 3_000_000,
            ranks_per_device: ranks,
            ..devices()
        };
        let scenario = free_host(ranks, 16 << 20, with_gaps);
        let slice_ps = (40 << 20) + 3_000_000;
        let copies = 16 * ranks as u64;
        assert_eq!(copies_alone_ps(&scenario).unwrap(), copies * slice_ps);
        // The first slices come before, or the last behind, what else is on the link.
        let most_ps = (copies + 2 * ranks as u64) * slice_ps;
        let time_ps = time_ps(&scenario);
        assert!((copies * slice_ps..most_ps).contains(&time_ps), "{time_ps}");
    }
}

/// A chain holds its stream, and leaves the link to others.
#[test]
fn chains_are_the_streams() {
    let with_chains = Devices {
        copy_ps: 0,
        chain_ps: 100_000_000,
        ..devices()
    };
    let slice_ps = (40 << 20) + 100_000_000;
    let own = free_host(1, 16 << 20, with_chains.clone());
    assert_eq!(time_ps(&own), (16 + 1) * slice_ps);
    let shared = Devices {
        ranks_per_device: 2,
        ..with_chains
    };
    let shared_ps = time_ps(&free_host(2, 16 << 20, shared));
    assert!(shared_ps < (16 + 2) * slice_ps, "{shared_ps}");
    assert_eq!(copies_alone_ps(&own).unwrap(), 16 * (40 << 20));
}

#[test]
fn a_link_that_is_slower_both_ways_takes_longer() {
    let half = Devices {
        duplex: 0.5,
        copy_ps: 0,
        ..devices()
    };
    let scenario = free_host(2, 4 << 20, half);
    let slice_ps = 40 << 20;
    // The first is brought and the last taken alone, the other three pairs share.
    assert_eq!(time_ps(&scenario), slice_ps * (1 + 2 * 3 + 1));
    assert_eq!(copies_alone_ps(&scenario).unwrap(), 2 * 4 * slice_ps);
}

/// The data goes through slots and results that are used again: what is overwritten too early, or
/// cut wrongly, is a wrong result.
#[test]
fn every_collective_gives_its_result_in_slices() {
    use Collective::*;
    let collectives = [
        AllReduce,
        AllGather,
        ReduceScatter,
        AllToAll,
        Broadcast,
        Reduce,
        Gather,
        Scatter,
        SendRecv,
    ];
    for collective in collectives {
        for (ranks, depth) in [(1, 2), (2, 1), (3, 2), (4, 4)] {
            let small = Devices {
                slot_bytes: 4096,
                depth,
                ..Devices::default()
            };
            let scenario = Scenario {
                collective,
                algorithm: None,
                dtype: DType::I32,
                root: ranks - 1,
                ..call(ranks, 50_000, small)
            };
            if collective == SendRecv && ranks == 1 {
                continue;
            }
            assert!(time_ps(&scenario) > 0, "{collective} of {ranks} ranks");
        }
    }
}

/// Devices of one host read the slots of all ranks: results are the same, no rank fills a slot that
/// another still reads, and less goes up.
#[test]
fn devices_of_one_host_read_the_slots_of_all_ranks() {
    use Collective::*;
    for collective in [AllGather, AllToAll, Broadcast, Gather, Scatter] {
        for (ranks, depth) in [(2, 2), (3, 2), (4, 4)] {
            let direct = |direct| {
                let small = Devices {
                    slot_bytes: 4096,
                    depth,
                    direct,
                    ..devices()
                };
                let mut scenario = Scenario {
                    collective,
                    algorithm: None,
                    dtype: DType::I32,
                    root: ranks - 1,
                    ..free_host(ranks, 50_000, small)
                };
                scenario.network.ranks_per_host = ranks;
                time_ps(&scenario)
            };
            let (with, without) = (direct(true), direct(false));
            let name = format!("{collective} of {ranks} ranks, {depth} slots");
            assert!(with > 0 && with <= without, "{name}: {with} {without}");
        }
    }
    // What limits an all_gather is the way up: three blocks of four.
    let mut large = Scenario {
        collective: Collective::AllGather,
        algorithm: None,
        payload: Payload::Hollow,
        ..free_host(4, 64 << 20, devices())
    };
    large.network.ranks_per_host = 4;
    assert_eq!(
        copies_alone_ps(&large).unwrap(),
        16 * (40 * (3 << 20) + 3 * 10_000_000)
    );
    let of_limit = copies_alone_ps(&large).unwrap() as f64 / time_ps(&large) as f64;
    assert!(of_limit >= 0.9, "{of_limit} of the limit");
}

/// Ranks of one host that combine.
fn combined(ranks: usize, bytes: u64, devices: Devices) -> Scenario {
    let mut scenario = Scenario {
        algorithm: None,
        dtype: DType::I32,
        ..call(ranks, bytes, devices)
    };
    scenario.network.ranks_per_host = ranks;
    scenario
}

#[test]
fn one_kernel_does_small_calls() {
    let with_kernels = Devices {
        one_shot: Some(true),
        ..Devices::default()
    };
    for ranks in 2..=8 {
        for bytes in [4, 4000, 60_000] {
            let scenario = combined(ranks, bytes, with_kernels.clone());
            assert_eq!(scenario.carried(), Some(Carried::OneShot));
            let in_slices = Devices {
                one_shot: Some(false),
                ..with_kernels.clone()
            };
            let in_slices = combined(ranks, bytes, in_slices);
            assert_eq!(in_slices.carried(), Some(Carried::Direct));
            let is_faster = time_ps(&scenario) < time_ps(&in_slices);
            assert!(is_faster || bytes > 4000, "{ranks} {bytes}");
        }
    }
    let carried = |ranks, bytes, devices| combined(ranks, bytes, devices).carried();
    let of = |change: fn(&mut Devices)| {
        let mut changed = with_kernels.clone();
        change(&mut changed);
        carried(2, 4000, changed)
    };
    // A kernel would wait for one that cannot run; peers' rows are not reached; there is no memory.
    assert_eq!(of(|it| it.ranks_per_device = 2), Some(Carried::Direct));
    assert_eq!(of(|it| it.direct = false), Some(Carried::Host));
    assert_eq!(of(|it| it.slot_bytes = 4096), Some(Carried::Direct));
    assert_eq!(of(|it| it.one_shot = Some(false)), Some(Carried::Direct));
    let many = carried(9, 4000, with_kernels.clone());
    assert_eq!(many, Some(Carried::Direct));
    // One that is late holds the others up.
    let mut late = combined(2, 4000, with_kernels);
    late.disturbances = vec![Disturbance::Late {
        rank: 1,
        delay_ps: 1_000_000_000,
    }];
    assert!(time_ps(&late) > 1_000_000_000);
}

#[test]
fn a_late_rank_and_a_frozen_one_hold_the_others_up() {
    let scenario = call(4, 4 << 20, Devices::default());
    let alone_ps = copies_alone_ps(&scenario).unwrap();
    let late = Disturbance::Late {
        rank: 2,
        delay_ps: 1_000_000_000,
    };
    let frozen = Disturbance::Stall {
        rank: 1,
        from_ps: 60_000_000,
        until_ps: 2_000_000_000,
    };
    for (disturbance, at_least_ps) in [(late, 1_000_000_000 + alone_ps), (frozen, 2_000_000_000)] {
        let scenario = Scenario {
            disturbances: vec![disturbance],
            ..scenario.clone()
        };
        let report = run(&scenario).unwrap();
        assert!(report.is_clean(), "{:?}", report.promises);
        assert!(report.finished_ps >= at_least_ps, "{}", report.finished_ps);
    }
}

#[test]
fn timelines_show_the_copies_of_all_slices() {
    let scenario = Scenario {
        traces: true,
        ..call(2, 4 << 20, devices())
    };
    let report = run(&scenario).unwrap();
    for lane in [TimelineLane::Bring, TimelineLane::Take] {
        for rank in 0..2 {
            let own = report.trace.iter().filter(|event| event.rank == rank);
            let copies = own.filter(|event| event.lane == lane);
            let slices: Vec<(u32, u64)> = copies.map(|event| (event.slice, event.bytes)).collect();
            let due: Vec<_> = (0..4).map(|slice| (slice, 1 << 20)).collect();
            assert_eq!(slices, due, "{lane:?} of rank {rank}");
        }
    }
}

#[test]
fn what_devices_cannot_have_is_refused_by_name() {
    let of_slots = |slot_bytes, depth| Devices {
        slot_bytes,
        depth,
        ..devices()
    };
    let refuses = |scenario: Scenario, due: &str| {
        let error = run(&scenario).unwrap_err().to_string();
        assert!(error.contains(due), "{error}");
    };
    refuses(call(4, 1 << 20, of_slots(1 << 20, 3)), "3 slots");
    let all_gather = Scenario {
        collective: Collective::AllGather,
        ..call(4, 1 << 20, of_slots(8, 4))
    };
    refuses(all_gather, "hold no element");
    let dead = Disturbance::Dead { rank: 1, at_ps: 0 };
    let dies = Scenario {
        disturbances: vec![dead],
        ..call(4, 1 << 20, devices())
    };
    refuses(dies, "ranks that die");
    let nothing = Devices {
        duplex: 0.0,
        ..devices()
    };
    refuses(call(2, 1 << 20, nothing), "above 0");
}
