//! How a process joins a job.

pub mod launch;

pub use launch::Explicit;
