//! The executor of the smallest calls: one slot, no plan.
//!
//! Latency is measured with calls that fit one published slot. This executor has their schedules
//! over published memory written out (publish, wait, consume: [`part`]), with the same generations,
//! phases and call words. A rank that runs this executor interoperates with a rank that runs the
//! schedule, which a test checks. A rank that waits for no peer (the root of a broadcast) returns
//! as soon as it has published, if its slots are free.
//!
//! The state of a kind of call is made once and kept:
//! [`Engine::begin_tiny`](super::Engine::begin_tiny) only fills in what differs between its calls.
//!
//! A store waits until its cache line has arrived from the core that read the line last. This wait
//! takes as long as the whole rest of such a call. So after each call the lines of a later one are
//! prefetched ([`Windows::prefetch`]).
//!
//! With the protocol `ll` the payload is beside the call in the slot's head: one line carries a
//! rank's arrival and its payload.

pub mod inline;
pub mod part;

use std::ops::Range;

use super::context::{Context, windows};
use super::executor::Executor;
use super::geometry::BlockLayout;
use super::job::Job;
use super::lateness::Lateness;
use super::operation::PreparedOperation;
use crate::call::{Call, Qualifier};
use crate::error::Result;
use crate::memory::Region;
use crate::reduce::ReductionKernel;
use crate::transport::shm::PREFETCHED_BYTES_MAX;
use crate::transport::{ATTACHED_WORDS, SlotUse, Time, Wake, Windows};
use crate::types::{Access, Assignment, Collective, Op};
use inline::Inline;
use part::{Consumes, Publishes, TinyRole, WaitsFor};

/// Number of calls by which a slot's lines are prefetched ahead: with one, they would arrive too
/// late if the next call follows at once.
const PREFETCHED_AHEAD: u64 = 2;

/// Alignment in their slot of the blocks of a call of one slice, in bytes.
pub const BLOCK_ALIGN_BYTES: usize = 64;

impl Job {
    /// Whether the job is a tiny call: over published memory, by the algorithm of tiny calls, and
    /// with all data of a rank in one slice.
    #[inline]
    pub fn is_tiny(&self) -> bool {
        let BlockLayout::Even(count) = self.input_blocks else {
            return false;
        };
        let is_barrier = self.collective == Collective::Barrier;
        let bytes = count.saturating_mul(self.dtype.size_bytes() as u64);
        let scales = self.collective.reduces() && matches!(self.op, Op::Avg | Op::PremulSum(_));
        (self.way.access, self.way.assignment) == (Access::Staged, Assignment::Owner)
            && self.way.algorithm == part::algorithm(self.collective)
            && bytes <= self.way.slice_bytes() as u64
            && (count > 0 || is_barrier)
            && !scales
    }

    /// Returns the call that the rank announces for this tiny call, but for the sequence.
    #[inline]
    pub(super) fn tiny_call(&self) -> Call {
        let qualifier = match self.collective.has_root() {
            true => Qualifier::Root(self.root as u32),
            false => Qualifier::None,
        };
        self.announced(qualifier, self.count, 0)
    }
}

/// The prepared kinds of tiny calls: the words of their calls, in which the sequence is 0, and
/// their numbers in the engine.
#[derive(Debug, Default)]
pub struct TinyKinds {
    pub(super) kinds: Vec<([u64; 3], usize)>,
    /// The kind of the last call.
    pub(super) last: usize,
    /// Number of kinds prepared so far; while it is unchanged, a call's number stands for the same
    /// kind.
    pub(super) prepared: u64,
}

/// The progress of a tiny call, and the data that all calls of its kind share.
#[derive(Debug)]
pub struct Tiny {
    block_bytes: usize,
    root: usize,
    part: TinyRole,
    /// Number of words of the input if it travels in the heads; else 0.
    inline_words: usize,
    /// Payloads received in the heads.
    inline: Inline,
    /// Number of bytes to prefetch, which a later call of this kind is likely to write.
    prefetched_bytes: usize,
    /// Whether all ranks wait for all others, so that none gets ahead.
    meets: bool,
    is_done: bool,
    /// Whether the wait is timed, so that the call is counted like any other.
    is_timed: bool,
    /// The first peer that has not been seen to arrive.
    arrived: usize,
    /// The last peer that this rank has waited for.
    last: Option<usize>,
}

