//! The command from the user's point of view: real processes, their output and their exit status.

mod device;
mod file_limit;
mod help;
mod hosts;
mod info;
mod limits;
mod perf;
mod process;
mod rdma;
mod run;
mod schedule;
mod sim;
#[path = "../../../ringfold/tests/skipped/mod.rs"]
mod skipped;
mod tune;
mod tuner;
