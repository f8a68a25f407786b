//! Prices of calls over messages: through rings of shared memory, through sockets, or over RDMA,
//! whose constants replace those of sockets.

use super::{CostTerms, Load, Method, PricedCall};
use crate::transport::LENT_BYTES_MIN;
use crate::transport::rdma::WHOLE_BYTES_MAX;
use crate::tune::terms::{Within, is_chain};
use crate::types::Collective;

/// Share of a byte's cost through a ring that falls on one end, if messages go in one direction:
/// less than half, because the lines of each end stay in its cache.
const ONE_END: f64 = 0.4;

/// Costs of messages on one kind of link.
#[derive(Default)]
struct MessageCosts {
    hop_us: f64,
    /// Additional time of the first hop.
    first_us: f64,
    message_us: f64,
    us_per_byte: f64,
    /// Time of copying a byte at each end. Operands of a reduction are reduced where they arrive.
    staging_us_per_byte: f64,
    /// Additional time of a byte that a peer has just written.
    fresh_us_per_byte: f64,
    /// Relative slowdown of all senders by each further sender to one receiver.
    incast: f64,
}

/// The part of a schedule's messages that uses one kind of link.
struct LinkTraffic {
    link: MessageCosts,
    hops: f64,
    busiest: Load,
    all: Load,
}

/// The shares of a schedule's messages that cross hosts.
struct Crossing {
    /// Share of the hops.
    hops: f64,
    /// Share of the busiest rank's load.
    busiest: f64,
    /// Share of all ranks' load.
    all: f64,
    /// Number of ranks of a host that send to other hosts at the same time, and share its line.
    senders: f64,
}

impl Crossing {
    /// Returns equal shares of hops and loads.
    fn alike(part: f64) -> Crossing {
        Crossing {
            hops: part,
            busiest: part,
            all: part,
            senders: 1.0,
        }
    }

    /// Returns the shares of a one-level schedule of `n` ranks on several `hosts`, to which `runs`
    /// runs of consecutive ranks are dealt in turn.
    fn of(method: Method, n: f64, hosts: f64, runs: f64) -> Crossing {
        let size = n / hosts;
        let rounds = hosts.log2() / n.log2();
        match method {
            // The last rank of a run sends everything to the next run.
            Method::Ring => Crossing {
                all: runs / n,
                senders: runs / hosts,
                ..Crossing::alike(1.0)
            },
            Method::Tree => Crossing {
                all: runs * (1.0 - 1.0 / hosts) / (n - 1.0),
                ..Crossing::alike(rounds)
            },
            Method::RecursiveDoubling => Crossing {
                senders: size,
                ..Crossing::alike(rounds)
            },
            // The farthest pairs exchange the largest parts; the vector has as many parts as ranks.
            Method::Rabenseifner => Crossing {
                hops: rounds,
                senders: size,
                ..Crossing::alike((hosts - 1.0) * (n / runs) / (n - 1.0))
            },
            _ => Crossing {
                hops: 1.0,
                senders: size,
                ..Crossing::alike((n - size) / (n - 1.0))
            },
        }
    }
}

