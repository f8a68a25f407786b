//! Corrections: factors between measured times and the formulas of the cost model.
//!
//! The text form of a correction is `all_reduce.ring.simple@20=1.25`: at 2²⁰ bytes that call takes
//! 1.25 times the formula's time.

#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use crate::types::{Collective, Method, Protocol};

/// Maximum number of points of all corrections together.
const POINTS_MAX: usize = 1024;

/// Maximum factor of a correction; its inverse is the minimum.
const FACTOR_MAX: f64 = 100.0;

/// The largest size of a point, as an exponent of two.
const LOG2_BYTES_MAX: u8 = 40;

/// The subject of a correction: a collective with its algorithm and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The collective.
    pub collective: Collective,
    /// The algorithm and the protocol.
    pub way: (Method, Protocol),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (algorithm, protocol) = self.way;
        write!(f, "{}.{algorithm}.{protocol}", self.collective)
    }
}

impl FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Key, String> {
        let parts: Vec<&str> = text.split('.').collect();
        let [collective, algorithm, protocol] = parts[..] else {
            return Err(format!("`{text}` is not `collective.algorithm.protocol`"));
        };
        let say = |unknown: crate::types::Unknown| unknown.to_string();
        Ok(Key {
            collective: collective.parse().map_err(say)?,
            way: (
                algorithm.parse().map_err(say)?,
                protocol.parse().map_err(say)?,
            ),
        })
    }
}

/// Factors between the times of calls and their formulas, at sizes that are powers of two. Factors
/// are interpolated between points; beyond the points, the factor of the nearest one applies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Corrections(Vec<Point>);

/// A key, the size as an exponent of two, and the factor. Points are sorted by key and size.
type Point = (Key, u8, f64);

impl Corrections {
    /// Returns the factor at a size; 1 if the key has no points.
    pub fn factor(&self, key: Key, bytes: u64) -> f64 {
        let at = (bytes.max(1) as f64).log2();
        let after = self.0.partition_point(|(known, log2_bytes, _)| {
            (*known, f64::from(*log2_bytes)) <= (key, at)
        });
        let is_of_key = |point: &&Point| point.0 == key;
        let below = after.checked_sub(1).map(|index| &self.0[index]);
        match (below.filter(is_of_key), self.0.get(after).filter(is_of_key)) {
            (Some((_, low, from)), Some((_, high, to))) => {
                let part = (at - f64::from(*low)) / f64::from(high - low);
                from + (to - from) * part
            }
            (Some((_, _, factor)), None) | (None, Some((_, _, factor))) => *factor,
            (None, None) => 1.0,
        }
    }

    /// Whether the table has no points.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets the factor at `2^log2_bytes` bytes, clamped to its bounds.
    pub fn set(&mut self, key: Key, log2_bytes: u8, factor: f64) {
        let factor = factor.clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
        match self.place(key, log2_bytes) {
            Ok(index) => self.0[index].2 = factor,
            Err(index) => self.0.insert(index, (key, log2_bytes, factor)),
        }
    }

    /// Returns all points, sorted by key and size.
    pub fn points(&self) -> &[Point] {
        &self.0
    }

    /// Adds a point from text: `name` is `key@log2_bytes`, `value` the factor.
    ///
    /// # Errors
    /// A text for an unknown name, a number out of bounds, a duplicate, or one point too many.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), String> {
        let (key, log2_bytes) = name
            .split_once('@')
            .ok_or_else(|| format!("`{name}` is not a correction, `key@log2_bytes`"))?;
        let of = key.parse::<Key>()?;
        let at = log2_bytes.parse().ok().filter(|at| *at <= LOG2_BYTES_MAX);
        let at = at.ok_or_else(|| format!("{key}: `{log2_bytes}` is not 0 to {LOG2_BYTES_MAX}"))?;
        let is_factor = |factor: &f64| (1.0 / FACTOR_MAX..=FACTOR_MAX).contains(factor);
        let factor = value.parse().ok().filter(is_factor).ok_or_else(|| {
            let least = 1.0 / FACTOR_MAX;
            format!("{key}: the factor `{value}` is not {least} to {FACTOR_MAX}")
        })?;
        let Err(index) = self.place(of, at) else {
            return Err(format!("duplicate entry `{name}`"));
        };
        if self.0.len() == POINTS_MAX {
            return Err(format!("more than {POINTS_MAX} corrections"));
        }
        self.0.insert(index, (of, at, factor));
        Ok(())
    }

    /// Returns the index of a point, or the index at which to insert it.
    fn place(&self, key: Key, log2_bytes: u8) -> Result<usize, usize> {
        let of = |(known, at, _): &Point| (*known, *at);
        self.0.binary_search_by_key(&(key, log2_bytes), of)
    }
}

/// Writes the entries that [`Corrections::add`] reads, separated by commas. A precision applies to
/// the factors.
impl fmt::Display for Corrections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, log2_bytes, factor)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{key}@{log2_bytes}=")?;
            factor.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Key {
        "all_reduce.ring.simple".parse().expect("a key")
    }

    #[test]
    fn a_correction_is_interpolated_between_its_points() {
        let mut corrections = Corrections::default();
        assert_eq!(corrections.factor(ring(), 1 << 20), 1.0);
        corrections.set(ring(), 10, 2.0);
        corrections.set(ring(), 12, 4.0);
        for (bytes, factor) in [
            (0, 2.0),
            (8, 2.0),
            (1 << 10, 2.0),
            (1 << 11, 3.0),
            (1 << 12, 4.0),
            (u64::MAX, 4.0),
        ] {
            assert_eq!(corrections.factor(ring(), bytes), factor, "{bytes} bytes");
        }
        corrections.set(ring(), 12, 1.0);
        assert_eq!(corrections.factor(ring(), 1 << 12), 1.0);
    }
}
