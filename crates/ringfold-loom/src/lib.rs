//! Model checks of the protocols in shared memory: flags, claims, doorbells.
//!
//! The modules are the library's own files, compiled here with loom's atomics in place of the
//! standard ones. Their tests run each model in every order of steps that the memory model allows,
//! up to a number of preemptions. A crate of its own, because under `--cfg loom` the library would
//! be compiled a second time for the sake of four files.
//!
//! ```text
//! LOOM_MAX_PREEMPTIONS=2 RUSTFLAGS="--cfg loom" cargo test --release -p ringfold-loom
//! ```

#![cfg(loom)]
#![allow(dead_code, reason = "each test uses a part of its protocol")]

#[path = "../../ringfold/src/sync.rs"]
mod sync;

#[path = "../../ringfold/src/transport/shm/barrier.rs"]
mod barrier;
#[path = "../../ringfold/src/transport/shm/claims.rs"]
mod claims;
#[path = "../../ringfold/src/transport/shm/doorbell.rs"]
mod doorbell;
#[path = "../../ringfold/src/transport/shm/flag.rs"]
mod flag;
