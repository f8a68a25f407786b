//! The cost model's constants of a machine and its network: named, bounded numbers, and corrections
//! of its formulas.
//!
//! A pure function derives a [`Constants`] from a [`Machine`] and from defaults that were measured
//! once, or from the measurements of `ringfold tune calibrate` on this machine. All ranks of a
//! communicator use those of rank 0, so that their prices are equal. The [`model`](super::model)
//! reads these constants, and defines no times of its own.
//!
//! Their text form is that of [`mod@parameters`], followed by [`Corrections`].

#![forbid(unsafe_code)]

use std::fmt;

use super::corrections::Corrections;
use super::parameters::{self, Overrides, parameters};
use crate::topology::Machine;

/// Maximum length of the text of constants and corrections.
pub const TEXT_BYTES_MAX: usize = 48 << 10;

/// Maximum time of one event, in microseconds.
const EVENT_US_MAX: f64 = 1e6;

/// Maximum time of one byte, in microseconds.
const BYTE_US_MAX: f64 = 10.0;

/// Maximum of a factor, or of a count of turns or reads.
const FACTOR_MAX: f64 = 100.0;

const MIB: f64 = (1 << 20) as f64;

parameters! {
    /// The constants of a communicator's cost model.
    ///
    /// The defaults are for a machine with a core for every rank and 4 MiB of cache each, and a
    /// network of 20 Gbit/s. If RDMA joins the hosts of a communicator, the constants of sockets
    /// hold the costs of RDMA messages ([`RdmaCosts::over`](super::rdma::RdmaCosts::over)).
    #[derive(Clone, Debug, PartialEq)]
    "constant" Constants of f64, text up to TEXT_BYTES_MAX {
        /// Ranks per core of one machine, at least 1.
        load = 1.0, 1.0..=1e6;
        /// A rank's share of the cache that its copies go through.
        cache_bytes = 4.0 * MIB, 0.0..=1e15;
        /// Cost of a call that takes the shortest path.
        call_us = 0.05, 0.0..=EVENT_US_MAX;
        /// Additional cost of a call that runs by a plan.
        plan_us = 0.6, 0.0..=EVENT_US_MAX;
        /// Time from a publication in shared memory until a peer sees it.
        hop_us = 0.2, 0.0..=EVENT_US_MAX;
        /// Time saved by a hop whose payload is in the cache line that announces it.
        inline_us = 0.05, 0.0..=EVENT_US_MAX;
        /// Additional time of a hop of all ranks for each rank in another domain.
        domain_us = 0.1, 0.0..=EVENT_US_MAX;
        /// Wait until all ranks that share a core have had one turn, for each of these ranks.
        turn_us = 2.5, 0.0..=EVENT_US_MAX;
        /// Cost of each further slice of published memory.
        slice_us = 0.3, 0.0..=EVENT_US_MAX;
        /// Additional cost of a byte that a peer has just written.
        line_us_per_byte = 3e-5, 0.0..=BYTE_US_MAX;
        /// Cost of copying a byte within the caches.
        copy_us_per_byte = 1.5e-5, 0.0..=BYTE_US_MAX;
        /// Cost of reducing a byte of two operands within the caches.
        reduce_us_per_byte = 1.5e-5, 0.0..=BYTE_US_MAX;
        /// Time of the host's memory port, which all ranks share, for each copied or reduced byte
        /// beyond the caches.
        memory_us_per_byte = 2.5e-5, 0.0..=BYTE_US_MAX;
        /// Time that a rank spends on claiming blocks.
        claim_us = 3.6, 0.0..=EVENT_US_MAX;
        /// Time that a rank spends on locating its peers' registered buffers.
        expose_us = 0.5, 0.0..=EVENT_US_MAX;
        /// Time of an empty message through a ring of shared memory, from send to receive.
        ring_hop_us = 0.4, 0.0..=EVENT_US_MAX;
        /// Time that a rank spends on each further message through a ring.
        ring_message_us = 0.15, 0.0..=EVENT_US_MAX;
        /// Additional cost of a message through a ring if ranks share cores.
        ring_turn_us = 0.3, 0.0..=EVENT_US_MAX;
        /// Cost of a byte through a ring, in and out.
        ring_us_per_byte = 1.05e-4, 0.0..=BYTE_US_MAX;
        /// Additional cost of a message that the receiver reads from the sender's memory.
        read_us = 0.7, 0.0..=EVENT_US_MAX;
        /// Cost of a byte that the receiver reads from the sender's memory.
        read_us_per_byte = 5.8e-5, 0.0..=BYTE_US_MAX;
        /// Time of an empty message through a socket, from send to receive: α.
        socket_hop_us = 25.0, 0.0..=EVENT_US_MAX;
        /// Time that a rank spends on each further message through a socket: o.
        socket_message_us = 2.0, 0.0..=EVENT_US_MAX;
        /// Additional cost of a message through a socket if ranks share cores.
        socket_turn_us = 6.5, 0.0..=EVENT_US_MAX;
        /// Time of a byte on a link: β.
        socket_us_per_byte = 4e-4, 0.0..=BYTE_US_MAX;
        /// Time that the cores at both ends together spend on a byte through a socket.
        socket_work_us_per_byte = 2.45e-4, 0.0..=BYTE_US_MAX;
        /// Wait of an RDMA message of more than 4 KiB for its grant.
        grant_us = 0.0, 0.0..=EVENT_US_MAX;
        /// Cost of copying a byte of unregistered memory, at each end of an RDMA message.
        staging_us_per_byte = 0.0, 0.0..=BYTE_US_MAX;
        /// Relative growth of a link's time with each further sender to the same receiver.
        incast = 0.08, 0.0..=1.0;
        /// Bytes in the caches for each byte of a call: input, output, and slots or cells.
        footprint = 3.0, 1.0..=FACTOR_MAX;
        /// Slowdown of copying and reducing if ranks share a core, because each finds its caches
        /// full of another rank's data.
        shared_core_factor = 3.3, 1.0..=FACTOR_MAX;
        /// Turns until all blocks are assigned and reduced. The second turn is shorter, because any
        /// rank ends it.
        dynamic_turns = 1.5, 0.0..=FACTOR_MAX;
        /// Slowdown of dynamically assigned work in published memory if ranks share cores.
        claimed_factor = 1.2, 1.0..=FACTOR_MAX;
        /// Slowdown of dynamically assigned work in registered buffers if ranks share cores; blocks
        /// stay with their ranks if possible.
        served_factor = 1.1, 1.0..=FACTOR_MAX;
        /// Slowdown of dynamically assigned work if every rank has a core, because blocks always
        /// change cores.
        moved_blocks_factor = 2.0, 1.0..=FACTOR_MAX;
        /// Cost of pushed data, which goes through the caches once, relative to published data,
        /// which does so twice.
        pushed_factor = 0.7, 0.0..=1.0;
        /// Share of the turns of all ranks of a core that a further hop waits for: a waiting rank
        /// need not be the last to run.
        further_hop_turns = 0.4, 0.0..=1.0;
        /// Time of a socket hop between ranks that share cores, relative to one with a free core:
        /// the sender lets the receiver run.
        shared_core_hop_factor = 0.36, 0.0..=FACTOR_MAX;
        /// Time of a byte through a ring between ranks of one of several hosts that share a core,
        /// relative to one between cores: data that fits the core's cache stays there.
        shared_core_ring_factor = 0.33, 0.0..=FACTOR_MAX;
        /// Cost of a byte that is read from the sender's memory if ranks share cores, relative to
        /// one if they do not: each finds its caches full of another rank's data.
        shared_core_read_factor = 1.3, 0.0..=FACTOR_MAX;
    }
    beside
    /// Factors between measured times and formulas.
    corrections: Corrections
}

