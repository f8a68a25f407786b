//! The closed forms of calls on devices against simulations of them.

use super::*;
use crate::tune::DeviceConstants;
use crate::tune::devices::one_shot;
use crate::tune::devices::pipeline::{Line, Pipeline, SLICE_BYTES_MIN, Shape};

const PS_PER_US: f64 = 1e6;

/// How far the forms may be from a simulation: they know nothing of the shorter last slice, ...
const TOLERANCE: f64 = 0.1;

/// ... and take it that both directions of a link are busy all the time, but for the first copy and
/// the last, which matters where they are slower then.
const DUPLEX_TOLERANCE: f64 = 0.25;

/// Where ranks share a link, the order of their copies decides who waits for whom.
const SHARED_TOLERANCE: f64 = 0.15;

/// By how much what the model chooses may be slower than the best of what can be chosen: one kernel
/// does only what takes nine tenths of the time, and the forms are not exact.
const CHOICE_TOLERANCE: f64 = 0.2;

/// A host that takes so long for each byte, in each of its calls.
const HOST_PS_PER_BYTE: [u64; 3] = [0, 20, 80];

/// Devices of all kinds: fast, slow in a direction, in both at once, with dear copies and calls.
fn kinds() -> Vec<DeviceConstants> {
    let usual = DeviceConstants::default();
    vec![
        usual,
        DeviceConstants {
            device_in_gbps: 12.5,
            device_duplex: 0.5,
            ..usual
        },
        DeviceConstants {
            device_copy_us: 40.0,
            device_signal_us: 0.0,
            ..usual
        },
        DeviceConstants {
            device_out_gbps: 50.0,
            device_in_gbps: 50.0,
            device_duplex: 0.8,
            device_enqueue_us: 4.0,
            ..usual
        },
    ]
}

/// One rank, whose host copies.
fn scenario(constants: &DeviceConstants, bytes: u64, slice_bytes: u64, host: u64) -> Scenario {
    let mut scenario = Scenario {
        ranks: 1,
        bytes,
        algorithm: Some(Method::Direct),
        payload: Payload::Hollow,
        devices: Some(Devices {
            slot_bytes: slice_bytes,
            slice_bytes: Some(slice_bytes),
            ..Devices::like(constants)
        }),
        ..Scenario::default()
    };
    scenario.compute = Compute {
        copy_ps_per_byte: host,
        server: Server::Serial,
        ..Compute::FREE
    };
    scenario
}

fn pipeline(scenario: &Scenario, constants: &DeviceConstants, host: Line) -> Pipeline {
    let devices = scenario.devices.as_ref().expect("devices");
    let shape = Shape {
        ranks: scenario.ranks,
        ranks_per_device: devices.ranks_per_device,
        depth: devices.depth,
    };
    Pipeline::new(scenario.collective, shape, constants, host)
}

fn tolerance(constants: &DeviceConstants) -> f64 {
    match constants.device_duplex < 1.0 {
        true => DUPLEX_TOLERANCE,
        false => TOLERANCE,
    }
}

/// Times by the form that are too far from simulated ones.
#[derive(Default)]
struct Misses(Vec<String>);

impl Misses {
    fn compare(&mut self, form_us: f64, simulated_ps: u64, tolerance: f64, what: &str) {
        let simulated_us = simulated_ps as f64 / PS_PER_US;
        if (form_us / simulated_us - 1.0).abs() > tolerance {
            let text = format!("{what}: {form_us} us by the form, {simulated_us} us simulated");
            self.0.push(text);
        }
    }

    fn check(self) {
        assert!(self.0.is_empty(), "{:#?}", self.0);
    }
}