impl PricedCall<'_> {
    pub(super) fn over_messages(&self) -> f64 {
        let parts = self.parts();
        let work = match self.constants.is_oversubscribed() {
            true => self.in_turns(&parts),
            false => parts.iter().map(|part| self.side_by_side(part)).sum(),
        };
        let port = match self.is_on_one_host() {
            // Each byte goes into a cell and out of it, or is read at once.
            true => {
                let all = self.terms.all;
                let passes = if self.way.reads { 1.0 } else { 2.0 };
                let reduced = if self.reduces_cells() {
                    0.0
                } else {
                    all.reduced
                };
                self.at_the_port(passes * all.bytes + reduced, work)
            }
            false => 0.0,
        };
        self.planned() + work + port
    }

    /// Returns the messages through shared memory, and those through sockets.
    fn parts(&self) -> [LinkTraffic; 2] {
        let hosts = self.question.hosts as f64;
        let CostTerms {
            hops, busiest, all, ..
        } = self.terms;
        let several = 1.0 < hosts && hosts < self.n;
        let crossing = if self.is_on_one_host() {
            Crossing::alike(0.0)
        } else if several {
            let runs = f64::from(self.case.runs);
            Crossing::of(self.way.method(), self.n, hosts, runs)
        } else {
            Crossing::alike(1.0)
        };
        let (within, senders) = match self.terms.within {
            Some(within) if several => {
                let senders = match self.way.method() {
                    Method::Leader => 1.0,
                    _ => self.n / hosts,
                };
                (within, senders)
            }
            _ => {
                let within = Within {
                    hops: hops * (1.0 - crossing.hops),
                    busiest: busiest.times(1.0 - crossing.busiest),
                    all: all.times(1.0 - crossing.all),
                };
                (within, crossing.senders)
            }
        };
        let mut between = LinkTraffic {
            link: self.link(false, senders),
            hops: hops - within.hops,
            busiest: busiest.without(within.busiest),
            all: all.without(within.all),
        };
        if self.needs_grants(between.busiest) && between.hops > 0.0 {
            let peers = match several {
                true => self.n - self.n / hosts,
                false => self.n - 1.0,
            };
            let (hops, grants) = self.granted(between.hops, peers);
            between.link.hop_us += self.constants.grant_us * grants / hops;
            between.hops = hops;
        }
        let Within { hops, busiest, all } = within;
        let link = match several {
            true => self.link_within_one_of(hosts, busiest),
            false if self.way.reads => self.reading(),
            false => self.link(true, 1.0),
        };
        [
            LinkTraffic {
                link,
                hops,
                busiest,
                all,
            },
            between,
        ]
    }

    /// Returns the costs of messages that are read from the sender's memory.
    fn reading(&self) -> MessageCosts {
        let link = self.link(true, 1.0);
        let factor = match self.constants.is_oversubscribed() {
            true => self.constants.shared_core_read_factor,
            false => 1.0,
        };
        MessageCosts {
            hop_us: link.hop_us + self.constants.read_us,
            message_us: link.message_us + self.constants.read_us,
            us_per_byte: self.constants.read_us_per_byte * factor,
            fresh_us_per_byte: 0.0,
            ..link
        }
    }

    /// Returns the costs of messages within one of several hosts, whose busiest rank has this load.
    fn link_within_one_of(&self, hosts: f64, busiest: Load) -> MessageCosts {
        let mut link = self.link(true, 1.0);
        if self.constants.is_oversubscribed() {
            link.us_per_byte *= self.core_cache_factor(busiest);
        }
        if self.lends(busiest) {
            // Lending takes one pass over the bytes instead of two, and uses no cells.
            let share = lent_share(self.question.collective, self.way.method(), hosts);
            let passes = 1.0 - share / 2.0;
            link.us_per_byte *= passes;
            link.fresh_us_per_byte *= passes;
        }
        link
    }

    /// Returns the relative time of bytes through a ring between ranks that take turns on their
    /// host's core: data that fits its cache stays there.
    fn core_cache_factor(&self, load: Load) -> f64 {
        let messages = (load.messages * self.pieces()).max(1.0);
        let missing = self.missing(self.size * load.bytes / messages);
        missing + (1.0 - missing) * self.constants.shared_core_ring_factor
    }

    /// Whether messages go in one direction only, so that each passes the busiest rank at one end,
    /// while the rank at the other end copies the next: the root's, or those of two ranks.
    fn is_one_way(&self) -> bool {
        let passes_root = self.way.method() == Method::Flat || self.n == 2.0;
        self.is_on_one_host() && self.question.collective.has_root() && passes_root
    }

    /// Whether the reduction of a cell takes the place of copying it, and costs nothing more.
    fn reduces_cells(&self) -> bool {
        self.is_on_one_host() && self.question.collective == Collective::Reduce
    }

    /// Whether the messages of `load` are lent from registered memory.
    fn lends(&self, load: Load) -> bool {
        self.question.lends && self.is_of_messages(load, LENT_BYTES_MIN)
    }

    /// Whether the messages of `load`, which leave their host, wait for grants.
    fn needs_grants(&self, load: Load) -> bool {
        self.constants.grant_us > 0.0 && self.is_of_messages(load, WHOLE_BYTES_MAX + 1)
    }

    /// Returns the number of hops between hosts if messages need grants, and how many of these hops
    /// wait for a grant. A rank receives messages from `peers` peers.
    ///
    /// A receive is posted, and its grant sent, when its memory is free. Data that only moves has
    /// memory of its own, so all its grants but the first arrive in time. Data that is reduced with
    /// other messages waits until these are reduced.
    fn granted(&self, hops: f64, peers: f64) -> (f64, f64) {
        let (collective, method) = (self.question.collective, self.way.method());
        match method {
            _ if !collective.reduces() => (hops, 1.0),
            Method::Ring => (hops, 1.0),
            // A rank reduces all its messages into one place.
            Method::Direct | Method::OneShot | Method::Flat => (hops + peers - 1.0, peers),
            Method::RecursiveDoubling => (hops, hops),
            // Half of the hops spread results.
            _ if collective == Collective::AllReduce => (hops, hops / 2.0),
            _ => (hops, hops),
        }
    }

    /// Whether the messages of `load` have `bytes_min` bytes or more each.
    fn is_of_messages(&self, load: Load, bytes_min: usize) -> bool {
        let messages = load.messages * self.pieces();
        let bytes = self.size * load.bytes;
        bytes >= bytes_min as f64 * messages.max(1.0)
    }

    /// Returns the time of both parts if ranks outnumber cores.
    fn in_turns(&self, parts: &[LinkTraffic; 2]) -> f64 {
        let gamma = match self.reduces_cells() {
            true => 0.0,
            false => self.reduce_us_per_byte(),
        };
        let time = |load: Load, link: &MessageCosts| {
            load.messages * self.pieces() * link.message_us
                + self.size * load.bytes * link.us_per_byte
                + self.size * (2.0 * load.bytes - load.reduced).max(0.0) * link.staging_us_per_byte
                + self.size * load.reduced * gamma
        };
        let busiest = |part: &LinkTraffic| time(self.alone_in_turns(part.busiest), &part.link);
        let all = |part: &LinkTraffic| time(part.all, &part.link);
        let work = self.by_cores(parts.iter().map(busiest).sum(), parts.iter().map(all).sum());
        let hops = parts.iter().map(|part| part.hops * part.link.hop_us);
        let used = parts.iter().filter(|part| part.hops > 0.0);
        let first_us = used.map(|part| part.link.first_us).fold(0.0, f64::max);
        first_us + hops.sum::<f64>() + work
    }

    /// Returns the busiest rank's load that no other core can take over, in units of messages at
    /// both ends.
    fn alone_in_turns(&self, busiest: Load) -> Load {
        let (collective, method) = (self.question.collective, self.way.method());
        // A rank's bytes take half of the time of a message at both its ends, or all of that time
        // if the ends wait for each other: up to a root and down again, or because a message of
        // several blocks has left the cache before it is passed on.
        let bytes = match (collective, method) {
            (Collective::AllReduce, Method::Tree | Method::Flat) => 1.0,
            (Collective::Gather | Collective::Scatter, Method::Leader) => {
                0.5 + 0.5 * self.missing(self.size / self.question.hosts as f64)
            }
            _ => 0.5,
        };
        // The rank's messages take their full time, one after the other, unless the rank only
        // receives them, from ranks that do not share a core.
        let is_apart = self.question.hosts == self.question.world_size;
        let messages = match collective {
            Collective::Reduce | Collective::Gather if is_apart && method != Method::Direct => 0.5,
            _ => 1.0,
        };
        // The ranks of a host have equal loads, and share its core.
        let ranks = match method {
            Method::Hierarchical if !self.is_on_one_host() => self.constants.load,
            _ => 1.0,
        };
        Load {
            messages: messages * busiest.messages,
            bytes: ranks * bytes * busiest.bytes,
            reduced: ranks * busiest.reduced,
        }
    }

    /// Returns the time of one part if every rank has a core.
    fn side_by_side(&self, part: &LinkTraffic) -> f64 {
        let LinkTraffic {
            link,
            hops,
            busiest,
            ..
        } = part;
        let (n, gamma) = (self.n, self.reduce_us_per_byte());
        let fresh = match self.is_one_way() {
            true => 0.0,
            false => busiest.bytes * self.size * link.fresh_us_per_byte,
        };
        // One piece is copied while another is in flight.
        let us_per_byte = link.us_per_byte.max(link.staging_us_per_byte);
        if is_chain(self.question.collective, self.way.method()) && !self.is_one_way() {
            if *hops == 0.0 {
                return 0.0;
            }
            let reduces = f64::from(u8::from(self.question.collective.reduces()));
            let piece = self.size / self.slices * (us_per_byte + reduces * gamma);
            return (n - 2.0 + self.slices) * (link.hop_us + piece) + fresh;
        }
        let crowd = match self.way.method() {
            Method::Direct | Method::OneShot | Method::Flat => 1.0 + link.incast * (n - 2.0),
            _ => 1.0,
        };
        let further = (busiest.messages * self.pieces() - hops).max(0.0);
        // A root reduces a slice while the next is in flight.
        let combining = match (self.question.collective, self.way.method()) {
            (Collective::Reduce, Method::Flat | Method::Tree) => busiest.reduced / self.slices,
            _ => busiest.reduced,
        };
        let moving = match self.is_one_way() && !self.way.reads {
            true => busiest.bytes * us_per_byte * ONE_END,
            false => busiest.bytes * us_per_byte * crowd + combining * gamma,
        };
        hops * link.hop_us + further * link.message_us + self.size * moving + fresh
    }

    /// Returns the number of messages for each message of the schedule.
    fn pieces(&self) -> f64 {
        self.slices * self.way.channels as f64
    }

    fn is_on_one_host(&self) -> bool {
        self.question.slot_bytes.is_some()
    }

    /// Returns the costs of messages within a host or between hosts, where `senders` ranks share a
    /// line. If ranks outnumber cores, the times are those of both ends together.
    fn link(&self, is_within_host: bool, senders: f64) -> MessageCosts {
        let constants = self.constants;
        // Communicators with registered memory are assumed to use it in their calls.
        let staging_us_per_byte = match self.question.lends {
            true => 0.0,
            false => constants.staging_us_per_byte,
        };
        match (is_within_host, constants.is_oversubscribed()) {
            (true, true) => {
                let turns_us = constants.turn_us * constants.load;
                MessageCosts {
                    hop_us: constants.further_hop_turns * turns_us,
                    first_us: (1.0 - constants.further_hop_turns) * turns_us,
                    message_us: constants.ring_message_us + constants.ring_turn_us,
                    us_per_byte: constants.ring_us_per_byte,
                    ..MessageCosts::default()
                }
            }
            (true, false) => MessageCosts {
                hop_us: constants.ring_hop_us,
                message_us: constants.ring_message_us,
                us_per_byte: constants.ring_us_per_byte,
                // The receiver fetches lines just sent, and the sender lines of cells just emptied.
                fresh_us_per_byte: 2.0 * constants.line_us_per_byte,
                ..MessageCosts::default()
            },
            (false, true) => MessageCosts {
                hop_us: constants.shared_core_hop_factor * constants.socket_hop_us,
                message_us: constants.socket_message_us + constants.socket_turn_us,
                us_per_byte: constants.socket_work_us_per_byte,
                staging_us_per_byte,
                ..MessageCosts::default()
            },
            (false, false) => MessageCosts {
                hop_us: constants.socket_hop_us,
                message_us: constants.socket_message_us,
                us_per_byte: (constants.socket_us_per_byte * senders)
                    .max(constants.socket_work_us_per_byte / 2.0),
                staging_us_per_byte,
                incast: constants.incast,
                ..MessageCosts::default()
            },
        }
    }
}

