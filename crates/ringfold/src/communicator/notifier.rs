//! The threads that run callbacks when collective calls are done.
//!
//! Calls end under the driver's lock, and a callback may wait for anything: another call, an
//! interpreter's lock. So the thread that ends a call only queues the callback, and a thread that
//! holds no lock runs it. The communicators of a process share these threads, which end with the
//! last communicator that used them.
//!
//! # Order
//!
//! Callbacks run one at a time, in the order in which their calls ended, with two exceptions that
//! keep a callback from waiting for itself:
//!
//! * **Nesting.** A callback may make a call and wait until that call's own callback has run. A
//!   callback registered by a running callback is one level deeper than the running one, and runs
//!   beside callbacks of lower levels. Levels do not depend on time, so the order within a level is
//!   the same on all ranks.
//! * **Patience.** A callback may wait for another of its own level that is queued behind it. After
//!   [`PATIENCE`] the next callback begins beside it.
//!
//! A thread that begins a callback leaves another thread to watch the queue, up to [`THREADS_MAX`].
//! Usually there are two.
//!
//! A program that ends can wait for callbacks ([`due`], [`have_returned`]), including those of
//! communicators that were dropped.
//!
//! A forked child has a copy of this state but not the threads, so the state is kept with the
//! process ID.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::sync::lock;
use crate::sys::fork::with_locked;
use crate::threads;
use crate::wait::SPAN_MAX;

/// Time for which a callback holds up others of its level. Well above the time of a callback that
/// computes or waits for an interpreter's lock; well below the time that a user takes for a hang.
const PATIENCE: Duration = Duration::from_millis(20);

/// Maximum number of threads of a process that run callbacks, or are ready to. All of them are busy
/// only if as many callbacks wait for each other.
const THREADS_MAX: usize = 64;

/// Maximum number of idle threads: one to begin the next callback, and one to watch the queue then.
const IDLE_MAX: usize = 2;

/// A callback that runs when a call is done.
pub type OnDone = Box<dyn FnOnce() + Send>;

/// The queue, while there are threads. Locked when a communicator registers its first callback, and
/// when callbacks are counted; never when a call ends.
static SHARED: Mutex<Weak<CallbackPool>> = Mutex::new(Weak::new());

/// The process to which the threads belong.
static PROCESS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The level of a callback that this thread would register: more than 0 within a callback.
    static LEVEL: Cell<usize> = const { Cell::new(0) };
}

/// A callback, registered and not yet due.
pub struct PendingCallback {
    notifier: Arc<Notifier>,
    callback: Callback,
}

struct Callback {
    level: usize,
    /// The callback's number in the order in which callbacks became due.
    number: u64,
    on_done: OnDone,
}

impl PendingCallback {
    /// Registers `on_done`, to be called when it is [queued](PendingCallback::queue).
    pub fn new(notifier: Arc<Notifier>, on_done: OnDone) -> PendingCallback {
        let level = LEVEL.get();
        PendingCallback {
            notifier,
            callback: Callback {
                level,
                number: 0,
                on_done,
            },
        }
    }

    /// Queues the callbacks of a call that is done, and publishes its end with `show_done`: a
    /// thread that sees the call done finds the callbacks due. Does not block.
    pub fn queue(pending: Vec<PendingCallback>, show_done: impl FnOnce()) {
        let both = pending.into_iter();
        let (notifiers, callbacks): (Vec<_>, Vec<_>) =
            both.map(|each| (each.notifier, each.callback)).unzip();
        match notifiers.first() {
            Some(notifier) => notifier.pool.queue(callbacks, show_done),
            None => show_done(),
        }
    }

    /// Returns the callback, for a caller that runs it directly.
    pub fn into_callback(self) -> OnDone {
        self.callback.on_done
    }
}

/// Returns the number of callbacks of this process that have become due so far.
pub fn due() -> u64 {
    pool().map_or(0, |pool| pool.state().queued)
}

/// Whether the first `number` callbacks that became due have returned.
pub fn have_returned(number: u64) -> bool {
    let Some(pool) = pool() else {
        return true;
    };
    let state = pool.state();
    let due = state.due.iter().map(|callback| callback.number);
    let mut unfinished = due.chain(state.running.iter().map(|running| running.number));
    unfinished.all(|each| each >= number)
}

/// Returns this process' queue, if it has threads.
fn pool() -> Option<Arc<CallbackPool>> {
    // Acquire pairs with the Release store in `shared`.
    let is_ours = PROCESS.load(Ordering::Acquire) == std::process::id();
    is_ours
        .then(|| with_locked(&SHARED, |shared| shared.upgrade()))
        .flatten()
}

/// A user of the threads, which end with their last user.
#[derive(Debug)]
pub struct Notifier {
    pool: Arc<CallbackPool>,
}

