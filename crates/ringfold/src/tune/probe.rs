//! Which thresholds are asked of the machine itself when a communicator is made, and what follows from the answers.
//!
//! A derived limit says where two ways should cost the same. Whoever probes carries calls out by both, in turn, at sizes
//! around it (`communicator/probe.rs`); here is what to try and what to conclude, without a clock. Neighbours, frequency
//! and the two speeds of a line between cores shift times by more than the ways differ, but hardly one call against the
//! next. So pairs are counted, not times averaged: where neither way wins nearly all its pairs, the derived limit
//! stands. What two calls cannot tell apart in a few milliseconds is not asked.

use super::Limits;
use crate::types::Collective;

/// A derived limit that is doubted.
#[derive(Clone, Copy, Debug)]
pub struct Doubt {
    /// The limit's name.
    pub name: &'static str,
    /// A collective for which it holds, and which is tried.
    pub collective: Collective,
    /// Whether it is about reading the memory of others, which not everybody may.
    pub is_about_pull: bool,
    limit: fn(&mut Limits) -> &mut u64,
    bound: Bound,
    /// The sizes tried lie between these.
    least: u64,
    most: u64,
}

/// What a limit bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The small sizes' way is taken up to the limit.
    Above,
    /// The large sizes' way is taken from the limit on.
    Below,
}

/// The ways that a limit parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// That of the small sizes.
    Small,
    /// That of the large ones.
    Large,
}

/// At which size pulling is tried: large enough that what it saves is more than what it costs to begin, small enough for a
/// probe.
const PULLED_BYTES: u64 = 1 << 20;

/// What is doubted.
pub const DOUBTS: &[Doubt] = &[
    Doubt {
        name: "one_shot_bytes_max",
        collective: Collective::AllReduce,
        is_about_pull: false,
        limit: |limits| &mut limits.one_shot_bytes_max,
        bound: Bound::Above,
        least: 512,
        most: 64 << 10,
    },
    Doubt {
        name: "pull_bytes_min",
        collective: Collective::AllReduce,
        is_about_pull: true,
        limit: |limits| &mut limits.pull_bytes_min,
        bound: Bound::Below,
        least: PULLED_BYTES,
        most: PULLED_BYTES,
    },
    // Of all copies that may be pulled the one that gains least by it.
    Doubt {
        name: "pull_copy_bytes_min",
        collective: Collective::AllGather,
        is_about_pull: true,
        limit: |limits| &mut limits.pull_copy_bytes_min,
        bound: Bound::Below,
        least: PULLED_BYTES,
        most: PULLED_BYTES,
    },
];

/// Times of one size: those of the small way and of the large way, pair by pair, in any unit.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The size.
    pub bytes: u64,
    /// What was measured.
    pub pairs: Vec<[f64; 2]>,
}

/// Fewer pairs than this say nothing.
const PAIRS_MIN: usize = 4;

/// The part of all pairs that a way must win: with 7 pairs 6, which chance alone does once in 16 times for either.
const WINS_MIN: f64 = 0.8;

impl Doubt {
    /// The sizes to try: the limit, three halvings and two doublings of it, as far as they lie within bounds.
    pub fn sizes(&self, mut limits: Limits) -> Vec<u64> {
        let derived = (*(self.limit)(&mut limits)).clamp(self.least, self.most);
        let sizes = [
            derived / 8,
            derived / 4,
            derived / 2,
            derived,
            derived * 2,
            derived * 4,
        ];
        let is_within = |bytes: &u64| (self.least..=self.most).contains(bytes);
        sizes.into_iter().filter(is_within).collect()
    }

    /// The limits with which every size goes this way.
    pub fn forcing(&self, mut limits: Limits, way: Way) -> Limits {
        *(self.limit)(&mut limits) = match way {
            Way::Small => u64::MAX,
            Way::Large => 0,
        };
        limits
    }

    /// The limits that follow from the answers, which are in the order of [`Doubt::sizes`].
    pub fn settle(&self, mut limits: Limits, answers: &[Answer]) -> Limits {
        let limit = (self.limit)(&mut limits);
        let derived = *limit;
        let by_derivation = |bytes: u64| match self.bound {
            Bound::Above if bytes <= derived => Way::Small,
            Bound::Below if bytes < derived => Way::Small,
            _ => Way::Large,
        };
        let is_small = |answer: &&Answer| {
            answer.verdict().unwrap_or(by_derivation(answer.bytes)) == Way::Small
        };
        let small = answers.iter().take_while(is_small).count();
        let (last_small, first_large) = (answers[..small].last(), answers.get(small));
        *limit = match (self.bound, last_small, first_large) {
            (_, None, None) => derived,
            (Bound::Above, Some(last), None) => derived.max(last.bytes),
            (Bound::Above, Some(last), Some(_)) => last.bytes,
            (Bound::Above, None, Some(first)) => first.bytes / 2,
            (Bound::Below, _, Some(first)) if small > 0 => first.bytes,
            (Bound::Below, _, Some(first)) => derived.min(first.bytes),
            (Bound::Below, Some(last), None) => derived.max(last.bytes.saturating_mul(2)),
        };
        limits
    }
}

