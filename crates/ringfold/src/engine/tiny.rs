//! The shortest way for the smallest calls: one slot, no plan, no queue.
//!
//! Calls that fit one published slot are what latency is measured by. Here are their schedules over published memory
//! written out (tell, await, take: [`part`]), with the same generations, phases and call words. A rank that takes this
//! way and one that runs the schedule understand each other; a test holds the two together. A rank that needs nobody (the
//! root of a broadcast) returns as soon as it has published, as long as its slots are free.
//!
//! A store waits until its line has come from the core that read it last, as long as the whole rest of such a call takes. So
//! after each call the lines of a later one are asked for ([`Windows::prefetch`]).
//!
//! By the protocol `ll` the payload travels beside the call in the slot's head: one line says that the rank has come and what
//! it brings.

pub mod inline;
pub mod part;

use std::ops::Range;
use std::time::Duration;

use super::steps::phase;
use super::{Engine, announce};
use crate::call::Call;
use crate::error::{Error, Result, Site};
use crate::memory::Region;
use crate::reduce::Kernel;
use crate::transport::shm::PREFETCHED_BYTES_MAX;
use crate::transport::{ATTACHED_WORDS, SlotUse, Time, Wake, Windows};
use crate::types::{Collective, DType, Op, Protocol};
use inline::Inline;
use part::{Awaited, Part, Taken, Told};

/// How many calls ahead a slot's lines are asked for: those of the next one would come too late, if it follows at once.
const PREFETCHED_AHEAD: u64 = 2;

/// Blocks of a call of one slice begin at multiples of this in their slot.
pub const BLOCK_ALIGN_BYTES: usize = 64;

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
    /// How its bytes travel: [`Protocol::Ll`] or [`Protocol::Simple`].
    pub protocol: Protocol,
    /// What the peers are told of its cut, see [`Call::cut`].
    pub cut: u16,
    /// Whether registered buffers would be worked in directly, in a call of this size.
    pub tries_registered: bool,
    /// How long it may take.
    pub timeout: Duration,
}

impl TinyJob {
    /// What its rank says about it, but for the sequence.
    fn call(&self) -> Call {
        Call {
            collective: self.collective,
            dtype: self.dtype,
            op: if self.collective.reduces() {
                self.op.wire()
            } else {
                0
            },
            algorithm: part::algorithm(self.collective),
            protocol: self.protocol,
            root: self.root as u32,
            count: self.count,
            lists: 0,
            sequence: 0,
            cut: self.cut,
        }
    }
}

/// Kinds of tiny calls whose preparations are kept, at most: programs alternate between a few.
const KINDS_MAX: usize = 4;

/// The tiny call under way, and the preparations of the last few kinds.
#[derive(Debug)]
pub(super) struct TinyCalls {
    kinds: Vec<Tiny>,
    /// The kind of the last call.
    current: usize,
    is_active: bool,
    pub(super) inline: Inline,
}

impl TinyCalls {
    /// None yet, among `world_size` ranks.
    pub(super) fn new(world_size: usize) -> TinyCalls {
        TinyCalls {
            kinds: Vec::with_capacity(KINDS_MAX),
            current: 0,
            is_active: false,
            inline: Inline::new(world_size),
        }
    }

    /// The peer that the tiny call under way waits for, which is counted already.
    pub(super) fn blamed(&self) -> Option<usize> {
        self.active().and_then(|tiny| tiny.last)
    }

    fn active(&self) -> Option<&Tiny> {
        self.kinds.get(self.current).filter(|_| self.is_active)
    }

