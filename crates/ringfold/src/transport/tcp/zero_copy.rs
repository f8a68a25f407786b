//! Sends without the kernel's copy (`MSG_ZEROCOPY`), on one connection, if they pay.
//!
//! # Model
//!
//! The kernel reads the payload's pages instead of a copy of them, and reports through the socket's
//! error queue when it no longer does: when the peer has acknowledged the bytes. Each such send has
//! a number, and a report names a range of numbers. A message is complete when all of it is sent
//! and all its sends are reported. The frame's header and checksum, which are overwritten sooner,
//! are always copied.
//!
//! # Choice
//!
//! A copy costs less than it seems, and pages have a cost, too; which is higher depends on the
//! interface. [`ZeroCopy::Auto`] tries both ways on each connection's first large messages, one at
//! a time, and keeps the better one (`probe`). If the kernel reports that it made a copy after all
//! (loopback, virtual interfaces, interfaces without scatter-gather), the trial ends at once. A
//! send that the kernel refuses for lack of locked memory (`RLIMIT_MEMLOCK`) or of room for its
//! report (`net.core.optmem_max`) is copied.
//!
//! # Invariants
//!
//! * A message is not reported complete while the kernel may read its payload, so its owner does
//!   not write there.
//! * When calls end with an error, their memory returns to the owner earlier. Connections with
//!   unreported sends are reset before ([`Tcp`](super::Tcp) does so when it is withdrawn or
//!   dropped): the kernel then drops the bytes that it has not passed to the interface. Bytes that
//!   the interface still holds at that moment may be sent as the owner has overwritten them. No
//!   rank takes these for data, because the call has failed on all ranks, and the checksum was
//!   computed before.
//! * The kernel also holds the pages themselves until it is done. Memory that was freed or
//!   unmapped, and that of a process that ended, is not reused before. After a fork, the kernel's
//!   page is the one with the old bytes, whichever process writes.

mod probe;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use self::probe::{Finding, Probe};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::sys;
use crate::sys::zero_copy::{self, SendNotification};
use crate::transport::Ticket;

/// Minimum length of lent payloads. For shorter ones, the two further system calls for header and
/// checksum, and the report, cost about as much as the copy.
pub const PAYLOAD_BYTES_MIN: usize = 128 << 10;

/// Number of consecutive reports of a kernel's copy that ends the trial, or revokes its finding.
const COPIES_MAX: u32 = 2;

/// Condition for sends without the kernel's copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// If a trial on the connection finds sends without a copy better.
    #[default]
    Auto,
    /// Never.
    Never,
    /// On every connection, without a trial.
    Always,
}

impl FromStr for ZeroCopy {
    type Err = String;

    fn from_str(text: &str) -> Result<ZeroCopy, String> {
        match text {
            "auto" => Ok(ZeroCopy::Auto),
            "0" => Ok(ZeroCopy::Never),
            "1" => Ok(ZeroCopy::Always),
            _ => Err("must be auto, 0 or 1".into()),
        }
    }
}

impl ZeroCopy {
    /// Describes this host's use of sends without a copy.
    ///
    /// # Errors
    ///
    /// If the kernel lacks support.
    pub fn describe(self) -> Result<String> {
        let large = format!("payloads of {} KiB or more", PAYLOAD_BYTES_MIN >> 10);
        let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::STREAM);
        let permitted = socket_with(AddressFamily::INET, kind, flags, None)
            // A host that speaks only IPv6 has only the other family.
            .or_else(|_| socket_with(AddressFamily::INET6, kind, flags, None))
            .map_err(io::Error::from)
            .and_then(|socket| zero_copy::permit(socket.as_fd()));
        permitted.map_err(|error| Error::system("cannot send without a copy", error))?;
        Ok(match self {
            ZeroCopy::Auto => format!("tried on each connection, for {large}"),
            ZeroCopy::Never => "not used: RINGFOLD_TCP_ZEROCOPY=0".into(),
            ZeroCopy::Always => format!("for {large}: RINGFOLD_TCP_ZEROCOPY=1"),
        })
    }
}

