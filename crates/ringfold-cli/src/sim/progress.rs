//! Progress on a terminal while simulations run, which goes away however they end.

use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle, WeakProgressBar};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::emulate_default_handler;

/// How often the display is drawn anew while a single simulation takes its time.
const TICK: Duration = Duration::from_millis(200);

/// Begins to show it, for this many simulations, until the value is dropped. It hides itself where
/// stderr is no terminal.
pub fn begin(count: usize) -> Result<ProgressBar> {
    let (bar, template) = match count {
        1 => (
            ProgressBar::new_spinner(),
            "{spinner} simulating {msg} {elapsed}",
        ),
        _ => (
            ProgressBar::new(count as u64),
            "{bar:30} {pos}/{len} {msg} {elapsed}",
        ),
    };
    let bar = bar.with_finish(ProgressFinish::AndClear);
    bar.set_style(ProgressStyle::with_template(template)?);
    bar.enable_steady_tick(TICK);
    clear_when_interrupted(bar.downgrade())?;
    Ok(bar)
}

/// Takes the display away when a signal ends the process, which then ends by it as it would have.
fn clear_when_interrupted(bar: WeakProgressBar) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])
        .context("cannot listen for signals")?;
    ringfold::internals::threads::start("ringfold-signals", move || {
        if let Some(signal) = signals.forever().next() {
            if let Some(bar) = bar.upgrade() {
                bar.finish_and_clear();
            }
            // It ends the process; if it cannot, the simulation continues.
            let _ = emulate_default_handler(signal);
        }
    })?;
    Ok(())
}
