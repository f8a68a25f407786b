//! Prices of calls in published memory and in registered buffers.

use super::{Collective, Method, PricedCall};

impl PricedCall<'_> {
    pub(super) fn over_shared_memory(&self) -> f64 {
        let work = match self.way.method() {
            Method::Push => self.pushed(),
            Method::Serve => self.exposed() + self.dynamic(self.constants.served_factor),
            Method::Claim => {
                self.planned() + self.further_slices() + self.dynamic(self.constants.claimed_factor)
            }
            _ => self.published(),
        };
        work + self.fresh_lines()
    }

    /// Returns the time of a slice that devices move: a part of a call that has begun.
    pub(super) fn by_slots(&self) -> f64 {
        self.syncs() + self.moved(self.terms.busiest, self.terms.all) + self.fresh_lines()
    }

    /// Returns the time of a call through published memory, in which each rank does its own part.
    fn published(&self) -> f64 {
        let moved = self.moved(self.terms.busiest, self.terms.all);
        self.begun() + self.syncs() + self.further_slices() + moved
    }

    /// Returns the time of a call in all ranks' registered buffers, in which each rank does its own
    /// part.
    fn pushed(&self) -> f64 {
        let factor = self.constants.pushed_factor;
        let [busiest, all] = [self.terms.busiest, self.terms.all].map(|load| load.times(factor));
        self.exposed() + self.syncs() + self.moved(busiest, all)
    }

    /// Returns the time of dynamically assigned blocks, which the running ranks reduce in about
    /// equal numbers. Work takes longer by `factor`, because blocks change cores.
    fn dynamic(&self, factor: f64) -> f64 {
        let constants = self.constants;
        let (factor, waiting) = match constants.is_oversubscribed() {
            true => (
                factor,
                constants.dynamic_turns * constants.turn_us * constants.load,
            ),
            // Every block changes its core.
            false => (constants.moved_blocks_factor, 2.0 * constants.hop_us),
        };
        let all = self.terms.all;
        constants.claim_us + waiting + self.moved(all.times(1.0 / self.n), all.times(factor))
    }

    /// Returns the cost of a call before it waits for its peers.
    fn begun(&self) -> f64 {
        // Calls of one slice by these methods take the shortest path.
        let shortest = match self.question.collective {
            Collective::AllReduce => Method::OneShot,
            Collective::Reduce => Method::Flat,
            _ => Method::Direct,
        };
        match self.way.method() == shortest && self.slices <= 1.0 {
            true => self.constants.call_us,
            false => self.planned(),
        }
    }

    /// Returns the fixed cost of a call that runs by a plan.
    pub(super) fn planned(&self) -> f64 {
        self.constants.call_us + self.constants.plan_us
    }

    /// Returns the fixed cost of a call in registered buffers.
    fn exposed(&self) -> f64 {
        self.planned() + self.constants.expose_us
    }

    fn further_slices(&self) -> f64 {
        (self.slices - 1.0) * self.constants.slice_us
    }

    /// Returns the time of all synchronisations of all ranks.
    fn syncs(&self) -> f64 {
        let constants = self.constants;
        let hops = self.terms.hops;
        if constants.is_oversubscribed() {
            return hops * constants.turn_us * constants.load;
        }
        let inline_us = match self.way.is_inline {
            true => constants.inline_us,
            false => 0.0,
        };
        let hop_us = (constants.hop_us - inline_us).max(0.0);
        let domains = self.question.domains.max(1) as f64;
        let far = self.n - self.n / domains;
        hops * (hop_us + far * constants.domain_us)
    }

    /// Returns the additional time of reading and overwriting lines that a peer has just written.
    fn fresh_lines(&self) -> f64 {
        let constants = self.constants;
        let line_us = self.size * constants.line_us_per_byte;
        if constants.is_oversubscribed() {
            // Ranks of one core find fresh lines in its cache, unless all of them read the data of
            // all others.
            let share = (self.n - 1.0) / self.n;
            let beyond = (self.terms.fresh - 2.0 * share).max(0.0);
            return beyond * constants.load * constants.shared_core_factor * line_us;
        }
        self.terms.fresh * line_us
    }
}
