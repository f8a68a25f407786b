//! The shortest way for the smallest calls: one slot, no plan, no queue.
//!
//! Calls that fit one published slot are what latency is measured by. Here are their schedules over published memory
//! written out (tell, await, take: [`part`]), with the same generations, phases and call words. A rank that takes this
//! way and one that runs the schedule understand each other; a test holds the two together. A rank that needs nobody (the
//! root of a broadcast) returns as soon as it has published, as long as its slots are free.
//!
//! What fits beside the call in the slot's head travels there: one line says that the rank has come and what it brings.

pub mod part;

use std::ops::Range;
use std::time::Duration;

use super::operation::phase;
use super::{Engine, announce};
use crate::call::Call;
use crate::error::{Error, Result, Site};
use crate::memory::{Owned, Region};
use crate::reduce::Kernel;
use crate::transport::{ATTACHED_WORDS, Time, Windows};
use crate::types::{Collective, DType, Op};
use part::{Awaited, Part, Taken, Told};

/// What fits into the words attached to a slot.
const INLINE_BYTES: usize = ATTACHED_WORDS * 8;

/// Blocks of a call of one slice begin at multiples of this in their slot.
pub const BLOCK_ALIGN_BYTES: usize = 64;

/// Payloads that travel in the heads of slots, one place a rank.
#[derive(Debug)]
pub struct Inline {
    places: Owned,
}

impl Inline {
    /// Places for the payloads of `world_size` ranks.
    pub(super) fn new(world_size: usize) -> Inline {
        Inline {
            places: Owned::zeroed(world_size * INLINE_BYTES),
        }
    }

    /// Whether the inputs of this call travel in the heads, whole and as they lie in memory: the same on all ranks.
    pub(super) fn carries(call: &Call, world_size: usize) -> bool {
        let blocks = part::input_blocks(call.collective, world_size) as u64;
        let most = (INLINE_BYTES / call.dtype.size_bytes()) as u64;
        call.count > 0
            && call.count.saturating_mul(blocks) <= most
            && call.algorithm == part::algorithm(call.collective)
    }

    /// Attaches `payload` to this rank's slot.
    pub(super) fn send(windows: &mut dyn Windows, generation: u64, payload: Region) {
        let mut bytes = [0; INLINE_BYTES];
        payload.read(&mut bytes[..payload.bytes()]);
        let (words, _) = bytes.as_chunks::<8>();
        windows.attach(
            generation,
            std::array::from_fn(|word| u64::from_ne_bytes(words[word])),
        );
    }

    /// The bytes `range` of what `peer` attached. Valid until the next one from that peer is taken.
    pub(super) fn take(
        &self,
        windows: &dyn Windows,
        peer: usize,
        generation: u64,
        range: Range<usize>,
    ) -> Region {
        let place = self
            .places
            .region()
            .part(peer * INLINE_BYTES..(peer + 1) * INLINE_BYTES);
        let words = windows.attached(peer, generation).map(u64::to_ne_bytes);
        place.write(words.as_flattened());
        place.part(range)
    }
}

/// A tiny call, checked.
#[derive(Clone, Copy, Debug)]
pub struct TinyJob {
    /// What to do.
    pub collective: Collective,
    /// The elements' type.
    pub dtype: DType,
    /// How they are combined: neither `Avg` nor `PremulSum`, which scale. Ignored where nothing is.
    pub op: Op,
    /// The root; 0 where there is none.
    pub root: usize,
    /// How many elements: of the vector, or of one block.
    pub count: u64,
    /// What is read.
    pub input: Region,
    /// What is filled; apart from `input`, or the same memory as the collective's in-place form has it.
    pub output: Region,
    /// Whether registered buffers would be worked in directly, in a call of this size.
    pub tries_push: bool,
    /// How long it may take.
    pub timeout: Duration,
}

/// A tiny call under way, and the last one's preparations.
#[derive(Debug)]
pub(super) struct Tiny {
    job: TinyJob,
    part: Part,
    kernel: Option<Kernel>,
    call: Call,
    is_inline: bool,
    /// Whether this rank waits for all others, so that it has seen which call they are in.
    hears_all: bool,
    /// Whether all ranks wait for all others, so that nobody gets ahead.
    meets: bool,
    generation: u64,
    deadline: Option<Time>,
    /// The first peer that has not been seen to arrive.
    awaited: usize,
    is_active: bool,
}

