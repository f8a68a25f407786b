//! A trial of which way of sending large payloads is better on one connection.
//!
//! Messages alternate between sends with and without the kernel's copy, without it only while
//! nothing else is lent, so that one way's cost is not counted for the other. Two times are
//! measured for each message: the processor's time in its system calls, including the reports, and
//! the time until the kernel had all of it. The latter is the time of the calls if the socket has
//! room, and that of the network otherwise. The way with less of either is better; see
//! [`Finding::is_lent_better`].

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Number of messages of each way that are compared.
const MESSAGES: usize = 8;

/// Maximum ratio of two times that count as different.
const PART: f64 = 0.9;

/// A trial in progress.
#[derive(Default)]
pub struct Probe {
    copied: SendCosts,
    lent: SendCosts,
    /// The message being sent.
    current: Option<TimedMessage>,
}

struct TimedMessage {
    is_lent: bool,
    bytes: usize,
    begun: Instant,
    /// Processor time of the message's calls.
    processor: Duration,
    /// Processor time of this thread at the beginning of the current call.
    entered: Duration,
}

/// Cost of one way.
#[derive(Default)]
struct SendCosts {
    messages: usize,
    bytes: u64,
    processor: Duration,
    /// Nanoseconds per byte of each message.
    elapsed: [f64; MESSAGES],
}

/// Cost of sending without a copy, relative to that of sending with one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finding {
    pub processor: f64,
    pub elapsed: f64,
}

impl Probe {
    /// Begins a message of `bytes` bytes; returns whether to send it without a copy, which requires
    /// `is_free`.
    pub fn begin(&mut self, bytes: usize, is_free: bool) -> bool {
        let is_lent = is_free && self.lent.messages <= self.copied.messages;
        self.current = Some(TimedMessage {
            is_lent,
            bytes,
            begun: Instant::now(),
            processor: Duration::ZERO,
            entered: Duration::ZERO,
        });
        is_lent
    }

    /// Begins a system call for the message.
    pub fn enter(&mut self) {
        if let Some(current) = &mut self.current {
            current.entered = processor_time();
        }
    }

    /// Ends the system call.
    pub fn leave(&mut self) {
        if let Some(current) = &mut self.current {
            current.processor += processor_time().saturating_sub(current.entered);
        }
    }

    /// Calls `report`, and charges its processor time to sends without a copy.
    pub fn charge<R>(&mut self, report: impl FnOnce() -> R) -> R {
        let begun = processor_time();
        let given = report();
        self.lent.processor += processor_time().saturating_sub(begun);
        given
    }

    /// Ends the message, which is sent; returns the finding if the trial is complete.
    pub fn end(&mut self) -> Option<Finding> {
        let current = self.current.take()?;
        let tally = match current.is_lent {
            true => &mut self.lent,
            false => &mut self.copied,
        };
        tally.add(current.bytes, current.processor, current.begun.elapsed());
        let is_enough = self.copied.messages.min(self.lent.messages) >= MESSAGES;
        is_enough.then(|| Finding::new(&self.lent, &self.copied))
    }
}

impl SendCosts {
    /// Counts a message, unless there are enough.
    fn add(&mut self, bytes: usize, processor: Duration, elapsed: Duration) {
        if let Some(place) = self.elapsed.get_mut(self.messages) {
            *place = elapsed.as_nanos() as f64 / bytes as f64;
            self.messages += 1;
            self.bytes += bytes as u64;
            self.processor += processor;
        }
    }

    fn processor_each(&self) -> f64 {
        self.processor.as_nanos() as f64 / self.bytes as f64
    }

    /// Returns the median of the elapsed times, which the peer's pauses do not change.
    fn elapsed_each(&self) -> f64 {
        let mut elapsed = self.elapsed;
        elapsed.sort_by(f64::total_cmp);
        elapsed[MESSAGES / 2]
    }
}

impl Finding {
    fn new(lent: &SendCosts, copied: &SendCosts) -> Finding {
        Finding {
            processor: lent.processor_each() / copied.processor_each(),
            elapsed: lent.elapsed_each() / copied.elapsed_each(),
        }
    }

    /// Whether sending without a copy is quicker, or as quick with less processor time.
    pub fn is_lent_better(&self) -> bool {
        let is_quicker = self.elapsed <= PART;
        let is_slower = self.elapsed * PART >= 1.0;
        is_quicker || (!is_slower && self.processor <= PART)
    }
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the finding of a trial whose messages take so many nanoseconds per byte: of the
    /// processor, and in all.
    fn find(lent: (u64, u64), copied: (u64, u64)) -> Finding {
        let tally = |(processor, elapsed): (u64, u64)| {
            let mut tally = SendCosts::default();
            for place in 0..MESSAGES {
                let bytes = 1000 * (place + 1);
                let times = [processor, elapsed].map(|each| each * bytes as u64);
                let [processor, elapsed] = times.map(Duration::from_nanos);
                // A pause of the peer.
                let pause = Duration::from_secs(if place == 1 { 5 } else { 0 });
                tally.add(bytes, processor, elapsed + pause);
            }
            tally
        };
        Finding::new(&tally(lent), &tally(copied))
    }

    #[test]
    fn the_quicker_way_is_better_and_else_the_easier_one() {
        for (lent, copied, is_lent_better) in [
            ((10, 20), (20, 30), true),
            ((10, 20), (20, 20), true),
            ((19, 20), (20, 20), false),
            ((20, 20), (20, 20), false),
            ((25, 20), (20, 30), true),
            ((10, 30), (20, 20), false),
            ((30, 30), (20, 20), false),
        ] {
            let finding = find(lent, copied);
            assert_eq!(
                finding.is_lent_better(),
                is_lent_better,
                "{lent:?} and {copied:?}: {finding:?}"
            );
        }
    }

    #[test]
    fn a_trial_goes_by_turns_until_there_is_enough() {
        let mut probe = Probe::default();
        let mut ways = Vec::new();
        loop {
            ways.push(probe.begin(1000, true));
            if probe.end().is_some() {
                break;
            }
        }
        let expected: Vec<bool> = [true, false].repeat(MESSAGES);
        assert_eq!(ways, expected);
    }

    #[test]
    fn while_something_is_lent_the_next_message_is_copied() {
        let mut probe = Probe::default();
        assert!(probe.begin(1000, true));
        assert_eq!(probe.end(), None);
        for _ in 0..3 * MESSAGES {
            assert!(!probe.begin(1000, false));
            assert_eq!(probe.end(), None);
        }
        assert!(probe.begin(1000, true));
    }
}
