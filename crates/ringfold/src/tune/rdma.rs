//! Costs of messages between hosts that RDMA joins. `ringfold tune calibrate` measures these costs
//! in a job over such devices.
//!
//! A device moves the bytes, so a processor spends little on a message, and nothing on a byte of
//! registered memory; other memory is copied at each end. A long message waits for its grant, by
//! which the receiver announces the destination. Each rank [decides](super::registration) for its
//! own device whether it registers memory for one call; registration then takes less than the copy
//! that is priced here. The [cost model](super::model) has these numbers as [`Constants`], in place
//! of those of sockets, which such a communicator does not use. The costs within a host are in
//! [`links`](super::links).

#![forbid(unsafe_code)]

use std::fmt;

use super::constants::Constants;
use super::links::hop_us;
use super::parameters::{self, Overrides, parameters};
use crate::transport::rdma;

/// Maximum length of the text of RDMA costs.
pub const TEXT_BYTES_MAX: usize = 2 << 10;

/// Maximum time of one event, and of a byte, in microseconds.
const EVENT_US_MAX: f64 = 1e6;
const BYTE_US_MAX: f64 = 10.0;

parameters! {
    /// Costs of messages over RDMA.
    ///
    /// The defaults are assumptions about hardware, not measured. Vendors and users of InfiniBand
    /// and RoCE report 1 to 3 µs from one program to another for a small message through one
    /// switch. The defaults add up to 2 µs, of which a processor spends 0.3 at each end on a
    /// request and its completion. The rate is that of the ports. A grant is a small message, and
    /// the copies are those of [`MemoryCosts`](super::MemoryCosts).
    #[derive(Clone, Debug, PartialEq)]
    "cost of RDMA" RdmaCosts of f64, text up to TEXT_BYTES_MAX {
        /// Latency: from the first byte's departure to its arrival.
        rdma_alpha_us = 1.4, 0.0..=EVENT_US_MAX;
        /// Processor time at each end for a message.
        rdma_overhead_us = 0.3, 0.0..=EVENT_US_MAX;
        /// Processor time at each end for a message, on a core that several ranks share.
        rdma_crowded_us = 0.3, 0.0..=EVENT_US_MAX;
        /// Time of a byte on a link; 0 for the rate of the ports.
        rdma_us_per_byte = 0.0, 0.0..=BYTE_US_MAX;
        /// Wait of a long message for its grant, if its receive is posted at the same time.
        rdma_grant_us = 2.0, 0.0..=EVENT_US_MAX;
        /// Time of copying a byte of unregistered memory, at each end.
        staging_us_per_byte = 5.5e-5, 0.0..=BYTE_US_MAX;
    }
}

impl RdmaCosts {
    /// The longest message that needs no grant, in bytes.
    pub const WHOLE_BYTES_MAX: usize = rdma::WHOLE_BYTES_MAX;

    /// Parses costs from a file. The error text names the cause.
    pub fn decode(text: &str) -> Result<RdmaCosts, String> {
        text.parse::<Overrides<RdmaCosts>>()?
            .whole_over(RdmaCosts::default())
    }

    /// Returns `constants` with these costs of messages between hosts. If no rate was measured,
    /// that of `constants` stays.
    pub fn over(&self, constants: Constants) -> Constants {
        Constants {
            socket_hop_us: hop_us(self.rdma_alpha_us, self.rdma_overhead_us),
            socket_message_us: self.rdma_overhead_us,
            // Together with `socket_message_us`, the crowded overhead of both ends.
            socket_turn_us: (2.0 * self.rdma_crowded_us - self.rdma_overhead_us).max(0.0),
            socket_us_per_byte: match self.rdma_us_per_byte {
                0.0 => constants.socket_us_per_byte,
                measured => measured,
            },
            socket_work_us_per_byte: 0.0,
            // No system call lets the receiver run.
            shared_core_hop_factor: 1.0,
            grant_us: self.rdma_grant_us,
            staging_us_per_byte: self.staging_us_per_byte,
            ..constants
        }
    }
}

/// Writes the form that [`RdmaCosts::decode`] reads.
impl fmt::Display for RdmaCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        parameters::write(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::MemoryCosts;

    #[test]
    fn costs_survive_their_text_and_the_text_says_what_it_lacks() {
        let costs = RdmaCosts {
            rdma_grant_us: 3.5,
            ..RdmaCosts::default()
        };
        let text = costs.to_string();
        assert_eq!(RdmaCosts::decode(&text), Ok(costs));
        for (from, to, due) in [
            (
                "rdma_grant_us=3.5",
                "rdma_grant_us=-1",
                "rdma_grant_us must be",
            ),
            ("rdma_grant_us=3.5,", "", "`rdma_grant_us` is missing"),
            (
                "rdma_grant_us",
                "rdma_grand_us",
                "did you mean rdma_grant_us",
            ),
        ] {
            let spoiled = text.replacen(from, to, 1);
            assert_ne!(spoiled, text, "{from}");
            let error = RdmaCosts::decode(&spoiled).unwrap_err();
            assert!(error.contains(due), "{error}");
        }
    }

    #[test]
    fn a_copy_costs_what_it_costs_in_the_choice_of_registering() {
        let own = RdmaCosts::default().staging_us_per_byte;
        assert_eq!(own, MemoryCosts::default().staging_us_per_byte);
    }

    #[test]
    fn the_cost_model_has_the_costs_of_rdma_between_hosts_and_its_own_within() {
        let own = Constants::default().over_links(100_000);
        let constants = RdmaCosts::default().over(own.clone());
        assert_eq!(constants.socket_hop_us, 2.0);
        assert_eq!(constants.socket_us_per_byte, own.socket_us_per_byte);
        assert_eq!(constants.ring_hop_us, own.ring_hop_us);
        assert_eq!(constants.grant_us, 2.0);
        let measured = RdmaCosts {
            rdma_us_per_byte: 1e-3,
            ..RdmaCosts::default()
        };
        assert_eq!(measured.over(own).socket_us_per_byte, 1e-3);
    }
}
