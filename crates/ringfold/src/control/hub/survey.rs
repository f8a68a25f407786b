//! Surveys of the members' progress in a communicator, requested by a member. No rank is blamed.

use std::collections::HashMap;
use std::time::Instant;

use super::state::{CommunicatorRecord, Hub, RankStatus, Survey};
use crate::control::frame::Frame;
use crate::control::standing::Standing;

/// Maximum number of surveys of one communicator at once; further ones get an empty answer.
const SURVEYS_MAX: usize = 256;

impl Hub {
    /// Starts a survey of the members' progress for `asker`.
    pub(super) fn ask(&mut self, asker: u32, communicator: u64, token: u64, deadline: Instant) {
        let Some(group) = self.groups.get_mut(&communicator) else {
            return;
        };
        if !group.opened.contains(&asker) {
            return;
        }
        self.inquiries += 1;
        let survey = Survey {
            number: self.inquiries,
            asker,
            token,
            deadline,
            answers: HashMap::new(),
        };
        if group.surveys.len() >= SURVEYS_MAX {
            let answer = survey.answer(&group.members);
            self.out.push(answer);
            return;
        }
        for member in group.askable(&self.ranks) {
            let frame = Frame::Inquiry {
                communicator,
                inquiry: survey.number,
            };
            self.out.push((member, frame));
        }
        group.surveys.push(survey);
    }

    /// Records the progress of `rank`; ends the survey if no other answer is missing.
    pub(super) fn hear(&mut self, rank: u32, communicator: u64, number: u64, standing: Standing) {
        let Some(group) = self.groups.get_mut(&communicator) else {
            return;
        };
        let askable: Vec<u32> = group.askable(&self.ranks).collect();
        let survey = group.surveys.iter_mut().find(|open| open.number == number);
        if let Some(survey) = survey.filter(|_| askable.contains(&rank)) {
            survey.answers.insert(rank, standing);
            if askable.iter().all(|rank| survey.answers.contains_key(rank)) {
                self.end_surveys(communicator, |survey| survey.number == number);
            }
        }
    }

    /// Answers the surveys of `communicator` that are over, with the progress known so far.
    pub(super) fn end_surveys(&mut self, communicator: u64, is_over: impl Fn(&Survey) -> bool) {
        let Some(group) = self.groups.get_mut(&communicator) else {
            return;
        };
        let over = group.surveys.extract_if(.., |survey| is_over(survey));
        let answers: Vec<_> = over.map(|survey| survey.answer(&group.members)).collect();
        self.out.extend(answers);
    }
}

impl CommunicatorRecord {
    /// Returns the members that can be asked: they are in the job, and have opened the communicator
    /// and not closed it.
    fn askable(&self, ranks: &[RankStatus]) -> impl Iterator<Item = u32> {
        self.opened.iter().copied().filter(|member| {
            matches!(ranks[*member as usize], RankStatus::Here(_)) && !self.closed.contains(member)
        })
    }
}

impl Survey {
    /// Returns the answer to the asker.
    fn answer(mut self, members: &[u32]) -> (u32, Frame) {
        let standings = members.iter().map(|member| self.answers.remove(member));
        let frame = Frame::Standings {
            token: self.token,
            standings: standings.collect(),
        };
        (self.asker, frame)
    }
}
