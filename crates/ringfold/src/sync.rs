//! The atomics of shared-memory protocols, and the locking of mutexes. The atomics are the standard
//! ones, or loom's under `cfg(loom)`, so that loom checks the code that runs.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Locks a mutex, even if a holder has panicked: for state that is whole between any two
/// statements.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
