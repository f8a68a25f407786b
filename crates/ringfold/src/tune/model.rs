//! The cost model: the predicted time of a call by each way, from the terms of its algorithm and
//! the constants of the machine and the network.
//!
//! # Model
//!
//! A call has a fixed cost, waits for its hops, and moves and reduces bytes. The table of
//! [`terms`](super::terms) has the hops and bytes of each algorithm; the way determines the number
//! of slices.
//!
//! If every rank has a core, the terms of the busiest rank are the critical path, and the time is
//! their sum. If ranks outnumber the cores of their machine (`load` > 1), ranks wait for their
//! turn, and the same few cores do the work of all ranks. The time is then the sum over all ranks
//! divided by the cores, but at least that of the busiest rank alone. A schedule with few messages
//! then wins, however its ranks depend on each other.
//!
//! Published memory is priced by level. Cache lines that a peer has just written arrive more slowly
//! than a rank's own. Data that fits the caches moves at the cores' rate; other data shares the
//! host's memory port.
//!
//! [`Corrections`](super::corrections::Corrections) multiply the times of inaccurate formulas.
//! Prices rank ways; they do not promise times.
//!
//! The model is pure: no I/O, no clock, a few hundred nanoseconds for a whole table.

#![forbid(unsafe_code)]

mod messages;
mod shared;

use super::Question;
use super::constants::Constants;
use super::corrections::Key;
use super::terms::{CostTerms, Load, TermParameters};
use crate::call::Way;
use crate::schedule::Access;
use crate::types::{Collective, Method};

/// Returns the predicted time of `question` by `way`, in microseconds: finite and positive. The
/// price of an unusable way is meaningless.
pub fn price(question: &Question, way: &Way, constants: &Constants) -> f32 {
    let call = PricedCall::new(question, way, constants);
    let time_us = match way.access {
        _ if question.world_size <= 1 => constants.call_us + call.size * constants.copy_us_per_byte,
        Access::Messages => call.over_messages(),
        Access::Slots => return call.by_slots() as f32,
        _ => call.over_shared_memory(),
    };
    let key = Key {
        collective: question.collective,
        way: (way.method(), way.protocol()),
    };
    let corrected = time_us * constants.corrections.factor(key, question.bytes);
    // Absurdly large times stay finite.
    (corrected as f32).clamp(f32::MIN_POSITIVE, f32::MAX)
}

/// A call by one way.
struct PricedCall<'a> {
    question: &'a Question,
    way: &'a Way,
    constants: &'a Constants,
    case: TermParameters,
    terms: CostTerms,
    /// The number of ranks.
    n: f64,
    /// Bytes of the call.
    size: f64,
    slices: f64,
}

impl PricedCall<'_> {
    fn new<'a>(question: &'a Question, way: &'a Way, constants: &'a Constants) -> PricedCall<'a> {
        let case = TermParameters {
            collective: question.collective,
            method: way.method(),
            access: way.access,
            world_size: question.world_size as u32,
            hosts: question.hosts as u32,
            runs: question.runs.max(question.hosts) as u32,
        };
        let mut terms = CostTerms::of(case).unwrap_or_default();
        if way.is_reproducible && way.method() == Method::Hierarchical && question.hosts > 1 {
            terms.exchange_in_order(question.collective, question.order.width());
        }
        PricedCall {
            question,
            way,
            constants,
            terms,
            case,
            n: question.world_size as f64,
            size: question.bytes as f64,
            slices: slices(question, way),
        }
    }

    /// Returns the time of copying a byte within the caches, with the slowdown of shared cores.
    fn copy_us_per_byte(&self) -> f64 {
        self.constants.copy_us_per_byte * self.shared_core_factor()
    }

    /// Returns the time of reducing a byte within the caches, with the slowdown of shared cores.
    fn reduce_us_per_byte(&self) -> f64 {
        self.constants.reduce_us_per_byte * self.shared_core_factor()
    }

    fn shared_core_factor(&self) -> f64 {
        match self.constants.is_oversubscribed() {
            true => self.constants.shared_core_factor,
            false => 1.0,
        }
    }

    /// Returns the time of work on the available cores, from the busiest rank's time and that of
    /// all ranks together.
    fn by_cores(&self, busiest: f64, all: f64) -> f64 {
        let cores = self.n / self.constants.load;
        busiest.max(all / cores)
    }

    /// Returns the time of copying and reducing the vector, from the loads of the busiest rank and
    /// of all ranks.
    fn moved(&self, busiest: Load, all: Load) -> f64 {
        let us_per_byte = |load: Load| {
            load.bytes * self.copy_us_per_byte() + load.reduced * self.reduce_us_per_byte()
        };
        let time_us = self.by_cores(us_per_byte(busiest), us_per_byte(all)) * self.size;
        time_us + self.at_the_port(all.moved(), time_us)
    }

    /// Returns the time to add to `time_us`, that of the cores, because data beyond the caches
    /// shares the host's memory port. All ranks together move the vector `all` times.
    fn at_the_port(&self, all: f64, time_us: f64) -> f64 {
        let port_us = all * self.size * self.constants.memory_us_per_byte;
        self.missing(self.size) * (port_us - time_us).max(0.0)
    }

    /// Returns the share of `bytes` bytes, with their footprint, that does not fit the caches.
    fn missing(&self, bytes: f64) -> f64 {
        let constants = self.constants;
        let held = constants.cache_bytes / (constants.footprint * bytes.max(1.0));
        (1.0 - held).max(0.0)
    }
}

/// Returns the number of slices of a call.
fn slices(question: &Question, way: &Way) -> f64 {
    use Collective::{
        AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    };
    let blocks = match (question.collective, way.method()) {
        // A message holds several blocks, which are not cut.
        (AllGather | ReduceScatter, Method::RecursiveDoubling)
        | (AllGather | ReduceScatter | Gather | Scatter, Method::Leader) => return 1.0,
        (AllToAll, Method::Hierarchical) if !way.access.is_shared() => return 1.0,
        (AllReduce | Broadcast | Reduce, _) => 1.0,
        _ => question.world_size as f64,
    };
    let cut = question.bytes as f64 / blocks / way.slice_bytes.max(1) as f64;
    cut.ceil().max(1.0)
}

#[cfg(test)]
pub(super) mod tests;
