//! `ringfold perf` over software RDMA devices.

use std::env::current_exe;

use crate::process::{Finished, Running, ringfold};

/// Runs all-reduces over both devices, with the log.
fn perf(variables: &[(&str, &str)]) -> Finished {
    let line = "perf --ranks 2 --transport rdma -b 64K -e 8M -f 128 -n 1 -c 1";
    let library = current_exe().expect("a test");
    let library = library.with_file_name("libringfold_softverbs.so");
    let mut command = ringfold(&line.split_whitespace().collect::<Vec<_>>());
    command
        .env("RINGFOLD_VERBS_LIBRARY", library)
        .env("RINGFOLD_DEBUG", "INFO")
        .envs(variables.iter().copied());
    let done = Running::start(command).finish();
    assert!(done.status.success(), "{}{}", done.stdout, done.stderr);
    done
}

/// Returns the number of channels that the log reports for all-reduces of `bytes` bytes; it omits
/// a single one.
fn channels(done: &Finished, bytes: u64) -> usize {
    let call = format!("choice: all_reduce of {bytes} bytes");
    let line = done.stderr.lines().find(|line| line.contains(&call));
    let line = line.unwrap_or_else(|| panic!("{call}: {}", done.stderr));
    let after = line.split("channels: ").nth(1).unwrap_or("1");
    let digits = after.split([',', ';']).next().expect("a word");
    digits.parse().expect("a number")
}

#[test]
fn long_calls_have_a_channel_for_each_rail() {
    let (short, long) = (64 << 10, 8 << 20);
    let done = perf(&[]);
    assert!(done.stderr.contains("by soft0:1") && done.stderr.contains("by soft1:1"));
    assert_eq!((channels(&done, short), channels(&done, long)), (1, 2));
    for told in [
        [("RINGFOLD_IB_HCA", "soft1")],
        [("RINGFOLD_MAX_CHANNELS", "1")],
    ] {
        assert_eq!(channels(&perf(&told), long), 1, "{told:?}");
    }
}
