//! The helper threads, and the sharing of one task: a word from which pieces are claimed, and a
//! count of finished pieces.

#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

use crate::error::Result;
use crate::memory::Region;
use crate::reduce::{Factor, ReductionKernel, Store, spread_copy};
use crate::sync::lock;
use crate::threads;

/// Minimum bytes that a piece touches: some 6 µs.
const PIECE_BYTES_MIN: usize = 64 << 10;

/// Pieces per thread, so that a quick thread takes over from a slow one.
pub(super) const PIECES_PER_THREAD: usize = 2;

/// Alignment of pieces: no two threads write one cache line of an aligned buffer, and elements stay
/// whole.
pub(super) const PIECE_ALIGN_BYTES: usize = 4096;

/// Number of polls before a helper sleeps: some 30 µs, the time between two steps of a call.
const SPINS: u32 = 1000;

/// Number of polls before a helper sleeps while slices are in flight, the later ones with a yield
/// in between: some 2 ms, longer than a slice is on its way.
const SPINS_IN_FLIGHT: u32 = 5000;

/// Number of polls before the caller yields: a helper still at work may need this core.
const SPINS_BEFORE_YIELD: u32 = 1000;

/// The operation on a task's regions.
#[derive(Clone, Copy, Debug)]
pub(super) enum TaskOperation {
    /// Copies the one source to the one target.
    Copy,
    /// Combines the sources into the one target.
    Fold(ReductionKernel),
    /// Copies the one source to all targets.
    SpreadCopy(Store),
    /// Combines the sources, scaled, into all targets.
    Spread(ReductionKernel, Option<Factor>, Store),
}

/// A step of a call, to be divided into pieces.
#[derive(Debug)]
pub(super) struct Task {
    work: TaskOperation,
    bytes: usize,
    targets: Vec<Region>,
    sources: Vec<Region>,
    piece_bytes: usize,
}

/// Reused lists for the parts of a task's regions.
#[derive(Debug, Default)]
struct Room {
    targets: Vec<Region>,
    sources: Vec<Region>,
    parts: Vec<Region>,
}

impl Task {
    /// Performs piece `index`.
    fn carry_out(&self, index: usize, room: &mut Room) -> Result<()> {
        let begin = index * self.piece_bytes;
        let range = begin..self.bytes.min(begin + self.piece_bytes);
        let source_range = match self.work {
            TaskOperation::Fold(kernel) => kernel.sources_of(range.clone()),
            _ => range.clone(),
        };
        let targets = self.targets.iter();
        room.targets.clear();
        room.targets
            .extend(targets.map(|region| region.part(range.clone())));
        let sources = self.sources.iter();
        room.sources.clear();
        room.sources
            .extend(sources.map(|region| region.part(source_range.clone())));
        let (targets, sources) = (&room.targets, &room.sources);
        match self.work {
            TaskOperation::Copy => targets[0].copy_from(sources[0]),
            TaskOperation::Fold(kernel) => kernel.fold(targets[0], sources),
            TaskOperation::SpreadCopy(store) => spread_copy(targets, sources[0], store),
            TaskOperation::Spread(kernel, factor, store) => {
                kernel.spread(targets, sources, factor, store, &mut room.parts)?;
            }
        }
        Ok(())
    }
}

/// The threads of one communicator.
#[derive(Debug)]
pub(super) struct HelperPool {
    shared: Arc<PoolState>,
    threads: Vec<JoinHandle<()>>,
    room: Room,
}

#[derive(Debug)]
struct PoolState {
    /// Task number (upper 32 bits), number of pieces (16) and next piece to claim (lower 16).
    claims: AtomicU64,
    /// Number of finished pieces.
    done: AtomicU32,
    /// The task. Written only while no claimed piece is unfinished: no thread waits for the lock.
    task: RwLock<Task>,
    /// Outcome so far: success, or the error or panic of a failed piece.
    outcome: Mutex<thread::Result<Result<()>>>,
    /// Number of helpers that take part in the task: those with the lowest indices. A hint: a late
    /// helper may join the next task.
    invited: AtomicUsize,
    /// Whether tasks follow each other as slices arrive. A hint.
    is_in_flight: AtomicBool,
    /// Whether each helper sleeps or is about to.
    asleep: Vec<AtomicBool>,
    is_closed: AtomicBool,
}

