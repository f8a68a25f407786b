//! Published memory: the slots of every rank in the segment, which all ranks of the host can read.
//!
//! Each rank copies into its own slots, and all ranks read them in place. If only one peer reads a
//! part, a schedule may let that peer overwrite the part, too (`GiveBack`), until it raises its own
//! flag. Two ranks may trade slots ([`slots`](super::slots)) for the same reason: lines are best
//! written by the rank that has read them.
//!
//! # Generations and phases
//!
//! A *generation* is one slice of one call, numbered equally on all ranks; it uses slot
//! `generation % slots` of every rank. Within a generation, a rank publishes phases in ascending
//! order. A slot's stamp increases through generations and, within one, from its beginning through
//! the phases. A rank that sees a stamp also sees everything published before. A slot is reused
//! once all ranks have finished its generation; each rank counts these in a counter of its own.
//!
//! # Domains
//!
//! One reader in another domain (of another last-level cache, or on another socket) makes all other
//! readers of a line several times slower. For 4 bytes from one rank to 24 of its socket, the time
//! rises from 0.22 to 0.82 µs when one of the other socket joins them (published by the authors of
//! XHC, 2023; not measured here). So if ranks belong to several domains, each writes its head
//! twice: for its own domain, and then, behind the payload, for all others. Otherwise there is one
//! head and one store.

use std::ops::Range;
use std::sync::Arc;

use super::claims;
use super::flag;
use super::segment::{Segment, SlotHead};
use crate::call::{CALL_BYTES, Call};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::sync::Ordering;
use crate::transport::mismatch;

/// Number of stamps of a generation: begun, entered, and six phases.
const PHASES: u64 = 8;

/// Number of words of a call.
const CALL_WORDS: usize = CALL_BYTES / 8;

/// The peers that a change wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Every sleeping peer, as any may wait for this change.
    Peers,
    /// No peer, as none waits for this change alone.
    None,
}

/// One rank's view of the windows of its host.
#[derive(Debug)]
pub struct Windows {
    segment: Arc<Segment>,
    rank: usize,
    /// Generation below which every peer has finished all, as far as seen.
    all_finished: u64,
    /// The generation whose call is in this rank's slot head, plus one.
    headed: u64,
    /// Ranks of this rank's domain, which read the same heads; `None` if all ranks do.
    near: Option<Range<usize>>,
}

impl Windows {
    /// Maximum number of blocks of a generation that ranks can share; see [`Windows::claim_of`].
    pub const BLOCKS_MAX: u32 = claims::BLOCKS_MAX;

    /// Creates the view of `rank` (its number on this host). The ranks belong to `domains` domains
    /// of equal size, in rank order: the same number on all ranks.
    pub fn new(segment: Arc<Segment>, rank: usize, domains: usize) -> Windows {
        Windows {
            near: near(rank, segment.shape().ranks, domains),
            segment,
            rank,
            all_finished: 0,
            headed: 0,
        }
    }

    /// Returns the number of generations that can be open at once.
    #[inline]
    pub fn slots(&self) -> usize {
        self.segment.shape().slots
    }

    /// Returns the number of bytes that one rank can publish in one generation.
    pub fn slot_bytes(&self) -> usize {
        self.segment.shape().slot_bytes
    }

    /// Whether all peers have finished the previous generation of `generation`'s slot.
    #[inline]
    pub fn is_free(&mut self, generation: u64) -> bool {
        let slots = self.slots() as u64;
        if generation >= self.all_finished + slots {
            self.all_finished = self
                .peers()
                .map(|peer| self.finished(peer))
                .min()
                .unwrap_or(u64::MAX - slots);
        }
        generation < self.all_finished.saturating_add(slots)
    }

    /// Returns the peers that have not finished the previous generation of `generation`'s slot, for
    /// error messages.
    pub fn behind(&self, generation: u64) -> Vec<usize> {
        let slots = self.slots() as u64;
        self.peers()
            .filter(|peer| self.finished(*peer) + slots <= generation)
            .collect()
    }

