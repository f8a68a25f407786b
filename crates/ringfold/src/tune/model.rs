//! What a call should take by each way: α, β and γ terms with the constants of the machine and the network.
//!
//! # Model
//!
//! A call costs something by itself, then waits for its hops, then moves and combines bytes. What needs how much is in
//! [`cost::terms`](super::cost): hops, messages, bytes and reductions of the rank that needs most.
//!
//! Where every rank has a core these are the critical path, and the time is their sum. Where ranks outnumber the cores of
//! their machine (`load` > 1) waiting is for one's turn, and everything that any rank does is done by the same few cores:
//! there the sum over all ranks counts, divided by the cores, at least what the busiest rank does alone. A schedule that has few messages wins then, however its
//! ranks depend on each other.
//!
//! Published memory is priced by level: lines that a peer has just written come more slowly than
//! one's own; what fits the caches goes at the cores' rate; what does not shares the host's memory port.
//!
//! Where formulas do not reach, [`Corrections`](super::corrections::Corrections) multiply them. Prices rank ways, they do not promise times.
//!
//! Pure: no I/O, no clock, a few hundred nanoseconds for a whole table.

#![forbid(unsafe_code)]

use super::choose::Question;
use super::constants::Constants;
use super::corrections::Key;
use super::cost::{self, Terms};
use crate::schedule::{Access, Schedule};
use crate::types::{Collective, Method, Protocol};

/// What is published at once.
const SLICE_BYTES: f64 = (128 << 10) as f64;

/// What one message carries; of halving and doubling a quarter.
const MESSAGE_BYTES: f64 = (256 << 10) as f64;
const HALVING_MESSAGE_BYTES: f64 = (64 << 10) as f64;

/// What lies in the caches for each byte of a call: input, output, and slots or cells.
const FOOTPRINT: f64 = 3.0;

/// By how much copying and combining take longer where ranks share a core, because each finds its caches full of another's data.
const CROWDED_SPOILS: f64 = 3.3;

/// Turns that ranks wait for until all blocks were claimed and combined: the second is shorter, because any rank ends it.
const CLAIM_TURNS: f64 = 1.5;

/// By how much claimed work takes longer because blocks change cores; what is served keeps to its ranks where it can. Where
/// every rank has a core, blocks always change it.
const CLAIM_SPOILS: f64 = 1.2;
const SERVE_SPOILS: f64 = 1.1;
const SPOILS_UNCROWDED: f64 = 2.0;

/// What is pushed goes through the caches once, what is published twice.
const PUSH_SAVES: f64 = 0.7;

/// Of the turns of all ranks of a core, those that a further hop waits for: whoever waits need not be the last to run.
const FURTHER_HOP_TURNS: f64 = 0.4;

/// Of the time of a hop through a socket where a core is free: what a hop takes among ranks that share cores, because whoever
/// sends lets the receiver run, and what the first takes more, because all have to wake.
const CROWDED_HOPS: f64 = 0.3;
const CROWDED_FIRST_HOPS: f64 = 1.0;

/// Of what the bytes of a message take from both its ends, the part of a rank through which all of them go: more than half, as
/// it waits for the others' turns, too. Its messages take all that they take, one after the other.
const END_PART: f64 = 0.8;

/// By how much pairs that exchange leave cores idle that other ranks' work could use, because each waits for its partner.
const PAIRS_IDLE: f64 = 1.25;

/// How often a vector that is reduced in two levels is read once more: partial sums, and results by each domain.
const HIERARCHY_READS: f64 = 2.0;

/// By how much a tree leaves cores idle that other ranks' work could use.
const TREE_IDLES: f64 = 1.9;

/// What a price depends on, beside the way and the constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What is called.
    pub collective: Collective,
    /// Bytes of the vector, or of all blocks together.
    pub bytes: u64,
    /// The number of ranks.
    pub world_size: usize,
    /// How many domains of equal size they sit in.
    pub domains: usize,
    /// Whether all share a host, so that messages go through rings of shared memory.
    pub is_on_one_host: bool,
    /// Whether what is published can be read by all, and all know how much that is.
    pub is_published: bool,
}

impl From<&Question> for Shape {
    fn from(question: &Question) -> Shape {
        Shape {
            collective: question.collective,
            bytes: question.bytes,
            world_size: question.world_size,
            domains: question.domains,
            is_on_one_host: question.slot_bytes.is_some(),
            is_published: question.slot_bytes.is_some() && !question.is_pairwise,
        }
    }
}

