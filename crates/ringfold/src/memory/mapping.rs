//! Mapped memory: of a memfd whose size can no longer change, shared by ranks of a host, or
//! anonymous, of this process alone.
//!
//! # Invariants
//!
//! * The file is sealed against resizing before another process sees it, and a process that maps a
//!   peer's file has checked seals and size: no access faults. The file of a board with records
//!   ([`Board`](crate::board::Board)) cannot be sealed; it is this process' own, and allocated.
//! * A mapping lasts as long as its value, except in a forked child of a process that kept it to
//!   itself.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::null_mut;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::region::Region;
use crate::sys::memory_node;

/// What no process can do to the file any more.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Makes a file of `bytes` zeros that keeps its size.
pub fn make_sealed(name: &str, bytes: usize) -> Result<OwnedFd, Errno> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes as u64)?;
    fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// The size of a file, and whether it is final.
pub fn size_and_seals(fd: impl AsFd) -> Result<(u64, bool), Errno> {
    let size = fstat(&fd)?.st_size;
    Ok((size.max(0) as u64, fcntl_get_seals(&fd)?.contains(SEALS)))
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// One process' mapping.
#[derive(Debug)]
pub struct Mapping {
    region: Region,
    /// The process that mapped it, if children do not have it: a forked one has the value and not
    /// the mapping.
    only_in: Option<u32>,
}

impl Mapping {
    /// Maps `bytes` bytes of a file, which are all there and stay there: see [`size_and_seals`].
    pub fn new(fd: impl AsFd, bytes: usize) -> Result<Mapping, Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let start = unsafe { mmap(null_mut(), bytes, READ_WRITE, MapFlags::SHARED, fd, 0) }?;
        // SAFETY: mapped with this length until `drop`; the file is sealed, so no access can fault.
        let region = unsafe { Region::new(start.cast(), bytes) };
        Ok(Mapping {
            region,
            only_in: None,
        })
    }

    /// `bytes` bytes of zeros that no other process can reach.
    pub fn anonymous(bytes: usize) -> Result<Mapping, Errno> {
        // SAFETY: as in `new`.
        let start = unsafe { mmap_anonymous(null_mut(), bytes, READ_WRITE, MapFlags::PRIVATE) }?;
        // SAFETY: mapped with this length until `drop`.
        let region = unsafe { Region::new(start.cast(), bytes) };
        Ok(Mapping {
            region,
            only_in: None,
        })
    }

    /// Keeps it out of forked children, which would otherwise share it unnoticed.
    pub fn keep_from_children(&mut self) -> Result<(), Errno> {
        self.only_in = Some(std::process::id());
        self.advise(self.region, Advice::LinuxDontFork)
    }

    /// All of it.
    pub fn region(&self) -> Region {
        self.region
    }

    /// Has the pages of `part` present, which begins at a page. [`Errno::INVAL`] says that the
    /// kernel (before 5.14) cannot.
    pub fn populate(&self, part: Region) -> Result<(), Errno> {
        self.advise(part, Advice::LinuxPopulateWrite)
    }

    /// Has pages that are not there yet come from memory node `node`. Only a wish: the system may
    /// not allow it, and takes other pages where the node has none.
    pub fn prefer_node(&self, node: usize) {
        if let Err(error) = memory_node::prefer(self.region, node) {
            log::debug!(
                target: "ringfold::transport",
                "memory is not placed on node {node}: {error}"
            );
        }
    }

    /// Has a forked child find zeros in it.
    pub fn wipe_on_fork(&self) -> Result<(), Errno> {
        self.advise(self.region, Advice::LinuxWipeOnFork)
    }

    /// Asks for huge pages. Only a wish: most kernels have none for files.
    pub fn advise_huge_pages(&self) {
        let _ = self.advise(self.region, Advice::LinuxHugepage);
    }

    /// Frees the pages of `part`, also for processes that have them mapped: zeros are read there.
    pub fn free(&self, part: Region) -> Result<(), Errno> {
        self.advise(part, Advice::LinuxRemove)
    }

    fn advise(&self, part: Region, advice: Advice) -> Result<(), Errno> {
        assert!(self.region.contains(part));
        // SAFETY: the range lies in our mapping, to which no reference exists, and stays
        // mapped.
        unsafe { madvise(part.address().cast(), part.bytes(), advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A forked child has something else there, or nothing.
        if self.only_in.is_some_and(|id| id != std::process::id()) {
            return;
        }
        // SAFETY: mapped with this length, in this process; the last user is gone.
        if let Err(error) = unsafe { munmap(self.region.address().cast(), self.region.bytes()) } {
            log::warn!(target: "ringfold::transport", "cannot unmap memory: {error}");
        }
    }
}
