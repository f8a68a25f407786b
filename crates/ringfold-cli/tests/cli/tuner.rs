//! The tuner's variables in real processes.

use crate::process::{Finished, Running, ringfold};

/// Runs two ranks that sum 64 KiB and 16 MiB with these variables; rank 1 first runs the shell
/// command `odd`.
fn job(variables: &[(&str, &str)], odd: &str, arguments: &str) -> Finished {
    let script = format!(
        "[ $RINGFOLD_RANK = 1 ] && {odd}; exec {} perf -b 64K -e 16M -f 256 -n 2 -w 1 -c 1 \
         {arguments}",
        env!("CARGO_BIN_EXE_ringfold")
    );
    let mut command = ringfold(&["run", "--ranks", "2", "--", "sh", "-c", &script]);
    command.env("RINGFOLD_TIMEOUT_MS", "20000");
    command.envs(variables.iter().copied());
    Running::start(command).finish()
}

#[test]
fn a_name_that_means_nothing_is_told_its_neighbour() {
    let done = job(&[("RINGFOLD_TUNNER_CONFIG", "x")], ":", "");
    assert!(done.status.success(), "{}", done.stderr);
    let due = "unknown variable RINGFOLD_TUNNER_CONFIG; did you mean RINGFOLD_TUNER_CONFIG?";
    // Reported once, not by every rank.
    assert_eq!(done.stderr.matches(due).count(), 1, "{}", done.stderr);
}

#[test]
fn ranks_with_different_channels_are_told_before_anything_hangs() {
    for transport in ["shm", "tcp"] {
        let arguments = format!("--transport {transport}");
        let odd = "export RINGFOLD_MAX_CHANNELS=3";
        let done = job(&[("RINGFOLD_MAX_CHANNELS", "2")], odd, &arguments);
        assert!(!done.status.success(), "over {transport}");
        let due = "different maximum of channels: `2` on rank 0 and `3` on rank 1";
        assert!(done.stderr.contains(due), "{}", done.stderr);
    }
}

#[test]
fn impossible_channels_are_refused() {
    let done = job(&[("RINGFOLD_MAX_CHANNELS", "65")], ":", "");
    assert!(!done.status.success());
    assert!(
        done.stderr.contains("must be a whole number, 1 to 64"),
        "{}",
        done.stderr
    );
}

#[test]
fn lists_that_mean_nothing_are_told_what_is_nearest() {
    let cases = [
        ("RINGFOLD_ALGO", "rnig", "did you mean `ring`?"),
        (
            "RINGFOLD_ALGO",
            "allreduce:ring;tree",
            "`tree` has no collective",
        ),
        ("RINGFOLD_PROTO", "^ll,simpel", "did you mean `simple`?"),
        ("RINGFOLD_PROTO", "alreduce:ll", "did you mean `allreduce`?"),
    ];
    for (name, value, due) in cases {
        let done = job(&[(name, value)], ":", "");
        assert!(!done.status.success(), "{name}={value}");
        assert!(
            done.stderr.contains(due) && done.stderr.contains(name),
            "{}",
            done.stderr
        );
    }
}

/// A file of rules, removed on drop.
struct Table(std::path::PathBuf);

impl Table {
    fn new(name: &str, text: &str) -> Table {
        let name = format!("ringfold-{name}-{}.csv", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).expect("a file for the test");
        Table(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a plain name")
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_bad_line_ends_all_ranks_with_its_line_and_column() {
    let table = Table::new(
        "bad",
        "# fine\nallreduce,0,9,ring,simple,-1,-1,-1\nallreduce,10,-1,rng,simple,-1,-1,-1\n",
    );
    let done = job(&[("RINGFOLD_TUNER_CONFIG", table.path())], ":", "");
    assert!(!done.status.success());
    let due = format!(
        "{}:3:17: `rng` is no algorithm; did you mean `ring`?",
        table.path()
    );
    assert!(done.stderr.contains(&due), "{}", done.stderr);
    let done = job(&[("RINGFOLD_TUNER_CONFIG", "/nowhere/rules.csv")], ":", "");
    assert!(!done.status.success());
    assert!(
        done.stderr.contains("`/nowhere/rules.csv`"),
        "{}",
        done.stderr
    );
}

#[test]
fn a_rule_decides_on_all_ranks_and_takes_channels_within_the_bounds() {
    let table = Table::new(
        "rules",
        "allreduce,0,-1,nvls,simple,-1,-1,-1\n\
         all_reduce,65536,-1,ring,simple,8,1,2 # the last bound holds\r\n",
    );
    for transport in ["shm", "tcp"] {
        let variables = [
            ("RINGFOLD_TUNER_CONFIG", table.path()),
            ("RINGFOLD_MAX_CHANNELS", "2"),
            ("RINGFOLD_DEBUG", "TRACE"),
            ("RINGFOLD_DEBUG_SUBSYS", "TUNING"),
        ];
        // Only rank 0's variable counts.
        let odd = "export RINGFOLD_TUNER_CONFIG=/nowhere";
        let done = job(&variables, odd, &format!("--transport {transport}"));
        assert!(done.status.success(), "{}", done.stderr);
        let is_due =
            |line: &&str| line.contains("ring over messages") && line.ends_with("channels: 2");
        let lines = done.stderr.lines().filter(is_due).count();
        assert!(lines >= 2, "{transport}: {}", done.stderr);
        assert!(
            done.stderr
                .contains("never applies: ringfold has no all_reduce by nvls,simple"),
            "{}",
            done.stderr
        );
    }
}

#[test]
fn calls_take_the_channels_that_their_size_keeps_busy_and_are_exact() {
    for transport in ["shm", "tcp"] {
        let variables = [
            ("RINGFOLD_MAX_CHANNELS", "3"),
            ("RINGFOLD_ALGO", "ring"),
            ("RINGFOLD_DEBUG", "TRACE"),
            ("RINGFOLD_DEBUG_SUBSYS", "TUNING"),
        ];
        let arguments = format!("--transport {transport}");
        let done = job(&variables, ":", &arguments);
        assert!(done.status.success(), "{}", done.stderr);
        for channels in [1, 3] {
            let due = format!("channels: {channels}");
            let is_due = |line: &str| line.contains("ring over messages") && line.ends_with(&due);
            assert!(
                done.stderr.lines().any(is_due),
                "{transport}, {due}: {}",
                done.stderr
            );
        }
    }
}

#[test]
fn a_list_for_one_collective_bars_its_other_ways() {
    let variables = [
        ("RINGFOLD_ALGO", "^push;AllReduce:ring"),
        ("RINGFOLD_DEBUG", "TRACE"),
        ("RINGFOLD_DEBUG_SUBSYS", "TUNING"),
    ];
    let done = job(&variables, ":", "");
    assert!(done.status.success(), "{}", done.stderr);
    assert!(
        done.stderr.contains("ring over messages"),
        "{}",
        done.stderr
    );
    let done = job(&[("RINGFOLD_ALGO", "allreduce:nvls")], ":", "");
    assert!(!done.status.success());
    assert!(
        done.stderr
            .contains("RINGFOLD_ALGO allows only `nvls` for all_reduce"),
        "{}",
        done.stderr
    );
}

#[test]
fn the_command_has_a_plugin_host() {
    let done = job(&[("RINGFOLD_TUNER_PLUGIN", "not-there")], ":", "");
    assert!(done.status.success(), "{}", done.stderr);
    let due = "libnccl-tuner-not-there.so";
    assert!(done.stderr.contains(due), "{}", done.stderr);
}
