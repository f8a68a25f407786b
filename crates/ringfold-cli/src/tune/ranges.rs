//! Ranges of sizes: the sizes for which a rule holds if only some sizes were measured.

use std::fmt::{self, Display, Formatter};

/// Sizes from `min` to `max`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    pub min: u64,
    pub max: u64,
}

/// The ranges of `--no-auto-ranges`.
pub const FIXED: [Range; 5] = [
    Range::new(0, 1024),
    Range::new(1025, 65536),
    Range::new(65537, 1 << 20),
    Range::new((1 << 20) + 1, 16 << 20),
    Range::new((16 << 20) + 1, u64::MAX),
];

impl Range {
    pub const fn new(min: u64, max: u64) -> Range {
        Range { min, max }
    }

    pub fn holds(self, bytes: u64) -> bool {
        (self.min..=self.max).contains(&bytes)
    }

    /// Whether `other` begins where this range ends.
    pub fn meets(self, other: Range) -> bool {
        self.max.checked_add(1) == Some(other.min)
    }
}

/// Formats a range as Python prints a pair.
impl Display for Range {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "({}, {})", self.min, self.max)
    }
}

/// Returns a range around each size, ending half way to the next size; the first begins at 0, and
/// the last has no end. `sizes` are ascending.
pub fn around(sizes: &[u64]) -> Vec<Range> {
    let mut min = 0;
    let mut ranges = Vec::with_capacity(sizes.len());
    for (index, &size) in sizes.iter().enumerate() {
        let max = match sizes.get(index + 1) {
            Some(&next) => size.midpoint(next),
            None => u64::MAX,
        };
        ranges.push(Range { min, max });
        min = max.saturating_add(1);
    }
    ranges
}

/// Parses `min-max,min-max,…`: ascending ranges without overlap.
pub fn parse(text: &str) -> Option<Vec<Range>> {
    let ranges: Option<Vec<Range>> = text
        .split(',')
        .map(|range| {
            let (min, max) = range.split_once('-')?;
            let range = Range::new(min.trim().parse().ok()?, max.trim().parse().ok()?);
            (range.min <= range.max).then_some(range)
        })
        .collect();
    ranges.filter(|ranges| ranges.windows(2).all(|pair| pair[0].max < pair[1].min))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_around_sizes_leave_no_gap_and_have_no_end() {
        let ranges = around(&[1024, 32768, 1 << 20]);
        assert_eq!(
            ranges,
            [
                Range::new(0, 16896),
                Range::new(16897, 540_672),
                Range::new(540_673, u64::MAX)
            ]
        );
        assert!(ranges.windows(2).all(|pair| pair[0].meets(pair[1])));
        assert_eq!(around(&[8]), [Range::new(0, u64::MAX)]);
        assert_eq!(around(&[u64::MAX - 1, u64::MAX]).len(), 2);
        assert!(around(&[]).is_empty());
    }

    #[test]
    fn ranges_are_given_as_pairs() {
        assert_eq!(
            parse("0-8, 9-100").unwrap(),
            [Range::new(0, 8), Range::new(9, 100)]
        );
        for text in ["", "8", "8-", "8-4", "0-8,8-9", "a-b", "0-8,"] {
            assert!(parse(text).is_none(), "{text}");
        }
    }
}
