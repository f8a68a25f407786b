//! Statistics of measured times, for the modules that measure.
//!
//! Times on a shared machine follow no known distribution, and have a long tail. So a time is the
//! [`median`] of repetitions, and two ways are compared by [`Pairs`] that were measured in
//! alternation, under the same conditions.
//!
//! | measured by | derived from the medians |
//! |---|---|
//! | `ringfold tune calibrate` | [`calibrate`]: constants of the cost model, and corrections |
//! | joining | [`probe`](super::probe): corrections of one way |
//! | `Communicator::rebalance` | [`weights`](super::weights): each rank's share |
//! | `ringfold tune calibrate --rows` | [`least_squares`]: constants of links and reductions |

#![forbid(unsafe_code)]

pub mod calibrate;
pub mod least_squares;

/// Minimum number of pairs for a conclusion.
pub const PAIRS_MIN: usize = 4;

/// Share of all pairs that a way must win: 6 of 7 pairs, which chance alone does once in 16 times
/// for either way.
const WINS_MIN: f64 = 0.8;

/// Returns the median of the numbers, the lower of two middle ones; 0 without numbers.
pub fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len().saturating_sub(1) / 2;
    sorted.get(middle).copied().unwrap_or(0.0)
}

/// Times of two ways that were measured in alternation, in any unit.
#[derive(Clone, Debug, Default)]
pub struct Pairs(pub Vec<[f64; 2]>);

impl Pairs {
    /// Returns the median time of each way.
    pub fn medians(&self) -> [f64; 2] {
        [0, 1].map(|way| median(self.0.iter().map(|pair| pair[way])))
    }

    /// Whether one of the ways is clearly faster.
    pub fn is_clear(&self) -> bool {
        let needed = (self.0.len() as f64 * WINS_MIN).ceil() as usize;
        self.0.len() >= PAIRS_MIN && [0, 1].iter().any(|way| self.wins(*way) >= needed)
    }

    /// Whether the first way was faster in every pair.
    pub fn is_first_always_faster(&self) -> bool {
        self.wins(0) == self.0.len()
    }

    /// Returns the number of pairs in which a way was the faster one.
    fn wins(&self, way: usize) -> usize {
        let pairs = self.0.iter();
        pairs.filter(|pair| pair[way] < pair[1 - way]).count()
    }
}