#[test]
fn times_are_those_of_simulations() {
    let mut misses = Misses::default();
    for constants in kinds() {
        for host in HOST_PS_PER_BYTE {
            let line = Line {
                each_us: 0.0,
                us_per_byte: host as f64 / PS_PER_US,
            };
            for bytes in [64 << 10, 1 << 20, 8 << 20, 64 << 20] {
                for slice_bytes in [128 << 10, 512 << 10, 1 << 20] {
                    let scenario = scenario(&constants, bytes, slice_bytes, host);
                    let form = pipeline(&scenario, &constants, line);
                    let what = format!("{bytes} in {slice_bytes}, host {host}, {constants}");
                    let form_us = form.time_us(bytes, slice_bytes);
                    let simulated_ps = time_ps(&scenario);
                    misses.compare(form_us, simulated_ps, tolerance(&constants), &what);
                }
            }
        }
    }
    misses.check();
}

/// The length of slices that the form gives is as good as any, but for a little.
#[test]
fn slices_are_as_long_as_is_best() {
    const SLOT_BYTES: u64 = 4 << 20;
    let mut misses = Misses::default();
    for constants in kinds() {
        for host in HOST_PS_PER_BYTE {
            let line = Line {
                each_us: 0.0,
                us_per_byte: host as f64 / PS_PER_US,
            };
            for bytes in [256 << 10, 2 << 20, 16 << 20] {
                let of = |slice_bytes| scenario(&constants, bytes, slice_bytes, host);
                let form = pipeline(&of(SLOT_BYTES), &constants, line);
                let best = form.slice_bytes(bytes, SLOT_BYTES);
                let chosen_ps = time_ps(&of(best));
                let sizes = (17..=22).map(|log2| 1 << log2);
                let allowed = sizes.filter(|bytes| *bytes >= SLICE_BYTES_MIN);
                let others = allowed.map(|bytes| time_ps(&of(bytes)));
                let least_ps = others.min().expect("a size");
                let least_us = least_ps as f64 / PS_PER_US;
                if chosen_ps > least_ps {
                    let what = format!("{bytes}, host {host}, {constants}: slices of {best}");
                    misses.compare(least_us, chosen_ps, tolerance(&constants), &what);
                }
            }
        }
    }
    misses.check();
}

/// Ranks that combine: what a slice takes on the host is simulated without devices.
#[test]
fn times_of_ranks_that_combine_are_those_of_simulations() {
    let constants = DeviceConstants::default();
    let mut misses = Misses::default();
    for ranks in [2, 4, 8] {
        let of = |bytes, devices| {
            let mut scenario = Scenario {
                ranks,
                bytes,
                algorithm: Some(Method::Direct),
                payload: Payload::Hollow,
                devices,
                ..Scenario::default()
            };
            let links = &mut scenario.network.links;
            (links.alpha_ps, links.ps_per_byte) = (500_000, 10);
            scenario.compute.reduce_ps_per_byte = 100;
            scenario
        };
        let host_us = |bytes| (bytes, time_ps(&of(bytes, None)) as f64 / PS_PER_US);
        let host = Line::through([host_us(128 << 10), host_us(1 << 20)]);
        for bytes in [1 << 20, 32 << 20] {
            for slice_bytes in [256 << 10, 1 << 20] {
                let devices = Devices {
                    slot_bytes: slice_bytes,
                    slice_bytes: Some(slice_bytes),
                    ..Devices::like(&constants)
                };
                let scenario = of(bytes, Some(devices));
                let form_us = pipeline(&scenario, &constants, host).time_us(bytes, slice_bytes);
                let what = format!("{ranks} ranks, {bytes} in {slice_bytes}");
                misses.compare(form_us, time_ps(&scenario), TOLERANCE, &what);
            }
        }
    }
    misses.check();
}

