//! `ringfold tune calibrate`: its file, and which rank reads it.

use std::path::Path;

use ringfold::internals::tune::calibration::{Calibration, LinkCosts, describe};
use ringfold::internals::tune::{Constants, DeviceConstants, RdmaCosts};
use rustix::process::Signal;

use super::{Folder, tune};
use crate::process::{Running, finish, ringfold};

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

/// A file of `ringfold perf --csv` on a machine of exactly these times.
fn rows(rows: &[(&str, u32, u64, f64)]) -> String {
    let mut text = "collective,algorithm,transport,ranks,bytes,median_us\n".to_owned();
    for (algorithm, ranks, bytes, us) in rows {
        text += &format!("all_reduce,{algorithm},tcp,{ranks},{bytes},{us}\n");
    }
    text
}

#[test]
fn constants_are_fitted_to_rows_of_exactly_these_constants() {
    let (alpha, beta, gamma) = (7.0, 1e-4, 4e-5);
    let mut table = Vec::new();
    for bytes in (10..=24).step_by(2).map(|power| 1u64 << power) {
        let size = bytes as f64;
        let ring = 6.0 * alpha + 1.5 * size * beta + 0.75 * size * gamma;
        table.push(("ring", 4, bytes, ring));
        let doubling = 3.0 * (alpha + size * (beta + gamma));
        table.push(("recursive_doubling", 8, bytes, doubling));
    }
    let folder = Folder::new("tune-rows");
    let file = folder.path("rows.csv");
    std::fs::write(&file, rows(&table)).unwrap();
    let done = tune(&["calibrate", "--rows", &file]);
    assert!(done.status.success(), "{}", done.stderr);
    let settings = "--set alpha=7us --set bandwidth=10GB/s --set reduce_rate=25GB/s";
    let due = format!("ringfold sim {settings}\n");
    assert!(done.stdout.ends_with(&due), "{}", done.stdout);
    assert!(done.stdout.contains("R² 1.000000"), "{}", done.stdout);
    // The printed line can be pasted, and gives the time again.
    let words = format!("sim --algorithm ring --slice-bytes whole --bytes 1M {settings} --csv -");
    let again = finish(&words.split(' ').collect::<Vec<_>>());
    assert!(
        again.stdout.contains(&format!("{:.3}", table[10].3)[..4]),
        "{}",
        again.stdout
    );
}

#[test]
fn rows_that_cannot_be_fitted_are_named() {
    let ring = |bytes: u64| ("ring", 4, bytes, 30.0 + 1.5e-4 * bytes as f64);
    let same = rows(&[ring(1024), ring(65536), ring(1 << 20)]);
    let on_devices = same.lines().enumerate().map(|(at, line)| match at {
        0 => format!("{line},limit_us\n"),
        _ => format!("{line},100\n"),
    });
    let folder = Folder::new("tune-rows-inseparable");
    let file = folder.path("rows.csv");
    for (text, status, words) in [
        (same.clone(), 0, "inseparable from β"),
        ("a,b\n1,2\n".into(), 1, "perf --csv"),
        (on_devices.collect(), 1, "data on devices"),
    ] {
        std::fs::write(&file, text).unwrap();
        let done = tune(&["calibrate", "--rows", &file]);
        assert_eq!(done.status.code(), Some(status), "{}", done.stderr);
        assert!((done.stdout + &done.stderr).contains(words));
    }
}