/// What `question` should take by `algorithm` and `protocol`, in microseconds. The way is usable: who asks for another gets a
/// number that means nothing. Finite and positive.
pub fn price(
    question: &Question,
    algorithm: Method,
    protocol: Protocol,
    constants: &Constants,
) -> f32 {
    price_of(&question.into(), algorithm, protocol, constants)
}

/// The same of a call of this shape.
pub fn price_of(
    shape: &Shape,
    algorithm: Method,
    protocol: Protocol,
    constants: &Constants,
) -> f32 {
    let call = Call::new(shape, algorithm, protocol, constants);
    let time_us = match call.access {
        _ if shape.world_size <= 1 => constants.call_us + call.size * constants.copy_us_per_byte,
        Access::Staged | Access::Registered => call.over_shared_memory(),
        Access::Messages => call.over_messages(),
    };
    let key = Key {
        collective: shape.collective,
        algorithm,
        protocol,
    };
    let corrected = time_us * constants.corrections.factor(key, shape.bytes);
    // What is absurdly large stays a price.
    (corrected as f32).clamp(f32::MIN_POSITIVE, f32::MAX)
}

/// Shared memory where the catalogue has the method there, all ranks share a host and every count is
/// known to all.
fn access(shape: &Shape, method: Method) -> Access {
    let serves = |access: &Access| Schedule::methods(shape.collective, *access).contains(&method);
    [Access::Registered, Access::Staged]
        .into_iter()
        .find(|access| shape.is_published && serves(access))
        .unwrap_or(Access::Messages)
}

/// What all ranks do together over messages, in one slice: bytes and reductions as multiples of the size.
struct Totals {
    messages: f64,
    bytes: f64,
    reduced: f64,
}

/// What messages cost on their way.
struct Link {
    hop_us: f64,
    /// What the first hop costs more.
    first_us: f64,
    message_us: f64,
    us_per_byte: f64,
    /// More of them for bytes that a peer has just written.
    fresh_us_per_byte: f64,
    /// By how much each further sender to one receiver slows all down.
    incast: f64,
}

/// One way of one call, and what is needed of it everywhere.
struct Call<'a> {
    constants: &'a Constants,
    collective: Collective,
    algorithm: Method,
    protocol: Protocol,
    access: Access,
    ranks: u32,
    domains: u32,
    /// Whether messages go through rings of shared memory.
    is_on_one_host: bool,
    n: f64,
    size: f64,
}

