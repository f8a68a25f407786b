//! The progress of a channel, and the tickets of its posted steps.

use crate::engine::tickets;
use crate::transport::Ticket;

/// The progress of one channel.
#[derive(Debug, Default)]
pub struct ChannelProgress {
    pub(super) tick: u64,
    pub(super) slice: u32,
    /// The next step, counted from the start of the current slice's round.
    pub(super) step: u32,
    pub(super) started: u32,
    pub(super) retired: u32,
    /// The first peer that an `Await` has not seen arrive.
    pub(super) awaited: u32,
    /// Bytes of the current `Combine` that are done; not 0 while a dynamic one is in progress.
    pub(super) pushed: usize,
    /// Whether a step is refused, which all ranks decide alike.
    pub(super) is_refused: bool,
    /// The slices in flight, at `slice % slices_in_flight`.
    pub(super) flights: Vec<StepsInFlight>,
}

/// The asynchronous steps of one slice.
#[derive(Debug, Default)]
pub(super) struct StepsInFlight {
    /// One bit per step: posted, not complete.
    pending: Vec<u64>,
    pub(super) pending_count: u32,
    pub(super) issued: bool,
}

/// Returns the ticket of a step: channel 8 bits, slice in flight 8, step 32.
pub(super) fn ticket(call: usize, channel: usize, flight: u32, step: u32) -> Ticket {
    let rest = (channel as u64) << 40 | u64::from(flight) << 32 | u64::from(step);
    tickets::ticket(call, rest)
}

/// Returns the channel, the slice in flight and the step that a ticket belongs to.
pub(super) fn parts(ticket: Ticket) -> (usize, usize, u32) {
    let byte = |shift: u32| usize::from((ticket >> shift) as u8);
    (byte(40), byte(32), ticket as u32)
}

impl ChannelProgress {
    /// Creates the progress of a channel of `steps` steps, at its beginning.
    pub fn new(steps: usize, slices_in_flight: u32) -> ChannelProgress {
        let flight = || StepsInFlight {
            pending: vec![0; steps.div_ceil(64)],
            ..StepsInFlight::default()
        };
        ChannelProgress {
            flights: (0..slices_in_flight).map(|_| flight()).collect(),
            ..ChannelProgress::default()
        }
    }

    /// Resets the channel to its beginning, keeping the memory.
    pub fn reset(&mut self) {
        let flights = std::mem::take(&mut self.flights);
        *self = ChannelProgress {
            flights,
            ..ChannelProgress::default()
        };
    }

    /// Whether `slice` may begin as far as those before it are concerned, among so many in flight.
    pub(super) fn has_room(&self, slice: u32, slices_in_flight: u32) -> bool {
        slice < slices_in_flight || self.retired > slice - slices_in_flight
    }

    /// Records that a posted step is complete.
    pub(super) fn complete(&mut self, flight: usize, step: u32) {
        let flight = &mut self.flights[flight];
        assert!(flight.is_pending(step), "a step completed twice");
        flight.flip(step);
        flight.pending_count -= 1;
    }
}

impl StepsInFlight {
    pub(super) fn is_pending(&self, step: u32) -> bool {
        self.pending[step as usize / 64] >> (step % 64) & 1 == 1
    }

    /// Records that a step is posted.
    pub(super) fn post(&mut self, step: u32) {
        self.flip(step);
        self.pending_count += 1;
    }

    fn flip(&mut self, step: u32) {
        self.pending[step as usize / 64] ^= 1 << (step % 64);
    }
}
