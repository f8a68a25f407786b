//! The decisions of the rendezvous server, without I/O: membership, exchanges and verdicts.
//!
//! Input: frames of ranks, lost connections, the time. Output: frames to ranks. Each communicator
//! has one verdict, the first. A reported timeout is verified: all members are asked for their
//! progress. The verdict blames those that do not answer (their process is frozen), else those in
//! the earliest call if the reporter is past it, else those named in the report. A member may also
//! survey the others' progress, which blames no rank. The calls in which members wait are compared.

mod claim;
mod exchange;
mod state;
mod survey;
mod verdict;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::fault::Fault;
use super::frame::{Frame, KEY_BYTES_MAX, Presence};
use crate::error::GONE;
use crate::silence::Silence;
use state::{CommunicatorRecord, Inquiry, REFUSALS_TOLD_MAX, RankStatus, Survey, Topic};
pub use state::{Hub, ProtocolViolation};

/// Maximum duration of an exchange or a survey.
const EXCHANGE_MAX: Duration = Duration::from_secs(24 * 3600);

impl Hub {
    /// Creates a job of `world_size` ranks, which get `job` and `key`, and must all have joined by
    /// `join_deadline`.
    pub fn new(job: u64, key: [u8; 32], world_size: u32, join_deadline: Instant) -> Hub {
        Hub {
            job,
            key,
            silence: Silence::default(),
            ranks: vec![RankStatus::Absent; world_size as usize],
            is_complete: false,
            refused: None,
            refusals_told: 0,
            cancellation: None,
            join_deadline,
            groups: HashMap::new(),
            gatherings: HashMap::new(),
            inquiries: 0,
            out: Vec::new(),
        }
    }

    /// Sets the peer timeout that the ranks get.
    pub fn with_silence(self, silence: Silence) -> Hub {
        Hub { silence, ..self }
    }

