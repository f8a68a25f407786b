//! Costs of messages on the two kinds of links of a job, within a host and between hosts.
//! `ringfold tune calibrate` measures these costs in a job of several hosts.
//!
//! The numbers are those of LogGP, and the processor's costs of the kernel's copies and packets.
//! The [cost model](super::model) uses the numbers as [`Constants`], the simulator as the
//! parameters of its network and processors.

#![forbid(unsafe_code)]

use std::fmt;

use super::constants::Constants;
use super::parameters::{self, Overrides, parameters};

/// Maximum length of the text of link costs.
pub const TEXT_BYTES_MAX: usize = 4 << 10;

/// Maximum time of one event, and of a byte, in microseconds.
const EVENT_US_MAX: f64 = 1e6;
const BYTE_US_MAX: f64 = 10.0;

/// Maximum capacity of a stream, in bytes.
const WINDOW_BYTES_MAX: f64 = 1e12;

parameters! {
    /// Costs of messages. The defaults are those of the hosts of one machine.
    #[derive(Clone, Debug, PartialEq)]
    "link cost" LinkCosts of f64, text up to TEXT_BYTES_MAX {
        /// Latency between hosts: from the first byte's departure to its arrival.
        socket_alpha_us = 0.5, 0.0..=EVENT_US_MAX;
        /// Processor time at each end for a message through a socket.
        socket_overhead_us = 4.6, 0.0..=EVENT_US_MAX;
        /// Processor time at each end for a message through a socket, on a core that several ranks
        /// share.
        socket_crowded_us = 4.6, 0.0..=EVENT_US_MAX;
        /// Additional processor time at each end for a message of more than one packet.
        socket_packets_us = 2.5, 0.0..=EVENT_US_MAX;
        /// Time of a byte on a link; 0 if the processors at its ends are the limit.
        socket_us_per_byte = 0.0, 0.0..=BYTE_US_MAX;
        /// Processor time at each end for a byte through a socket.
        socket_work_us_per_byte = 9e-5, 0.0..=BYTE_US_MAX;
        /// Capacity of a stream between hosts: the socket's buffers.
        socket_window_bytes = 1048576.0, 1.0..=WINDOW_BYTES_MAX;
        /// Latency within a host: from the writing of a cell until its receiver sees it.
        ring_alpha_us = 0.3, 0.0..=EVENT_US_MAX;
        /// Processor time at each end for a message through a ring of shared memory.
        ring_overhead_us = 0.5, 0.0..=EVENT_US_MAX;
        /// Processor time at each end for a message through a ring, on a core that several ranks
        /// share.
        ring_crowded_us = 0.5, 0.0..=EVENT_US_MAX;
        /// Processor time at each end for a byte through a ring.
        ring_work_us_per_byte = 6e-5, 0.0..=BYTE_US_MAX;
        /// Capacity of a ring: its cells.
        ring_window_bytes = 524288.0, 1.0..=WINDOW_BYTES_MAX;
        /// Time of reducing a byte of two operands.
        reduce_us_per_byte = 3.3e-5, 0.0..=BYTE_US_MAX;
        /// Capacity of the last-level caches of a machine.
        cache_bytes = 33554432.0, 1.0..=WINDOW_BYTES_MAX;
        /// Additional time of a byte that a processor reads from memory.
        miss_us_per_byte = 4e-5, 0.0..=BYTE_US_MAX;
        /// Time that a waiting rank polls before it sleeps.
        spin_us = 20.0, 0.0..=EVENT_US_MAX;
        /// Wake-up time of a sleeping rank, if a core was idle.
        wake_us = 20.0, 0.0..=EVENT_US_MAX;
        /// Wake-up time of a sleeping rank, if another rank has just left the core.
        switch_us = 1.5, 0.0..=EVENT_US_MAX;
    }
}

impl LinkCosts {
    /// Parses costs from a file; `None` unless all are present and within their bounds.
    pub fn decode(text: &str) -> Option<LinkCosts> {
        let mut values = Overrides::default();
        parameters::read::<LinkCosts>(text, |name, value| values.add(name, value)).ok()?;
        values.is_whole().then(|| values.over(LinkCosts::default()))
    }

    /// Returns `constants` with these costs of messages.
    pub fn over(&self, constants: Constants) -> Constants {
        let work_us_per_byte = 2.0 * self.socket_work_us_per_byte;
        Constants {
            socket_hop_us: hop_us(self.socket_alpha_us, self.socket_overhead_us),
            socket_message_us: self.socket_overhead_us,
            // If processors are the limit, they move a byte at one end at a time.
            socket_us_per_byte: match self.socket_us_per_byte {
                0.0 => self.socket_work_us_per_byte,
                measured => measured,
            },
            socket_work_us_per_byte: work_us_per_byte,
            ring_hop_us: hop_us(self.ring_alpha_us, self.ring_overhead_us),
            ring_message_us: self.ring_overhead_us,
            ring_us_per_byte: 2.0 * self.ring_work_us_per_byte,
            ..constants
        }
    }
}

/// Returns the time of an empty message, from send to receive.
pub(super) fn hop_us(alpha_us: f64, overhead_us: f64) -> f64 {
    alpha_us + 2.0 * overhead_us
}

