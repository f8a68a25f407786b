//! The loop in which a thread drives the engine.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::thread;

use super::state::{DriverState, EngineDriver, INBOX, ON_WAIT_INTERVAL, VISIT};
use crate::call::CallPosition;
use crate::communicator::completion::Completion;
use crate::communicator::waiting::{CallWait, Look};
use crate::engine::lateness::UNTIMED_ATTEMPTS;
use crate::engine::{Finished, JobId};
use crate::error::Result;
use crate::transport::Time;
use crate::wait::{BLOCK_MAX, Looks, Pause, WordWait};

/// The condition that ends a thread's driving.
pub(super) enum Until<'a> {
    /// The thread's own job is done; the source of a receive is stored.
    Job(JobId, Cell<Option<usize>>),
    Complete(&'a Completion),
    Idle,
}

impl Until<'_> {
    pub fn job(id: JobId) -> Self {
        Until::Job(id, Cell::new(None))
    }

    /// Returns the source of a receive.
    pub fn source(&self) -> Option<usize> {
        match self {
            Until::Job(_, source) => source.get(),
            _ => None,
        }
    }
}

/// Number of attempts at a tiny call before its wait checks deadlines and verdicts: a few
/// microseconds if the attempts spin.
const TINY_ATTEMPTS: u32 = 200;

/// Number of attempts at a tiny call of a thread that holds a lock of its caller: a few
/// microseconds, longer than a rank that makes the same calls is usually late.
const PROMPT_ATTEMPTS: u32 = 60;

/// The reason why a thread stopped driving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// The condition is reached.
    Reached,
    /// A visitor wants the state, the thread's own callback is due, or the thread's patience has
    /// ended; the condition is not reached.
    Asked,
}

/// The state of a thread's wait, kept while the thread releases and retakes the engine.
#[derive(Debug)]
pub(super) struct Pace {
    /// Number of fruitless attempts in a row.
    attempts: u32,
    /// Whether the thread drives its own tiny call and has made only the first attempts at it.
    is_brief: bool,
    /// Whether the thread stops after the first attempts at its tiny call, or the first fruitless
    /// attempt at another one, and neither yields nor blocks.
    is_prompt: bool,
    /// Whether the thread has a callback; only the worker, which drives for others, has none.
    pub calls_back: bool,
    last_call_back: Option<Time>,
    /// Whether the thread must call back before it continues.
    pub is_call_back_due: bool,
    /// The wait for words of devices.
    looks: Option<Looks>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            attempts: 0,
            is_brief: false,
            is_prompt: false,
            calls_back: true,
            last_call_back: None,
            is_call_back_due: false,
            looks: None,
        }
    }
}

impl Pace {
    /// Returns the pace of a thread that begins a tiny call.
    pub fn brief() -> Pace {
        Pace {
            is_brief: true,
            ..Pace::default()
        }
    }

    /// Returns the pace of a thread that begins a tiny call under a lock of its caller.
    pub fn prompt() -> Pace {
        Pace {
            is_prompt: true,
            ..Pace::brief()
        }
    }

    /// Returns the pace of a thread that stops at its first fruitless attempt.
    pub fn without_wait() -> Pace {
        Pace {
            is_prompt: true,
            ..Pace::default()
        }
    }

    /// Returns the pace of a thread without a callback.
    pub fn without_callback() -> Pace {
        Pace {
            calls_back: false,
            ..Pace::default()
        }
    }
}

impl EngineDriver {
    /// Drives until `until` is reached, another thread requests the engine, or the callback is due.
    ///
    /// The first attempts at a tiny call check that call only, and read no clock: most end the
    /// call. All other attempts serve the other threads and poll the transport. If such an attempt
    /// is fruitless, it also checks deadlines and verdicts.
    pub(super) fn drive(
        &self,
        state: &mut DriverState,
        until: &Until<'_>,
        pace: &mut Pace,
    ) -> Result<StopReason> {
        let (mut now, mut attempts) = (Time(0), 0);
        if !pace.is_brief {
            self.note(state);
        }
        loop {
            let attempted = if pace.is_brief {
                state.engine.advance_tiny()
            } else {
                attempts += 1;
                if pace.is_prompt && self.is_enough(attempts) || self.attend(state)? {
                    return Ok(StopReason::Asked);
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
                pace.looks = None;
                state.waiter.learn(std::mem::take(&mut pace.attempts));
                state.engine.lateness().end_wait(|| self.now());
            }
            // The first progress of a tiny call ends it.
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
                return Ok(StopReason::Reached);
            }
            if progressed {
                if state.engine.has_local_work() && self.poll_abort(state, &mut now, pace)? {
                    return Ok(StopReason::Asked);
                }
                continue;
            }
            if let Some(words) = state.engine.words() {
                if self.look(state, words, &mut now, pace)? {
                    return Ok(StopReason::Asked);
                }
                continue;
            }
            pace.attempts += 1;
            if pace.is_brief {
                self.pause_briefly(state, pace);
                if pace.is_prompt && !pace.is_brief {
                    return Ok(StopReason::Asked);
                }
            } else if pace.is_prompt || self.pause(state, &mut now, pace)? {
                return Ok(StopReason::Asked);
            }
        }
    }

