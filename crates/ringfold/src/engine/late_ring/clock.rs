//! When something takes too long: what a slice waits for, in order, and since when.

use super::state::{LateRing, input, later};
use super::timers::Gap;
use crate::engine::context::Context;
use crate::engine::operation::Operation;
use crate::error::Result;
use crate::transport::Time;

impl LateRing {
    /// When something is too late that is waited for.
    pub fn next_timer(&self) -> Option<Time> {
        let flights = (self.retired..self.begun).map(|slice| self.flight(slice));
        let timers = flights.flat_map(|flight| {
            let watches = flight.watches.iter().filter_map(|watch| watch.until);
            watches.chain(flight.until)
        });
        timers.min()
    }

    /// Notes that a position was heard of, or is waited for no longer.
    pub(super) fn heard(
        &mut self,
        slice: u32,
        position: u32,
        is_heard: bool,
        operation: &Operation,
        context: &mut Context,
    ) {
        let now = context.now;
        let gap = self.gap(slice, position, operation);
        let flight = self.flight_mut(slice);
        if flight.heard[position as usize].is_some() {
            return;
        }
        flight.heard[position as usize] = Some(now);
        if position == flight.step && is_heard {
            context.late_merge().estimates.heard(gap, flight.since, now);
        }
        self.arm(slice, operation, context);
    }

    /// Begins to wait for the next position that was not heard of.
    pub(super) fn arm(&mut self, slice: u32, operation: &Operation, context: &mut Context) {
        // The owner waits for everything, the origin for nothing.
        let owner = self.ranks as u32 - 1;
        let flight = self.flight_mut(slice);
        while flight.step < owner
            && let Some(heard) = flight.heard[flight.step as usize]
        {
            flight.since = flight.since.max(heard);
            flight.step += 1;
        }
        let (step, since) = (flight.step, flight.since);
        let gap = self.gap(slice, step, operation);
        let state = context.late_merge();
        let waits = step < owner && state.policy.signals.times_out();
        let patience_ps = state.estimates.patience_ps(gap).filter(|_| waits);
        self.flight_mut(slice).until = patience_ps.map(|ps| later(since, ps));
    }

    fn gap(&self, slice: u32, position: u32, operation: &Operation) -> Gap {
        let chunk = self.chunk_at(position);
        Gap {
            bytes: operation.region(input(chunk), slice).bytes(),
            is_first: position == 1,
        }
    }

    /// Acts on what has taken too long.
    pub(super) fn check_timers(
        &mut self,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<bool> {
        let mut progressed = false;
        // What came at this time comes first.
        if !context.is_polled {
            return Ok(false);
        }
        for slice in self.retired..self.begun {
            progressed |= self.check_reductions(slice, operation, context)?;
            let flight = self.flight(slice);
            if flight.until.is_some_and(|until| until <= context.now) {
                progressed = true;
                self.give_up(slice, operation, context)?;
            }
        }
        Ok(progressed)
    }

    fn check_reductions(
        &mut self,
        slice: u32,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<bool> {
        let mut progressed = false;
        for at in 0..self.flight(slice).watches.len() {
            let flights = self.flights.len();
            let flight = &mut self.flights[slice as usize % flights];
            let watch = &mut flight.watches[at];
            if watch.until.is_none_or(|until| context.now < until) {
                continue;
            }
            (watch.until, watch.was_late, progressed) = (None, true, true);
            let chunk = watch.chunk;
            flight.stations[chunk].is_slow(&mut self.orders);
            self.carry_out(slice, chunk, operation, context)?;
        }
        Ok(progressed)
    }

    /// Has the station split whose turn it is to hear something.
    fn give_up(&mut self, slice: u32, operation: &Operation, context: &mut Context) -> Result<()> {
        let position = self.flight(slice).step;
        let chunk = self.chunk_at(position);
        let gap = self.gap(slice, position, operation);
        context.late_merge().estimates.gave_up(gap);
        self.station(slice, chunk, |station, orders| station.is_overdue(orders));
        self.carry_out(slice, chunk, operation, context)?;
        self.heard(slice, position, false, operation, context);
        Ok(())
    }
}
