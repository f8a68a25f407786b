//! The shortest way for the smallest calls: one slot, no plan, no queue.
//!
//! An `all_reduce` that fits one published slot is what training does most often and what latency is measured by. This
//! is the `one_shot` schedule over published memory (publish, await the others, reduce from all) written out, with the
//! same generations, phases and call words. A rank that takes this way and one that runs the schedule understand each
//! other; a test holds the two together.
//!
//! What fits beside the call in the slot's head travels there: one line says that the rank has come and what it brings.

use std::time::Duration;

use super::operation::phase;
use super::{Engine, announce};
use crate::call::Call;
use crate::error::{Error, Result, Site};
use crate::memory::{Owned, Region};
use crate::reduce::Kernel;
use crate::transport::{ATTACHED_WORDS, Time, Windows};
use crate::types::{Algorithm, Collective, DType, Op};

/// The phase in which the inputs are published; `schedule::one_shot` has the same.
const INPUTS: u8 = 0;

/// What fits into the words attached to a slot.
const INLINE_BYTES: usize = ATTACHED_WORDS * 8;

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

    /// Whether the inputs of this call travel in the heads: the same on all ranks.
    pub(super) fn carries(call: &Call) -> bool {
        call.collective == Collective::AllReduce
            && call.algorithm == Algorithm::OneShot
            && call.count <= (INLINE_BYTES / call.dtype.size_bytes()) as u64
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

    /// What `peer` attached, `bytes` long. Valid until the next one from that peer is taken.
    pub(super) fn take(
        &self,
        windows: &dyn Windows,
        peer: usize,
        generation: u64,
        bytes: usize,
    ) -> Region {
        let place = self
            .places
            .region()
            .part(peer * INLINE_BYTES..(peer + 1) * INLINE_BYTES);
        let words = windows.attached(peer, generation).map(u64::to_ne_bytes);
        place.write(words.as_flattened());
        place.part(0..bytes)
    }
}

/// A tiny call, checked.
#[derive(Clone, Copy, Debug)]
pub struct TinyJob {
    /// The elements' type.
    pub dtype: DType,
    /// How they are combined: neither `Avg` nor `PremulSum`, which scale.
    pub op: Op,
    /// How many elements.
    pub count: u64,
    /// What is read.
    pub input: Region,
    /// What is filled; `input`'s memory, or apart from it.
    pub output: Region,
    /// How long it may take.
    pub timeout: Duration,
}

/// A tiny call under way, and the last one's preparations.
#[derive(Debug)]
pub(super) struct Tiny {
    job: TinyJob,
    kernel: Kernel,
    pub(super) call: Call,
    generation: u64,
    pub(super) deadline: Option<Time>,
    /// The first peer that has not been seen to arrive.
    awaited: usize,
    pub(super) is_active: bool,
}

impl Tiny {
    /// How long the call may take.
    pub(super) fn timeout(&self) -> Duration {
        self.job.timeout
    }
}

impl Engine {
    /// Begins `job`, unless something else is under way or its slot is not free: then it goes the usual way.
    pub fn begin_tiny(&mut self, job: TinyJob) -> Result<bool> {
        if !self.is_idle() {
            return Ok(false);
        }
        let generation = self.generation;
        let Some(windows) = self.transport.windows() else {
            return Ok(false);
        };
        if !windows.is_free(generation) {
            return Ok(false);
        }
        let is_known = self.tiny.as_ref().is_some_and(|last| {
            let (call, op) = (&last.call, job.op.wire());
            call.op == op && call.dtype == job.dtype && call.count == job.count
        });
        if self.tiny.is_none() {
            announce::tiny(&job, self.world_size);
        }
        if !is_known {
            self.tiny = Some(Tiny::prepare(job)?);
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
        if Inline::carries(&tiny.call) {
            Inline::send(windows, generation, job.input);
        } else {
            windows.write(generation, 0, job.input);
        }
        windows.publish(generation, INPUTS, &tiny.call)?;
        Ok(true)
    }

    /// Ends the tiny call if all peers are there; whether it is over.
    pub fn poll_tiny(&mut self) -> Result<bool> {
        let Some(tiny) = self.tiny.as_mut().filter(|tiny| tiny.is_active) else {
            return Ok(true);
        };
        let Some(windows) = self.transport.windows() else {
            return Ok(true);
        };
        while tiny.awaited < self.world_size {
            let peer = tiny.awaited;
            if peer != self.rank
                && !windows.has_reached(peer, tiny.generation, INPUTS, &tiny.call)?
            {
                return Ok(false);
            }
            tiny.awaited += 1;
        }
        let bytes = tiny.job.input.bytes();
        let is_inline = Inline::carries(&tiny.call);
        self.operands.clear();
        for peer in 0..self.world_size {
            self.operands.push(if peer == self.rank {
                tiny.job.input
            } else if is_inline {
                self.inline.take(windows, peer, tiny.generation, bytes)
            } else {
                windows.view(peer, tiny.generation, 0..bytes)
            });
        }
        tiny.kernel.fold(tiny.job.output, &self.operands);
        windows.finish_heard(tiny.generation);
        tiny.is_active = false;
        if !self.unverified.is_empty() {
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
            *peer != rank
                && !windows
                    .has_reached(*peer, tiny.generation, INPUTS, &tiny.call)
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
        let timeout = tiny.timeout();
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
    fn prepare(job: TinyJob) -> Result<Tiny> {
        let call = Call {
            collective: Collective::AllReduce,
            dtype: job.dtype,
            op: job.op.wire(),
            algorithm: Algorithm::OneShot,
            root: 0,
            count: job.count,
            sequence: 0,
        };
        let kernel = Kernel::new(job.op, job.dtype)?;
        Ok(Tiny {
            job,
            kernel,
            call,
            generation: 0,
            deadline: None,
            awaited: 0,
            is_active: false,
        })
    }
}
