//! Hardware queues: operations of one or more streams, run in the order of their issue. What the
//! first one waits for holds all others back.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::thread::set_current_timer_slack;

use crate::driver::{Driver, driver, lock, now_ns};
use crate::operation::{Operation, Progress};
use crate::report::end;
use crate::settings::Mode;
use crate::stream::Stream;

/// How often a thread tries a blocked operation before it naps in between.
const YIELDS: u32 = 50;
/// Between two tries.
const NAP: Duration = Duration::from_micros(70);
/// By how much a sleep may be longer than asked for; the kernel's default is 50 µs.
const TIMER_SLACK_NS: u64 = 1;
/// The most words of waits that a report lists for a queue.
const REPORTED_WORDS_MAX: usize = 16;

/// A queue and what runs at its front.
#[derive(Debug)]
pub struct Queue {
    pub number: usize,
    pub device: usize,
    waiting: Mutex<VecDeque<Entry>>,
    front: Mutex<Front>,
    /// Told when `waiting` grows, or the queue is closed.
    more: Condvar,
    /// Operations that are not done.
    left: AtomicUsize,
    is_closed: AtomicBool,
}

#[derive(Debug)]
struct Entry {
    stream: Arc<Stream>,
    operation: Operation,
    enqueued_ns: u64,
}

#[derive(Debug, Default)]
struct Front {
    running: Option<Entry>,
    /// Modelled time: when the last operation ended.
    clock_ns: u64,
    /// Since when the running operation is blocked.
    blocked_ns: Option<u64>,
    is_reported: bool,
}

impl Queue {
    /// A queue of `device`; with a thread if the mode has threads for queues.
    pub fn start(driver: &'static Driver, device: usize) -> Arc<Queue> {
        let mut queues = lock(&driver.queues);
        let queue = Arc::new(Queue {
            number: queues.last().map_or(0, |last| last.number + 1),
            device,
            waiting: Mutex::default(),
            front: Mutex::default(),
            more: Condvar::new(),
            left: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
        });
        queues.push(queue.clone());
        if driver.settings.mode == Mode::Threads {
            let runs = queue.clone();
            let thread = thread::Builder::new().name(format!("softcuda-{}", queue.number));
            if let Err(error) = thread.spawn(move || runs.run()) {
                end(format!("no thread for a queue: {error}"));
            }
        }
        queue
    }

    /// Whether all operations are done.
    pub fn is_idle(&self) -> bool {
        // Acquire: pairs with the decrement in `turn`, so that what they did is seen.
        self.left.load(Ordering::Acquire) == 0
    }

    /// Whether there is no room for another operation.
    pub fn is_full(&self, operations_max: usize) -> bool {
        lock(&self.waiting).len() >= operations_max
    }

    /// Appends an operation of `stream`.
    pub fn push(&self, stream: Arc<Stream>, operation: Operation) {
        stream.begin_operation();
        // Relaxed: the queue's lock orders it before the decrement.
        self.left.fetch_add(1, Ordering::Relaxed);
        lock(&self.waiting).push_back(Entry {
            stream,
            operation,
            enqueued_ns: now_ns(),
        });
        self.more.notify_one();
    }

    /// Lets its thread end.
    pub fn close(&self) {
        // Under the lock, or its thread could miss it between its look and its sleep.
        let _waiting = lock(&self.waiting);
        // Relaxed: `waiting`'s lock orders it.
        self.is_closed.store(true, Ordering::Relaxed);
        self.more.notify_one();
    }

