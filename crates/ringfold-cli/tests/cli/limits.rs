//! Limits of the tuner: overridden, and the same on all ranks whatever each of them was told.

use crate::process::{Running, finish, ringfold};

/// A job of four ranks in which rank `odd` is told other limits than the rest. Counts below, above and between.
fn job(odd: usize) -> (bool, String) {
    let script = format!(
        "[ $RINGFOLD_RANK = {odd} ] && export RINGFOLD_LIMITS=one_shot_bytes_max=0,shared_slice_bytes=4K; \
         exec {} perf -b 1K -e 1M -f 8 -n 3 -w 1 -c 1",
        env!("CARGO_BIN_EXE_ringfold")
    );
    let mut command = ringfold(&["run", "--ranks", "4", "--", "sh", "-c", &script]);
    command.env("RINGFOLD_DEBUG", "INFO");
    command.env("RINGFOLD_DEBUG_SUBSYS", "TUNING");
    command.env("RINGFOLD_TIMEOUT_MS", "20000");
    let done = Running::start(command).finish();
    (done.status.success(), done.stdout + &done.stderr)
}

#[test]
fn what_rank_0_is_told_holds_for_all() {
    let (is_right, text) = job(0);
    assert!(is_right, "{text}");
    assert_eq!(text.matches(": one_shot_bytes_max=0,").count(), 4, "{text}");
    assert!(text.contains("slices of up to 4096 bytes"), "{text}");
    assert!(!text.contains("one_shot over"), "{text}");
}

#[test]
fn what_another_rank_is_told_does_not_matter() {
    let (is_right, text) = job(2);
    assert!(is_right, "{text}");
    assert!(!text.contains("one_shot_bytes_max=0,"), "{text}");
    assert!(text.contains("one_shot over"), "{text}");
}

#[test]
fn a_misspelt_limit_is_told_its_neighbour() {
    let mut command = ringfold(&["perf", "--ranks", "2"]);
    command.env("RINGFOLD_LIMITS", "one_shot_max=1");
    let done = Running::start(command).finish();
    assert!(!done.status.success());
    assert!(
        done.stderr.contains("did you mean one_shot_bytes_max?"),
        "{}",
        done.stderr
    );
}

#[test]
fn info_says_the_limits() {
    let done = finish(&["info", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let bytes = json["limits"]["one_shot_bytes_max"].as_str().unwrap();
    assert!(bytes.parse::<u64>().is_ok(), "{bytes}");
}