impl Call<'_> {
    fn new<'a>(
        shape: &Shape,
        algorithm: Method,
        protocol: Protocol,
        constants: &'a Constants,
    ) -> Call<'a> {
        Call {
            constants,
            collective: shape.collective,
            algorithm,
            protocol,
            access: access(shape, algorithm),
            ranks: shape.world_size as u32,
            domains: shape.domains as u32,
            is_on_one_host: shape.is_on_one_host,
            n: shape.world_size as f64,
            size: shape.bytes as f64,
        }
    }

    fn terms(&self) -> Terms {
        if self.is_hierarchical() {
            return cost::hierarchical(self.ranks, self.domains);
        }
        let known = cost::terms(self.collective, self.algorithm, self.access, self.ranks);
        known.unwrap_or_default()
    }

    fn is_hierarchical(&self) -> bool {
        self.algorithm == Method::Hierarchical && self.domains > 1 && self.domains < self.ranks
    }

    /// Copying a byte within the caches, as far as they are a rank's own.
    fn copy_us_per_byte(&self) -> f64 {
        self.constants.copy_us_per_byte * self.spoilt_by_turns()
    }

    /// Combining one.
    fn reduce_us_per_byte(&self) -> f64 {
        self.constants.reduce_us_per_byte * self.spoilt_by_turns()
    }

    fn spoilt_by_turns(&self) -> f64 {
        match self.constants.is_oversubscribed() {
            true => CROWDED_SPOILS,
            false => 1.0,
        }
    }

    /// The time of work that the busiest rank and all together need so much of: by as many cores as there are.
    fn by_cores(&self, busiest: f64, all: f64) -> f64 {
        let cores = self.n / self.constants.load;
        busiest.max(all / cores)
    }

    /// The time in which the vector is copied or combined so many times by the busiest rank and by all of them.
    fn moved(&self, busiest: f64, all: f64, us_per_byte: f64) -> f64 {
        let time_us = self.by_cores(busiest, all) * self.size * us_per_byte;
        time_us + self.at_the_port(all, time_us)
    }

    /// What is to be added to the time of the cores, because what does not fit the caches goes through the host's memory port:
    /// so many times the vector by all ranks.
    fn at_the_port(&self, all: f64, time_us: f64) -> f64 {
        let constants = self.constants;
        let held = constants.cache_bytes / (FOOTPRINT * self.size.max(1.0));
        let missing = (1.0 - held).max(0.0);
        missing * (all * self.size * constants.memory_us_per_byte - time_us).max(0.0)
    }

    fn over_shared_memory(&self) -> f64 {
        let constants = self.constants;
        match self.algorithm {
            Method::Push => self.pushed(),
            Method::Serve => self.served(),
            Method::Claim => self.claimed(),
            _ => {
                let slices = self.slices();
                let terms = self.terms();
                let (busiest, all) = self.published_bytes(&terms);
                let work = self.moved(busiest, all, self.copy_us_per_byte());
                self.begin(slices)
                    + self.syncs(terms.hops)
                    + (slices - 1.0) * constants.slice_us
                    + work
                    + self.fresh_lines()
            }
        }
    }

    /// What a call costs before it waits for anybody.
    fn begin(&self, slices: f64) -> f64 {
        let constants = self.constants;
        let shortest = match self.collective {
            Collective::AllReduce => Method::OneShot,
            Collective::Reduce => Method::Flat,
            _ => Method::Direct,
        };
        let is_shortest = self.algorithm == shortest && slices <= 1.0;
        constants.call_us + if is_shortest { 0.0 } else { constants.plan_us }
    }

    /// Slices of published memory.
    fn slices(&self) -> f64 {
        let blocks = match self.collective {
            Collective::AllGather | Collective::Gather => self.n,
            _ => 1.0,
        };
        (self.size / blocks / SLICE_BYTES).ceil().max(1.0)
    }

    /// Copied and combined by the busiest rank and by all of them, as multiples of the size.
    fn published_bytes(&self, terms: &Terms) -> (f64, f64) {
        let again = match self.is_hierarchical() {
            true => HIERARCHY_READS,
            false => 0.0,
        };
        let busiest = terms.bytes + terms.reduced + again;
        let peers = self.n - 1.0;
        let all = match (self.collective, self.algorithm) {
            // Only the root combines, only the others publish.
            (Collective::Reduce, Method::Flat) => 2.0 * peers,
            (Collective::Broadcast, _) => self.n,
            (Collective::Gather | Collective::Scatter, _) => 2.0 * peers / self.n,
            _ => self.n * busiest,
        };
        (busiest, all)
    }

    /// The time of so many synchronisations of all ranks.
    fn syncs(&self, hops: f64) -> f64 {
        let constants = self.constants;
        if constants.is_oversubscribed() {
            return hops * constants.turn_us * constants.load;
        }
        let inline = match self.protocol {
            Protocol::Ll => constants.inline_us,
            _ => 0.0,
        };
        let hop = (constants.hop_us - inline).max(0.0);
        let (ranks, domains) = (self.n, f64::from(self.domains.max(1)));
        let near = ranks / domains;
        let far = match self.is_hierarchical() {
            // Only counterparts look across, once.
            true => (domains - 1.0) * constants.domain_us,
            false => hops * (ranks - near) * constants.domain_us,
        };
        hops * hop + far
    }

    /// What is read, or written over, of lines that a peer has just written.
    fn fresh_lines(&self) -> f64 {
        let peers = self.n - 1.0;
        let share = peers / self.n;
        let part = match (self.collective, self.algorithm) {
            // Everything of everybody, and a write of one's own that the peers have read.
            (Collective::AllReduce, Method::OneShot) => peers + 0.5,
            (Collective::Reduce, Method::Flat) => peers,
            (Collective::AllReduce | Collective::Reduce, _) => 2.0 * share,
            (Collective::Gather | Collective::Scatter, Method::Push) => 1.0 / self.n,
            (Collective::Broadcast, _) => 1.0,
            _ => share,
        };
        let line_us = self.size * self.constants.line_us_per_byte;
        if self.constants.is_oversubscribed() {
            // Ranks of one core find their lines there; what all of them read of all others is too much for that.
            let beyond = (part - 2.0 * share).max(0.0);
            return beyond * self.constants.load * CROWDED_SPOILS * line_us;
        }
        part * line_us
    }

    /// Blocks of published memory that whoever runs combines.
    fn claimed(&self) -> f64 {
        let constants = self.constants;
        let slices = self.slices();
        let bytes = 2.0 + (self.n - 1.0) / self.n;
        let all = self.n * bytes * self.spoils(CLAIM_SPOILS);
        let work = self.moved(bytes, all, self.copy_us_per_byte());
        let waiting = match constants.is_oversubscribed() {
            true => CLAIM_TURNS * constants.turn_us * constants.load,
            false => 2.0 * constants.hop_us,
        };
        constants.call_us
            + constants.plan_us
            + constants.claim_us
            + waiting
            + (slices - 1.0) * constants.slice_us
            + work
            + self.fresh_lines()
    }

    /// In all ranks' registered buffers.
    fn pushed(&self) -> f64 {
        let terms = self.terms();
        let bytes = (terms.bytes + terms.reduced) * PUSH_SAVES;
        let work = self.moved(bytes, self.n * bytes, self.copy_us_per_byte());
        self.exposed() + self.syncs(terms.hops) + work + self.fresh_lines()
    }

    /// The same, block by block, by whoever runs.
    fn served(&self) -> f64 {
        let constants = self.constants;
        let peers = self.n - 1.0;
        // Every input is read once, and every output written once.
        let all = match self.collective {
            Collective::AllReduce => 2.0 * peers,
            _ => peers,
        };
        let spoilt = all * self.spoils(SERVE_SPOILS);
        let work = self.moved(all / self.n, spoilt, self.copy_us_per_byte());
        let waiting = match constants.is_oversubscribed() {
            true => CLAIM_TURNS * constants.turn_us * constants.load,
            false => 2.0 * constants.hop_us,
        };
        self.exposed() + constants.claim_us + waiting + work + self.fresh_lines()
    }

    /// By how much work that is done by whoever runs takes longer.
    fn spoils(&self, where_crowded: f64) -> f64 {
        match self.constants.is_oversubscribed() {
            true => where_crowded,
            false => SPOILS_UNCROWDED,
        }
    }

    fn exposed(&self) -> f64 {
        self.constants.call_us + self.constants.plan_us + self.constants.expose_us
    }

    fn over_messages(&self) -> f64 {
        let terms = self.terms();
        let totals = self.totals(&terms);
        let work = match self.constants.is_oversubscribed() {
            true => self.messages_in_turns(&terms, &totals),
            false => self.messages_side_by_side(&terms),
        };
        let port = match self.is_on_one_host {
            // Into a cell and out of it.
            true => self.at_the_port(2.0 * totals.bytes + totals.reduced, work),
            false => 0.0,
        };
        self.constants.call_us + self.constants.plan_us + work + port
    }

    /// Where ranks outnumber cores.
    fn messages_in_turns(&self, terms: &Terms, totals: &Totals) -> f64 {
        let link = self.link();
        let slices = self.message_slices();
        let time = |messages: f64, bytes: f64| {
            messages * slices * link.message_us + self.size * bytes * link.us_per_byte
        };
        let combining = |reduced: f64| self.size * reduced * self.reduce_us_per_byte();
        let all = time(totals.messages, totals.bytes) + combining(totals.reduced);
        let busiest = time(terms.messages, END_PART * terms.bytes) + combining(terms.reduced);
        link.first_us + terms.hops * link.hop_us + self.by_cores(busiest, all)
    }

    /// Where every rank has a core.
    fn messages_side_by_side(&self, terms: &Terms) -> f64 {
        let link = self.link();
        let slices = self.message_slices();
        let gamma = self.reduce_us_per_byte();
        let fresh = terms.bytes * self.size * link.fresh_us_per_byte;
        if self.is_chain() {
            let reduces = f64::from(u8::from(self.collective.reduces()));
            let piece = self.size / slices * (link.us_per_byte + reduces * gamma);
            return (self.n - 2.0 + slices) * (link.hop_us + piece) + fresh;
        }
        let crowd = match self.algorithm {
            Method::Direct | Method::OneShot | Method::Flat => 1.0 + link.incast * (self.n - 2.0),
            _ => 1.0,
        };
        let further = (terms.messages * slices - terms.hops).max(0.0);
        let moving = terms.bytes * link.us_per_byte * crowd + terms.reduced * gamma;
        terms.hops * link.hop_us + further * link.message_us + self.size * moving + fresh
    }

    /// What carries messages. Where ranks outnumber cores its times are those of both ends together.
    fn link(&self) -> Link {
        let constants = self.constants;
        let inline = match self.protocol {
            Protocol::Ll => constants.socket_inline_us,
            _ => 0.0,
        };
        let socket_hop_us = (constants.socket_hop_us - inline).max(0.0);
        let socket_message_us = (constants.socket_message_us - inline).max(0.0);
        match (self.is_on_one_host, constants.is_oversubscribed()) {
            (true, true) => Link {
                hop_us: FURTHER_HOP_TURNS * constants.turn_us * constants.load,
                first_us: (1.0 - FURTHER_HOP_TURNS) * constants.turn_us * constants.load,
                message_us: constants.ring_message_us + constants.ring_turn_us,
                us_per_byte: constants.ring_us_per_byte,
                fresh_us_per_byte: 0.0,
                incast: 0.0,
            },
            (true, false) => Link {
                hop_us: constants.ring_hop_us,
                first_us: 0.0,
                message_us: constants.ring_message_us,
                us_per_byte: constants.ring_us_per_byte,
                // The receiver's of what was sent, and the sender's of cells that were emptied.
                fresh_us_per_byte: 2.0 * constants.line_us_per_byte,
                incast: 0.0,
            },
            (false, true) => Link {
                hop_us: CROWDED_HOPS * socket_hop_us,
                first_us: CROWDED_FIRST_HOPS * socket_hop_us,
                message_us: socket_message_us + constants.socket_turn_us,
                us_per_byte: constants.socket_work_us_per_byte,
                fresh_us_per_byte: 0.0,
                incast: 0.0,
            },
            (false, false) => Link {
                hop_us: socket_hop_us,
                first_us: 0.0,
                message_us: socket_message_us,
                us_per_byte: constants
                    .socket_us_per_byte
                    .max(constants.socket_work_us_per_byte / 2.0),
                fresh_us_per_byte: 0.0,
                incast: constants.incast,
            },
        }
    }

    /// Whether slices follow each other along a chain.
    fn is_chain(&self) -> bool {
        let is_rooted = matches!(self.collective, Collective::Broadcast | Collective::Reduce);
        is_rooted && self.algorithm == Method::Ring && self.ranks > 1
    }

    /// Slices of a call over messages.
    fn message_slices(&self) -> f64 {
        use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
        use Method::{Direct, Rabenseifner, RecursiveDoubling, Ring};
        let (message, parts) = match (self.collective, self.algorithm) {
            (AllReduce, Rabenseifner) => (HALVING_MESSAGE_BYTES, self.n),
            (AllReduce, Ring | Direct) | (Broadcast | Reduce, Direct) => (MESSAGE_BYTES, self.n),
            // These are not cut.
            (AllGather | ReduceScatter, RecursiveDoubling) => return 1.0,
            (AllReduce | Broadcast | Reduce, _) => (MESSAGE_BYTES, 1.0),
            _ => (MESSAGE_BYTES, self.n),
        };
        (self.size / (message * parts)).ceil().max(1.0)
    }

    /// Messages, bytes and reductions of all ranks together, in one slice.
    fn totals(&self, terms: &Terms) -> Totals {
        use Collective::{
            AllGather, AllReduce, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
        };
        use Method::{Direct, Flat, Rabenseifner, RecursiveDoubling, Ring, Tree};
        let (n, peers) = (self.n, self.n - 1.0);
        let depth = f64::from(self.ranks.ilog2());
        let levels = f64::from(self.ranks.next_power_of_two().ilog2());
        let core = depth.exp2();
        let folded = n - core;
        let reduces = f64::from(u8::from(self.collective.reduces()));
        let [messages, bytes, reduced] = match (self.collective, self.algorithm) {
            (AllReduce, Flat) => [2.0 * peers, 2.0 * peers, peers],
            (AllReduce, Tree) => [2.0 * peers, 2.0 * peers * TREE_IDLES, peers],
            (AllReduce, Ring | Direct) => [2.0 * n * peers, 2.0 * peers, peers],
            (AllReduce, RecursiveDoubling) => {
                let pairs = core * depth;
                let bytes = PAIRS_IDLE * pairs + 2.0 * folded;
                [pairs + 2.0 * folded, bytes, pairs + folded]
            }
            (AllReduce, Rabenseifner) => {
                let reduced = core - 1.0 + folded;
                let bytes = 2.0 * PAIRS_IDLE * reduced;
                [2.0 * (core * depth + folded), bytes, reduced]
            }
            (Broadcast | Reduce, Direct) => {
                [(n + 1.0) * peers, peers * (1.0 + 1.0 / n), reduces * peers]
            }
            (Broadcast | Reduce, Tree) => [peers, peers * TREE_IDLES, reduces * peers],
            (Broadcast | Reduce, _) => [peers, peers, reduces * peers],
            (AllGather | ReduceScatter, RecursiveDoubling) => [n * levels, peers, reduces * peers],
            (AllGather | ReduceScatter, _) => [n * peers, peers, reduces * peers],
            (Gather | Scatter, _) => [peers, peers / n, 0.0],
            (Barrier, RecursiveDoubling) => [n * levels, 0.0, 0.0],
            _ => [terms.messages * n, terms.bytes * n, terms.reduced * n],
        };
        Totals {
            messages,
            bytes,
            reduced,
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
