//! What every way of carrying out a call should cost: the table that a choice is made from.
//!
//! Algorithm × protocol, in microseconds, as NCCL's tuner has it: -1 stands for a way that cannot be gone. Whoever tunes
//! (a rule, a plugin) changes entries that are usable; the least entry is the choice, and of equal ones the first.

#![forbid(unsafe_code)]

use crate::types::{Algorithm, Protocol};

/// What stands for a way that cannot be gone.
pub const UNUSABLE: f32 = -1.0;

/// Costs in microseconds by algorithm and protocol, each in wire order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostTable([[f32; Protocol::ALL.len()]; Algorithm::ALL.len()]);

impl CostTable {
    /// Every entry of every table, in the order in which ties are decided.
    pub fn keys() -> impl Iterator<Item = (Algorithm, Protocol)> {
        let protocols = |algorithm: &'static Algorithm| {
            Protocol::ALL.iter().map(|protocol| (*algorithm, *protocol))
        };
        Algorithm::ALL.iter().flat_map(protocols)
    }

    /// A table in which nothing is usable.
    pub fn unusable() -> CostTable {
        CostTable([[UNUSABLE; Protocol::ALL.len()]; Algorithm::ALL.len()])
    }

    /// The cost of a way; `None` if it cannot be gone.
    pub fn get(&self, algorithm: Algorithm, protocol: Protocol) -> Option<f32> {
        let cost_us = self.0[algorithm as usize][protocol as usize];
        (cost_us >= 0.0).then_some(cost_us)
    }

    /// Sets the cost of a way; what is negative or no number makes it unusable.
    pub fn set(&mut self, algorithm: Algorithm, protocol: Protocol, cost_us: f32) {
        let is_cost = cost_us >= 0.0;
        self.0[algorithm as usize][protocol as usize] = if is_cost { cost_us } else { UNUSABLE };
    }

    /// Prices a way anew, if it is usable; whoever tunes cannot revive what is not. `false` if nothing was changed: the way is
    /// unusable, or `cost_us` is negative or no number.
    pub fn reprice(&mut self, algorithm: Algorithm, protocol: Protocol, cost_us: f32) -> bool {
        let is_repriced = cost_us >= 0.0 && self.get(algorithm, protocol).is_some();
        if is_repriced {
            self.set(algorithm, protocol, cost_us);
        }
        is_repriced
    }

    /// Bars all ways but those that `is_kept` names.
    pub fn retain(&mut self, mut is_kept: impl FnMut(Algorithm, Protocol) -> bool) {
        for (algorithm, protocol) in CostTable::keys() {
            if !is_kept(algorithm, protocol) {
                self.set(algorithm, protocol, UNUSABLE);
            }
        }
    }

    /// The cheapest way, and of equally cheap ones the first; `None` if nothing is usable.
    pub fn best(&self) -> Option<(Algorithm, Protocol)> {
        let mut best: Option<(f32, (Algorithm, Protocol))> = None;
        for (algorithm, costs_us) in Algorithm::ALL.iter().zip(&self.0) {
            for (protocol, cost_us) in Protocol::ALL.iter().zip(costs_us) {
                if *cost_us >= 0.0 && best.is_none_or(|(least_us, _)| *cost_us < least_us) {
                    best = Some((*cost_us, (*algorithm, *protocol)));
                }
            }
        }
        best.map(|(_, way)| way)
    }

    /// The usable ways and what they cost.
    pub fn usable(&self) -> impl Iterator<Item = ((Algorithm, Protocol), f32)> {
        CostTable::keys().filter_map(|way| Some((way, self.get(way.0, way.1)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_usable_way_is_the_choice() {
        let mut table = CostTable::unusable();
        assert_eq!(table.best(), None);
        table.set(Algorithm::Ring, Protocol::Simple, 7.0);
        table.set(Algorithm::Direct, Protocol::Ll, 5.0);
        table.set(Algorithm::Direct, Protocol::ZeroCopy, 5.0);
        assert_eq!(table.best(), Some((Algorithm::Direct, Protocol::Ll)));
        assert_eq!(table.usable().count(), 3);
    }

    #[test]
    fn nothing_unusable_is_revived_and_nothing_absurd_is_taken() {
        let mut table = CostTable::unusable();
        assert!(!table.reprice(Algorithm::Ring, Protocol::Ll, 0.0));
        table.set(Algorithm::Ring, Protocol::Ll, 3.0);
        for absurd in [-1.0, f32::NAN, f32::NEG_INFINITY] {
            assert!(!table.reprice(Algorithm::Ring, Protocol::Ll, absurd));
        }
        assert_eq!(table.get(Algorithm::Ring, Protocol::Ll), Some(3.0));
        assert!(table.reprice(Algorithm::Ring, Protocol::Ll, f32::INFINITY));
        assert_eq!(table.best(), Some((Algorithm::Ring, Protocol::Ll)));
    }

    #[test]
    fn what_is_not_kept_is_barred() {
        let mut table = CostTable::unusable();
        table.set(Algorithm::Ring, Protocol::Simple, 1.0);
        table.set(Algorithm::Tree, Protocol::Simple, 2.0);
        table.retain(|algorithm, _| algorithm == Algorithm::Tree);
        assert_eq!(table.best(), Some((Algorithm::Tree, Protocol::Simple)));
    }
}
