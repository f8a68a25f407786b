//! `ringfold perf`: real ranks, their table and files, and the loss of a rank.

use std::fs::File;
use std::io::Read;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::process::{Finished, Running, await_end, finish, ringfold};

const CSV_HEADING: &str = "collective,algorithm,transport,ranks,bytes,count,dtype,op,in_place,\
    iterations,first_us,min_us,\
median_us,p99_us,max_us,algbw_gbps,busbw_gbps,wrong,low_us,high_us";

fn perf(line: &str) -> Finished {
    let arguments: Vec<_> = ["perf"]
        .into_iter()
        .chain(line.split_whitespace())
        .collect();
    finish(&arguments)
}

fn rows(table: &str) -> Vec<Vec<&str>> {
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| row.split_whitespace().collect()).collect()
}

/// Starts a measurement that runs until it is ended. Returns its ranks' process numbers, too.
fn endless(ranks: usize, timeout: &str) -> (Running, Vec<u32>) {
    endless_with(ranks, timeout, &[])
}

/// Like `endless`, with `more` arguments.
fn endless_with(ranks: usize, timeout: &str, more: &[&str]) -> (Running, Vec<u32>) {
    let ranks = ranks.to_string();
    let mut command = ringfold(&[
        "perf", "--ranks", &ranks, "-T", timeout, "-b", "8", "-e", "64K", "-f", "16", "-N", "0",
    ]);
    command.args(more);
    let running = Running::start(command);
    let mut ids = Vec::new();
    loop {
        let line = running.line();
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.get(1) == Some(&"Rank") {
            let at = words.iter().position(|word| *word == "Pid").unwrap() + 1;
            ids.push(words[at].parse().unwrap());
        } else if !line.starts_with('#') {
            // The ranks are measuring.
            return (running, ids);
        }
    }
}

#[test]
fn two_ranks_measure_and_nothing_is_wrong() {
    let done = perf("--ranks 2 -b 8 -e 64K -f 8 -n 5");
    assert!(done.status.success(), "{}", done.stderr);
    let rows = rows(&done.stdout);
    assert_eq!(rows.len(), 5);
    for row in &rows {
        assert_eq!((row[8], row[12]), ("0", "0"), "{row:?}");
    }
    assert!(done.stdout.contains("# Out of bounds values : 0 OK"));
    assert!(done.stdout.contains("# Avg bus bandwidth    : "));
    assert_eq!(done.stderr, "");
}

/// Real processes, with reductions that take 2 ms and sometimes more: whichever rank is bypassed,
/// the results are exact.
#[test]
fn a_slow_rank_is_gone_around_and_nothing_is_wrong() {
    for policy in ["next2", "tail"] {
        for transport in ["shm", "tcp"] {
            let done = perf(&format!(
                "--ranks 4 --transport {transport} --straggler {policy} -b 64K -e 1M -f 16 -n 6 \
                 --reduce-time 2ms \
                 --slow rank=1,step=*,delay=8ms,p=0.4"
            ));
            assert!(done.status.success(), "{}", done.stderr);
            let rows = rows(&done.stdout);
            assert_eq!(rows.len(), 2, "{}", done.stdout);
            for row in &rows {
                assert_eq!((row[8], row[12]), ("0", "0"), "{row:?}");
            }
            assert!(done.stdout.contains("# Out of bounds values : 0 OK"));
        }
    }
    let done = perf("--ranks 2 --straggler tale");
    assert!(
        done.stderr.contains("did you mean tail?"),
        "{}",
        done.stderr
    );
}

#[test]
fn the_header_tells_the_sizes_as_they_were_asked_for() {
    let done = perf("--ranks 2 -b 8 -e 100 -f 8 -n 1");
    assert!(
        done.stdout.contains(" minBytes 8 maxBytes 100 "),
        "{}",
        done.stdout
    );
    assert_eq!(rows(&done.stdout).len(), 2);
}

#[test]
fn the_header_tells_the_weights() {
    let line = "--ranks 2 -b 8 -e 8 -n 1 -w 0 --weights";
    let given = perf(&format!("{line} 3,1"));
    assert!(
        given.stdout.contains("# weights: 3,1\n"),
        "{}",
        given.stdout
    );
    // Calls of one host go through published memory, which weighted calls cannot use.
    let measured = perf(&format!("{line} auto"));
    let due = "# weights: none: measured, and calls with weights would not be faster\n";
    assert!(measured.stdout.contains(due), "{}", measured.stdout);
}