impl Tiny {
    /// Prepares a call of the kind of `job`, announced as `call`; `None` if there is no such kind.
    pub(super) fn prepare(
        job: &Job,
        call: Call,
        rank: usize,
        world_size: usize,
    ) -> Result<Option<(PreparedOperation, Tiny)>> {
        let collective = job.collective;
        let Some(part) = TinyRole::new(collective, rank, job.root) else {
            return Ok(None);
        };
        if Inline::carries(&call) && !Inline::fits(&call, world_size) {
            return Ok(None);
        }
        let block_bytes = job.count as usize * job.dtype.size_bytes();
        let kernel = collective
            .reduces()
            .then(|| ReductionKernel::new(job.op, job.dtype));
        let kernel = kernel.transpose()?;
        let slot_use = SlotUse::of(&call, world_size, false);
        let input_blocks = part::input_blocks(collective, world_size);
        let tiny = Tiny {
            block_bytes,
            root: job.root,
            part,
            inline_words: match Inline::carries(&call) {
                true => (block_bytes * input_blocks).div_ceil(8),
                false => 0,
            },
            inline: Inline::new(match Inline::carries(&call) {
                true => world_size,
                false => 0,
            }),
            prefetched_bytes: match part.publishes {
                Publishes::Presence => 0,
                // The lines are in this core's cache: this rank has read them.
                _ if slot_use == SlotUse::Traded => 0,
                _ => block_bytes.min(PREFETCHED_BYTES_MAX),
            },
            meets: !collective.has_root(),
            is_done: false,
            is_timed: false,
            arrived: 0,
            last: None,
        };
        let mut operation = PreparedOperation {
            kernel,
            is_begun: true,
            ..PreparedOperation::of_one_slice(job, call)
        };
        operation.slot_use = slot_use;
        operation.hears_all =
            (0..world_size).all(|peer| peer == rank || part.waits_for(peer, rank, job.root));
        Ok(Some((operation, tiny)))
    }

    /// Ends the call if all peers that it waits for are there; returns whether it is over.
    #[inline]
    pub fn advance(
        &mut self,
        operation: &PreparedOperation,
        context: &mut Context,
    ) -> Result<bool> {
        let windows = windows(&mut context.windows)?;
        if self.part.waits_for != WaitsFor::None {
            while self.arrived < context.world_size {
                let peer = self.arrived;
                if self.part.waits_for(peer, context.rank, self.root) {
                    if !self.has_arrived(operation, windows, peer)? {
                        self.last = Some(peer);
                        if !context.unverified.is_empty() {
                            context.unverified.verify_oldest(windows)?;
                        }
                        return Ok(false);
                    }
                    self.consume(operation, windows, peer);
                }
                self.arrived += 1;
            }
        }
        if let (Consumes::Folded(block), Some(kernel)) = (self.part.consumes, operation.kernel) {
            let operands = &mut context.operands;
            operands.clear();
            for peer in 0..context.world_size {
                operands.push(if peer == context.rank {
                    operation.buffers.input.part(self.range(block))
                } else {
                    self.view(operation, windows, peer, block)
                });
            }
            kernel.fold(operation.buffers.output, operands);
            for (peer, read) in operands.iter().enumerate() {
                if peer != context.rank {
                    operation.slot_use.done_reading(*read);
                }
            }
        }
        let generation = operation.first_generation;
        if self.meets {
            windows.all_entered(generation);
            windows.finish(generation, Wake::None);
        } else {
            windows.finish(generation, Wake::Peers);
        }
        windows.prefetch(generation + PREFETCHED_AHEAD, self.prefetched_bytes);
        if let Some(peer) = self.last {
            match self.is_timed {
                true => context.lateness.peer_arrived(peer),
                false => context.lateness.count_short(peer),
            }
        }
        self.is_done = true;
        Ok(true)
    }

    /// Returns the byte range of `block` in a buffer.
    fn range(&self, block: usize) -> Range<usize> {
        let bytes = self.block_bytes;
        block * bytes..(block + 1) * bytes
    }

    /// Returns the byte range of `block` in a slot.
    fn slot_range(&self, block: usize) -> Range<usize> {
        let bytes = self.block_bytes;
        let start = block * bytes.next_multiple_of(BLOCK_ALIGN_BYTES);
        start..start + bytes
    }