    /// Advances the first operation by a step; nothing if there is none.
    pub fn turn(&self, driver: &Driver) -> Option<Progress> {
        let mut front = lock(&self.front);
        if front.running.is_none() {
            front.running = lock(&self.waiting).pop_front();
            let enqueued_ns = front.running.as_ref()?.enqueued_ns;
            front.clock_ns = front.clock_ns.max(enqueued_ns);
        }
        let Front {
            running: Some(entry),
            clock_ns,
            ..
        } = &mut *front
        else {
            return None;
        };
        let link = &driver.devices[self.device].link;
        let progress = entry.operation.advance(driver, link, clock_ns);
        if progress == Progress::Blocked {
            front.blocked_ns.get_or_insert_with(now_ns);
            return Some(progress);
        }
        front.blocked_ns = None;
        front.is_reported = false;
        if progress == Progress::Done
            && let Some(entry) = front.running.take()
        {
            entry.stream.end_operation();
            // Release: pairs with the load in `is_idle`.
            self.left.fetch_sub(1, Ordering::Release);
        }
        Some(progress)
    }

    /// The queue's thread.
    fn run(&self) {
        // A copy that ends late by a timer's slack would leave its link idle.
        let _ = set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
        let driver = driver();
        let mut tries = 0;
        loop {
            match self.turn(driver) {
                None => {
                    let waiting = lock(&self.waiting);
                    if waiting.is_empty() {
                        // Relaxed: `waiting`'s lock orders it.
                        if self.is_closed.load(Ordering::Relaxed) {
                            return;
                        }
                        let woken = self.more.wait(waiting);
                        drop(woken.unwrap_or_else(PoisonError::into_inner));
                    }
                }
                Some(Progress::Done | Progress::Moved) => tries = 0,
                Some(Progress::Until(due_ns)) => {
                    thread::sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns())));
                }
                Some(Progress::Blocked) => {
                    tries += 1;
                    if tries < YIELDS {
                        thread::yield_now();
                    } else {
                        thread::sleep(NAP);
                    }
                }
            }
        }
    }

    /// How long the first operation has been blocked, and whether that was reported; marks it as
    /// reported if it is `report_ns` or more.
    pub fn blocked(&self, report_ns: u64) -> Option<(u64, bool)> {
        // What holds the lock is moving.
        let mut front = self.front.try_lock().ok()?;
        let blocked_ns = now_ns().saturating_sub(front.blocked_ns?);
        let was_reported = front.is_reported;
        front.is_reported |= blocked_ns >= report_ns;
        Some((blocked_ns, was_reported))
    }

    /// The queue's line of a report, and the words that its operations wait for.
    pub fn report(&self, driver: &Driver) -> Line {
        let mut words = Vec::new();
        let mut first = "moving".to_owned();
        if let Ok(front) = self.front.try_lock() {
            first = match &front.running {
                Some(entry) => {
                    words.extend(entry.operation.word());
                    let blocked_ns = front.blocked_ns.map_or(0, |since| now_ns() - since);
                    let (stream, ms) = (entry.stream.handle, blocked_ns / 1_000_000);
                    format!(
                        "stream {stream:#x}: {}, blocked for {ms} ms",
                        entry.operation
                    )
                }
                None => "nothing runs".to_owned(),
            };
        }
        let waiting = lock(&self.waiting);
        words.extend(waiting.iter().filter_map(|entry| entry.operation.word()));
        words.sort_unstable();
        words.dedup();
        words.truncate(REPORTED_WORDS_MAX);
        let value = |address: usize| {
            // Relaxed: for the eye.
            let value = driver
                .memory
                .with_word(address, |word| word.load(Ordering::Relaxed));
            (address, value.ok())
        };
        Line {
            number: self.number,
            first,
            behind: waiting.len(),
            words: words.into_iter().map(value).collect(),
        }
    }
}

/// What a report says of a queue.
#[derive(Debug)]
pub struct Line {
    number: usize,
    first: String,
    behind: usize,
    words: Vec<(usize, Option<u32>)>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, first, behind) = (self.number, &self.first, self.behind);
        write!(
            f,
            "  queue {number}: {first}; {behind} operations behind it"
        )?;
        for (address, value) in &self.words {
            match value {
                Some(value) => write!(f, "\n    word {address:#x} is {value}")?,
                None => write!(f, "\n    word {address:#x} is not registered")?,
            }
        }
        Ok(())
    }
}
