//! Surveys: how far the members of a communicator are, because one of them asks. No rank is blamed.

use std::collections::HashMap;
use std::time::Instant;

use super::state::{Group, Hub, Rank, Survey};
use crate::control::frame::Frame;
use crate::control::standing::Standing;

/// Surveys of one communicator at once; to more of them the answer is that nothing is known.
const SURVEYS_MAX: usize = 256;

impl Hub {
    /// `asker` wants to know how far the members are.
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

    /// `rank` says how far it is; the survey ends if it was the last one.
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

    /// Answers the surveys of `communicator` that are over, with what is known by now.
    pub(super) fn end_surveys(&mut self, communicator: u64, is_over: impl Fn(&Survey) -> bool) {
        let Some(group) = self.groups.get_mut(&communicator) else {
            return;
        };
        let over = group.surveys.extract_if(.., |survey| is_over(survey));
        let answers: Vec<_> = over.map(|survey| survey.answer(&group.members)).collect();
        self.out.extend(answers);
    }
}

impl Group {
    /// The members that can be asked: here, and neither about to open the communicator nor through
    /// with it.
    fn askable(&self, ranks: &[Rank]) -> impl Iterator<Item = u32> {
        self.opened.iter().copied().filter(|member| {
            matches!(ranks[*member as usize], Rank::Here(_)) && !self.closed.contains(member)
        })
    }
}

impl Survey {
    /// The answer to the asker.
    fn answer(mut self, members: &[u32]) -> (u32, Frame) {
        let standings = members.iter().map(|member| self.answers.remove(member));
        let frame = Frame::Standings {
            token: self.token,
            standings: standings.collect(),
        };
        (self.asker, frame)
    }
}