    /// Begins a call of this kind, which `operation` describes: publishes this rank's part.
    #[inline]
    pub(super) fn begin(
        &mut self,
        operation: &PreparedOperation,
        windows: &mut Windows,
        rank: usize,
        world_size: usize,
    ) {
        (self.arrived, self.last) = (0, None);
        (self.is_done, self.is_timed) = (false, false);
        self.publish(operation, windows, rank, world_size);
    }

    /// Publishes this rank's part, and copies the block that it keeps for itself.
    fn publish(
        &self,
        operation: &PreparedOperation,
        windows: &mut Windows,
        rank: usize,
        world_size: usize,
    ) {
        let (input, generation) = (operation.buffers.input, operation.first_generation);
        let call = &operation.call;
        let place = |range| operation.slot_use.place(windows, rank, generation, range);
        match self.part.publishes {
            Publishes::Presence => windows.enter(generation, call),
            _ if self.inline_words > 0 => {
                let mut words = [0; ATTACHED_WORDS];
                let words = Inline::words(input, &mut words);
                windows.attach(generation, words);
            }
            Publishes::Input => place(0..input.bytes()).copy_from(input),
            Publishes::Blocks => {
                for block in (0..world_size).filter(|block| *block != rank) {
                    let place = place(self.slot_range(block));
                    place.copy_from(input.part(self.range(block)));
                }
            }
        }
        if self.part.publishes != Publishes::Presence {
            windows.publish(generation, self.part.phase, call, Wake::Peers);
        }
        if let Some((from, into)) = self.part.kept {
            let kept = input.part(self.range(from));
            let output = operation.buffers.output.part(self.range(into));
            output.copy_from(kept);
        }
    }

    /// Returns whether `peer` has published; stores its attached words where `view` finds them.
    fn has_arrived(
        &self,
        operation: &PreparedOperation,
        windows: &Windows,
        peer: usize,
    ) -> Result<bool> {
        let generation = operation.first_generation;
        if !windows.has_reached(peer, generation, self.part.phase, &operation.call)? {
            return Ok(false);
        }
        for index in 0..self.inline_words {
            self.inline
                .put(peer, index, windows.attached(peer, generation, index));
        }
        Ok(true)
    }

    /// Copies the block that this rank consumes from `peer`, which has published.
    fn consume(&self, operation: &PreparedOperation, windows: &Windows, peer: usize) {
        let (block, into) = match self.part.consumes {
            Consumes::Nothing | Consumes::Folded(_) => return,
            Consumes::Collected(block) => (block, peer),
            Consumes::Fetched(block) => (block, 0),
        };
        let target = operation.buffers.output.part(self.range(into));
        let read = self.view(operation, windows, peer, block);
        target.copy_from(read);
        operation.slot_use.done_reading(read);
    }

    /// Returns a block that `peer` has published.
    fn view(
        &self,
        operation: &PreparedOperation,
        windows: &Windows,
        peer: usize,
        block: usize,
    ) -> Region {
        if self.inline_words > 0 {
            self.inline.place(peer).part(self.range(block))
        } else {
            operation.slot_use.place(
                windows,
                peer,
                operation.first_generation,
                self.slot_range(block),
            )
        }
    }
}

impl Executor for Tiny {
    fn slices_done(&self) -> u32 {
        u32::from(self.is_done)
    }

    fn waiting_for(&self, operation: &PreparedOperation, context: &Context) -> Vec<usize> {
        let Some(windows) = context.windows.as_ref() else {
            return Vec::new();
        };
        let (rank, generation) = (context.rank, operation.first_generation);
        let is_absent = |peer: &usize| {
            self.part.waits_for(*peer, rank, self.root)
                && !windows
                    .has_reached(*peer, generation, self.part.phase, &operation.call)
                    .unwrap_or(false)
        };
        (0..context.world_size)
            .filter(|peer| is_absent(peer))
            .collect()
    }

    fn is_reused(&self) -> bool {
        true
    }

    /// Begins to time the wait: from `now` on the call is counted like any other.
    fn time_wait(&mut self, now: Time, lateness: &mut Lateness) {
        if !std::mem::replace(&mut self.is_timed, true) {
            lateness.begin_call();
            lateness.begin_wait();
        }
        lateness.time_wait(now);
    }
}
