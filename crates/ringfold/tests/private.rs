//! Private memory that peers read through the kernel: right results, a kernel that refuses, a rank that dies meanwhile.
//!
//! Every rank is this test program again, started for `a_rank`, which plays one of the [`SCENES`].

mod scenes;
mod skipped;

use std::time::Duration;

use ringfold::memory::Region;
use ringfold::{Algorithm, Collective, Communicator, Counts, DType, Error, Op, Request};
use scenes::{Scene, play, play_with};
use skipped::skipped;

const SCENES: [(&str, Scene); 5] = [
    ("collectives", collectives),
    ("pulled", pulled),
    ("refused", refused),
    ("secret", secret),
    ("killed", killed),
];

/// Which rank is not allowed to read other processes' memory.
const FORBIDDEN: &str = "RINGFOLD_TEST_FORBIDDEN";

const SHM: (&str, &str) = ("RINGFOLD_TRANSPORT", "shm");

/// Every size is pulled.
const PULL: (&str, &str) = (
    "RINGFOLD_TUNER_CONFIG",
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/rules/pull.csv"),
);

#[test]
#[ignore = "what the other tests start as ranks"]
fn a_rank() {
    if std::env::var(FORBIDDEN).is_ok_and(|rank| Ok(rank) == std::env::var("RINGFOLD_RANK")) {
        forbid();
    }
    scenes::act(&SCENES);
}

#[test]
fn every_collective_is_right_on_private_memory() {
    // As the probe has it, whatever that is.
    play("collectives", 2, "shm");
    for ranks in [2, 3, 5] {
        play_with("pulled", ranks, &[SHM, PULL]);
        play_with("pulled", ranks, &[SHM, ("RINGFOLD_ALGO", "pull")]);
    }
}

#[test]
fn a_kernel_that_refuses_one_rank_keeps_all_from_reading() {
    for forbidden in ["0", "2"] {
        play_with("refused", 3, &[SHM, PULL, (FORBIDDEN, forbidden)]);
    }
    let by_name = ("RINGFOLD_ALGO", "pull");
    play_with("collectives", 3, &[SHM, by_name, (FORBIDDEN, "1")]);
}

#[test]
fn memory_that_the_kernel_gives_nobody_goes_the_usual_way() {
    play_with("secret", 3, &[SHM, PULL]);
}

#[test]
fn a_rank_that_dies_while_others_read_its_memory_is_named() {
    for ranks in [2, 4] {
        play_with("killed", ranks, &[SHM, PULL]);
    }
}

/// Has the kernel refuse this thread, and those that it starts, to read other processes' memory.
fn forbid() {
    let statement = |code: u32, jump_false: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: jump_false,
        k,
    };
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            libc::SYS_process_vm_readv as u32,
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: takes numbers only.
    let locked = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the filter and its program outlive the call, which copies them.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) };
    assert_eq!((locked, set), (0, 0), "{}", std::io::Error::last_os_error());
}

/// What stands at `index` of `rank`'s data: whole numbers, so that sums are exact.
fn element(rank: usize, index: usize) -> f32 {
    ((rank + 1) * (index % 1000 + 1)) as f32
}

fn filled(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| element(rank, index)).collect()
}

fn sum(ranks: usize, index: usize) -> f32 {
    (0..ranks).map(|rank| element(rank, index)).sum()
}

/// What is chosen for an `all_to_all` of many bytes.
fn chosen(comm: &Communicator) -> Algorithm {
    let (count, region) = (1 << 20, Region::EMPTY);
    let counts = Counts::Even(count);
    let request = Request::new(Collective::AllToAll, DType::F32, counts, region, region);
    comm.choice(&request).expect("a choice").algorithm
}

/// The collectives where every rank may read and pull is chosen: anything else is a refusal by this machine.
fn pulled(comm: Communicator) {
    if chosen(&comm) != Algorithm::Pull {
        skipped("the kernel does not let processes read each other's memory here");
    }
    collectives(comm);
}

