//! `ringfold tune sweep`: real ranks, their file, and the resumption of a sweep.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Folder, tune};
use crate::process::{Finished, Running, finish, ringfold};

/// Time after which a test has hung.
const WATCHDOG: Duration = Duration::from_secs(120);

fn sweep(line: &str, output: &str) -> Finished {
    let words = ["sweep", "-o", output].into_iter();
    let arguments: Vec<&str> = words.chain(line.split_whitespace()).collect();
    tune(&arguments)
}

/// Returns the fields of all rows, without the heading.
fn rows(path: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().skip(1);
    lines
        .map(|line| line.split(',').map(str::to_owned).collect())
        .collect()
}

const ASKED: usize = 11;
const ROUND: usize = 12;
const FIELDS: usize = 28;

#[test]
fn every_way_has_a_row_in_every_round_beside_the_defaults() {
    let folder = Folder::new("sweep");
    let csv = folder.path("sweep.csv");
    let line = "--ranks 2 -b 1K -e 16K -f 16 -n 2 --rounds 2 --give-up 1e9 -c 1";
    let done = sweep(line, &csv);
    assert!(done.status.success(), "{}", done.stderr);
    // A heading of two lines, and a line for each size.
    assert_eq!(done.stdout.lines().count(), 4, "{}", done.stdout);
    let all = rows(&csv);
    for bytes in ["1024", "16384"] {
        let at = |round: &str, asked: &str| -> Vec<Vec<String>> {
            let mut ways: Vec<Vec<String>> = all
                .iter()
                .filter(|row| row[1] == bytes && row[ROUND] == round && row[ASKED] == asked)
                .map(|row| row[2..5].to_vec())
                .collect();
            ways.sort();
            ways
        };
        assert_eq!(at("0", "default").len(), 1);
        assert_eq!(at("0", "default"), at("1", "default"));
        assert!(at("0", "way").len() > 3, "{all:?}");
        assert_eq!(at("0", "way"), at("1", "way"));
    }
    assert!(
        all.iter()
            .all(|row| row.len() == FIELDS && row[FIELDS - 1] == "0")
    );
    let rules = folder.path("tuned.csv");
    let done = tune(&["optimize", &csv, "-o", &rules, "--every-size"]);
    assert!(done.status.success(), "{}", done.stderr);
    // With the rules the default is one of the ways that were measured; the earlier file has
    // another default.
    let mut command = ringfold(&["tune", "sweep", "-o", &folder.path("tuned-sweep.csv")]);
    command
        .args(line.split_whitespace())
        .env("RINGFOLD_TUNER_CONFIG", &rules);
    let done = Running::start(command).finish();
    assert!(done.status.success(), "{}", done.stderr);
}

#[test]
fn what_was_measured_is_not_measured_again() {
    let folder = Folder::new("sweep-again");
    let csv = folder.path("sweep.csv");
    let line = "--ranks 2 -b 1K -e 1K -n 2 --rounds 2 --algorithms ring,tree --give-up 1e9";
    assert!(sweep(line, &csv).status.success());
    let whole = std::fs::read_to_string(&csv).unwrap();
    let count = rows(&csv).len();
    assert!(count >= 6, "{whole}");
    let done = sweep(line, &csv);
    assert!(
        done.stderr
            .contains(&format!("which has {count} measurements")),
        "{}",
        done.stderr
    );
    assert_eq!(std::fs::read_to_string(&csv).unwrap(), whole);
    // A partial line at the end, as after a power failure.
    std::fs::write(&csv, &whole[..whole.len() - 30]).unwrap();
    let done = sweep(line, &csv);
    assert!(
        done.stderr
            .contains(&format!("which has {} measurements", count - 1)),
        "{}",
        done.stderr
    );
    let kept = whole.trim_end().rfind('\n').unwrap();
    let text = std::fs::read_to_string(&csv).unwrap();
    assert!(
        text.starts_with(&whole[..kept]) && rows(&csv).len() == count,
        "{text}"
    );
    assert!(rows(&csv).iter().all(|row| row.len() == FIELDS));
    // A file with other content is not touched.
    let other = folder.write("other.csv", "a,b\n1,2\n");
    let done = sweep(line, &other);
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stderr.contains("--overwrite"), "{}", done.stderr);
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "a,b\n1,2\n");
}

#[test]
fn rows_of_a_default_of_two_minds_are_refused() {
    let folder = Folder::new("sweep-minds");
    let csv = folder.path("sweep.csv");
    let line = "--ranks 2 -b 1K -e 1K -n 2 --rounds 1 --algorithms ring";
    assert!(sweep(line, &csv).status.success());
    let rules = folder.write("rules.csv", "allreduce,0,-1,tree,simple,-1,-1,-1\n");
    let mut command = ringfold(&["tune", "sweep", "-o", &csv]);
    command
        .args(line.split_whitespace())
        .env("RINGFOLD_TUNER_CONFIG", &rules);
    let done = Running::start(command).finish();
    assert_eq!(done.status.code(), Some(1));
    assert!(
        done.stderr.contains("and now tree/simple"),
        "{}",
        done.stderr
    );
}

#[test]
fn an_interrupted_sweep_goes_on_where_it_was() {
    let folder = Folder::new("sweep-interrupted");
    let csv = folder.path("sweep.csv");
    let line = [
        "-o", &csv, "--ranks", "2", "-b", "1K", "-e", "1K", "-n", "20",
    ];
    let rounds = |rounds| [&["tune", "sweep"], &line[..], &["--rounds", rounds]].concat();
    let running = Running::start(ringfold(&rounds("1000")));
    let deadline = Instant::now() + WATCHDOG;
    while rows(&csv).len() < 3 {
        assert!(Instant::now() < deadline, "nothing is measured");
        std::thread::yield_now();
    }
    running.signal(Signal::INT);
    let done = running.finish();
    assert_eq!(done.status.code(), Some(128 + 2));
    assert!(
        done.stderr.contains("run the same command to resume"),
        "{}",
        done.stderr
    );
    let before = std::fs::read_to_string(&csv).unwrap();
    let done = finish(&rounds("2"));
    assert!(done.status.success(), "{}", done.stderr);
    let after = std::fs::read_to_string(&csv).unwrap();
    let kept = before.rfind('\n').unwrap();
    assert!(after.starts_with(&before[..kept]));
}

#[test]
fn ranks_of_another_launcher_sweep_together() {
    let folder = Folder::new("sweep-joined");
    let csv = folder.path("sweep.csv");
    let program = env!("CARGO_BIN_EXE_ringfold");
    let done = finish(&[
        "run",
        "--ranks",
        "3",
        "--",
        program,
        "tune",
        "sweep",
        "all_gather",
        "-b",
        "12K",
        "-e",
        "12K",
        "-n",
        "2",
        "--rounds",
        "1",
        "-o",
        &csv,
    ]);
    assert!(done.status.success(), "{}", done.stderr);
    assert!(
        rows(&csv)
            .iter()
            .all(|row| row[0] == "all_gather" && row[6] == "3")
    );
}
