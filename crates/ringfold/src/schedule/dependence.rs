//! The earlier steps that a step must wait for.
//!
//! A send, a receive or a receive-and-reduce completes some time after its issue, and so may a copy
//! or reduction in a schedule of messages; all other steps complete when issued. A step may be
//! issued when no incomplete earlier step of its channel and slice touches the same chunk, unless
//! both only read it. Steps are issued in order, so a step that was waited for once is complete for
//! all that follow. Each asynchronous step is therefore in at most one list, that of the first step
//! in conflict with it.
//!
//! [`Schedule::place`] defines which memory is shared in place.

#![forbid(unsafe_code)]

use super::action::{Action, Buffer, Combine, RankRange, Span, Step};
use super::spec::Schedule;
use crate::types::{Access, Collective};

/// A chunk of memory: two spans touch the same memory exactly if they share a place.
pub type BufferChunk = (Buffer, u32);

impl Schedule {
    /// Returns the memory of one chunk. In place, a chunk of `Input` that is the caller's `Output`
    /// is named as the output.
    ///
    /// Vector collectives: both are one buffer. `all_gather` and `gather` at the root: the input is
    /// the rank's block of the output. `reduce_scatter` and `scatter` at the root: the output is
    /// the rank's block of the input. All other buffers are never in place.
    pub fn place(&self, buffer: Buffer, chunk: u32, in_place: bool) -> BufferChunk {
        if !in_place || buffer != Buffer::Input {
            return (buffer, chunk);
        }
        let (rank, at_root) = (self.spec.rank, self.spec.rank == self.spec.root);
        match self.spec.collective {
            Collective::AllReduce | Collective::Broadcast => (Buffer::Output, chunk),
            Collective::Reduce if at_root => (Buffer::Output, chunk),
            Collective::AllGather => (Buffer::Output, self.own_place(chunk)),
            Collective::Gather if at_root => (Buffer::Output, self.own_place(chunk)),
            Collective::ReduceScatter => self.own_block(chunk, rank),
            Collective::Scatter if at_root => self.own_block(chunk, rank),
            _ => (buffer, chunk),
        }
    }

    /// Whether the action is a copy of memory to itself, which touches nothing.
    pub fn is_void(&self, action: &Action, in_place: bool) -> bool {
        let (from, into) = match *action {
            Action::Copy { from, into } => (from, into),
            Action::Combine(Combine {
                access: Access::Registered,
                sources,
                from,
                targets,
                into,
                ..
            }) if sources == targets && sources == RankRange::one(self.spec.rank) => (from, into),
            _ => return false,
        };
        let place = |span: Span, i| self.place(span.buffer, span.first + i, in_place);
        from.len == into.len && (0..from.len).all(|i| place(from, i) == place(into, i))
    }

    /// Returns the number of a place, below [`Schedule::places`].
    pub(super) fn number(&self, (buffer, chunk): BufferChunk) -> usize {
        let before = match buffer {
            Buffer::Input => 0,
            Buffer::Output => self.input.chunks(),
            Buffer::Scratch => self.input.chunks() + self.output.chunks(),
            Buffer::Leaves => {
                let scratch = self.cut(Buffer::Scratch).chunks();
                self.input.chunks() + self.output.chunks() + scratch
            }
        };
        (before + chunk) as usize
    }

    /// Returns the number of places.
    pub(super) fn places(&self) -> usize {
        let buffers = [
            Buffer::Input,
            Buffer::Output,
            Buffer::Scratch,
            Buffer::Leaves,
        ];
        let chunks = buffers.map(|buffer| self.cut(buffer).chunks() as usize);
        chunks.into_iter().sum()
    }

    /// Returns the chunk of the output that holds a part of the one input block, in place.
    fn own_place(&self, chunk: u32) -> u32 {
        self.spec.rank * self.input.chunks() + chunk
    }

    /// Returns the output for a part of this rank's own input block, the input for other parts.
    fn own_block(&self, chunk: u32, rank: u32) -> BufferChunk {
        let parts = self.output.chunks();
        if chunk / parts == rank {
            (Buffer::Output, chunk % parts)
        } else {
            (Buffer::Input, chunk)
        }
    }
}

/// The asynchronous steps that touch a chunk and were not waited for.
#[derive(Default)]
struct ChunkUsers {
    readers: Vec<u32>,
    writers: Vec<u32>,
}

/// Returns, for each channel and each of its steps, the earlier steps of the channel whose
/// completion the step waits for, ascending.
pub fn dependencies(schedule: &Schedule, in_place: bool) -> Vec<Vec<Vec<u32>>> {
    let of_channel = |steps: &Vec<Step>| {
        let mut pending: Vec<ChunkUsers> = Vec::new();
        pending.resize_with(schedule.places(), ChunkUsers::default);
        let mut waited_for = vec![false; steps.len()];
        let mut lists = Vec::with_capacity(steps.len());
        for (index, step) in steps.iter().enumerate() {
            let places = |span: Span| {
                (span.first..span.first + span.len)
                    .map(move |chunk| schedule.place(span.buffer, chunk, in_place))
                    .map(|place| schedule.number(place))
            };
            let mut waits = Vec::new();
            if schedule.is_void(&step.action, in_place) {
                lists.push(waits);
                continue;
            }
            for place in step.action.reads().into_iter().flatten().flat_map(places) {
                waits.append(&mut pending[place].writers);
            }
            for place in step.action.writes().into_iter().flat_map(places) {
                waits.append(&mut pending[place].writers);
                waits.append(&mut pending[place].readers);
            }
            waits.sort_unstable();
            waits.dedup();
            waits.retain(|&earlier| !std::mem::replace(&mut waited_for[earlier as usize], true));
            lists.push(waits);
            if step.action.is_asynchronous(schedule.spec.access) {
                for place in step.action.reads().into_iter().flatten().flat_map(places) {
                    pending[place].readers.push(index as u32);
                }
                for place in step.action.writes().into_iter().flat_map(places) {
                    pending[place].writers.push(index as u32);
                }
            }
        }
        lists
    };
    schedule.channels.iter().map(of_channel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Access, Spec};
    use crate::types::Algorithm;

    fn all_reduce(algorithm: Algorithm, world_size: u32, rank: u32) -> Schedule {
        Schedule::new(Spec {
            rank,
            ..Spec::new(
                Collective::AllReduce,
                algorithm,
                Access::Messages,
                world_size,
            )
        })
        .unwrap()
    }

    #[test]
    fn a_ring_send_waits_for_the_receive_of_the_round_before() {
        // The last receives overwrite partial sums, so they also wait for the sends of these sums.
        let lists = dependencies(&all_reduce(Algorithm::Ring, 4, 0), false);
        let expected: [&[u32]; 12] = [
            &[],
            &[],
            &[],
            &[0],
            &[],
            &[2],
            &[],
            &[4],
            &[3],
            &[6],
            &[5],
            &[8],
        ];
        assert_eq!(lists, [expected]);
    }

    #[test]
    fn in_place_an_input_that_is_being_sent_is_not_overwritten() {
        let schedule = all_reduce(Algorithm::Ring, 2, 0);
        assert_eq!(dependencies(&schedule, false)[0][2], []);
        assert_eq!(dependencies(&schedule, true)[0][2], [1]);
    }

    #[test]
    fn no_step_is_waited_for_twice() {
        for in_place in [false, true] {
            let lists = dependencies(&all_reduce(Algorithm::Direct, 9, 4), in_place);
            let mut all: Vec<u32> = lists.into_iter().flatten().flatten().collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count);
        }
    }
}
