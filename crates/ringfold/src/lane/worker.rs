//! The lane's thread: it carries out the host's part of each slice.
//!
//! Where streams wait for words it makes no driver call. So no lock of the driver can hold it, and
//! whatever a device waits for, its own thread will say (see [`program`](super::program)). It waits
//! for the device by looking at words: a device wakes no thread. While data is under way it looks
//! all the time, and lets other threads run in between; before, and where data takes long, it naps
//! ([`Looks`]).
//!
//! # After a fault
//!
//! A device must not wait for ever for what will not come. The thread then *releases* all slices of
//! the calls under way and of those that are made before their callers know. Once for the lane, it
//! waits until the device has taken the results that it may take, and fills all places of results
//! and of own sums with bytes of ones, which is not a number in every type of floating point (and
//! -1 as an integer). Then one store for each call lets the device go on to the call's end. A peer
//! that was stopped within a store of an earlier slice may finish it for a moment after that.
//!
//! What a device copies from the slots of all ranks has no place of its own. Before the first slice
//! is released, the thread therefore says to all ranks of its host that slots may hold anything
//! from now on ([`Staging::say_fault`]); what was copied from them then is filled with ones by the
//! device ([`guard`](super::guard)), and what is combined from them stays where it is
//! ([`gate`](super::gate)).

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::call::LaneCall;
use super::gate::CallGate;
use super::parts::CallParts;
use super::path::{Path, refusal};
use super::program::slices_in_flight;
use super::staging::{BANKS, Bank, Staging};
use crate::communicator::{Communicator, Work};
use crate::engine::Gate;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::sync::lock;
use crate::threads;
use crate::wait::{Looks, WordWait, wait_until};

/// The most calls of one kernel that wait for the thread: what is given beyond that waits. Devices
/// do not wait for it, so it could fall behind without an end.
const WAITING_CALLS_MAX: usize = 4096;

/// How long the results' places that a device still reads hold back the release of slices: after
/// that the device has a fault of its own, or its program does not let it go on.
const RELEASE_WAIT: Duration = Duration::from_secs(5);

/// How long the verdict of a fault may take that a peer has told this rank's device of.
const VERDICT_WAIT: Duration = Duration::from_secs(5);

/// What the thread has been given, and what became of it.
#[derive(Debug, Default)]
struct State {
    calls: VecDeque<Arc<LaneCall>>,
    is_closing: bool,
    /// How many calls were given, and how many of them are carried out.
    given: u64,
    carried_out: u64,
    fault: Option<Error>,
    /// Slices below these numbers, by bank, are the last that the device takes, because the driver
    /// refused a call.
    takes_end: Option<[u32; BANKS]>,
    /// Whether the places of results are filled with ones.
    has_ones: bool,
}

impl State {
    /// Whether all calls are carried out.
    fn is_idle(&self) -> bool {
        self.carried_out == self.given
    }
}

/// The thread, as the threads that make calls see it.
#[derive(Debug)]
pub struct Worker {
    communicator: Communicator,
    state: Mutex<State>,
    /// Partner of changes of `state`.
    changed: Condvar,
}

