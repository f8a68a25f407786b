//! Memory in a sealed memfd: made by one process and mapped by its peers.
//!
//! ```text
//! data, whole pages | notice page: one word, not 0 once the owner has given the memory up
//! ```
//!
//! # Invariants
//!
//! * The file is sealed against resizing before anybody else sees it, and `open` checks seals and size: no access faults.
//! * What a peer writes there is data, and the one word a claim that costs nobody but its owner: it is neither an offset
//!   nor a length.
//! * A mapping is not inherited by a forked child, which would otherwise share it without anybody knowing.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::Region;
use crate::error::{Error, Result};

/// What nobody may do to the file any more.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// One process' mapping of the file.
#[derive(Debug)]
pub struct Shared {
    map: Region,
    data_bytes: usize,
    /// Who mapped it: a forked child has the value and not the mapping.
    process: u32,
}

/// `bytes` in whole pages.
pub fn in_pages(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(rustix::param::page_size())
}

/// Refuses more bytes than the machine can hold: the kernel would promise them and then end a process.
pub fn check_plausible(bytes: usize) -> Result<()> {
    let info = rustix::system::sysinfo();
    let words = u128::from(info.totalram) + u128::from(info.totalswap);
    let most = words * u128::from(info.mem_unit);
    if bytes as u128 <= most {
        return Ok(());
    }
    Err(Error::System {
        what: format!(
            "cannot make {bytes} bytes of registered memory: this machine has {most}; ask for less"
        ),
        kind: std::io::ErrorKind::OutOfMemory,
    })
}

impl Shared {
    /// Makes the file, with at least `bytes` bytes of zeros, and maps it.
    pub fn create(bytes: usize) -> Result<(Shared, OwnedFd)> {
        check_plausible(bytes)?;
        let refused = |error: rustix::io::Errno| {
            let what = format!("cannot make {bytes} bytes of registered memory");
            Error::system(what, error)
        };
        let data_bytes = in_pages(bytes).ok_or_else(|| refused(rustix::io::Errno::NOMEM))?;
        let total = data_bytes + rustix::param::page_size();
        let fd = memfd_create(
            "ringfold registered",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )
        .map_err(refused)?;
        ftruncate(&fd, total as u64).map_err(refused)?;
        fcntl_add_seals(&fd, SEALS).map_err(refused)?;
        Ok((Shared::map(&fd, data_bytes)?, fd))
    }

    /// Maps the file of `peer`, which says that it has `data_bytes` bytes of data.
    pub fn open(fd: OwnedFd, peer: usize, data_bytes: usize) -> Result<Shared> {
        let failed = |error| Error::system("cannot look at a peer's registered memory", error);
        let corrupt = |what: String| Error::Corrupt {
            peer,
            what,
            site: None,
        };
        let size = fstat(&fd).map_err(failed)?.st_size;
        let seals = fcntl_get_seals(&fd).map_err(failed)?;
        let page = rustix::param::page_size();
        let total = data_bytes.checked_add(page);
        let total = total.filter(|_| data_bytes.is_multiple_of(page));
        if total.is_none() || u64::try_from(size).ok() != total.map(|total| total as u64) {
            return Err(corrupt(format!(
                "registered memory of {size} bytes where {data_bytes} and a page were announced"
            )));
        }
        if !seals.contains(SEALS) {
            return Err(corrupt("registered memory that could be cut off".into()));
        }
        Shared::map(&fd, data_bytes)
    }

    /// The data.
    pub fn data(&self) -> Region {
        self.map.part(0..self.data_bytes)
    }

