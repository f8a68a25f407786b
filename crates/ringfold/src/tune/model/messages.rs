//! Prices of calls over messages: through rings of shared memory, through sockets, or over RDMA,
//! whose constants stand in place of those of sockets.

use super::{Call, Load, Method, Terms};
use crate::transport::LENT_BYTES_MIN;
use crate::transport::rdma::WHOLE_BYTES_MAX;
use crate::tune::terms::{Within, is_chain};
use crate::types::Collective;

/// What messages cost on their way.
#[derive(Default)]
struct Link {
    hop_us: f64,
    /// What the first hop costs more.
    first_us: f64,
    message_us: f64,
    us_per_byte: f64,
    /// Copying a byte at each end. What is combined is combined where it arrives.
    staging_us_per_byte: f64,
    /// More of them for bytes that a peer has just written.
    fresh_us_per_byte: f64,
    /// By how much each further sender to one receiver slows all down.
    incast: f64,
}

/// The part of a schedule's messages that go by one kind of link.
struct Part {
    link: Link,
    hops: f64,
    busiest: Load,
    all: Load,
}

/// Which part of a schedule's messages go between hosts.
struct Crossing {
    /// Of the hops.
    hops: f64,
    /// Of the busiest rank's.
    busiest: f64,
    /// Of all ranks'.
    all: f64,
    /// Ranks of a host that send to others at the same time, and share its line.
    senders: f64,
}

impl Crossing {
    /// The same part of everything.
    fn alike(part: f64) -> Crossing {
        Crossing {
            hops: part,
            busiest: part,
            all: part,
            senders: 1.0,
        }
    }

