//! Enqueuing: a call's steps as driver calls, in the thread of the caller.

use std::sync::Arc;

use super::call::{LaneCall, Marks};
use super::copies;
use super::decide::Decisions;
use super::guard::Guard;
use super::one_shot::OneShot;
use super::one_shot::call::OneShotCall;
use super::program::{Step, is_batched};
use super::request::DeviceRequest;
use super::staging::{BANKS, Bank, Staging};
use super::words::Word;
use crate::device::{Current, Device, ProgramStream, Stream};
use crate::error::Result;
use crate::tune::devices::choice::{Carried, DevicePlan};

/// The most calls of one kernel in a row, which bring nothing: the word of what has arrived must
/// not fall half a circle behind.
const ONE_SHOTS_MAX: u32 = 1 << 30;

/// What the thread uses that makes a call.
#[derive(Debug)]
pub struct Issuer {
    device: Arc<Device>,
    staging: Arc<Staging>,
    decisions: Decisions,
    /// What ends direct calls, if there are such.
    guard: Option<Guard>,
    /// With what it does small all-reduces by one kernel, if it does.
    pub(super) one_shot: Option<OneShot>,
    /// The number of the next call's first slice, in each bank.
    pub next: [u32; BANKS],
    /// The number behind the last direct slice that is brought.
    brought: u32,
    /// Slices below these numbers are taken by what is enqueued, by bank.
    takes: [u32; BANKS],
}

impl Issuer {
    /// An issuer to the streams of `staging`. `guard` ends direct calls, and `one_shot` does small
    /// all-reduces, if `decisions` have such.
    pub fn new(
        device: &Arc<Device>,
        staging: Arc<Staging>,
        decisions: Decisions,
        guard: Option<Guard>,
        one_shot: Option<OneShot>,
    ) -> Issuer {
        Issuer {
            device: device.clone(),
            staging,
            decisions,
            guard,
            one_shot,
            next: [0; BANKS],
            brought: 0,
            takes: [0; BANKS],
        }
    }

    /// The events of a call that is made in `program`; none where the stream's operations are
    /// recorded instead of run: the numbers of slices would be those of the recording for ever.
    pub fn begin(&self, program: ProgramStream) -> Result<Option<Marks>> {
        let current = self.device.enter()?;
        match current.is_capturing(program)? {
            true => Ok(None),
            false => Ok(Some(Marks {
                fork: current.event()?,
                joined: current.event()?,
            })),
        }
    }

    /// `request` as a call that one kernel does, if it does. May have to compile that.
    pub fn one_shot(&mut self, request: &DeviceRequest) -> Result<Option<OneShotCall>> {
        let Some(one_shot) = &mut self.one_shot else {
            return Ok(None);
        };
        let on_host = request.on_host();
        let in_a_row = self.next[Bank::Direct as usize].wrapping_sub(self.brought);
        let plan = self.decisions.plan(&on_host, true);
        let is_due = plan.carried == Carried::OneShot && in_a_row < ONE_SHOTS_MAX;
        if !is_due || !one_shot.fits(request) {
            return Ok(None);
        }
        self.decisions.log(&on_host, &plan);
        let number = one_shot.number(&self.device.enter()?, request)?;
        Ok(Some(one_shot.call(&self.staging, request.clone(), number)))
    }

    /// Notes that `call` has been made.
    pub fn begin_call(&mut self, call: &LaneCall) {
        self.next[call.bank as usize] = call.end();
        if call.carried() == Carried::Direct && call.slices > 0 {
            self.brought = call.end();
        }
        if let (Some(one_shot), Some(made)) = (&mut self.one_shot, call.one_shot()) {
            one_shot.begin(made);
        }
    }

    /// The most helper threads that are worthwhile for sums in slots.
    pub fn helpers_max(&self) -> usize {
        self.decisions.helpers_max()
    }

    /// How the collective `request` is cut.
    pub fn plan(&mut self, request: &DeviceRequest) -> DevicePlan {
        let request = request.on_host();
        let plan = self.decisions.plan(&request, false);
        self.decisions.log(&request, &plan);
        plan
    }

    /// Enqueues `call` behind what `program` holds now. Its event `joined` then stands for its end.
    ///
    /// May block while the device's queues are full, and never for something that is enqueued
    /// later. After an error, [`takes`](Issuer::takes) says how far it came.
    pub fn enqueue(&mut self, call: &LaneCall, program: ProgramStream) -> Result<()> {
        let device = self.device.clone();
        let current = device.enter()?;
        if let Some(one_shot) = call.one_shot() {
            return self.launch(&current, call, one_shot, program);
        }
        current.fork(
            &call.marks.fork,
            program,
            &[&self.staging.out, &self.staging.into],
        )?;
        // The number of the last slice in each stream, until it is written.
        let (mut brought, mut taken) = (None, None);
        let mut steps = call.steps(self.staging.depth());
        let enqueued = steps.try_for_each(|step| match step {
            Step::Bring(slice) => self.bring(&current, call, slice, &mut brought),
            Step::Take(slice) => self.take(&current, call, slice, &mut taken),
        });
        if enqueued.is_err() {
            // The thread must not fill places from which the device still copies. If the driver
            // refuses this call, too, the device no longer runs anything.
            let _ = self.end_taking(&current, call, &mut taken);
        }
        enqueued?;
        current.record(&call.marks.joined, &self.staging.into)
    }

