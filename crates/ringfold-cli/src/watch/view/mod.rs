//! `ringfold top` on a terminal: one job at a time, redrawn at an interval and by keys.
//!
//! `terminal` has the screen and gives it back, `keys` reads keys, `draw` shows what a [`View`]
//! holds. Samples are taken while the view is paused, too: when it goes on, the rates are of the
//! last interval, not of the whole pause.

mod draw;
mod keys;
mod terminal;

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;
use ratatui::widgets::TableState;
use signal_hook::consts::SIGINT;

use super::jobs::{Job, Sample};
use super::table::Order;
use keys::Key;
use terminal::{Event, Terminal};

/// What is shown, and how.
struct View {
    /// Rates are the difference of these two.
    before: Rc<Sample>,
    now: Rc<Sample>,
    order: Order,
    is_paused: bool,
    /// The number of the job that was chosen.
    job: Option<u64>,
    /// Which row is selected, and which is the first that is shown.
    rows: TableState,
    /// Rows that fit.
    page: u16,
}

/// Shows the jobs until the user leaves; gives the exit status.
pub fn run(interval: Duration, order: Order) -> Result<u8> {
    let mut terminal = Terminal::take()?;
    let mut last = Rc::new(Sample::take(true));
    let mut view = View {
        before: last.clone(),
        now: last.clone(),
        order,
        is_paused: false,
        job: None,
        rows: TableState::new().with_selected(Some(0)),
        page: 1,
    };
    let mut next = Instant::now() + interval;
    loop {
        if terminal.draw(|frame| draw::draw(frame, &mut view)).is_err() {
            // The terminal is gone, and with it where this could be said.
            return Ok(128 + signal_hook::consts::SIGHUP as u8);
        }
        match terminal.wait(next)? {
            Event::Leave(status) => return Ok(status),
            Event::Redraw => {}
            Event::Keys(keys) => {
                for key in keys {
                    match key {
                        Key::Leave => return Ok(0),
                        Key::Interrupt => return Ok(128 + SIGINT as u8),
                        Key::Stop => terminal.stop()?,
                        key => view.press(key),
                    }
                }
            }
            Event::Time => {
                let sample = Rc::new(Sample::take(true));
                if !view.is_paused {
                    (view.before, view.now) = (last, sample.clone());
                }
                last = sample;
                next = Instant::now() + interval;
            }
        }
    }
}

impl View {
    fn press(&mut self, key: Key) {
        match key {
            Key::Pause => self.is_paused = !self.is_paused,
            Key::Sort => self.order = self.order.next(),
            Key::NextJob => self.choose_next(),
            Key::Up => self.rows.select_previous(),
            Key::Down => self.rows.select_next(),
            Key::PageUp => self.rows.scroll_up_by(self.page),
            Key::PageDown => self.rows.scroll_down_by(self.page),
            Key::First => self.rows.select_first(),
            Key::Last => self.rows.select_last(),
            Key::Leave | Key::Interrupt | Key::Stop => {}
        }
    }

    /// The place of the job that is shown: the one that was chosen, or else the first.
    fn place(&self) -> usize {
        let is_chosen = |job: &Job| Some(job.number) == self.job;
        self.now.jobs.iter().position(is_chosen).unwrap_or(0)
    }

    fn choose_next(&mut self) {
        let jobs = &self.now.jobs;
        let next = (self.place() + 1) % jobs.len().max(1);
        self.job = jobs.get(next).map(|job| job.number);
        self.rows = TableState::new().with_selected(Some(0));
    }
}
