//! Reading peers' private memory: saying where our own lies, agreeing that all of it can be read, and the pieces of a pull.
//!
//! Like a [push](super::push) it is done a piece at a time, so that whoever drives the engine can look up in between. What
//! is copied goes straight to its place. What is combined is read into scratch memory, in pieces that stay in cache.
//!
//! After the last piece of a step its sources are asked whether they are still in the call. Who is not has ended it, and its
//! memory may have been something else before the end: then there is no result, and the verdict is waited for.

use std::ops::Range;

use super::issue::Issue;
use super::push::Push;
use super::{Context, Operation, windows};
use crate::error::{Error, Result};
use crate::memory::{Foreign, Region};
use crate::reduce::{self, Store};
use crate::schedule::{Buffer, Ranks};
use crate::transport::{ATTACHED_WORDS, Wake};

/// What one attempt copies, at most: some 100 µs of work, after which a verdict is seen.
const COPIED_BYTES: usize = 512 << 10;

/// What one attempt combines of a chunk, at least, however many ranks there are: every read is a system call.
const COMBINED_BYTES_MIN: usize = 16 << 10;

/// Where a rank's buffers lie in its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lying {
    input: u64,
    output: u64,
}

impl Lying {
    /// What stands in the slot when the buffers can be read; zeros mean that they cannot.
    fn encode(self) -> [u64; ATTACHED_WORDS] {
        [self.input, self.output, 0, 1]
    }

    fn decode([input, output, _, can_be_read]: [u64; ATTACHED_WORDS]) -> Option<Lying> {
        (can_be_read != 0).then_some(Lying { input, output })
    }

    fn of(&self, buffer: Buffer) -> u64 {
        match buffer {
            Buffer::Output => self.output,
            Buffer::Input | Buffer::Scratch => self.input,
        }
    }
}

/// Room for a piece of each peer before it is combined, when slices of `slice_bytes` stay in cache.
pub(in super::super) fn scratch_bytes(slice_bytes: usize, world_size: usize) -> usize {
    let peers = world_size - 1;
    let each = (slice_bytes / peers / 64 * 64).max(64);
    each.max(COMBINED_BYTES_MIN.min(slice_bytes))
        .next_multiple_of(64)
        * peers
}

impl Operation {
    /// Attaches to the slot where this rank's buffers lie, and publishes that.
    pub(super) fn expose_private(
        &self,
        phase: u8,
        slice: u32,
        context: &mut Context<'_>,
    ) -> Result<()> {
        let buffers = &self.buffers;
        let foreign = foreign(context)?;
        let words = if [buffers.input, buffers.output]
            .iter()
            .all(|own| foreign.is_readable(*own))
        {
            let address = |own: Region| own.address() as u64;
            Lying {
                input: address(buffers.input),
                output: address(buffers.output),
            }
            .encode()
        } else {
            [0; ATTACHED_WORDS]
        };
        let generation = self.first_generation + slice as u64;
        let windows = windows(&mut context.windows)?;
        windows.attach(generation, &words);
        windows.publish(generation, phase, &self.call, Wake::Peers);
        Ok(())
    }

    /// Whether all ranks' buffers can be read: the same answer on all of them.
    fn is_readable(&self, slice: u32, context: &mut Context<'_>) -> Result<bool> {
        let generation = self.first_generation + slice as u64;
        let windows = windows(&mut context.windows)?;
        context.bench.lying.clear();
        for rank in 0..context.world_size {
            let words = std::array::from_fn(|word| windows.attached(rank, generation, word));
            let Some(lying) = Lying::decode(words) else {
                return Ok(false);
            };
            context.bench.lying.push(lying);
        }
        Ok(true)
    }

