//! What the driver says: the sentence that ends the process, and reports on waits that last.

use std::process;
use std::thread;
use std::time::Duration;

use crate::driver::{Driver, lock};

/// Between two looks at the queues.
const LOOK: Duration = Duration::from_millis(20);

/// Ends the process with a sentence.
pub fn end(sentence: String) -> ! {
    eprintln!("softcuda: {sentence}");
    process::abort()
}

/// All queues, what they wait for, and the words that they wait for.
pub fn report(driver: &Driver) -> String {
    // Without the lock of the list, which enqueuing needs.
    let queues = lock(&driver.queues).clone();
    let busy = queues.iter().filter(|queue| !queue.is_idle());
    let lines: Vec<String> = busy.map(|queue| queue.report(driver).to_string()).collect();
    if lines.is_empty() {
        return "softcuda: all queues are empty".into();
    }
    format!("softcuda: busy queues:\n{}", lines.join("\n"))
}

/// Starts the thread that reports waits which last.
pub fn start(driver: &'static Driver) {
    let to_ns = |ms: u64| match ms {
        0 => u64::MAX,
        ms => ms * 1_000_000,
    };
    let report_ns = to_ns(driver.settings.report_ms);
    let abort_ns = to_ns(driver.settings.abort_ms);
    if report_ns == u64::MAX && abort_ns == u64::MAX {
        return;
    }
    let watch = move || {
        loop {
            thread::sleep(LOOK);
            let queues = lock(&driver.queues).clone();
            let blocked = queues.iter().filter_map(|queue| queue.blocked(report_ns));
            // All are looked at, so that one report is for all that became due.
            let blocked: Vec<(u64, bool)> = blocked.collect();
            if blocked
                .iter()
                .any(|(ns, reported)| *ns >= report_ns && !reported)
            {
                eprintln!("{}", report(driver));
            }
            if blocked.iter().any(|(ns, _)| *ns >= abort_ns) {
                eprintln!("{}", report(driver));
                end(format!("a wait lasts {} ms", driver.settings.abort_ms));
            }
        }
    };
    let thread = thread::Builder::new().name("softcuda-watch".into());
    if let Err(error) = thread.spawn(watch) {
        end(format!("no thread for reports: {error}"));
    }
}
