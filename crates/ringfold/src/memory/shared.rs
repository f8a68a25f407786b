//! Memory in a sealed memfd: made by one process and mapped by its peers.
//!
//! ```text
//! data, whole pages | notice page: one word, not 0 once the owner has released the memory
//! ```
//!
//! The file is sealed (see [`mapping`](super::mapping)), and no forked child shares it. A peer may
//! write anything to it: data, or the one word, which is neither an offset nor a length, so that a
//! false value harms only the owner.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::sysinfo::sysinfo;

use super::mapping::{Mapping, make_sealed, size_and_seals};
use crate::error::{Error, Result};
use crate::region::Region;

/// One process' mapping of the file.
#[derive(Debug)]
pub struct SharedMemory {
    map: Mapping,
    data_bytes: usize,
}

/// Rounds `bytes` up to whole pages; `None` on overflow.
pub fn in_pages(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(rustix::param::page_size())
}

/// Refuses more bytes than the machine has: the kernel would promise them, and later kill a
/// process.
pub fn check_plausible(bytes: usize) -> Result<()> {
    // If the size is unknown, the system itself refuses too much.
    let Ok(info) = sysinfo() else { return Ok(()) };
    let most = u128::from(info.ram_total()) + u128::from(info.swap_total());
    if bytes as u128 <= most {
        return Ok(());
    }
    Err(Error::System {
        what: format!(
            "cannot allocate {bytes} bytes of registered memory: this machine has {most}; request \
                less"
        ),
        kind: std::io::ErrorKind::OutOfMemory,
    })
}

impl SharedMemory {
    /// Makes the file, with at least `bytes` bytes of zeros, and maps it.
    pub fn create(bytes: usize) -> Result<(SharedMemory, OwnedFd)> {
        check_plausible(bytes)?;
        let refused = |error: std::io::Error| {
            let what = format!("cannot make {bytes} bytes of registered memory");
            Error::system(what, error)
        };
        let data_bytes = in_pages(bytes).ok_or_else(|| refused(ErrorKind::OutOfMemory.into()))?;
        let total = data_bytes + rustix::param::page_size();
        let fd = make_sealed("ringfold registered", total).map_err(refused)?;
        Ok((SharedMemory::map(&fd, data_bytes)?, fd))
    }

    /// Maps the file of `peer`, which claims that it has `data_bytes` bytes of data.
    pub fn open(fd: OwnedFd, peer: usize, data_bytes: usize) -> Result<SharedMemory> {
        let failed = |error| Error::system("cannot inspect a peer's registered memory", error);
        let corrupt = |what: String| Error::corrupt(peer, what);
        let (size, is_sealed) = size_and_seals(&fd).map_err(failed)?;
        let page = rustix::param::page_size();
        let total = data_bytes.checked_add(page);
        let total = total.filter(|_| data_bytes.is_multiple_of(page));
        if total.is_none_or(|total| size != total as u64) {
            return Err(corrupt(format!(
                "registered memory of {size} bytes instead of the announced {data_bytes} bytes and \
                    a page"
            )));
        }
        if !is_sealed {
            return Err(corrupt(
                "registered memory that is not sealed against truncation".into(),
            ));
        }
        SharedMemory::map(&fd, data_bytes)
    }

    /// Returns the data.
    pub fn data(&self) -> Region {
        self.map.region().part(0..self.data_bytes)
    }

    /// Prefers memory node `node` for pages that are not present yet, if the system allows it.
    pub fn prefer_node(&self, node: usize) {
        self.map.prefer_node(node);
    }

    /// Makes all pages present, so that calls find them.
    pub fn populate(&self) -> Result<()> {
        match self.map.populate(self.map.region()) {
            // Kernels before 5.14 cannot populate: only the first call is slower.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(error) => {
                let bytes = self.data_bytes;
                let what = format!(
                    "cannot allocate {bytes} bytes of registered memory; request \
                    less"
                );
                Err(Error::system(what, error))
            }
        }
    }

    /// Announces that the owner names the memory in no later call.
    pub fn announce_release(&self) {
        // Relaxed: the word publishes no other data.
        self.notice().store(1, Ordering::Relaxed);
    }

    /// Frees the pages, which peers may still have mapped.
    pub fn free(&self) {
        let data = self.data();
        if !data.is_empty() {
            // The owner no longer uses the contents, and a peer that reads them (none should) finds
            // zeros.
            if let Err(error) = self.map.free(data) {
                log::debug!(
                    target: "ringfold::transport",
                    "registered memory is freed later: {error}"
                );
            }
        }
    }

    /// Whether the owner has released the memory.
    pub fn is_released(&self) -> bool {
        self.notice().load(Ordering::Relaxed) != 0
    }

    fn notice(&self) -> &AtomicU32 {
        let word = self.map.region().part(self.data_bytes..self.data_bytes + 4);
        // SAFETY: in bounds by `part`, aligned as it begins a page, and an atomic, which any
        // process may write.
        unsafe { &*word.address().cast::<AtomicU32>() }
    }

    fn map(fd: impl AsFd, data_bytes: usize) -> Result<SharedMemory> {
        let bytes = data_bytes + rustix::param::page_size();
        let refused = |error: std::io::Error| {
            let what = format!("cannot map {bytes} bytes of registered memory");
            Error::system(what, error)
        };
        let map = Mapping::unshared(fd, bytes, 0).map_err(refused)?;
        map.advise_huge_pages();
        Ok(SharedMemory { map, data_bytes })
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn what_one_writes_the_other_reads() {
        let (mine, fd) = SharedMemory::create(5000).expect("two pages");
        let theirs = SharedMemory::open(fd, 1, mine.data().bytes()).expect("the same file");
        mine.data().part(4990..5000).write(&[7; 10]);
        let mut read = [0; 10];
        theirs.data().part(4990..5000).read(&mut read);
        assert_eq!(read, [7; 10]);
        assert!(!theirs.is_released());
        mine.announce_release();
        mine.free();
        assert!(theirs.is_released());
        theirs.data().part(4990..5000).read(&mut read);
        assert_eq!(read, [0; 10]);
    }

    #[test]
    fn a_claim_about_the_size_or_an_unsealed_file_is_refused() {
        for claim in [0, 4096, 5000, 8192 + 4096, usize::MAX] {
            let (_mine, fd) = SharedMemory::create(8192).expect("two pages");
            let refused = SharedMemory::open(fd, 3, claim).expect_err("another size");
            assert!(matches!(refused, Error::Corrupt { peer: 3, .. }), "{claim}");
        }
        let fd = memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).expect("a file");
        ftruncate(&fd, 2 * rustix::param::page_size() as u64).expect("a size");
        let refused = SharedMemory::open(fd, 3, rustix::param::page_size()).expect_err("no seals");
        assert!(refused.to_string().contains("truncation"), "{refused}");
    }

    #[test]
    fn more_than_the_machine_has_is_refused_before_anything_is_made() {
        for bytes in [usize::MAX, usize::MAX - 4096, 1 << 60] {
            let refused = SharedMemory::create(bytes).expect_err("too large");
            assert!(refused.to_string().contains("request less"), "{refused}");
        }
    }
}
