//! The tuner's view of a machine, as one plain value: data caches, the cores that share them, and
//! cores.
//!
//! The value is read once, when a communicator is made. If the kernel does not report caches (on
//! some virtual and many Arm machines), those of an ordinary server core are assumed.

use std::path::Path;

use super::cores::{self, Cache};

/// A data cache: its size, and the number of logical cores that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataCache {
    /// Size in bytes.
    pub bytes: usize,
    /// Number of logical cores that share the cache, at least 1.
    pub shared_by: usize,
}

/// Maximum bytes of a cache for each logical core that shares it; few processors have more.
const CORE_BYTES_MAX: usize = 16 << 20;

impl DataCache {
    /// Returns the cache without what other machines use of it: a virtual machine of a few cores
    /// shows the whole last-level cache of its host.
    pub fn owned(self) -> DataCache {
        DataCache {
            bytes: self
                .bytes
                .min(self.shared_by.saturating_mul(CORE_BYTES_MAX)),
            ..self
        }
    }
}

/// A machine as one process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The first-level data cache.
    pub l1: DataCache,
    /// The second-level cache.
    pub l2: DataCache,
    /// The last-level cache: the third level, or the second if there is no third.
    pub last: DataCache,
    /// Number of cores that this process may use, at least 1.
    pub cores: usize,
}

/// The first-level cache of an ordinary server core.
const L1: DataCache = DataCache {
    bytes: 32 << 10,
    shared_by: 1,
};
const L2: DataCache = DataCache {
    bytes: 1 << 20,
    shared_by: 1,
};

impl Machine {
    /// Reads the machine whose `sys` is under `root`, for a process that may use `cores` cores.
    pub fn read(root: &Path, cores: usize) -> Machine {
        let caches = cores::caches(root);
        let level = |level: u8| {
            let is_data = |cache: &&Cache| cache.level == level && cache.kind != "Instruction";
            let cache = caches.iter().find(is_data)?;
            Some(DataCache {
                bytes: cache.bytes.max(1),
                shared_by: cache.shared_by.max(1),
            })
        };
        let l2 = level(2).unwrap_or(L2);
        Machine {
            l1: level(1).unwrap_or(L1),
            l2,
            last: level(3).unwrap_or(l2),
            cores: cores.max(1),
        }
    }

    /// Reads this machine, with the cores that this process may use.
    pub fn here() -> Machine {
        Machine::read(Path::new("/"), cores::available())
    }

    /// Returns the share of a cache of each of `ranks` ranks, spread evenly over the cores.
    pub fn share_bytes(&self, cache: DataCache, ranks: usize) -> usize {
        let users = (cache.shared_by * ranks).div_ceil(self.cores);
        cache.bytes / users.clamp(1, ranks.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_shows_no_caches_is_an_ordinary_one() {
        let machine = Machine::read(Path::new("/no/such/root"), 0);
        let (l1, l2, last) = (L1, L2, L2);
        let cores = 1;
        let expected = Machine {
            l1,
            l2,
            last,
            cores,
        };
        assert_eq!(machine, expected);
    }

    #[test]
    fn ranks_share_what_their_cores_share() {
        let l2 = DataCache {
            bytes: 1 << 20,
            shared_by: 2,
        };
        let last = DataCache {
            bytes: 32 << 20,
            shared_by: 16,
        };
        let cores = 64;
        let machine = Machine {
            l1: L1,
            l2,
            last,
            cores,
        };
        // Two ranks of 64 cores: apart. 64 ranks: two on each second level, 16 on each last one.
        // 128: twice that.
        let shares = |ranks| {
            (
                machine.share_bytes(l2, ranks),
                machine.share_bytes(last, ranks),
            )
        };
        assert_eq!(shares(2), (1 << 20, 32 << 20));
        assert_eq!(shares(64), (512 << 10, 2 << 20));
        assert_eq!(shares(128), (256 << 10, 1 << 20));
    }

    #[test]
    fn a_guest_owns_a_part_of_its_hosts_cache() {
        let cache = |mib: usize, shared_by| DataCache {
            bytes: mib << 20,
            shared_by,
        };
        assert_eq!(cache(260, 2).owned(), cache(32, 2));
        assert_eq!(cache(260, 96).owned(), cache(260, 96));
    }
}
