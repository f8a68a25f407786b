//! The executor of late-merge calls: their slices, the stations and timers of these, and what is
//! posted for them.
//!
//! Pieces, `LATE` and results go by the collectives' first channel, so that a rank in another call
//! shows as a `Mismatch`, and all of them are taken within the call. `SKIP` goes by a channel of
//! its own, because it may come after its receiver has finished the call: a later call drops it.
//! What comes is not known beforehand, so each stream's head is read (`Transport::head`) and one
//! receive posted at a time: `receive` does that, `carry` carries out what stations order, and
//! `clock` acts on what takes too long.
//!
//! Slices are independent of each other; those under way begin at once. A message of a slice that
//! has not begun here stays in its stream. That holds up nothing: all that its sender has to say of
//! earlier slices stands before it.
//!
//! # Invariants
//!
//! * A slice is finished when all its stations have left, all its results are here and all that it
//!   posted is complete. So nothing of it can come later, and its memory is free.
//! * Time decides only when a station splits or asks another to; messages that came at the same
//!   time come first.

use std::collections::VecDeque;

use super::LateMergeState;
use super::places::Place;
use super::station::{Interval, Order, Station};
use crate::engine::executor::{Context, Operation};
use crate::error::Result;
use crate::schedule::{Buffer, Span};
use crate::transport::{P2P_CHANNEL, Stream, Ticket, Time};
use crate::types::Collective;

/// The channel of all but `SKIP`.
pub(super) const DATA_CHANNEL: usize = P2P_CHANNEL + 1;

/// A late-merge call under way.
#[derive(Debug, Default)]
pub struct LateRing {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) gathers: bool,
    pub(super) slices: u32,
    pub(super) begun: u32,
    /// Slices whose origin has sent what it has.
    pub(super) started: u32,
    pub(super) retired: u32,
    /// Of slices under way, at `slice % flights.len()`.
    pub(super) flights: Vec<Flight>,
    /// What is posted, by the number in its ticket.
    pub(super) postings: Vec<Option<Posting>>,
    pub(super) free: Vec<u32>,
    /// The numbers of what is complete, oldest first.
    pub(super) done: VecDeque<u32>,
    /// The ranks from which pieces can come.
    pub(super) peers: Vec<usize>,
    /// Whether a receive is posted, by rank.
    pub(super) is_arriving: Vec<bool>,
    /// The same for `SKIP`.
    pub(super) is_skip_arriving: bool,
    pub(super) is_listening: bool,
    pub(super) orders: Vec<Order>,
    pub(super) signals: u32,
}

/// One slice under way.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// By chunk.
    pub(super) stations: Vec<Station>,
    pub(super) has_left: Vec<bool>,
    /// Stations that have not left.
    pub(super) open: usize,
    /// Whether the chunk's result is here or comes.
    pub(super) has_result: Vec<bool>,
    /// Results that are not here.
    pub(super) results_due: usize,
    /// Messages and reductions that are posted and not complete.
    pub(super) pending: usize,
    /// The position from which something is due next.
    pub(super) step: u32,
    /// Since when.
    pub(super) since: Time,
    /// Until when it is waited for.
    pub(super) until: Option<Time>,
    /// When something first came from each position, or it was given up.
    pub(super) heard: Vec<Option<Time>>,
    pub(super) watches: Vec<Watch>,
}

impl Flight {
    /// Something that was posted is complete.
    pub(super) fn finish_one(&mut self) {
        self.pending -= 1;
    }
}

/// A reduction under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    pub(super) chunk: usize,
    pub(super) begin: Time,
    /// When it takes too long.
    pub(super) until: Option<Time>,
    pub(super) was_late: bool,
}

/// Something posted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Posting {
    Send {
        slice: u32,
        peer: usize,
        place: Option<Place>,
    },
    Combine {
        slice: u32,
        chunk: usize,
    },
    Piece {
        slice: u32,
        chunk: usize,
        peer: usize,
        interval: Interval,
        place: Place,
    },
    Late {
        slice: u32,
        chunk: usize,
        peer: usize,
        interval: Interval,
    },
    Result {
        slice: u32,
        chunk: usize,
        peer: usize,
    },
    /// For a chunk of this call, or for one that is over.
    Skip(Option<(u32, usize)>),
}

impl LateRing {
    /// Makes it the executor of a call that has not begun; what it had is kept for this one.
    pub fn reset(
        &mut self,
        operation: &Operation,
        rank: usize,
        ranks: usize,
        target: super::Target,
    ) {
        let gathers = operation.call.collective == Collective::AllReduce;
        let flights = operation.slices_in_flight.min(operation.slices) as usize;
        (self.rank, self.ranks, self.gathers) = (rank, ranks, gathers);
        self.slices = operation.slices;
        (self.begun, self.started, self.retired) = (0, 0, 0);
        self.is_listening = false;
        self.flights.resize_with(flights, Flight::default);
        self.is_arriving.clear();
        self.is_arriving.resize(ranks, false);
        self.peers.clear();
        let others = (1..ranks).map(|distance| (rank + ranks - distance) % ranks);
        self.peers.extend(others.take(match target {
            super::Target::Next2 => 2,
            super::Target::Tail => ranks,
        }));
    }

    /// Does what can be done; whether that was anything.
    pub fn advance(&mut self, operation: &Operation, context: &mut Context) -> Result<bool> {
        if !self.is_listening {
            // What has come by now is seen at the next attempt, before anything is sent.
            let chunks = (0..self.ranks).map(|chunk| operation.region(input(chunk), 0).bytes());
            // The first slice has the longest chunks.
            state(context).places.resize(chunks.max().unwrap_or(0));
            self.listen(true, context)?;
            return Ok(true);
        }
        let mut progressed = false;
        while self.retired < self.slices {
            let mut did = self.begin_slices(operation, context);
            did |= self.take_skips(operation, context)?;
            did |= self.begin_origins(operation, context)?;
            did |= self.take_messages(operation, context)?;
            did |= self.take_complete(operation, context)?;
            did |= self.check_timers(operation, context)?;
            did |= self.retire(operation, context)?;
            if !did {
                break;
            }
            progressed = true;
        }
        Ok(progressed)
    }

