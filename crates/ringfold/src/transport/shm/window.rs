//! Published memory in a segment: each rank copies into its own slots, and all ranks of the host read them. Where a schedule
//! says that one peer alone reads a part, that peer may also overwrite it (`GiveBack`), until it raises its own flag. For the same
//! reason, that lines are best written by whoever has read them, two ranks may trade slots (`engine::slots`).
//!
//! A slot's stamp counts up through generations and, within one, from its beginning through the phases. Whoever sees a stamp also
//! sees what was published before it. A slot is used again once all ranks have finished its generation; each rank says
//! so in one counter of its own.
//!
//! One reader in another domain (of another last-level cache, or on another socket) slows all others who look at a line down
//! several times over: 0.22 to 0.82 µs for 4 bytes from one rank to 24 of its socket when one of the other socket joins them
//! (published by the authors of XHC, 2023; not measured here). So where ranks sit in several domains, each writes its head
//! twice: for its own domain, and then, behind the payload, for all others. Where they do not, there is one head and one store.

use std::ops::Range;
use std::sync::Arc;

use super::claims;
use super::flag;
use super::segment::{Segment, SlotHead};
use crate::call::{CALL_BYTES, Call};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::sync::Ordering;
use crate::transport::{Windows, mismatch};

/// Phases of a generation, at most.
const PHASES: u64 = 8;

/// The windows of one rank's host.
#[derive(Debug)]
pub struct SharedWindows {
    segment: Arc<Segment>,
    rank: usize,
    /// Every peer has finished all generations below this one, as far as was seen.
    all_finished: u64,
    /// The generation whose call stands in this rank's slot head, plus one.
    headed: u64,
    /// The ranks of this rank's domain, which look at the same heads; nothing where all ranks do.
    near: Option<Range<usize>>,
}

impl SharedWindows {
    /// The windows as `rank` (its number on this host) uses them.
    pub fn new(segment: Arc<Segment>, rank: usize) -> SharedWindows {
        SharedWindows {
            near: None,
            segment,
            rank,
            all_finished: 0,
            headed: 0,
        }
    }

    /// Says that the ranks sit in so many domains of equal size, in rank order, before anything is published. The same on
    /// all ranks.
    pub fn set_domains(&mut self, domains: usize) {
        self.near = near(self.rank, self.segment.shape().ranks, domains);
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.segment.shape().ranks).filter(move |peer| *peer != rank)
    }

    #[inline]
    fn slot(&self, generation: u64) -> usize {
        // A power of two, so that this is no division.
        (generation & (self.segment.shape().slots as u64 - 1)) as usize
    }

    /// The head of a peer's slot that this rank looks at.
    #[inline(always)]
    fn peers_head(&self, peer: usize, generation: u64) -> &SlotHead {
        let slot = self.slot(generation);
        match &self.near {
            Some(near) if !near.contains(&peer) => self.segment.far_head(peer, slot),
            _ => self.segment.slot_head(peer, slot),
        }
    }

    /// Has `change` change the heads of this rank's slot: what its own domain looks at comes first.
    #[inline(always)]
    fn change_heads(&self, generation: u64, change: impl Fn(&SlotHead)) {
        let slot = self.slot(generation);
        change(self.segment.slot_head(self.rank, slot));
        if self.near.is_some() {
            change(self.segment.far_head(self.rank, slot));
        }
    }

    #[inline(always)]
    fn raise(&self, generation: u64, height: u64) {
        self.change_heads(generation, |head| flag::raise(&head.stamp, height));
    }

    fn finished(&self, peer: usize) -> u64 {
        // Once it is seen, the peer's reads of the slots are over.
        flag::height(self.segment.finished(peer))
    }

    /// Writes this rank's call into its slot's head, once a generation. The next raise of the flag makes it visible.
    #[inline(always)]
    fn head(&mut self, generation: u64, call: &Call) {
        if self.headed == generation + 1 {
            return;
        }
        self.headed = generation + 1;
        let words = call.words();
        self.change_heads(generation, |head| {
            // A peer may still compare the call that stands here, see `verify`.
            flag::begin(&head.stamp, begun(generation));
            for (place, word) in head.call.iter().zip(words) {
                // Made visible by the flag.
                place.store(word, Ordering::Relaxed);
            }
        });
    }

    #[inline(always)]
    fn compare(&self, peer: usize, generation: u64, call: &Call) -> Result<()> {
        let head = self.peers_head(peer, generation);
        // Ordered by the flag, which was seen raised before.
        let theirs = || head.call.iter().map(|word| word.load(Ordering::Relaxed));
        // Word by word: an array compared as a whole is first stored, and then loaded wider than it was stored.
        if theirs()
            .zip(call.words())
            .fold(0, |differs, (word, own)| differs | word ^ own)
            == 0
        {
            return Ok(());
        }
        let mut words = [0; CALL_BYTES / 8];
        words.iter_mut().zip(theirs()).for_each(|(w, t)| *w = t);
        Err(self.complain(peer, words, call))
    }

    #[inline]
    fn ring_all(&self) {
        for peer in self.peers() {
            self.segment.doorbell(peer).ring();
        }
    }

    #[cold]
    fn complain(&self, peer: usize, words: [u64; 3], call: &Call) -> Error {
        let mut bytes = [0; CALL_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        match Call::decode(&bytes) {
            Some(theirs) => mismatch([self.rank, peer], [call, &theirs]),
            None => Error::Corrupt {
                peer,
                what: "a published call that means nothing".into(),
                site: None,
            },
        }
    }
}