    /// Makes the kind of `job` the current one; false if there is no such tiny call.
    fn select(&mut self, job: &TinyJob, rank: usize, world_size: usize) -> Result<bool> {
        let call = job.call();
        let words = call.words();
        if let Some(index) = self.kinds.iter().position(|kind| kind.serves(words)) {
            self.current = index;
            return Ok(true);
        }
        let Some(kind) = Tiny::prepare(job, call, rank, world_size)? else {
            return Ok(false);
        };
        if self.kinds.is_empty() {
            announce::tiny(job, world_size);
        }
        if self.kinds.len() < KINDS_MAX {
            self.current = self.kinds.len();
            self.kinds.push(kind);
        } else {
            self.current = (self.current + 1) % KINDS_MAX;
            self.kinds[self.current] = kind;
        }
        Ok(true)
    }
}

/// One kind of tiny call, prepared, and the last call of it.
#[derive(Debug)]
struct Tiny {
    input: Region,
    output: Region,
    timeout: Duration,
    block_bytes: usize,
    root: usize,
    part: Part,
    kernel: Option<Kernel>,
    call: Call,
    /// What tells it from other kinds: the words of the call, in which the sequence is 0.
    key: [u64; 3],
    /// Words of the input, where it travels in the heads; else 0.
    inline_words: usize,
    slot_use: SlotUse,
    /// What a later call of this kind is likely to write, as far as it is asked for ahead.
    prefetched_bytes: usize,
    /// Whether this rank waits for all others, so that it has seen which call they are in.
    hears_all: bool,
    /// Whether all ranks wait for all others, so that nobody gets ahead.
    meets: bool,
    generation: u64,
    deadline: Option<Time>,
    /// The first peer that has not been seen to arrive.
    awaited: usize,
    /// The last one that this rank has waited for.
    last: Option<usize>,
}

impl Engine {
    /// Begins `job`, unless something else is under way or its slot is not free: then it goes the usual way.
    pub fn begin_tiny(&mut self, job: &TinyJob) -> Result<bool> {
        if !self.is_idle() || (job.tries_registered && self.registry.is_used()) {
            return Ok(false);
        }
        let generation = self.generation;
        let Some(windows) = self.windows.as_mut() else {
            return Ok(false);
        };
        if !windows.is_free(generation) || !self.tiny.select(job, self.rank, self.world_size)? {
            return Ok(false);
        }
        self.unverified.verify_before(windows, generation)?;
        self.sequence += 1;
        self.generation += 1;
        let tiny = &mut self.tiny.kinds[self.tiny.current];
        (tiny.input, tiny.output, tiny.timeout) = (job.input, job.output, job.timeout);
        (tiny.call.sequence, tiny.generation) = (self.sequence, generation);
        (tiny.deadline, tiny.awaited, tiny.last) = (None, 0, None);
        self.tiny.is_active = true;
        tiny.tell(windows, self.rank, self.world_size);
        Ok(true)
    }

    /// Ends the tiny call if all whom it waits for are there; whether it is over.
    pub fn poll_tiny(&mut self) -> Result<bool> {
        if !self.tiny.is_active {
            return Ok(true);
        }
        let Some(windows) = self.windows.as_mut() else {
            return Ok(true);
        };
        let TinyCalls {
            kinds,
            current,
            is_active,
            inline,
        } = &mut self.tiny;
        let tiny = &mut kinds[*current];
        if tiny.part.awaited != Awaited::Nobody {
            while tiny.awaited < self.world_size {
                let peer = tiny.awaited;
                if tiny.part.awaits(peer, self.rank, tiny.root) {
                    if !tiny.hear(windows, inline, peer)? {
                        if tiny.last != Some(peer) {
                            self.lateness.blame_shortly(tiny.last, peer);
                            tiny.last = Some(peer);
                        }
                        if !self.unverified.is_empty() {
                            self.verify_while_waiting()?;
                        }
                        return Ok(false);
                    }
                    tiny.take(windows, inline, peer);
                }
                tiny.awaited += 1;
            }
        }
        if let (Taken::Folded(block), Some(kernel)) = (tiny.part.taken, tiny.kernel) {
            self.operands.clear();
            for peer in 0..self.world_size {
                self.operands.push(if peer == self.rank {
                    tiny.input.part(tiny.range(block))
                } else {
                    tiny.view(windows, inline, peer, block)
                });
            }
            kernel.fold(tiny.output, &self.operands);
            for (peer, read) in self.operands.iter().enumerate() {
                if peer != self.rank {
                    tiny.slot_use.done_reading(*read);
                }
            }
        }
        *is_active = false;
        if tiny.meets {
            windows.all_entered(tiny.generation);
            windows.finish(tiny.generation, Wake::None);
        } else {
            windows.finish(tiny.generation, Wake::Peers);
        }
        windows.prefetch(tiny.generation + PREFETCHED_AHEAD, tiny.prefetched_bytes);
        if !tiny.hears_all {
            let (generation, call) = (tiny.generation, tiny.call);
            self.unverified.note(generation, call);
        } else if !self.unverified.is_empty() {
            self.verify_calls()?;
        }
        Ok(true)
    }

