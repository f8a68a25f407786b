//! The tickets of what is posted for calls: whose they are.

use crate::transport::Ticket;

/// Where a call's number begins in a ticket; what stands below is its executor's.
const TICKET_CALL_SHIFT: u32 = 48;

/// Stands for the call in the tickets of what no call waits for: no call has this number.
const UNATTENDED: u64 = 0xfffe;

/// A ticket of call `call`; `rest` is below 2^48.
pub fn ticket(call: usize, rest: u64) -> Ticket {
    (call as u64) << TICKET_CALL_SHIFT | rest
}

/// A ticket of what no call waits for.
pub fn unattended(rest: u64) -> Ticket {
    UNATTENDED << TICKET_CALL_SHIFT | rest
}

/// Whether no call waits for what was posted with this ticket.
pub fn is_unattended(ticket: Ticket) -> bool {
    ticket >> TICKET_CALL_SHIFT == UNATTENDED
}

/// The call that a ticket belongs to.
pub fn call_of(ticket: Ticket) -> usize {
    (ticket >> TICKET_CALL_SHIFT) as usize
}
