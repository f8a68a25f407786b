//! The loop in which a thread drives the engine.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::thread;

use super::{Driver, INBOX, ON_WAIT_INTERVAL, State, VISIT};
use crate::communicator::waiting::Waiting;
use crate::communicator::work::Completion;
use crate::engine::lateness::UNTIMED_ATTEMPTS;
use crate::engine::{Finished, JobId};
use crate::error::Result;
use crate::transport::Time;
use crate::wait::{BLOCK_MAX, Pause};

/// Until when a thread drives.
pub(super) enum Until<'a> {
    /// This job, which is the thread's own, is done; who sent is noted, if it was a receive.
    Job(JobId, Cell<Option<usize>>),
    Complete(&'a Completion),
    Tiny,
    Idle,
}

impl Until<'_> {
    pub fn job(id: JobId) -> Self {
        Until::Job(id, Cell::new(None))
    }

    /// Who sent.
    pub fn source(&self) -> Option<usize> {
        match self {
            Until::Job(_, source) => source.get(),
            _ => None,
        }
    }
}

/// Why a thread stopped driving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// What it drove for is reached.
    Reached,
    /// A visitor wants the state, or its own callback is due; what it drove for goes on.
    Asked,
}

/// How long a thread has waited: kept while it lets go of the engine and takes it up again.
#[derive(Debug)]
pub(super) struct Pace {
    /// Fruitless attempts in a row.
    attempts: u32,
    /// Whether it has a callback.
    calls_back: bool,
    last_call_back: Option<Time>,
    /// Whether it is to call back before it goes on.
    pub is_call_back_due: bool,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            attempts: 0,
            calls_back: true,
            last_call_back: None,
            is_call_back_due: false,
        }
    }
}

impl Pace {
    /// The pace of a thread without a callback.
    pub fn without_callback() -> Pace {
        Pace {
            calls_back: false,
            ..Pace::default()
        }
    }
}

impl Driver {
    /// Drives until `until` is reached, or something else asks for the engine.
    pub(super) fn drive(
        &self,
        state: &mut State,
        until: &Until<'_>,
        pace: &mut Pace,
    ) -> Result<Step> {
        let mut now = Time(0);
        let mut attempts = pace.attempts;
        self.note(state);
        loop {
            // Pairs with the stores in `enqueue` and `visit`.
            let attention = self.attention.load(Ordering::Acquire);
            if attention != 0 {
                if attention & INBOX != 0 {
                    self.drain(state);
                }
                if attention & VISIT != 0 {
                    pace.attempts = attempts;
                    return Ok(Step::Asked);
                }
            }
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            if state.engine.goes_by_time() {
                now = self.now();
            }
            let progressed = match state.engine.progress(now) {
                Ok(progressed) => progressed,
                Err(error) => return Err(self.fail(state, error)),
            };
            if progressed && attempts > 0 {
                state.waiter.learn(attempts);
                attempts = 0;
            }
            if progressed {
                state.engine.lateness().end_wait(|| self.now());
            }
            if self.deliver(state, until) {
                self.note(state);
                self.fall_silent(state);
                return Ok(Step::Reached);
            }
            if progressed {
                if state.engine.is_at_work() && self.look_up(state, &mut now, pace)? {
                    pace.attempts = attempts;
                    return Ok(Step::Asked);
                }
                continue;
            }
            attempts += 1;
            state.engine.lateness().begin_wait();
            if self.watch.is_faulty() {
                self.heed_verdict(state)?;
            }
            if state.waiter.is_clock_due(attempts) {
                now = self.now();
                state.engine.lateness().time_wait(now);
                if self.look_around(state, now, pace)? {
                    pace.attempts = attempts;
                    return Ok(Step::Asked);
                }
            } else if attempts == UNTIMED_ATTEMPTS {
                let now = self.now();
                state.engine.lateness().time_wait(now);
            }
            match state.waiter.pause(attempts) {
                Pause::Spin => std::hint::spin_loop(),
                Pause::Yield => thread::yield_now(),
                Pause::Block(timeout) => {
                    let timer = state.engine.next_timer();
                    let until_timer = timer.map_or(BLOCK_MAX, |timer| timer.since(self.now()));
                    let timeout = timeout.min(BLOCK_MAX).min(until_timer);
                    if let Err(error) = state.engine.transport().block(timeout) {
                        return Err(self.fail(state, error));
                    }
                }
            }
        }
    }