#[test]
fn the_log_tells_what_was_chosen_and_why_once() {
    let mut command = ringfold(&[
        "perf", "--ranks", "2", "-b", "8", "-e", "1M", "-f", "131072", "-n", "3",
    ]);
    // A probe makes calls of its own, whose ways depend on the load.
    command
        .env("RINGFOLD_DEBUG", "TRACE")
        .env("RINGFOLD_PROBE", "0");
    let done = Running::start(command).finish();
    assert!(done.status.success(), "{}", done.stderr);
    let said = |words: &str| {
        let is_said =
            |line: &&str| line.contains("DEBUG TUNING all_reduce") && line.contains(words);
        done.stderr.lines().filter(is_said).count()
    };
    // Every rank logs each choice once; that of direct also in place.
    assert_eq!(said("one_shot over published memory"), 2, "{}", done.stderr);
    assert_eq!(said("direct over published memory"), 4, "{}", done.stderr);
    assert_eq!(said("(requested)"), 0, "{}", done.stderr);
}

#[test]
fn the_log_for_reports_has_short_lines_and_one_for_each_choice() {
    let mut command = ringfold(&[
        "perf", "--ranks", "2", "-b", "8", "-e", "1M", "-f", "131072", "-n", "1", "-c", "0",
    ]);
    command.env("RINGFOLD_DEBUG", "INFO");
    let done = Running::start(command).finish();
    assert!(done.status.success(), "{}", done.stderr);
    let lines: Vec<&str> = done.stderr.lines().collect();
    // Without the prefix, which has the rank and the host's name.
    let text = |line: &&str| {
        line.split_once("] ")
            .map_or(line.len(), |(_, text)| text.len())
    };
    let longest = lines.iter().map(text).max();
    assert!(longest.is_some_and(|most| most <= 180), "{}", done.stderr);
    for unreadable in [
        "us_per_byte",
        "model:",
        " 0 calls",
        "1 domains",
        "1 hosts",
        " says",
    ] {
        assert!(!done.stderr.contains(unreadable), "{}", done.stderr);
    }
    let mut choices: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("choice:"))
        .collect();
    let count = choices.len();
    choices.sort_unstable();
    choices.dedup();
    assert!(count > 0 && count == choices.len(), "{}", done.stderr);
}

#[test]
fn more_ranks_than_cores_are_exact_too() {
    let done = perf("all_reduce --ranks 5 -b 4 -e 40K -f 100 -n 3 -d bfloat16");
    assert!(done.status.success(), "{}", done.stderr);
    assert!(
        rows(&done.stdout)
            .iter()
            .all(|row| row[8] == "0" && row[12] == "0")
    );
}

#[test]
fn registered_memory_is_as_exact_as_any() {
    for line in [
        "all_reduce --ranks 3 -R 1 -b 4 -e 4M -f 1024 -n 3 -c 2",
        "all_gather --ranks 2 -R 1 -b 64K -e 64K -n 2",
        "all_reduce --ranks 2 -R 1 -b 8 -e 64K -f 8192 -n 2 --transport tcp",
    ] {
        let done = perf(line);
        assert!(done.status.success(), "{line}: {}", done.stderr);
        for row in rows(&done.stdout) {
            assert_eq!((row[8], row[12]), ("0", "0"), "{line}: {row:?}");
        }
    }
}

#[test]
fn the_csv_has_exactly_the_promised_columns() {
    let done = perf("all-gather --ranks 2 -b 1K -e 1K -n 3 --csv -");
    assert!(done.status.success(), "{}", done.stderr);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0], CSV_HEADING);
    for (line, in_place) in lines[1..].iter().zip(["false", "true"]) {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), 20);
        assert_eq!(fields[0], "all_gather");
        assert_eq!(
            fields[3..10],
            ["2", "1024", "128", "float32", "none", in_place, "3"]
        );
        for time in &fields[10..17] {
            assert!(time.parse::<f64>().unwrap() >= 0.0);
        }
        assert_eq!(fields[17], "0");
    }
}

