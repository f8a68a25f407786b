//! `ringfold perf --device` on the software driver: real ranks, with a device each or one for all.

use std::path::Path;
use std::process::Command;

use ringfold::internals::tune::DeviceConstants;
use ringfold::internals::tune::calibration::{Calibration, describe};

use crate::process::{Finished, Running, ringfold};

/// Sizes of less than a slot, of a few slots, and of more slots than there are.
const SIZES: &str = "-b 4 -e 1M -f 512 --slot-bytes 16K --slots 4";

fn perf(line: &str) -> Command {
    perf_of("2", line)
}

fn perf_of(ranks: &str, line: &str) -> Command {
    let arguments: Vec<_> = ["perf", "--ranks", ranks]
        .into_iter()
        .chain(line.split_whitespace())
        .collect();
    let mut command = ringfold(&arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SOFTCUDA_") {
            command.env_remove(name);
        }
    }
    // On a busy machine, long waits are no reason for a report.
    command.env("SOFTCUDA_REPORT_MS", "600000");
    command
}

fn done(command: Command) -> Finished {
    let done = Running::start(command).finish();
    assert!(done.status.success(), "{}{}", done.stdout, done.stderr);
    done
}

/// Returns the error of a command that must fail.
fn refusal(command: Command) -> String {
    let done = Running::start(command).finish();
    assert!(!done.status.success(), "{}", done.stdout);
    done.stderr
}

fn rows(table: &str) -> Vec<Vec<&str>> {
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| row.split_whitespace().collect()).collect()
}

#[test]
fn results_on_devices_are_exact_and_stand_beside_their_limit() {
    let (each, last) = (
        "# calls: the host waits for each before the next\n",
        "# calls: all are enqueued, and the host waits for the last\n",
    );
    for (line, calls) in [
        ("all_reduce -d bfloat16 -o avg", each),
        ("all_gather --blocking 1", each),
        ("reduce_scatter --threads", each),
        ("all_reduce --blocking 0 --transport tcp", last),
    ] {
        let done = done(perf(&format!("{line} --device soft -n 2 -c 2 {SIZES}")));
        let head = "# device: soft, 4 slots of 16384 bytes in each direction\n";
        assert!(done.stdout.contains(head), "{}", done.stdout);
        assert!(done.stdout.contains(calls), "{}", done.stdout);
        let rows = rows(&done.stdout);
        assert_eq!(rows.len(), 3, "{}", done.stdout);
        for row in &rows {
            // Out of place and in place: wrong elements, the limit, and the share of it.
            for at in [8, 14] {
                assert_eq!(row[at], "0", "{}", done.stdout);
                let number = |column: usize| row[column].parse::<f64>().expect("a number");
                assert!(number(at + 1) > 0.0, "{}", done.stdout);
                // On a busy machine the share may be rounded to zero.
                assert!(number(at + 2) >= 0.0, "{}", done.stdout);
            }
        }
        assert!(done.stdout.contains("# Out of bounds values : 0 OK"));
        assert_eq!(done.stderr, "");
    }
}

/// Writes a calibration with these devices; returns the file.
fn calibrated(name: &str, devices: DeviceConstants) -> String {
    let calibration = Calibration {
        devices: Some(devices),
        ..Calibration::default()
    };
    let text = calibration.text(&describe(Path::new("/")));
    let path = std::env::temp_dir().join(format!("ringfold-{name}-{}.toml", std::process::id()));
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("a path").to_owned()
}

/// Returns the text after the transport in the row of this size.
fn algorithm(table: &str, bytes: usize) -> &str {
    let size = bytes.to_string();
    let row = |line: &&str| line.split_whitespace().next() == Some(&size);
    let row = table.lines().find(row).expect("a row of this size");
    row.rsplit_once("shm").expect("a transport").1.trim()
}

#[test]
fn one_kernel_does_small_calls_of_ranks_with_a_device_each_where_the_model_says_so() {
    const LINE: &str = "all_reduce --device soft -n 1 -w 1 -c 1 -b 4K -e 1M -f 256";
    let file = calibrated("kernel", DeviceConstants::default());
    let log_with = |more: &str, file: &str| {
        let mut command = perf(&format!("{LINE} {more}"));
        command.envs([("RINGFOLD_DEBUG", "INFO"), ("RINGFOLD_CALIBRATION", file)]);
        command.env("SOFTCUDA_DEVICES", "2");
        let done = done(command);
        assert!(done.stdout.contains("# Out of bounds values : 0 OK"));
        done.stdout + &done.stderr
    };
    let log = |more: &str| log_with(more, &file);
    let text = log("");
    assert!(
        text.contains("all_reduce of 4096 bytes: one kernel"),
        "{text}"
    );
    assert!(text.contains("as measured") && text.contains("busiest of a slice"));
    assert_eq!(algorithm(&text, 4096), "one kernel");
    for more in ["--one-shot false", "--direct false"] {
        let text = log(more);
        assert!(!text.contains("one kernel;"), "{more}: {text}");
        assert_ne!(algorithm(&text, 4096), "one kernel", "{more}");
    }
    let _ = std::fs::remove_file(&file);
    // Assumed constants are no reason, but the flag is.
    assert_ne!(algorithm(&log_with("", "0"), 4096), "one kernel");
    let asked = log_with("--one-shot true", "0");
    assert!(asked.contains("assumed"), "{asked}");
    assert_eq!(algorithm(&asked, 4096), "one kernel");
}

