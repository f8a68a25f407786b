//! Steps on published memory. A chunk is read after its publication was awaited, given back by its
//! only reader, or reduced by any rank with a core.

#![forbid(unsafe_code)]

use super::super::exposed::Toucher;
use super::super::proof::Violation;
use super::super::rank::{At, Published, Touched};
use super::super::value::SymbolicValue;
use super::{Execution, combine_all};
use crate::schedule::action::{Action, AwaitedPeers, Combine, Span};
use crate::types::{Access, Assignment};

impl Execution<'_> {
    pub(super) fn publish(&mut self, at: At, span: Span, phase: u8) -> Result<(), Violation> {
        let own = &mut self.ranks[at.rank as usize];
        for i in 0..span.len {
            let value = Some(own.read(at, span, i)?);
            let slot = own.published(at.slice, span.first + i);
            match slot {
                Some(slot @ None) => {
                    let touched = Touched::Not;
                    *slot = Some(Published {
                        value,
                        phase,
                        touched,
                    });
                }
                _ => {
                    return Err(at.violation(format!(
                        "chunk {} is published again while peers may read it",
                        span.first + i
                    )));
                }
            }
        }
        self.reach(at, phase)
    }

    /// Records that this rank has reached `phase`.
    fn reach(&mut self, at: At, phase: u8) -> Result<(), Violation> {
        let own = &mut self.ranks[at.rank as usize];
        let reached = &mut own.reached[at.slice as usize];
        if *reached > u16::from(phase) {
            return Err(at.violation("the phase does not rise"));
        }
        *reached = u16::from(phase) + 1;
        let past = &mut own.channels[at.channel as usize].past;
        own.passed_on.insert((at.slice, phase), past.passed_on());
        past.tick(at.rank);
        self.wake_waiting(at.channel);
        Ok(())
    }

    fn wake_waiting(&mut self, channel: u32) {
        for rank in 0..self.ranks.len() as u32 {
            let other = &self.ranks[rank as usize];
            let next = other.next(channel).map(|at| other.step(at).action);
            if let Some(Action::Await { .. } | Action::Collect { .. }) = next {
                self.wake(rank, channel);
            }
        }
    }

    pub(super) fn await_phase(&mut self, at: At, peers: AwaitedPeers, phase: u8) {
        let peers = match peers {
            AwaitedPeers::One(peer) => peer..peer + 1,
            AwaitedPeers::Others => 0..self.ranks.len() as u32,
        };
        for peer in peers.filter(|&peer| peer != at.rank) {
            let awaited = self.ranks[at.rank as usize].awaited(at.slice, peer);
            *awaited = (*awaited).max(u16::from(phase) + 1);
            let published = &self.ranks[peer as usize].passed_on;
            let mut published = published.range((at.slice, phase)..=(at.slice, u8::MAX));
            let (_, past) = published.next().expect("the phase is reached");
            let past = past.clone();
            self.channel(at.rank, at.channel).past.join(&past);
        }
    }

    /// Returns the chunk that `peer` published under a number, if this rank has awaited the
    /// publication and no rank reduces there.
    pub(super) fn published(
        &mut self,
        at: At,
        peer: u32,
        chunk: u32,
    ) -> Result<SymbolicValue, Violation> {
        if self.offers.is_touched(at.slice, chunk) {
            return Err(at.violation(format!(
                "chunk {chunk} of rank {peer} is read although it may already be combined"
            )));
        }
        self.awaited_value(at, peer, chunk)
    }

    fn awaited_value(&mut self, at: At, peer: u32, chunk: u32) -> Result<SymbolicValue, Violation> {
        let awaited = *self.ranks[at.rank as usize].awaited(at.slice, peer);
        let published = self.ranks[peer as usize].published(at.slice, chunk);
        let published = published.and_then(Option::as_mut);
        let published = published.filter(|published| u16::from(published.phase) < awaited);
        let Some(published) = published else {
            return Err(at.violation(format!(
                "chunk {chunk} of rank {peer} is read without having awaited its publication"
            )));
        };
        published.touched = match published.touched {
            Touched::Not => Touched::ReadBy(at.rank),
            Touched::ReadBy(reader) if reader == at.rank => Touched::ReadBy(reader),
            Touched::ReadBy(_) | Touched::ReadByMany => Touched::ReadByMany,
            Touched::GivenBack(..) => {
                return Err(at.violation(format!(
                    "chunk {chunk} of rank {peer} is read as published although it is given back"
                )));
            }
        };
        Ok(published.value.expect("only defined chunks are published"))
    }

    /// Overwrites every peer's published chunks, of which this rank must be the only reader.
    pub(super) fn give_back(&mut self, at: At, span: Span, phase: u8) -> Result<(), Violation> {
        for i in 0..span.len {
            let value = self.ranks[at.rank as usize].read(at, span, i)?;
            if self.offers.is_touched(at.slice, span.first + i) {
                return Err(at.violation(format!(
                    "chunk {} is given back although it may already be combined",
                    span.first + i
                )));
            }
            for peer in (0..self.ranks.len() as u32).filter(|&peer| peer != at.rank) {
                let published = self.ranks[peer as usize].published(at.slice, span.first + i);
                match published.and_then(Option::as_mut) {
                    Some(published) if published.touched == Touched::ReadBy(at.rank) => {
                        published.value = Some(value);
                        published.touched = Touched::GivenBack(at.rank, phase);
                    }
                    _ => {
                        return Err(at.violation(format!(
                            "chunk {} of rank {peer} is overwritten, but this rank is not its \
                             only reader",
                            span.first + i
                        )));
                    }
                }
            }
        }
        self.reach(at, phase)
    }

    /// Returns the value that `peer` gave back in this rank's chunk, if this rank has awaited it.
    pub(super) fn given_back(
        &mut self,
        at: At,
        peer: u32,
        chunk: u32,
    ) -> Result<SymbolicValue, Violation> {
        let own = &mut self.ranks[at.rank as usize];
        let awaited = *own.awaited(at.slice, peer);
        let published = own.published(at.slice, chunk).and_then(|slot| *slot);
        match published {
            Some(Published {
                value: Some(value),
                touched: Touched::GivenBack(by, phase),
                ..
            }) if by == peer && u16::from(phase) < awaited => Ok(value),
            _ => Err(at.violation(format!(
                "chunk {chunk} is taken back without awaiting rank {peer}'s `GiveBack`"
            ))),
        }
    }

    /// Combines the `i`-th chunk of `span` of all ranks; this rank's own is read from memory.
    pub(super) fn reduced(
        &mut self,
        at: At,
        span: Span,
        i: u32,
    ) -> Result<SymbolicValue, Violation> {
        let ranks = self.ranks.len() as u32;
        let value = |rank: u32| match rank == at.rank {
            true => self.ranks[at.rank as usize].read(at, span, i),
            false => self.published(at, rank, span.first + i),
        };
        combine_all(at, (0..ranks).map(value))
    }

    /// Combines chunks that all ranks have published or exposed, or offers to. From the first offer
    /// on, a rank may access a chunk; with the last offer, the chunk is complete.
    pub(super) fn combine(&mut self, at: At, combine: &Combine) -> Result<(), Violation> {
        let is_exposed = combine.access == Access::Registered;
        let by = match combine.assignment {
            Assignment::Owner => Toucher::Itself,
            Assignment::Dynamic => Toucher::Anybody,
        };
        if is_exposed {
            self.touch_all(at, by, (combine.sources, combine.from), false)?;
        }
        for i in 0..combine.into.len {
            let value = self.combined(at, combine, i)?;
            let is_done = match combine.assignment {
                Assignment::Owner => true,
                Assignment::Dynamic => self.offer(at, combine.into.first + i, value)?,
            };
            if is_done && is_exposed {
                self.store(at, combine, i, value)?;
            }
        }
        if is_exposed {
            self.touch_all(at, by, (combine.targets, combine.into), true)?;
        }
        if combine.assignment == Assignment::Dynamic {
            self.wake_waiting(at.channel);
        }
        Ok(())
    }

    /// Returns the combination of the sources' `i`-th chunks.
    fn combined(&mut self, at: At, combine: &Combine, i: u32) -> Result<SymbolicValue, Violation> {
        let from = combine.from;
        let value = |rank: u32| match combine.access {
            Access::Staged if rank == at.rank => self.own_published(at, from.first + i),
            Access::Staged => self.awaited_value(at, rank, from.first + i),
            _ => self.ranks[rank as usize].read(At { rank, ..at }, from, i),
        };
        combine_all(at, combine.sources.ranks().map(value))
    }

    /// Offers to combine a chunk. Returns whether all ranks have offered.
    fn offer(&mut self, at: At, chunk: u32, value: SymbolicValue) -> Result<bool, Violation> {
        let hops = self.channel(at.rank, at.channel).past.hops;
        if !self.offers.offer((at.slice, chunk), at.rank, value, hops) {
            return Err(at.violation(format!("offers chunk {chunk} a second time")));
        }
        Ok(self.offers.value(at.slice, chunk).is_some())
    }

    fn own_published(&mut self, at: At, chunk: u32) -> Result<SymbolicValue, Violation> {
        let own = &mut self.ranks[at.rank as usize];
        let published = own.published(at.slice, chunk).and_then(|slot| *slot);
        published
            .and_then(|published| published.value)
            .ok_or_else(|| {
                at.violation(format!(
                    "combines chunk {chunk}, which it has not published"
                ))
            })
    }

    /// Notes that the chunks of `into` are complete, as `phase_is_reached` has checked, and copies
    /// them if they are staged.
    pub(super) fn collect(&mut self, at: At, access: Access, into: Span) -> Result<(), Violation> {
        for i in 0..into.len {
            let combined = self.offers.value(at.slice, into.first + i);
            let (value, hops) = combined.expect("waited for");
            let channel = self.channel(at.rank, at.channel);
            channel.past.hops = channel.past.hops.max(hops + 1);
            if access == Access::Staged {
                self.ranks[at.rank as usize].write(at, into, i, value)?;
            }
        }
        if access == Access::Registered {
            self.exposure.hear_served(at);
        }
        Ok(())
    }
}
