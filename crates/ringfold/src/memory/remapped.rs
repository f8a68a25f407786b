//! Moves the pages of existing memory into a file that peers can map, and back.
//!
//! ```text
//! buffer            |····[=======|===========|====]·······|      the user's, at any address
//! pages             |    head    |  interior |   tail     |      whole pages
//! file              | copy       |  the same | copy       |
//! ```
//!
//! The interior's pages become the file's, at the same addresses. The head and the tail share their
//! pages with other memory of the process, and stay. The file has a copy of them, which is updated
//! before a call that reads the buffer (`sync_to_file`) and copied back after a call that fills it
//! (`sync_from_file`). So every process that maps the file has the whole buffer.
//!
//! # Invariants
//!
//! * Only private, anonymous, writable memory is moved: replacing the pages of a file or of shared
//!   memory would separate them from the processes that share them.
//! * Whenever a child can be forked, the buffer's addresses have its contents. No other thread uses
//!   the buffer while it moves.
//! * If the buffer cannot be moved back (no memory, or its mapping was changed behind our back), it
//!   stays in the file and nothing is freed: leaked, never lost.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use super::mapping::Mapping;
use super::shared::SharedMemory;
use crate::error::{Error, Result};
use crate::region::Region;
use crate::sys;

/// A buffer whose interior is part of a file.
#[derive(Debug)]
pub struct Remapped {
    buffer: Region,
    interior: Region,
    /// The address that corresponds to the file's beginning.
    origin: usize,
    inode: u64,
    /// `/proc/self/maps`, to query the mapping at an address.
    maps: File,
    is_remapped: bool,
}

impl Remapped {
    /// Makes a file with the contents of `buffer`. The buffer stays where it is until `remap`.
    ///
    /// # Safety
    /// Until this value is dropped, and on drop, the memory of `buffer` exists, and its mapping
    /// does not change. No other thread uses the memory during this call, `remap` or the drop.
    pub unsafe fn copy_of(buffer: Region) -> Result<(Remapped, SharedMemory, OwnedFd)> {
        let page = rustix::param::page_size();
        let start = buffer.address() as usize;
        // The end of the last page must have an address, too.
        let bytes = buffer.bytes();
        let past = || {
            Error::InvalidArgument(format!(
                "a buffer of {bytes} bytes at this address \
            exceeds the address space"
            ))
        };
        let end = start.checked_add(bytes).ok_or_else(past)?;
        end.checked_next_multiple_of(page).ok_or_else(past)?;
        let origin = start / page * page;
        let bytes = end.next_multiple_of(page) - origin;
        let interior = start.next_multiple_of(page)..end / page * page;
        let interior = match interior.is_empty() {
            true => Region::EMPTY,
            false => buffer.part(interior.start - start..interior.end - start),
        };
        let maps = File::open(MAPS).map_err(|error| Error::system(UNSEEN, error))?;
        check_movable(interior)?;
        let (file, fd) = SharedMemory::create(bytes)?;
        let inode = fstat(&fd)
            .map_err(|error| Error::system("cannot inspect registered memory", error))?
            .st_ino;
        let remapped = Remapped {
            buffer,
            interior,
            origin,
            inode,
            maps,
            is_remapped: false,
        };
        let at = remapped.offset(interior);
        sys::write_at(fd.as_fd(), interior, at as u64).map_err(|error| {
            let what = format!("cannot allocate {bytes} bytes of registered memory; request less");
            Error::system(what, error)
        })?;
        file.populate()?;
        Ok((remapped, file, fd))
    }

    /// Replaces the interior by `pages`, a mapping of the interior's part of the file: in one step,
    /// so that a child never has these pages, and never finds a gap.
    pub fn remap(&mut self, pages: Mapping) -> Result<()> {
        let bytes = self.interior.bytes();
        // SAFETY: the range is the buffer's, which no other thread uses now (contract of
        // `copy_of`), and the file has its contents. `restore` knows of it.
        unsafe { pages.move_to(self.interior) }.map_err(|(pages, error)| {
            // The old mapping is gone only if the kernel had no memory for its own tables.
            let _ = Mapping::in_gap(self.interior, pages.region());
            let what = format!("cannot map {bytes} bytes of registered memory in place");
            Error::system(what, error)
        })?;
        self.is_remapped = true;
        Ok(())
    }

