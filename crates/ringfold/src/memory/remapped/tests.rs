//! Buffers that move into a file and back, page by page.

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use super::*;
use crate::skipped::skipped;

const MIB: usize = 1 << 20;

fn region(bytes: &mut [u8]) -> Region {
    // SAFETY: the tests use regions while the slice lives, and the slice only when no region is
    // in use.
    unsafe { Region::new(bytes.as_mut_ptr(), bytes.len()) }
}

fn move_in(remapped: &mut Remapped, fd: &OwnedFd) {
    let (interior, offset) = remapped.interior();
    if !interior.is_empty() {
        let pages = Mapping::unshared(fd, interior.bytes(), offset).expect("a mapping");
        remapped.remap(pages).expect("moved");
        remapped.populate().expect("pages");
    }
}

fn move_out(remapped: &mut Remapped, file: &SharedMemory) {
    let copy = remapped.copy_back().expect("memory");
    remapped.restore(copy, file.data()).expect("moved");
}

fn pattern(index: usize) -> u8 {
    (index * 31 + index / 4096) as u8
}

#[test]
fn a_buffer_moves_in_and_out_with_its_contents() {
    let short = [(0, MIB), (16, MIB), (100, 3 * 4096), (4000, 200), (1, 4095)];
    let long = (16, HEAP_BLOCK_BYTES_MAX + MIB);
    for (first, bytes) in short.into_iter().chain([long]) {
        let mut memory = vec![0; first + bytes + 8192];
        memory
            .iter_mut()
            .enumerate()
            .for_each(|(i, byte)| *byte = pattern(i));
        let buffer = region(&mut memory[first..first + bytes]);
        // SAFETY: `memory` outlives `remapped`, and this thread alone uses it.
        let (mut remapped, file, fd) = unsafe { Remapped::copy_of(buffer) }.expect("a copy");
        move_in(&mut remapped, &fd);
        let interior = remapped.interior;
        assert!(remapped.is_in_place(buffer));
        let at = remapped.offset(interior);
        if !interior.is_empty() {
            // A write through one mapping is read through the other.
            file.data().part(at..at + 1).write(&[99]);
            let mut byte = [0];
            interior.part(0..1).read(&mut byte);
            assert_eq!(byte, [99]);
            let original = pattern(first + at - remapped.offset(buffer));
            interior.part(0..1).write(&[original]);
        }
        move_out(&mut remapped, &file);
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
fn memory_of_which_parts_were_moved_is_in_one_piece_again() {
    const PAGES: usize = 64;
    let flags = MapFlags::PRIVATE;
    let (nowhere, protection) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a mapping of the test's own, between pages that are not its own.
    let start = unsafe { mmap_anonymous(nowhere, (PAGES + 2) * 4096, protection, flags) };
    let start = start.expect("memory").cast::<u8>();
    for edge in [0, PAGES + 1] {
        // SAFETY: pages of the mapping.
        let guard = unsafe { start.add(edge * 4096) }.cast();
        // SAFETY: as above; nothing uses them.
        unsafe { rustix::mm::mprotect(guard, 4096, rustix::mm::MprotectFlags::READ) }
            .expect("guards");
    }
    // SAFETY: within the mapping, which stays.
    let memory = unsafe { Region::new(start.add(4096), PAGES * 4096) };
    memory.write(&vec![7; memory.bytes()]);
    for page in (1..PAGES).step_by(3) {
        let buffer = memory.part(page * 4096..(page + 1) * 4096);
        // SAFETY: the mapping stays, and this thread alone uses it.
        let (mut remapped, file, fd) = unsafe { Remapped::copy_of(buffer) }.expect("a copy");
        move_in(&mut remapped, &fd);
        move_out(&mut remapped, &file);
    }
    let end = memory.address() as usize + memory.bytes();
    let maps = std::fs::read_to_string(MAPS).expect("the mappings");
    let mut lines = maps.lines().filter_map(MapsLine::parse);
    let is_whole = |line: &MapsLine| line.start == memory.address() as usize && line.end == end;
    assert!(lines.any(|line| is_whole(&line)), "{maps}");
    let mut bytes = vec![0; memory.bytes()];
    memory.read(&mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 7));
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
        move_in(&mut remapped, &fd);
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
        move_out(&mut remapped, &file);
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
    // SAFETY: this thread alone uses it, and nothing is moved back after its mapping changes.
    let (mut remapped, _file, fd) = unsafe { Remapped::copy_of(buffer) }.expect("a copy");
    move_in(&mut remapped, &fd);
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
    let (shared, _fd) = SharedMemory::create(8192).expect("two pages");
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