/// A connection's way of sending large payloads.
enum SendMode {
    Copied,
    /// Both ways, to compare them.
    Trial(Box<Probe>),
    /// Without a copy, as the trial found.
    Found,
    /// Without a copy, as configured.
    Asked,
}

/// Payloads that one connection has lent to the kernel.
pub struct Lent {
    peer: usize,
    choice: SendMode,
    /// Number of the next send.
    next: u64,
    /// Messages with unreported sends, in order, and perhaps one that is not completely sent.
    messages: VecDeque<LentMessage>,
    /// Number of the messages' unreported sends.
    unreported: u64,
    /// Number of consecutive reports, up to the last, that the kernel made a copy.
    copies_in_row: u32,
    is_refusal_logged: bool,
}

struct LentMessage {
    ticket: Ticket,
    /// Number of the message's first send.
    first: u64,
    sends: u64,
    unreported: u64,
    /// Whether all of the message is sent.
    is_sent: bool,
}

impl Lent {
    pub fn new(peer: usize, socket: BorrowedFd<'_>, setting: ZeroCopy) -> Result<Lent> {
        let permitted = || zero_copy::permit(socket);
        let choice = match setting {
            ZeroCopy::Never => SendMode::Copied,
            ZeroCopy::Auto if permitted().is_err() => SendMode::Copied,
            ZeroCopy::Auto => SendMode::Trial(Box::default()),
            ZeroCopy::Always => {
                permitted().map_err(|error| {
                    Error::InvalidArgument(format!(
                        "RINGFOLD_TCP_ZEROCOPY=1: this kernel has no MSG_ZEROCOPY ({error}); use \
                         auto"
                    ))
                })?;
                SendMode::Asked
            }
        };
        Ok(Lent {
            peer,
            choice,
            next: 0,
            messages: VecDeque::new(),
            unreported: 0,
            copies_in_row: 0,
            is_refusal_logged: false,
        })
    }

    /// Whether the kernel may still read any payload.
    pub fn is_any(&self) -> bool {
        self.unreported > 0
    }

    /// Whether large payloads are lent, perhaps in turn with copies.
    #[cfg(test)]
    pub fn is_open(&self) -> bool {
        !matches!(self.choice, SendMode::Copied)
    }

    /// Begins the next message, of `bytes` payload bytes; returns whether [`Lent::send`] sends it.
    pub fn begin(&mut self, ticket: Ticket, bytes: usize) -> bool {
        if bytes < PAYLOAD_BYTES_MIN {
            return false;
        }
        let is_lent = match &mut self.choice {
            SendMode::Copied => false,
            SendMode::Found | SendMode::Asked => true,
            SendMode::Trial(probe) => probe.begin(bytes, self.unreported == 0),
        };
        if is_lent {
            self.messages.push_back(LentMessage {
                ticket,
                first: self.next,
                sends: 0,
                unreported: 0,
                is_sent: false,
            });
        }
        is_lent
    }