    /// Counts the tiny call that has just ended, in which this rank waited for `wait`: where that was worth a look at the clock.
    pub fn count_tiny(&mut self, wait: Duration) {
        if let Some(peer) = self.tiny.kinds[self.tiny.current].last {
            self.lateness.count_tiny(peer, wait);
        }
    }

    /// `poll_tiny`, for a call that goes on like any other.
    pub(super) fn end_long_tiny(&mut self) -> Result<bool> {
        let is_over = self.poll_tiny()?;
        if is_over {
            let last = self.tiny.kinds[self.tiny.current].last;
            self.lateness.take_back(last);
            if let Some(peer) = last {
                self.lateness.heard(peer);
            }
            self.lateness.end_call();
        }
        Ok(is_over)
    }

    /// Whether a tiny call is under way.
    pub fn is_tiny_active(&self) -> bool {
        self.tiny.is_active
    }

    /// The ranks that the tiny call waits for.
    pub(super) fn tiny_waiting_for(&mut self) -> Vec<usize> {
        let Some(tiny) = self.tiny.active() else {
            return Vec::new();
        };
        let Some(windows) = &self.windows else {
            return Vec::new();
        };
        let (rank, world_size) = (self.rank, self.world_size);
        let is_absent = |peer: &usize| {
            tiny.part.awaits(*peer, rank, tiny.root)
                && !windows
                    .has_reached(*peer, tiny.generation, tiny.part.phase, &tiny.call)
                    .unwrap_or(false)
        };
        (0..world_size).filter(|peer| is_absent(peer)).collect()
    }

    /// Where the tiny call stands.
    pub(super) fn tiny_site(&mut self) -> Option<Site> {
        let ranks = self.tiny_waiting_for();
        let tiny = self.tiny.active()?;
        Some(Site {
            call: tiny.call,
            phase: phase(&ranks, 1, 1),
        })
    }