/// More threads than cores, and more ranks.
#[test]
fn helpers_combine_slices_of_links_that_are_faster_than_a_thread() {
    let fast = DeviceConstants {
        device_out_gbps: 1e3,
        device_in_gbps: 1e3,
        ..DeviceConstants::default()
    };
    let file = calibrated("fast", fast);
    let mut command = perf_of("8", "-d bfloat16 -b 4M -e 4M -n 2 -c 1 --device soft:same");
    command.envs([
        ("RINGFOLD_DEBUG", "INFO"),
        ("RINGFOLD_CALIBRATION", &file),
        ("RINGFOLD_HELPERS", "3"),
    ]);
    let done = done(command);
    let _ = std::fs::remove_file(&file);
    assert!(done.stdout.contains("# Out of bounds values : 0 OK"));
    let text = done.stdout + &done.stderr;
    let said = text.matches("threads that combine a slice: 4").count();
    assert_eq!(said, 8, "{text}");
}

#[test]
fn ranks_take_the_devices_that_are_named() {
    let line = "reduce -r 1 -b 1K -e 1K -n 1 --device soft";
    let mut two = perf(&format!("{line}:1,0"));
    two.env("SOFTCUDA_DEVICES", "2");
    done(two);
    done(perf(&format!("{line}:same")));
    let text = refusal(perf(&format!("{line}:0,5")));
    assert!(
        text.contains("there is no device 5: this process sees 1"),
        "{text}"
    );
}

#[test]
fn ranks_that_are_threads_have_a_device_each_or_one_and_fail_together() {
    for devices in ["soft", "soft:same"] {
        let line = format!("--threads -b 4K -e 64K -f 16 -n 2 --device {devices}");
        let mut threads = perf(&line);
        threads.env("SOFTCUDA_DEVICES", "2");
        let done = done(threads);
        let of_rank = |line: &&str| line.starts_with("#  Rank");
        let pids = done.stdout.lines().filter(of_rank).map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words[words.iter().position(|word| *word == "Pid").expect("a pid") + 1]
        });
        let pids: Vec<&str> = pids.collect();
        assert!(pids.len() == 2 && pids[0] == pids[1], "{}", done.stdout);
        assert!(done.stdout.contains("# Out of bounds values : 0 OK"));
    }
    let text = refusal(perf("--threads --device soft:0,5 -b 8 -e 8"));
    assert!(text.contains("there is no device 5"), "{text}");
}

#[test]
fn files_have_the_columns_of_devices() {
    let line = "-b 8 -e 8 -n 2 --device soft";
    let csv = done(perf(&format!("{line} --csv -"))).stdout;
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 3, "{csv}");
    let last = |line: &[&str]| line[line.len() - 3..].join(",");
    assert_eq!(last(&lines[0]), "limit_us,of_limit_percent,blocking");
    assert!(lines[1..].iter().all(|line| line[line.len() - 1] == "1"));
    for line in &lines {
        assert_eq!(line.len(), lines[0].len(), "{csv}");
    }
    let json = done(perf(&format!("{line}:same --json -"))).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["config"]["device"], "soft:same");
    for placement in ["out_of_place", "in_place"] {
        let result = &json["results"][0][placement];
        assert_eq!(result["nwrong"], 0, "{json}");
        let number = |name: &str| result[name].as_f64().unwrap();
        let share = 100.0 * number("limit_us") / number("median_us");
        assert!((number("of_limit_percent") - share).abs() < 1e-6, "{json}");
    }
}

#[test]
fn what_a_device_needs_is_named_where_it_is_missing() {
    for devices in ["cuda", "soft"] {
        let mut command = perf(&format!("-b 8 -e 8 --device {devices}"));
        command.env("RINGFOLD_CUDA_LIBRARY", "libringfold-no-such-driver.so");
        let text = refusal(command);
        assert!(text.contains("libringfold-no-such-driver.so"), "{text}");
        assert!(text.contains("RINGFOLD_CUDA_LIBRARY"), "{text}");
    }
    for (line, word) in [
        ("barrier --device soft", "has no data on a device"),
        ("--device gpu", "cuda, hip or soft"),
        ("--weights 1,1 --device soft", "`--weights` is about"),
        ("--straggler tail --device soft", "`--straggler` is about"),
        ("--slow rank=1,delay=1ms --device soft", "`--slow` counts"),
        ("--reduce-time 1ms --device soft", "`--reduce-time` slows"),
        ("--late-rank 1 --device soft", "`--late-rank` is about"),
        ("--slots 2", "--device"),
        ("--device soft --slots 3 -b 8 -e 8", "1, 2, 4"),
    ] {
        let text = refusal(perf(line));
        assert!(text.contains(word), "{line}: {text}");
    }
}

/// The copies of the modelled link take eight seconds, and the deadline is two, so smaller
/// differences between ranks do not matter.
#[test]
fn a_device_that_hangs_ends_the_measurement() {
    let mut command = perf("-b 64K -e 64K --device soft -T 2s");
    command.env("SOFTCUDA_GBPS", "0.000008");
    let text = refusal(command);
    assert!(text.contains("has not done its copies within 2s"), "{text}");
    assert!(text.contains("--timeout"), "{text}");
}
