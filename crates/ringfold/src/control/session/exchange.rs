//! All-gathers of small blobs among some ranks of a job, through the rendezvous server.

use std::sync::Arc;
use std::time::Instant;

use super::Session;
use crate::control::connection::{ANSWER, Reach, RequestOutcome};
use crate::control::fault::Fault;
use crate::control::frame::{BLOB_BYTES_MAX, Frame, KEY_BYTES_MAX};
use crate::control::health::in_order;
use crate::control::limit::Limit;
use crate::control::poll::remaining;
use crate::error::{Error, GONE, Result};

impl Session {
    /// Sends `blob` to all of these world ranks, including this one, and returns their blobs in the
    /// order of `ranks`, which is the same on all of them. Ends early if `limit`, checked after
    /// every change, returns an error, such as the verdict on the exchange's communicator.
    ///
    /// All ranks use the same `key`, which may be used again only after all have finished. An error
    /// names the missing ranks as positions in `ranks`.
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
        let frame = |token| Frame::Exchange {
            token,
            timeout_ms: remaining(limit.deadline()).as_millis() as u64,
            key: key.into(),
            members,
            blob: blob.to_vec(),
        };
        let wait_end = limit.deadline() + ANSWER;
        let is_pointless = || limit.check().is_err();
        let ended = self.0.connection.request(frame, wait_end, is_pointless);
        // The verdict is the cause of the failure, and the same on all ranks.
        if !matches!(ended.answer, Some(Frame::Gathered { .. })) {
            limit.check()?;
        }
        if self.0.connection.state().is_stopping {
            return Err(Error::Closed);
        }
        let is_orphaned =
            ended.answer.is_none() && ended.reach != Reach::Open && !ranks.contains(&0);
        if is_orphaned {
            return Err(Error::Bootstrap(
                "rank 0 of the job, whose process runs the rendezvous server, has ended; join a \
                    new job"
                    .into(),
            ));
        }
        let blobs = ended.blobs(ranks.len());
        // Only this rank knows how long it waited; classes other than timeouts do not show that.
        let after_ms = started.elapsed().as_millis() as u64;
        let blobs = blobs.map_err(|fault| Fault { after_ms, ..fault }.to_error(&ranks))?;
        Ok(in_order(&ranks, blobs))
    }

    /// Returns the number of exchanges (and surveys) that this rank has begun.
    #[cfg(test)]
    pub fn exchanges(&self) -> u64 {
        self.0.connection.state().requests_begun
    }
}

impl RequestOutcome {
    /// Returns the blobs of `count` members, or the fault.
    fn blobs(self, count: usize) -> Result<Vec<Vec<u8>>, Fault> {
        match self.answer {
            Some(Frame::Gathered { blobs, .. }) if blobs.len() == count => {
                return Ok(Arc::unwrap_or_clone(blobs));
            }
            Some(Frame::Ungathered { fault, .. }) => return Err(fault),
            Some(_) => Err("its server sent an incomplete exchange"),
            None => match self.reach {
                Reach::Closed => Err("it has left the job"),
                Reach::Lost => Err(GONE),
                Reach::Open if !self.is_sent => Err("it does not read its control connection"),
                // The server itself did not answer.
                Reach::Open => return Err(Fault::timeout(vec![0])),
            },
        }
        .map_err(|reason| Fault::peer_failed(0, reason))
    }
}