impl Engine {
    /// Begins `job`, unless something else is under way or its slot is not free: then it goes the usual way.
    pub fn begin_tiny(&mut self, job: TinyJob) -> Result<bool> {
        if !self.is_idle() || (job.tries_push && self.registry.is_used()) {
            return Ok(false);
        }
        let generation = self.generation;
        let Some(windows) = self.transport.windows() else {
            return Ok(false);
        };
        if !windows.is_free(generation) {
            return Ok(false);
        }
        if !self.tiny.as_ref().is_some_and(|last| last.serves(&job)) {
            if self.tiny.is_none() {
                announce::tiny(&job, self.world_size);
            }
            self.tiny = Tiny::prepare(job, self.rank, self.world_size)?;
        }
        let Some(tiny) = &mut self.tiny else {
            return Ok(false);
        };
        self.sequence += 1;
        self.generation += 1;
        tiny.job = job;
        tiny.call.sequence = self.sequence;
        (tiny.generation, tiny.deadline, tiny.awaited, tiny.is_active) =
            (generation, None, 0, true);
        tiny.tell(windows, self.rank, self.world_size)?;
        Ok(true)
    }

    /// Ends the tiny call if all whom it waits for are there; whether it is over.
    pub fn poll_tiny(&mut self) -> Result<bool> {
        let Some(tiny) = self.tiny.as_mut().filter(|tiny| tiny.is_active) else {
            return Ok(true);
        };
        let Some(windows) = self.transport.windows() else {
            return Ok(true);
        };
        if tiny.part.awaited != Awaited::Nobody {
            while tiny.awaited < self.world_size {
                let peer = tiny.awaited;
                if tiny.part.awaits(peer, self.rank, tiny.job.root) {
                    let phase = tiny.part.phase;
                    if !windows.has_reached(peer, tiny.generation, phase, &tiny.call)? {
                        if !self.unverified.is_empty() {
                            self.verify_while_waiting()?;
                        }
                        return Ok(false);
                    }
                    tiny.take(windows, &self.inline, peer);
                }
                tiny.awaited += 1;
            }
        }
        if let (Taken::Folded(block), Some(kernel)) = (tiny.part.taken, tiny.kernel) {
            self.operands.clear();
            for peer in 0..self.world_size {
                self.operands.push(if peer == self.rank {
                    tiny.job.input.part(tiny.range(block))
                } else {
                    tiny.view(windows, &self.inline, peer, block)
                });
            }
            kernel.fold(tiny.job.output, &self.operands);
        }
        tiny.is_active = false;
        if tiny.meets {
            windows.finish_heard(tiny.generation);
        } else {
            windows.finish(tiny.generation);
        }
        let (hears_all, generation, call) = (tiny.hears_all, tiny.generation, tiny.call);
        if !hears_all {
            self.compare_later(generation, call);
        } else if !self.unverified.is_empty() {
            self.verify_calls()?;
        }
        Ok(true)
    }

    /// Whether a tiny call is under way.
    pub fn is_tiny_active(&self) -> bool {
        self.tiny.as_ref().is_some_and(|tiny| tiny.is_active)
    }

    /// The ranks that the tiny call waits for.
    pub(super) fn tiny_waiting_for(&mut self) -> Vec<usize> {
        let Some(tiny) = self.tiny.as_ref().filter(|tiny| tiny.is_active) else {
            return Vec::new();
        };
        let Some(windows) = self.transport.windows() else {
            return Vec::new();
        };
        let (rank, world_size) = (self.rank, self.world_size);
        let mut is_absent = |peer: &usize| {
            tiny.part.awaits(*peer, rank, tiny.job.root)
                && !windows
                    .has_reached(*peer, tiny.generation, tiny.part.phase, &tiny.call)
                    .unwrap_or(false)
        };
        (0..world_size).filter(|peer| is_absent(peer)).collect()
    }

    /// Where the tiny call stands.
    pub(super) fn tiny_site(&mut self) -> Option<Site> {
        let ranks = self.tiny_waiting_for();
        let tiny = self.tiny.as_ref().filter(|tiny| tiny.is_active)?;
        Some(Site {
            call: tiny.call,
            phase: phase(&ranks, 1, 1),
        })
    }