    /// Notes that what this ticket stands for is complete.
    pub fn complete(&mut self, ticket: Ticket) {
        let number = ticket as u32;
        // Here and not when it is gone on with: by then there may be another one that is under way.
        match self.postings[number as usize] {
            Some(
                Posting::Piece { peer, .. }
                | Posting::Late { peer, .. }
                | Posting::Result { peer, .. },
            ) => self.is_arriving[peer] = false,
            Some(Posting::Skip(_)) => self.is_skip_arriving = false,
            _ => {}
        }
        self.done.push_back(number);
    }

    /// Slices that are finished.
    pub fn slices_done(&self) -> u32 {
        self.retired
    }

    /// The ranks without which it cannot end: of pieces that may come by several ways only those
    /// that surely do.
    pub fn waiting_for(&self) -> Vec<usize> {
        let previous = (self.rank + self.ranks - 1) % self.ranks;
        let flights = || (self.retired..self.begun).map(|slice| self.flight(slice));
        let waits = flights().any(|flight| {
            flight.results_due > 0 || flight.stations.iter().any(Station::waits_for_previous)
        });
        let sends = self
            .postings
            .iter()
            .flatten()
            .filter_map(|posting| match posting {
                Posting::Send { peer, .. } => Some(*peer),
                _ => None,
            });
        sends.chain(waits.then_some(previous)).collect()
    }

    pub(super) fn flight(&self, slice: u32) -> &Flight {
        &self.flights[slice as usize % self.flights.len()]
    }

    pub(super) fn flight_mut(&mut self, slice: u32) -> &mut Flight {
        let flights = self.flights.len();
        &mut self.flights[slice as usize % flights]
    }

    /// The position of `rank` for `chunk`, and of this rank's chunk at a position.
    pub(super) fn position(&self, rank: usize, chunk: usize) -> u32 {
        ((rank + self.ranks - 1 - chunk) % self.ranks) as u32
    }

    pub(super) fn chunk_at(&self, position: u32) -> usize {
        (self.rank + self.ranks - 1 - position as usize) % self.ranks
    }

    pub(super) fn rank_at(&self, position: u32, chunk: usize) -> usize {
        (chunk + 1 + position as usize) % self.ranks
    }

    fn listen(&mut self, is_wanted: bool, context: &mut Context) -> Result<()> {
        self.is_listening = is_wanted;
        for peer in &self.peers {
            let channel = DATA_CHANNEL;
            let stream = Stream {
                peer: *peer,
                channel,
            };
            context.transport.listen(stream, is_wanted)?;
        }
        let stream = self.skip_stream(state(context));
        context.transport.listen(stream, is_wanted)
    }

    /// Where `SKIP` comes from.
    pub(super) fn skip_stream(&self, state: &LateMergeState) -> Stream {
        Stream {
            peer: (self.rank + 1) % self.ranks,
            channel: state.signal_channel,
        }
    }

    fn begin_slices(&mut self, operation: &Operation, context: &mut Context) -> bool {
        let mut progressed = false;
        while self.begun < self.slices && self.begun < self.retired + self.flights.len() as u32 {
            progressed = true;
            let slice = self.begun;
            self.begun += 1;
            self.begin_slice(slice, context);
            self.arm(slice, operation, context);
        }
        progressed
    }

    /// Has the origins of new slices send what they have, after the signals that came while this
    /// rank was late.
    fn begin_origins(&mut self, operation: &Operation, context: &mut Context) -> Result<bool> {
        let mut progressed = false;
        while self.started < self.begun && !self.is_skip_arriving {
            progressed = true;
            let slice = self.started;
            self.started += 1;
            let origin = self.chunk_at(0);
            let flights = self.flights.len();
            let station = &mut self.flights[slice as usize % flights].stations[origin];
            station.begin(&mut self.orders);
            self.carry_out(slice, origin, operation, context)?;
        }
        Ok(progressed)
    }

    fn begin_slice(&mut self, slice: u32, context: &mut Context) {
        let (rank, ranks, gathers) = (self.rank, self.ranks, self.gathers);
        let policy = state(context).policy;
        let now = context.now;
        let flight = self.flight_mut(slice);
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
    fn retire(&mut self, operation: &Operation, context: &mut Context) -> Result<bool> {
        let mut progressed = false;
        while self.retired < self.begun {
            let flight = self.flight(self.retired);
            let is_last = self.retired + 1 == self.slices;
            let is_busy = flight.open > 0 || flight.results_due > 0 || flight.pending > 0;
            if is_busy || (is_last && self.is_skip_arriving) {
                break;
            }
            progressed = true;
            let chunks = if self.gathers { self.ranks } else { 1 };
            operation.scale_result(0, chunks as u32, self.retired)?;
            self.retired += 1;
            if is_last {
                self.listen(false, context)?;
            }
        }
        Ok(progressed)
    }
}

/// What is kept from one such call to the next.
pub(super) fn state(context: &mut Context) -> &mut LateMergeState {
    let state = context.kept.late_merge.as_deref_mut();
    state.expect("a late-merge call was prepared with it")
}

pub(super) fn input(chunk: usize) -> Span {
    Span {
        buffer: Buffer::Input,
        first: chunk as u32,
        len: 1,
    }
}

pub(super) fn later(time: Time, ps: u64) -> Time {
    Time(time.0 + u128::from(ps))
}
