//! Threads that move long messages together with the rank's own thread.
//!
//! # Model
//!
//! In a poll that finds several sockets worth a try with long messages, each of these gets a turn.
//! The turns wait in a queue, from which the rank's own thread and the helpers take one after the
//! other; the poll ends when all turns are finished. So nothing moves outside of a poll. Errors,
//! the abort word, deadlines and the caller's buffers are as without helpers, and a helper that has
//! not woken up yet costs nothing but its help.
//!
//! # Invariants
//!
//! * A connection is used by one thread at a time: its turn owns it.
//! * Threads are started with the first turns, look for more turns for a moment after each poll,
//!   and then sleep. If the system refuses some threads, there are fewer.
//! * Nothing is allocated after the first turns.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::connection::Connection;
use crate::error::Result;
use crate::memory::{Owned, Region};
use crate::sync::lock;
use crate::threads;

/// Number of looks at the queue before a helper sleeps: some 30 µs, the time between two polls of a
/// rank that waits for nothing else.
const SPINS: u32 = 1000;

/// Number of looks at unfinished turns before the rank's own thread yields: a helper that is still
/// at work may need this core.
const SPINS_BEFORE_YIELD: u32 = 1000;

/// One socket's try in a poll.
pub struct Turn {
    /// Number of the connection.
    number: usize,
    /// The connection, with the tickets completed in this turn.
    connection: Box<Connection>,
    /// Whether the socket is tried although nothing shows that a try is worthwhile.
    is_forced: bool,
    outcome: thread::Result<Result<()>>,
}

impl Turn {
    pub fn new(number: usize, connection: Box<Connection>, is_forced: bool) -> Turn {
        Turn {
            number,
            connection,
            is_forced,
            outcome: Ok(Ok(())),
        }
    }

    /// Returns the turn's outcome. A panic is resumed in the thread that polls, once no other
    /// thread uses the memory of its messages.
    pub fn into_outcome(self) -> (usize, Box<Connection>, Result<()>) {
        let outcome = self.outcome.unwrap_or_else(|panic| resume_unwind(panic));
        (self.number, self.connection, outcome)
    }

    fn carry_out(&mut self, staging: Region) {
        let (connection, is_forced) = (&mut self.connection, self.is_forced);
        // An uncounted turn would be waited for forever.
        let turn = AssertUnwindSafe(|| connection.take_turn(is_forced, staging));
        self.outcome = catch_unwind(turn);
    }
}

/// The helper threads of one rank.
pub struct Crew {
    /// Number of wanted threads.
    count: usize,
    piece_bytes: usize,
    shared: Arc<CrewState>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct CrewState {
    queue: Mutex<Queue>,
    /// Condition on which helpers sleep.
    bell: Condvar,
    /// Number of turns in the queue. A hint, for threads that look without the lock.
    waiting: AtomicUsize,
    /// Number of unfinished turns.
    left: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Turn>,
    done: Vec<Turn>,
    asleep: usize,
    is_closed: bool,
}

impl Crew {
    /// Creates a crew of `count` threads, which reduce in pieces of `piece_bytes`. Starts none yet.
    pub fn new(count: usize, piece_bytes: usize) -> Crew {
        Crew {
            count,
            piece_bytes,
            shared: Arc::default(),
            threads: Vec::new(),
        }
    }

    /// Executes `turns`, and returns them in any order. The calling thread uses `staging`.
    pub fn run(&mut self, turns: &mut Vec<Turn>, staging: Region) {
        self.start();
        let shared = &*self.shared;
        // Read below only, after all turns have been counted.
        shared.left.store(turns.len(), Ordering::Relaxed);
        {
            let mut queue = lock(&shared.queue);
            queue.waiting.append(turns);
            shared.waiting.store(queue.waiting.len(), Ordering::Relaxed);
            for _ in 0..queue.asleep.min(queue.waiting.len() - 1) {
                shared.bell.notify_one();
            }
        }
        while shared.work(staging) {}
        let mut looks = 0;
        // Pairs with the release in `CrewState::work`.
        while shared.left.load(Ordering::Acquire) > 0 {
            looks += 1;
            match looks < SPINS_BEFORE_YIELD {
                true => std::hint::spin_loop(),
                false => thread::yield_now(),
            }
        }
        turns.append(&mut lock(&shared.queue).done);
    }

    /// Starts the threads, once.
    fn start(&mut self) {
        while self.threads.len() < self.count {
            let (shared, staging) = (self.shared.clone(), Owned::zeroed(self.piece_bytes));
            let help = move || shared.help(staging.region());
            match threads::start("ringfold socket", help) {
                Ok(thread) => self.threads.push(thread),
                Err(error) => {
                    log::warn!(
                        target: "ringfold::transport",
                        "started only {} of {} helper threads: {error}",
                        self.threads.len(),
                        self.count
                    );
                    self.count = self.threads.len();
                }
            }
        }
    }
}

impl Drop for Crew {
    /// Ends the threads and waits for them.
    fn drop(&mut self) {
        lock(&self.shared.queue).is_closed = true;
        self.shared.bell.notify_all();
        for thread in self.threads.drain(..) {
            // A helper that panicked has printed its message.
            let _ = thread.join();
        }
    }
}

impl CrewState {
    /// Runs a helper until the crew ends.
    fn help(&self, staging: Region) {
        let mut looks = 0;
        loop {
            // A hint: the lock decides.
            if self.waiting.load(Ordering::Relaxed) > 0 && self.work(staging) {
                looks = 0;
            } else if looks < SPINS {
                looks += 1;
                std::hint::spin_loop();
            } else if self.sleep() {
                looks = 0;
            } else {
                return;
            }
        }
    }

    /// Executes the next turn; false if there is none.
    fn work(&self, staging: Region) -> bool {
        let next = {
            let mut queue = lock(&self.queue);
            let next = queue.waiting.pop();
            self.waiting.store(queue.waiting.len(), Ordering::Relaxed);
            next
        };
        let Some(mut turn) = next else { return false };
        turn.carry_out(staging);
        lock(&self.queue).done.push(turn);
        // Pairs with the acquire in `Crew::run`.
        self.left.fetch_sub(1, Ordering::Release);
        true
    }

    /// Sleeps until there are turns; false when there will be none.
    fn sleep(&self) -> bool {
        let mut queue = lock(&self.queue);
        queue.asleep += 1;
        while queue.waiting.is_empty() && !queue.is_closed {
            let woken = self.bell.wait(queue);
            queue = woken.unwrap_or_else(PoisonError::into_inner);
        }
        queue.asleep -= 1;
        !queue.is_closed
    }
}
