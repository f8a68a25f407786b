//! Real processes that are killed, stopped, disconnected and attacked, and the reaction of the
//! others.
//!
//! This binary also contains the program of a rank: a job starts it once more for every rank, so
//! that the tests are self-contained. Times that depend on the machine's speed are measured by the
//! campaign, which is ignored by default; the tests themselves assert no upper bound on any time
//! except their watchdog's.

mod campaign;
mod command;
mod device_calls;
mod device_faults;
mod endings;
mod freeze;
mod job;
mod lab;
mod late_links;
mod lent;
mod misuse;
mod neighbours;
mod netlab;
mod placement;
mod rails;
mod random;
mod rank;
mod remains;
mod script;
#[path = "../../../ringfold/tests/skipped/mod.rs"]
mod skipped;
mod strangers;
mod tuning;

/// The program of a rank.
#[test]
#[ignore = "a rank of the other tests, which start it"]
fn rank() {
    rank::live();
}