    /// Whether joining is over.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether the job was cancelled, because not all ranks joined.
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.is_some()
    }

    /// Whether ranks other than 0 are in a job that was not cancelled.
    pub fn is_in_use(&self) -> bool {
        !self.is_cancelled() && (1..self.ranks.len()).any(|rank| self.is_here(rank as u32))
    }

    /// Whether `rank` is in the job now.
    pub fn is_here(&self, rank: u32) -> bool {
        matches!(self.ranks.get(rank as usize), Some(RankStatus::Here(_)))
    }

    /// Whether `rank` is in the job, has left it, or was lost; a withdrawn rank is not known.
    pub fn is_known(&self, rank: u32) -> bool {
        !matches!(
            self.ranks.get(rank as usize),
            Some(RankStatus::Absent) | None
        )
    }

    /// Takes the frames to send, in order.
    pub fn take_output(&mut self) -> Vec<(u32, Frame)> {
        std::mem::take(&mut self.out)
    }

    /// Returns the next time at which [`Hub::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let joining = (!self.is_complete).then_some(self.join_deadline);
        let inquiries = self
            .groups
            .values()
            .filter_map(|group| group.inquiry.as_ref());
        let surveys = self.groups.values().flat_map(|group| &group.surveys);
        joining
            .into_iter()
            .chain(inquiries.map(|inquiry| inquiry.deadline))
            .chain(surveys.map(|survey| survey.deadline))
            .chain(self.gatherings.values().map(|gathering| gathering.deadline))
            .min()
    }

    /// Processes a frame from `rank`, whose connection is authenticated.
    pub fn receive(
        &mut self,
        rank: u32,
        frame: Frame,
        now: Instant,
    ) -> Result<(), ProtocolViolation> {
        if let Frame::Join { presence } = frame {
            return self.join(rank, presence);
        }
        if !self.is_here(rank) {
            let Frame::Cancelled { reason, .. } = frame else {
                return Err(ProtocolViolation("sent a frame before joining"));
            };
            self.give_up(&[rank], &reason);
            return Ok(());
        }
        match frame {
            Frame::Exchange {
                token,
                timeout_ms,
                key,
                members,
                blob,
            } => {
                self.check_members(rank, &members)?;
                if key.len() > KEY_BYTES_MAX {
                    return Err(ProtocolViolation("sent a key that is too long"));
                }
                let patience = Duration::from_millis(timeout_ms).min(EXCHANGE_MAX);
                return self.gather(rank, (key, members), (token, blob), now + patience);
            }
            Frame::Open {
                communicator,
                members,
            } => {
                self.check_members(rank, &members)?;
                return self.open(rank, communicator, members);
            }
            Frame::Close { communicator } => self.close(rank, communicator),
            Frame::Report {
                communicator,
                fault,
            } => self.report(rank, communicator, fault, now),
            Frame::Suspect { rank: suspect } => self.suspect(rank, suspect),
            Frame::Answer {
                communicator,
                inquiry,
                standing,
            } => {
                self.answer(rank, communicator, inquiry, standing.begun);
                self.hear(rank, communicator, inquiry, standing);
            }
            Frame::Claim {
                communicator,
                position,
            } => self.claim(rank, communicator, *position),
            Frame::Ask {
                communicator,
                token,
                timeout_ms,
            } => {
                let patience = Duration::from_millis(timeout_ms).min(EXCHANGE_MAX);
                self.ask(rank, communicator, token, now + patience);
            }
            Frame::Goodbye => self.depart(rank),
            _ => return Err(ProtocolViolation("sent a server's frame")),
        }
        Ok(())
    }

    /// Records that the connection of `rank` is lost.
    pub fn lose(&mut self, rank: u32, reason: &str) {
        let Some(entry) = self.ranks.get_mut(rank as usize) else {
            return;
        };
        if matches!(entry, RankStatus::Departed | RankStatus::Failed(_)) {
            return;
        }
        *entry = RankStatus::Failed(reason.into());
        let fault = Fault::peer_failed(rank, reason);
        if !self.is_complete {
            let also = self.refused_last();
            let reason = format!("rank {rank} was lost: {reason}{also}");
            self.cancel(vec![rank], &reason);
        }
        for communicator in
            self.groups_that(|group| group.members.contains(&rank) && !group.closed.contains(&rank))
        {
            self.pronounce(communicator, fault.clone());
        }
        // After the verdicts, so that ranks in an exchange have theirs when the exchange ends.
        self.fail_gatherings(rank, &fault);
        self.forget_ended();
    }

    /// Processes the deadlines that have passed at `now`.
    pub fn tick(&mut self, now: Instant) {
        if !self.is_complete && now >= self.join_deadline {
            let also = self.refused_last();
            let reason = format!("the deadline for joining has passed{also}");
            self.cancel(self.absent(), &reason);
        }
        let is_late = |inquiry: &Inquiry| now >= inquiry.deadline;
        for communicator in self.groups_that(|group| group.inquiry.as_ref().is_some_and(is_late)) {
            self.conclude(communicator);
        }
        let is_over = |survey: &Survey| now >= survey.deadline;
        for communicator in self.groups_that(|group| group.surveys.iter().any(is_over)) {
            self.end_surveys(communicator, is_over);
        }
        let late: Vec<Topic> = self
            .gatherings
            .iter()
            .filter(|(_, gathering)| now >= gathering.deadline)
            .map(|(topic, _)| topic.clone())
            .collect();
        for topic in late {
            self.fail_gathering(&topic, &Fault::timeout(self.missing(&topic)));
        }
    }

    /// Tells all ranks that rank 0 leaves and sends nothing more.
    pub fn shut(&mut self) {
        for rank in self.ranks_that(|rank| matches!(rank, RankStatus::Here(_))) {
            self.out.push((rank, Frame::Closing));
        }
    }

    fn groups_that(&self, is_wanted: impl Fn(&CommunicatorRecord) -> bool) -> Vec<u64> {
        let wanted = self.groups.iter().filter(|(_, group)| is_wanted(group));
        wanted.map(|(communicator, _)| *communicator).collect()
    }

    fn ranks_that(&self, is_wanted: impl Fn(&RankStatus) -> bool) -> Vec<u32> {
        let numbered = self.ranks.iter().enumerate();
        numbered
            .filter(|(_, rank)| is_wanted(rank))
            .map(|(number, _)| number as u32)
            .collect()
    }

    fn join(&mut self, rank: u32, presence: Presence) -> Result<(), ProtocolViolation> {
        match self.ranks.get_mut(rank as usize) {
            Some(entry @ RankStatus::Absent) => *entry = RankStatus::Here(presence),
            _ => return Err(ProtocolViolation("joined twice")),
        }
        if let Some(frame) = &self.cancellation {
            self.out.push((rank, frame.clone()));
            return Ok(());
        }
        if let Some(reason) = self.refused.clone() {
            self.out.push((rank, Frame::Refused { reason }));
        }
        let present: Vec<Presence> = self
            .ranks
            .iter()
            .filter_map(|rank| match rank {
                RankStatus::Here(presence) => Some(*presence),
                _ => None,
            })
            .collect();
        if present.len() == self.ranks.len() {
            self.is_complete = true;
            for to in 0..self.ranks.len() as u32 {
                let welcome = Frame::Welcome {
                    job: self.job,
                    key: self.key,
                    silence_ms: self.silence.limit().as_millis() as u64,
                    ranks: present.clone(),
                };
                self.out.push((to, welcome));
            }
        }
        Ok(())
    }

    /// Records the refusal of a connection for the errors of the waiting ranks, and passes it on at
    /// once, because their own deadlines may end first.
    pub fn note_refused(&mut self, text: String) {
        let reason = format!("the last refused connection was {text}");
        self.refusals_told += u32::from(!self.is_complete);
        if !self.is_complete && self.refusals_told <= REFUSALS_TOLD_MAX {
            for to in self.ranks_that(|rank| matches!(rank, RankStatus::Here(_))) {
                let reason = reason.clone();
                self.out.push((to, Frame::Refused { reason }));
            }
        }
        self.refused = Some(reason);
    }

    /// Returns the last refusal, as the end of a reason.
    fn refused_last(&self) -> String {
        let refused = self.refused.as_ref();
        refused.map_or(String::new(), |text| format!(", and {text}"))
    }

    /// Cancels the job because `missing` cannot join, unless joining is over.
    pub fn give_up(&mut self, missing: &[u32], reason: &str) {
        if !self.is_complete {
            self.cancel(missing.to_vec(), reason);
        }
    }

    /// Returns the ranks that have not joined yet.
    pub fn absent(&self) -> Vec<u32> {
        self.ranks_that(|rank| matches!(rank, RankStatus::Absent))
    }

    /// Cancels a job that not all ranks have joined.
    fn cancel(&mut self, ranks: Vec<u32>, reason: &str) {
        self.is_complete = true;
        let frame = Frame::Cancelled {
            ranks,
            reason: reason.into(),
        };
        for to in self.ranks_that(|rank| matches!(rank, RankStatus::Here(_))) {
            self.out.push((to, frame.clone()));
        }
        self.cancellation = Some(frame);
    }

    /// Checks that `members` is ascending, within the world, and contains `rank`.
    fn check_members(&self, rank: u32, members: &[u32]) -> Result<(), ProtocolViolation> {
        let is_ascending = members.windows(2).all(|pair| pair[0] < pair[1]);
        let is_inside = members
            .last()
            .is_some_and(|last| (*last as usize) < self.ranks.len());
        match is_ascending && is_inside && members.binary_search(&rank).is_ok() {
            true => Ok(()),
            false => Err(ProtocolViolation("sent an invalid list of members")),
        }
    }

    fn suspect(&mut self, witness: u32, suspect: u32) {
        let host_of = |rank: u32| match self.ranks.get(rank as usize) {
            Some(RankStatus::Here(presence)) => Some(presence.host),
            _ => None,
        };
        // Only a rank on the same host can have seen the process end.
        if witness != suspect && host_of(suspect).is_some() && host_of(suspect) == host_of(witness)
        {
            self.lose(suspect, GONE);
        }
    }

    fn depart(&mut self, rank: u32) {
        if !self.is_complete {
            // The rank gave up waiting for the others, and may join again.
            self.ranks[rank as usize] = RankStatus::Absent;
            self.out.push((rank, Frame::Departed { rank }));
            return;
        }
        self.ranks[rank as usize] = RankStatus::Departed;
        let fault = Fault::peer_failed(rank, "it has left the job");
        self.fail_gatherings(rank, &fault);
        for group in self.groups.values_mut() {
            if group.opened.contains(&rank) && !group.closed.contains(&rank) {
                group.closed.push(rank);
            }
        }
        for to in self.ranks_that(|other| matches!(other, RankStatus::Here(_))) {
            self.out.push((to, Frame::Departed { rank }));
        }
        // Last, so that the other ranks are notified before the leaver's process can end.
        self.out.push((rank, Frame::Departed { rank }));
        self.forget_ended();
    }
}

#[cfg(test)]
mod tests;
