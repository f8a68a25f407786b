//! The checker's knowledge of the content of a chunk.

#![forbid(unsafe_code)]

use crate::random::SplitMix64;

/// The symbolic content of a chunk.
///
/// `sum` adds up a random-looking 128-bit number for each input chunk contained in the value, so it
/// distinguishes multisets of contributions (a collision is as likely as guessing 128 bits).
/// `expression` is a hash of the reduction: equal if the arithmetic is the same up to swapping the
/// two operands, so that the bits are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SymbolicValue {
    /// Number (index) of the input chunk whose contributions the value combines.
    pub chunk: u32,
    /// Sum of the contributions.
    pub sum: u128,
    /// Hash of the expression that combined them.
    pub expression: u64,
}

impl SymbolicValue {
    /// Returns the value of a chunk of a rank's input.
    pub fn input(rank: u32, chunk: u32) -> SymbolicValue {
        let atom = u64::from(rank) << 32 | u64::from(chunk);
        let high = mix(atom ^ 0x5bf0_3635_d2ad_b0a1);
        SymbolicValue {
            chunk,
            sum: u128::from(high) << 64 | u128::from(mix(atom)),
            expression: mix(high),
        }
    }

    /// Combines two values; `None` if they are of different chunks.
    pub fn combined(self, other: SymbolicValue) -> Option<SymbolicValue> {
        let expression = (mix(self.expression).wrapping_add(mix(other.expression)))
            ^ mix(self.expression ^ other.expression);
        (self.chunk == other.chunk).then_some(SymbolicValue {
            chunk: self.chunk,
            sum: self.sum.wrapping_add(other.sum),
            expression: mix(expression),
        })
    }

    /// Combines values in the order of the canonical tree.
    pub fn tree<E>(
        values: &[SymbolicValue],
        combine: &impl Fn(SymbolicValue, SymbolicValue) -> Result<SymbolicValue, E>,
    ) -> Result<SymbolicValue, E> {
        let count = values.len();
        if count == 1 {
            return Ok(values[0]);
        }
        let (first, rest) = values.split_at(count.next_power_of_two() / 2);
        combine(
            SymbolicValue::tree(first, combine)?,
            SymbolicValue::tree(rest, combine)?,
        )
    }

    /// Returns the combination of all ranks' contributions to a chunk in the order of the canonical
    /// tree.
    pub fn canonical(world_size: u32, chunk: u32) -> SymbolicValue {
        let values: Vec<_> = (0..world_size)
            .map(|rank| SymbolicValue::input(rank, chunk))
            .collect();
        let combine = |left: SymbolicValue, right| left.combined(right).ok_or(());
        SymbolicValue::tree(&values, &combine).expect("values of one chunk")
    }

    /// Returns the sum of all ranks' contributions to a chunk.
    pub fn everybody(world_size: u32, chunk: u32) -> u128 {
        let sums = (0..world_size).map(|rank| SymbolicValue::input(rank, chunk).sum);
        sums.fold(0, u128::wrapping_add)
    }
}

/// Hashes a number: every bit of the result depends on every bit of the number.
pub(super) fn mix(number: u64) -> u64 {
    SplitMix64(number).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_two_does_not_matter_but_the_grouping_of_three_does() {
        let [a, b, c] = [0, 1, 2].map(|rank| SymbolicValue::input(rank, 7));
        let combine = |x: SymbolicValue, y: SymbolicValue| x.combined(y).unwrap();
        assert_eq!(combine(a, b), combine(b, a));
        assert_ne!(combine(combine(a, b), c), combine(a, combine(b, c)));
        assert_eq!(combine(combine(a, b), c).sum, combine(a, combine(b, c)).sum);
        assert_ne!(combine(combine(a, a), c).sum, combine(combine(a, b), c).sum);
    }

    #[test]
    fn chunks_do_not_mix() {
        assert_eq!(
            SymbolicValue::input(0, 1).combined(SymbolicValue::input(1, 2)),
            None
        );
    }
}