    /// Prefetches the lines that this rank is likely to write in `generation`: the head and the
    /// first `bytes` bytes of its slot.
    #[inline]
    pub fn prefetch(&self, generation: u64, bytes: usize) {
        let slot = self.slot_index(generation);
        self.segment
            .slot_start(self.rank, slot, bytes)
            .prefetch_for_writing();
    }

    /// Returns part `range` of `rank`'s slot in `generation`.
    ///
    /// A rank writes its own slot before it publishes, and reads a peer's after
    /// [`has_reached`](Windows::has_reached). A peer's slot is written only by a schedule's
    /// `GiveBack`, and touched or traded according to [`SlotUse`](super::slots::SlotUse).
    #[inline]
    pub fn slot(&self, rank: usize, generation: u64, range: Range<usize>) -> Region {
        self.segment
            .slot(rank, self.slot_index(generation))
            .part(range)
    }

    /// Attaches at most [`ATTACHED_WORDS`](crate::transport::ATTACHED_WORDS) words to this rank's
    /// slot, in the same cache line as the next [`publish`](Windows::publish).
    #[inline]
    pub fn attach(&self, generation: u64, words: &[u64]) {
        self.change_heads(generation, |head| {
            for (place, word) in head.attached.iter().zip(words) {
                // Made visible by the flag.
                place.store(*word, Ordering::Relaxed);
            }
        });
    }

    /// Returns a word that `peer` attached to its slot. Called only after `has_reached`.
    #[inline]
    pub fn attached(&self, peer: usize, generation: u64, word: usize) -> u64 {
        let head = self.peers_head(peer, generation);
        // Ordered by the flag, which was seen raised before.
        head.attached[word].load(Ordering::Relaxed)
    }

    /// Announces `call` for a rank that publishes nothing in it: a peer that waits for this rank in
    /// another call finds the mismatch. No peer sleeps for this alone.
    pub fn enter(&mut self, generation: u64, call: &Call) {
        self.raise(generation, call, entered(generation));
    }

    /// Publishes that this rank has reached `phase` in `call`.
    #[inline]
    pub fn publish(&mut self, generation: u64, phase: u8, call: &Call, wake: Wake) {
        assert!(phase as u64 + 2 < PHASES, "phase {phase}");
        self.raise(generation, call, stamp(generation, phase));
        self.wake(wake);
    }

    /// Whether `peer` has reached `phase` of this generation; `Mismatch` if the peer is in another
    /// call than `call`.
    #[inline(always)]
    pub fn has_reached(
        &self,
        peer: usize,
        generation: u64,
        phase: u8,
        call: &Call,
    ) -> Result<bool> {
        let head = self.peers_head(peer, generation);
        let height = flag::height(&head.stamp);
        if height < entered(generation) {
            return Ok(false);
        }
        // The peer writes its call again only after this rank has finished the generation.
        self.compare(peer, head, call)?;
        Ok(height >= stamp(generation, phase))
    }

    /// Returns the call that `peer` has entered as this generation, which this rank has not begun;
    /// `None` if there is no valid call.
    pub fn entered(&self, peer: usize, generation: u64) -> Option<Call> {
        let head = self.peers_head(peer, generation);
        if flag::height(&head.stamp) < entered(generation) {
            return None;
        }
        // Ordered by the flag, and the peer writes its call again only after this rank has finished
        // the generation.
        decoded(words_of(head))
    }