/// Writes the form that [`LinkCosts::decode`] reads.
impl fmt::Display for LinkCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        parameters::write(self, f)
    }
}

/// Measured times of one kind of link between two ranks, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkTimes {
    /// Half of an empty message's round trip.
    pub hop_us: f64,
    /// Time per message of many small messages in one direction.
    pub message_us: f64,
    /// Time per byte of many large messages in one direction.
    pub one_way_us_per_byte: f64,
    /// Time per byte of each direction, for large messages in both directions at once.
    pub exchange_us_per_byte: f64,
}

/// Returns a message's overhead at each end on a core that both ends share, from the time of a hop.
/// The core switches from the sender to the receiver, and the ends never work at the same time.
pub fn crowded_us(hop_us: f64, alpha_us: f64, switch_us: f64) -> f64 {
    (hop_us - alpha_us - switch_us).max(0.0) / 2.0
}

/// Maximum time of both directions at once, relative to one, on a full-duplex link. Beyond this
/// factor, the processors are the limit.
const FULL_DUPLEX_FACTOR_MAX: f64 = 1.3;

impl LinkTimes {
    /// Returns a message's latency and its overhead at each end. The busier end determines the time
    /// of many messages in a row; a hop has both ends and the latency.
    pub fn latency_us(&self) -> (f64, f64) {
        let overhead_us = self.message_us.min(self.hop_us / 2.0);
        (self.hop_us - 2.0 * overhead_us, overhead_us)
    }

    /// Returns the time of a byte on the link, and at each end's processor. `processor_us_per_byte`
    /// is the processor time of one rank in an exchange, in which it sends a byte and receives one.
    pub fn byte_us(&self, processor_us_per_byte: f64) -> (f64, f64) {
        let link_us = self.one_way_us_per_byte;
        let is_link_the_limit = self.exchange_us_per_byte < FULL_DUPLEX_FACTOR_MAX * link_us;
        let work_us = processor_us_per_byte.min(self.exchange_us_per_byte) / 2.0;
        match is_link_the_limit {
            true => (link_us, work_us.min(link_us)),
            false => (0.0, self.exchange_us_per_byte / 2.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_survive_their_text() {
        let costs = LinkCosts {
            wake_us: 12.5,
            ..LinkCosts::default()
        };
        assert_eq!(LinkCosts::decode(&costs.to_string()), Some(costs.clone()));
        for (from, to) in [
            ("wake_us=12.5", "wake_us=-1"),
            ("wake_us=12.5", "wake_us=NaN"),
            ("wake_us=12.5,", ""),
            ("wake_us", "wakes_us"),
            ("ring_window_bytes=524288", "ring_window_bytes=0"),
        ] {
            let text = costs.to_string();
            let spoiled = text.replacen(from, to, 1);
            assert_ne!(spoiled, text, "{from}");
            assert_eq!(LinkCosts::decode(&spoiled), None, "{to}");
        }
    }

    #[test]
    fn the_cost_model_has_the_costs_of_messages() {
        let costs = LinkCosts {
            socket_alpha_us: 1.0,
            socket_overhead_us: 4.0,
            ring_overhead_us: 0.25,
            ring_alpha_us: 0.0,
            ..LinkCosts::default()
        };
        let constants = costs.over(Constants {
            hop_us: 0.7,
            ..Constants::default()
        });
        assert_eq!((constants.socket_hop_us, constants.ring_hop_us), (9.0, 0.5));
        assert_eq!(constants.socket_us_per_byte, costs.socket_work_us_per_byte);
        assert_eq!(constants.hop_us, 0.7);
    }

    /// Returns the times of links with these costs, by LogGP.
    fn times(alpha_us: f64, overhead_us: f64, link: f64, work: f64) -> LinkTimes {
        LinkTimes {
            hop_us: alpha_us + 2.0 * overhead_us,
            message_us: overhead_us,
            one_way_us_per_byte: f64::max(link, work),
            exchange_us_per_byte: f64::max(link, 2.0 * work),
        }
    }

    #[test]
    fn a_hop_on_one_core_has_both_ends_and_a_switch() {
        assert_eq!(crowded_us(10.5, 0.5, 1.5), 4.25);
        assert_eq!(crowded_us(1.0, 0.0, 1.5), 0.0);
    }

    #[test]
    fn costs_follow_from_times() {
        let is_close = |one: f64, other: f64| (one - other).abs() < 1e-9;
        // A slow link between idle processors, and a link that is faster than the processors.
        for (alpha, overhead, link, work) in [(20.0, 2.0, 1e-3, 1e-4), (0.5, 4.0, 0.0, 1e-4)] {
            let times = times(alpha, overhead, link, work);
            let (alpha_us, overhead_us) = times.latency_us();
            assert!(is_close(alpha_us, alpha) && is_close(overhead_us, overhead));
            let (link_us, work_us) = times.byte_us(2.0 * work);
            assert!(
                is_close(link_us, link) && is_close(work_us, work),
                "{times:?}"
            );
        }
        // Inconsistent times yield no negative latency.
        let odd = LinkTimes {
            message_us: 9.0,
            ..times(0.0, 1.0, 0.0, 0.0)
        };
        assert_eq!(odd.latency_us(), (0.0, 1.0));
    }
}
