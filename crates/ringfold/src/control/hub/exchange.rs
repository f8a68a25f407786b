//! Exchanges: every member of a group sends a blob and gets the blobs of all, or an error that
//! names the missing members.

use std::sync::Arc;
use std::time::Instant;

use super::state::{Gathering, Hub, OPEN_MAX, ProtocolViolation, RankStatus, Topic};
use crate::control::fault::Fault;
use crate::control::frame::Frame;

/// Maximum number of exchanges that one rank may wait for at the same time: one for each of its
/// threads that creates a communicator. That many blobs of maximum size are 16 MiB, the most that a
/// broken rank can cost rank 0.
const OPEN_OF_RANK_MAX: usize = 256;

impl Hub {
    pub(super) fn gather(
        &mut self,
        rank: u32,
        topic: Topic,
        part: (u64, Vec<u8>),
        deadline: Instant,
    ) -> Result<(), ProtocolViolation> {
        if self.gatherings.len() >= OPEN_MAX {
            return Err(ProtocolViolation("began too many exchanges"));
        }
        if self.open_exchanges(rank) >= OPEN_OF_RANK_MAX {
            return Err(ProtocolViolation(
                "began more exchanges at once than a rank may",
            ));
        }
        let count = topic.1.len();
        // The caller has checked that the sender is a member.
        let place = topic.1.binary_search(&rank).unwrap_or(0);
        let gathering = self
            .gatherings
            .entry(topic.clone())
            .or_insert_with(|| Gathering {
                deadline,
                parts: vec![None; count],
            });
        if gathering.parts[place].is_some() {
            return Err(ProtocolViolation("sent two parts for one exchange"));
        }
        gathering.deadline = gathering.deadline.min(deadline);
        gathering.parts[place] = Some(part);
        if gathering.parts.iter().all(Option::is_some) {
            self.deliver(&topic);
            return Ok(());
        }
        let gone = topic
            .1
            .iter()
            .find_map(|member| match &self.ranks[*member as usize] {
                RankStatus::Failed(reason) => Some(Fault::peer_failed(*member, reason.clone())),
                RankStatus::Departed => Some(Fault::peer_failed(*member, "it has left the job")),
                _ => None,
            });
        if let Some(fault) = gone.filter(|fault| self.missing(&topic).contains(&fault.ranks[0])) {
            self.fail_gathering(&topic, &fault);
        }
        Ok(())
    }

    /// Returns the number of exchanges that `rank` waits for.
    fn open_exchanges(&self, rank: u32) -> usize {
        let has_come = |(topic, gathering): &(&Topic, &Gathering)| {
            let place = topic.1.binary_search(&rank);
            place.is_ok_and(|place| gathering.parts[place].is_some())
        };
        self.gatherings.iter().filter(has_come).count()
    }

    fn deliver(&mut self, topic: &Topic) {
        let Some(gathering) = self.gatherings.remove(topic) else {
            return;
        };
        let (tokens, blobs): (Vec<u64>, Vec<Vec<u8>>) =
            gathering.parts.into_iter().flatten().unzip();
        let blobs = Arc::new(blobs);
        for (member, token) in topic.1.iter().zip(tokens) {
            let blobs = blobs.clone();
            self.out.push((*member, Frame::Gathered { token, blobs }));
        }
    }

    pub(super) fn missing(&self, topic: &Topic) -> Vec<u32> {
        let Some(gathering) = self.gatherings.get(topic) else {
            return Vec::new();
        };
        let all = topic.1.iter().zip(&gathering.parts);
        all.filter(|(_, part)| part.is_none())
            .map(|(member, _)| *member)
            .collect()
    }

    pub(super) fn fail_gathering(&mut self, topic: &Topic, fault: &Fault) {
        let Some(gathering) = self.gatherings.remove(topic) else {
            return;
        };
        for (member, part) in topic.1.iter().zip(gathering.parts) {
            if let Some((token, _)) = part {
                let fault = fault.clone();
                self.out.push((*member, Frame::Ungathered { token, fault }));
            }
        }
    }

    /// Ends the exchanges that wait for `rank`.
    pub(super) fn fail_gatherings(&mut self, rank: u32, fault: &Fault) {
        let topics: Vec<Topic> = self
            .gatherings
            .keys()
            .filter(|topic| self.missing(topic).contains(&rank))
            .cloned()
            .collect();
        for topic in topics {
            self.fail_gathering(&topic, fault);
        }
    }
}
