//! Registered memory between real processes: its use by a program, and failures that must not
//! happen.
//!
//! Every rank is this test program again, started for `a_rank`, which plays one of the [`SCENES`].

#[path = "registered/forked.rs"]
mod forked;
#[path = "registered/forks.rs"]
mod forks;
mod scenes;
mod skipped;

use ringfold::Region;
use ringfold::{Collective, Communicator, Counts, DType, Op, Request};
use scenes::{Scene, play, play_with};
use skipped::skipped;

const SCENES: [(&str, Scene); 13] = [
    ("buffers", buffers),
    ("sizes", sizes),
    ("dropped_by_one", dropped_by_one),
    ("too_large", too_large),
    ("mismatch", mismatch),
    ("outlived", outlived),
    ("parts", parts),
    ("leaked", leaked),
    ("forked", forked::forked),
    ("register_and_forks", forks::register),
    ("split_and_forks", forks::split),
    ("freed", freed),
    ("refused", refused),
];

#[test]
#[ignore = "started as a rank by the other tests"]
fn a_rank() {
    scenes::act(&SCENES);
}

#[test]
fn buffers_are_registered_and_return_with_their_contents() {
    for (ranks, transport) in [(2, "shm"), (3, "auto"), (2, "tcp"), (1, "auto")] {
        play("buffers", ranks, transport);
    }
    // Every size uses the method of large ones.
    let variables = [("RINGFOLD_TRANSPORT", "shm"), ("RINGFOLD_ALGO", "push")];
    play_with("buffers", 3, &variables);
}

#[test]
fn sizes_may_differ_and_are_told() {
    play("sizes", 3, "shm");
    play("sizes", 2, "tcp");
}

#[test]
fn one_rank_may_drop_its_part_early() {
    play("dropped_by_one", 3, "shm");
}

#[test]
fn a_rank_without_memory_is_an_error_on_all_ranks_and_ends_nothing() {
    play("too_large", 2, "shm");
    play("too_large", 2, "tcp");
}

#[test]
fn ranks_in_another_call_are_told_so() {
    play("mismatch", 2, "shm");
    play("mismatch", 2, "tcp");
}

#[test]
fn memory_outlives_its_communicator_and_nothing_else_does() {
    play("outlived", 2, "shm");
}

#[test]
fn for_another_communicator_it_is_memory_like_any_other() {
    play("parts", 4, "shm");
}

#[test]
fn a_leaked_registration_is_not_taken_for_what_lies_there_later() {
    play("leaked", 2, "shm");
}

#[test]
fn a_forked_child_has_a_view_of_the_memory_and_shares_nothing() {
    play("forked", 2, "shm");
}

#[test]
fn forks_at_any_moment_of_a_registration_have_the_contents_and_share_nothing() {
    play("register_and_forks", 2, "shm");
}

#[test]
fn forks_at_any_moment_of_a_split_have_no_connection() {
    play("split_and_forks", 2, "tcp");
}

#[test]
fn dropped_memory_is_free_though_peers_have_it_mapped() {
    play("freed", 2, "shm");
}

#[test]
fn memory_that_cannot_be_moved_is_refused_on_all_ranks() {
    play("refused", 2, "shm");
}

/// Returns element `index` of `rank`'s data: an integer, so that sums are exact.
fn element(rank: usize, index: usize) -> f32 {
    ((rank + 1) * (index % 1000 + 1)) as f32
}

fn fill(data: &mut [f32], rank: usize) {
    for (index, value) in data.iter_mut().enumerate() {
        *value = element(rank, index);
    }
}

fn expect_sum(data: &[f32], ranks: usize) {
    for (index, value) in data.iter().enumerate() {
        let sum: f32 = (0..ranks).map(|rank| element(rank, index)).sum();
        assert_eq!(*value, sum, "element {index}");
    }
}

/// Makes an all-reduce in place on `data`, and checks the sum.
fn sum(comm: &Communicator, data: &mut [f32]) {
    fill(data, comm.rank());
    comm.all_reduce(data, Op::Sum).expect("a sum");
    expect_sum(data, comm.world_size());
}

fn buffers(comm: Communicator) {
    let count = 100_000 * comm.world_size();
    let mut memory = comm.alloc(4 * count).expect("memory");
    let is_shared = comm.world_size() > 1 && std::env::var("RINGFOLD_TRANSPORT").unwrap() != "tcp";
    assert_eq!(memory.is_shared(), is_shared);
    assert!(memory.as_slice::<f32>().iter().all(|value| *value == 0.0));
    sum(&comm, memory.as_mut_slice::<f32>());
    let mut vectors = [vec![0f32; count + 7], vec![1f32; count]];
    let [first, second] = &mut vectors;
    {
        let mut first = comm.register(&mut first[7..]).expect("registered");
        let mut second = comm.register(second).expect("registered");
        assert_eq!(first.registration().is_shared(), is_shared);
        assert_eq!(second[count - 1], 1.0);
        sum(&comm, &mut first);
        // Parts begin and end anywhere.
        for part in [0..3, 1..count - 1, 5000..5001, count - 900..count] {
            sum(&comm, &mut second[part]);
        }
        sum(&comm, &mut second);
    }
    // The contents returned with the pages.
    expect_sum(second, comm.world_size());
    second.push(1.0);
    sum(&comm, second);
}