#[test]
fn ranks_of_a_device_share_its_links() {
    let mut misses = Misses::default();
    let usual = DeviceConstants::default();
    let gaps_and_chains = DeviceConstants {
        device_copy_us: 2.2,
        device_chain_us: 45.0,
        ..usual
    };
    for constants in [usual, gaps_and_chains] {
        for (ranks, ranks_per_device) in [(1, 1), (2, 2), (4, 2), (4, 4)] {
            for slice_bytes in [128 << 10, 512 << 10, 2 << 20] {
                let mut scenario = scenario(&constants, 32 << 20, slice_bytes, 0);
                scenario.ranks = ranks;
                scenario.devices.as_mut().expect("devices").ranks_per_device = ranks_per_device;
                let links = &mut scenario.network.links;
                (links.alpha_ps, links.ps_per_byte) = (0, 0);
                let form = pipeline(&scenario, &constants, Line::default());
                let what = format!("{ranks_per_device} of {ranks}, {slice_bytes}, {constants}");
                let form_us = form.time_us(32 << 20, slice_bytes);
                misses.compare(form_us, time_ps(&scenario), SHARED_TOLERANCE, &what);
            }
        }
    }
    misses.check();
}

/// Ranks of one host with a device each, who combine so fast.
fn on_one_host(ranks: usize, bytes: u64, reduce_ps_per_byte: u64, devices: Devices) -> Scenario {
    let mut scenario = Scenario {
        ranks,
        bytes,
        algorithm: None,
        payload: Payload::Hollow,
        devices: Some(devices),
        ..Scenario::default()
    };
    scenario.network.ranks_per_host = ranks;
    let links = &mut scenario.network.links;
    (links.alpha_ps, links.ps_per_byte) = (500_000, 10);
    scenario.compute.reduce_ps_per_byte = reduce_ps_per_byte;
    scenario
}

#[test]
fn times_of_one_kernel_are_those_of_simulations() {
    let mut misses = Misses::default();
    let slow = DeviceConstants {
        device_out_gbps: 10.0,
        device_read_gbps: 4.0,
        device_launch_us: 20.0,
        device_flag_us: 7.0,
        ..DeviceConstants::default()
    };
    for constants in [DeviceConstants::default(), slow] {
        for (ranks, most) in [(2, 400_000), (4, 140_000), (8, 60_000)] {
            for bytes in [4, 4096, most] {
                let devices = Devices {
                    carried: Some(Carried::OneShot),
                    ..Devices::like(&constants)
                };
                let scenario = on_one_host(ranks, bytes, 25, devices);
                let form_us = one_shot::time_us(ranks, &constants, bytes);
                let what = format!("{ranks} ranks, {bytes}, {constants}");
                // Picoseconds for a byte are whole.
                misses.compare(form_us, time_ps(&scenario), 0.01, &what);
            }
        }
    }
    misses.check();
}

/// From a kilobyte to 64 MiB, on cores that keep up with links and on slow ones.
#[test]
fn what_the_model_chooses_is_about_as_fast_as_the_best_of_all() {
    let mut misses = Misses::default();
    for ranks in [2, 4] {
        for reduce_ps_per_byte in [25, 400] {
            for bytes in (10..=26).map(|log2| 1 << log2) {
                let of = |one_shot| {
                    let devices = Devices {
                        one_shot,
                        ..Devices::default()
                    };
                    time_ps(&on_one_host(ranks, bytes, reduce_ps_per_byte, devices))
                };
                let chosen_ps = of(None);
                let least_ps = of(Some(false)).min(of(Some(true)));
                if chosen_ps > least_ps {
                    let what = format!("{ranks} ranks, {bytes}, {reduce_ps_per_byte} ps a byte");
                    let least_us = least_ps as f64 / PS_PER_US;
                    misses.compare(least_us, chosen_ps, CHOICE_TOLERANCE, &what);
                }
            }
        }
    }
    misses.check();
}

/// An H200's link, measured, and a chain of so long.
fn h200(chain_us: f64) -> DeviceConstants {
    DeviceConstants {
        device_out_gbps: 55.0,
        device_in_gbps: 55.0,
        device_duplex: 0.92,
        device_copy_us: 2.2,
        device_gap_us: 3.3,
        device_chain_us: chain_us,
        device_signal_us: 4.0,
        device_enqueue_us: 1.75,
        ..DeviceConstants::default()
    }
}