    /// Makes the interior's pages present, so that calls find them.
    pub fn populate(&self) -> Result<()> {
        let (start, bytes) = (self.interior.address().cast(), self.interior.bytes());
        // SAFETY: the range is the buffer's; its contents do not change.
        match unsafe { madvise(start, bytes, Advice::LinuxPopulateWrite) } {
            // Kernels before 5.14 cannot populate: only the first call is slower.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => {
                let what = format!(
                    "cannot allocate {bytes} bytes of registered memory; request \
                    less"
                );
                Err(Error::system(what, error))
            }
        }
    }

    /// Returns the whole buffer.
    pub fn buffer(&self) -> Region {
        self.buffer
    }

    /// Returns the interior, and its offset in the file.
    pub fn interior(&self) -> (Region, usize) {
        (self.interior, self.offset(self.interior))
    }

    /// Copies the bytes of `part` outside the interior to the file.
    pub fn sync_to_file(&self, part: Region, file: Region) {
        for edge in self.edges(part) {
            let at = self.offset(edge);
            file.part(at..at + edge.bytes()).copy_from(edge);
        }
    }

    /// Copies the bytes of `part` outside the interior from the file.
    pub fn sync_from_file(&self, part: Region, file: Region) {
        for edge in self.edges(part) {
            let at = self.offset(edge);
            edge.copy_from(file.part(at..at + edge.bytes()));
        }
    }

    /// Returns the bytes of `part` outside the interior: in the head, and in the tail.
    fn edges(&self, part: Region) -> [Region; 2] {
        let interior = self.within_interior(part);
        let begin = if interior.is_empty() {
            // All of `part` is in the head or in the tail, or the interior is empty.
            part.bytes()
        } else {
            interior.address() as usize - part.address() as usize
        };
        let end = (begin + interior.bytes()).min(part.bytes());
        [part.part(0..begin), part.part(end..part.bytes())]
    }

    /// Returns the bytes of `part` in the interior, perhaps none.
    fn within_interior(&self, part: Region) -> Region {
        let start = part.address() as usize;
        let interior = self.interior.address() as usize;
        let begin = start.max(interior);
        let end = (start + part.bytes()).min(interior + self.interior.bytes());
        match begin < end {
            true => part.part(begin - start..end - start),
            false => Region::EMPTY,
        }
    }

    /// Returns the offset in the file of `part` of the buffer.
    pub fn offset(&self, part: Region) -> usize {
        (part.address() as usize).saturating_sub(self.origin)
    }

    /// Whether the file is still mapped at the interior of `part`, rather than something mapped
    /// there after the buffer's memory was freed behind our back. Kernels before 6.11 cannot tell;
    /// the answer is then yes.
    pub fn is_in_place(&self, part: Region) -> bool {
        let part = self.within_interior(part);
        if part.is_empty() {
            return true;
        }
        let start = part.address() as usize;
        match sys::mapping_at(self.maps.as_fd(), start) {
            Some(Ok(mapping)) => {
                let covers =
                    mapping.range.start <= start && start + part.bytes() <= mapping.range.end;
                let within = start - mapping.range.start.min(start);
                covers
                    && mapping.inode == self.inode
                    && mapping.offset + within as u64 == self.offset(part) as u64
            }
            Some(Err(_)) => false,
            None => true,
        }
    }

    /// Copies the interior to memory that can be moved back, if the interior is longer than
    /// [`HEAP_BLOCK_BYTES_MAX`]. Children do not have the copy.
    pub fn copy_back(&self) -> io::Result<Option<Mapping>> {
        if !self.is_remapped {
            return Ok(None);
        }
        self.check_in_place()?;
        if self.interior.bytes() <= HEAP_BLOCK_BYTES_MAX {
            return Ok(None);
        }
        let mut copy = Mapping::anonymous(self.interior.bytes())?;
        copy.keep_from_children()?;
        copy.region().copy_from(self.interior);
        Ok(Some(copy))
    }

    /// Replaces the file's pages by the copy, in one step, or by new pages with the contents if
    /// there is no copy. Forks are held off; the caller has the whole file mapped at `file`.
    pub fn restore(&mut self, copy: Option<Mapping>, file: Region) -> io::Result<()> {
        if !self.is_remapped {
            return Ok(());
        }
        let at = self.offset(self.interior);
        let contents = file.part(at..at + self.interior.bytes());
        // SAFETY: no other thread uses these addresses now (contract of `copy_of`); from here on
        // they are the user's. The file is mapped elsewhere.
        let replaced = unsafe {
            match copy {
                None => Mapping::instead_of(self.interior, contents),
                Some(mut copy) => {
                    copy.give_to_children()?;
                    copy.move_to(self.interior).map_err(|(_copy, error)| error)
                }
            }
        };
        if let Err(error) = replaced {
            // A kernel without memory has removed the old mapping all the same.
            Mapping::in_gap(self.interior, contents).map_err(|_| error)?;
        }
        self.is_remapped = false;
        Ok(())
    }

    fn check_in_place(&self) -> io::Result<()> {
        match self.is_in_place(self.interior) {
            true => Ok(()),
            false => Err(io::Error::other(
                "another mapping is at the buffer's addresses",
            )),
        }
    }
}

