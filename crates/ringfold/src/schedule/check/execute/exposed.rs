//! Steps on memory that ranks have exposed to each other. [`Exposure`] tracks which rank may access
//! the memory and when.

#![forbid(unsafe_code)]

use super::super::exposed::{Cell, Toucher};
use super::super::proof::Violation;
use super::super::rank::At;
use super::super::value::SymbolicValue;
use super::Execution;
use crate::schedule::action::{Action, Combine, RankRange, Span};

#[cfg(doc)]
use super::super::exposed::Exposure;

impl Execution<'_> {
    /// Touches the chunks of a step in its rank's own memory, which peers may access too.
    pub(super) fn touch_own(&mut self, at: At, action: &Action) -> Result<(), Violation> {
        if !self.exposure.is_watched || matches!(action, Action::Combine(_)) {
            return Ok(());
        }
        for span in action.reads().into_iter().flatten() {
            self.touch(at, Toucher::Itself, (at.rank, span), false)?;
        }
        match action.writes() {
            Some(span) => self.touch(at, Toucher::Itself, (at.rank, span), true),
            None => Ok(()),
        }
    }

    /// Touches a span of `owner`'s memory.
    fn touch(
        &mut self,
        at: At,
        by: Toucher,
        (owner, span): (u32, Span),
        writes: bool,
    ) -> Result<(), Violation> {
        for i in 0..span.len {
            let index = self.ranks[owner as usize].place_index(At { rank: owner, ..at }, span, i);
            let cell = Cell {
                owner,
                slice: at.slice,
                index,
            };
            let past = &self.ranks[at.rank as usize].channels[at.channel as usize].past;
            self.exposure.touch(at, past, by, cell, writes)?;
        }
        Ok(())
    }

    /// Rejects work in registered buffers before all ranks are known to agree to it.
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

    /// Touches a span of the exposed memory of `owners`, each of which must have the buffer.
    pub(super) fn touch_all(
        &mut self,
        at: At,
        by: Toucher,
        (owners, span): (RankRange, Span),
        writes: bool,
    ) -> Result<(), Violation> {
        for owner in owners.ranks() {
            if !self.ranks[owner as usize].schedule.has(span.buffer) {
                return Err(at.violation(format!("rank {owner} has no {:?}", span.buffer)));
            }
            self.touch(at, by, (owner, span), writes)?;
        }
        Ok(())
    }

    /// Stores the `i`-th chunk of a combination in its targets' buffers.
    pub(super) fn store(
        &mut self,
        at: At,
        combine: &Combine,
        i: u32,
        value: SymbolicValue,
    ) -> Result<(), Violation> {
        for owner in combine.targets.ranks() {
            let there = At { rank: owner, ..at };
            self.ranks[owner as usize].write(there, combine.into, i, value)?;
        }
        Ok(())
    }
}