    /// Compares `call`, which was this rank's in a finished generation, with the peers' calls that
    /// are still visible, for calls in which this rank did not hear from all peers. False if a peer
    /// has not entered the generation yet.
    pub fn verify(&self, generation: u64, call: &Call) -> Result<bool> {
        let mut are_all_there = true;
        for peer in self.peers() {
            let head = self.peers_head(peer, generation);
            let is_same_generation =
                |height| (entered(generation)..begun(generation + 1)).contains(&height);
            let height = flag::height(&head.stamp);
            if !is_same_generation(height) {
                are_all_there &= height >= entered(generation);
                continue;
            }
            let compared = self.compare(peer, head, call);
            // The peer may have continued meanwhile; then its next call may have been compared.
            if is_same_generation(flag::recheck(&head.stamp)) {
                compared?;
            }
        }
        Ok(are_all_there)
    }

    /// Announces that this rank will not read `generation` or an earlier one again. In order, once
    /// each.
    ///
    /// [`Wake::None`] is correct if no peer can be a whole round of slots ahead and wait for this.
    #[inline]
    pub fn finish(&self, generation: u64, wake: Wake) {
        flag::raise(self.segment.finished(self.rank), generation + 1);
        self.wake(wake);
    }

    /// Notes that all peers were heard in `generation`, which each entered with no earlier one in
    /// progress: they have finished those before, and their counters need not be read for that.
    #[inline]
    pub fn all_entered(&mut self, generation: u64) {
        self.all_finished = self.all_finished.max(generation);
    }

    /// Claims one of the `blocks` blocks of this generation; `None` when all are claimed.
    pub fn claim(&self, generation: u64, blocks: u32) -> Option<u32> {
        let [claimed, _] = self.segment.work_counters(self.slot_index(generation));
        let block = claims::claim(claimed, generation, blocks)?;
        flag::raise(self.segment.open_claim(self.rank), generation + 1);
        Some(block)
    }

    /// Claims one of `home`'s `blocks` blocks of this generation; `None` when all are claimed. Any
    /// rank may claim, in one generation at a time: none claims before all have finished the one
    /// before.
    pub fn claim_of(&self, home: usize, generation: u64, blocks: u32) -> Option<u32> {
        let block = claims::claim(self.segment.blocks_claimed(home), generation, blocks)?;
        flag::raise(self.segment.open_claim(self.rank), generation + 1);
        Some(block)
    }

    /// Marks the claimed block as reduced. The generation's last block wakes the peers.
    pub fn complete(&self, generation: u64, blocks: u32) {
        let [_, complete] = self.segment.work_counters(self.slot_index(generation));
        let is_last = claims::complete(complete, generation, blocks);
        flag::raise(self.segment.open_claim(self.rank), 0);
        if is_last {
            self.wake(Wake::Peers);
        }
    }

    /// Whether all blocks of the generation are reduced. If so, the results are visible.
    pub fn is_complete(&self, generation: u64, blocks: u32) -> bool {
        let [_, complete] = self.segment.work_counters(self.slot_index(generation));
        claims::is_complete(complete, generation, blocks)
    }

    /// Returns the peers that have claimed a block of this generation and not completed it, for
    /// error messages.
    pub fn claimants(&self, generation: u64) -> Vec<usize> {
        let has_claimed =
            |peer: &usize| flag::height(self.segment.open_claim(*peer)) == generation + 1;
        self.peers().filter(has_claimed).collect()
    }

