//! The executor of late-merge calls: their slices, with stations, timers and postings.
//!
//! Pieces, `LATE` and results use the collectives' first channel, so that a rank in another call
//! shows as a `Mismatch`. All these messages are received within the call. `SKIP` has its own
//! channel, because it may arrive after its receiver has finished the call: a later call drops it.
//! The next message is not known beforehand, so each stream's head is read (`Transport::head`) and
//! one receive posted at a time. `receive` handles messages, `carry` carries out the orders of
//! stations, and `clock` acts on timers.
//!
//! Slices are independent of each other; those in flight begin at once. A message of a slice that
//! has not begun here stays in its stream. Such a message delays nothing: all messages of its
//! sender for earlier slices are ahead of it.
//!
//! # Invariants
//!
//! * A slice is finished when all its stations have left, all its results are here and all its
//!   postings are complete. So no message of the slice can arrive later, and its memory is free.
//! * Time decides only when a station splits or asks another to; messages that arrived at the same
//!   time are processed first.

use super::attempt::RingAttempt;
use super::policy::MergeTarget;
use super::state::{LateMergeState, LateRing, Posting, SliceChunk, SliceInFlight, data_stream};
use super::station::{Station, StationOrder};
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::lateness::Lateness;
use crate::engine::operation::PreparedOperation;
use crate::error::Result;
use crate::transport::{StreamId, Ticket, Time};
use crate::types::Collective;

impl LateRing {
    /// Prepares this executor for a call that has not begun, and reuses the memory of the last
    /// call.
    pub fn reset(
        &mut self,
        operation: &PreparedOperation,
        rank: usize,
        ranks: usize,
        target: MergeTarget,
    ) {
        let gathers = operation.call.collective == Collective::AllReduce;
        let flights = operation.slices_in_flight.min(operation.slices) as usize;
        (self.rank, self.ranks, self.gathers) = (rank, ranks, gathers);
        self.slices = operation.slices;
        (self.begun, self.started, self.retired) = (0, 0, 0);
        self.is_listening = false;
        self.flights.resize_with(flights, SliceInFlight::default);
        self.is_arriving.clear();
        self.is_arriving.resize(ranks, false);
        self.peers.clear();
        let others = (1..ranks).map(|distance| (rank + ranks - distance) % ranks);
        self.peers.extend(others.take(match target {
            MergeTarget::Next2 => 2,
            MergeTarget::Tail => ranks,
        }));
    }

    /// Does all work that is ready; returns whether there was any.
    pub fn advance(
        &mut self,
        operation: &PreparedOperation,
        context: &mut Context,
        state: &mut LateMergeState,
    ) -> Result<bool> {
        let mut attempt = RingAttempt {
            ring: self,
            operation,
            context,
            state,
        };
        attempt.advance()
    }

    /// Returns the ranks without which the call cannot end. A piece that may come from several
    /// ranks counts for none of them.
    pub(super) fn awaited(&self) -> Vec<usize> {
        let previous = (self.rank + self.ranks - 1) % self.ranks;
        let flights = || (self.retired..self.begun).map(|slice| self.flight(slice));
        let waits = flights().any(|flight| {
            flight.results_due > 0 || flight.stations.iter().any(Station::waits_for_previous)
        });
        let postings = self.postings.iter().flatten();
        let sends = postings.filter_map(|posting| match posting {
            Posting::Send(_, peer, _) => Some(*peer),
            _ => None,
        });
        sends.chain(waits.then_some(previous)).collect()
    }

    pub(super) fn flight(&self, slice: u32) -> &SliceInFlight {
        &self.flights[slice as usize % self.flights.len()]
    }

    pub(super) fn flight_mut(&mut self, slice: u32) -> &mut SliceInFlight {
        let flights = self.flights.len();
        &mut self.flights[slice as usize % flights]
    }

    /// Returns the station of a part, and the list for its orders.
    pub(super) fn station(&mut self, part: SliceChunk) -> (&mut Station, &mut Vec<StationOrder>) {
        let flights = self.flights.len();
        let flight = &mut self.flights[part.slice as usize % flights];
        (&mut flight.stations[part.chunk], &mut self.orders)
    }

    /// Returns the position of `rank` for `chunk`.
    pub(super) fn position(&self, rank: usize, chunk: usize) -> u32 {
        ((rank + self.ranks - 1 - chunk) % self.ranks) as u32
    }

    pub(super) fn chunk_at(&self, position: u32) -> usize {
        (self.rank + self.ranks - 1 - position as usize) % self.ranks
    }

    pub(super) fn rank_at(&self, position: u32, chunk: usize) -> usize {
        (chunk + 1 + position as usize) % self.ranks
    }

    /// Returns the stream on which `SKIP` arrives.
    pub(super) fn skip_stream(&self, state: &LateMergeState) -> StreamId {
        StreamId {
            peer: (self.rank + 1) % self.ranks,
            channel: state.signal_channel,
        }
    }
}

impl Executor for LateRing {
    fn slices_done(&self) -> u32 {
        self.retired
    }