#[test]
fn the_json_holds_what_nccl_tests_would_write_and_no_secret() {
    let done = perf("--ranks 2 -b 1K -e 2K -n 3 -I --json -");
    assert!(done.status.success(), "{}", done.stderr);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(json["version"], 3);
    assert_eq!(json["config"]["ranks"], 2);
    assert_eq!(json["config"]["devices"].as_array().unwrap().len(), 2);
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    assert_eq!(results[1]["size"], 2048);
    for placement in ["out_of_place", "in_place"] {
        assert_eq!(results[0][placement]["nwrong"], 0);
        let times = &results[0][format!("{placement}_per_iter")]["times_us"];
        assert_eq!(times.as_array().unwrap().len(), 3);
    }
    assert_eq!(json["out_of_bounds"]["count"], 0);
    assert!(!done.stdout.contains("RINGFOLD_SECRET"));
}

#[test]
fn the_plot_is_drawn_beside_the_table() {
    let path = std::env::temp_dir().join(format!("ringfold-curve-{}.svg", std::process::id()));
    let done = finish(&[
        "perf",
        "--ranks",
        "2",
        "-e",
        "4K",
        "-f",
        "8",
        "-n",
        "2",
        "--plot",
        path.to_str().unwrap(),
    ]);
    let picture = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(done.status.success(), "{}", done.stderr);
    assert_eq!(rows(&done.stdout).len(), 4);
    assert!(picture.contains("all_reduce, 2 ranks") && picture.contains("in place"));
}

