//! Communicators and their verdicts: the first report decides, and a timeout starts an inquiry.

use std::collections::HashMap;
use std::time::Instant;

use super::state::{CommunicatorRecord, Hub, Inquiry, OPEN_MAX, ProtocolViolation, RankStatus};
use crate::control::claims::Claims;
use crate::control::fault::{Class, Fault};
use crate::control::frame::Frame;
use crate::control::standing::INQUIRY;
use crate::error::LEFT;

impl Hub {
    pub(super) fn open(
        &mut self,
        rank: u32,
        communicator: u64,
        members: Vec<u32>,
    ) -> Result<(), ProtocolViolation> {
        if self.groups.len() >= OPEN_MAX {
            return Err(ProtocolViolation("opened too many communicators"));
        }
        let group = self
            .groups
            .entry(communicator)
            .or_insert_with(|| CommunicatorRecord {
                members: members.clone(),
                opened: Vec::new(),
                closed: Vec::new(),
                verdict: None,
                inquiry: None,
                surveys: Vec::new(),
                claims: Claims::default(),
            });
        if group.members != members || group.opened.contains(&rank) {
            return Err(ProtocolViolation(
                "opened a communicator twice or with other members",
            ));
        }
        group.opened.push(rank);
        for closed in &group.closed {
            let frame = Frame::Left {
                communicator,
                rank: *closed,
            };
            self.out.push((rank, frame));
        }
        if let Some(fault) = group.verdict.clone() {
            let frame = Frame::Verdict {
                communicator,
                fault,
            };
            self.out.push((rank, frame));
            return Ok(());
        }
        let failed = members
            .iter()
            .find_map(|member| match &self.ranks[*member as usize] {
                RankStatus::Failed(reason) => Some(Fault::peer_failed(*member, reason.clone())),
                _ => None,
            });
        if let Some(fault) = failed.filter(|fault| !group.closed.contains(&fault.ranks[0])) {
            self.pronounce(communicator, fault);
        }
        Ok(())
    }

    pub(super) fn close(&mut self, rank: u32, communicator: u64) {
        let Some(group) = self.groups.get_mut(&communicator) else {
            return;
        };
        if !group.opened.contains(&rank) || group.closed.contains(&rank) {
            return;
        }
        group.closed.push(rank);
        for to in group.opened.iter().filter(|to| **to != rank) {
            self.out.push((*to, Frame::Left { communicator, rank }));
        }
        self.forget_ended();
    }

    pub(super) fn report(&mut self, rank: u32, communicator: u64, mut fault: Fault, now: Instant) {
        let Some(group) = self.groups.get_mut(&communicator) else {
            return;
        };
        let is_about_members = fault
            .ranks
            .iter()
            .all(|about| group.members.contains(about));
        if group.verdict.is_some() || !group.opened.contains(&rank) || !is_about_members {
            return;
        }
        // A rank that left while it was needed may have left because another one died, in a
        // communicator that not all are in. The report of that death is on its way.
        let is_leaver = fault.class == Class::PeerFailed
            && fault.ranks.iter().all(|about| group.closed.contains(about));
        if is_leaver {
            // To the reporter, a closed connection looks the same as a death.
            fault.text = LEFT.into();
        }
        if fault.class != Class::Timeout && !is_leaver {
            self.pronounce(communicator, fault);
            return;
        }
        let replaces = |open: &Inquiry| is_leaver && open.fault.class == Class::Timeout;
        if group.inquiry.as_ref().is_some_and(|open| !replaces(open)) {
            return;
        }
        self.inquiries += 1;
        let number = self.inquiries;
        group.inquiry = Some(Inquiry {
            number,
            reporter: rank,
            fault,
            deadline: now + INQUIRY,
            answers: HashMap::new(),
        });
        for member in &group.members {
            if !is_leaver && matches!(self.ranks[*member as usize], RankStatus::Here(_)) {
                let frame = Frame::Inquiry {
                    communicator,
                    inquiry: number,
                };
                self.out.push((*member, frame));
            }
        }
    }

    pub(super) fn answer(&mut self, rank: u32, communicator: u64, inquiry: u64, sequence: u64) {
        let Some(group) = self.groups.get_mut(&communicator) else {
            return;
        };
        let Some(open) = group.inquiry.as_mut().filter(|open| open.number == inquiry) else {
            return;
        };
        if group.members.contains(&rank) {
            open.answers.insert(rank, sequence);
        }
        let ranks = &self.ranks;
        let asked = group
            .members
            .iter()
            .filter(|m| matches!(ranks[**m as usize], RankStatus::Here(_)));
        if asked.count() <= open.answers.len() {
            self.conclude(communicator);
        }
    }

    /// Decides which ranks are blamed for a timeout, from the answers so far. A rank that left is
    /// blamed if no death has been reported.
    pub(super) fn conclude(&mut self, communicator: u64) {
        let Some(group) = self.groups.get_mut(&communicator) else {
            return;
        };
        let Some(inquiry) = group.inquiry.take() else {
            return;
        };
        if inquiry.fault.class != Class::Timeout {
            return self.pronounce(communicator, inquiry.fault);
        }
        let ranks = &self.ranks;
        let answer = |member: u32| inquiry.answers.get(&member);
        let is_here = |member: u32| matches!(ranks[member as usize], RankStatus::Here(_));
        let members = group.members.iter().copied();
        let silent = |member: &u32| is_here(*member) && answer(*member).is_none();
        let mut culprits: Vec<u32> = members.clone().filter(silent).collect();
        let lowest = inquiry.answers.values().min();
        if culprits.is_empty() && answer(inquiry.reporter) > lowest {
            culprits = members.filter(|member| answer(*member) == lowest).collect();
        }
        let mut fault = inquiry.fault;
        if !culprits.is_empty() {
            fault.ranks = culprits;
        }
        self.pronounce(communicator, fault);
    }

    pub(super) fn pronounce(&mut self, communicator: u64, fault: Fault) {
        let Some(group) = self.groups.get_mut(&communicator) else {
            return;
        };
        if group.verdict.is_some() {
            return;
        }
        group.inquiry = None;
        group.verdict = Some(fault.clone());
        for to in &group.opened {
            let frame = Frame::Verdict {
                communicator,
                fault: fault.clone(),
            };
            self.out.push((*to, frame));
        }
    }

    /// Drops communicators that every member has closed or can no longer close.
    pub(super) fn forget_ended(&mut self) {
        let ranks = &self.ranks;
        self.groups.retain(|_, group| {
            group.members.iter().any(|member| {
                matches!(ranks[*member as usize], RankStatus::Here(_))
                    && !group.closed.contains(member)
            })
        });
    }
}