    /// Tells whom it concerns about finished jobs; whether `until` is reached.
    fn deliver(&self, state: &mut State, until: &Until<'_>) -> bool {
        let mut is_mine_done = false;
        let mut is_any_done = false;
        while let Some(Finished { id, source }) = state.engine.take_finished() {
            is_any_done = true;
            match until {
                Until::Job(mine, sender) if *mine == id => {
                    is_mine_done = true;
                    sender.set(source);
                }
                _ => {
                    if let Some(completion) = state.completions.remove(&id) {
                        completion.succeed(source);
                    }
                }
            }
        }
        if is_any_done {
            self.note(state);
        }
        state.engine.lateness().settle();
        if state.tiny.is_some() && !state.engine.is_tiny_active() {
            state.tiny.take().iter().for_each(|tiny| tiny.succeed(None));
        }
        if !state.idle.is_empty() && self.is_state_idle(state) {
            state.idle.drain(..).for_each(|idle| idle.succeed(None));
        }
        match until {
            Until::Job(..) => is_mine_done,
            Until::Tiny => !state.engine.is_tiny_active(),
            Until::Complete(completion) => completion.result().is_some(),
            Until::Idle => self.is_state_idle(state),
        }
    }

    /// Whether no job is under way, nor about to be.
    pub(super) fn is_state_idle(&self, state: &State) -> bool {
        // Pairs with the store in `enqueue`.
        let is_filled = self.attention.load(Ordering::Acquire) & INBOX != 0;
        state.engine.is_idle() && !is_filled
    }

    /// Notes how far this rank is, for those who ask.
    pub(super) fn note(&self, state: &State) {
        let engine = &state.engine;
        let progress = self.watch.progress();
        progress.note(engine.collectives_finished(), engine.sequence());
    }

    /// Says what this rank waits in.
    fn describe(&self, state: &mut State) {
        if let Some(site) = state.engine.running_site() {
            let text = format!("{}, {}", site.call, site.phase);
            self.watch.progress().describe(site.call, text);
            state.is_described = true;
            let now = self.now();
            let waiting = state.waiting.get_or_insert(Waiting::new(&site.call, now));
            if waiting.is_claim_due(&site.call, now) {
                self.watch.claim(site.call);
            }
        }
    }

    /// Says that it waits in nothing any more.
    pub(super) fn fall_silent(&self, state: &mut State) {
        if std::mem::take(&mut state.is_described) {
            self.watch.progress().fall_silent();
            state.waiting = None;
        }
    }

    /// What is done between two pieces of work that would go on whatever befalls the peers.
    fn look_up(&self, state: &mut State, now: &mut Time, pace: &mut Pace) -> Result<bool> {
        if self.watch.is_faulty() {
            return Err(self.end_by_verdict(state));
        }
        *now = self.now();
        self.look_around(state, *now, pace)
    }

    /// What is too costly to do on every attempt. Gives whether the thread is to call back.
    fn look_around(&self, state: &mut State, now: Time, pace: &mut Pace) -> Result<bool> {
        let checked = state.engine.check_deadlines(now);
        if let Err(error) = checked.and_then(|()| state.engine.compare_media()) {
            return Err(self.fail(state, error));
        }
        let last = *pace.last_call_back.get_or_insert(now);
        if now.since(last) < ON_WAIT_INTERVAL {
            return Ok(false);
        }
        pace.last_call_back = Some(now);
        self.describe(state);
        if self.watch.anyone_left() {
            self.heed_departures(state)?;
        }
        pace.is_call_back_due = pace.calls_back;
        Ok(pace.calls_back)
    }
}
