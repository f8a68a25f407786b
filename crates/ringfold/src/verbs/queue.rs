//! A completion queue with a descriptor to wait on.

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use rustix::io::Errno;

use super::domain::Domain;
use super::layout::{CompChannel, Cq, Wc};
use super::text;
use crate::error::{Error, Result};

/// Maximum number of completions polled in one call.
const BATCH: usize = 32;
/// `IBV_WC_WITH_IMM`.
const WITH_IMM: u32 = 1 << 1;
/// `IBV_WC_RECV`: the opcodes of receives have this bit.
const RECV: u32 = 1 << 7;

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// Number of the request.
    pub id: u64,
    /// Number of the request's queue pair.
    pub pair: u32,
    /// Outcome of the request.
    pub outcome: WorkOutcome,
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkOutcome {
    /// A send or write whose memory may be overwritten: the peer's device has the data.
    Sent,
    /// Arrival of a message of so many bytes or, with a number, of a peer's write.
    Received { bytes: u32, number: Option<u32> },
    /// Failure, with verbs' status.
    Failed { status: u32 },
}

/// A completion queue, freed when dropped. Used by one thread at a time.
#[derive(Debug)]
pub struct CompletionQueue {
    domain: Arc<Domain>,
    channel: *mut CompChannel,
    cq: *mut Cq,
    /// Room for the device's completions: reused, because most polls find none.
    room: Box<[Wc; BATCH]>,
}

// SAFETY: libibverbs allows calls from any thread.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue with room for `entries` completed requests.
    ///
    /// # Errors
    /// `System` if the device cannot create the queue, for example because it is too large.
    pub fn new(domain: &Arc<Domain>, entries: usize) -> Result<CompletionQueue> {
        let verbs = domain.device().verbs;
        let context = domain.device().context;
        // SAFETY: an opened device.
        let channel = unsafe { (verbs.table.create_comp_channel)(context) };
        if channel.is_null() {
            return Err(verbs.failure("create_comp_channel"));
        }
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: an opened device and its new channel.
        let cq = unsafe { (verbs.table.create_cq)(context, entries, ptr::null_mut(), channel, 0) };
        if cq.is_null() {
            let failure = verbs.failure("create_cq");
            // SAFETY: the channel that was just made, and is not used.
            unsafe { (verbs.table.destroy_comp_channel)(channel) };
            return Err(failure);
        }
        let queue = CompletionQueue {
            domain: domain.clone(),
            channel,
            cq,
            room: Box::new([Wc::default(); BATCH]),
        };
        super::unblock(queue.descriptor())?;
        Ok(queue)
    }

    pub(super) fn cq(&self) -> *mut Cq {
        self.cq
    }

    /// Returns a descriptor, readable after [`arm`](CompletionQueue::arm) when a request has ended.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's own descriptor, open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    /// Appends the completed requests; returns whether there were any.
    ///
    /// # Errors
    /// `System` if the queue has overflowed or the device has failed.
    pub fn poll(&mut self, ended: &mut Vec<WorkCompletion>) -> Result<bool> {
        let before = ended.len();
        loop {
            // SAFETY: the queue's own device; the function fills in at most so many.
            let count = unsafe {
                let poll = (*(*self.cq).context).ops.poll_cq;
                poll(self.cq, BATCH as i32, self.room.as_mut_ptr())
            };
            let Ok(count) = usize::try_from(count) else {
                return Err(Error::system("ibv_poll_cq", Errno::IO));
            };
            ended.extend(self.room[..count.min(BATCH)].iter().map(completion));
            if count < BATCH {
                return Ok(ended.len() > before);
            }
        }
    }

    /// Makes the descriptor readable when the next request ends. Earlier ends do not count: poll
    /// once more.
    ///
    /// # Errors
    /// `System` if the device refuses.
    pub fn arm(&mut self) -> Result<()> {
        let verbs = self.domain.device().verbs;
        let mut events = 0;
        loop {
            let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the queue's own channel; it does not block.
            let code = unsafe { (verbs.table.get_cq_event)(self.channel, &mut cq, &mut context) };
            if code != 0 {
                break;
            }
            events += 1;
        }
        if events > 0 {
            // SAFETY: the channel is of this queue alone, so that many events are its own.
            unsafe { (verbs.table.ack_cq_events)(self.cq, events) };
        }
        // SAFETY: the queue's own device.
        let code = unsafe { ((*(*self.cq).context).ops.req_notify_cq)(self.cq, 0) };
        verbs.check("req_notify_cq", code)
    }

    /// Returns verbs' words for a status.
    pub fn words(&self, status: u32) -> String {
        // SAFETY: the library's text, which stays.
        unsafe { text((self.domain.device().verbs.table.wc_status_str)(status)) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if self.domain.device().is_inherited() {
            return;
        }
        let table = &self.domain.device().verbs.table;
        // SAFETY: created once; no queue pair uses it, and all events are acknowledged.
        unsafe { (table.destroy_cq)(self.cq) };
        // SAFETY: created once, and its only queue is gone.
        unsafe { (table.destroy_comp_channel)(self.channel) };
    }
}

fn completion(wc: &Wc) -> WorkCompletion {
    let outcome = match wc.status {
        0 if wc.opcode & RECV != 0 => WorkOutcome::Received {
            bytes: wc.byte_len,
            number: (wc.wc_flags & WITH_IMM != 0).then(|| u32::from_be(wc.imm_data)),
        },
        0 => WorkOutcome::Sent,
        status => WorkOutcome::Failed { status },
    };
    WorkCompletion {
        id: wc.wr_id,
        pair: wc.qp_num,
        outcome,
    }
}
