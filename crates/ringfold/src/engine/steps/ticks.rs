//! The ticks at which slices take their rounds, which fix the order of issue on all ranks.
//!
//! A later slice begins before an earlier one ends, so the earlier one waits for it if it cannot
//! begin yet. Where that may be long, because a device brings the data part by part, the slices of
//! a part can end before those of the next begin.

/// The ticks of a call.
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    /// Rounds of a slice, at least 1.
    pub rounds: u32,
    /// Ticks between the starts of consecutive slices.
    pub skew: u32,
    /// Number of slices of a part, if parts do not overlap.
    pub drained: Option<u32>,
}

impl Ticks {
    /// Returns the tick of the first round of `slice`.
    #[inline]
    pub fn begin(&self, slice: u32) -> u64 {
        let skew = u64::from(self.skew);
        match self.drained {
            None => u64::from(slice) * skew,
            Some(slices) => {
                u64::from(slice / slices) * self.period(slices) + u64::from(slice % slices) * skew
            }
        }
    }

    /// Returns the tick of the last round of `slice`.
    #[inline]
    pub fn last(&self, slice: u32) -> u64 {
        self.begin(slice) + u64::from(self.rounds) - 1
    }

    /// Returns the first slice whose last round is not before `tick`.
    pub fn first(&self, tick: u64) -> u32 {
        let (rounds, skew) = (u64::from(self.rounds), u64::from(self.skew));
        // The first of slices that begin at tick 0 and every skew.
        let first = |tick: u64| (tick + 1).saturating_sub(rounds).div_ceil(skew);
        match self.drained {
            None => first(tick) as u32,
            Some(slices) => {
                let part = tick / self.period(slices);
                let within = first(tick - part * self.period(slices));
                (part * u64::from(slices) + within) as u32
            }
        }
    }

    /// Returns the number of ticks of a part of `slices` slices.
    fn period(&self, slices: u32) -> u64 {
        u64::from(slices - 1) * u64::from(self.skew) + u64::from(self.rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_slice_of_a_tick_is_found_by_all_of_them() {
        for rounds in 1..6 {
            for skew in 1..=rounds {
                for drained in [None, Some(1), Some(2), Some(5)] {
                    let ticks = Ticks {
                        rounds,
                        skew,
                        drained,
                    };
                    for tick in 0..60 {
                        let due = (0..).find(|slice| ticks.last(*slice) >= tick);
                        assert_eq!(Some(ticks.first(tick)), due, "{ticks:?}, tick {tick}");
                    }
                }
            }
        }
    }

    #[test]
    fn slices_of_a_drained_part_end_before_the_next_begins() {
        let ticks = Ticks {
            rounds: 7,
            skew: 2,
            drained: Some(3),
        };
        for part in 0..4 {
            let next = ticks.begin(3 * (part + 1));
            assert_eq!(ticks.last(3 * part + 2) + 1, next);
        }
    }
}