/// The ranks of `rank`'s domain where `ranks` ranks sit in `domains` domains of equal size, several in each of several
/// domains; otherwise nothing.
fn near(rank: usize, ranks: usize, domains: usize) -> Option<Range<usize>> {
    let size = ranks / domains.max(1);
    if domains < 2 || size < 2 || !ranks.is_multiple_of(domains) {
        return None;
    }
    let first = rank / size * size;
    Some(first..first + size)
}

/// How high a slot's flag is while its rank writes down that it is in `generation`.
fn begun(generation: u64) -> u64 {
    generation * PHASES
}

/// How high a slot's flag is once its rank is in `generation`.
fn entered(generation: u64) -> u64 {
    begun(generation) + 1
}

/// How high it is once `phase` is reached.
fn stamp(generation: u64, phase: u8) -> u64 {
    entered(generation) + 1 + phase as u64
}

impl Windows for SharedWindows {
    fn slots(&self) -> usize {
        self.segment.shape().slots
    }

    fn slot_bytes(&self) -> usize {
        self.segment.shape().slot_bytes
    }

    fn is_free(&mut self, generation: u64) -> bool {
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

    fn withdraw(&self) {
        // Before whatever the owner writes to memory that a peer may still read.
        flag::begin(self.segment.withdrawn(self.rank), 1);
    }

    fn has_withdrawn(&self, peer: usize) -> bool {
        flag::recheck(self.segment.withdrawn(peer)) != 0
    }

    #[inline]
    fn prepare(&mut self, generation: u64, bytes: usize) {
        let slot = self.slot(generation);
        self.segment
            .slot_start(self.rank, slot, bytes)
            .prefetch_for_writing();
    }

    #[inline]
    fn attach(&mut self, generation: u64, words: &[u64]) {
        self.change_heads(generation, |head| {
            for (place, word) in head.attached.iter().zip(words) {
                // Made visible by the flag.
                place.store(*word, Ordering::Relaxed);
            }
        });
    }

    #[inline]
    fn attached(&self, peer: usize, generation: u64, word: usize) -> u64 {
        let head = self.peers_head(peer, generation);
        // Ordered by the flag, which was seen raised before.
        head.attached[word].load(Ordering::Relaxed)
    }

    fn target(&mut self, generation: u64, range: std::ops::Range<usize>) -> Region {
        let slot = self.segment.slot(self.rank, self.slot(generation));
        slot.part(range)
    }

    fn enter(&mut self, generation: u64, call: &Call) {
        self.head(generation, call);
        // Nobody sleeps for this alone, so nobody is woken.
        self.raise(generation, entered(generation));
    }

    #[inline]
    fn publish(&mut self, generation: u64, phase: u8, call: &Call) -> Result<()> {
        self.publish_quietly(generation, phase, call)?;
        self.ring_all();
        Ok(())
    }

    #[inline]
    fn publish_quietly(&mut self, generation: u64, phase: u8, call: &Call) -> Result<()> {
        assert!(phase as u64 + 2 < PHASES, "phase {phase}");
        self.head(generation, call);
        self.raise(generation, stamp(generation, phase));
        Ok(())
    }

    fn claim(&mut self, generation: u64, blocks: u32) -> Option<u32> {
        let [claimed, _] = self.segment.desk(self.slot(generation));
        let block = claims::claim(claimed, generation, blocks)?;
        flag::raise(self.segment.claimed(self.rank), generation + 1);
        Some(block)
    }

    fn claim_of(&mut self, home: usize, generation: u64, blocks: u32) -> Option<u32> {
        let block = claims::claim(self.segment.shared_out(home), generation, blocks)?;
        flag::raise(self.segment.claimed(self.rank), generation + 1);
        Some(block)
    }

    fn complete(&mut self, generation: u64, blocks: u32) {
        let [_, complete] = self.segment.desk(self.slot(generation));
        let is_last = claims::complete(complete, generation, blocks);
        flag::raise(self.segment.claimed(self.rank), 0);
        if is_last {
            self.ring_all();
        }
    }

    fn is_complete(&self, generation: u64, blocks: u32) -> bool {
        let [_, complete] = self.segment.desk(self.slot(generation));
        claims::is_complete(complete, generation, blocks)
    }

    fn claimants(&self, generation: u64) -> Vec<usize> {
        let has_claimed =
            |peer: &usize| flag::height(self.segment.claimed(*peer)) == generation + 1;
        self.peers().filter(has_claimed).collect()
    }

    fn finish_quietly(&mut self, generation: u64) {
        flag::raise(self.segment.finished(self.rank), generation + 1);
    }

    fn entered(&mut self, peer: usize, generation: u64) -> Option<Call> {
        let head = self.peers_head(peer, generation);
        if flag::height(&head.stamp) < entered(generation) {
            return None;
        }
        // Ordered by the flag, and the peer writes its call again only after this rank has finished the generation.
        let mut bytes = [0; CALL_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(&head.call) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        Call::decode(&bytes)
    }

    #[inline(always)]
    fn has_reached(
        &mut self,
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
        self.compare(peer, generation, call)?;
        Ok(height >= stamp(generation, phase))
    }

    fn verify(&mut self, generation: u64, call: &Call) -> Result<bool> {
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
            let compared = self.compare(peer, generation, call);
            // The peer may have gone on meanwhile; then what was compared may be its next call.
            if is_same_generation(flag::recheck(&head.stamp)) {
                compared?;
            }
        }
        Ok(are_all_there)
    }

    fn view(&self, peer: usize, generation: u64, range: Range<usize>) -> Region {
        self.segment.slot(peer, self.slot(generation)).part(range)
    }

    fn behind(&self, generation: u64) -> Vec<usize> {
        let slots = self.slots() as u64;
        self.peers()
            .filter(|peer| self.finished(*peer) + slots <= generation)
            .collect()
    }

    fn finish(&mut self, generation: u64) {
        self.finish_quietly(generation);
        self.ring_all();
    }

    fn finish_heard(&mut self, generation: u64) {
        flag::raise(self.segment.finished(self.rank), generation + 1);
        // Whoever entered this generation has finished those before it, so nobody's counter need be read for that.
        self.all_finished = self.all_finished.max(generation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::layout::equal_domains;
    use crate::topology::layout::tests::{EPYC, GRACE, SMALL, XEON};

    #[test]
    fn near_are_the_bound_ranks_of_the_same_cache() {
        let machines = [
            (XEON, "xeon", vec![7, 48, 96]),
            (EPYC, "epyc", vec![2, 16, 20, 64, 128]),
            (GRACE, "grace", vec![72]),
            (SMALL, "small", vec![2]),
        ];
        for (machine, name, worlds) in machines {
            let layout = machine.layout(&format!("near-{name}"));
            for ranks in worlds {
                let of_rank: Vec<_> = (0..ranks)
                    .map(|rank| layout.domain(&layout.first(rank, ranks)))
                    .collect();
                let domains = equal_domains(&of_rank);
                for rank in 0..ranks {
                    let near = near(rank, ranks, domains);
                    let is_divided = domains > 1 && domains < ranks;
                    for peer in 0..ranks {
                        let is_near = !is_divided || of_rank[peer] == of_rank[rank];
                        assert_eq!(
                            near.as_ref().is_none_or(|near| near.contains(&peer)),
                            is_near,
                            "{name}, {ranks} ranks"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn ranks_of_another_domain_look_at_lines_of_their_own() {
        let shape = super::super::Shape::new(4, 1, 1 << 20);
        let (segment, _fd) = Segment::create(shape).expect("shared memory");
        let mut windows: Vec<_> = (0..4)
            .map(|rank| SharedWindows::new(segment.clone(), rank))
            .collect();
        for window in &mut windows {
            window.set_domains(2);
        }
        let place = |rank: usize, peer| std::ptr::from_ref(windows[rank].peers_head(peer, 5));
        assert_eq!(place(0, 1), place(1, 1));
        assert_eq!(place(2, 1), place(3, 1));
        assert_ne!(place(0, 1), place(2, 1));
    }
}