    /// That of a schedule of one level, with `n` ranks on several `hosts`, which take turns with
    /// `runs` of consecutive ranks.
    fn of(method: Method, n: f64, hosts: f64, runs: f64) -> Crossing {
        let size = n / hosts;
        let rounds = hosts.log2() / n.log2();
        match method {
            // The rank at the end of a run sends everything to the next.
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
            // The farthest exchange the largest parts, of a vector of as many as there are ranks.
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

impl Call<'_> {
    pub(super) fn over_messages(&self) -> f64 {
        let parts = self.parts();
        let work = match self.constants.is_oversubscribed() {
            true => self.in_turns(&parts),
            false => parts.iter().map(|part| self.side_by_side(part)).sum(),
        };
        let port = match self.is_on_one_host() {
            // Into a cell and out of it.
            true => {
                let all = self.terms.all;
                self.at_the_port(2.0 * all.bytes + all.reduced, work)
            }
            false => 0.0,
        };
        self.planned() + work + port
    }

    /// What goes by shared memory, and what by sockets.
    fn parts(&self) -> [Part; 2] {
        let hosts = self.question.hosts as f64;
        let Terms {
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
        let mut between = Part {
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
        let mut link = self.link(true, 1.0);
        if several && self.constants.is_oversubscribed() {
            link.us_per_byte *= self.core_cache_factor(busiest);
        }
        if several && self.lends(busiest) {
            // One pass over the bytes instead of two, and no cells to be taken back.
            let passes = 1.0 - self.lent_share(hosts) / 2.0;
            link.us_per_byte *= passes;
            link.fresh_us_per_byte *= passes;
        }
        [
            Part {
                link,
                hops,
                busiest,
                all,
            },
            between,
        ]
    }

    /// By how much bytes through a ring go faster among ranks that take turns on their host's core:
    /// what fits its cache stays there.
    fn core_cache_factor(&self, load: Load) -> f64 {
        let messages = (load.messages * self.pieces()).max(1.0);
        let missing = self.missing(self.size * load.bytes / messages);
        missing + (1.0 - missing) * self.constants.shared_core_ring_factor
    }

    /// Whether the messages of `load` are lent from registered memory.
    fn lends(&self, load: Load) -> bool {
        self.question.lends && self.is_of_messages(load, LENT_BYTES_MIN)
    }

    /// Whether those of `load`, which leave their host, wait for grants.
    fn needs_grants(&self, load: Load) -> bool {
        self.constants.grant_us > 0.0 && self.is_of_messages(load, WHOLE_BYTES_MAX + 1)
    }

    /// What grants make of the hops between hosts, where a rank has messages from `peers`: how many
    /// there are, and how many of them wait for a grant.
    ///
    /// A receive is posted, and its grant sent, when its memory is free. What only moves has memory
    /// of its own, so its grants are there in time but for the first. What is combined with other
    /// messages waits until these are.
    fn granted(&self, hops: f64, peers: f64) -> (f64, f64) {
        let (collective, method) = (self.question.collective, self.way.method());
        match method {
            _ if !collective.reduces() => (hops, 1.0),
            Method::Ring => (hops, 1.0),
            // All of a rank's messages are combined in one place.
            Method::Direct | Method::OneShot | Method::Flat => (hops + peers - 1.0, peers),
            Method::RecursiveDoubling => (hops, hops),
            // Half of them spread results.
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

    /// The share of the bytes within a host that can be lent, as `ringfold schedule` shows: those
    /// that leave from the caller's memory, and not from scratch.
    fn lent_share(&self, hosts: f64) -> f64 {
        match (self.question.collective, self.way.method()) {
            // First each block goes to the rank that sends it to its host, and there to its own:
            // by then, all that came from another host is in scratch.
            (Collective::AllToAll, Method::Hierarchical) => (1.0 + 1.0 / hosts) / 2.0,
            // The hosts of all but the root get what they pass on.
            (Collective::Scatter, Method::Leader) => 1.0 / hosts,
            // The root collects what other ranks have reduced.
            (Collective::Reduce, Method::Hierarchical) => 0.5,
            _ => 1.0,
        }
    }

    /// Where ranks outnumber cores.
    fn in_turns(&self, parts: &[Part; 2]) -> f64 {
        let time = |load: Load, link: &Link| {
            load.messages * self.pieces() * link.message_us
                + self.size * load.bytes * link.us_per_byte
                + self.size * (2.0 * load.bytes - load.reduced).max(0.0) * link.staging_us_per_byte
                + self.size * load.reduced * self.reduce_us_per_byte()
        };
        let busiest = |part: &Part| time(self.alone_in_turns(part.busiest), &part.link);
        let all = |part: &Part| time(part.all, &part.link);
        let work = self.by_cores(parts.iter().map(busiest).sum(), parts.iter().map(all).sum());
        let hops = parts.iter().map(|part| part.hops * part.link.hop_us);
        let used = parts.iter().filter(|part| part.hops > 0.0);
        let first_us = used.map(|part| part.link.first_us).fold(0.0, f64::max);
        first_us + hops.sum::<f64>() + work
    }

    /// What of the load of the busiest rank no other core can do, in units of messages at both
    /// ends.
    fn alone_in_turns(&self, busiest: Load) -> Load {
        let (collective, method) = (self.question.collective, self.way.method());
        // A rank's bytes take half of what those of a message take at both its ends; all of it
        // where the ends wait for each other: up to a root and down again, or because a message of
        // several blocks has left the cache before it is passed on.
        let bytes = match (collective, method) {
            (Collective::AllReduce, Method::Tree | Method::Flat) => 1.0,
            (Collective::Gather | Collective::Scatter, Method::Leader) => {
                0.5 + 0.5 * self.missing(self.size / self.question.hosts as f64)
            }
            _ => 0.5,
        };
        // Its messages take all that they take, one after the other, unless it only receives them,
        // from ranks that do not share a core.
        let is_apart = self.question.hosts == self.question.world_size;
        let messages = match collective {
            Collective::Reduce | Collective::Gather if is_apart && method != Method::Direct => 0.5,
            _ => 1.0,
        };
        // The ranks of a host do alike, and share its core.
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

    /// Where every rank has a core.
    fn side_by_side(&self, part: &Part) -> f64 {
        let Part {
            link,
            hops,
            busiest,
            ..
        } = part;
        let (n, gamma) = (self.n, self.reduce_us_per_byte());
        let fresh = busiest.bytes * self.size * link.fresh_us_per_byte;
        // A piece is copied while another one is on its way.
        let us_per_byte = link.us_per_byte.max(link.staging_us_per_byte);
        if is_chain(self.question.collective, self.way.method()) {
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
        // A root combines a slice while the next is on its way.
        let combining = match (self.question.collective, self.way.method()) {
            (Collective::Reduce, Method::Flat | Method::Tree) => busiest.reduced / self.slices,
            _ => busiest.reduced,
        };
        let moving = busiest.bytes * us_per_byte * crowd + combining * gamma;
        hops * link.hop_us + further * link.message_us + self.size * moving + fresh
    }

    /// Messages for each of the schedule's.
    fn pieces(&self) -> f64 {
        self.slices * self.way.channels as f64
    }

    fn is_on_one_host(&self) -> bool {
        self.question.slot_bytes.is_some()
    }

    /// What carries messages within a host or between hosts, where `senders` share a line. Where
    /// ranks outnumber cores its times are those of both ends together.
    fn link(&self, is_within_host: bool, senders: f64) -> Link {
        let constants = self.constants;
        // Communicators that have registered memory are taken to call on it.
        let staging_us_per_byte = match self.question.lends {
            true => 0.0,
            false => constants.staging_us_per_byte,
        };
        match (is_within_host, constants.is_oversubscribed()) {
            (true, true) => {
                let turns_us = constants.turn_us * constants.load;
                Link {
                    hop_us: constants.further_hop_turns * turns_us,
                    first_us: (1.0 - constants.further_hop_turns) * turns_us,
                    message_us: constants.ring_message_us + constants.ring_turn_us,
                    us_per_byte: constants.ring_us_per_byte,
                    ..Link::default()
                }
            }
            (true, false) => Link {
                hop_us: constants.ring_hop_us,
                message_us: constants.ring_message_us,
                us_per_byte: constants.ring_us_per_byte,
                // The receiver's of what was sent, and the sender's of cells that were emptied.
                fresh_us_per_byte: 2.0 * constants.line_us_per_byte,
                ..Link::default()
            },
            (false, true) => Link {
                hop_us: constants.shared_core_hop_factor * constants.socket_hop_us,
                message_us: constants.socket_message_us + constants.socket_turn_us,
                us_per_byte: constants.socket_work_us_per_byte,
                staging_us_per_byte,
                ..Link::default()
            },
            (false, false) => Link {
                hop_us: constants.socket_hop_us,
                message_us: constants.socket_message_us,
                us_per_byte: (constants.socket_us_per_byte * senders)
                    .max(constants.socket_work_us_per_byte / 2.0),
                staging_us_per_byte,
                incast: constants.incast,
                ..Link::default()
            },
        }
    }
}
