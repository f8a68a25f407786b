//! A cache of the choices for a communicator's last kinds of calls: a call of a known kind costs a
//! look-up and no decision.
//!
//! A choice depends on the [`ChoiceKey`] of a call, and otherwise on settings that rarely change. A
//! kind fits a word, and so does a choice. A kind's hash determines its place, and a new kind
//! replaces an old one. A reader never waits: it reads a place's version before and after the rest.
//! If the version has changed, or is odd because a thread is writing, the reader makes its own
//! choice.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::request::Request;
use crate::call::Way;
use crate::sync::lock;
use crate::tune::OrderDemand;
use crate::types::{Access, Algorithm, Assignment, Collective, Method};

/// Binary logarithm of the number of places: 6 KiB, and more places than a training job's calls
/// have sizes.
const PLACES_LOG2: u32 = 8;

/// The maximum number of kinds that are logged.
const LOGGED_KINDS_MAX: usize = 1 << 12;

/// Bits of a size in a kind; calls with larger sizes are not remembered.
const BYTES_BITS: u32 = 40;

/// Bits of a group's size in a kind.
const GROUP_BITS: u32 = 8;

const _: () =
    assert!(Collective::ALL.len() <= 16 && Method::ALL.len() < 31 && Algorithm::ALL.len() <= 16);

/// The kind of a call, by which its choice is found: the part of the call on which the choice
/// depends, besides the settings common to all calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChoiceKey(u64);

/// A packed word, whose fields are taken from the lowest bit up.
struct Unpacker(u64);

impl Unpacker {
    #[inline(always)]
    fn take(&mut self, bits: u32) -> u64 {
        let value = self.0 & ((1 << bits) - 1);
        self.0 >>= bits;
        value
    }
}

impl ChoiceKey {
    /// Returns the kind of a `request` of `bytes` bytes, as the tuner counts them; `None` if the
    /// size or the group does not fit.
    #[inline(always)]
    pub fn of(
        request: &Request,
        bytes: u64,
        order: OrderDemand,
        is_weighted: bool,
    ) -> Option<ChoiceKey> {
        if bytes >> BYTES_BITS != 0 || request.group >> GROUP_BITS != 0 {
            return None;
        }
        let algorithm = request
            .options
            .algorithm
            .map_or(0, |asked| asked as u64 + 1);
        let protocol = request.options.protocol.map_or(0, |asked| asked as u64 + 1);
        // From the lowest bit up: group (8 bits), collective (4), form of the counts (2), algorithm
        // (5), protocol (2), weighted (1), size (40), demand on the order (2).
        let word = u64::from(request.group)
            | (request.collective as u64) << 8
            | request.counts.kind() << 12
            | algorithm << 14
            | protocol << 19
            | u64::from(is_weighted) << 21
            | bytes << 22
            | (order as u64) << 62;
        Some(ChoiceKey(word))
    }

    #[inline(always)]
    fn place(self) -> usize {
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES_LOG2)) as usize
    }
}

/// One remembered choice.
#[derive(Debug, Default)]
struct RememberedChoice {
    /// The place's version: odd while a thread writes, 0 if the place is empty.
    version: AtomicU32,
    kind: AtomicU64,
    choice: AtomicU64,
}

/// The choices of the last kinds of calls.
#[derive(Debug)]
pub struct Choices {
    places: Box<[RememberedChoice]>,
    /// The kinds whose choice was logged; empty without a log.
    logged: Mutex<HashSet<ChoiceKey>>,
}

impl Default for Choices {
    fn default() -> Choices {
        Choices {
            places: (0..1 << PLACES_LOG2)
                .map(|_| RememberedChoice::default())
                .collect(),
            logged: Mutex::default(),
        }
    }
}

impl Choices {
    /// Forgets all choices, after a change of the settings behind them. No thread chooses
    /// meanwhile.
    pub fn forget(&self) {
        for place in &self.places {
            // Pairs with the Acquire load in `get`, as the version of an empty place.
            place.version.store(0, Ordering::Release);
        }
    }

