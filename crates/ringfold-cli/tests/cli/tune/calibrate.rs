//! `ringfold tune calibrate`: its file, and which rank reads it.

use std::path::Path;

use ringfold::internals::tune::calibration::{Calibration, LinkCosts, describe};
use ringfold::internals::tune::{Constants, DeviceConstants, RdmaCosts};
use rustix::process::Signal;

use super::{Folder, tune};
use crate::process::{Running, ringfold};

/// What no default is.
const HOP_US: f64 = 1.2345;

fn calibration() -> Calibration {
    Calibration {
        constants: Constants {
            hop_us: HOP_US,
            ..Constants::default()
        },
        ..Calibration::default()
    }
}

/// The log of a job in which only rank `odd` has `file`.
fn job(odd: usize, file: &str) -> String {
    let script = format!(
        "[ $RINGFOLD_RANK = {odd} ] && export RINGFOLD_CALIBRATION={file}; \
         exec {} perf -b 1K -e 1K -n 1 -w 1 -c 1",
        env!("CARGO_BIN_EXE_ringfold")
    );
    let mut command = ringfold(&["run", "--ranks", "2", "--", "sh", "-c", &script]);
    command.env("RINGFOLD_CALIBRATION", "0");
    command.env("RINGFOLD_DEBUG", "TRACE");
    command.env("RINGFOLD_DEBUG_SUBSYS", "TUNING");
    command.env("RINGFOLD_TIMEOUT_MS", "20000");
    let done = Running::start(command).finish();
    assert!(done.status.success(), "{}{}", done.stdout, done.stderr);
    done.stdout + &done.stderr
}

#[test]
fn what_is_kept_is_shown_and_holds_where_rank_0_reads_it() {
    let folder = Folder::new("tune-calibrate");
    let file = folder.path("kept.toml");
    let machine = describe(Path::new("/"));
    calibration()
        .write(Path::new(&file), &machine)
        .expect("written");
    let shown = tune(&["calibrate", "--show", "--json", "--file", &file]);
    assert!(shown.status.success(), "{}", shown.stderr);
    assert!(
        shown.stdout.contains("\"hop_us\": 1.2345"),
        "{}",
        shown.stdout
    );
    let mark = format!("hop_us={HOP_US}");
    let text = job(0, &file);
    assert!(text.matches(&mark).count() >= 2, "{text}");
    let text = job(1, &file);
    assert!(!text.contains(&mark), "{text}");
}

#[test]
fn the_file_is_the_one_that_jobs_of_this_environment_read() {
    let folder = Folder::new("tune-calibrate-variable");
    let file = folder.path("kept.toml");
    calibration()
        .write(Path::new(&file), &describe(Path::new("/")))
        .expect("written");
    let mut command = ringfold(&["tune", "calibrate", "--show", "--json"]);
    command.env("RINGFOLD_CALIBRATION", &file);
    let shown = Running::start(command).finish();
    assert!(shown.status.success(), "{}", shown.stderr);
    assert!(
        shown.stdout.contains("\"hop_us\": 1.2345"),
        "{}",
        shown.stdout
    );
}

#[test]
fn a_calibration_from_elsewhere_is_told_of_and_not_taken() {
    let folder = Folder::new("tune-calibrate-elsewhere");
    let file = folder.path("kept.toml");
    calibration()
        .write(Path::new(&file), "another machine")
        .expect("written");
    let text = job(0, &file);
    assert!(text.contains("measured on `another machine`"), "{text}");
    assert!(!text.contains(&format!("hop_us={HOP_US}")), "{text}");
    let shown = tune(&["calibrate", "--show", "--file", &file]);
    assert_eq!(shown.status.code(), Some(1));
    assert!(shown.stderr.contains("another machine"), "{}", shown.stderr);
    let nothing = tune(&["calibrate", "--show", "--file", &folder.path("none.toml")]);
    assert_eq!(nothing.status.code(), Some(1));
}