    /// Whether a thread that is to return promptly leaves the engine to others: after some
    /// attempts, or if another thread has a job, which may be long.
    fn is_enough(&self, attempts: u32) -> bool {
        // Pairs with the stores in `announce` and `visit`.
        attempts > PROMPT_ATTEMPTS || self.attention.load(Ordering::Acquire) != 0
    }

    /// Serves the requests of other threads; returns whether a thread wants the engine.
    fn attend(&self, state: &mut DriverState) -> Result<bool> {
        // Pairs with the stores in `announce` and `visit`.
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

    /// Pauses after a fruitless attempt at a tiny call. After a while, makes later attempts check
    /// deadlines and verdicts, too.
    fn pause_briefly(&self, state: &mut DriverState, pace: &mut Pace) {
        let pause = state.waiter.pause(pace.attempts);
        if pace.attempts == UNTIMED_ATTEMPTS || pause != Pause::Spin {
            state.engine.time_wait(self.now());
        }
        let attempts_max = match pace.is_prompt {
            true => PROMPT_ATTEMPTS,
            false => TINY_ATTEMPTS,
        };
        let is_brief = pace.attempts < attempts_max;
        match pause {
            Pause::Spin if is_brief => std::hint::spin_loop(),
            // Other threads may keep the core for long, and a verdict may have arrived meanwhile.
            Pause::Yield if is_brief && !pace.is_prompt && !self.watch.is_faulty() => {
                thread::yield_now();
            }
            _ => {
                (pace.attempts, pace.is_brief) = (0, false);
                self.note(state);
            }
        }
    }

    /// Pauses before the next look at words of devices, and makes the checks that are due if that
    /// was a nap; returns whether the callback is due.
    fn look(
        &self,
        state: &mut DriverState,
        words: WordWait,
        now: &mut Time,
        pace: &mut Pace,
    ) -> Result<bool> {
        state.engine.lateness().begin_wait();
        if self.watch.is_faulty() {
            self.handle_verdict(state)?;
        }
        let looks = pace.looks.get_or_insert_with(|| Looks::begin(words));
        if !looks.pause() {
            return Ok(false);
        }
        *now = self.now();
        state.engine.time_wait(*now);
        self.check_deadlines(state, *now, pace)
    }

    /// Makes the checks that are due while nothing progresses, and pauses; returns whether the
    /// callback is due.
    fn pause(&self, state: &mut DriverState, now: &mut Time, pace: &mut Pace) -> Result<bool> {
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

    /// Completes finished jobs; returns whether `until` is reached.
    fn deliver(&self, state: &mut DriverState, until: &Until<'_>) -> bool {
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

    /// Whether no job is under way or in the inbox.
    pub(super) fn is_state_idle(&self, state: &DriverState) -> bool {
        // Pairs with the store in `announce`.
        let is_filled = self.attention.load(Ordering::Acquire) & INBOX != 0;
        state.engine.is_idle() && !is_filled
    }

    /// Publishes this rank's progress for peers that ask.
    pub(super) fn note(&self, state: &DriverState) {
        let engine = &state.engine;
        let progress = self.watch.progress();
        progress.note(engine.collectives_finished(), engine.collectives_begun());
    }

    /// Writes this rank's wait to its status. After a while, also claims its position and looks for
    /// messages of other calls.
    fn describe(&self, state: &mut DriverState) -> Result<()> {
        // A call of devices may have begun since.
        self.note(state);
        if let Some(site) = state.engine.running_site() {
            let text = format!("{}, {}", site.call, site.phase);
            if let Some(recorder) = &state.recorder {
                recorder.board().show_waiting(&text);
            }
            let position = CallPosition {
                call: site.call,
                rooted: state.engine.rooted(),
            };
            self.watch.progress().describe(position, text);
            state.is_described = true;
            let now = self.now();
            let waiting = state.waiting.get_or_insert(CallWait::new(&site.call, now));
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

    /// Clears the status: this rank is not waiting.
    pub(super) fn clear_status(&self, state: &mut DriverState) {
        if std::mem::take(&mut state.is_described) {
            self.watch.progress().clear();
            state.waiting = None;
            if let Some(recorder) = &state.recorder {
                recorder.board().clear_waiting();
            }
        }
    }

    /// Checks verdicts and deadlines between chunks of local work. Returns whether the callback is
    /// due.
    fn poll_abort(&self, state: &mut DriverState, now: &mut Time, pace: &mut Pace) -> Result<bool> {
        if self.watch.is_faulty() {
            return Err(self.end_by_verdict(state));
        }
        *now = self.now();
        self.check_deadlines(state, *now, pace)
    }

    /// Makes the checks that are too costly for every attempt: deadlines, peers that wait in
    /// another call, and, at intervals, departures and the callback. Returns whether the callback
    /// is due.
    fn check_deadlines(&self, state: &mut DriverState, now: Time, pace: &mut Pace) -> Result<bool> {
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
        // A peer's messages may have ended without a report from a server.
        if self.watch.anyone_left() || state.engine.has_any_peer_ended() {
            self.check_departures(state, pace)?;
        }
        pace.is_call_back_due = pace.calls_back;
        Ok(pace.calls_back)
    }
}
