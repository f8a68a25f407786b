//! Runs all-reduces until a rank dies, then reports when this rank's streams are empty and whether
//! the outputs are valid.
//!
//! The launcher kills one of the ranks, so every rank prints its own lines: `running` when calls
//! are in progress, then `drained` with the time of the monotonic clock in nanoseconds, `wrong`
//! with the number of elements that are neither the sum, nor ones, nor untouched, and `error` with
//! the error that ended the calls.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use ringfold::Result;

use crate::lanes::{Checked, ONES};
use crate::rig::{Rig, number};

/// Number of calls before this rank prints `running`.
const FIRST_CALLS: u32 = 3;
/// Time between two checks for a fault.
const LOOK: Duration = Duration::from_millis(100);

pub fn measure(rig: &Rig) -> Result<()> {
    let checked = Checked::new(rig, number("bytes", "64M"))?;
    checked.fill(rig, 0)?;
    let error = run(&checked).expect_err("calls without end");
    rig.finish(&checked.stream)?;
    println!("drained {}", now_ns());
    println!("wrong {}", checked.wrong(rig, 0, &[ONES, 0])?);
    println!("error {error}");
    // The communicator has failed, so it cannot be closed.
    Ok(())
}

/// Makes calls, two of which are in progress at a time, until one fails.
fn run(checked: &Checked) -> Result<()> {
    let mut under_way = None;
    for call in 1.. {
        let before = under_way.replace(checked.enqueue()?);
        while let Some(work) = &before
            && !work.wait_on_host(LOOK)?
        {}
        if call == FIRST_CALLS {
            println!("running");
        }
    }
    Ok(())
}

/// Returns the nanoseconds of the monotonic clock, which all processes of a host share.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
