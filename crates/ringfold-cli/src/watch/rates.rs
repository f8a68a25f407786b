//! What a process does per second: the difference of two samples.

use super::jobs::{Process, RunningJob, Sample};

/// Counters of a process, over its communicators.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    calls: u64,
    bytes: u64,
    waited_ns: u64,
    /// Collectives whose lateness was counted, and those in which it was the last.
    counted: u64,
    times_last: u64,
    /// Calls in which others waited for it, and how long.
    late_calls: u64,
    late_ns: u64,
}

/// A process between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub calls_per_s: f64,
    pub bytes_per_s: f64,
    /// The part of the time in which it waited for other ranks, 0 to 1.
    pub waited: f64,
    /// The part of its collectives in which it was the last; nothing without a call.
    pub late: Option<f64>,
    /// By how much it was late in these, on the average, where that was timed.
    pub late_by_ns: Option<f64>,
}

impl Rates {
    /// The rates of `process` of `job` in `sample`, since `before`. A process that was not there
    /// before has none.
    pub fn since(
        before: &Sample,
        sample: &Sample,
        job: &RunningJob,
        process: &Process,
    ) -> Option<Rates> {
        let (job_then, then) = before.jobs.iter().find_map(|job| {
            let same = |old: &&Process| old.pid == process.pid && old.is_same(process);
            Some((job, job.processes.iter().find(same)?))
        })?;
        let span_ns = sample
            .at_ns
            .checked_sub(before.at_ns)
            .filter(|span| *span > 0)?;
        let old = Counters::of(job_then, then, before.at_ns);
        let new = Counters::of(job, process, sample.at_ns);
        let seconds = span_ns as f64 / 1e9;
        // Statistics may have been reset.
        let more = |of: fn(&Counters) -> u64| of(&new).saturating_sub(of(&old)) as f64;
        let part = |of: f64, whole: f64| (whole > 0.0).then(|| (of / whole).min(1.0));
        let late_calls = more(|c| c.late_calls);
        Some(Rates {
            calls_per_s: more(|c| c.calls) / seconds,
            bytes_per_s: more(|c| c.bytes) / seconds,
            waited: (more(|c| c.waited_ns) / span_ns as f64).min(1.0),
            late: part(more(|c| c.times_last), more(|c| c.counted)),
            late_by_ns: (late_calls > 0.0).then(|| more(|c| c.late_ns) / late_calls),
        })
    }
}

impl Counters {
    fn of(job: &RunningJob, process: &Process, at_ns: u64) -> Counters {
        let mut sum = Counters::default();
        for board in &process.boards {
            for (_, calls, bytes) in &board.collectives {
                sum.calls = sum.calls.saturating_add(*calls);
                sum.bytes = sum.bytes.saturating_add(*bytes);
            }
            // A wait is counted when it is over.
            let waiting = board.waiting.as_ref();
            let now = waiting.map_or(0, |waiting| at_ns.saturating_sub(waiting.since_ns));
            sum.waited_ns = sum
                .waited_ns
                .saturating_add(board.waited_ns)
                .saturating_add(now);
            sum.counted = sum.counted.saturating_add(board.finished);
            sum.times_last = sum.times_last.saturating_add(board.times_last);
        }
        (sum.late_calls, sum.late_ns) = job.lateness_of(process);
        sum
    }
}

impl Process {
    /// Whether both are one process: numbers of processes are used again.
    fn is_same(&self, other: &Process) -> bool {
        let made = |process: &Process| process.boards.iter().map(|board| board.made_ns).min();
        self.boards
            .iter()
            .any(|board| other.boards.iter().any(|o| o.made_ns == board.made_ns))
            || made(self) == made(other)
    }
}
