//! Groups of ranks that are near each other: on one host, or in one domain of a host.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// The group of each rank. Groups are numbered from 0 in the order of their first ranks. Each has
/// one or more ranks, which need not be consecutive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Groups(
    /// Group numbers by rank; `None` if all ranks, whatever their number, are in one group.
    Option<Arc<[u32]>>,
);

impl Groups {
    /// All ranks in one group.
    pub const ONE: Groups = Groups(None);

    /// Creates the groups of ranks with equal values.
    pub fn new<T: Eq + Hash>(of_ranks: &[T]) -> Groups {
        let mut known = HashMap::new();
        let number = |value| {
            let next = known.len() as u32;
            *known.entry(value).or_insert(next)
        };
        let numbers: Arc<[u32]> = of_ranks.iter().map(number).collect();
        Groups((known.len() > 1).then_some(numbers))
    }

    /// Creates `count` equal groups, in rank order; `None` if `world_size` ranks do not fill them.
    pub fn equal(world_size: u32, count: u32) -> Option<Groups> {
        if count == 0 || !world_size.is_multiple_of(count) {
            return None;
        }
        let size = world_size / count;
        let numbers = (0..world_size).map(|rank| rank / size).collect();
        Some(Groups((count > 1).then_some(numbers)))
    }

    /// Whether the groups are defined for `world_size` ranks.
    pub fn fits(&self, world_size: u32) -> bool {
        let listed = self.0.as_ref();
        listed.is_none_or(|numbers| numbers.len() == world_size as usize)
    }

    /// Returns the number of groups.
    pub fn count(&self) -> u32 {
        let last = self.0.as_ref().and_then(|numbers| numbers.iter().max());
        last.map_or(1, |last| last + 1)
    }

    /// Returns the number of runs of consecutive ranks of one group: the number of groups if their
    /// ranks are consecutive, the number of ranks if they are dealt out in turn.
    pub fn runs(&self) -> u32 {
        let numbers = self.0.as_deref().unwrap_or_default();
        let borders = numbers.windows(2).filter(|pair| pair[0] != pair[1]);
        1 + borders.count() as u32
    }

    /// Returns the number of a rank's group.
    pub fn of(&self, rank: u32) -> u32 {
        self.0.as_ref().map_or(0, |numbers| numbers[rank as usize])
    }

    /// Returns the ranks of each group, ascending.
    pub fn members(&self, world_size: u32) -> Vec<Vec<u32>> {
        let mut members = vec![Vec::new(); self.count() as usize];
        for rank in 0..world_size {
            members[self.of(rank) as usize].push(rank);
        }
        members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_numbered_by_their_first_rank() {
        let groups = Groups::new(&["b", "a", "b", "c"]);
        assert_eq!(groups.count(), 3);
        assert_eq!(groups.members(4), [vec![0, 2], vec![1], vec![3]]);
        assert_eq!(Groups::new(&[7, 7, 7]), Groups::ONE);
        assert_eq!(Groups::ONE.members(2), [[0, 1]]);
    }

    #[test]
    fn equal_groups_are_recognised() {
        let groups = Groups::new(&["x", "x", "y", "y", "z", "z"]);
        assert_eq!(Groups::equal(6, 3), Some(groups.clone()));
        assert_eq!(Groups::equal(6, 4), None);
        assert!(groups.fits(6) && !groups.fits(5) && Groups::ONE.fits(5));
    }

    #[test]
    fn runs_are_counted() {
        let runs = |of_ranks: &[u32]| Groups::new(of_ranks).runs();
        assert_eq!((runs(&[5, 5]), runs(&[0, 0, 1, 1])), (1, 2));
        assert_eq!((runs(&[0, 1, 0, 1]), runs(&[0, 1, 1, 0])), (4, 3));
    }
}