fn sizes(comm: Communicator) {
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let bytes = |rank: usize| [0, 5000, 100_000][rank];
    let memory = comm.alloc(bytes(rank)).expect("memory");
    assert_eq!(memory.bytes(), bytes(rank));
    assert_eq!(memory.sizes(), (0..ranks).map(bytes).collect::<Vec<_>>());
    let mut vector = vec![0f32; 30_000 * rank];
    let registered = comm.register(&mut vector).expect("registered");
    let told = registered.registration().sizes();
    assert!((0..ranks).all(|rank| told[rank] == 120_000 * rank));
    // One rank may allocate memory in the call in which another registers its own.
    drop(registered);
    let mut mixed = vec![0f32; 10_000];
    let (mut made, mut moved);
    let data = if rank == 0 {
        made = comm.alloc(40_000).expect("memory");
        made.as_mut_slice::<f32>()
    } else {
        moved = comm.register(&mut mixed).expect("registered");
        &mut moved
    };
    sum(&comm, data);
    comm.barrier().expect("all are done");
}

fn dropped_by_one(comm: Communicator) {
    let mut kept = comm.alloc(1 << 20).expect("memory");
    let dropped = comm.alloc(1 << 20).expect("memory");
    let mut vector = vec![0f32; 1 << 18];
    let registered = comm.register(&mut vector).expect("registered");
    let mut other = (comm.rank() != 1).then_some(dropped);
    let mut guard = (comm.rank() != 2).then_some(registered);
    let mut ordinary = vec![0f32; 1 << 18];
    for _ in 0..3 {
        // All ranks use registered memory, then one does not, then another does not, then all do
        // again; rank 0 last uses a registration that rank 1 has dropped.
        sum(&comm, kept.as_mut_slice::<f32>());
        sum(
            &comm,
            other
                .as_mut()
                .map_or(&mut ordinary[..], |other| other.as_mut_slice()),
        );
        sum(
            &comm,
            guard
                .as_mut()
                .map_or(&mut ordinary[..], |guard| &mut guard[..]),
        );
        let crossed = match comm.rank() {
            0 => other.as_mut().expect("kept").as_mut_slice(),
            _ => kept.as_mut_slice(),
        };
        sum(&comm, crossed);
    }
    // A later registration is not taken for a dropped one.
    let mut later = comm.alloc(1 << 20).expect("memory");
    sum(&comm, later.as_mut_slice::<f32>());
    drop(other);
    sum(&comm, later.as_mut_slice::<f32>());
}

fn too_large(comm: Communicator) {
    let bytes = [1 << 20, 1 << 60][comm.rank()];
    let error = comm.alloc(bytes).expect_err("more than there is");
    assert_eq!(error.class(), "System", "{error}");
    let says = ["rank 1", "request less"][comm.rank()];
    assert!(error.to_string().contains(says), "{error}");
    let mut memory = comm.alloc(1 << 20).expect("memory");
    sum(&comm, memory.as_mut_slice::<f32>());
}

fn mismatch(comm: Communicator) {
    // Blocks as long as a rank's description of its memory: even these are not taken for one.
    let mut data = vec![0u8; 56 * comm.world_size()];
    let error = match comm.rank() {
        0 => comm.alloc(4096).expect_err("no other rank does"),
        _ => comm
            .all_gather(&[0u8; 56], &mut data)
            .expect_err("different calls"),
    };
    assert_eq!(error.class(), "Mismatch", "{error}");
    assert!(error.to_string().contains("to register memory"), "{error}");
}

/// Counts this process's descriptors, and its mappings of shared memory.
fn belongings() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("proc").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    let shared = maps.lines().filter(|line| line.contains("memfd:"));
    (descriptors, shared.count())
}

fn outlived(comm: Communicator) {
    let before = belongings();
    for _ in 0..20 {
        let mut memory = comm.alloc(1 << 16).expect("memory");
        let mut vector = vec![0f32; 1 << 14];
        let mut registered = comm.register(&mut vector).expect("registered");
        sum(&comm, &mut registered);
        sum(&comm, memory.as_mut_slice::<f32>());
    }
    let ended = comm.alloc(1 << 16).expect("memory");
    drop(ended);
    comm.barrier().expect("all have dropped it");
    drop(comm.alloc(0).expect("memory"));
    // The last two registrations of each peer are unmapped at the next opportunity.
    let after = belongings();
    assert_eq!(after.0, before.0, "descriptors");
    assert!(after.1 <= before.1 + 2, "{before:?} {after:?}");

    let mut vector = vec![3f32; 1 << 14];
    let mut memory = comm.alloc(1 << 16).expect("memory");
    memory.as_mut_slice::<f32>().fill(2.0);
    let registered = comm.register(&mut vector).expect("registered");
    drop(comm);
    assert!(memory.as_slice::<f32>().iter().all(|value| *value == 2.0));
    assert!(registered.iter().all(|value| *value == 3.0));
    drop((memory, registered));
    assert!(vector.iter().all(|value| *value == 3.0));
    assert_eq!(belongings().1, 0, "mappings");
}

