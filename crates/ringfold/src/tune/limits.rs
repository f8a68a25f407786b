//! Size limits, as data: the pieces in which calls are pipelined, the results that use non-temporal
//! stores, and the calls that use helpers.
//!
//! A pure function derives a [`Limits`] from a [`Machine`], so no number here belongs to one
//! machine. Each rank of a communicator proposes its limits; all ranks use those of rank 0, without
//! the features that any rank disables (`setup/terms.rs`). [`choose`](super::choose),
//! [`Question`](super::Question) and setup read the table. The way of a call is not decided here,
//! but by prices ([`model`](super::model)).
//!
//! The text form is that of [`mod@parameters`], with `never` for a disabled feature;
//! `RINGFOLD_LIMITS` overrides entries.

#![forbid(unsafe_code)]

use std::fmt;

pub use super::parameters::NEVER;
use super::parameters::{self, ParameterTable, parameters};
use crate::topology::Machine;

/// Maximum length of the text of a table.
const TEXT_BYTES_MAX: usize = 4096;

/// Limits that replace derived ones.
pub type LimitOverrides = parameters::Overrides<Limits>;

parameters! {
    /// The size limits of a communicator. The defaults are for a machine whose caches are unknown.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    "limit" Limits of u64, text up to TEXT_BYTES_MAX {
        /// Slice size of calls in published memory; a slot's size also bounds it.
        shared_slice_bytes = 64 << 10, 64..=1 << 30;
        /// Slice size of rooted calls without reduction in published memory, if they have several
        /// slices.
        rooted_slice_bytes = 32 << 10, 64..=1 << 30;
        /// Largest call without weights and policies for slow ranks: latency decides.
        latency_bytes_max = 32 << 10, 0..=NEVER;
        /// Smallest call whose out-of-place results use non-temporal stores.
        stream_bytes_min = 1 << 20, 0..=NEVER;
        /// Smallest block that ranks read from the memory of a sender of their host, if all ranks
        /// are able to.
        read_bytes_min = 128 << 10, 1..=NEVER;
        /// Smallest call for which idle cores help.
        helper_bytes_min = NEVER, 0..=NEVER;
    }
}

impl Limits {
    /// Returns the limits for `ranks` ranks of one host, from its cache sizes and cores.
    pub fn derive(machine: &Machine, ranks: usize) -> Limits {
        let share = |cache| machine.share_bytes(cache, ranks) as u64;
        let (l2, last) = (share(machine.l2), share(machine.last));
        let is_oversubscribed = ranks > machine.cores;
        let within = |bytes: u64, least: u64, most: u64| bytes.clamp(least << 10, most << 10);
        Limits {
            // The second level holds input, output, and the slots of two ranks, twice over because
            // slices overlap. If ranks take turns on a core, only one of them uses it at a time,
            // and every slice costs a round of turns.
            shared_slice_bytes: within(if is_oversubscribed { l2 / 4 } else { l2 / 8 }, 64, 1024),
            // The second level holds all slots of a rank twice over: one rank fills them while
            // another empties them.
            rooted_slice_bytes: within(if is_oversubscribed { l2 / 4 } else { l2 / 16 }, 32, 1024),
            // A result of this size leaves the last-level cache before its next use.
            stream_bytes_min: within((last / 8 * 3).min(l2.saturating_mul(6)), 1024, NEVER >> 10),
            helper_bytes_min: if machine.cores >= 2 * ranks {
                1 << 20
            } else {
                NEVER
            },
            ..Limits::default()
        }
    }

    /// Returns these limits, with `never` for the features that `other` disables.
    pub fn barring(mut self, other: &Limits) -> Limits {
        for parameter in Limits::PARAMETERS {
            if parameter.value(other) == NEVER {
                (parameter.write)(&mut self, NEVER);
            }
        }
        self
    }

    /// Decodes a table from another rank; `None` unless it is complete and within its bounds.
    pub fn decode(bytes: &[u8]) -> Option<Limits> {
        let values: LimitOverrides = std::str::from_utf8(bytes).ok()?.parse().ok()?;
        values.is_whole().then(|| values.over(Limits::default()))
    }
}