/// Every collective that is pulled, at empty, odd and large sizes, apart and in place.
fn collectives(comm: Communicator) {
    let (rank, ranks) = (comm.rank(), comm.world_size());
    for count in [0, 1, 7, 1001, 70_001, 300_000] {
        let blocks = count * ranks;
        let (own, all) = (filled(rank, count), filled(rank, blocks));
        let from = |peer: usize, index: usize| element(peer, rank * count + index);

        let mut output = vec![0.0; count];
        comm.all_reduce_into(&own, &mut output, Op::Sum)
            .expect("a sum");
        assert!((0..count).all(|index| output[index] == sum(ranks, index)));
        output.copy_from_slice(&own);
        comm.all_reduce(&mut output, Op::Avg).expect("a mean");
        let mean = |index| sum(ranks, index) * (1.0 / ranks as f64) as f32;
        assert!((0..count).all(|index| output[index] == mean(index)));
        comm.reduce_scatter(&all, &mut output, Op::Max)
            .expect("a maximum");
        assert!((0..count).all(|index| output[index] == from(ranks - 1, index)));
        for root in [0, ranks - 1] {
            output.copy_from_slice(&own);
            comm.broadcast(&mut output, root).expect("a copy");
            assert!((0..count).all(|index| output[index] == element(root, index)));
            let (given, got) = (if rank == root { &all[..] } else { &[] }, &mut output);
            comm.scatter(given, got, root).expect("a block");
            assert!((0..count).all(|index| output[index] == from(root, index)));
        }

        let mut gathered = vec![0.0; blocks];
        comm.all_gather(&own, &mut gathered).expect("blocks");
        let of = |at: usize| element(at / count, at % count);
        assert!((0..blocks).all(|at| gathered[at] == of(at)));
        comm.all_to_all(&all, &mut gathered).expect("blocks");
        assert!((0..blocks).all(|at| gathered[at] == from(at / count, at % count)));
        all_gather_in_place(&comm, count);
    }
    comm.close().expect("all calls are over");
}

fn all_gather_in_place(comm: &Communicator, count: usize) {
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let mut data = vec![0.0; count * ranks];
    data[rank * count..][..count].copy_from_slice(&filled(rank, count));
    // SAFETY: the vector outlives the blocking call, and nobody else uses it meanwhile.
    let whole = unsafe { Region::new(data.as_mut_ptr().cast(), size_of_val(&data[..])) };
    let (bytes, counts) = (count * size_of::<f32>(), Counts::Even(count as u64));
    let own = whole.part(rank * bytes..(rank + 1) * bytes);
    let request = Request::new(Collective::AllGather, DType::F32, counts, own, whole);
    // SAFETY: as above.
    unsafe { comm.run(&request) }.expect("blocks");
    for (at, value) in data.iter().enumerate() {
        assert_eq!(*value, element(at / count, at % count));
    }
}

/// One rank may not read: nobody does, and everything is as usual.
fn refused(comm: Communicator) {
    assert_eq!(chosen(&comm), Algorithm::Direct);
    collectives(comm);
}

/// The input of one rank is memory that only that rank can read, in every other call.
fn secret(comm: Communicator) {
    const BYTES: usize = 16 << 10;
    let (rank, ranks, count) = (comm.rank(), comm.world_size(), BYTES / size_of::<f32>());
    let hidden = (rank == 1).then(|| secret_memory(BYTES)).flatten();
    if rank == 1 && hidden.is_none() {
        skipped("this kernel has no secret memory");
    }
    for turn in 0..4 {
        let mut own = filled(rank, count);
        let input = match hidden {
            Some(start) if turn % 2 == 0 => start.cast::<f32>(),
            _ => own.as_mut_ptr(),
        };
        // SAFETY: this memory is as long, stays mapped or outlives the turn, and nobody else uses it meanwhile.
        let input = unsafe { std::slice::from_raw_parts_mut(input, count) };
        for (index, value) in input.iter_mut().enumerate() {
            *value = element(rank, index);
        }
        let mut gathered = vec![0.0; count * ranks];
        comm.all_gather(input, &mut gathered).expect("blocks");
        let of = |at: usize| element(at / count, at % count);
        assert!((0..gathered.len()).all(|at| gathered[at] == of(at)));
        comm.all_reduce(input, Op::Sum).expect("a sum");
        assert!((0..count).all(|index| input[index] == sum(ranks, index)));
    }
    comm.close().expect("all calls are over");
}

/// Memory that the kernel does not read for anybody, where it has such; mapped until the process ends.
fn secret_memory(bytes: usize) -> Option<*mut u8> {
    // SAFETY: takes a number only.
    let file = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) } as i32;
    // SAFETY: takes numbers only; a descriptor that there is not is refused.
    if file < 0 || unsafe { libc::ftruncate(file, bytes as libc::off_t) } != 0 {
        return None;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at a place that the kernel chooses.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            protection,
            libc::MAP_SHARED,
            file,
            0,
        )
    };
    (start != libc::MAP_FAILED).then_some(start.cast())
}

/// The last rank ends without a word while all read each other's memory.
fn killed(comm: Communicator) {
    let (rank, ranks, count) = (comm.rank(), comm.world_size(), 2 << 20);
    let (input, mut output) = (filled(rank, count), vec![0.0; count]);
    comm.barrier().expect("all ranks");
    if rank == ranks - 1 {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            // SAFETY: nothing of this process is needed afterwards.
            unsafe { libc::_exit(0) }
        });
    }
    let error = loop {
        let turn = comm.all_to_all(&input, &mut output);
        if let Err(error) = turn.and_then(|()| comm.all_reduce(&mut output, Op::Max)) {
            break error;
        }
    };
    assert!(
        matches!(error, Error::PeerFailed { rank, .. } if rank == ranks - 1),
        "{error}"
    );
}