    fn waiting_for(&self, _operation: &PreparedOperation, _context: &Context) -> Vec<usize> {
        self.awaited()
    }

    fn complete(&mut self, ticket: Ticket, _lateness: &mut Lateness) {
        let number = ticket as u32;
        // Cleared here, not when the completion is processed: by then another receive may be
        // posted.
        match self.postings[number as usize] {
            Some(Posting::Arrival(_, peer, _)) => self.is_arriving[peer] = false,
            Some(Posting::Skip(_)) => self.is_skip_arriving = false,
            _ => {}
        }
        self.done.push_back(number);
    }

    fn needs_clock(&self) -> bool {
        true
    }

    /// Returns the earliest time at which a wait or a reduction takes too long.
    fn next_timer(&self) -> Option<Time> {
        let flights = (self.retired..self.begun).map(|slice| self.flight(slice));
        let timers = flights.flat_map(|flight| {
            let watches = flight.watches.iter().filter_map(|watch| watch.until);
            watches.chain(flight.until)
        });
        timers.min()
    }
}

impl RingAttempt<'_> {
    fn advance(&mut self) -> Result<bool> {
        if !self.ring.is_listening {
            // Messages that have arrived by now are seen at the next attempt, before any is sent.
            let chunks = (0..self.ring.ranks).map(|chunk| self.own(SliceChunk { slice: 0, chunk }));
            // The first slice has the longest chunks.
            let longest = chunks.map(|chunk| chunk.bytes()).max().unwrap_or(0);
            self.state.places.resize(longest);
            self.listen(true)?;
            return Ok(true);
        }
        let mut progressed = false;
        while self.ring.retired < self.ring.slices {
            let mut did = self.begin_slices();
            did |= self.take_skips()?;
            did |= self.begin_origins()?;
            did |= self.take_messages()?;
            did |= self.take_complete()?;
            did |= self.check_timers()?;
            did |= self.retire()?;
            if !did {
                break;
            }
            progressed = true;
        }
        Ok(progressed)
    }

    fn listen(&mut self, is_wanted: bool) -> Result<()> {
        self.ring.is_listening = is_wanted;
        let skips = self.ring.skip_stream(self.state);
        let data = self.ring.peers.iter().map(|peer| data_stream(*peer));
        let transport = &mut self.context.transport;
        data.chain([skips])
            .try_for_each(|stream| transport.listen(stream, is_wanted))
    }

    fn begin_slices(&mut self) -> bool {
        let end = self.ring.retired + self.ring.flights.len() as u32;
        let due = self.ring.begun..end.min(self.ring.slices);
        for slice in due.clone() {
            self.ring.begun += 1;
            self.begin_slice(slice);
            self.arm(slice);
        }
        !due.is_empty()
    }

    /// Makes the origins of new slices send their contributions, after the signals that arrived
    /// while this rank was late.
    fn begin_origins(&mut self) -> Result<bool> {
        let mut progressed = false;
        while self.ring.started < self.ring.begun && !self.ring.is_skip_arriving {
            progressed = true;
            let (slice, chunk) = (self.ring.started, self.ring.chunk_at(0));
            self.ring.started += 1;
            let (station, orders) = self.ring.station(SliceChunk { slice, chunk });
            station.begin(orders);
            self.carry_out(SliceChunk { slice, chunk })?;
        }
        Ok(progressed)
    }

    fn begin_slice(&mut self, slice: u32) {
        let LateRing {
            rank,
            ranks,
            gathers,
            ..
        } = *self.ring;
        let policy = self.state.policy;
        let now = self.context.now;
        let flight = self.ring.flight_mut(slice);
        let new = || Station::new(0, ranks as u32, policy.target, policy.signals);
        if flight.stations.len() != ranks {
            flight.stations.clear();
            flight.stations.resize_with(ranks, new);
        }
        for (chunk, station) in flight.stations.iter_mut().enumerate() {
            station.reset(((rank + ranks - 1 - chunk) % ranks) as u32);
        }
        flight.open = ranks;
        flight.results_due = if gathers { ranks } else { 0 };
        for list in [&mut flight.has_left, &mut flight.has_result] {
            list.clear();
            list.resize(ranks, false);
        }
        flight.heard.clear();
        flight.heard.resize(ranks, None);
        flight.watches.clear();
        (flight.pending, flight.step, flight.since, flight.until) = (0, 1, now, None);
    }

    /// Retires finished slices, in order.
    fn retire(&mut self) -> Result<bool> {
        let mut progressed = false;
        while self.ring.retired < self.ring.begun {
            let slice = self.ring.retired;
            let flight = self.ring.flight(slice);
            let is_last = slice + 1 == self.ring.slices;
            let is_busy = flight.open > 0 || flight.results_due > 0 || flight.pending > 0;
            if is_busy || (is_last && self.ring.is_skip_arriving) {
                break;
            }
            progressed = true;
            let chunks = if self.ring.gathers {
                self.ring.ranks
            } else {
                1
            };
            self.operation.scale_result(0, chunks as u32, slice)?;
            self.ring.retired += 1;
            if is_last {
                self.listen(false)?;
            }
        }
        Ok(progressed)
    }
}
