//! What steps do with memory that ranks have exposed to each other. Who may touch it when, [`Exposure`] knows.

#![forbid(unsafe_code)]

use super::super::Violation;
use super::super::exposed::Cell;
#[cfg(doc)]
use super::super::exposed::Exposure;
use super::super::rank::At;
use super::{Execution, combine};
use crate::schedule::{Action, Ranks, Span};

impl Execution<'_> {
    /// Touches what a step touches in its rank's own memory, where peers may work too.
    pub(super) fn touch_own(&mut self, at: At, action: &Action) -> Result<(), Violation> {
        if !self.exposure.is_watched() || matches!(action, Action::Push { .. }) {
            return Ok(());
        }
        for span in action.reads().into_iter().flatten() {
            self.touch(at, at.rank, span, false)?;
        }
        match action.writes() {
            Some(span) => self.touch(at, at.rank, span, true),
            None => Ok(()),
        }
    }

    /// Touches a span of `owner`'s memory.
    fn touch(&mut self, at: At, owner: u32, span: Span, writes: bool) -> Result<(), Violation> {
        for i in 0..span.len {
            let index = self.ranks[owner as usize].place_index(At { rank: owner, ..at }, span, i);
            let cell = Cell {
                owner,
                slice: at.slice,
                index,
            };
            self.exposure.touch(at, cell, writes)?;
        }
        Ok(())
    }

    /// Refuses a push before all ranks are known to agree to it.
    pub(super) fn check_agreed(&mut self, at: At) -> Result<(), Violation> {
        for owner in 0..self.ranks.len() as u32 {
            let awaited = *self.ranks[at.rank as usize].awaited(at.slice, owner);
            if owner != at.rank && !self.exposure.is_heard(at, owner, awaited) {
                return Err(at.violation(format!(
                    "works in peers' memory without having awaited the exposure of rank {owner}"
                )));
            }
        }
        Ok(())
    }

    pub(super) fn push(
        &mut self,
        at: At,
        (sources, from): (Ranks, Span),
        (targets, into): (Ranks, Span),
    ) -> Result<(), Violation> {
        let n = self.ranks.len() as u32;
        let has = |execution: &Execution<'_>, owner: u32, span: Span| {
            let schedule = execution.ranks[owner as usize].schedule;
            let missing = || at.violation(format!("rank {owner} has no {:?}", span.buffer));
            schedule.has(span.buffer).then_some(()).ok_or_else(missing)
        };
        for owner in sources.numbers(n) {
            has(self, owner, from)?;
            self.touch(at, owner, from, false)?;
        }
        for i in 0..into.len {
            let mut sum = None;
            for owner in sources.numbers(n) {
                let there = At { rank: owner, ..at };
                let value = self.ranks[owner as usize].read(there, from, i)?;
                sum = Some(match sum {
                    None => value,
                    Some(sum) => combine(at, sum, value)?,
                });
            }
            let sum = sum.expect("one source at least");
            for owner in targets.numbers(n) {
                has(self, owner, into)?;
                let there = At { rank: owner, ..at };
                self.ranks[owner as usize].write(there, into, i, sum)?;
            }
        }
        for owner in targets.numbers(n) {
            self.touch(at, owner, into, true)?;
        }
        Ok(())
    }
}