impl Constants {
    /// Returns the constants for `ranks` ranks of one machine, from its cores and cache sizes, with
    /// default times.
    pub fn derive(machine: &Machine, ranks: usize) -> Constants {
        Constants::default().on(machine, ranks)
    }

    /// Returns these constants for `ranks` ranks of `machine`, with their load and cache share.
    pub fn on(self, machine: &Machine, ranks: usize) -> Constants {
        let share = |cache| machine.share_bytes(cache, ranks);
        Constants {
            load: (ranks as f64 / machine.cores.max(1) as f64).max(1.0),
            cache_bytes: share(machine.l2).max(share(machine.last.owned())) as f64,
            ..self
        }
    }

    /// Returns these constants for hosts that are joined by links of `rate_mbps`.
    pub fn over_links(self, rate_mbps: u32) -> Constants {
        // 1 Mbit/s is one bit per microsecond.
        let us_per_byte = 8.0 / f64::from(rate_mbps.max(1));
        Constants {
            socket_us_per_byte: us_per_byte.min(BYTE_US_MAX),
            ..self
        }
    }

    /// Whether ranks outnumber the cores of their machine.
    pub fn is_oversubscribed(&self) -> bool {
        self.load > 1.0
    }

    /// Decodes constants from another rank; `None` unless all are present and within their bounds.
    pub fn decode(bytes: &[u8]) -> Option<Constants> {
        Constants::parse(std::str::from_utf8(bytes).ok()?).ok()
    }

