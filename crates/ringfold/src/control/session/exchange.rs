//! All-gathers of small blobs among some ranks of a job, through the rendezvous server.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Session;
use crate::control::connection::{ANSWER, Gathered, Reach, SEND, State};
use crate::control::fault::{Class, Fault};
use crate::control::frame::{BLOB_BYTES_MAX, Frame, KEY_BYTES_MAX};
use crate::control::health::in_order;
use crate::control::limit::Limit;
use crate::control::poll::remaining;
use crate::error::{Error, Result};

/// How an exchange ended, as this rank saw it.
struct Ended {
    /// The server's answer, if it came.
    answer: Option<Gathered>,
    /// Whether the server could still be reached.
    reach: Reach,
    /// Whether this rank's part was sent.
    is_sent: bool,
}

impl Session {
    /// Gives `blob` to all of these world ranks, this one among them, and gets theirs in their
    /// order, which is the same on all of them. Ends early when `limit` says that the exchange is
    /// pointless: by a verdict on the communicator that it is for. That is asked after every
    /// change.
    ///
    /// All of them use the same `key`; a key is used again only after all of them are through. An
    /// error names the ranks that did not come as positions in `ranks`.
    pub fn exchange<'a>(
        &self,
        key: &str,
        ranks: &[usize],
        blob: &[u8],
        limit: impl Into<Limit<'a>>,
    ) -> Result<Vec<Vec<u8>>> {
        let limit = limit.into();
        let (ranks, members) = self.check_members(ranks)?;
        if blob.len() > BLOB_BYTES_MAX || key.len() > KEY_BYTES_MAX {
            return Err(Error::InvalidArgument(format!(
                "an exchange takes {BLOB_BYTES_MAX} bytes under a key of {KEY_BYTES_MAX}, not {} \
                 under {}",
                blob.len(),
                key.len()
            )));
        }
        if members.len() == 1 {
            return Ok(vec![blob.to_vec()]);
        }
        let started = Instant::now();
        // A counter by itself: nothing is published with it.
        let token = self.0.exchanges.fetch_add(1, Ordering::Relaxed);
        let frame = Frame::Exchange {
            token,
            timeout_ms: remaining(limit.deadline()).as_millis() as u64,
            key: key.into(),
            members,
            blob: blob.to_vec(),
        };
        let ended = self.gather(token, &frame, limit);
        // The verdict says why the exchange has failed, and to all ranks the same.
        if !matches!(ended.answer, Some(Ok(_))) {
            limit.check()?;
        }
        let is_orphaned =
            ended.answer.is_none() && ended.reach != Reach::Open && !ranks.contains(&0);
        if is_orphaned {
            return Err(Error::Bootstrap(
                "rank 0 of the job, whose process brings ranks together, has ended; join a new job"
                    .into(),
            ));
        }
        let blobs = ended.blobs(ranks.len());
        // Only this rank knows how long it waited; other classes do not say it.
        let after_ms = started.elapsed().as_millis() as u64;
        let blobs = blobs.map_err(|fault| Fault { after_ms, ..fault }.to_error(&ranks))?;
        Ok(in_order(&ranks, blobs))
    }

    /// Sends this rank's part and waits for the server's answer.
    fn gather(&self, token: u64, frame: &Frame, limit: Limit<'_>) -> Ended {
        let connection = &self.0.connection;
        connection.state().exchanges.insert(token, None);
        let is_sent = connection.send(frame);
        let is_over = |state: &State| {
            let is_answered = state.exchanges.get(&token).is_some_and(Option::is_some);
            state.reach != Reach::Open || is_answered || limit.check().is_err()
        };
        // Where it could not be sent, the monitor is about to find out that the server is gone.
        let wait_end = match is_sent {
            true => limit.deadline() + ANSWER,
            false => Instant::now() + SEND,
        };
        let mut state = connection.wait_until(wait_end, is_over);
        Ended {
            answer: state.exchanges.remove(&token).flatten(),
            reach: state.reach,
            is_sent,
        }
    }

    /// How many exchanges this rank has begun.
    #[cfg(test)]
    pub fn exchanges(&self) -> u64 {
        self.0.exchanges.load(Ordering::Relaxed)
    }
}

impl Ended {
    /// The blobs of `count` members, or which ranks are at fault.
    fn blobs(self, count: usize) -> Gathered {
        match self.answer {
            Some(Ok(blobs)) if blobs.len() == count => return Ok(blobs),
            Some(Ok(_)) => Err("its server sent an incomplete exchange"),
            Some(Err(fault)) => return Err(fault),
            None => match self.reach {
                Reach::Closed => Err("it has left the job"),
                Reach::Lost => Err("its control connection was closed"),
                Reach::Open if !self.is_sent => Err("it does not read its control connection"),
                // Not even the server answered.
                Reach::Open => {
                    return Err(Fault {
                        class: Class::Timeout,
                        ranks: vec![0],
                        text: String::new(),
                        after_ms: 0,
                    });
                }
            },
        }
        .map_err(|reason| Fault::peer_failed(0, reason))
    }
}
