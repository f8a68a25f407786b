//! Progress on a terminal while simulations run, which goes away however they end.

use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::emulate_default_handler;

/// How often the display is drawn anew while a single simulation takes its time.
const TICK: Duration = Duration::from_millis(200);

/// Hides itself where stderr is no terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Starts, for this many simulations.
    pub fn begin(count: usize) -> Result<Progress> {
        let bar = match count {
            1 => ProgressBar::new_spinner(),
            _ => ProgressBar::new(count as u64),
        };
        bar.set_style(ProgressStyle::with_template(match count {
            1 => "{spinner} simulating {msg} {elapsed}",
            _ => "{bar:30} {pos}/{len} {msg} {elapsed}",
        })?);
        bar.enable_steady_tick(TICK);
        clear_when_interrupted(&bar)?;
        Ok(Progress { bar })
    }

    /// Says what is simulated now.
    pub fn announce(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Counts one simulation.
    pub fn advance(&self) {
        self.bar.inc(1);
    }

    /// Does something with the display out of the way.
    pub fn aside<T>(&self, action: impl FnOnce() -> T) -> T {
        self.bar.suspend(action)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Takes the display away when a signal ends the process, which then ends by it as it would have.
fn clear_when_interrupted(bar: &ProgressBar) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])
        .context("cannot listen for signals")?;
    let bar = bar.clone();
    ringfold::internals::threads::start("ringfold-signals", move || {
        if let Some(signal) = signals.forever().next() {
            bar.finish_and_clear();
            // It ends the process; if it cannot, the simulation continues.
            let _ = emulate_default_handler(signal);
        }
    })?;
    Ok(())
}
