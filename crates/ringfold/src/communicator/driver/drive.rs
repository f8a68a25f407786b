//! The loop in which a thread drives the engine.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::thread;

use super::state::{Driver, INBOX, ON_WAIT_INTERVAL, State, VISIT};
use crate::call::Position;
use crate::communicator::completion::Completion;
use crate::communicator::waiting::{Look, Waiting};
use crate::engine::lateness::UNTIMED_ATTEMPTS;
use crate::engine::{Finished, JobId};
use crate::error::Result;
use crate::transport::Time;
use crate::wait::{BLOCK_MAX, Pause};

/// Until when a thread drives.
pub(super) enum Until<'a> {
    /// This job, which is the thread's own, is done; the source is noted, if it was a receive.
    Job(JobId, Cell<Option<usize>>),
    Complete(&'a Completion),
    Idle,
}

impl Until<'_> {
    pub fn job(id: JobId) -> Self {
        Until::Job(id, Cell::new(None))
    }

    /// The source of a receive.
    pub fn source(&self) -> Option<usize> {
        match self {
            Until::Job(_, source) => source.get(),
            _ => None,
        }
    }
}

/// Attempts of a tiny call before its wait begins to look at deadlines and verdicts: a few
/// microseconds while they spin.
const TINY_ATTEMPTS: u32 = 200;

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
    /// Whether what it drives is its own tiny call, at which only the first attempts were made.
    is_brief: bool,
    /// Whether it has a callback: all threads but the worker, which drives for others.
    pub calls_back: bool,
    last_call_back: Option<Time>,
    /// Whether it is to call back before it goes on.
    pub is_call_back_due: bool,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            attempts: 0,
            is_brief: false,
            calls_back: true,
            last_call_back: None,
            is_call_back_due: false,
        }
    }
}

impl Pace {
    /// The pace of a thread that begins a tiny call.
    pub fn brief() -> Pace {
        Pace {
            is_brief: true,
            ..Pace::default()
        }
    }

    /// The pace of a thread without a callback.
    pub fn without_callback() -> Pace {
        Pace {
            calls_back: false,
            ..Pace::default()
        }
    }
}

impl Driver {
    /// Drives until `until` is reached, or another thread or the callback asks for the engine.
    ///
    /// The first attempts at a tiny call look at nothing but that call, and read no clock: most end
    /// it. All others attend to the other threads, poll the transport, and look at deadlines and
    /// verdicts when they are fruitless.
    pub(super) fn drive(
        &self,
        state: &mut State,
        until: &Until<'_>,
        pace: &mut Pace,
    ) -> Result<Step> {
        let mut now = Time(0);
        if !pace.is_brief {
            self.note(state);
        }
        loop {
            let attempted = if pace.is_brief {
                state.engine.advance_tiny()
            } else {
                if self.attend(state)? {
                    return Ok(Step::Asked);
                }
                if state.engine.needs_clock() {
                    now = self.now();
                }
                state.engine.progress(now)
            };
            let progressed = match attempted {
                Ok(progressed) => progressed,
                Err(error) => return Err(self.fail(state, error)),
            };
            if progressed {
                state.waiter.learn(std::mem::take(&mut pace.attempts));
                state.engine.lateness().end_wait(|| self.now());
            }
            // A tiny call is done by its first progress.
            let is_reached = match pace.is_brief {
                true => progressed,
                false => self.deliver(state, until),
            };
            if is_reached {
                state.engine.lateness().count_ended_call();
                if let (true, Until::Job(id, _)) = (pace.is_brief, until) {
                    state.show_done(*id);
                }
                self.note(state);
                self.clear_status(state);
                return Ok(Step::Reached);
            }
            if progressed {
                if state.engine.has_local_work() && self.poll_abort(state, &mut now, pace)? {
                    return Ok(Step::Asked);
                }
                continue;
            }
            pace.attempts += 1;
            if pace.is_brief {
                self.pause_briefly(state, pace);
            } else if self.pause(state, &mut now, pace)? {
                return Ok(Step::Asked);
            }
        }
    }

    /// Attends to what other threads ask of the one that drives; whether one wants the engine.
    fn attend(&self, state: &mut State) -> Result<bool> {
        // Pairs with the stores in `enqueue` and `visit`.
        let attention = self.attention.load(Ordering::Acquire);
        if attention & INBOX != 0 {
            self.drain(state);
        }
        if attention & VISIT != 0 {
            return Ok(true);
        }
        match &state.error {
            Some(error) => Err(error.clone()),
            None => Ok(false),
        }
    }

