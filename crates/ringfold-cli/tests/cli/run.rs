//! `ringfold run`: output, variables, exit status, signals, and that nothing is left behind.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use rustix::process::Signal;

use crate::process::{Finished, Running, await_end, await_state, finish, ringfold};
use crate::skipped::skipped;

fn sorted_lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort();
    lines
}

/// Starts a job of two shells that print their process numbers and then wait.
fn waiting_job(script: &str) -> (Running, Vec<u32>) {
    let script = format!("{script} echo $$; while :; do sleep 0.05; done");
    let running = Running::start(ringfold(&[
        "run", "--ranks", "2", "--", "sh", "-c", &script,
    ]));
    let ids = (0..2)
        .map(|_| running.line().split_once(' ').unwrap().1.parse().unwrap())
        .collect();
    (running, ids)
}

#[test]
fn every_line_is_marked_with_its_rank() {
    let script = "echo out $RINGFOLD_RANK of $WORLD_SIZE; echo err $LOCAL_RANK >&2";
    let done = finish(&["run", "--ranks", "3", "--", "sh", "-c", script]);
    assert!(done.status.success());
    assert_eq!(
        sorted_lines(&done.stdout),
        ["[0] out 0 of 3", "[1] out 1 of 3", "[2] out 2 of 3"]
    );
    assert_eq!(
        sorted_lines(&done.stderr),
        ["[0] err 0", "[1] err 1", "[2] err 2"]
    );
}

#[test]
fn lines_stay_whole_when_they_are_written_in_pieces() {
    let script = "i=0; while [ $i -lt 50 ]; do printf a; printf b; printf 'c\\n'; i=$((i+1)); done";
    let done = finish(&["run", "--ranks", "4", "--", "sh", "-c", script]);
    assert_eq!(done.stdout.lines().count(), 200);
    assert!(done.stdout.lines().all(|line| line.ends_with("] abc")));
}

#[test]
fn no_prefix_leaves_the_output_alone() {
    let done = finish(&["run", "-n", "2", "--no-prefix", "--", "echo", "-n", "x"]);
    assert_eq!(done.stdout, "xx\n");
}

#[test]
fn the_variables_describe_one_job() {
    let script = "echo $RINGFOLD_ADDR $RINGFOLD_SECRET $MASTER_ADDR:$MASTER_PORT";
    let done = finish(&[
        "run",
        "--ranks",
        "2",
        "--no-prefix",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let lines: Vec<_> = done.stdout.lines().collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0], lines[1]);
    assert!(lines[0].starts_with("unix:@ringfold-"));
    assert!(lines[0].contains(" 127.0.0.1:"));
}

#[test]
fn only_rank_0_reads_standard_input() {
    let mut command = ringfold(&["run", "--ranks", "2", "--", "cat"]);
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"hello\n").unwrap();
    drop(writer);
    command.stdin(Stdio::from(reader));
    let done = Running::start(command).finish();
    assert_eq!(done.stdout, "[0] hello\n");
    assert!(done.status.success());
}

#[test]
fn the_first_failure_is_the_status_and_ends_the_others() {
    let script = "[ $RANK = 1 ] && exit 7; sleep 1000";
    let done = finish(&["run", "--ranks", "3", "--", "sh", "-c", script]);
    assert_eq!(done.status.code(), Some(7));
    assert!(
        done.stderr.contains("rank 1 ended with status 7"),
        "{}",
        done.stderr
    );
}

#[test]
fn a_rank_ended_by_a_signal_gives_128_more() {
    let script = "[ $RANK = 0 ] && kill -9 $$; sleep 1000";
    let done = finish(&["run", "--ranks", "2", "--", "sh", "-c", script]);
    assert_eq!(done.status.code(), Some(128 + 9));
    assert!(done.stderr.contains("SIGKILL"), "{}", done.stderr);
}

#[test]
fn a_program_that_does_not_exist_is_named() {
    let done = finish(&["run", "--ranks", "2", "--", "no-such-program"]);
    assert_eq!(done.status.code(), Some(127));
    assert!(
        done.stderr.contains("cannot start `no-such-program`"),
        "{}",
        done.stderr
    );
}

#[test]
fn a_file_that_is_no_program_is_named() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let done = finish(&["run", "--ranks", "2", "--", file]);
    assert_eq!(done.status.code(), Some(126), "{}", done.stderr);
    assert!(done.stderr.contains("cannot start"), "{}", done.stderr);
}