impl Worker {
    /// A thread's share: `run` is what it runs.
    pub fn new(communicator: Communicator) -> Worker {
        Worker {
            communicator,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The communicator, which belongs to this thread but for questions and `abort`.
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// Gives it calls, unless the lane is being closed; how many it has been given so far.
    pub fn give(&self, calls: &[Arc<LaneCall>]) -> Result<u64> {
        let mut state = lock(&self.state);
        if state.is_closing {
            return Err(Error::Closed);
        }
        state.calls.extend(calls.iter().cloned());
        state.given += calls.len() as u64;
        self.changed.notify_all();
        Ok(state.given)
    }

    /// Waits until few calls wait for the thread, which needs nothing that is made later.
    pub fn wait_for_room(&self) {
        let mut state = lock(&self.state);
        while state.calls.len() >= WAITING_CALLS_MAX {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// What has ended the lane, on this rank or another.
    pub fn fault(&self) -> Option<Error> {
        let own = lock(&self.state).fault.clone();
        own.or_else(|| self.communicator.fault())
    }

    /// The same behind what a device has done. A peer with a fault says so to the device first,
    /// which may have filled results by then; its verdict is waited for.
    pub fn fault_after(&self, staging: &Staging) -> Option<Error> {
        if staging.words(Bank::Host).has_fault() {
            wait_until(|| self.fault().is_some(), VERDICT_WAIT);
        }
        self.fault()
    }

    /// Ends the lane on all ranks, by `error` if nothing else has; gives what has.
    pub fn fail(&self, error: Error) -> Error {
        if self.communicator.fault().is_none() {
            match &error {
                Error::Aborted { reason, .. } => self.communicator.abort(reason),
                _ => self.communicator.abort(&error.to_string()),
            }
        }
        // The verdict, if there is one, is the same on all ranks.
        let error = self.communicator.fault().unwrap_or(error);
        lock(&self.state).fault.get_or_insert(error).clone()
    }

    /// Ends the lane on all ranks because the driver refused a call; slices below `takes_end`, by
    /// bank, are taken by what is enqueued.
    pub fn fail_by_driver(&self, error: Error, takes_end: [u32; BANKS]) -> Error {
        lock(&self.state).takes_end.get_or_insert(takes_end);
        self.fail(self.refusal(&error))
    }

    /// Ends the lane on all ranks because the driver did not let a stream wait for a call; all that
    /// was enqueued is carried out or released. A forked child has no lane to end.
    pub fn fail_by_join(&self, error: Error) -> Error {
        match self.communicator.is_forked() {
            true => error,
            false => self.fail(self.refusal(&error)),
        }
    }

    /// Whether all calls that were given are carried out.
    pub fn is_idle(&self) -> bool {
        lock(&self.state).is_idle()
    }

    /// Whether the first `count` calls that were given are carried out: nothing more of them is
    /// enqueued. Waits for that, at most for `timeout`.
    pub fn has_carried_out(&self, count: u64, timeout: Duration) -> bool {
        let state = lock(&self.state);
        let waited = self
            .changed
            .wait_timeout_while(state, timeout, |state| state.carried_out < count);
        let (state, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        state.carried_out >= count
    }

    /// Waits until all calls are carried out, and has the thread end.
    pub fn finish(&self) {
        let mut state = lock(&self.state);
        state.is_closing = true;
        self.changed.notify_all();
        while !state.is_idle() {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// What the thread runs: `path` is its end of what leads to the device.
    pub fn run(self: Arc<Self>, path: Path) {
        threads::sleep_exactly();
        let path = Arc::new(Mutex::new(path));
        while let Some(call) = self.next() {
            self.carry_out(&call, &path);
            lock(&self.state).carried_out += 1;
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Arc<LaneCall>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(call) = state.calls.pop_front() {
                return Some(call);
            }
            if state.is_closing {
                return None;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Carries out the host's part of `call`, or releases what is left of it.
    fn carry_out(self: &Arc<Self>, call: &Arc<LaneCall>, path: &Arc<Mutex<Path>>) {
        let mut done = 0;
        // A panic is a fault, too: devices must not wait for a thread that is gone.
        let slices = AssertUnwindSafe(|| self.slices(call, path, &mut done));
        let outcome = panic::catch_unwind(slices).unwrap_or_else(|_| {
            let rank = self.communicator.rank();
            let reason = "the thread of its lane has panicked".into();
            Err(Error::Aborted { rank, reason })
        });
        if let Err(error) = outcome {
            self.fail(error);
        }
        let mut path = lock(path);
        if done < call.slices {
            self.release(call, done, &mut path);
        }
        if let Err(error) = path.end(call) {
            self.fail(self.refusal(&error));
        }
    }

    /// The slices of `call`, in order; `done` counts those that the device takes.
    fn slices(
        self: &Arc<Self>,
        call: &Arc<LaneCall>,
        path: &Arc<Mutex<Path>>,
        done: &mut u32,
    ) -> Result<()> {
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        let Some((request, slice_bytes)) = call.compared() else {
            return self.messages(call, &mut lock(path), done);
        };
        let direct = match (call.bank, &*lock(path)) {
            (Bank::Direct, Path::Stream(stream)) => Some(stream.direct.clone()),
            _ => None,
        };
        if let Some(slots) = direct {
            let gate = Gate::Shared(Arc::new(CallGate::new(&slots, call)));
            self.communicator.run_gated(&request, slice_bytes, gate)?;
            *done = call.slices;
            return Ok(());
        }
        let worker = self.clone();
        let later = Box::new(move |number| worker.later(number));
        let parts = CallParts::new(self.communicator.rank(), path, call, later);
        let parts = Arc::new(parts);
        let gate = Gate::Own(parts.clone());
        let outcome = self.communicator.run_gated(&request, slice_bytes, gate);
        *done = parts.released();
        outcome
    }

    /// The slices of messages, several at a time, which the device takes in order.
    fn messages(&self, call: &Arc<LaneCall>, path: &mut Path, done: &mut u32) -> Result<()> {
        let mut under_way = VecDeque::new();
        let outcome = self.messages_behind(call, path, done, &mut under_way);
        // Said before the messages under way are waited for, which end by it.
        outcome.map_err(|error| self.fail(error))
    }

    /// The same; `under_way` has the messages of the slices that have begun.
    fn messages_behind(
        &self,
        call: &Arc<LaneCall>,
        path: &mut Path,
        done: &mut u32,
        under_way: &mut VecDeque<Vec<Work>>,
    ) -> Result<()> {
        let most = slices_in_flight(path.staging().depth());
        let mut begun = 0;
        while *done < call.slices {
            let has_room = begun < call.slices && begun - *done < most;
            if has_room && (begun == *done || self.is_ready(call, begun, path)?) {
                self.wait_for_device(call, begun, path)?;
                under_way.push_back(self.begin_messages(call, begun, path)?);
                begun += 1;
                continue;
            }
            let oldest = under_way.pop_front().unwrap_or_default();
            let mut oldest = oldest.into_iter();
            oldest.try_for_each(|work| work.wait().map(|_| ()))?;
            let going_on = path.go_on(call, *done);
            going_on.map_err(|error| self.refusal(&error))?;
            *done += 1;
        }
        Ok(())
    }

    /// Begins the messages of `slice`: none are left of a single one, which ends here.
    fn begin_messages(&self, call: &LaneCall, slice: u32, path: &Path) -> Result<Vec<Work>> {
        let number = call.number(slice);
        let slot = path.staging().slot(call.bank, number).region();
        let result = path.staging().result(number).region();
        let requests = call.messages_of(slice, slot, result);
        if let ([request], 1) = (&requests[..], call.slices) {
            // SAFETY: the slot and the result belong to this thread until it says otherwise, and
            // `run` returns when the call is done.
            unsafe { self.communicator.run(request, &mut || Ok(())) }?;
            return Ok(vec![]);
        }
        // SAFETY: as above; all works are waited for, or the communicator has ended.
        unsafe { self.communicator.start_group(requests) }
    }

    /// Whether `slice` stands in its slot and its result's place is free.
    fn is_ready(&self, call: &Arc<LaneCall>, slice: u32, path: &mut Path) -> Result<bool> {
        let is_ready = path.is_ready(call, slice, |number| self.later(number));
        is_ready.map_err(|error| self.refusal(&error))
    }

    /// Waits for that.
    ///
    /// Without a deadline, also where there is a single rank: what the program's stream holds
    /// before the call may take as long as it likes. A peer whose data has arrived has the call's
    /// deadline, and names this rank.
    fn wait_for_device(&self, call: &Arc<LaneCall>, slice: u32, path: &mut Path) -> Result<()> {
        let looks = Looks::begin(match slice {
            0 => WordWait::Lull,
            _ => WordWait::Flight,
        });
        while !self.is_ready(call, slice, path)? {
            if looks.pause() {
                self.fault().map_or(Ok(()), Err)?;
            }
        }
        Ok(())
    }

    /// The call that waits for the thread and has slice `number` of the host's bank.
    fn later(&self, number: u32) -> Option<Arc<LaneCall>> {
        let state = lock(&self.state);
        let mut calls = state.calls.iter();
        calls.find(|call| call.slice_of(number).is_some()).cloned()
    }

    /// What a call that the device's driver refused means for the lane.
    fn refusal(&self, error: &Error) -> Error {
        refusal(self.communicator.rank(), error)
    }

    /// Lets the device go on to the end of `call`, of which nothing completes the slices from
    /// `first` on.
    fn release(&self, call: &LaneCall, first: u32, path: &mut Path) {
        let fills = !lock(&self.state).has_ones;
        if fills && !wait_until(|| self.is_taken(path), RELEASE_WAIT) {
            log::debug!(
                target: "ringfold::device",
                "a device has not taken its results in time: slices are released all the same"
            );
        }
        // Before the device goes on, or it would combine what is no data.
        path.staging().say_fault();
        if fills {
            let staging = path.staging();
            for number in 0..staging.depth() {
                staging.results(number).for_each(fill_with_ones);
            }
            lock(&self.state).has_ones = true;
        }
        if let Err(error) = path.let_go(call, first) {
            log::debug!(target: "ringfold::device", "slices are not taken: {error}");
        }
    }

    /// Whether the device has taken the results of all slices that were released, of those that it
    /// will take.
    fn is_taken(&self, path: &Path) -> bool {
        let ends = lock(&self.state).takes_end;
        let is_taken = |bank: Bank| {
            let end = ends.map(|ends| ends[bank as usize]);
            // After an error, the device runs nothing more.
            path.is_taken(bank, end).unwrap_or(true)
        };
        is_taken(Bank::Host) && is_taken(Bank::Direct)
    }
}

/// Makes `region` hold no number.
fn fill_with_ones(region: Region) {
    const ONES: [u8; 4096] = [0xff; 4096];
    for begin in (0..region.bytes()).step_by(ONES.len()) {
        let end = region.bytes().min(begin + ONES.len());
        region.part(begin..end).write(&ONES[..end - begin]);
    }
}