    /// Sends from the payload of the begun message, in one call; copies if the kernel refuses
    /// zero-copy.
    pub fn send(&mut self, socket: BorrowedFd<'_>, body: Region) -> io::Result<usize> {
        match zero_copy::send(socket, body) {
            Err(error) if is_refusal(&error) => {
                if !std::mem::replace(&mut self.is_refusal_logged, true) {
                    log::debug!(
                        target: "ringfold::transport",
                        "cannot send a payload to rank {} without a copy: {error}; check \
                         RLIMIT_MEMLOCK and net.core.optmem_max",
                        self.peer
                    );
                }
                sys::send_from(socket, &[], body, &[])
            }
            Ok(count) => {
                let message = self.messages.back_mut();
                let message = message.expect("a begun message");
                (message.sends, message.unreported) = (message.sends + 1, message.unreported + 1);
                self.next += 1;
                self.unreported += 1;
                Ok(count)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends the begun message, all of which is sent; returns whether it is complete. If not,
    /// [`Lent::take_back`] will report it.
    pub fn end(&mut self, is_lent: bool) -> bool {
        if let SendMode::Trial(probe) = &mut self.choice
            && let Some(finding) = probe.end()
        {
            self.found(finding);
        }
        let message = self.messages.back_mut().filter(|_| is_lent);
        let is_complete = message.is_none_or(|message| {
            message.is_sent = true;
            message.unreported == 0
        });
        if is_lent && is_complete {
            self.messages.pop_back();
        }
        is_complete
    }

    /// Calls `f`, which makes a system call for the begun message; a trial measures the call.
    pub fn timed<R>(&mut self, f: impl FnOnce(&mut Lent) -> R) -> R {
        if let SendMode::Trial(probe) = &mut self.choice {
            probe.enter();
        }
        let given = f(self);
        if let SendMode::Trial(probe) = &mut self.choice {
            probe.leave();
        }
        given
    }

    /// Reads the kernel's reports; appends the tickets of complete messages.
    pub fn take_back(&mut self, socket: BorrowedFd<'_>, done: &mut Vec<Ticket>) -> io::Result<()> {
        while self.unreported > 0 {
            let report = match &mut self.choice {
                SendMode::Trial(probe) => probe.charge(|| zero_copy::completion(socket)),
                _ => zero_copy::completion(socket),
            };
            let Some(report) = report? else { break };
            self.note(report)?;
        }
        self.messages.retain(|message| {
            let is_complete = message.is_sent && message.unreported == 0;
            if is_complete {
                done.push(message.ticket);
            }
            !is_complete
        });
        Ok(())
    }

    /// Notes a report of sends, each of which is reported once.
    fn note(&mut self, report: SendNotification) -> io::Result<()> {
        let SendNotification {
            first,
            last,
            is_copied,
        } = report;
        // The kernel's numbers are the low halves of this connection's.
        let newest = self.next - 1;
        let whole = |low: u32| newest.checked_sub(u64::from((newest as u32).wrapping_sub(low)));
        let wrong = || {
            let text = format!(
                "invalid zero-copy report from the kernel: sends {first} to {last}, \
                newest {newest}"
            );
            io::Error::other(text)
        };
        let (first, end) = match (whole(first), whole(last)) {
            (Some(first), Some(last)) if first <= last => (first, last + 1),
            _ => return Err(wrong()),
        };
        for message in &mut self.messages {
            let sends = first.max(message.first)..end.min(message.first + message.sends);
            let count = sends.end.saturating_sub(sends.start);
            message.unreported = message.unreported.checked_sub(count).ok_or_else(wrong)?;
            self.unreported -= count;
        }
        self.copies_in_row = if is_copied { self.copies_in_row + 1 } else { 0 };
        let is_choice_open = matches!(self.choice, SendMode::Trial(_) | SendMode::Found);
        if self.copies_in_row >= COPIES_MAX && is_choice_open {
            self.choice = SendMode::Copied;
            log::info!(
                target: "ringfold::transport",
                "large payloads for rank {} are copied: the kernel sends none here without a copy",
                self.peer
            );
        }
        Ok(())
    }

    /// Ends the trial with its finding.
    fn found(&mut self, finding: Finding) {
        let (choice, how) = match finding.is_lent_better() {
            true => (SendMode::Found, "without"),
            false => (SendMode::Copied, "with"),
        };
        self.choice = choice;
        log::info!(
            target: "ringfold::transport",
            "large payloads for rank {} are sent {how} a copy: zero copy takes {:.2} of the CPU \
             time and {:.2} of the elapsed time",
            self.peer,
            finding.processor,
            finding.elapsed
        );
    }
}

/// Whether the kernel cannot send without a copy now, or not from this memory.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOBUFS | libc::ENOMEM | libc::EFAULT)
    )
}

#[cfg(test)]
mod tests;