    /// Has all pages present, so that calls find them.
    pub fn populate(&self) -> Result<()> {
        // SAFETY: the range is our mapping, and populating changes no contents.
        let populated = unsafe {
            madvise(
                self.map.address().cast(),
                self.map.bytes(),
                Advice::LinuxPopulateWrite,
            )
        };
        match populated {
            // Kernels before 5.14 lack it: the first call is then slower, nothing else.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(error) => {
                let bytes = self.data_bytes;
                let what = format!("cannot get {bytes} bytes of registered memory; ask for less");
                Err(Error::system(what, error))
            }
        }
    }

    /// The owner's last word: tells the peers that it will name the memory in no later call.
    pub fn give_up(&self) {
        // A word by itself: nothing is published with it.
        self.notice().store(1, Ordering::Relaxed);
    }

    /// Frees the pages, which peers may still have mapped.
    pub fn free(&self) {
        let data = self.data();
        if !data.is_empty() {
            // SAFETY: the range is our mapping; the owner has no more use for what is there, and a peer that looks (none
            // should) reads zeros.
            let freed =
                unsafe { madvise(data.address().cast(), data.bytes(), Advice::LinuxRemove) };
            if let Err(error) = freed {
                log::debug!(target: "ringfold::transport", "registered memory is freed later: {error}");
            }
        }
    }

    /// Whether the owner has given it up.
    pub fn is_given_up(&self) -> bool {
        self.notice().load(Ordering::Relaxed) != 0
    }

    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    fn notice(&self) -> &AtomicU32 {
        let word = self.map.part(self.data_bytes..self.data_bytes + 4);
        // SAFETY: in bounds by `part`, aligned as it begins a page, and an atomic, which any process may write.
        unsafe { &*word.address().cast::<AtomicU32>() }
    }

    fn map(fd: impl AsFd, data_bytes: usize) -> Result<Shared> {
        let bytes = data_bytes + rustix::param::page_size();
        let refused = |error| {
            Error::system(
                format!("cannot map {bytes} bytes of registered memory"),
                error,
            )
        };
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        }
        .map_err(refused)?;
        // SAFETY: mapped with this length until `drop`; the file is sealed, so no access can fault.
        let map = unsafe { Region::new(start.cast(), bytes) };
        let shared = Shared {
            map,
            data_bytes,
            process: std::process::id(),
        };
        // SAFETY: the range is our mapping; a child of ours will not have it.
        unsafe { madvise(start, bytes, Advice::LinuxDontFork) }.map_err(refused)?;
        // SAFETY: the range is our mapping. Only a wish: most kernels have no huge pages for such files.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
        Ok(shared)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A forked child has something else there, or nothing.
        if !self.is_ours() {
            return;
        }
        // SAFETY: mapped in `map` with this length by this process; the last user is gone.
        if let Err(error) = unsafe { munmap(self.map.address().cast(), self.map.bytes()) } {
            log::warn!(target: "ringfold::transport", "cannot unmap registered memory: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_writes_the_other_reads() {
        let (mine, fd) = Shared::create(5000).expect("two pages");
        let theirs = Shared::open(fd, 1, mine.data().bytes()).expect("the same file");
        mine.data().part(4990..5000).write(&[7; 10]);
        let mut read = [0; 10];
        theirs.data().part(4990..5000).read(&mut read);
        assert_eq!(read, [7; 10]);
        assert!(!theirs.is_given_up());
        mine.give_up();
        mine.free();
        assert!(theirs.is_given_up());
        theirs.data().part(4990..5000).read(&mut read);
        assert_eq!(read, [0; 10]);
    }

    #[test]
    fn a_claim_about_the_size_or_an_unsealed_file_is_refused() {
        for claim in [0, 4096, 5000, 8192 + 4096, usize::MAX] {
            let (_mine, fd) = Shared::create(8192).expect("two pages");
            let refused = Shared::open(fd, 3, claim).expect_err("another size");
            assert!(matches!(refused, Error::Corrupt { peer: 3, .. }), "{claim}");
        }
        let fd = memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).expect("a file");
        ftruncate(&fd, 2 * rustix::param::page_size() as u64).expect("a size");
        let refused = Shared::open(fd, 3, rustix::param::page_size()).expect_err("no seals");
        assert!(refused.to_string().contains("cut off"), "{refused}");
    }

    #[test]
    fn more_than_the_machine_has_is_refused_before_anything_is_made() {
        for bytes in [usize::MAX, usize::MAX - 4096, 1 << 60] {
            let refused = Shared::create(bytes).expect_err("too large");
            assert!(refused.to_string().contains("ask for less"), "{refused}");
        }
    }
}