#[test]
fn every_algorithm_runs_by_name_on_every_transport() {
    let algorithms = [
        "flat",
        "ring",
        "tree",
        "recursive_doubling",
        "rabenseifner",
        "direct",
        "one_shot",
    ];
    for (algorithm, transport) in algorithms.iter().flat_map(|a| [(a, "shm"), (a, "tcp")]) {
        let done = perf(&format!(
            "--ranks 3 --algorithm {algorithm} --transport {transport} -b 4 -e 20K -f 5000 -n 1 \
             --csv -"
        ));
        assert!(
            done.status.success(),
            "{algorithm} {transport}: {}",
            done.stderr
        );
        let begin = format!("all_reduce,{algorithm},{transport},3,");
        assert_eq!(done.stdout.lines().count(), 5, "{}", done.stdout);
        for row in done.stdout.lines().skip(1) {
            let wrong = row.split(',').nth(17);
            assert!(row.starts_with(&begin) && wrong == Some("0"), "{row}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_written_fails_before_anything_is_measured() {
    let done = perf("--ranks 2 --csv /no/such/directory/rows.csv");
    assert_eq!(done.status.code(), Some(1));
    let due = "ringfold: cannot write `/no/such/directory/rows.csv`: ";
    assert!(done.stderr.starts_with(due), "{}", done.stderr);
    // Reported once, and not by each rank.
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    assert_eq!(done.stdout, "");
}

#[test]
fn a_reader_that_has_enough_ends_the_measurement_without_a_word() {
    // Rank 0 gets the error of the closed pipe; the other ranks end because rank 0 ends.
    let line = format!(
        "{} perf --ranks 3 -b 8 -e 1K -n 1 -w 0 -N 0 -T 60 | head -n 1",
        env!("CARGO_BIN_EXE_ringfold")
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &line]);
    let done = Running::start(command).finish();
    assert_eq!(done.stdout.lines().count(), 1, "{}", done.stdout);
    assert_eq!(done.stderr, "");
}

#[test]
fn more_than_the_memory_is_refused_before_it_is_tried() {
    let done = perf("--ranks 1000 -b 1G -e 1000G");
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stderr.contains("do not fit"), "{}", done.stderr);
}

#[test]
fn an_algorithm_that_does_not_serve_is_refused_once() {
    let done = perf("broadcast --ranks 3 --algorithm rabenseifner -e 8");
    assert_eq!(done.status.code(), Some(2));
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    assert!(done.stderr.contains("rabenseifner"), "{}", done.stderr);
}

#[test]
fn a_wrong_command_line_has_status_2() {
    for line in [
        "--ranks 0",
        "--ranks two",
        "-b 64 -e 16",
        "--maxbytes 1X",
        "broadcast --ranks 2 -r 2",
        "-g 2",
        "-o band -d float32",
        "barrier --device soft",
        "--csv - --json -",
    ] {
        let done = perf(line);
        assert_eq!(done.status.code(), Some(2), "{line}: {}", done.stderr);
        assert_eq!(done.stdout, "", "{line}");
    }
}

/// Runs the command with a terminal of so many columns as its standard output.
fn on_terminal(columns: u16, line: &str) -> Vec<String> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize {
        ws_row: 50,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&master, size).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = rustix::fs::open(name, flags, Mode::empty()).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut child = {
        let mut command = ringfold(&words);
        command.stdout(terminal).spawn().unwrap()
    };
    let mut text = Vec::new();
    // Fails once all processes have closed the terminal.
    let _ = File::from(master).read_to_end(&mut text);
    assert!(child.wait().unwrap().success());
    let text = String::from_utf8(text).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_table_fits_the_terminal() {
    for (columns, placements) in [(80, 1), (119, 1), (120, 2)] {
        let lines = on_terminal(columns, "perf --ranks 2 -b 4M -e 4M -n 1 -T 60");
        for line in &lines {
            assert!(line.chars().count() <= columns.into(), "{line}");
        }
        let text = lines.join("\n");
        assert_eq!(text.matches("busbw").count(), placements, "{text}");
        assert_eq!(rows(&text).len(), 1, "{text}");
    }
}

#[test]
fn under_run_perf_joins_the_job_it_is_in() {
    let command = env!("CARGO_BIN_EXE_ringfold");
    let done = finish(&[
        "run",
        "--ranks",
        "2",
        "--no-prefix",
        "--",
        command,
        "perf",
        "-e",
        "8",
        "-n",
        "2",
    ]);
    assert!(done.status.success(), "{}", done.stderr);
    assert!(done.stdout.contains("# ranks 2 "), "{}", done.stdout);
    assert_eq!(rows(&done.stdout).len(), 1);
}

#[test]
fn sigint_ends_every_rank_with_status_130() {
    let (running, ids) = endless(2, "60");
    running.signal(Signal::INT);
    assert_eq!(running.finish().status.code(), Some(130));
    assert_eq!(ids.len(), 2);
    ids.into_iter().for_each(await_end);
}

#[test]
fn a_killed_rank_ends_the_measurement_and_is_named() {
    for more in [&[][..], &["--device", "soft"]] {
        let (running, ids) = endless_with(3, "60", more);
        rustix::process::kill_process(Pid::from_raw(ids[1] as i32).unwrap(), Signal::KILL).unwrap();
        let done = running.finish();
        assert!(!done.status.success());
        assert!(done.stderr.contains("rank 1"), "{}", done.stderr);
        ids.into_iter().for_each(await_end);
    }
}

#[test]
fn a_frozen_rank_is_named_by_all_others() {
    let (running, ids) = endless(3, "2");
    let frozen = Pid::from_raw(ids[1] as i32).unwrap();
    rustix::process::kill_process(frozen, Signal::STOP).unwrap();
    let done = running.finish();
    assert_eq!(done.status.code(), Some(1), "{}", done.stderr);
    for survivor in ["rank 0: ", "rank 2: "] {
        let said = done.stderr.lines().find(|line| line.contains(survivor));
        assert!(
            said.is_some_and(|line| line.contains("waiting for rank 1")),
            "{}",
            done.stderr
        );
    }
    ids.into_iter().for_each(await_end);
}

#[test]
fn ranks_die_with_a_killed_launcher() {
    let (running, ids) = endless(2, "60");
    running.signal(Signal::KILL);
    running.finish();
    ids.into_iter().for_each(await_end);
}

#[test]
fn helped_calls_are_exact() {
    for line in [
        "all_reduce --ranks 2",
        "all_reduce --ranks 3 --algorithm ring",
        "all_gather --ranks 2",
    ] {
        let words = ["perf", "-b", "1M", "-e", "8M", "-f", "8", "-n", "2"];
        let words: Vec<&str> = words.into_iter().chain(line.split(' ')).collect();
        let mut command = ringfold(&words);
        command.env("RINGFOLD_HELPERS", "2");
        let done = Running::start(command).finish();
        assert!(done.status.success(), "{line}: {}", done.stderr);
        assert!(
            rows(&done.stdout)
                .iter()
                .all(|row| (row[8], row[12]) == ("0", "0")),
            "{line}"
        );
    }
}