    /// The error of a tiny call whose deadline has passed.
    pub(super) fn check_tiny_deadline(&mut self, now: Time) -> Result<()> {
        let Some(tiny) = self.tiny.as_mut().filter(|tiny| tiny.is_active) else {
            return Ok(());
        };
        let timeout = tiny.job.timeout;
        if now < *tiny.deadline.get_or_insert(now.after(timeout)) {
            return Ok(());
        }
        let (waiting_for, site) = (self.tiny_waiting_for(), self.tiny_site());
        Err(Error::Timeout {
            waiting_for,
            after_ms: timeout.as_millis() as u64,
            site,
        })
    }
}

impl Tiny {
    /// The preparations of `job`; nothing if there is no such tiny call.
    fn prepare(job: TinyJob, rank: usize, world_size: usize) -> Result<Option<Tiny>> {
        let collective = job.collective;
        let Some(part) = Part::new(collective, rank, job.root) else {
            return Ok(None);
        };
        let reduces = collective.reduces();
        let call = Call {
            collective,
            dtype: job.dtype,
            op: if reduces { job.op.wire() } else { 0 },
            algorithm: part::algorithm(collective),
            root: if collective.has_root() {
                job.root as u32
            } else {
                0
            },
            count: job.count,
            sequence: 0,
        };
        let kernel = match reduces {
            true => Some(Kernel::new(job.op, job.dtype)?),
            false => None,
        };
        Ok(Some(Tiny {
            job,
            part,
            kernel,
            call,
            is_inline: Inline::carries(&call, world_size),
            hears_all: (0..world_size)
                .all(|peer| peer == rank || part.awaits(peer, rank, job.root)),
            meets: !collective.has_root(),
            generation: 0,
            deadline: None,
            awaited: 0,
            is_active: false,
        }))
    }

    /// Whether the preparations are those of `job` too.
    fn serves(&self, job: &TinyJob) -> bool {
        let last = &self.call;
        last.collective == job.collective
            && last.count == job.count
            && last.dtype == job.dtype
            && (!job.collective.reduces() || last.op == job.op.wire())
            && self.job.root == job.root
    }

    /// The bytes of a vector or block.
    fn block_bytes(&self) -> usize {
        self.job.count as usize * self.job.dtype.size_bytes()
    }

    /// Where `block` lies in a buffer.
    fn range(&self, block: usize) -> Range<usize> {
        let bytes = self.block_bytes();
        block * bytes..(block + 1) * bytes
    }

    /// Where `block` stands in a slot.
    fn slot_range(&self, block: usize) -> Range<usize> {
        let bytes = self.block_bytes();
        let start = block * bytes.next_multiple_of(BLOCK_ALIGN_BYTES);
        start..start + bytes
    }

    /// Publishes this rank's part, and copies at home what is its own.
    fn tell(&self, windows: &mut dyn Windows, rank: usize, world_size: usize) -> Result<()> {
        let (job, generation) = (&self.job, self.generation);
        match self.part.told {
            Told::Presence => windows.enter(generation, &self.call),
            _ if self.is_inline => Inline::send(windows, generation, job.input),
            Told::Input => windows.write(generation, 0, job.input),
            Told::Blocks => {
                for block in (0..world_size).filter(|block| *block != rank) {
                    let offset = self.slot_range(block).start;
                    windows.write(generation, offset, job.input.part(self.range(block)));
                }
            }
        }
        if self.part.told != Told::Presence {
            windows.publish(generation, self.part.phase, &self.call)?;
        }
        if let Some((from, into)) = self.part.kept {
            let kept = job.input.part(self.range(from));
            job.output.part(self.range(into)).copy_from(kept);
        }
        Ok(())
    }

    /// Copies what is to be had of `peer`, who has published.
    fn take(&self, windows: &dyn Windows, inline: &Inline, peer: usize) {
        let (block, into) = match self.part.taken {
            Taken::Nothing | Taken::Folded(_) => return,
            Taken::Collected(block) => (block, peer),
            Taken::Fetched(block) => (block, 0),
        };
        let target = self.job.output.part(self.range(into));
        target.copy_from(self.view(windows, inline, peer, block));
    }

    /// A block that `peer` has published.
    fn view(&self, windows: &dyn Windows, inline: &Inline, peer: usize, block: usize) -> Region {
        if self.is_inline {
            inline.take(windows, peer, self.generation, self.range(block))
        } else {
            windows.view(peer, self.generation, self.slot_range(block))
        }
    }
}
