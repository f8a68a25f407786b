//! Limits of the tuner: overridden, and the same on all ranks whatever each rank's own setting.

use crate::process::{Running, finish, ringfold};
use crate::skipped::skipped;

/// Runs a job of four ranks in which rank `odd` has different limits. Counts are below, above and
/// between the limits.
fn job(odd: usize) -> (bool, String) {
    let script = format!(
        "[ $RINGFOLD_RANK = {odd} ] && export RINGFOLD_LIMITS=shared_slice_bytes=4K; \
         exec {} perf -b 1K -e 1M -f 8 -n 3 -w 1 -c 1",
        env!("CARGO_BIN_EXE_ringfold")
    );
    let mut command = ringfold(&["run", "--ranks", "4", "--", "sh", "-c", &script]);
    command.env("RINGFOLD_DEBUG", "TRACE");
    command.env("RINGFOLD_DEBUG_SUBSYS", "TUNING");
    command.env("RINGFOLD_TIMEOUT_MS", "20000");
    command.env("RINGFOLD_PROBE", "0");
    let done = Running::start(command).finish();
    (done.status.success(), done.stdout + &done.stderr)
}

#[test]
fn what_rank_0_is_told_holds_for_all() {
    let (is_right, text) = job(0);
    assert!(is_right, "{text}");
    assert_eq!(
        text.matches("shared_slice_bytes=4096,").count(),
        4,
        "{text}"
    );
    assert!(text.contains("slices of 4096 bytes"), "{text}");
}

#[test]
fn what_another_rank_is_told_does_not_matter() {
    let (is_right, text) = job(2);
    assert!(is_right, "{text}");
    assert!(!text.contains("shared_slice_bytes=4096,"), "{text}");
    assert!(!text.contains("slices of 4096 bytes"), "{text}");
}

#[test]
fn a_misspelt_limit_is_told_its_neighbour() {
    let mut command = ringfold(&["perf", "--ranks", "2"]);
    command.env("RINGFOLD_LIMITS", "shared_slices=64");
    let done = Running::start(command).finish();
    assert!(!done.status.success());
    assert!(
        done.stderr.contains("did you mean shared_slice_bytes?"),
        "{}",
        done.stderr
    );
}

#[test]
fn info_says_the_limits() {
    let done = finish(&["info", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let bytes = json["limits"]["shared_slice_bytes"].as_str().unwrap();
    assert!(bytes.parse::<u64>().is_ok(), "{bytes}");
}

/// Runs a job of two ranks that check their sums. Returns their tables after a probe.
fn probed(variables: &[(&str, &str)]) -> Vec<String> {
    let mut command = ringfold(&[
        "perf", "--ranks", "2", "-b", "8", "-e", "64K", "-f", "2", "-n", "2", "-c", "1",
    ]);
    command.env("RINGFOLD_DEBUG", "TRACE");
    command.env("RINGFOLD_DEBUG_SUBSYS", "TUNING");
    command.envs(variables.iter().copied());
    let done = Running::start(command).finish();
    assert!(done.status.success(), "{}", done.stderr);
    let lines = done.stderr.lines();
    lines
        .filter_map(|line| Some(line.split_once("constants after the probe: ")?.1.to_owned()))
        .collect()
}

#[test]
fn a_probe_ends_in_one_table() {
    let tables = probed(&[]);
    if std::thread::available_parallelism().unwrap().get() < 2 {
        assert!(tables.is_empty(), "{tables:?}");
        skipped("one core: no probe is made");
        return;
    }
    assert_eq!(tables.len(), 2, "{tables:?}");
    assert_eq!(tables[0], tables[1]);
}

#[test]
fn no_probe_is_made_where_somebody_insists_on_a_way() {
    let tables = probed(&[("RINGFOLD_ALGO", "direct")]);
    assert!(tables.is_empty(), "{tables:?}");
}

#[test]
fn no_probe_is_made_where_none_is_wanted() {
    let tables = probed(&[("RINGFOLD_PROBE", "0")]);
    assert!(tables.is_empty(), "{tables:?}");
}
