//! Enqueuing: a call's steps as driver calls, in the thread of the caller.

use std::sync::Arc;

use super::call::LaneCall;
use super::program::{Step, steps};
use super::staging::Staging;
use super::words::Word;
use crate::device::{Current, Device, Event, ProgramStream, Stream};
use crate::error::Result;

/// What the thread uses that makes a call.
#[derive(Debug)]
pub struct Issuer {
    device: Arc<Device>,
    staging: Arc<Staging>,
    fork: Event,
    /// The number of the next call's first slice.
    pub next: u32,
    /// Slices below this number are taken by what is enqueued.
    takes: u32,
}

impl Issuer {
    /// An issuer to the streams of `staging`.
    pub fn new(device: &Arc<Device>, staging: Arc<Staging>) -> Result<Issuer> {
        let current = device.enter()?;
        Ok(Issuer {
            fork: current.event()?,
            device: device.clone(),
            staging,
            next: 0,
            takes: 0,
        })
    }

    /// An event for the end of a call that is made in `program`; none where the stream's operations
    /// are recorded instead of run: the numbers of slices would be those of the recording for ever.
    pub fn begin(&self, program: ProgramStream) -> Result<Option<Event>> {
        let current = self.device.enter()?;
        match current.is_capturing(program)? {
            true => Ok(None),
            false => current.event().map(Some),
        }
    }

    /// Enqueues `call` behind what `program` holds now. `joined` then stands for its end.
    ///
    /// May block while the device's queues are full, and never for something that is enqueued
    /// later. After an error, [`takes`](Issuer::takes) says how far it came.
    pub fn enqueue(
        &mut self,
        call: &LaneCall,
        program: ProgramStream,
        joined: &Event,
    ) -> Result<()> {
        let device = self.device.clone();
        let current = device.enter()?;
        current.fork(
            &self.fork,
            program,
            &[&self.staging.out, &self.staging.into],
        )?;
        for step in steps(call.slices, self.staging.depth()) {
            match step {
                Step::Bring(slice) => self.bring(&current, call, slice)?,
                Step::Take(slice) => {
                    self.take(&current, call, slice)?;
                    self.takes = call.first.wrapping_add(slice).wrapping_add(1);
                }
            }
        }
        current.record(joined, &self.staging.into)
    }

    fn bring(&self, current: &Current<'_>, call: &LaneCall, slice: u32) -> Result<()> {
        let number = call.first.wrapping_add(slice);
        let due = number.wrapping_add(1);
        let free = due.wrapping_sub(self.staging.depth());
        self.wait(current, &self.staging.out, Word::Free, free)?;
        let slot = self.staging.slot(number);
        for (place, part) in call.parts() {
            for brought in part.cut.brought(slice) {
                for (offset, piece) in part.input.pieces(brought.of_buffer) {
                    let begin = place + brought.at + offset;
                    let into = slot.part(begin..begin + piece.bytes());
                    current.bring(&self.staging.out, piece, into)?;
                }
            }
        }
        self.write(current, &self.staging.out, Word::Arrived, due)
    }

    fn take(&self, current: &Current<'_>, call: &LaneCall, slice: u32) -> Result<()> {
        let number = call.first.wrapping_add(slice);
        let due = number.wrapping_add(1);
        self.wait(current, &self.staging.into, Word::Released, due)?;
        let result = self.staging.result(number);
        for (place, part) in call.parts() {
            for taken in part.cut.taken(slice) {
                for (offset, piece) in part.output.pieces(taken.of_buffer) {
                    let begin = place + taken.at + offset;
                    let from = result.part(begin..begin + piece.bytes());
                    current.take(&self.staging.into, from, piece)?;
                }
            }
        }
        self.write(current, &self.staging.into, Word::Taken, due)
    }

    /// Has `stream` wait until `word` has reached `value`, unless it has by now.
    fn wait(&self, current: &Current<'_>, stream: &Stream, word: Word, value: u32) -> Result<()> {
        if self.staging.words().has_reached(word, value) {
            return Ok(());
        }
        current.wait(stream, self.staging.word(word), value)
    }

    fn write(&self, current: &Current<'_>, stream: &Stream, word: Word, value: u32) -> Result<()> {
        current.write(stream, self.staging.word(word), value)
    }

    /// Slices below this number are taken by what is enqueued.
    pub fn takes(&self) -> u32 {
        self.takes
    }

    /// Whether the device has done all that was enqueued here.
    pub fn is_idle(&self) -> Result<bool> {
        let current = self.device.enter()?;
        Ok(current.is_idle(&self.staging.out)? && current.is_idle(&self.staging.into)?)
    }
}
