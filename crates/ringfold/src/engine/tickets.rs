//! The tickets of posted work, and the calls that they belong to.
//!
//! A call's buffers are free when all its tickets are complete. The ticket of a lent message is
//! complete when the receiver has read the payload.

use crate::transport::Ticket;

/// The lowest bit of a call's number in a ticket; the bits below are its executor's.
const TICKET_CALL_SHIFT: u32 = 48;

/// The call number in tickets of work that no call waits for; no call has this number.
const UNATTENDED: u64 = 0xfffe;

/// Returns a ticket of call `call`; `rest` is below 2^48.
pub fn ticket(call: usize, rest: u64) -> Ticket {
    (call as u64) << TICKET_CALL_SHIFT | rest
}

/// Returns a ticket of work that no call waits for.
pub fn unattended(rest: u64) -> Ticket {
    UNATTENDED << TICKET_CALL_SHIFT | rest
}

/// Returns whether no call waits for the work posted with this ticket.
pub fn is_unattended(ticket: Ticket) -> bool {
    ticket >> TICKET_CALL_SHIFT == UNATTENDED
}

/// Returns the call that a ticket belongs to.
pub fn call_of(ticket: Ticket) -> usize {
    (ticket >> TICKET_CALL_SHIFT) as usize
}
