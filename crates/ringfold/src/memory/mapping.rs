//! Mapped memory: a memfd of fixed size, shared by ranks of a host, or anonymous memory of this
//! process alone.
//!
//! # Invariants
//!
//! * The file is sealed against resizing before another process sees it, and a process checks seals
//!   and size before it maps a peer's file: no access faults. The file of a board with records
//!   ([`Board`](crate::board::Board)) cannot be sealed; this process owns the file, and its blocks
//!   are allocated.
//! * A mapping lasts as long as its value, except in a forked child if it was kept from children.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::null_mut;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap_fixed, munmap,
};

use crate::region::Region;
use crate::sys::file_limit::without_signal;
use crate::sys::{fork, memory_node};

/// Seals that fix the file's size forever.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Makes a file of `bytes` zeros whose size is sealed.
pub fn make_sealed(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let made = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let fd = made.map_err(|error| match error {
        Errno::NOSYS | Errno::PERM | Errno::ACCESS => io::Error::new(
            error.kind(),
            format!(
                "memfd_create is not permitted, perhaps by a seccomp filter: {error}; permit it, \
                 or set RINGFOLD_TRANSPORT=tcp on all ranks"
            ),
        ),
        _ => error.into(),
    })?;
    without_signal(|| ftruncate(&fd, bytes as u64))?;
    fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// Returns the size of a file, and whether the size is sealed.
pub fn size_and_seals(fd: impl AsFd) -> Result<(u64, bool), Errno> {
    let size = fstat(&fd)?.st_size;
    Ok((size.max(0) as u64, fcntl_get_seals(&fd)?.contains(SEALS)))
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A mapping in this process.
#[derive(Debug)]
pub struct Mapping {
    region: Region,
    /// The process that made the mapping, if children do not have it: a forked child inherits this
    /// value, but not the mapping.
    only_in: Option<u32>,
}

impl Mapping {
    /// Maps the first `bytes` bytes of a file, which always has them: see [`size_and_seals`].
    pub fn new(fd: impl AsFd, bytes: usize) -> Result<Mapping, Errno> {
        Mapping::part_of(fd, bytes, 0)
    }

    /// Maps `bytes` bytes of a file from `offset` on, as `new` does, and excludes them from forked
    /// children, which would otherwise share them unnoticed.
    pub fn unshared(fd: impl AsFd, bytes: usize, offset: usize) -> io::Result<Mapping> {
        let _held_off = fork::hold_off()?;
        let mut mapping = Mapping::part_of(fd, bytes, offset)?;
        mapping.keep_from_children()?;
        Ok(mapping)
    }

    fn part_of(fd: impl AsFd, bytes: usize, offset: usize) -> Result<Mapping, Errno> {
        let offset = offset as u64;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let start = unsafe { mmap(null_mut(), bytes, READ_WRITE, MapFlags::SHARED, fd, offset) }?;
        // SAFETY: mapped with this length until `drop`; the file keeps its size: no access faults.
        let region = unsafe { Region::new(start.cast(), bytes) };
        Ok(Mapping {
            region,
            only_in: None,
        })
    }

    /// Maps `bytes` bytes of zeros that no other process can access.
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

    /// Excludes the mapping from children forked from now on.
    pub fn keep_from_children(&mut self) -> Result<(), Errno> {
        self.advise(self.region, Advice::LinuxDontFork)?;
        self.only_in = Some(std::process::id());
        Ok(())
    }

    /// Includes the mapping in children forked from now on.
    pub fn give_to_children(&mut self) -> Result<(), Errno> {
        self.only_in = None;
        self.advise(self.region, Advice::LinuxDoFork)
    }

    /// Maps private memory with these contents at `gap`, if nothing is mapped there.
    pub fn in_gap(gap: Region, contents: Region) -> Result<(), Errno> {
        // SAFETY: the kernel replaces nothing that is mapped there.
        unsafe { Mapping::filled(gap, contents, MapFlags::FIXED_NOREPLACE) }
    }

    /// Maps private memory with these contents at `place`, and removes the old mapping. The kernel
    /// merges the new mapping with memory of the same kind around it.
    ///
    /// # Safety
    /// `place` consists of whole pages that nothing uses now, and does not overlap `contents`.
    pub unsafe fn instead_of(place: Region, contents: Region) -> Result<(), Errno> {
        // SAFETY: contract of this function.
        unsafe { Mapping::filled(place, contents, MapFlags::FIXED) }
    }

    /// # Safety
    /// With these flags the kernel replaces nothing that is in use.
    unsafe fn filled(place: Region, contents: Region, flags: MapFlags) -> Result<(), Errno> {
        let (start, flags) = (place.address().cast(), MapFlags::PRIVATE | flags);
        // SAFETY: contract of this function.
        unsafe { mmap_anonymous(start, place.bytes(), READ_WRITE, flags) }?;
        place.copy_from(contents);
        Ok(())
    }

    /// Moves the pages to `place`, in one step, and removes the old mapping of `place`. The pages
    /// still belong to their file, if any, and stay included in or excluded from children.
    ///
    /// # Safety
    /// `place` consists of as many whole pages as this mapping. Nothing uses them now, and their
    /// owner knows that they are mapped from now on.
    pub unsafe fn move_to(self, place: Region) -> Result<(), (Mapping, Errno)> {
        assert_eq!(place.bytes(), self.region.bytes());
        let (from, to) = (self.region.address().cast(), place.address().cast());
        let bytes = place.bytes();
        // SAFETY: `from` is this mapping, to which no reference exists, and `to` is the caller's.
        match unsafe { mremap_fixed(from, bytes, bytes, MremapFlags::MAYMOVE, to) } {
            Ok(_) => {
                // Nothing is mapped at the old addresses now.
                std::mem::forget(self);
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Returns the whole mapping.
    pub fn region(&self) -> Region {
        self.region
    }

    /// Makes the pages of `part`, which begins at a page boundary, present. Fails with
    /// [`Errno::INVAL`] if the kernel (before 5.14) cannot.
    pub fn populate(&self, part: Region) -> Result<(), Errno> {
        self.advise(part, Advice::LinuxPopulateWrite)
    }

    /// Prefers memory node `node` for pages that are not present yet. A hint: the system may refuse
    /// it, and uses another node if this node has no free pages.
    pub fn prefer_node(&self, node: usize) {
        if let Err(error) = memory_node::prefer(self.region, node) {
            log::debug!(
                target: "ringfold::transport",
                "memory is not placed on node {node}: {error}"
            );
        }
    }

    /// Makes a forked child find zeros in the mapping.
    pub fn wipe_on_fork(&self) -> Result<(), Errno> {
        self.advise(self.region, Advice::LinuxWipeOnFork)
    }

    /// Requests huge pages. A hint: most kernels have none for files.
    pub fn advise_huge_pages(&self) {
        let _ = self.advise(self.region, Advice::LinuxHugepage);
    }

    /// Frees the pages of `part`, also for processes that have them mapped, which then read zeros.
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
        // A forked child has another mapping at these addresses, or none.
        if self.only_in.is_some_and(|id| id != std::process::id()) {
            return;
        }
        // SAFETY: mapped with this length, in this process; the last user is gone.
        if let Err(error) = unsafe { munmap(self.region.address().cast(), self.region.bytes()) } {
            log::warn!(target: "ringfold::transport", "cannot unmap memory: {error}");
        }
    }
}
