//! What every way of carrying out a call should cost: the table that a choice is made from.
//!
//! Method × protocol, in microseconds, as NCCL's tuner has it: -1 stands for an unusable way.
//! Rules and plugins change usable entries only; the smallest entry is the choice, and of equal
//! ones the first.

#![forbid(unsafe_code)]

use crate::types::{Method, Protocol};

/// What stands for an unusable way.
pub const UNUSABLE: f32 = -1.0;

/// Costs in microseconds by algorithm and protocol, each in wire order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostTable([[f32; Protocol::ALL.len()]; Method::ALL.len()]);

impl CostTable {
    /// Every entry of every table, in the order in which ties are decided.
    pub fn keys() -> impl Iterator<Item = (Method, Protocol)> {
        let protocols = |algorithm: &'static Method| {
            Protocol::ALL.iter().map(|protocol| (*algorithm, *protocol))
        };
        Method::ALL.iter().flat_map(protocols)
    }

    /// A table in which nothing is usable.
    pub fn unusable() -> CostTable {
        CostTable([[UNUSABLE; Protocol::ALL.len()]; Method::ALL.len()])
    }

    /// The cost of a way; `None` if it is unusable.
    pub fn get(&self, (method, protocol): (Method, Protocol)) -> Option<f32> {
        let cost_us = self.0[method as usize][protocol as usize];
        (cost_us >= 0.0).then_some(cost_us)
    }

    /// Sets the cost of a way; what is negative or no number makes it unusable.
    pub fn set(&mut self, (method, protocol): (Method, Protocol), cost_us: f32) {
        let is_cost = cost_us >= 0.0;
        self.0[method as usize][protocol as usize] = if is_cost { cost_us } else { UNUSABLE };
    }

    /// Prices a way anew, if it is usable; an unusable one stays unusable. `false` if
    /// nothing was changed: the way is unusable, or `cost_us` is negative or no number.
    pub fn reprice(&mut self, way: (Method, Protocol), cost_us: f32) -> bool {
        let is_repriced = cost_us >= 0.0 && self.get(way).is_some();
        if is_repriced {
            self.set(way, cost_us);
        }
        is_repriced
    }

    /// Bars all ways but those that `is_kept` names.
    pub fn retain(&mut self, mut is_kept: impl FnMut((Method, Protocol)) -> bool) {
        for way in CostTable::keys().filter(|way| !is_kept(*way)) {
            self.set(way, UNUSABLE);
        }
    }

    /// The cheapest way, and of equally cheap ones the first; `None` if nothing is usable.
    pub fn best(&self) -> Option<(Method, Protocol)> {
        let cheapest = self.usable().min_by(|one, other| one.1.total_cmp(&other.1));
        cheapest.map(|(way, _)| way)
    }

    /// The usable ways and what they cost.
    pub fn usable(&self) -> impl Iterator<Item = ((Method, Protocol), f32)> {
        CostTable::keys().filter_map(|way| Some((way, self.get(way)?)))
    }

    /// The usable ways, for an error's text.
    pub fn list(&self) -> String {
        let named = |((method, protocol), _)| format!("{method} ({protocol})");
        self.usable().map(named).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_usable_way_is_the_choice() {
        let mut table = CostTable::unusable();
        assert_eq!(table.best(), None);
        table.set((Method::Ring, Protocol::Simple), 7.0);
        table.set((Method::Direct, Protocol::Ll), 5.0);
        table.set((Method::Direct, Protocol::ZeroCopy), 5.0);
        assert_eq!(table.best(), Some((Method::Direct, Protocol::Ll)));
        assert_eq!(table.usable().count(), 3);
    }

    #[test]
    fn nothing_unusable_is_revived_and_nothing_absurd_is_taken() {
        let mut table = CostTable::unusable();
        assert!(!table.reprice((Method::Ring, Protocol::Ll), 0.0));
        table.set((Method::Ring, Protocol::Ll), 3.0);
        for absurd in [-1.0, f32::NAN, f32::NEG_INFINITY] {
            assert!(!table.reprice((Method::Ring, Protocol::Ll), absurd));
        }
        assert_eq!(table.get((Method::Ring, Protocol::Ll)), Some(3.0));
        assert!(table.reprice((Method::Ring, Protocol::Ll), f32::INFINITY));
        assert_eq!(table.best(), Some((Method::Ring, Protocol::Ll)));
    }

    #[test]
    fn what_is_not_kept_is_barred() {
        let mut table = CostTable::unusable();
        table.set((Method::Ring, Protocol::Simple), 1.0);
        table.set((Method::Tree, Protocol::Simple), 2.0);
        table.retain(|(method, _)| method == Method::Tree);
        assert_eq!(table.best(), Some((Method::Tree, Protocol::Simple)));
    }
}
