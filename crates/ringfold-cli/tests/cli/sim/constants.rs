//! `--constants`: links and processors as a calibration has them.

use std::path::Path;

use ringfold::internals::tune::calibration::{Calibration, LinkCosts};
use ringfold::internals::tune::{DeviceConstants, RdmaCosts};

use super::{Folder, sim, time_us};

/// A calibration of another machine, with these costs of links.
fn write(folder: &Folder, links: Option<LinkCosts>) -> String {
    let file = folder.file("links.toml");
    let calibration = Calibration {
        links,
        ..Calibration::default()
    };
    calibration
        .write(Path::new(&file), "another machine")
        .expect("written");
    file
}

/// One message between hosts, of 4 KiB.
const MESSAGE: &str = "broadcast --algorithm flat --ranks 2 --bytes 4K --slice-bytes whole";

#[test]
fn a_calibration_of_links_is_simulated() {
    let folder = Folder::new("constants");
    let links = LinkCosts {
        socket_alpha_us: 10.0,
        socket_overhead_us: 3.0,
        socket_crowded_us: 3.5,
        socket_packets_us: 1.0,
        socket_us_per_byte: 1e-3,
        socket_work_us_per_byte: 5e-4,
        ring_alpha_us: 1.0,
        ring_overhead_us: 0.5,
        ring_crowded_us: 0.75,
        ring_work_us_per_byte: 1e-4,
        cache_bytes: 8192.0,
        miss_us_per_byte: 2e-4,
        spin_us: 1000.0,
        ..LinkCosts::default()
    };
    let file = write(&folder, Some(links));
    let is_close = |time: f64, due: f64| assert!((time - due).abs() < 1e-6, "{time}, {due}");
    let between = time_us(&format!("{MESSAGE} --constants {file}"));
    // Two ranks, each with a cache that holds a half of three times the size.
    let work_us = 4096.0 * (5e-4 + 2e-4);
    is_close(between, 2.0 * (3.0 + 1.0 + work_us) + 10.0 + 4096.0 * 1e-3);
    let within = time_us(&format!("{MESSAGE} --constants {file} --ranks-per-host 2"));
    is_close(within, 2.0 * (0.5 + 4096.0 * 1e-4) + 4096.0 * 2e-4 + 1.0);
    let faster = time_us(&format!("{MESSAGE} --constants {file} --alpha 4us"));
    is_close(faster, between - 6.0);
    // Both ranks on one core, which goes from one to the other.
    let crowd =
        "--set cores_per_host=1 --set hosts_per_machine=2 --set switch_time=2us --set spin=1ms";
    let missed_us = 2.0 * 4096.0 * 2e-4;
    for (flags, end_us) in [
        ("", 3.5),
        ("--set overhead=5us", 5.0),
        ("--set crowded_overhead=6us", 6.0),
    ] {
        let crowded = time_us(&format!("{MESSAGE} --constants {file} {crowd} {flags}"));
        let end_us = end_us - 3.0;
        is_close(
            crowded - missed_us,
            between - missed_us + 2.0 * end_us + 2.0,
        );
    }
    // A rank that sleeps when its message comes.
    let asleep = time_us(&format!(
        "{MESSAGE} --constants {file} --set spin=1us --set wake=7us"
    ));
    is_close(asleep, between + 7.0);
}

#[test]
fn a_calibration_of_devices_is_simulated() {
    let folder = Folder::new("constants-devices");
    let file = folder.file("devices.toml");
    let devices = DeviceConstants {
        device_out_gbps: 10.0,
        device_in_gbps: 5.0,
        device_copy_us: 7.0,
        device_gap_us: 2.0,
        device_chain_us: 4.0,
        device_signal_us: 3.0,
        device_enqueue_us: 0.0,
        ..DeviceConstants::default()
    };
    let calibration = Calibration {
        devices: Some(devices),
        ..Calibration::default()
    };
    calibration
        .write(Path::new(&file), "another machine")
        .expect("written");
    const CALL: &str = "all_reduce --ranks 1 --bytes 100000 --algorithm direct";
    let is_close = |time: f64, due: f64| assert!((time - due).abs() < 1e-6, "{time}, {due}");
    // One slice: a chain with a copy each way, and three signals.
    let measured = time_us(&format!("{CALL} --constants {file} --device measured"));
    is_close(measured, 10.0 + 20.0 + 2.0 * (4.0 + 7.0) + 3.0 * 3.0);
    // A rate that is given is that of both directions.
    let faster = time_us(&format!("{CALL} --constants {file} --device 20GB/s"));
    is_close(faster, 2.0 * 5.0 + 2.0 * (4.0 + 7.0) + 3.0 * 3.0);
    let missing = sim(&format!("{CALL} --device measured"));
    assert_eq!(missing.status.code(), Some(2));
    assert!(missing.stderr.contains("--constants"), "{}", missing.stderr);
}

#[test]
fn a_calibration_of_one_host_is_refused() {
    let folder = Folder::new("constants-none");
    let file = write(&folder, None);
    let done = sim(&format!("{MESSAGE} --constants {file}"));
    assert_eq!(done.status.code(), Some(1));
    assert!(
        done.stderr.contains("says nothing of links"),
        "{}",
        done.stderr
    );
    assert!(
        done.stderr.contains("ringfold tune calibrate"),
        "{}",
        done.stderr
    );
}

/// One message between hosts, of more than 4 KiB.
const LONG: &str = "broadcast --algorithm flat --ranks 2 --bytes 10000 --slice-bytes whole";

#[test]
fn hosts_that_rdma_joins_have_its_costs() {
    let folder = Folder::new("constants-rdma");
    let file = folder.file("rdma.toml");
    let rdma = RdmaCosts {
        rdma_alpha_us: 1.0,
        rdma_overhead_us: 0.5,
        rdma_crowded_us: 0.5,
        rdma_us_per_byte: 1e-4,
        rdma_grant_us: 5.0,
        staging_us_per_byte: 2e-4,
    };
    let measured = Calibration {
        rdma: Some(rdma),
        ..Calibration::default()
    };
    measured
        .write(Path::new(&file), "another machine")
        .expect("written");
    let is_close = |time: f64, due: f64| assert!((time - due).abs() < 1e-6, "{time}, {due}");
    let sent_us = 1.0 + 10_000.0 * 1e-4;
    let given = format!("{LONG} --constants {file}");
    // What alone was measured is meant, and the grant comes later than the copy.
    is_close(
        time_us(&format!("{given} --set registered=true")),
        5.0 + sent_us + 0.5,
    );
    let copied_us = 2.0 * (0.5 + 10_000.0 * 2e-4) + sent_us;
    is_close(time_us(&format!("{given} --set grant=0us")), copied_us);
    is_close(time_us(&format!("{given} --fabric rdma")), copied_us + 2.5);
    // Without a measurement there are assumptions, and over sockets nothing waits for grants.
    let assumed = time_us(&format!("{LONG} --fabric rdma --set registered=true"));
    is_close(assumed, 2.0 + 1.4 + 10_000.0 * 8e-5 + 0.3);
    is_close(
        time_us(&format!("{given} --fabric sockets")),
        5.0 + 10_000.0 * 8e-5,
    );
}

#[test]
fn memory_is_registered_for_rdma_only() {
    let done = sim(&format!("{LONG} --set registered=true"));
    assert_eq!(done.status.code(), Some(2));
    assert!(done.stderr.contains("--fabric rdma"), "{}", done.stderr);
}