    /// Parses constants from a file, as [`decode`](Constants::decode). The error text names the
    /// cause.
    pub fn parse(text: &str) -> Result<Constants, String> {
        let mut values = Overrides::default();
        let mut corrections = Corrections::default();
        let take = |name: &str, value: &str| match name.contains('@') {
            true => corrections.add(name, value),
            false => values.add(name, value),
        };
        parameters::read::<Constants>(text, take)?;
        values.whole_over(Constants {
            corrections,
            ..Constants::default()
        })
    }
}

/// Writes the form that [`Constants::decode`] reads.
impl fmt::Display for Constants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        parameters::write(self, f)?;
        match self.corrections.is_empty() {
            true => Ok(()),
            false => write!(f, ",{}", self.corrections),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::corrections::Key;

    fn ring() -> Key {
        "all_reduce.ring.simple".parse().expect("a key")
    }

    #[test]
    fn constants_survive_their_text() {
        let mut constants = Constants::derive(&Machine::here(), 5);
        constants.corrections.set(ring(), 20, 1.25);
        constants.corrections.set(ring(), 3, 0.5);
        let text = constants.to_string();
        assert_eq!(Constants::decode(text.as_bytes()), Some(constants));
    }

    #[test]
    fn text_that_means_nothing_is_refused() {
        let whole = Constants::default().to_string();
        let spoiled = |from: &str, to: &str| {
            let text = whole.replacen(from, to, 1);
            assert_ne!(text, whole);
            Constants::decode(text.as_bytes())
        };
        for (from, to) in [
            ("load=1", "load=0"),
            ("load=1", "load=NaN"),
            ("load=1", "load=inf"),
            ("load=1", "load=-1"),
            ("load=1,", ""),
            (",hop_us", ",hopp_us"),
            (",hop_us=0.2", ",hop_us=0.2,hop_us=0.2"),
        ] {
            assert_eq!(spoiled(from, to), None, "{to}");
        }
        for point in [
            "all_reduce.ring.simple@20=0",
            "all_reduce.ring.simple@20=NaN",
            "all_reduce.ring.simple@41=1",
            "all_reduce.ring@20=1",
            "all_reduce.ring.simple.x@20=1",
            "all_reduce.rung.simple@20=1",
            "all_reduce.ring.simple@20=1,all_reduce.ring.simple@20=1",
        ] {
            let text = format!("{whole},{point}");
            assert_eq!(Constants::decode(text.as_bytes()), None, "{point}");
        }
        assert_eq!(Constants::decode(&[0xff]), None);
        assert_eq!(Constants::decode(&vec![b' '; TEXT_BYTES_MAX + 1]), None);
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_nearest_one() {
        let error = "hop_uss=1".parse::<Overrides<Constants>>().unwrap_err();
        assert!(error.contains("hop_us"), "{error}");
        let error = "load=0.5".parse::<Overrides<Constants>>().unwrap_err();
        assert!(error.contains("load must be a number from 1 to"), "{error}");
    }

    #[test]
    fn ranks_share_cores_and_caches() {
        let machine = Machine {
            cores: 2,
            ..Machine::here()
        };
        let loads = [1, 2, 3, 4, 8].map(|ranks| Constants::derive(&machine, ranks).load);
        assert_eq!(loads, [1.0, 1.0, 1.5, 2.0, 4.0]);
        let caches = [2, 4].map(|ranks| Constants::derive(&machine, ranks).cache_bytes);
        assert!(caches[1] < caches[0], "{caches:?}");
    }
}