#[test]
fn a_machine_that_is_not_calibrated_is_told_how_to_be() {
    let folder = Folder::new("tune-calibrate-none");
    let done = tune(&["calibrate", "--show", "--file", &folder.path("none.toml")]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        done.stderr.contains("this machine is not calibrated"),
        "{}",
        done.stderr
    );
    assert!(
        done.stderr.contains("`ringfold tune calibrate` makes it"),
        "{}",
        done.stderr
    );
}

#[test]
fn a_job_on_one_host_has_no_links_to_measure() {
    let folder = Folder::new("tune-calibrate-one-host");
    let file = folder.path("kept.toml");
    let program = env!("CARGO_BIN_EXE_ringfold");
    let words = [
        "run",
        "--ranks",
        "2",
        "--",
        program,
        "tune",
        "calibrate",
        "--file",
        &file,
    ];
    let done = Running::start(ringfold(&words)).finish();
    assert!(!done.status.success());
    assert!(
        done.stderr.contains("this job has one host"),
        "{}",
        done.stderr
    );
    assert!(!Path::new(&file).exists());
}

#[test]
fn what_was_measured_of_links_is_shown() {
    let folder = Folder::new("tune-calibrate-links");
    let file = folder.path("kept.toml");
    let links = LinkCosts {
        wake_us: 12.345,
        ..LinkCosts::default()
    };
    let kept = Calibration {
        links: Some(links),
        ..calibration()
    };
    kept.write(Path::new(&file), &describe(Path::new("/")))
        .expect("written");
    let json = tune(&["calibrate", "--show", "--json", "--file", &file]);
    assert!(
        json.stdout.contains("\"wake_us\": 12.345"),
        "{}",
        json.stdout
    );
    let text = tune(&["calibrate", "--show", "--file", &file]);
    assert!(text.stdout.contains("wake_us"), "{}", text.stdout);
}

#[test]
fn what_was_measured_over_rdma_is_shown() {
    let folder = Folder::new("tune-calibrate-rdma");
    let file = folder.path("kept.toml");
    let rdma = RdmaCosts {
        rdma_grant_us: 3.75,
        ..RdmaCosts::default()
    };
    let kept = Calibration {
        rdma: Some(rdma),
        ..calibration()
    };
    kept.write(Path::new(&file), &describe(Path::new("/")))
        .expect("written");
    let json = tune(&["calibrate", "--show", "--json", "--file", &file]).stdout;
    assert!(json.contains("\"rdma_grant_us\": 3.75"), "{json}");
    let text = tune(&["calibrate", "--show", "--file", &file]).stdout;
    assert!(text.contains("hosts that RDMA joins"), "{text}");
}

#[test]
fn what_is_known_or_assumed_of_devices_is_shown() {
    let folder = Folder::new("tune-calibrate-devices");
    let file = folder.path("kept.toml");
    let show = |devices| {
        let kept = Calibration {
            devices,
            ..calibration()
        };
        let machine = describe(Path::new("/"));
        kept.write(Path::new(&file), &machine).expect("written");
        tune(&["calibrate", "--show", "--file", &file]).stdout
    };
    let assumed = show(None);
    assert!(assumed.contains("assumed of devices"), "{assumed}");
    assert!(assumed.contains("device_out_gbps"), "{assumed}");
    let measured = show(Some(DeviceConstants {
        device_copy_us: 6.25,
        ..DeviceConstants::default()
    }));
    assert!(measured.contains("measured on devices"), "{measured}");
    assert!(measured.contains("6.2500e0"), "{measured}");
    let json = tune(&["calibrate", "--show", "--json", "--file", &file]).stdout;
    assert!(json.contains("\"device_copy_us\": 6.25"), "{json}");
}

#[test]
fn an_interrupted_calibration_keeps_nothing_and_says_so() {
    let folder = Folder::new("tune-calibrate-interrupted");
    let file = folder.path("kept.toml");
    let running = Running::start(ringfold(&["tune", "calibrate", "--file", &file]));
    // It listens to signals before it starts ranks.
    running.await_child();
    running.signal(Signal::INT);
    let done = running.finish();
    assert_eq!(done.status.code(), Some(130), "{}", done.stderr);
    assert_eq!(done.stderr, "ringfold: interrupted; nothing was kept\n");
    assert!(!std::path::Path::new(&file).exists());
}
