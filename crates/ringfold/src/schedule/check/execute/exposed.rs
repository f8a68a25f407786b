//! Steps on memory that ranks have exposed to each other. [`Exposure`] knows which rank may access
//! it when.

#![forbid(unsafe_code)]

use super::super::Violation;
#[cfg(doc)]
use super::super::exposed::Exposure;
use super::super::exposed::{Cell, Toucher};
use super::super::rank::At;
use super::super::value::Value;
use super::{Execution, combine};
use crate::schedule::{Action, Ranks, Span};

impl Execution<'_> {
    /// Touches what a step touches in its rank's own memory, where peers may work too.
    pub(super) fn touch_own(&mut self, at: At, action: &Action) -> Result<(), Violation> {
        let is_elsewhere = matches!(action, Action::Push { .. } | Action::Serve { .. });
        if !self.exposure.is_watched() || is_elsewhere {
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
            self.exposure.touch(at, by, cell, writes)?;
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
        self.touch_all(at, Toucher::Itself, (sources, from), false)?;
        for i in 0..into.len {
            let value = self.pushed(at, (sources, from), i)?;
            self.store_pushed(at, (targets, into), i, value)?;
        }
        self.touch_all(at, Toucher::Itself, (targets, into), true)
    }

    /// Offers to serve what all have exposed. From now on a rank may access it; with the last offer
    /// it is complete.
    pub(super) fn serve(
        &mut self,
        at: At,
        (sources, from): (Ranks, Span),
        (targets, into): (Ranks, Span),
    ) -> Result<(), Violation> {
        self.touch_all(at, Toucher::Anybody, (sources, from), false)?;
        let hops = self.channel(at.rank, at.channel).hops;
        for i in 0..into.len {
            let (chunk, value) = (into.first + i, self.pushed(at, (sources, from), i)?);
            if !self.served.offer((at.slice, chunk), at.rank, value, hops) {
                return Err(at.violation(format!("offers chunk {chunk} a second time")));
            }
            if self.served.value(at.slice, chunk).is_some() {
                self.store_pushed(at, (targets, into), i, value)?;
            }
        }
        self.touch_all(at, Toucher::Anybody, (targets, into), true)?;
        for rank in 0..self.ranks.len() as u32 {
            self.wake_if_awaiting(rank, at.channel);
        }
        Ok(())
    }

    /// Hears that the chunks of `span` are served, which `phase_is_reached` has seen.
    pub(super) fn await_served(&mut self, at: At, span: Span) {
        for i in 0..span.len {
            let served = self.served.value(at.slice, span.first + i);
            let (_, hops) = served.expect("waited for");
            let channel = self.channel(at.rank, at.channel);
            channel.hops = channel.hops.max(hops + 1);
        }
        self.exposure.hear_served(at);
    }

    /// Touches a span of all these ranks' memory, which they must have.
    fn touch_all(
        &mut self,
        at: At,
        by: Toucher,
        (owners, span): (Ranks, Span),
        writes: bool,
    ) -> Result<(), Violation> {
        for owner in owners.numbers(self.ranks.len() as u32) {
            if !self.ranks[owner as usize].schedule.has(span.buffer) {
                return Err(at.violation(format!("rank {owner} has no {:?}", span.buffer)));
            }
            self.touch(at, by, (owner, span), writes)?;
        }
        Ok(())
    }

    /// What a push makes of the `i`-th chunks of its sources.
    fn pushed(&self, at: At, (sources, from): (Ranks, Span), i: u32) -> Result<Value, Violation> {
        let mut sum = None;
        for owner in sources.numbers(self.ranks.len() as u32) {
            let there = At { rank: owner, ..at };
            let value = self.ranks[owner as usize].read(there, from, i)?;
            sum = Some(match sum {
                None => value,
                Some(sum) => combine(at, sum, value)?,
            });
        }
        Ok(sum.expect("one source at least"))
    }

    fn store_pushed(
        &mut self,
        at: At,
        (targets, into): (Ranks, Span),
        i: u32,
        value: Value,
    ) -> Result<(), Violation> {
        for owner in targets.numbers(self.ranks.len() as u32) {
            if self.ranks[owner as usize].schedule.has(into.buffer) {
                let there = At { rank: owner, ..at };
                self.ranks[owner as usize].write(there, into, i, value)?;
            }
        }
        Ok(())
    }
}
