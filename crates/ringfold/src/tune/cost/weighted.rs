//! What a `direct` all-reduce costs in which ranks own unequal parts of the vector, and have
//! unequal links.
//!
//! Of a vector of one unit, with `N` ranks, rank `i` that owns the part `w` sends and receives `1 +
//! (N - 2)·w` (its whole input but its own part, and its own sum to all others) and combines `(N -
//! 1)·w`. With a full duplex link of `c` per unit and `g` per unit combined that takes `c + a·w`,
//! where `a = (N - 2)·c + (N - 1)·g`. The slowest rank counts.
//!
//! The slices of a call overlap, so that what a rank sends of one and receives of another goes at
//! the same time. This leaves out latencies: weights are for calls that take long.

#![forbid(unsafe_code)]

/// What a rank was measured at, in picoseconds for each byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// To send one byte and receive one at the same time.
    pub link_ps: f64,
    /// To combine one byte with another.
    pub reduce_ps: f64,
}

/// The least time of a weighted `direct` all-reduce of `bytes` bytes, in picoseconds, latencies
/// left out.
pub fn time_ps(paces: &[Pace], weights: &[u32], bytes: u64) -> f64 {
    let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    let time = |(pace, weight): (&Pace, &u32)| {
        pace.link_ps + growth(pace, paces.len()) * f64::from(*weight) / sum
    };
    let times = paces.iter().zip(weights).map(time);
    times.fold(0.0, f64::max) * bytes as f64
}

/// What owning all of the vector costs a rank beside what it costs without, for each byte.
pub fn growth(pace: &Pace, ranks: usize) -> f64 {
    (ranks as f64 - 2.0) * pace.link_ps + (ranks as f64 - 1.0) * pace.reduce_ps
}
