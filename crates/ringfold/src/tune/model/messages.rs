//! Prices of calls over messages: through rings of shared memory or through sockets.

use super::{Call, Load, Method};
use crate::tune::terms::is_chain;
use crate::types::Collective;

/// What messages cost on their way.
#[derive(Default)]
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

impl Call<'_> {
    pub(super) fn over_messages(&self) -> f64 {
        let work = match self.constants.is_oversubscribed() {
            true => self.in_turns(),
            false => self.side_by_side(),
        };
        let port = match self.is_on_one_host() {
            // Into a cell and out of it.
            true => {
                let all = self.work_of_all();
                self.at_the_port(2.0 * all.bytes + all.reduced, work)
            }
            false => 0.0,
        };
        self.planned() + work + port
    }

    /// Where ranks outnumber cores.
    fn in_turns(&self) -> f64 {
        let link = self.link();
        let time = |load: Load| {
            load.messages * self.pieces() * link.message_us
                + self.size * load.bytes * link.us_per_byte
                + self.size * load.reduced * self.reduce_us_per_byte()
        };
        let busiest = self.terms.busiest;
        let busiest = Load {
            bytes: self.constants.end_share * busiest.bytes,
            ..busiest
        };
        let work = self.by_cores(time(busiest), time(self.work_of_all()));
        link.first_us + self.terms.hops * link.hop_us + work
    }

    /// Where every rank has a core.
    fn side_by_side(&self) -> f64 {
        let link = self.link();
        let (n, gamma) = (self.n, self.reduce_us_per_byte());
        let busiest = self.terms.busiest;
        let fresh = busiest.bytes * self.size * link.fresh_us_per_byte;
        if is_chain(self.question.collective, self.way.method()) {
            let reduces = f64::from(u8::from(self.question.collective.reduces()));
            let piece = self.size / self.slices * (link.us_per_byte + reduces * gamma);
            return (n - 2.0 + self.slices) * (link.hop_us + piece) + fresh;
        }
        let crowd = match self.way.method() {
            Method::Direct | Method::OneShot | Method::Flat => 1.0 + link.incast * (n - 2.0),
            _ => 1.0,
        };
        let hops = self.terms.hops;
        let further = (busiest.messages * self.pieces() - hops).max(0.0);
        let moving = busiest.bytes * link.us_per_byte * crowd + busiest.reduced * gamma;
        hops * link.hop_us + further * link.message_us + self.size * moving + fresh
    }

    /// Messages for each of the schedule's.
    fn pieces(&self) -> f64 {
        self.slices * self.way.channels as f64
    }

    fn is_on_one_host(&self) -> bool {
        self.question.slot_bytes.is_some()
    }

    /// What all ranks do, and bytes more for cores that are idle meanwhile.
    fn work_of_all(&self) -> Load {
        use Method::{Rabenseifner, RecursiveDoubling, Tree};
        let constants = self.constants;
        let is_all_reduce = self.question.collective == Collective::AllReduce;
        let idle_factor = match self.way.method() {
            Tree => constants.tree_idle_factor,
            // Each waits for its partner.
            RecursiveDoubling | Rabenseifner if is_all_reduce => constants.pairs_idle_factor,
            _ => 1.0,
        };
        let all = self.terms.all;
        Load {
            bytes: all.bytes * idle_factor,
            ..all
        }
    }

    /// What carries messages. Where ranks outnumber cores its times are those of both ends
    /// together.
    fn link(&self) -> Link {
        let constants = self.constants;
        match (self.is_on_one_host(), constants.is_oversubscribed()) {
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
                first_us: constants.shared_core_first_hop_factor * constants.socket_hop_us,
                message_us: constants.socket_message_us + constants.socket_turn_us,
                us_per_byte: constants.socket_work_us_per_byte,
                ..Link::default()
            },
            (false, false) => Link {
                hop_us: constants.socket_hop_us,
                message_us: constants.socket_message_us,
                us_per_byte: constants
                    .socket_us_per_byte
                    .max(constants.socket_work_us_per_byte / 2.0),
                incast: constants.incast,
                ..Link::default()
            },
        }
    }
}
