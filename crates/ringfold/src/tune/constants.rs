//! What the cost model knows of a machine and its network: named, bounded numbers, and corrections
//! where formulas do not reach.
//!
//! A [`Constants`] is derived from a [`Machine`] by a pure function, from defaults that were
//! measured once, or read from what `ringfold tune calibrate` has measured here. Rank 0's hold for
//! all ranks of a communicator, so that they price alike. [`model`](super::model) reads them; no
//! other module holds a time of its own.
//!
//! In text they are [`mod@parameters`], with [`Corrections`] behind them.

#![forbid(unsafe_code)]

use std::fmt;

use super::corrections::Corrections;
use super::parameters::{self, Overrides, parameters};
use crate::topology::Machine;

/// The longest text of constants and corrections that is read.
pub const TEXT_BYTES_MAX: usize = 48 << 10;

/// The most microseconds that one event takes.
const EVENT_US_MAX: f64 = 1e6;

/// The most microseconds that a byte takes.
const BYTE_US_MAX: f64 = 10.0;

/// The most that a factor is, or a count of turns or reads.
const FACTOR_MAX: f64 = 100.0;

const MIB: f64 = (1 << 20) as f64;

parameters! {
    /// The constants of a communicator's cost model.
    ///
    /// The defaults are for a machine with a core for every rank and 1 MiB of cache each, and a
    /// network of 20 Gbit/s. Where RDMA joins the hosts of a communicator, the constants of sockets
    /// are those of its messages ([`RdmaCosts::over`](super::rdma::RdmaCosts::over)).
    #[derive(Clone, Debug, PartialEq)]
    "constant" Constants of f64, text up to TEXT_BYTES_MAX {
        /// Ranks of one machine for each of its cores, where that is more than one.
        load = 1.0, 1.0..=1e6;
        /// What a rank has of the cache that its copies go through.
        cache_bytes = 4.0 * MIB, 0.0..=1e15;
        /// What a call costs that goes the shortest way.
        call_us = 0.05, 0.0..=EVENT_US_MAX;
        /// What a call costs more that goes by a plan.
        plan_us = 0.6, 0.0..=EVENT_US_MAX;
        /// From a publication in shared memory until a peer has seen it.
        hop_us = 0.2, 0.0..=EVENT_US_MAX;
        /// What a hop costs less whose payload stands in the line that announces it.
        inline_us = 0.05, 0.0..=EVENT_US_MAX;
        /// What each rank of another domain adds to a hop of which all ranks are part.
        domain_us = 0.1, 0.0..=EVENT_US_MAX;
        /// What a rank waits, where several share a core, until all of them had one turn; for each
        /// of them.
        turn_us = 2.5, 0.0..=EVENT_US_MAX;
        /// What each slice of published memory costs.
        slice_us = 0.3, 0.0..=EVENT_US_MAX;
        /// What a byte that a peer has just written costs more than others.
        line_us_per_byte = 3e-5, 0.0..=BYTE_US_MAX;
        /// Copying a byte within the caches.
        copy_us_per_byte = 1.5e-5, 0.0..=BYTE_US_MAX;
        /// Combining a byte of two operands within the caches.
        reduce_us_per_byte = 1.5e-5, 0.0..=BYTE_US_MAX;
        /// The host's memory port: what each copied or combined byte beyond the caches takes of it,
        /// all ranks together.
        memory_us_per_byte = 2.5e-5, 0.0..=BYTE_US_MAX;
        /// What a rank spends on claiming blocks.
        claim_us = 3.6, 0.0..=EVENT_US_MAX;
        /// What a rank spends on finding out where others' registered buffers lie.
        expose_us = 0.5, 0.0..=EVENT_US_MAX;
        /// From the sending of an empty message through a ring of shared memory until it is
        /// received.
        ring_hop_us = 0.4, 0.0..=EVENT_US_MAX;
        /// What a rank spends on each further message through a ring.
        ring_message_us = 0.15, 0.0..=EVENT_US_MAX;
        /// What a message through a ring costs more where ranks share cores.
        ring_turn_us = 0.3, 0.0..=EVENT_US_MAX;
        /// A byte through a ring, in and out.
        ring_us_per_byte = 1.15e-4, 0.0..=BYTE_US_MAX;
        /// From the sending of an empty message through a socket until it is received: α.
        socket_hop_us = 25.0, 0.0..=EVENT_US_MAX;
        /// What a rank spends on each further message through a socket: o.
        socket_message_us = 2.0, 0.0..=EVENT_US_MAX;
        /// What a message through a socket costs more where ranks share cores.
        socket_turn_us = 6.5, 0.0..=EVENT_US_MAX;
        /// A byte through a link: β.
        socket_us_per_byte = 4e-4, 0.0..=BYTE_US_MAX;
        /// What the cores at both ends spend on a byte through a socket.
        socket_work_us_per_byte = 2.45e-4, 0.0..=BYTE_US_MAX;
        /// What a message of more than 4 KiB waits for over RDMA: its grant.
        grant_us = 0.0, 0.0..=EVENT_US_MAX;
        /// What copying a byte of memory that is not registered costs at each end over RDMA.
        staging_us_per_byte = 0.0, 0.0..=BYTE_US_MAX;
        /// By how much a link's time grows with each further sender that crowds a receiver.
        incast = 0.08, 0.0..=1.0;
        /// What lies in the caches for each byte of a call: input, output, and slots or cells.
        footprint = 3.0, 1.0..=FACTOR_MAX;
        /// By how much copying and combining take longer where ranks share a core, because each
        /// finds its caches full of another's data.
        shared_core_factor = 3.3, 1.0..=FACTOR_MAX;
        /// Turns that ranks wait for until all blocks were assigned and combined: the second is
        /// shorter, because any rank ends it.
        dynamic_turns = 1.5, 0.0..=FACTOR_MAX;
        /// By how much work with dynamic assignment takes longer where ranks share cores: in
        /// published memory, ...
        claimed_factor = 1.2, 1.0..=FACTOR_MAX;
        /// ... in registered buffers, in which blocks keep to their ranks where they can, ...
        served_factor = 1.1, 1.0..=FACTOR_MAX;
        /// ... and in both where every rank has a core, because blocks always change it.
        moved_blocks_factor = 2.0, 1.0..=FACTOR_MAX;
        /// What is pushed goes through the caches once, what is published twice.
        pushed_factor = 0.7, 0.0..=1.0;
        /// Of the turns of all ranks of a core, those that a further hop waits for: a rank that
        /// waits need not be the last to run.
        further_hop_turns = 0.4, 0.0..=1.0;
        /// Of the time of a hop through a socket where a core is free, what it takes among ranks
        /// that share cores, because the sender lets the receiver run.
        shared_core_hop_factor = 0.36, 0.0..=FACTOR_MAX;
        /// Of the time of a byte through a ring between cores, what it takes among the ranks of one
        /// of several hosts that share cores: they sit on one core, and what fits its cache stays
        /// there.
        shared_core_ring_factor = 0.33, 0.0..=FACTOR_MAX;
        /// How often a vector that is reduced in two levels is read once more: partial sums, and
        /// results by each domain.
        domain_reads = 2.0, 0.0..=FACTOR_MAX;
    }
    beside
    /// Where formulas do not reach.
    corrections: Corrections
}

impl Constants {
    /// The constants for `ranks` ranks of one machine, by its cores and the sizes of its caches;
    /// times are the default ones.
    pub fn derive(machine: &Machine, ranks: usize) -> Constants {
        Constants::default().on(machine, ranks)
    }

    /// These times for `ranks` ranks of `machine`: how many share a core and what each has of the
    /// caches.
    pub fn on(self, machine: &Machine, ranks: usize) -> Constants {
        let share = |cache| machine.share_bytes(cache, ranks);
        Constants {
            load: (ranks as f64 / machine.cores.max(1) as f64).max(1.0),
            cache_bytes: share(machine.l2).max(share(machine.last)) as f64,
            ..self
        }
    }

    /// These times where hosts are joined by links of `rate_mbps`.
    pub fn over_links(self, rate_mbps: u32) -> Constants {
        // Mbit/s are bits in a microsecond.
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

    /// The constants that another rank sent; `None` unless they are whole and within their bounds.
    pub fn decode(bytes: &[u8]) -> Option<Constants> {
        Constants::parse(std::str::from_utf8(bytes).ok()?).ok()
    }

    /// The constants that a file holds, as [`decode`](Constants::decode). The error says what is
    /// wrong.
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

/// The form that [`Constants::decode`] reads.
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