/// Runs a job in which rank `gone` succeeds without joining; the other ranks' deadline is beyond
/// the watchdog's.
fn without_one(gone: usize) -> Finished {
    let script = format!(r#"[ $RANK = {gone} ] && exit 0; exec "$0" perf -b 8 -e 8"#);
    let program = env!("CARGO_BIN_EXE_ringfold");
    let mut command = ringfold(&["run", "--ranks", "3", "--", "sh", "-c", &script, program]);
    command.env("RINGFOLD_CONNECT_TIMEOUT_MS", "600000");
    Running::start(command).finish()
}

#[test]
fn ranks_do_not_wait_for_one_that_ended_well_without_joining() {
    for gone in [0, 1] {
        let done = without_one(gone);
        assert_eq!(done.status.code(), Some(1), "{}", done.stderr);
        // The launcher reports the early end; whether other ranks report it, too, depends on the
        // order in which they join.
        let due = format!(
            "ringfold: the process of rank {gone} has ended, with status 0, before it joined"
        );
        assert!(done.stderr.contains(&due), "{}", done.stderr);
    }
}

#[test]
fn ranks_of_a_host_meet_without_a_loopback_interface() {
    let program = env!("CARGO_BIN_EXE_ringfold");
    // In a separate network namespace, where no interface is up.
    let alone = |words: &[&str]| {
        let mut command = ringfold(&[]);
        let mut inside = std::process::Command::new("unshare");
        inside
            .args(["--user", "--map-root-user", "--net", "--"])
            .args(words);
        inside.stdin(Stdio::null());
        for (name, value) in command
            .env("RINGFOLD_CONNECT_TIMEOUT_MS", "20000")
            .get_envs()
        {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    };
    if !alone(&["true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        return skipped("network namespaces are not allowed here");
    }
    let script = r#"echo "${MASTER_ADDR-none}"; exec "$0" perf -b 8 -e 8 -n 1 -w 0"#;
    let words = [
        program,
        "run",
        "--ranks",
        "2",
        "--no-prefix",
        "--",
        "sh",
        "-c",
        script,
        program,
    ];
    let done = Running::start(alone(&words)).finish();
    assert!(done.status.success(), "{}", done.stderr);
    assert!(done.stdout.contains("none"), "{}", done.stdout);
    assert!(
        done.stderr.contains("no loopback address is up"),
        "{}",
        done.stderr
    );
}

#[test]
fn sigusr1_reaches_every_rank() {
    let script = "trap 'echo caught; exit 0' USR1;";
    let (running, _) = waiting_job(script);
    running.signal(Signal::USR1);
    let done = running.finish();
    assert_eq!(
        sorted_lines(&done.stdout),
        ["[0] caught", "[1] caught"],
        "{}",
        done.stderr
    );
    assert!(done.status.success());
}

#[test]
fn sigint_ends_all_with_status_130() {
    let (running, ids) = waiting_job("");
    running.signal(Signal::INT);
    let done = running.finish();
    assert_eq!(done.status.code(), Some(130));
    ids.into_iter().for_each(await_end);
}

#[test]
fn a_stopped_launcher_stops_its_ranks_and_goes_on_with_them() {
    // One process without children: a shell that waits for a stopped child to start would not count
    // as stopped.
    let (running, ids) = waiting_job("echo $$; exec sleep 1000;");
    running.signal(Signal::TSTP);
    ids.iter().for_each(|&id| await_state(id, 'T'));
    running.signal(Signal::CONT);
    ids.iter().for_each(|&id| await_state(id, 'S'));
    running.signal(Signal::INT);
    assert_eq!(running.finish().status.code(), Some(130));
}

#[test]
fn what_ranks_have_started_ends_with_a_failed_job() {
    let script = "sleep 1000 & echo $!; [ $RANK = 1 ] && exit 3; wait";
    let running = Running::start(ringfold(&["run", "--ranks", "2", "--", "sh", "-c", script]));
    let started: Vec<u32> = (0..2)
        .map(|_| running.line().split_once(' ').unwrap().1.parse().unwrap())
        .collect();
    assert_eq!(running.finish().status.code(), Some(3));
    started.into_iter().for_each(await_end);
}

#[test]
fn ranks_that_ignore_sigterm_are_killed() {
    let (running, ids) = waiting_job("trap '' TERM;");
    let first = rustix::process::Pid::from_raw(ids[0] as i32).unwrap();
    rustix::process::kill_process(first, Signal::KILL).unwrap();
    assert_eq!(running.finish().status.code(), Some(128 + 9));
    ids.into_iter().for_each(await_end);
}

#[test]
fn ranks_die_with_a_killed_launcher() {
    let (running, ids) = waiting_job("");
    running.signal(Signal::KILL);
    assert_eq!(running.finish().status.signal(), Some(9));
    ids.into_iter().for_each(await_end);
}

/// Returns the cores that each rank may use, by rank.
fn affinities(arguments: &[&str], ranks: &str) -> Vec<String> {
    let status = ["--", "grep", "Cpus_allowed_list", "/proc/self/status"];
    let line = [&["run", "--ranks", ranks], arguments, &status].concat();
    let done = finish(&line);
    assert!(done.status.success(), "{}", done.stderr);
    let lists = sorted_lines(&done.stdout).into_iter();
    lists
        .map(|line| line.split_whitespace().last().unwrap_or("").to_owned())
        .collect()
}

#[test]
fn bound_ranks_have_cores_of_their_own_and_others_all() {
    let all = ringfold::internals::topology::cores::affinity();
    let own = ringfold::internals::topology::cores::format_list(&all);
    assert_eq!(
        affinities(&["--bind", "none"], "2"),
        [own.clone(), own.clone()]
    );
    if ringfold::internals::topology::cores::available() < 2 {
        skipped("one core: nothing to bind to");
        return;
    }
    let bound = affinities(&["--bind", "core"], "2");
    assert!(bound.iter().all(|list| *list != own), "{bound:?}");
    assert_ne!(bound[0], bound[1]);
}

#[test]
fn more_ranks_than_cores_are_bound_only_by_mistake() {
    let ranks = (ringfold::internals::topology::cores::affinity().len() + 1).to_string();
    let own = affinities(&[], &ranks);
    assert!(own.windows(2).all(|pair| pair[0] == pair[1]), "{own:?}");
    let done = finish(&["run", "--ranks", &ranks, "--bind", "core", "--", "true"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stderr.contains("use bind auto"), "{}", done.stderr);
}

#[test]
fn a_mistyped_binding_gets_a_suggestion() {
    let done = finish(&["run", "--bind", "cores", "--", "true"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(
        done.stderr.contains("did you mean core?"),
        "{}",
        done.stderr
    );
}
