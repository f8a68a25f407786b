//! The order in which the values of several ranks are combined: the *canonical tree*.
//!
//! The tree of one value is the value. The tree of `n` values is the tree of the first `p` joined
//! with the tree of the rest, where `p` is the largest power of two below `n`. So the tree of
//! aligned blocks of a power of two values, each combined by its own tree, is the tree of all
//! values: a result does not depend on the division of values into such blocks.
//!
//! The joins of a tree are a binary counter: a pair of values is a partial result of its own, and
//! two partial results of equally many values become one. At the end, all that is left is joined
//! from last to first. `n` values take `n - 1` joins, as in any other order.

#![forbid(unsafe_code)]

/// One join. Partial results have the numbers of a stack: `level` is the lower of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeJoin {
    /// Partial result `level` = value `first` joined with the next one.
    Pair { first: usize, level: usize },
    /// Partial result `level` is joined with a value.
    Leaf { leaf: usize, level: usize },
    /// Partial result `level` is joined with the next one.
    Partials { level: usize },
    /// The result = partial result 0 joined with a value.
    LastLeaf { leaf: usize },
    /// The result = partial result 0 joined with partial result 1.
    LastPartials,
}

/// Returns the number of partial results of the tree of `count` values, or one more.
#[inline(always)]
pub(super) fn partials(count: usize) -> usize {
    count.ilog2() as usize + 1
}

/// Returns the joins of the tree of `count` values, at least three, in their order.
#[inline(always)]
pub(super) fn joins(count: usize) -> Joins {
    Joins {
        count,
        taken: 0,
        levels: 0,
        merges: 0,
    }
}

/// The joins of a tree, see [`joins`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Joins {
    count: usize,
    /// Number of values that are in partial results.
    taken: usize,
    /// Number of partial results.
    levels: usize,
    /// Number of times that the last two partial results have equally many values.
    merges: u32,
}

impl Iterator for Joins {
    type Item = TreeJoin;

    #[inline(always)]
    fn next(&mut self) -> Option<TreeJoin> {
        let left = self.count - self.taken;
        if self.levels == 0 && left == 0 {
            return None;
        }
        if left > 0 && self.merges > 0 {
            self.merges -= 1;
            self.levels -= 1;
            return Some(TreeJoin::Partials {
                level: self.levels - 1,
            });
        }
        if left > 1 {
            let (first, level) = (self.taken, self.levels);
            self.taken += 2;
            self.levels += 1;
            self.merges = (self.taken / 2).trailing_zeros();
            return Some(TreeJoin::Pair { first, level });
        }
        if left == 1 {
            let leaf = self.taken;
            self.taken += 1;
            if self.levels == 1 {
                self.levels = 0;
                return Some(TreeJoin::LastLeaf { leaf });
            }
            let level = self.levels - 1;
            return Some(TreeJoin::Leaf { leaf, level });
        }
        self.levels -= 1;
        if self.levels == 1 {
            self.levels = 0;
            return Some(TreeJoin::LastPartials);
        }
        Some(TreeJoin::Partials {
            level: self.levels - 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree of values `first..first + count`, as its definition says.
    fn defined(first: usize, count: usize) -> String {
        if count == 1 {
            return first.to_string();
        }
        let power = count.next_power_of_two() / 2;
        let rest = defined(first + power, count - power);
        format!("({}+{rest})", defined(first, power))
    }

    #[test]
    fn the_joins_are_those_of_the_definition() {
        for count in 3..200 {
            let mut partials: Vec<String> = Vec::new();
            let (mut result, mut most) = (None, 0);
            for join in joins(count) {
                assert_eq!(result, None);
                match join {
                    TreeJoin::Pair { first, level } => {
                        partials.truncate(level);
                        most = most.max(level + 1);
                        partials.push(format!("({first}+{})", first + 1));
                    }
                    TreeJoin::Leaf { leaf, level } => {
                        partials[level] = format!("({}+{leaf})", partials[level]);
                    }
                    TreeJoin::Partials { level } => {
                        partials[level] = format!("({}+{})", partials[level], partials[level + 1]);
                    }
                    TreeJoin::LastLeaf { leaf } => {
                        result = Some(format!("({}+{leaf})", partials[0]))
                    }
                    TreeJoin::LastPartials => {
                        result = Some(format!("({}+{})", partials[0], partials[1]));
                    }
                }
            }
            assert_eq!(result, Some(defined(0, count)));
            assert!(most <= super::partials(count));
        }
    }
}