    /// The error of a tiny call whose deadline has passed.
    pub(super) fn check_tiny_deadline(&mut self, now: Time) -> Result<()> {
        if !self.tiny.is_active {
            return Ok(());
        }
        let tiny = &mut self.tiny.kinds[self.tiny.current];
        let timeout = tiny.timeout;
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
    /// The preparations of `job`, which says `call`; nothing if there is no such tiny call.
    fn prepare(job: &TinyJob, call: Call, rank: usize, world_size: usize) -> Result<Option<Tiny>> {
        let collective = job.collective;
        let Some(part) = Part::new(collective, rank, job.root) else {
            return Ok(None);
        };
        if Inline::carries(&call) && !Inline::fits(&call, world_size) {
            return Ok(None);
        }
        let block_bytes = job.count as usize * job.dtype.size_bytes();
        let kernel = match collective.reduces() {
            true => Some(Kernel::new(job.op, job.dtype)?),
            false => None,
        };
        let slot_use = SlotUse::of(&call, world_size, false);
        Ok(Some(Tiny {
            input: job.input,
            output: job.output,
            timeout: job.timeout,
            block_bytes,
            root: job.root,
            part,
            kernel,
            call,
            key: call.words(),
            inline_words: if Inline::carries(&call) {
                let blocks = part::input_blocks(collective, world_size);
                (block_bytes * blocks).div_ceil(8)
            } else {
                0
            },
            slot_use,
            prefetched_bytes: match part.told {
                Told::Presence => 0,
                // It is here: this rank has read it.
                _ if slot_use == SlotUse::Traded => 0,
                _ => block_bytes.min(PREFETCHED_BYTES_MAX),
            },
            hears_all: (0..world_size)
                .all(|peer| peer == rank || part.awaits(peer, rank, job.root)),
            meets: !collective.has_root(),
            generation: 0,
            deadline: None,
            awaited: 0,
            last: None,
        }))
    }

    /// Whether the preparations are those of `call` too.
    #[inline]
    fn serves(&self, words: [u64; 3]) -> bool {
        self.key == words
    }

    /// Where `block` lies in a buffer.
    fn range(&self, block: usize) -> Range<usize> {
        let bytes = self.block_bytes;
        block * bytes..(block + 1) * bytes
    }

    /// Where `block` stands in a slot.
    fn slot_range(&self, block: usize) -> Range<usize> {
        let bytes = self.block_bytes;
        let start = block * bytes.next_multiple_of(BLOCK_ALIGN_BYTES);
        start..start + bytes
    }

    /// Publishes this rank's part, and copies at home what is its own.
    fn tell(&self, windows: &mut Windows, rank: usize, world_size: usize) {
        let (input, generation) = (self.input, self.generation);
        match self.part.told {
            Told::Presence => windows.enter(generation, &self.call),
            _ if self.inline_words > 0 => {
                let mut words = [0; ATTACHED_WORDS];
                let words = Inline::words(input, &mut words);
                windows.attach(generation, words);
            }
            Told::Input => self.place(windows, rank, 0..input.bytes()).copy_from(input),
            Told::Blocks => {
                for block in (0..world_size).filter(|block| *block != rank) {
                    let place = self.place(windows, rank, self.slot_range(block));
                    place.copy_from(input.part(self.range(block)));
                }
            }
        }
        if self.part.told != Told::Presence {
            windows.publish(generation, self.part.phase, &self.call, Wake::Peers);
        }
        if let Some((from, into)) = self.part.kept {
            let kept = input.part(self.range(from));
            self.output.part(self.range(into)).copy_from(kept);
        }
    }

    /// Whether `peer` has published; what it attached is put where `view` finds it.
    fn hear(&self, windows: &Windows, inline: &Inline, peer: usize) -> Result<bool> {
        if !windows.has_reached(peer, self.generation, self.part.phase, &self.call)? {
            return Ok(false);
        }
        for index in 0..self.inline_words {
            inline.put(peer, index, windows.attached(peer, self.generation, index));
        }
        Ok(true)
    }

    /// Copies what is to be had of `peer`, who has published.
    fn take(&self, windows: &Windows, inline: &Inline, peer: usize) {
        let (block, into) = match self.part.taken {
            Taken::Nothing | Taken::Folded(_) => return,
            Taken::Collected(block) => (block, peer),
            Taken::Fetched(block) => (block, 0),
        };
        let target = self.output.part(self.range(into));
        let read = self.view(windows, inline, peer, block);
        target.copy_from(read);
        self.slot_use.done_reading(read);
    }

    /// Where `range` of the slot of `writer` stands.
    fn place(&self, windows: &Windows, writer: usize, range: Range<usize>) -> Region {
        self.slot_use.place(windows, writer, self.generation, range)
    }

    /// A block that `peer` has published.
    fn view(&self, windows: &Windows, inline: &Inline, peer: usize, block: usize) -> Region {
        if self.inline_words > 0 {
            inline.place(peer).part(self.range(block))
        } else {
            self.place(windows, peer, self.slot_range(block))
        }
    }
}