    /// Pauses after a fruitless attempt at a tiny call; the attempts that follow after a while are
    /// to look at deadlines and verdicts, too.
    fn pause_briefly(&self, state: &mut State, pace: &mut Pace) {
        let pause = state.waiter.pause(pace.attempts);
        if pace.attempts == UNTIMED_ATTEMPTS || pause != Pause::Spin {
            state.engine.time_wait(self.now());
        }
        match pause {
            Pause::Spin if pace.attempts < TINY_ATTEMPTS => std::hint::spin_loop(),
            // Others take their time with the core, so a verdict may have come meanwhile.
            Pause::Yield if pace.attempts < TINY_ATTEMPTS && !self.watch.is_faulty() => {
                thread::yield_now();
            }
            _ => {
                (pace.attempts, pace.is_brief) = (0, false);
                self.note(state);
            }
        }
    }

    /// Looks at what matters while nothing moves, and pauses; whether the thread is to call back.
    fn pause(&self, state: &mut State, now: &mut Time, pace: &mut Pace) -> Result<bool> {
        state.engine.lateness().begin_wait();
        if self.watch.is_faulty() {
            self.handle_verdict(state)?;
        }
        if state.waiter.is_clock_due(pace.attempts) {
            *now = self.now();
            state.engine.time_wait(*now);
            if self.check_deadlines(state, *now, pace)? {
                return Ok(true);
            }
        } else if pace.attempts == UNTIMED_ATTEMPTS {
            state.engine.time_wait(self.now());
        }
        match state.waiter.pause(pace.attempts) {
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
        Ok(false)
    }

    /// Completes finished jobs; whether `until` is reached.
    fn deliver(&self, state: &mut State, until: &Until<'_>) -> bool {
        let mut is_mine_done = false;
        let mut is_any_done = false;
        while let Some(Finished { id, source }) = state.engine.take_finished() {
            is_any_done = true;
            if let Some(recorder) = &mut state.recorder {
                recorder.end(id, source);
            }
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
        state.engine.lateness().count_ended_call();
        if is_any_done {
            state.settle();
        }
        if !state.idle.is_empty() && self.is_state_idle(state) {
            state.idle.drain(..).for_each(|idle| idle.succeed(None));
        }
        match until {
            Until::Job(..) => is_mine_done,
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

    /// Notes how far this rank is, for peers that ask.
    pub(super) fn note(&self, state: &State) {
        let engine = &state.engine;
        let progress = self.watch.progress();
        progress.note(engine.collectives_finished(), engine.sequence());
    }

    /// Writes what this rank waits in to its status, and after a while claims its place in it and
    /// looks for messages of other calls.
    fn describe(&self, state: &mut State) -> Result<()> {
        if let Some(site) = state.engine.running_site() {
            let text = format!("{}, {}", site.call, site.phase);
            if let Some(recorder) = &state.recorder {
                recorder.board().show_waiting(&text);
            }
            let position = Position {
                call: site.call,
                rooted: state.engine.rooted(),
            };
            self.watch.progress().describe(position, text);
            state.is_described = true;
            let now = self.now();
            let waiting = state.waiting.get_or_insert(Waiting::new(&site.call, now));
            let look = waiting.look(&site.call, now);
            if look == Some(Look::First) {
                self.watch.claim(position);
            }
            if look.is_some() {
                let compared = state.engine.compare_unexpected();
                compared.map_err(|error| self.fail(state, error))?;
            }
        }
        Ok(())
    }

    /// Clears the status: it waits in nothing any more.
    pub(super) fn clear_status(&self, state: &mut State) {
        if std::mem::take(&mut state.is_described) {
            self.watch.progress().clear();
            state.waiting = None;
            if let Some(recorder) = &state.recorder {
                recorder.board().clear_waiting();
            }
        }
    }

    /// Runs between local work chunks so that they observe aborts. Gives whether the thread is to
    /// call back.
    fn poll_abort(&self, state: &mut State, now: &mut Time, pace: &mut Pace) -> Result<bool> {
        if self.watch.is_faulty() {
            return Err(self.end_by_verdict(state));
        }
        *now = self.now();
        self.check_deadlines(state, *now, pace)
    }

    /// Looks at what is too costly to look at on every attempt: deadlines, peers that wait in
    /// another call, and, now and then, departures and the callback. Gives whether the thread is to
    /// call back.
    fn check_deadlines(&self, state: &mut State, now: Time, pace: &mut Pace) -> Result<bool> {
        let checked = state.engine.check_deadlines(now);
        if let Err(error) = checked.and_then(|()| state.engine.compare_media()) {
            return Err(self.fail(state, error));
        }
        let last = *pace.last_call_back.get_or_insert(now);
        if now.since(last) < ON_WAIT_INTERVAL {
            return Ok(false);
        }
        pace.last_call_back = Some(now);
        self.describe(state)?;
        // A stream may have ended of which no server tells.
        if self.watch.anyone_left() || state.engine.has_any_peer_ended() {
            self.check_departures(state, pace)?;
        }
        pace.is_call_back_due = pace.calls_back;
        Ok(pace.calls_back)
    }
}
