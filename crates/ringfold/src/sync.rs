//! The atomics that shared-memory protocols are written with: the standard ones, or loom's under
//! `cfg(loom)`, so that the code that runs is the code that is checked.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