impl Notifier {
    /// Adds a user of this process' threads; starts the first thread if there is none.
    pub fn shared() -> Result<Arc<Notifier>> {
        with_locked(&SHARED, |shared| {
            let process = std::process::id();
            let is_ours = PROCESS.load(Ordering::Relaxed) == process;
            let running = shared.upgrade().filter(|_| is_ours);
            let pool = running.unwrap_or_default();
            let mut state = pool.state();
            let is_first = state.threads == 0;
            state.users += 1;
            state.threads += usize::from(is_first);
            drop(state);
            *shared = Arc::downgrade(&pool);
            // Pairs with the Acquire load in `pool`: this process has a queue.
            PROCESS.store(process, Ordering::Release);
            let notifier = Arc::new(Notifier { pool });
            if is_first && let Err(error) = CallbackPool::add_thread(&notifier.pool) {
                notifier.pool.state().threads -= 1;
                return Err(error);
            }
            Ok(notifier)
        })
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.pool.state().users -= 1;
        self.pool.changed.notify_all();
    }
}

/// The queue, and the state of its threads.
#[derive(Default)]
struct CallbackPool {
    state: Mutex<CallbackQueue>,
    /// Signals that a callback became due or returned, or that a user was dropped.
    changed: Condvar,
}

#[derive(Default)]
struct CallbackQueue {
    due: VecDeque<Callback>,
    running: Vec<RunningCallback>,
    threads: usize,
    idle: usize,
    /// Number of notifiers that may still queue callbacks.
    users: usize,
    /// Number of callbacks queued so far.
    queued: u64,
}

/// A callback that has begun and not returned.
struct RunningCallback {
    thread: thread::ThreadId,
    level: usize,
    number: u64,
    since: Instant,
}

/// The next action of a thread.
enum Next {
    Run(Callback),
    /// A pause until something changes or this time has passed.
    Wait(Option<Duration>),
    End,
}

impl CallbackPool {
    fn state(&self) -> MutexGuard<'_, CallbackQueue> {
        lock(&self.state)
    }

    /// Queues callbacks; calls `before` when the callbacks are due and none has begun.
    fn queue(&self, callbacks: Vec<Callback>, before: impl FnOnce()) {
        let mut state = self.state();
        let count = callbacks.len();
        for mut callback in callbacks {
            callback.number = state.queued;
            state.queued += 1;
            state.due.push_back(callback);
        }
        before();
        drop(state);
        (0..count).for_each(|_| self.changed.notify_one());
    }

    /// Starts a thread that is already counted in `CallbackQueue::threads`.
    fn add_thread(pool: &Arc<CallbackPool>) -> Result<()> {
        let its = pool.clone();
        threads::start("ringfold-done", move || its.serve()).map(drop)
    }

    /// Runs callbacks until the thread is no longer needed.
    fn serve(self: Arc<CallbackPool>) {
        let mut state = self.state();
        loop {
            match state.next() {
                Next::Run(callback) => {
                    let needs_another = state.idle == 0 && state.threads < THREADS_MAX;
                    state.threads += usize::from(needs_another);
                    drop(state);
                    if needs_another && let Err(error) = CallbackPool::add_thread(&self) {
                        self.state().threads -= 1;
                        log::debug!(
                            target: "ringfold::call",
                            "callbacks share one thread: {error}"
                        );
                    }
                    callback.run();
                    state = self.state();
                    state
                        .running
                        .retain(|one| one.thread != thread::current().id());
                    // This thread takes the next callback that waited for this one; the woken
                    // thread takes another, if there are more.
                    self.changed.notify_one();
                }
                Next::Wait(limit) if state.idle < IDLE_MAX => {
                    state.idle += 1;
                    state = self.wait(state, limit);
                    state.idle -= 1;
                }
                Next::Wait(_) | Next::End => {
                    state.threads -= 1;
                    return;
                }
            }
        }
    }

    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, CallbackQueue>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, CallbackQueue> {
        // Without a limit, practically forever; the caller checks again.
        let woken = self.changed.wait_timeout(state, limit.unwrap_or(SPAN_MAX));
        woken.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl CallbackQueue {
    fn next(&mut self) -> Next {
        let now = Instant::now();
        let blocks = |one: &&RunningCallback| now.duration_since(one.since) < PATIENCE;
        let level = (self.running.iter().filter(blocks).map(|one| one.level)).max();
        let may_begin = |callback: &Callback| level.is_none_or(|level| callback.level > level);
        if let Some(place) = self.due.iter().position(may_begin) {
            let callback = self.due.remove(place).expect("a place that was found");
            self.running.push(RunningCallback {
                thread: thread::current().id(),
                level: callback.level,
                number: callback.number,
                since: now,
            });
            return Next::Run(callback);
        }
        match (self.due.is_empty(), self.users == 0) {
            (true, true) => Next::End,
            (true, false) => Next::Wait(None),
            (false, _) => Next::Wait(Some(PATIENCE)),
        }
    }
}

impl Callback {
    fn run(self) {
        LEVEL.set(self.level + 1);
        // A panic is the user's: it has been printed, and the other callbacks run nevertheless.
        let _ = catch_unwind(AssertUnwindSafe(self.on_done));
        LEVEL.set(0);
    }
}

impl std::fmt::Debug for CallbackPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallbackPool").finish_non_exhaustive()
    }
}
