//! What a call should take by each way: the terms of its algorithm, with the constants of the
//! machine and the network.
//!
//! # Model
//!
//! A call costs something by itself, then waits for its hops, then moves and combines bytes. What
//! an algorithm needs of each is in the table of [`terms`](super::terms); into how many slices that
//! is cut is the way's own.
//!
//! Where every rank has a core the terms of the busiest rank are the critical path, and the time is
//! their sum. Where ranks outnumber the cores of their machine (`load` > 1) waiting is for one's
//! turn, and everything that any rank does is done by the same few cores: there the sum over all
//! ranks counts, divided by the cores, at least what the busiest rank does alone. A schedule that
//! has few messages wins then, however its ranks depend on each other.
//!
//! Published memory is priced by level: lines that a peer has just written come more slowly than
//! one's own; what fits the caches goes at the cores' rate; what does not shares the host's memory
//! port.
//!
//! Where formulas do not reach, [`Corrections`](super::corrections::Corrections) multiply them.
//! Prices rank ways; they do not promise times.
//!
//! Pure: no I/O, no clock, a few hundred nanoseconds for a whole table.

#![forbid(unsafe_code)]

mod messages;
mod shared;

use super::Question;
use super::constants::Constants;
use super::corrections::Key;
use super::terms::{Case, Load, Terms};
use crate::call::Way;
use crate::schedule::Access;
use crate::types::{Collective, Method};

/// What `question` should take by `way`, in microseconds. A way that cannot be used has a number
/// without a meaning. Finite and positive.
pub fn price(question: &Question, way: &Way, constants: &Constants) -> f32 {
    let call = Call::new(question, way, constants);
    let time_us = match way.access {
        _ if question.world_size <= 1 => constants.call_us + call.size * constants.copy_us_per_byte,
        Access::Staged | Access::Registered => call.over_shared_memory(),
        Access::Messages => call.over_messages(),
    };
    let key = Key {
        collective: question.collective,
        way: (way.method(), way.protocol()),
    };
    let corrected = time_us * constants.corrections.factor(key, question.bytes);
    // What is absurdly large stays a price.
    (corrected as f32).clamp(f32::MIN_POSITIVE, f32::MAX)
}

/// A call by one way.
struct Call<'a> {
    question: &'a Question,
    way: &'a Way,
    constants: &'a Constants,
    case: Case,
    terms: Terms,
    /// The number of ranks.
    n: f64,
    /// Bytes.
    size: f64,
    slices: f64,
}

impl Call<'_> {
    fn new<'a>(question: &'a Question, way: &'a Way, constants: &'a Constants) -> Call<'a> {
        let case = Case {
            collective: question.collective,
            method: way.method(),
            access: way.access,
            world_size: question.world_size as u32,
            domains: question.domains as u32,
            hosts: question.hosts as u32,
            runs: question.runs.max(question.hosts) as u32,
        };
        Call {
            question,
            way,
            constants,
            terms: Terms::of(case).unwrap_or_default(),
            case,
            n: question.world_size as f64,
            size: question.bytes as f64,
            slices: slices(question, way),
        }
    }

    /// Copying a byte within the caches, as far as they are a rank's own.
    fn copy_us_per_byte(&self) -> f64 {
        self.constants.copy_us_per_byte * self.shared_core_factor()
    }

    /// Combining one.
    fn reduce_us_per_byte(&self) -> f64 {
        self.constants.reduce_us_per_byte * self.shared_core_factor()
    }

    fn shared_core_factor(&self) -> f64 {
        match self.constants.is_oversubscribed() {
            true => self.constants.shared_core_factor,
            false => 1.0,
        }
    }

    /// The time of work that the busiest rank and all together need so much of: by as many cores as
    /// there are.
    fn by_cores(&self, busiest: f64, all: f64) -> f64 {
        let cores = self.n / self.constants.load;
        busiest.max(all / cores)
    }

    /// The time in which the vector is copied and combined as often as the busiest rank and all of
    /// them need.
    fn moved(&self, busiest: Load, all: Load) -> f64 {
        let us_per_byte = |load: Load| {
            load.bytes * self.copy_us_per_byte() + load.reduced * self.reduce_us_per_byte()
        };
        let time_us = self.by_cores(us_per_byte(busiest), us_per_byte(all)) * self.size;
        time_us + self.at_the_port(all.moved(), time_us)
    }

    /// What is to be added to the time of the cores, because what does not fit the caches goes
    /// through the host's memory port: so many times the vector by all ranks.
    fn at_the_port(&self, all: f64, time_us: f64) -> f64 {
        let port_us = all * self.size * self.constants.memory_us_per_byte;
        self.missing(self.size) * (port_us - time_us).max(0.0)
    }

    /// The part of so many bytes, and of what lies beside them, that does not fit the caches.
    fn missing(&self, bytes: f64) -> f64 {
        let constants = self.constants;
        let held = constants.cache_bytes / (constants.footprint * bytes.max(1.0));
        (1.0 - held).max(0.0)
    }
}

/// Slices of a call.
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