/// Ranks of one host whose threads combine 20 GB/s of one operand.
fn of_an_h200(ranks: usize, bytes: u64, devices: Devices) -> Scenario {
    let mut scenario = on_one_host(ranks, bytes, 50, devices);
    let links = &mut scenario.network.links;
    (links.alpha_ps, links.ps_per_byte) = (1_500_000, 5);
    scenario
}

/// The part of its link's rate that an all_reduce of 64 MiB has whose sums are in place, where both
/// directions have their bytes at once.
fn part_of_link(ranks: usize, ranks_per_device: usize, constants: &DeviceConstants) -> f64 {
    let devices = Devices {
        ranks_per_device,
        ..Devices::like(constants)
    };
    let bytes = 64 << 20;
    let scenario = of_an_h200(ranks, bytes, devices);
    assert_eq!(scenario.carried(), (ranks > 1).then_some(Carried::Direct));
    let gbps = constants.device_out_gbps * constants.device_duplex / ranks_per_device as f64;
    let link_ps = bytes as f64 / gbps * 1e3;
    link_ps / time_ps(&scenario) as f64
}

#[test]
fn sums_in_place_have_the_rate_of_the_link() {
    for chain_us in [0.0, 45.0] {
        for ranks in [2, 4] {
            let part = part_of_link(ranks, ranks, &h200(chain_us));
            println!("{ranks} ranks on an H200, chains of {chain_us} us: {part:.3} of the link");
            assert!(
                part > 0.85,
                "{ranks} ranks, chains of {chain_us} us: {part}"
            );
        }
    }
    let pcie_4 = DeviceConstants {
        device_out_gbps: 22.0,
        device_in_gbps: 22.0,
        device_chain_us: 0.0,
        ..h200(0.0)
    };
    for ranks in [2, 4, 8] {
        let part = part_of_link(ranks, 1, &pcie_4);
        println!("{ranks} ranks with a device each: {part:.3} of the link");
        assert!(part > 0.9, "{ranks} ranks: {part}");
    }
}

/// One to four processes that share an H200 (`bench/results/2026-11-26-h200`, medians of all rows
/// of a size in place). A chain is fitted, not measured: what processes that share a device wait
/// for its engines. A host thread combines 20 GB/s, and copies 17.5 GB/s alone. It handled one
/// slice at a time then, so simulations are faster where its part matters.
#[test]
fn simulations_of_an_h200_are_near_its_measured_times() {
    const TOLERANCE: f64 = 0.25;
    for (ranks, mib, slice_bytes, chain_us, measured_us) in [
        (1, 64, 1 << 20, 0.0, 4031.0),
        (2, 4, 299_594, 45.0, 816.0),
        (2, 16, 399_458, 45.0, 2636.0),
        (2, 64, 798_916, 45.0, 6919.0),
        (4, 4, 131_072, 45.0, 1911.0),
        (4, 16, 131_072, 45.0, 7539.0),
        (4, 64, 131_072, 45.0, 31_662.0),
    ] {
        let devices = Devices {
            slot_bytes: 1 << 20,
            slice_bytes: Some(slice_bytes),
            ranks_per_device: ranks,
            // Its sums went through results.
            direct: false,
            ..Devices::like(&h200(chain_us))
        };
        let mut scenario = of_an_h200(ranks, mib << 20, devices);
        scenario.compute.copy_ps_per_byte = if ranks == 1 { 57 } else { 0 };
        let simulated_us = time_ps(&scenario) as f64 / PS_PER_US;
        assert!(
            (simulated_us / measured_us - 1.0).abs() < TOLERANCE,
            "{ranks} ranks, {mib} MiB: {measured_us} us measured, {simulated_us} us simulated"
        );
    }
}
