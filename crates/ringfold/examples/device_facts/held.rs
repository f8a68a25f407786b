//! All-reduces until a rank dies: when this rank's streams are empty, and what the outputs hold.
//!
//! The launcher of these ranks kills one of them. So every rank prints its own lines: `running`
//! when calls are under way, then `drained` with the time of the monotonic clock in nanoseconds,
//! `wrong` with the number of elements that are neither the sum, nor ones, nor untouched, and
//! `error` with what the next call says.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use ringfold::Result;

use crate::lanes::{Checked, ONES};
use crate::rig::{Rig, number};

/// Calls before this rank says that it is running.
const FIRST_CALLS: u32 = 3;
/// Between two looks for a fault.
const LOOK: Duration = Duration::from_millis(100);

pub fn measure(rig: &Rig) -> Result<()> {
    let checked = Checked::new(rig, number("bytes", "64M"))?;
    checked.fill(rig, 0)?;
    let error = run(&checked).expect_err("calls without end");
    rig.finish(&checked.stream)?;
    println!("drained {}", now_ns());
    println!("wrong {}", checked.wrong(rig, 0, &[ONES, 0])?);
    println!("error {error}");
    // The communicator has ended: to leave in good order is not possible any more.
    Ok(())
}

/// Makes calls, two of which are under way, until one fails.
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

/// The clock that processes of a host have in common.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