const PIECE_BITS: u32 = 16;

/// Maximum number of pieces of a task.
const PIECES_MAX: usize = (1 << PIECE_BITS) - 1;

fn pieces(claims: u64) -> u64 {
    claims >> PIECE_BITS & PIECES_MAX as u64
}

fn next(claims: u64) -> u64 {
    claims & PIECES_MAX as u64
}

fn is_exhausted(claims: u64) -> bool {
    next(claims) >= pieces(claims)
}

/// Returns the length of the pieces of a step that touches `bytes` bytes in each of `regions`
/// regions, for `threads` threads.
pub(super) fn piece_bytes(bytes: usize, regions: usize, threads: usize) -> usize {
    let even = bytes.div_ceil(threads * PIECES_PER_THREAD);
    let least = PIECE_BYTES_MIN.div_ceil(regions);
    even.max(least).next_multiple_of(PIECE_ALIGN_BYTES)
}

impl HelperPool {
    /// Starts `count` threads, or as many as the system grants.
    pub fn start(count: usize) -> HelperPool {
        let shared = Arc::new(PoolState {
            claims: AtomicU64::new(0),
            done: AtomicU32::new(0),
            task: RwLock::new(Task {
                work: TaskOperation::Copy,
                bytes: 0,
                targets: Vec::new(),
                sources: Vec::new(),
                piece_bytes: 0,
            }),
            outcome: Mutex::new(Ok(Ok(()))),
            invited: AtomicUsize::new(0),
            is_in_flight: AtomicBool::new(false),
            asleep: (0..count).map(|_| AtomicBool::new(false)).collect(),
            is_closed: AtomicBool::new(false),
        });
        let spawn = |index: usize| {
            let shared = shared.clone();
            threads::start("ringfold helper", move || shared.help(index))
        };
        let mut threads = Vec::with_capacity(count);
        for index in 0..count {
            match spawn(index) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    log::warn!(target: "ringfold::init", "{index} helpers instead of {count}: \
                        {error}");
                    break;
                }
            }
        }
        HelperPool {
            shared,
            threads,
            room: Room::default(),
        }
    }

    /// Sets whether tasks follow each other as slices arrive, so that helpers stay awake for
    /// longer.
    pub fn set_in_flight(&self, is_in_flight: bool) {
        self.shared
            .is_in_flight
            .store(is_in_flight, Ordering::Relaxed);
    }

    /// Runs one task on regions of equally many elements, with `invited` helpers beside the calling
    /// thread. Returns when the whole task is done.
    pub fn run(
        &mut self,
        work: TaskOperation,
        targets: &[Region],
        sources: &[Region],
        invited: usize,
    ) -> Result<()> {
        let bytes = targets[0].bytes();
        let regions = sources.len() + targets.len();
        let invited = invited.min(self.threads.len());
        let piece_bytes = piece_bytes(bytes, regions, invited + 1);
        let count = bytes.div_ceil(piece_bytes);
        assert!(count <= PIECES_MAX, "{count} pieces of one task");
        {
            let task = self.shared.task.write();
            let mut task = task.unwrap_or_else(PoisonError::into_inner);
            task.work = work;
            task.bytes = bytes;
            task.targets.clear();
            task.targets.extend_from_slice(targets);
            task.sources.clear();
            task.sources.extend_from_slice(sources);
            task.piece_bytes = piece_bytes;
        }
        // No thread counts a piece before `claims` changes, which publishes `done` and `invited`.
        self.shared.done.store(0, Ordering::Relaxed);
        self.shared.invited.store(invited, Ordering::Relaxed);
        let number = self.shared.claims.load(Ordering::Relaxed) >> 32;
        let claims = (number + 1) << 32 | (count as u64) << PIECE_BITS;
        // SeqCst: either this thread sees below that a helper sleeps, or that helper sees this task
        // before it sleeps; the other half is in `PoolState::sleep`. As a release, the store pairs
        // with the claim in `PoolState::claim`.
        self.shared.claims.store(claims, Ordering::SeqCst);
        let wanted = invited.min(count - 1);
        for (thread, asleep) in self.threads.iter().zip(&self.shared.asleep).take(wanted) {
            if asleep.load(Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
        self.shared.work(&mut self.room);
        let mut looks = 0;
        // Pairs with the release in `PoolState::work`.
        while (self.shared.done.load(Ordering::Acquire) as usize) < count {
            looks += 1;
            if looks < SPINS_BEFORE_YIELD {
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        let outcome = std::mem::replace(&mut *lock(&self.shared.outcome), Ok(Ok(())));
        // A panic is resumed in the thread that owns the step, once no other thread uses the step's
        // memory.
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Drop for HelperPool {
    fn drop(&mut self) {
        // Pairs with the load in `PoolState::help`; a sleeping thread is woken after the store.
        self.shared.is_closed.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A helper's panic message has already been printed.
            let _ = thread.join();
        }
    }
}

impl PoolState {
    /// Runs helper `index` until the pool is closed.
    fn help(&self, index: usize) {
        let mut room = Room::default();
        let mut looks = 0;
        // Pairs with the store in `HelperPool::drop`.
        while !self.is_closed.load(Ordering::Acquire) {
            if self.invites(index) && self.work(&mut room) {
                looks = 0;
            } else if looks < SPINS {
                looks += 1;
                std::hint::spin_loop();
            } else if looks < SPINS_IN_FLIGHT && self.is_in_flight.load(Ordering::Relaxed) {
                looks += 1;
                thread::yield_now();
            } else {
                self.sleep(index);
                looks = 0;
            }
        }
    }

    /// Whether helper `index` takes part in the task. `invited` is stored before the claims, so a
    /// thread that saw the claims sees its value.
    fn invites(&self, index: usize) -> bool {
        index < self.invited.load(Ordering::Relaxed)
    }

    /// Runs pieces until none is left. Returns whether there was one.
    fn work(&self, room: &mut Room) -> bool {
        let mut found = false;
        while let Some(piece) = self.claim() {
            found = true;
            {
                // Never blocks: the task is not written while a claimed piece is unfinished.
                let task = self.task.read().unwrap_or_else(PoisonError::into_inner);
                // A claimed piece must be counted, panic or not, or the caller waits forever.
                let outcome = catch_unwind(AssertUnwindSafe(|| task.carry_out(piece, room)));
                if !matches!(outcome, Ok(Ok(()))) {
                    *lock(&self.outcome) = outcome;
                }
            }
            // Release: publishes the piece's results; pairs with the acquire in `HelperPool::run`.
            self.done.fetch_add(1, Ordering::Release);
        }
        found
    }

    /// Claims the next piece.
    fn claim(&self) -> Option<usize> {
        let mut claims = self.claims.load(Ordering::Relaxed);
        while !is_exhausted(claims) {
            // Acquire: pairs with the store in `HelperPool::run`, which publishes the task.
            let claimed = self.claims.compare_exchange_weak(
                claims,
                claims + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            match claimed {
                Ok(_) => return Some(next(claims) as usize),
                Err(now) => claims = now,
            }
        }
        None
    }

    /// Sleeps until woken. Returns at once if there is a task or the pool is closed.
    fn sleep(&self, index: usize) {
        // SeqCst on both: see `HelperPool::run`.
        self.asleep[index].store(true, Ordering::SeqCst);
        let claims = self.claims.load(Ordering::SeqCst);
        // A wake before `park` is not lost: `park` then returns at once.
        let has_work = !is_exhausted(claims) && self.invites(index);
        if !has_work && !self.is_closed.load(Ordering::Acquire) {
            thread::park();
        }
        self.asleep[index].store(false, Ordering::Relaxed);
    }
}
