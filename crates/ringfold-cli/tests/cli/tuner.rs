//! The tuner's variables, as processes meet them.

use crate::process::{Finished, Running, ringfold};

/// Two ranks that sum, with these variables; `odd` is what a shell does on rank 1 before.
fn job(variables: &[(&str, &str)], odd: &str, arguments: &str) -> Finished {
    let script = format!(
        "[ $RINGFOLD_RANK = 1 ] && {odd}; exec {} perf -b 64K -e 64K -n 2 -w 1 -c 1 {arguments}",
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
    let due =
        "RINGFOLD_TUNNER_CONFIG means nothing to ringfold; did you mean RINGFOLD_TUNER_CONFIG?";
    assert!(done.stderr.contains(due), "{}", done.stderr);
}

#[test]
fn ranks_with_different_channels_are_told_before_anything_hangs() {
    for transport in ["shm", "tcp"] {
        let arguments = format!("--transport {transport}");
        for odd in ["MIN_CHANNELS=2", "MAX_CHANNELS=3", "CHANNELS=2"] {
            let odd = format!("export RINGFOLD_{odd}");
            let done = job(&[("RINGFOLD_MAX_CHANNELS", "2")], &odd, &arguments);
            assert!(!done.status.success(), "{odd} over {transport}");
            let is_told = done.stderr.contains("1 to 2 channels on rank 0 and")
                && done.stderr.contains("on rank 1; set RINGFOLD_MIN_CHANNELS");
            assert!(is_told, "{}", done.stderr);
        }
    }
}

#[test]
fn impossible_channels_are_refused() {
    let bounds = [
        ("RINGFOLD_MIN_CHANNELS", "4"),
        ("RINGFOLD_MAX_CHANNELS", "2"),
    ];
    let done = job(&bounds, ":", "");
    assert!(!done.status.success());
    assert!(
        done.stderr.contains("4 to 2 channels are impossible"),
        "{}",
        done.stderr
    );
    let done = job(&[("RINGFOLD_CHANNELS", "65")], ":", "");
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
            "`tree` lacks its collective",
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