    /// Returns the remembered choice for calls of this kind, if there is one.
    #[inline(always)]
    pub fn get(&self, kind: ChoiceKey) -> Option<Way> {
        let place = &self.places[kind.place()];
        // Pairs with the Release store in `put`: a reader that sees a version sees all earlier
        // writes.
        let version = place.version.load(Ordering::Acquire);
        let known = place.kind.load(Ordering::Relaxed);
        let word = place.choice.load(Ordering::Relaxed);
        // Pairs with the Release fence in `put`: a reader that has read a word of a later writer
        // sees that the version has changed.
        fence(Ordering::Acquire);
        let is_whole = version != 0
            && version.is_multiple_of(2)
            && place.version.load(Ordering::Relaxed) == version;
        if is_whole && known == kind.0 {
            return unpack(word);
        }
        None
    }

    /// Marks the choice for this kind as logged; returns whether it must be logged. Called when a
    /// choice is made, never when it is remembered.
    pub fn is_unlogged(&self, kind: ChoiceKey) -> bool {
        let mut logged = lock(&self.logged);
        logged.len() < LOGGED_KINDS_MAX && logged.insert(kind)
    }

    /// Remembers a choice, unless another thread is about to write in the same place.
    pub fn put(&self, kind: ChoiceKey, way: &Way) {
        let Some(word) = pack(way) else {
            return;
        };
        let place = &self.places[kind.place()];
        let version = place.version.load(Ordering::Relaxed);
        // Pairs with the Release store below, of the last writer.
        let taken = place.version.compare_exchange(
            version & !1,
            version | 1,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if taken.is_err() {
            return;
        }
        // Pairs with the Acquire fence in `get`.
        fence(Ordering::Release);
        place.kind.store(kind.0, Ordering::Relaxed);
        place.choice.store(word, Ordering::Relaxed);
        // 0 would mean an empty place. Pairs with the Acquire load in `get`.
        let next = (version | 1).wrapping_add(1).max(2);
        place.version.store(next, Ordering::Release);
    }
}

/// Packs a way into a word; `None` if a field does not fit.
fn pack(way: &Way) -> Option<u64> {
    let registered = way.registered.map_or(0, |assignment| assignment as u64 + 1);
    let fields = [
        (way.algorithm as u64, 4),
        (way.access as u64, 2),
        (way.assignment as u64, 1),
        (u64::from(way.is_inline), 1),
        (way.channels as u64, 7),
        (registered, 2),
        (u64::from(way.reads), 1),
        (u64::from(way.non_temporal_stores), 1),
        (u64::from(way.is_weighted), 1),
        (u64::from(way.is_reproducible), 1),
        (way.slice_bytes as u64 / 64, 41),
    ];
    let above =
        |word, (value, bits): (u64, u32)| (value >> bits == 0).then_some(word << bits | value);
    fields.into_iter().rev().try_fold(0, above)
}

#[inline(always)]
fn unpack(word: u64) -> Option<Way> {
    let mut word = Unpacker(word);
    Some(Way {
        algorithm: Algorithm::from_wire(word.take(4) as u8)?,
        access: Access::from_wire(word.take(2) as u8)?,
        assignment: Assignment::from_wire(word.take(1) as u8)?,
        is_inline: word.take(1) == 1,
        channels: word.take(7) as usize,
        registered: match word.take(2) {
            0 => None,
            wire => Assignment::from_wire(wire as u8 - 1),
        },
        reads: word.take(1) == 1,
        non_temporal_stores: word.take(1) == 1,
        is_weighted: word.take(1) == 1,
        is_reproducible: word.take(1) == 1,
        slice_bytes: word.take(41) as usize * 64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::{CallOptions, Counts};
    use crate::memory::Region;
    use crate::types::{DType, Protocol};

    /// Returns the kind of an all-reduce of `bytes` bytes.
    fn kind(bytes: u64) -> ChoiceKey {
        let request = request(Collective::AllReduce, 1);
        ChoiceKey::of(&request, bytes, OrderDemand::Any, false).expect("a kind")
    }

    fn request(collective: Collective, group: u32) -> Request {
        let counts = Counts::Even(1);
        let nothing = Region::EMPTY;
        Request {
            group,
            ..Request::new(collective, DType::U8, counts, nothing, nothing)
        }
    }

    fn choice(slice_bytes: usize) -> Way {
        Way {
            algorithm: Algorithm::Stragglar,
            access: Access::Messages,
            assignment: Assignment::Owner,
            is_inline: true,
            slice_bytes,
            channels: 64,
            registered: Some(Assignment::Dynamic),
            reads: true,
            non_temporal_stores: true,
            is_weighted: false,
            is_reproducible: false,
        }
    }

    #[test]
    fn what_was_chosen_is_remembered_for_its_kind_only() {
        let choices = Choices::default();
        assert_eq!(choices.get(kind(0)), None);
        let kinds = (0..100_000).map(|bytes| (kind(bytes), choice(64 * (bytes as usize + 1))));
        let kinds: Vec<_> = kinds.collect();
        for (kind, choice) in &kinds {
            choices.put(*kind, choice);
            assert_eq!(choices.get(*kind), Some(*choice));
        }
        let kept = kinds
            .iter()
            .filter_map(|(kind, choice)| Some((choices.get(*kind)?, choice)));
        let kept: Vec<_> = kept.collect();
        assert_eq!(kept.len(), 1 << PLACES_LOG2);
        assert!(kept.iter().all(|(known, choice)| known == *choice));
    }

    #[test]
    fn calls_that_differ_are_of_different_kinds() {
        let base = request(Collective::AllReduce, 1);
        let of = |request: &Request, bytes, is_weighted| {
            ChoiceKey::of(request, bytes, OrderDemand::Any, is_weighted)
        };
        let algorithm = Some(Method::Flat);
        let protocol = Some(Protocol::Ll);
        let counts = Counts::PerRank(vec![1]);
        let in_order = |order| ChoiceKey::of(&base, 8, order, false);
        let kinds = [
            of(&base, 8, false),
            of(&base, 9, false),
            of(&base, 8, true),
            in_order(OrderDemand::Canonical),
            in_order(OrderDemand::CanonicalHalf),
            in_order(OrderDemand::CanonicalQuarter),
            of(&request(Collective::Barrier, 1), 8, false),
            of(&request(Collective::AllReduce, 2), 8, false),
            of(
                &Request {
                    options: CallOptions {
                        algorithm,
                        ..CallOptions::default()
                    },
                    ..base.clone()
                },
                8,
                false,
            ),
            of(
                &Request {
                    options: CallOptions {
                        protocol,
                        ..CallOptions::default()
                    },
                    ..base.clone()
                },
                8,
                false,
            ),
            of(
                &Request {
                    counts,
                    ..base.clone()
                },
                8,
                false,
            ),
        ];
        for (index, kind) in kinds.iter().enumerate() {
            assert!(kind.is_some() && !kinds[..index].contains(kind), "{index}");
        }
        assert_eq!(of(&base, 1 << 40, false), None);
        assert_eq!(of(&request(Collective::AllReduce, 256), 8, false), None);
    }

    #[test]
    fn readers_never_see_half_of_a_choice() {
        let choices = Choices::default();
        // Two kinds that have the same place.
        let one = kind(1);
        let other = (2..).map(kind).find(|other| other.place() == one.place());
        let kinds = [
            (one, choice(64)),
            (other.expect("some kind"), choice(1 << 30)),
        ];
        std::thread::scope(|scope| {
            for turn in 0..2 {
                let (choices, kinds) = (&choices, &kinds);
                scope.spawn(move || {
                    for step in 0..20_000 {
                        let (kind, choice) = &kinds[(step + turn) % 2];
                        choices.put(*kind, choice);
                        for (kind, choice) in kinds {
                            let known = choices.get(*kind);
                            assert!(known.is_none_or(|known| known == *choice));
                        }
                    }
                });
            }
        });
    }
}
