//! Flags without a meaning on devices, rejected with a reason.

use anyhow::{Result, bail};
use ringfold::{Collective, Method};

use super::arguments::PerfArguments;

/// Rejects flags without a meaning on devices, if `--device` is given.
pub fn check(arguments: &PerfArguments) -> Result<()> {
    if arguments.on.device.is_none() {
        return Ok(());
    }
    let of_the_host =
        "is about calls whose data is there at first, and a device brings it in slices";
    let refused = [
        (
            arguments.collective == Collective::Barrier,
            "barrier",
            "has no data on a device",
        ),
        (
            arguments.rewrite,
            "--rewrite",
            "is about the caches of CPUs",
        ),
        (
            arguments.job.local_register == 1,
            "-R 1",
            "is about buffers on the host",
        ),
        (arguments.stats, "--stats", "counts calls of the host"),
        (arguments.weights.is_some(), "--weights", of_the_host),
        (arguments.straggler.is_some(), "--straggler", of_the_host),
        (
            !arguments.slow.is_empty(),
            "--slow",
            "counts the reductions of calls of the host",
        ),
        (
            arguments.reduce_time.is_some(),
            "--reduce-time",
            "slows down the host's reductions of messages, of which a device call may have any \
             number",
        ),
        (
            arguments.algorithm == Some(Method::Stragglar),
            "--algorithm stragglar",
            of_the_host,
        ),
        (arguments.late_rank.is_some(), "--late-rank", of_the_host),
    ];
    match refused.iter().find(|(is_asked, ..)| *is_asked) {
        Some((_, flag, why)) => bail!("`{flag}` {why}; omit it or `--device`"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::arguments::tests::arguments;

    #[test]
    fn what_means_nothing_on_a_device_is_refused() {
        check(&arguments("--device cuda:0,1 --slots 8 --slot-bytes 64K")).unwrap();
        for line in [
            "barrier",
            "--rewrite",
            "-R 1",
            "--stats",
            "--reduce-time 1ms",
            "--late-rank 1",
            "-A stragglar",
        ] {
            let error = check(&arguments(&format!("{line} --device cuda")));
            let error = error.unwrap_err().to_string();
            assert!(error.contains("--device"), "{error}");
        }
    }
}