/// Writes the form that [`Limits::decode`] reads.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        parameters::write(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::machine::DataCache;

    const KIB: u64 = 1 << 10;

    /// Returns a machine; each cache is its KiB and the number of logical cores that share it.
    fn machine(
        l1: (usize, usize),
        l2: (usize, usize),
        last: (usize, usize),
        cores: usize,
    ) -> Machine {
        let cache = |(kib, shared_by): (usize, usize)| DataCache {
            bytes: kib << 10,
            shared_by,
        };
        Machine {
            l1: cache(l1),
            l2: cache(l2),
            last: cache(last),
            cores,
        }
    }

    fn two_cores() -> Machine {
        machine((32, 1), (1024, 1), (32 << 10, 2), 2)
    }

    /// Reads the caches of a machine of two cores from a fixture. One fixture was recorded, the
    /// other written from a report.
    fn recorded(name: &str) -> Machine {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sysfs");
        Machine::read(&std::path::Path::new(fixtures).join(name), 2)
    }

    #[test]
    fn a_machine_has_one_table() {
        let machine = recorded("epyc-4-2-cores");
        assert_eq!(machine, two_cores());
        let limits = Limits::derive(&machine, 2);
        assert_eq!(limits, Limits::derive(&machine, 2));
        assert_eq!(limits.shared_slice_bytes, 128 * KIB);
        assert_eq!(limits.rooted_slice_bytes, 64 * KIB);
        assert_eq!(limits.stream_bytes_min, 6 << 20);
        assert_eq!(limits.helper_bytes_min, NEVER);
    }

    #[test]
    fn another_machine_has_another_table() {
        let machine = recorded("sapphire-rapids-2-cores");
        let limits = Limits::derive(&machine, 2);
        assert_eq!(limits.shared_slice_bytes, 256 * KIB);
        assert_eq!(limits.stream_bytes_min, 12 << 20);
        // Each of four ranks has half of each cache, and they take turns.
        let crowded = Limits::derive(&machine, 4);
        assert_eq!(crowded.shared_slice_bytes, 256 * KIB);
    }

    /// Covers machines from no cache to absurd ones, and from one rank to far more than cores.
    #[test]
    fn every_machine_has_limits_within_their_bounds() {
        for kib in [0, 1, 48, 1 << 20, usize::MAX >> 10] {
            for cores in [1, 7, 4096] {
                for ranks in [1, 2, 64, 100_000] {
                    let machine = machine((kib, 1), (kib, 2), (kib, cores), cores);
                    let limits = Limits::derive(&machine, ranks);
                    for limit in Limits::PARAMETERS {
                        let value = limit.value(&limits);
                        assert!(
                            limit.bounds.contains(&value),
                            "{limit:?} {value} for {ranks} ranks of {machine:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_table_survives_its_text() {
        let limits = Limits::derive(&two_cores(), 2);
        assert_eq!(Limits::decode(limits.to_string().as_bytes()), Some(limits));
    }

    #[test]
    fn a_damaged_table_is_refused_or_whole() {
        let text = Limits::derive(&two_cores(), 2).to_string().into_bytes();
        for length in 0..text.len() {
            // A truncated last number is still a number; any other truncation loses an entry.
            let last_value = text.iter().rposition(|byte| *byte == b'=').unwrap() + 1;
            if length <= last_value {
                assert_eq!(Limits::decode(&text[..length]), None, "{length} bytes");
            }
        }
        for place in 0..text.len() {
            for bit in 0..8 {
                let mut damaged = text.clone();
                damaged[place] ^= 1 << bit;
                if let Some(limits) = Limits::decode(&damaged) {
                    for limit in Limits::PARAMETERS {
                        assert!(limit.bounds.contains(&limit.value(&limits)), "{limit:?}");
                    }
                }
            }
        }
        assert_eq!(Limits::decode(&[b'x'; TEXT_BYTES_MAX + 1]), None);
    }

    #[test]
    fn overrides_replace_what_they_name() {
        let overrides: LimitOverrides =
            "rooted_slice_bytes=16K, stream_bytes_min=never,helper_bytes_min=0"
                .parse()
                .unwrap();
        let limits = Limits::derive(&two_cores(), 2);
        let expected = Limits {
            rooted_slice_bytes: 16 * KIB,
            stream_bytes_min: NEVER,
            helper_bytes_min: 0,
            ..limits
        };
        assert_eq!(overrides.over(limits), expected);
    }

    #[test]
    fn a_wrong_override_says_what_is_wrong() {
        for (text, why) in [
            ("shared_slice_byte=64", "did you mean shared_slice_bytes?"),
            ("helper_bytes_min", "is not `name=bytes`"),
            ("rooted_slice_bytes=never", "must be 64 to 1073741824 bytes"),
            ("shared_slice_bytes=1", "must be 64 to"),
            ("stream_bytes_min=much", "unknown unit `much`"),
            ("helper_bytes_min=1,helper_bytes_min=2", "duplicate entry"),
        ] {
            let error = text.parse::<LimitOverrides>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
