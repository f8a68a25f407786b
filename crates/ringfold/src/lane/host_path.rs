//! The path of a lane whose device has no stream memory operations, as with HIP and drivers before
//! CUDA 11.7: its thread enqueues the copies.
//!
//! ```text
//! caller       record fork in the program's stream · give the call · return
//! thread       out waits for fork · copy to slot n%K · record arrived · … query arrived
//!              host call
//!              into waits for fork · copy from result n%K · record taken · … record joined
//! caller       join: block until joined is recorded · the program's stream waits for joined
//! ```
//!
//! So calls need not be joined to be carried out, and a caller is never held by the number of
//! slots. While a call is carried out, the slices of those behind it are brought, as far as there
//! are slots.
//!
//! # Why this thread may call the driver
//!
//! A wait for a word could hold the device, and with it a call of the driver, until the thread
//! stores it; so with words the thread must not call the driver. Here nothing that is enqueued
//! waits for a CPU: copies, and waits for events that are recorded before. Whatever holds the
//! driver until the device is idle therefore ends, and the thread goes on.

use std::sync::Arc;

use super::call::LaneCall;
use super::copies;
use super::staging::Staging;
use super::words::is_reached;
use crate::device::{Device, Event};
use crate::error::Result;

/// What the thread has enqueued.
#[derive(Debug)]
pub struct HostPath {
    device: Arc<Device>,
    staging: Arc<Staging>,
    /// By slot: behind the last copies into it, and by result's place, behind those from it.
    arrived: Vec<Event>,
    taken: Vec<Event>,
    /// The copies of slices below this number into slots are enqueued.
    brought: u32,
    /// The slots of slices below this number may be filled again.
    free: u32,
}

impl HostPath {
    /// The path to the streams of `staging`.
    pub fn new(device: &Arc<Device>, staging: Arc<Staging>) -> Result<HostPath> {
        let current = device.enter()?;
        let events =
            || -> Result<Vec<Event>> { (0..staging.depth()).map(|_| current.event()).collect() };
        let (arrived, taken) = (events()?, events()?);
        Ok(HostPath {
            device: device.clone(),
            staging,
            arrived,
            taken,
            brought: 0,
            free: 0,
        })
    }

    /// The staging memory.
    pub fn staging(&self) -> &Arc<Staging> {
        &self.staging
    }

    /// Brings as many slices as there are free slots, of `call` and of those that `later` finds.
    pub fn bring_ahead(
        &mut self,
        call: &Arc<LaneCall>,
        later: impl Fn(u32) -> Option<Arc<LaneCall>>,
    ) -> Result<()> {
        let end = self.free.wrapping_add(self.staging.depth());
        while !is_reached(self.brought, end) {
            let number = self.brought;
            match call.slice_of(number) {
                Some(slice) => self.bring(call, slice)?,
                None => {
                    let Some(later) = later(number) else {
                        return Ok(());
                    };
                    let slice = later.slice_of(number);
                    self.bring(&later, slice.expect("it was found by this number"))?;
                }
            }
        }
        Ok(())
    }

    fn bring(&mut self, call: &LaneCall, slice: u32) -> Result<()> {
        let number = call.number(slice);
        let current = self.device.enter()?;
        if slice == 0 {
            current.follow(&self.staging.out, &call.marks.fork)?;
        }
        copies::bring(&current, &self.staging, call, slice)?;
        current.record(self.event(&self.arrived, number), &self.staging.out)?;
        self.brought = number.wrapping_add(1);
        Ok(())
    }

    /// Whether slice `number` stands in its slot.
    pub fn has_arrived(&self, number: u32) -> Result<bool> {
        if !is_reached(self.brought, number.wrapping_add(1)) {
            return Ok(false);
        }
        let arrived = self.event(&self.arrived, number);
        self.device.enter()?.is_reached(arrived)
    }

    /// Whether what the place of result `number` held has been taken.
    pub fn is_place_free(&self, number: u32) -> Result<bool> {
        // Of a place that was never used, the event was never recorded, and counts as reached.
        let taken = self.event(&self.taken, number);
        self.device.enter()?.is_reached(taken)
    }

    /// Whether all copies from results' places are done.
    pub fn is_taken(&self) -> Result<bool> {
        let current = self.device.enter()?;
        let mut taken = self.taken.iter();
        taken.try_fold(true, |all, taken| Ok(all && current.is_reached(taken)?))
    }

    /// Enqueues the copies of `slice` from its result's place.
    pub fn take(&mut self, call: &LaneCall, slice: u32) -> Result<()> {
        let number = call.number(slice);
        self.free = number.wrapping_add(1);
        let current = self.device.enter()?;
        if slice == 0 {
            current.follow(&self.staging.into, &call.marks.fork)?;
        }
        copies::take(&current, &self.staging, call, slice)?;
        current.record(self.event(&self.taken, number), &self.staging.into)
    }

    /// Records the event for the end of `call`.
    pub fn end(&self, call: &LaneCall) -> Result<()> {
        let current = self.device.enter()?;
        current.record(&call.marks.joined, &self.staging.into)
    }

    fn event<'a>(&self, events: &'a [Event], number: u32) -> &'a Event {
        &events[(number % self.staging.depth()) as usize]
    }
}