impl Answer {
    /// The way that is faster, if one is.
    pub fn verdict(&self) -> Option<Way> {
        let needed = (self.pairs.len() as f64 * WINS_MIN).ceil() as usize;
        let wins = |way: usize| {
            let wins = |pair: &&[f64; 2]| pair[way] < pair[1 - way];
            self.pairs.iter().filter(wins).count()
        };
        match self.pairs.len() {
            0..PAIRS_MIN => None,
            _ if wins(0) >= needed => Some(Way::Small),
            _ if wins(1) >= needed => Some(Way::Large),
            _ => None,
        }
    }

    /// The median time of each way; of no pairs 0.
    pub fn medians(&self) -> [f64; 2] {
        [0, 1].map(|way| {
            let mut times: Vec<f64> = self.pairs.iter().map(|pair| pair[way]).collect();
            times.sort_by(f64::total_cmp);
            times.get(times.len() / 2).copied().unwrap_or(0.0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Machine;
    use crate::tune::limits::NEVER;

    const ONE_SHOT: Doubt = DOUBTS[0];

    fn limits(one_shot_bytes_max: u64) -> Limits {
        Limits {
            one_shot_bytes_max,
            ..Limits::derive(&Machine::here(), 2)
        }
    }

    /// Seven pairs at each size, in which the small way costs what `small` says and the large one 10.
    fn answers(limits: Limits, small: impl Fn(u64) -> f64) -> Vec<Answer> {
        let answer = |bytes| Answer {
            bytes,
            pairs: vec![[small(bytes), 10.0]; 7],
        };
        ONE_SHOT.sizes(limits).into_iter().map(answer).collect()
    }

    #[test]
    fn sizes_lie_around_what_was_derived() {
        let sizes = ONE_SHOT.sizes(limits(8 << 10));
        assert_eq!(
            sizes,
            [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10]
        );
        for extreme in [0, 1, u64::MAX] {
            let sizes = ONE_SHOT.sizes(limits(extreme));
            assert!(
                !sizes.is_empty() && sizes.iter().all(|bytes| (512..=64 << 10).contains(bytes))
            );
        }
    }

    #[test]
    fn the_limit_moves_to_where_the_ways_cross() {
        let derived = limits(8 << 10);
        for (crossing, settled) in [
            (0, 512),
            (3 << 10, 2 << 10),
            (8 << 10, 8 << 10),
            (20 << 10, 16 << 10),
            (1 << 20, 32 << 10),
        ] {
            let small = |bytes| if bytes <= crossing { 5.0 } else { 20.0 };
            let after = ONE_SHOT.settle(derived, &answers(derived, small));
            assert_eq!(after, limits(settled), "crossing at {crossing}");
        }
    }

    #[test]
    fn a_lower_bound_moves_to_where_the_ways_cross() {
        let below = Doubt {
            bound: Bound::Below,
            ..ONE_SHOT
        };
        let derived = limits(8 << 10);
        for (crossing, settled) in [
            (0, 1 << 10),
            (3 << 10, 4 << 10),
            (7 << 10, 8 << 10),
            (1 << 20, 64 << 10),
        ] {
            let small = |bytes| if bytes <= crossing { 5.0 } else { 20.0 };
            let after = below.settle(derived, &answers(derived, small));
            assert_eq!(after, limits(settled), "crossing at {crossing}");
        }
    }

    #[test]
    fn what_is_never_done_is_done_once_it_wins() {
        let doubt = DOUBTS[2];
        let derived = limits(8 << 10);
        assert_eq!(doubt.sizes(derived), [PULLED_BYTES]);
        for (large, settled) in [(5.0, PULLED_BYTES), (10.0, NEVER), (20.0, NEVER)] {
            let answer = Answer {
                bytes: PULLED_BYTES,
                pairs: vec![[10.0, large]; 7],
            };
            let after = doubt.settle(derived, &[answer]);
            assert_eq!(after.pull_copy_bytes_min, settled);
            assert_eq!(after.pull_bytes_min, NEVER);
        }
    }

    #[test]
    fn noise_and_silence_leave_what_was_derived() {
        let derived = limits(8 << 10);
        let mut noisy = answers(derived, |_| 5.0);
        for answer in &mut noisy {
            for pair in answer.pairs.iter_mut().step_by(2) {
                pair.swap(0, 1);
            }
        }
        let mut few = answers(derived, |_| 20.0);
        for answer in &mut few {
            answer.pairs.truncate(PAIRS_MIN - 1);
        }
        for answers in [noisy, few, Vec::new()] {
            assert_eq!(ONE_SHOT.settle(derived, &answers), derived);
        }
    }
}
