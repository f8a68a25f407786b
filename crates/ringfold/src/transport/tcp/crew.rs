//! Threads that move long messages together with the rank's own.
//!
//! # Model
//!
//! In a poll that finds several sockets worth a try with long messages, each of these gets a turn.
//! The turns stand in a queue, from which the rank's own thread and the helpers take one after the
//! other; the poll ends when all have been taken. So nothing moves outside of a poll: errors, the
//! abort word, deadlines and the caller's buffers are as without helpers, and one that has not
//! woken up yet costs nothing but its help.
//!
//! # Invariants
//!
//! * A connection is in one thread's hands: its turn owns it.
//! * Threads are started with the first turns, look for more for a moment after each poll, and
//!   then sleep. If the system refuses some of them, there are fewer.
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

/// Looks at the queue before a helper sleeps: some 30 µs, the time between two polls of a rank that
/// waits for nothing else.
const SPINS: u32 = 1000;

/// Looks at what is left before the rank's own thread lets others run: a helper that is still at
/// work may need this core.
const SPINS_BEFORE_YIELD: u32 = 1000;

/// One socket's try in a poll.
pub struct Turn {
    /// The connection's number.
    number: usize,
    /// The connection, with the tickets of what was completed.
    connection: Box<Connection>,
    /// Whether it is made although nothing says that it is worthwhile.
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

    /// What became of it. A panic is resumed: in the thread that polls, once no other uses the
    /// memory of its messages.
    pub fn into_outcome(self) -> (usize, Box<Connection>, Result<()>) {
        let outcome = self.outcome.unwrap_or_else(|panic| resume_unwind(panic));
        (self.number, self.connection, outcome)
    }

    fn carry_out(&mut self, staging: Region) {
        let (connection, is_forced) = (&mut self.connection, self.is_forced);
        // A turn that is not counted would be waited for without end.
        let turn = AssertUnwindSafe(|| connection.take_turn(is_forced, staging));
        self.outcome = catch_unwind(turn);
    }
}

/// The threads of one rank.
pub struct Crew {
    /// How many are wanted.
    count: usize,
    piece_bytes: usize,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Rung for helpers that sleep.
    bell: Condvar,
    /// Turns in the queue. A hint, for those who look without the lock.
    waiting: AtomicUsize,
    /// Turns that are not done.
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
    /// A crew of `count` threads, which reduce in pieces of `piece_bytes`. Starts none yet.
    pub fn new(count: usize, piece_bytes: usize) -> Crew {
        Crew {
            count,
            piece_bytes,
            shared: Arc::default(),
            threads: Vec::new(),
        }
    }

    /// Carries out `turns`, which come back in any order. The calling thread uses `staging`.
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
        // Pairs with the release in `Shared::work`.
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
                        "{} threads help to move data instead of {}: {error}",
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
            // A helper that panicked has nothing more to say than the panic message.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// What a helper runs.
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

    /// Carries out the next turn, if there is one.
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
