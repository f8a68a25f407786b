//! Moving the pages of memory that exists into a file that peers can map, and back.
//!
//! ```text
//! buffer            |····[=======|===========|====]·······|      the user's, at any address
//! pages             |    head    |  interior |   tail     |      whole pages
//! file              | copy       |  the same | copy       |
//! ```
//!
//! The interior's pages become the file's, at the addresses where they were. The head and the tail
//! share their pages with other memory of the process and stay; the file has a copy of them, which
//! is brought up to date before a call that reads the buffer (`sync_to_file`) and brought back
//! after one that fills it (`sync_from_file`). So the buffer is whole for every process that has
//! the file mapped.
//!
//! # Invariants
//!
//! * Only private, anonymous, writable memory is moved: replacing a file's or shared memory's pages
//!   would part them from the processes that share them.
//! * At every moment the buffer's addresses have its contents; no other thread uses it while it
//!   moves.
//! * When it cannot be moved back (no memory, or its mapping was changed behind our back), it stays
//!   where it is and nothing is freed: leaked, never lost.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::fstat;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mremap_fixed};

use super::mapping::Mapping;
use super::region::Region;
use super::shared::Shared;
use crate::error::{Error, Result};
use crate::sys;

/// A buffer's interior that is part of a file.
#[derive(Debug)]
pub struct Remapped {
    buffer: Region,
    interior: Region,
    /// Where the file begins, as an address of the buffer.
    origin: usize,
    inode: u64,
    /// `/proc/self/maps`, to ask what lies at an address.
    maps: File,
    is_remapped: bool,
}

impl Remapped {
    /// Makes a file with the contents of `buffer`. The buffer stays where it is until `remap`.
    ///
    /// # Safety
    /// Until this value is dropped, and on drop, the memory of `buffer` is there, and its mapping
    /// does not change. No other thread uses it while this, `remap` or the drop runs.
    pub unsafe fn copy_of(buffer: Region) -> Result<(Remapped, Shared, OwnedFd)> {
        let page = rustix::param::page_size();
        let start = buffer.address() as usize;
        // The end of its last page must have an address, too.
        let bytes = buffer.bytes();
        let past = || Error::InvalidArgument(format!("{bytes} bytes there have no addresses"));
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
        let (file, fd) = Shared::create(bytes)?;
        let inode = fstat(&fd)
            .map_err(|error| Error::system("cannot look at registered memory", error))?
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
            let what = format!("cannot get {bytes} bytes of registered memory; ask for less");
            Error::system(what, error)
        })?;
        file.populate()?;
        Ok((remapped, file, fd))
    }

    /// Maps the file in the interior's place.
    pub fn remap(&mut self, fd: impl AsFd) -> Result<()> {
        if self.interior.is_empty() {
            return Ok(());
        }
        let (start, bytes) = (self.interior.address().cast(), self.interior.bytes());
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let offset = self.offset(self.interior) as u64;
        // SAFETY: the range is the buffer's, which no other thread uses now (contract of
        // `copy_of`), and the file has its contents.
        let mapped = unsafe { mmap(start, bytes, protection, flags, fd, offset) };
        mapped.map_err(|error| {
            Error::system(
                format!("cannot map {bytes} bytes of registered memory in place"),
                error,
            )
        })?;
        self.is_remapped = true;
        // SAFETY: the range is a mapping of the file; a child of ours will not have it.
        unsafe { madvise(start, bytes, Advice::LinuxDontFork) }.map_err(|error| {
            Error::system("cannot keep registered memory from forked children", error)
        })
    }

    /// The whole buffer.
    pub fn buffer(&self) -> Region {
        self.buffer
    }

    /// What is the file's, and where in the file it begins.
    pub fn interior(&self) -> (Region, usize) {
        (self.interior, self.offset(self.interior))
    }

    /// Brings the file's copy of what could not be moved of `part` up to date.
    pub fn sync_to_file(&self, part: Region, file: Region) {
        for edge in self.edges(part) {
            let at = self.offset(edge);
            file.part(at..at + edge.bytes()).copy_from(edge);
        }
    }

    /// Brings what could not be moved of `part` up to date with the file's copy.
    pub fn sync_from_file(&self, part: Region, file: Region) {
        for edge in self.edges(part) {
            let at = self.offset(edge);
            edge.copy_from(file.part(at..at + edge.bytes()));
        }
    }

    /// What of `part` was not moved: in the head, and in the tail.
    fn edges(&self, part: Region) -> [Region; 2] {
        let interior = self.within_interior(part);
        let begin = if interior.is_empty() {
            // Whole in the head or in the tail, or there is nothing between them.
            part.bytes()
        } else {
            interior.address() as usize - part.address() as usize
        };
        let end = (begin + interior.bytes()).min(part.bytes());
        [part.part(0..begin), part.part(end..part.bytes())]
    }

    /// What of `part` was moved; nothing if that is empty.
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

    /// Where in the file `part` of the buffer lies.
    pub fn offset(&self, part: Region) -> usize {
        (part.address() as usize).saturating_sub(self.origin)
    }

    /// Whether the file is still what lies at `part`, where it was moved, and not something that
    /// was mapped there after the buffer's memory had been freed behind our back. Kernels before
    /// 6.11 cannot be asked; there it is taken for granted.
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

    /// Moves the interior back into memory that is only this process'; whether that was possible.
    pub fn restore(&mut self) -> bool {
        if !std::mem::take(&mut self.is_remapped) {
            return true;
        }
        if !self.is_in_place(self.interior) {
            return false;
        }
        let bytes = self.interior.bytes();
        let Ok(copy) = Mapping::anonymous(bytes) else {
            return false;
        };
        copy.region().copy_from(self.interior);
        let (from, to) = (copy.region().address(), self.interior.address());
        let flags = MremapFlags::MAYMOVE;
        // SAFETY: replaces the file's pages by their copy, in one step, at addresses that no other
        // thread uses now (contract of `copy_of`); the copy has no other user.
        let moved = unsafe { mremap_fixed(from.cast(), bytes, bytes, flags, to.cast()) };
        if moved.is_ok() {
            // Nothing is mapped any more where it was.
            std::mem::forget(copy);
        }
        moved.is_ok()
    }
}

