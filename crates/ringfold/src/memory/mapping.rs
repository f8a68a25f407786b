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

use super::region::Region;
use crate::sys::file_limit::without_signal;
use crate::sys::{fork, memory_node};

/// What no process can do to the file any more.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Makes a file of `bytes` zeros that keeps its size.
pub fn make_sealed(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let made = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let fd = made.map_err(|error| match error {
        Errno::NOSYS | Errno::PERM | Errno::ACCESS => io::Error::new(
            error.kind(),
            format!(
                "memfd_create is not allowed here, perhaps by a filter of system calls (seccomp): \
                 {error}; shared memory needs it, and RINGFOLD_TRANSPORT=tcp on all ranks does not"
            ),
        ),
        _ => error.into(),
    })?;
    without_signal(|| ftruncate(&fd, bytes as u64))?;
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
        Mapping::part_of(fd, bytes, 0)
    }

    /// Maps `bytes` bytes of a file from `offset` on, as `new` does, and keeps them out of forked
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

    /// Keeps it out of forked children.
    pub fn keep_from_children(&mut self) -> Result<(), Errno> {
        self.advise(self.region, Advice::LinuxDontFork)?;
        self.only_in = Some(std::process::id());
        Ok(())
    }

    /// Has children forked from now on have it again.
    pub fn give_to_children(&mut self) -> Result<(), Errno> {
        self.only_in = None;
        self.advise(self.region, Advice::LinuxDoFork)
    }

    /// Maps memory of this process alone at `gap`, with these contents, if nothing is mapped there.
    pub fn in_gap(gap: Region, contents: Region) -> Result<(), Errno> {
        // SAFETY: the kernel replaces nothing that is mapped there.
        unsafe { Mapping::filled(gap, contents, MapFlags::FIXED_NOREPLACE) }
    }

    /// Maps memory of this process alone at `place`, with these contents: what was mapped there is
    /// gone. It is one with the memory around it, if that is of the same kind.
    ///
    /// # Safety
    /// `place` is whole pages, which nothing uses now, and no part of `contents`.
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

    /// Moves its pages to `place`, in one step: what was mapped there is gone. Children have or
    /// lack them there as they did here, and the file stays mapped there as it was here.
    ///
    /// # Safety
    /// `place` is whole pages as many as these, which nothing uses now, and which its owner knows
    /// to be mapped from now on.
    pub unsafe fn move_to(self, place: Region) -> Result<(), (Mapping, Errno)> {
        assert_eq!(place.bytes(), self.region.bytes());
        let (from, to) = (self.region.address().cast(), place.address().cast());
        let bytes = place.bytes();
        // SAFETY: `from` is this mapping, to which no reference exists, and `to` is the caller's.
        match unsafe { mremap_fixed(from, bytes, bytes, MremapFlags::MAYMOVE, to) } {
            Ok(_) => {
                // Nothing is mapped any more where it was.
                std::mem::forget(self);
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
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