    /// Does the next piece of `pull`, a push into this rank's own memory.
    pub(super) fn pull(
        &mut self,
        pull: Push,
        channel: usize,
        slice: u32,
        context: &mut Context<'_>,
    ) -> Result<Issue> {
        let done = self.channels[channel].pushed;
        if done == 0 && !self.is_readable(slice, context)? {
            return Ok(Issue::Refused);
        }
        let into = self.region(pull.into, slice);
        let from = match pull.from.buffer {
            Buffer::Output => &self.buffers.output_cut,
            Buffer::Input | Buffer::Scratch => &self.buffers.input_cut,
        };
        let from = from.range(pull.from.first, pull.from.len, slice);
        let piece = match pull.sources {
            Ranks::All => self.buffers.scratch.bytes() / (context.world_size - 1) / 64 * 64,
            Ranks::One(_) => COPIED_BYTES,
        };
        let range = done..into.bytes().min(done + piece);
        let begin = from.start + range.start;
        let (buffer, piece) = (pull.from.buffer, into.part(range.clone()));
        if !range.is_empty() {
            self.pull_piece(pull.sources, (buffer, begin), piece, context)?;
        }
        if range.end < into.bytes() {
            self.channels[channel].pushed = range.end;
            return Ok(Issue::Begun);
        }
        self.channels[channel].pushed = 0;
        let foreign = foreign(context)?;
        for rank in pull.sources.numbers(context.world_size as u32) {
            if rank as usize != context.rank && !foreign.is_intact(rank as usize)? {
                return Ok(Issue::Blocked);
            }
        }
        Ok(Issue::Done)
    }

    /// Combines what the sources have from place `begin` of `buffer` on, and stores it to `into`.
    fn pull_piece(
        &self,
        sources: Ranks,
        (buffer, begin): (Buffer, usize),
        into: Region,
        context: &mut Context<'_>,
    ) -> Result<()> {
        let place = |rank: usize, context: &Context<'_>| {
            context.bench.lying[rank]
                .of(buffer)
                .wrapping_add(begin as u64)
        };
        let own: Range<usize> = begin..begin + into.bytes();
        let own = match buffer {
            Buffer::Output => self.buffers.output.part(own),
            Buffer::Input | Buffer::Scratch if self.buffers.input.bytes() >= own.end => {
                self.buffers.input.part(own)
            }
            // A rank that only fetches has none.
            Buffer::Input | Buffer::Scratch => Region::EMPTY,
        };
        match sources {
            Ranks::One(rank) if rank as usize == context.rank => {
                let store = if self.streams && !own.overlaps(into) {
                    Store::Streamed
                } else {
                    Store::Cached
                };
                if !own.is_same(into) {
                    reduce::spread_copy(&[into], own, store);
                }
                Ok(())
            }
            Ranks::One(rank) => {
                let address = place(rank as usize, context);
                foreign(context)?.read(rank as usize, address, into)
            }
            Ranks::All => {
                context.operands.clear();
                let mut free = self.buffers.scratch;
                for rank in 0..context.world_size {
                    if rank == context.rank {
                        context.operands.push(own);
                        continue;
                    }
                    let theirs = free.part(0..into.bytes());
                    let next = into.bytes().next_multiple_of(64).min(free.bytes());
                    free = free.part(next..free.bytes());
                    let address = place(rank, context);
                    foreign(context)?.read(rank, address, theirs)?;
                    context.operands.push(theirs);
                }
                self.kernel().fold(into, context.operands);
                match self.finish {
                    Some(factor) => reduce::scale(self.call.dtype, into, into, factor),
                    None => Ok(()),
                }
            }
        }
    }
}

/// The memory of the peers. A call that pulls is only prepared where there is such.
fn foreign<'a>(context: &Context<'a>) -> Result<&'a Foreign> {
    context
        .foreign
        .ok_or_else(|| Error::Unsupported("the private memory of peers".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_attached_is_read_as_it_was_meant() {
        let lying = Lying {
            input: u64::MAX,
            output: 64,
        };
        assert_eq!(Lying::decode(lying.encode()), Some(lying));
        assert_eq!(Lying::decode([0; ATTACHED_WORDS]), None);
    }

    #[test]
    fn scratch_holds_a_piece_of_every_peer() {
        for world_size in [2, 3, 64, 1000] {
            for slice_bytes in [64, 1000, 128 << 10] {
                let bytes = scratch_bytes(slice_bytes, world_size);
                assert_eq!(bytes % (64 * (world_size - 1)), 0);
                assert!(bytes >= 64 * (world_size - 1));
            }
        }
    }
}