/// The longest interior that is copied while forks are held off: the longest block that glibc's
/// `malloc` takes from a heap. Longer blocks are mappings of their own
/// (`DEFAULT_MMAP_THRESHOLD_MAX`, mallopt(3)). The kernel merges new pages with those around them,
/// but not pages that were moved there: the heap would be split into ever more pieces, of which a
/// process has 65,530 at most.
const HEAP_BLOCK_BYTES_MAX: usize = 32 << 20;

const MAPS: &str = "/proc/self/maps";
const UNSEEN: &str = "cannot read /proc/self/maps to check the buffer's memory";

/// Refuses memory whose pages are not private to this process.
fn check_movable(interior: Region) -> Result<()> {
    let maps = std::fs::read_to_string(MAPS).map_err(|error| Error::system(UNSEEN, error))?;
    let (mut next, end) = (
        interior.address() as usize,
        interior.address() as usize + interior.bytes(),
    );
    for line in maps.lines() {
        let Some(mapping) = MapsLine::parse(line) else {
            continue;
        };
        if mapping.end <= next || next >= end {
            continue;
        }
        if mapping.start > next {
            break;
        }
        mapping.check_movable()?;
        next = mapping.end;
    }
    if next < end {
        let text = "the buffer's memory is not mapped; pass allocated memory";
        return Err(Error::InvalidArgument(text.into()));
    }
    Ok(())
}

/// A line of `/proc/self/maps`.
struct MapsLine<'a> {
    start: usize,
    end: usize,
    permissions: &'a str,
    inode: &'a str,
    name: &'a str,
}

impl<'a> MapsLine<'a> {
    fn parse(line: &'a str) -> Option<MapsLine<'a>> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?;
        let inode = words.nth(2)?;
        Some(MapsLine {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            permissions,
            inode,
            name: words.next().unwrap_or_default().trim(),
        })
    }

    fn check_movable(&self) -> Result<()> {
        let refusal = if self.name.starts_with("/memfd:ringfold registered") {
            "is registered already; a buffer can be registered only once, also with another \
                communicator"
        } else if self.name == "[stack]" {
            "is on the stack; pass heap memory"
        } else if self.permissions.starts_with("rw")
            && self.permissions.ends_with('p')
            && self.inode == "0"
        {
            return Ok(());
        } else {
            "belongs to a file, is shared with other processes, or is read-only, and cannot be \
             moved; use `alloc`, and copy the data"
        };
        Err(Error::InvalidArgument(format!("the buffer {refusal}")))
    }
}

#[cfg(test)]
mod tests;