    /// Enqueues the kernel that does `call`.
    fn launch(
        &mut self,
        current: &Current<'_>,
        call: &LaneCall,
        made: &OneShotCall,
        program: ProgramStream,
    ) -> Result<()> {
        let into = &self.staging.into;
        current.fork(&call.marks.fork, program, &[into])?;
        if let Some(one_shot) = &self.one_shot
            && !one_shot.launch(current, &self.staging, made, call.end())?
        {
            current.write(into, self.staging.word(call.bank, Word::Taken), call.end())?;
        }
        self.takes[call.bank as usize] = call.end();
        current.record(&call.marks.joined, into)
    }

    /// Marks what `program` holds now as what `call` comes behind. Its copies are the thread's.
    pub fn fork(&self, call: &LaneCall, program: ProgramStream) -> Result<()> {
        self.device.enter()?.mark(&call.marks.fork, program)
    }

    fn bring(
        &self,
        current: &Current<'_>,
        call: &LaneCall,
        slice: u32,
        brought: &mut Option<u32>,
    ) -> Result<()> {
        let due = call.number(slice).wrapping_add(1);
        let free = due.wrapping_sub(self.staging.depth());
        let (out, words) = (&self.staging.out, [Word::Arrived, Word::Free]);
        self.write_and_wait(current, out, call, words, [brought.take(), Some(free)])?;
        copies::bring(current, &self.staging, call, slice)?;
        *brought = Some(due);
        match self.is_written_now(call, slice) {
            true => self.write_and_wait(current, out, call, words, [brought.take(), None]),
            false => Ok(()),
        }
    }

    fn take(
        &mut self,
        current: &Current<'_>,
        call: &LaneCall,
        slice: u32,
        taken: &mut Option<u32>,
    ) -> Result<()> {
        let due = call.number(slice).wrapping_add(1);
        let staging = self.staging.clone();
        let (words, before) = ([Word::Taken, Word::Released], *taken);
        self.write_and_wait(current, &staging.into, call, words, [before, Some(due)])?;
        let takes = &mut self.takes[call.bank as usize];
        *takes = before.unwrap_or(*takes);
        *taken = Some(due);
        copies::take(current, &staging, call, slice)?;
        if slice + 1 == call.slices {
            return self.end_taking(current, call, taken);
        }
        match self.is_written_now(call, slice) {
            true => self.write_taken(current, call, taken),
            false => Ok(()),
        }
    }

    /// Ends what is taken of `call`: of a direct one, the device looks for faults.
    fn end_taking(
        &mut self,
        current: &Current<'_>,
        call: &LaneCall,
        taken: &mut Option<u32>,
    ) -> Result<()> {
        if let (Some(guard), Bank::Direct, false) = (&self.guard, call.bank, call.sums_alone()) {
            for output in call.outputs() {
                guard.enqueue(current, &self.staging, *output)?;
            }
        }
        self.write_taken(current, call, taken)
    }

    /// Has the device say that it has taken what is enqueued, if it does not say so yet.
    fn write_taken(
        &mut self,
        current: &Current<'_>,
        call: &LaneCall,
        taken: &mut Option<u32>,
    ) -> Result<()> {
        let (into, words) = (&self.staging.into, [Word::Taken, Word::Released]);
        self.write_and_wait(current, into, call, words, [*taken, None])?;
        let takes = &mut self.takes[call.bank as usize];
        *takes = taken.take().unwrap_or(*takes);
        Ok(())
    }

    /// Whether the word behind `slice` is written at once, and not with the wait for the next.
    fn is_written_now(&self, call: &LaneCall, slice: u32) -> bool {
        slice + 1 == call.slices || !is_batched(self.staging.depth())
    }

    /// Has `stream` store the first value in the first of the call's `words`, and then wait until
    /// the second word has reached the second value, unless it has by now.
    fn write_and_wait(
        &self,
        current: &Current<'_>,
        stream: &Stream,
        call: &LaneCall,
        words: [Word; 2],
        [written, awaited]: [Option<u32>; 2],
    ) -> Result<()> {
        let word = |index: usize| self.staging.word(call.bank, words[index]);
        let is_due = |value: &u32| !self.staging.words(call.bank).has_reached(words[1], *value);
        let written = written.map(|value| (word(0), value));
        let awaited = awaited.filter(is_due).map(|value| (word(1), value));
        current.write_and_wait(stream, written, awaited)
    }

    /// Leaves what the device has to the parent, in a forked child.
    pub fn forget(&mut self) {
        let kernels = (self.guard.take(), self.one_shot.take());
        std::mem::forget(kernels);
    }

    /// Slices below these numbers are taken by what is enqueued, by bank.
    pub fn takes(&self) -> [u32; BANKS] {
        self.takes
    }

    /// Whether the device has done all that was enqueued here.
    pub fn is_idle(&self) -> Result<bool> {
        let current = self.device.enter()?;
        Ok(current.is_idle(&self.staging.out)? && current.is_idle(&self.staging.into)?)
    }
}