    /// Whether `peer` has withdrawn its memory, see [`Segment::has_withdrawn`].
    pub fn has_withdrawn(&self, peer: usize) -> bool {
        self.segment.has_withdrawn(peer)
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.segment.shape().ranks).filter(move |peer| *peer != rank)
    }

    #[inline]
    fn slot_index(&self, generation: u64) -> usize {
        // The number of slots is a power of two, so that this is no division.
        (generation & (self.segment.shape().slots as u64 - 1)) as usize
    }

    /// Returns the head of a peer's slot that this rank reads.
    #[inline(always)]
    fn peers_head(&self, peer: usize, generation: u64) -> &SlotHead {
        let slot = self.slot_index(generation);
        match &self.near {
            Some(near) if !near.contains(&peer) => self.segment.far_head(peer, slot),
            _ => self.segment.slot_head(peer, slot),
        }
    }

    /// Applies `change` to the heads of this rank's slot, first to the one that its own domain
    /// reads.
    #[inline(always)]
    fn change_heads(&self, generation: u64, change: impl Fn(&SlotHead)) {
        let slot = self.slot_index(generation);
        change(self.segment.slot_head(self.rank, slot));
        if self.near.is_some() {
            change(self.segment.far_head(self.rank, slot));
        }
    }

    fn finished(&self, peer: usize) -> u64 {
        // Once the counter is seen, the peer's reads of the slots are over.
        flag::height(self.segment.finished(peer))
    }

    /// Raises the flag of this rank's slot to `height`. Once a generation, writes the call first,
    /// which the flag makes visible.
    #[inline(always)]
    fn raise(&mut self, generation: u64, call: &Call, height: u64) {
        let is_new = std::mem::replace(&mut self.headed, generation + 1) != generation + 1;
        let words = is_new.then(|| call.words());
        self.change_heads(generation, |head| {
            if let Some(words) = words {
                // A peer may still compare the previous call, see `verify`.
                flag::begin(&head.stamp, begun(generation));
                for (place, word) in head.call.iter().zip(words) {
                    // Made visible by the flag.
                    place.store(word, Ordering::Relaxed);
                }
            }
            flag::raise(&head.stamp, height);
        });
    }

    #[inline(always)]
    fn compare(&self, peer: usize, head: &SlotHead, call: &Call) -> Result<()> {
        // Ordered by the flag, which was seen raised before.
        let theirs = || head.call.iter().map(|word| word.load(Ordering::Relaxed));
        // Compared word by word: a whole array would first be stored, and then loaded wider than it
        // was stored.
        if theirs()
            .zip(call.words())
            .fold(0, |differs, (word, own)| differs | word ^ own)
            == 0
        {
            return Ok(());
        }
        Err(self.difference(peer, words_of(head), call))
    }

    #[inline]
    fn wake(&self, wake: Wake) {
        if wake == Wake::Peers {
            for peer in self.peers() {
                self.segment.ring(peer);
            }
        }
    }

    #[cold]
    fn difference(&self, peer: usize, words: [u64; CALL_WORDS], call: &Call) -> Error {
        match decoded(words) {
            Some(theirs) => mismatch([self.rank, peer], [call, &theirs]),
            None => Error::corrupt(peer, "invalid published call"),
        }
    }
}

/// Returns the words of the call in a head whose flag was seen raised.
fn words_of(head: &SlotHead) -> [u64; CALL_WORDS] {
    // Ordered by the flag.
    std::array::from_fn(|word| head.call[word].load(Ordering::Relaxed))
}

fn decoded(words: [u64; CALL_WORDS]) -> Option<Call> {
    let mut bytes = [0; CALL_BYTES];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    Call::decode(&bytes)
}

/// Returns the ranks of `rank`'s domain if `ranks` ranks belong to `domains` domains of equal size,
/// several in each of several domains; otherwise `None`.
fn near(rank: usize, ranks: usize, domains: usize) -> Option<Range<usize>> {
    let size = ranks / domains.max(1);
    if domains < 2 || size < 2 || !ranks.is_multiple_of(domains) {
        return None;
    }
    let first = rank / size * size;
    Some(first..first + size)
}

/// Returns the height of a slot's flag while its rank writes that it is in `generation`.
fn begun(generation: u64) -> u64 {
    generation * PHASES
}

/// Returns the height of a slot's flag once its rank is in `generation`.
fn entered(generation: u64) -> u64 {
    begun(generation) + 1
}

/// Returns the height of a slot's flag once `phase` is reached.
fn stamp(generation: u64, phase: u8) -> u64 {
    entered(generation) + 1 + phase as u64
}

#[cfg(test)]
mod tests;
