//! Model checks of the shared-memory protocols: barriers, claims, doorbells, flags, and the words
//! of lanes.
//!
//! The modules are the library's own files, compiled here with loom's atomics in place of the
//! standard ones. Their tests run each model in every interleaving that the memory model allows, up
//! to a number of preemptions. The models are a separate crate because `--cfg loom` would otherwise
//! compile the whole library a second time for the sake of five files.
//!
//! ```text
//! LOOM_MAX_PREEMPTIONS=2 RUSTFLAGS="--cfg loom" cargo test --release -p ringfold-loom
//! ```

#![cfg(loom)]
#![allow(dead_code, reason = "each test uses a part of its protocol")]

#[path = "../../ringfold/src/sync.rs"]
mod sync;

#[path = "../../ringfold/src/lane/word.rs"]
mod word;

#[path = "../../ringfold/src/transport/shm/barrier.rs"]
mod barrier;
#[path = "../../ringfold/src/transport/shm/claims.rs"]
mod claims;
#[path = "../../ringfold/src/transport/shm/doorbell.rs"]
mod doorbell;
#[path = "../../ringfold/src/transport/shm/flag.rs"]
mod flag;