/// Returns the share of a rank's bytes within its host that can be lent: bytes that leave from the
/// caller's memory, not from scratch.
fn lent_share(collective: Collective, method: Method, hosts: f64) -> f64 {
    match (collective, method) {
        // The own host's blocks leave from the input; those of other hosts are passed on from
        // scratch, as are all blocks on hosts without a root.
        (Collective::AllToAll, Method::Hierarchical) | (Collective::Scatter, Method::Leader) => {
            1.0 / hosts
        }
        // The root collects columns that other ranks have reduced, in scratch.
        (Collective::Reduce, Method::Hierarchical) => 0.5,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::check::schedules;
    use crate::schedule::{Access, Action, Buffer, Groups, Spec};

    /// Counts the share of all bytes within the hosts that leave from the callers' memory.
    fn counted_share(spec: &Spec) -> f64 {
        let (mut lent, mut all) = (0, 0);
        for schedule in schedules(spec).unwrap() {
            let host = spec.hosts.of(schedule.spec.rank);
            for step in schedule.channels.iter().flatten() {
                let Action::Send { peer, span } = step.action else {
                    continue;
                };
                if spec.hosts.of(peer) == host {
                    all += span.len;
                    lent += u32::from(span.buffer != Buffer::Scratch) * span.len;
                }
            }
        }
        f64::from(lent) / f64::from(all)
    }

    #[test]
    fn as_much_is_lent_as_leaves_from_the_callers_memory() {
        use Collective::{AllGather, AllReduce, AllToAll, Scatter};
        for (collective, method) in [
            (AllToAll, Method::Hierarchical),
            (Scatter, Method::Leader),
            (AllReduce, Method::Hierarchical),
            (AllGather, Method::Hierarchical),
        ] {
            for (hosts, size) in [(2, 2), (2, 4), (3, 2), (5, 3)] {
                let spec = Spec {
                    hosts: Groups::equal(hosts * size, hosts).unwrap(),
                    ..Spec::new(collective, method, Access::Messages, hosts * size)
                };
                let (counted, priced) = (
                    counted_share(&spec),
                    lent_share(collective, method, hosts.into()),
                );
                assert!(
                    (counted - priced).abs() < 1e-9,
                    "{collective} by {method}, {hosts} hosts of {size}: {counted}, {priced}"
                );
            }
        }
    }
}