fn parts(comm: Communicator) {
    let mut memory = comm.alloc(1 << 20).expect("memory");
    let pair = comm
        .split(Some((comm.rank() / 2) as u32), 0)
        .expect("parts");
    let pair = pair.expect("a part for every rank");
    sum(&pair, memory.as_mut_slice::<f32>());
    let mut own = pair.alloc(1 << 20).expect("memory");
    sum(&pair, own.as_mut_slice::<f32>());
    sum(&comm, own.as_mut_slice::<f32>());
    sum(&comm, memory.as_mut_slice::<f32>());
}

fn kernel_answers_about_mappings() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("proc");
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|word| word.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 11)
}

/// Maps private memory, possibly in place of other private memory of this process.
fn map_private(
    address: *mut libc::c_void,
    bytes: usize,
    flags: libc::c_int,
    file: libc::c_int,
) -> *mut libc::c_void {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | flags;
    // SAFETY: a new mapping at an address that the kernel chooses, or in place of one of ours.
    let start = unsafe { libc::mmap(address, bytes, protection, flags, file, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start
}

fn leaked(comm: Communicator) {
    const BYTES: usize = 1 << 20;
    if !kernel_answers_about_mappings() {
        skipped("the kernel does not say what is mapped where");
        return;
    }
    // A separate mapping, so that it can be replaced at the same address.
    let map = |address, flags| map_private(address, BYTES, libc::MAP_ANONYMOUS | flags, -1);
    let start = map(std::ptr::null_mut(), 0);
    // SAFETY: mapped just now, and not used otherwise.
    let slice = || unsafe { std::slice::from_raw_parts_mut(start.cast::<f32>(), BYTES / 4) };
    let mut registered = comm.register(slice()).expect("registered");
    sum(&comm, &mut registered);
    std::mem::forget(registered);
    // The owner frees the memory, and the address is reused.
    // SAFETY: our own mapping; no slice of it is in use.
    assert_eq!(unsafe { libc::munmap(start, BYTES) }, 0);
    assert_eq!(map(start, libc::MAP_FIXED), start);
    for _ in 0..3 {
        sum(&comm, slice());
    }
}

/// Returns the bytes of shared memory that are resident in this process.
fn shared_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find(|line| line.starts_with("RssShmem:"));
    let words: Vec<&str> = line.expect("a count").split_whitespace().collect();
    words[1].parse::<usize>().expect("a number") << 10
}

fn freed(comm: Communicator) {
    const BYTES: usize = 32 << 20;
    let memory = comm.alloc(BYTES).expect("memory");
    let with = shared_bytes();
    comm.barrier().expect("both have looked");
    if comm.rank() == 0 {
        drop(memory);
        comm.barrier().expect("it is dropped");
        return;
    }
    comm.barrier().expect("it is dropped");
    assert!(shared_bytes() + BYTES / 2 < with, "{with}");
    assert!(memory.as_slice::<f32>().iter().all(|value| *value == 0.0));
}

fn refused(comm: Communicator) {
    let error = match comm.rank() {
        0 => {
            let memory = comm.alloc(1 << 16);
            memory.expect_err("rank 1 does not have its part")
        }
        _ => {
            let file = std::fs::File::open("/proc/self/exe").expect("this program");
            use std::os::fd::AsRawFd;
            let start = map_private(std::ptr::null_mut(), 8192, 0, file.as_raw_fd());
            // SAFETY: mapped with this length, until the end.
            let region = unsafe { Region::new(start.cast(), 8192) };
            // SAFETY: as above, and the region is not used.
            unsafe { comm.register_region(region) }.expect_err("a file's memory")
        }
    };
    let class = ["System", "InvalidArgument"][comm.rank()];
    assert_eq!(error.class(), class, "{error}");
    // Registers the same buffer twice, also by another communicator.
    let mut vector = vec![0f32; 1 << 16];
    let bytes = size_of_val(&vector[..]);
    // SAFETY: the vector lives until the end of this function, and is used by the calls below only.
    let region = unsafe { Region::new(vector.as_mut_ptr().cast(), bytes) };
    // SAFETY: as above.
    let once = unsafe { comm.register_region(region) }.expect("registered");
    let part = comm.split(Some(0), 0).expect("a part").expect("a part");
    for communicator in [&comm, &part] {
        // SAFETY: as above.
        let again = unsafe { communicator.register_region(region) }.expect_err("registered");
        assert!(again.to_string().contains("registered already"), "{again}");
    }
    let request = Request::new(
        Collective::AllReduce,
        DType::F32,
        Counts::Even(vector.len() as u64),
        region,
        region,
    );
    // SAFETY: as above.
    unsafe { part.run(&request, &mut || Ok(())) }.expect("it is memory like any other");
    drop(once);
    sum(&comm, &mut vector);
}
