//! Timers of a late-merge call: the message that each slice waits for next, and since when.

use super::attempt::RingAttempt;
use super::state::{SliceChunk, later};
use super::timers::Gap;
use crate::error::Result;

impl RingAttempt<'_> {
    /// Records that a message for `position` arrived (`is_heard`), or the end of the wait for one.
    pub(super) fn heard(&mut self, slice: u32, position: u32, is_heard: bool) {
        let now = self.context.now;
        let gap = self.gap(slice, position);
        let flight = self.ring.flight_mut(slice);
        if flight.heard[position as usize].is_some() {
            return;
        }
        flight.heard[position as usize] = Some(now);
        if position == flight.step && is_heard {
            let estimates = &mut self.state.estimates;
            estimates.heard(gap, flight.since, now);
        }
        self.arm(slice);
    }

    /// Begins the wait for the next position for which nothing has been heard.
    pub(super) fn arm(&mut self, slice: u32) {
        // The owner waits for everything without a timer, the origin for nothing.
        let owner = self.ring.ranks as u32 - 1;
        let flight = self.ring.flight_mut(slice);
        while flight.step < owner
            && let Some(heard) = flight.heard[flight.step as usize]
        {
            flight.since = flight.since.max(heard);
            flight.step += 1;
        }
        let (step, since) = (flight.step, flight.since);
        let gap = self.gap(slice, step);
        let state = &*self.state;
        let waits = step < owner && state.policy.signals.times_out();
        let patience_ps = state.estimates.patience_ps(gap).filter(|_| waits);
        self.ring.flight_mut(slice).until = patience_ps.map(|ps| later(since, ps));
    }

    fn gap(&self, slice: u32, position: u32) -> Gap {
        let chunk = self.ring.chunk_at(position);
        Gap {
            bytes: self.own(SliceChunk { slice, chunk }).bytes(),
            is_first: position == 1,
        }
    }

    /// Acts on expired timers; returns whether there were any.
    pub(super) fn check_timers(&mut self) -> Result<bool> {
        let mut progressed = false;
        // Messages that arrived at this time are processed first.
        if !self.context.is_polled {
            return Ok(false);
        }
        for slice in self.ring.retired..self.ring.begun {
            progressed |= self.check_reductions(slice)?;
            let until = self.ring.flight(slice).until;
            if until.is_some_and(|until| until <= self.context.now) {
                progressed = true;
                self.give_up(slice)?;
            }
        }
        Ok(progressed)
    }

    fn check_reductions(&mut self, slice: u32) -> Result<bool> {
        let mut progressed = false;
        for at in 0..self.ring.flight(slice).watches.len() {
            let watch = &mut self.ring.flight_mut(slice).watches[at];
            if watch.until.is_none_or(|until| self.context.now < until) {
                continue;
            }
            (watch.until, watch.was_late, progressed) = (None, true, true);
            let chunk = watch.chunk;
            let (station, orders) = self.ring.station(SliceChunk { slice, chunk });
            station.is_slow(orders);
            self.carry_out(SliceChunk { slice, chunk })?;
        }
        Ok(progressed)
    }

    /// Ends the wait for the message due next, so that its station splits.
    fn give_up(&mut self, slice: u32) -> Result<()> {
        let position = self.ring.flight(slice).step;
        let chunk = self.ring.chunk_at(position);
        let gap = self.gap(slice, position);
        self.state.estimates.gave_up(gap);
        let (station, orders) = self.ring.station(SliceChunk { slice, chunk });
        station.is_overdue(orders);
        self.carry_out(SliceChunk { slice, chunk })?;
        self.heard(slice, position, false);
        Ok(())
    }
}
