//! The cost table: the modelled cost of every way of a call, from which a way is chosen.
//!
//! Method × protocol, in microseconds, as in NCCL's tuner: -1 marks an unusable way. Rules and
//! plugins change usable entries only. The cheapest entry is the choice, and the first of equal
//! entries.

#![forbid(unsafe_code)]

use crate::types::{Method, Protocol};

/// The entry of an unusable way.
pub const UNUSABLE: f32 = -1.0;

/// Costs in microseconds by algorithm and protocol, each in wire order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostTable([[f32; Protocol::ALL.len()]; Method::ALL.len()]);

impl CostTable {
    /// Returns the keys of all entries, in the order in which ties are decided.
    pub fn keys() -> impl Iterator<Item = (Method, Protocol)> {
        let protocols = |algorithm: &'static Method| {
            Protocol::ALL.iter().map(|protocol| (*algorithm, *protocol))
        };
        Method::ALL.iter().flat_map(protocols)
    }

    /// Returns a table without usable ways.
    pub fn unusable() -> CostTable {
        CostTable([[UNUSABLE; Protocol::ALL.len()]; Method::ALL.len()])
    }

    /// Returns the cost of a way; `None` if it is unusable.
    pub fn get(&self, (method, protocol): (Method, Protocol)) -> Option<f32> {
        let cost_us = self.0[method as usize][protocol as usize];
        (cost_us >= 0.0).then_some(cost_us)
    }

    /// Sets the cost of a way; a negative cost or NaN makes the way unusable.
    pub fn set(&mut self, (method, protocol): (Method, Protocol), cost_us: f32) {
        let is_cost = cost_us >= 0.0;
        self.0[method as usize][protocol as usize] = if is_cost { cost_us } else { UNUSABLE };
    }

    /// Changes the cost of a usable way; an unusable way stays unusable. Returns `false` if the way
    /// is unusable, or `cost_us` is negative or NaN.
    pub fn reprice(&mut self, way: (Method, Protocol), cost_us: f32) -> bool {
        let is_repriced = cost_us >= 0.0 && self.get(way).is_some();
        if is_repriced {
            self.set(way, cost_us);
        }
        is_repriced
    }

    /// Bars all ways for which `is_kept` returns `false`.
    pub fn retain(&mut self, mut is_kept: impl FnMut((Method, Protocol)) -> bool) {
        for way in CostTable::keys().filter(|way| !is_kept(*way)) {
            self.set(way, UNUSABLE);
        }
    }

    /// Returns the cheapest usable way, and the first of equally cheap ones; `None` if no way is
    /// usable.
    pub fn best(&self) -> Option<(Method, Protocol)> {
        let cheapest = self.usable().min_by(|one, other| one.1.total_cmp(&other.1));
        cheapest.map(|(way, _)| way)
    }

    /// Returns the usable ways and their costs.
    pub fn usable(&self) -> impl Iterator<Item = ((Method, Protocol), f32)> {
        CostTable::keys().filter_map(|way| Some((way, self.get(way)?)))
    }

    /// Returns the usable ways as text for an error.
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