const MAPS: &str = "/proc/self/maps";
const UNSEEN: &str = "cannot see in /proc/self/maps what kind of memory the buffer is";

/// Refuses memory whose pages are not this process' alone.
fn check_movable(interior: Region) -> Result<()> {
    let maps = std::fs::read_to_string(MAPS).map_err(|error| Error::system(UNSEEN, error))?;
    let (mut next, end) = (
        interior.address() as usize,
        interior.address() as usize + interior.bytes(),
    );
    for line in maps.lines() {
        let Some(mapping) = Line::parse(line) else {
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
        let text = "the buffer's memory is not mapped; give memory that exists";
        return Err(Error::InvalidArgument(text.into()));
    }
    Ok(())
}

/// A line of `/proc/self/maps`.
struct Line<'a> {
    start: usize,
    end: usize,
    permissions: &'a str,
    inode: &'a str,
    name: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Line<'a>> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?;
        let inode = words.nth(2)?;
        Some(Line {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            permissions,
            inode,
            name: words.next().unwrap_or_default().trim(),
        })
    }

    fn check_movable(&self) -> Result<()> {
        let refusal = if self.name.starts_with("/memfd:ringfold registered") {
            "is registered already; a buffer is registered once, whatever the communicator"
        } else if self.name == "[stack]" {
            "is on the stack; give memory from the heap"
        } else if self.permissions.starts_with("rw")
            && self.permissions.ends_with('p')
            && self.inode == "0"
        {
            return Ok(());
        } else {
            "belongs to a file, or is shared with other processes, or is read-only, and cannot be \
             moved; use `alloc`, and copy into it"
        };
        Err(Error::InvalidArgument(format!("the buffer {refusal}")))
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::mmap_anonymous;

    use super::*;
    use crate::skipped::skipped;

    const MIB: usize = 1 << 20;

    fn region(bytes: &mut [u8]) -> Region {
        // SAFETY: the tests use regions while the slice lives, and the slice only when no region is
        // in use.
        unsafe { Region::new(bytes.as_mut_ptr(), bytes.len()) }
    }

    fn pattern(index: usize) -> u8 {
        (index * 31 + index / 4096) as u8
    }

    #[test]
    fn a_buffer_moves_in_and_out_with_its_contents() {
        for (first, bytes) in [(0, MIB), (16, MIB), (100, 3 * 4096), (4000, 200), (1, 4095)] {
            let mut memory = vec![0; MIB + 8192];
            memory
                .iter_mut()
                .enumerate()
                .for_each(|(i, byte)| *byte = pattern(i));
            let buffer = region(&mut memory[first..first + bytes]);
            // SAFETY: `memory` outlives `remapped`, and this thread alone uses it.
            let (mut remapped, file, fd) = unsafe { Remapped::copy_of(buffer) }.expect("a copy");
            remapped.remap(&fd).expect("moved");
            let interior = remapped.interior;
            assert!(remapped.is_in_place(buffer));
            let at = remapped.offset(interior);
            if !interior.is_empty() {
                // What is written in one place is read in the other.
                file.data().part(at..at + 1).write(&[99]);
                let mut byte = [0];
                interior.part(0..1).read(&mut byte);
                assert_eq!(byte, [99]);
                let original = pattern(first + at - remapped.offset(buffer));
                interior.part(0..1).write(&[original]);
            }
            assert!(remapped.restore());
            assert!(interior.is_empty() || !remapped.is_in_place(interior));
            if !interior.is_empty() {
                file.data().part(at..at + 1).write(&[98]);
            }
            assert!(
                memory
                    .iter()
                    .enumerate()
                    .all(|(i, byte)| *byte == pattern(i))
            );
        }
    }

    #[test]
    fn the_file_has_the_whole_buffer_when_it_is_lent_and_gives_it_back() {
        for (first, bytes) in [
            (16, 5 * 4096),
            (100, 3000),
            (4000, 200),
            (0, 8192),
            (4095, 4098),
        ] {
            let mut memory = vec![0; 8 * 4096];
            let buffer = region(&mut memory[first..first + bytes]);
            // SAFETY: `memory` outlives `remapped`, and this thread alone uses it.
            let (mut remapped, file, fd) = unsafe { Remapped::copy_of(buffer) }.expect("a copy");
            remapped.remap(&fd).expect("moved");
            for (from, to) in [
                (0, bytes),
                (0, 1),
                (bytes / 3, bytes / 2),
                (bytes - 1, bytes),
            ] {
                let part = buffer.part(from..to);
                let at = remapped.offset(part);
                let in_file = file.data().part(at..at + part.bytes());
                let mut read = vec![0; part.bytes()];
                let old: Vec<u8> = (from..to).map(pattern).collect();
                part.write(&old);
                remapped.sync_to_file(part, file.data());
                in_file.read(&mut read);
                assert_eq!(read, old);
                let new: Vec<u8> = old.iter().map(|byte| !byte).collect();
                in_file.write(&new);
                remapped.sync_from_file(part, file.data());
                part.read(&mut read);
                assert_eq!(read, new, "{first} {bytes} {from}..{to}");
                part.write(&old);
            }
            assert!(remapped.restore());
        }
    }

    #[test]
    fn what_is_mapped_there_later_is_not_taken_for_it() {
        let map = |address, bytes, flags| {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a mapping of the test's own, or in the place of one.
            let start =
                unsafe { mmap_anonymous(address, bytes, protection, MapFlags::PRIVATE | flags) };
            // SAFETY: mapped with this length until the end of the test.
            unsafe { Region::new(start.expect("memory").cast(), bytes) }
        };
        let buffer = map(std::ptr::null_mut(), MIB, MapFlags::empty());
        // SAFETY: it is forgotten before the mapping changes.
        let (mut remapped, _file, fd) = unsafe { Remapped::copy_of(buffer) }.expect("a copy");
        remapped.remap(&fd).expect("moved");
        assert!(remapped.is_in_place(buffer));
        assert!(remapped.is_in_place(buffer.part(8192..8200)));
        if sys::mapping_at(remapped.maps.as_fd(), remapped.origin).is_none() {
            skipped("the kernel does not say what is mapped where");
            return;
        }
        let later = buffer.part(4096..MIB);
        map(later.address().cast(), later.bytes(), MapFlags::FIXED);
        assert!(!remapped.is_in_place(buffer));
        assert!(!remapped.is_in_place(buffer.part(8192..8200)));
        assert!(remapped.is_in_place(buffer.part(0..4096)));
        remapped.is_remapped = false;
    }

    #[test]
    fn memory_that_others_share_is_refused() {
        let (shared, _fd) = Shared::create(8192).expect("two pages");
        // SAFETY: the mapping is there, and refused.
        let refused = unsafe { Remapped::copy_of(shared.data()) }.expect_err("shared memory");
        assert!(
            refused.to_string().contains("registered already"),
            "{refused}"
        );
        let file = File::open("/proc/self/exe").expect("this program");
        // SAFETY: a new mapping, private to this test.
        let map = unsafe {
            mmap(
                std::ptr::null_mut(),
                8192,
                ProtFlags::READ,
                MapFlags::PRIVATE,
                &file,
                0,
            )
        }
        .expect("a mapping");
        // SAFETY: mapped with this length.
        let map = unsafe { Region::new(map.cast(), 8192) };
        // SAFETY: the mapping is there, and refused.
        let refused = unsafe { Remapped::copy_of(map) }.expect_err("a file");
        assert!(refused.to_string().contains("use `alloc`"), "{refused}");
    }
}
