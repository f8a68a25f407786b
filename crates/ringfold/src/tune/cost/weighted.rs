//! The cost of a `direct` all-reduce in which ranks own unequal parts of the vector, and have
//! unequal links.
//!
//! For a vector of one unit and `N` ranks, rank `i`, which owns the part `w`, sends and receives
//! `1 + (N - 2)·w`: its input without its own part, and its own sum to all others. The rank reduces
//! `(N - 1)·w`. With a full-duplex link of `c` per unit and `g` per reduced unit, that takes
//! `c + a·w`, where `a = (N - 2)·c + (N - 1)·g`. The slowest rank counts.
//!
//! The slices of a call overlap, so a rank sends one slice while it receives another. Latencies are
//! omitted: weights are for calls that take long.

#![forbid(unsafe_code)]

/// The measured speed of a rank, in picoseconds per byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankSpeed {
    /// Time to send one byte and receive one at the same time.
    pub link_ps: f64,
    /// Time to reduce one byte with another.
    pub reduce_ps: f64,
}

/// Returns the minimum time of a weighted `direct` all-reduce of `bytes` bytes, in picoseconds,
/// without latencies.
pub fn time_ps(paces: &[RankSpeed], weights: &[u32], bytes: u64) -> f64 {
    let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    let time = |(pace, weight): (&RankSpeed, &u32)| {
        pace.link_ps + growth(pace, paces.len()) * f64::from(*weight) / sum
    };
    let times = paces.iter().zip(weights).map(time);
    times.fold(0.0, f64::max) * bytes as f64
}

/// Returns the additional cost per byte of a rank that owns the whole vector: the formula's `a`.
pub fn growth(pace: &RankSpeed, ranks: usize) -> f64 {
    (ranks as f64 - 2.0) * pace.link_ps + (ranks as f64 - 1.0) * pace.reduce_ps
}
