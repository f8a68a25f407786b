//! Division of a message among the sockets of its stream, and its completion.
//!
//! A long message travels as *stripes*, one on each socket, so that several TCP flows fill a link
//! that one cannot, over several network interfaces if available. Both ends derive the division
//! from the length of the message and the number of sockets. A short message uses the first socket
//! alone: its time is latency, which grows with the number of sockets.

use std::iter;
use std::ops::Range;

use crate::transport::{PIECE_ALIGN_BYTES, Ticket};

/// Minimum length of a stripe. A system call at each end costs about as much time as the copy of 10
/// KiB; NCCL divides from twice this size on.
pub const STRIPE_BYTES_MIN: usize = 32 << 10;

/// Maximum number of sockets of a stream: as many as NCCL allows.
pub const SOCKETS_MAX: usize = 64;

// Rounding up to whole pieces must not leave the last stripe empty.
const _: () = assert!(SOCKETS_MAX * PIECE_ALIGN_BYTES < STRIPE_BYTES_MIN);

/// Returns the parts of a message of `bytes` bytes on the first, second, … of `sockets` sockets: at
/// least one, of equal lengths except the last.
pub fn stripes(bytes: usize, sockets: usize) -> impl Iterator<Item = Range<usize>> {
    let count = (bytes / STRIPE_BYTES_MIN).clamp(1, sockets);
    let each = match count {
        1 => bytes,
        _ => bytes.div_ceil(count).next_multiple_of(PIECE_ALIGN_BYTES),
    };
    let rest = (1..count).map(move |index| index * each..bytes.min((index + 1) * each));
    iter::once(0..each).chain(rest)
}

/// Messages with several stripes in progress: the ticket, and the number of unfinished stripes.
#[derive(Debug, Default)]
pub struct Striped(Vec<(Ticket, usize)>);

impl Striped {
    /// Notes a message with `left` stripes in progress. The last stripe needs no note: its end is
    /// the end of the message.
    pub fn note(&mut self, ticket: Ticket, left: usize) {
        if left > 1 {
            self.0.push((ticket, left));
        }
    }

    /// Keeps only the tickets of complete messages among those from place `from` of `done` on, each
    /// of which is a complete stripe.
    pub fn settle(&mut self, done: &mut Vec<Ticket>, from: usize) {
        if self.0.is_empty() {
            return;
        }
        let mut kept = from;
        for at in from..done.len() {
            let ticket = done[at];
            if self.is_last(ticket) {
                done[kept] = ticket;
                kept += 1;
            }
        }
        done.truncate(kept);
    }

    /// Counts a complete stripe; returns whether it was the last of its message.
    fn is_last(&mut self, ticket: Ticket) -> bool {
        let Some(place) = self.0.iter().position(|(noted, _)| *noted == ticket) else {
            return true;
        };
        let (_, left) = &mut self.0[place];
        *left -= 1;
        if *left == 1 {
            self.0.swap_remove(place);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_follow_each_other_and_none_is_empty() {
        for sockets in [1, 2, 3, 7, SOCKETS_MAX] {
            for bytes in [0, 1, 64, 65_535, 65_536, 65_537, 98_305, 262_144, 2_097_153] {
                let all: Vec<Range<usize>> = stripes(bytes, sockets).collect();
                let mut end = 0;
                for stripe in &all {
                    assert_eq!(stripe.start, end, "{bytes} bytes: {all:?}");
                    assert!(stripe.start % PIECE_ALIGN_BYTES == 0, "{all:?}");
                    assert!(!stripe.is_empty() || bytes == 0, "{bytes} bytes: {all:?}");
                    end = stripe.end;
                }
                assert_eq!(end, bytes, "{all:?}");
                let due = (bytes / STRIPE_BYTES_MIN).clamp(1, sockets);
                assert_eq!(all.len(), due, "{bytes} bytes, {sockets} sockets");
            }
        }
    }

    #[test]
    fn a_message_is_done_with_its_last_stripe() {
        let mut striped = Striped::default();
        striped.note(7, 3);
        striped.note(8, 1);
        let mut done = vec![7, 7, 8, 7, 9];
        striped.settle(&mut done, 1);
        // The first ticket is before `from`.
        assert_eq!(done, [7, 8, 9]);
        let mut done = vec![7];
        striped.settle(&mut done, 0);
        assert_eq!(done, [7]);
    }
}
