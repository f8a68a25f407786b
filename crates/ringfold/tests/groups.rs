//! Concurrent groups of the same processes, and one communicator used by several threads.
//!
//! Calls, sizes and pauses are random, from a seed that is printed; every result is compared in
//! full.

mod scenes;

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use ringfold::Region;
use ringfold::internals::random::{SplitMix64, mix};
use ringfold::{Collective, Communicator, Counts, DType, Op, Request, Target};
use scenes::{Scene, play};

const SCENES: [(&str, Scene); 3] = [
    ("groups", groups),
    ("threads", threads),
    ("past_two_gib", past_two_gib),
];

/// Seed from which all ranks draw the same calls; a failing scene prints it.
const SEED: u64 = 20_261_121;

/// Number of calls that one thread makes.
const CALLS: usize = 300;

/// Numbers of elements of a vector or block: for the head of a slot, a slot, about a slot, and
/// several slices.
const COUNTS: [usize; 9] = [1, 2, 4, 7, 100, 1000, 4097, 20_000, 70_000];

#[test]
#[ignore = "started as a rank by the other tests"]
fn a_rank() {
    scenes::act(&SCENES);
}

#[test]
fn groups_of_the_same_processes_work_at_once() {
    println!("seed {SEED}");
    play("groups", 4, "shm");
    play("groups", 3, "tcp");
}

#[test]
fn threads_share_a_communicator() {
    println!("seed {SEED}");
    play("threads", 2, "shm");
    play("threads", 3, "shm");
    play("threads", 2, "tcp");
}

#[test]
#[ignore = "deep: takes 8 GiB of memory, and is slow unless optimised"]
fn sizes_past_two_gib_arrive_whole() {
    play("past_two_gib", 2, "shm");
}

/// One call as all ranks of a group make it.
#[derive(Clone, Copy, Debug)]
struct Call {
    collective: Collective,
    count: usize,
    root: usize,
    /// Number that distinguishes the call's data from other calls' data.
    salt: u64,
}

impl Call {
    fn draw(random: &mut SplitMix64, ranks: usize) -> Call {
        use Collective::{
            AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter,
            Scatter,
        };
        let all = [
            AllReduce,
            Broadcast,
            Reduce,
            AllGather,
            ReduceScatter,
            AllToAll,
            Gather,
            Scatter,
            Barrier,
        ];
        // Large counts are rarer than small ones.
        let limit = COUNTS.len() - if random.index(8) == 0 { 0 } else { 2 };
        Call {
            collective: all[random.index(all.len())],
            count: COUNTS[random.index(limit)],
            root: random.index(ranks),
            salt: random.index(usize::MAX) as u64,
        }
    }

    /// Returns element `index` of `rank`'s input.
    fn given(&self, rank: usize, index: usize) -> i64 {
        mix(self.salt ^ (rank as u64) << 48 ^ index as u64) as i64
    }

    /// Returns the input and the output of `rank`, and the expected output.
    fn buffers(&self, rank: usize, ranks: usize) -> (Vec<i64>, Vec<i64>, Vec<i64>) {
        use Collective::{AllGather, AllToAll, Barrier, Broadcast, Gather, ReduceScatter, Scatter};
        let count = self.count;
        let is_root = rank == self.root;
        let (gives, gets) = match self.collective {
            Barrier => (0, 0),
            Broadcast => (if is_root { count } else { 0 }, count),
            Scatter => (if is_root { count * ranks } else { 0 }, count),
            Gather => (count, if is_root { count * ranks } else { 0 }),
            Collective::Reduce => (count, if is_root { count } else { 0 }),
            AllGather => (count, count * ranks),
            ReduceScatter => (count * ranks, count),
            AllToAll => (count * ranks, count * ranks),
            _ => (count, count),
        };
        let sum = |index: usize| {
            (0..ranks).fold(0i64, |sum, peer| sum.wrapping_add(self.given(peer, index)))
        };
        let due = |index: usize| match self.collective {
            Broadcast => self.given(self.root, index),
            Scatter => self.given(self.root, rank * count + index),
            AllGather | Gather => self.given(index / count, index % count),
            AllToAll => self.given(index / count, rank * count + index % count),
            ReduceScatter => sum(rank * count + index),
            _ => sum(index),
        };
        (
            (0..gives).map(|index| self.given(rank, index)).collect(),
            vec![-1; gets],
            (0..gets).map(due).collect(),
        )
    }

    fn request(&self, input: &[i64], output: &mut [i64]) -> Request {
        // SAFETY: the callers keep the vectors until the call is over, and inputs are not written.
        let from = unsafe { Region::new(input.as_ptr().cast_mut().cast(), size_of_val(input)) };
        // SAFETY: as above, and outputs are not accessed otherwise.
        let into = unsafe { Region::new(output.as_mut_ptr().cast(), size_of_val(output)) };
        let counts = Counts::Even(self.count as u64);
        let mut request = Request::new(self.collective, DType::I64, counts, from, into);
        request.target = Target::of(self.collective, self.root);
        request
    }
}

/// Makes random calls in `comm`, with pauses in between that differ from rank to rank.
fn work(comm: &Communicator, seed: u64) {
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let mut alike = SplitMix64(seed);
    let mut own = SplitMix64(seed ^ (rank as u64 + 1) << 32);
    for number in 0..CALLS {
        let call = Call::draw(&mut alike, ranks);
        let (input, mut output, due) = call.buffers(rank, ranks);
        let request = call.request(&input, &mut output);
        // SAFETY: the vectors outlive the blocking call.
        let done = unsafe { comm.run(&request, &mut || Ok(())) };
        done.unwrap_or_else(|error| panic!("seed {SEED}, call {number}, {call:?}: {error}"));
        assert!(
            output == due,
            "seed {SEED}, call {number}, {call:?}, rank {rank}"
        );
        match own.index(20) {
            0 => std::thread::sleep(Duration::from_micros(own.index(300) as u64)),
            1..5 => std::thread::yield_now(),
            _ => {}
        }
    }
}

fn groups(world: Communicator) {
    let rank = world.rank();
    let part = |color: usize, key: i64| {
        let part = world.split(Some(color as u32), key).expect("a split");
        part.expect("a part for every rank")
    };
    let halves = part(rank % 2, 0);
    let pairs = part(rank / 2, 0);
    let backwards = part(0, -(rank as i64));
    std::thread::scope(|scope| {
        for (number, comm) in [&halves, &pairs, &backwards, &world]
            .into_iter()
            .enumerate()
        {
            scope.spawn(move || work(comm, SEED + number as u64));
        }
    });
}

/// The number of the next call: the threads' order of calls is the same on all ranks.
struct Turn {
    next: Mutex<usize>,
    changed: Condvar,
}

impl Turn {
    /// Calls `submit` when it is `number`'s turn.
    fn take<R>(&self, number: usize, submit: impl FnOnce() -> R) -> R {
        let next = self.next.lock().expect("no thread failed");
        let mut next = self
            .changed
            .wait_while(next, |next| *next != number)
            .expect("no thread failed");
        let result = submit();
        *next += 1;
        self.changed.notify_all();
        result
    }
}

/// Makes the calls of one communicator in several threads in turn, some without waiting for the
/// previous calls.
fn threads(comm: Communicator) {
    const THREADS: usize = 4;
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let mut random = SplitMix64(SEED);
    let calls: Vec<_> = (0..2 * CALLS)
        .map(|_| Call::draw(&mut random, ranks))
        .collect();
    let turn = Turn {
        next: Mutex::new(0),
        changed: Condvar::new(),
    };
    let mine = |thread: usize| {
        let mut own = SplitMix64(SEED ^ ((rank * THREADS + thread) as u64 + 1) << 32);
        for number in (thread..calls.len()).step_by(THREADS) {
            let call = &calls[number];
            let (input, mut output, due) = call.buffers(rank, ranks);
            let request = call.request(&input, &mut output);
            if own.index(3) == 0 {
                // SAFETY: the vectors outlive the blocking call.
                turn.take(number, || unsafe { comm.run(&request, &mut || Ok(())) })
                    .unwrap_or_else(|error| panic!("seed {SEED}, call {number}: {error}"));
            } else {
                // SAFETY: the vectors outlive the work, which is waited for.
                let work = turn.take(number, || unsafe { comm.start(request) });
                work.and_then(|work| work.wait())
                    .unwrap_or_else(|error| panic!("seed {SEED}, call {number}: {error}"));
            }
            assert!(
                output == due,
                "seed {SEED}, call {number}, {call:?}, rank {rank}"
            );
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let mine = &mine;
            scope.spawn(move || mine(thread));
        }
    });
}

/// Number of elements that are written and compared together.
const PIECE: usize = 4096;

/// Returns piece `index` of `rank`'s data, which depends on both.
fn piece(rank: usize, index: usize) -> [u8; PIECE] {
    let mut piece = [rank as u8 + 3; PIECE];
    piece[..8].copy_from_slice(&mix((index + rank) as u64).to_le_bytes());
    piece
}

/// Makes calls with more than 2^31 bytes and elements, which overflow a signed index of 32 bits.
fn past_two_gib(comm: Communicator) {
    const PIECES: usize = (2 << 30) / PIECE + 1001;
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let fill = |data: &mut [u8], rank: usize| {
        for (index, into) in data.chunks_exact_mut(PIECE).enumerate() {
            into.copy_from_slice(&piece(rank, index));
        }
    };
    let check = |what: &str, data: &[u8], due: &dyn Fn(usize) -> [u8; PIECE]| {
        for (index, found) in data.chunks_exact(PIECE).enumerate() {
            assert!(*found == due(index), "{what}, piece {index}");
        }
    };
    let sum = |index: usize| {
        let mut sum = [(0..ranks).map(|rank| rank as u8 + 3).sum::<u8>(); PIECE];
        for (byte, sum) in sum[..8].iter_mut().enumerate() {
            *sum = (0..ranks).fold(0, |sum, rank| piece(rank, index)[byte].wrapping_add(sum));
        }
        sum
    };
    let mut data = vec![0u8; PIECES * PIECE];
    fill(&mut data, rank);
    comm.all_reduce(&mut data, Op::Sum).expect("a sum");
    check("all_reduce", &data, &sum);
    fill(&mut data, rank);
    comm.broadcast(&mut data, 1).expect("a broadcast");
    check("broadcast", &data, &|index| piece(1, index));
    // The last block ends past 2^31.
    let share = PIECES / ranks * PIECE;
    let whole = share * ranks;
    let own = data[rank * share..][..share].to_vec();
    data.fill(0);
    comm.all_gather(&own, &mut data[..whole]).expect("blocks");
    check("all_gather", &data[..whole], &|index| piece(1, index));
    let mut part = own;
    part.fill(0);
    comm.scatter(&data[..whole], &mut part, 0).expect("a block");
    assert!(part == data[rank * share..][..share], "scatter");
    part.fill(0);
    comm.reduce_scatter(&data[..whole], &mut part, Op::Max)
        .expect("a block");
    assert!(part == data[rank * share..][..share], "reduce_scatter");
    drop(part);
    fill(&mut data, rank);
    let mut output = vec![0u8; PIECES * PIECE];
    comm.all_to_all(&data[..whole], &mut output[..whole])
        .expect("blocks");
    let pieces = share / PIECE;
    check("all_to_all", &output[..whole], &|index| {
        piece(index / pieces, rank * pieces + index % pieces)
    });
    output.fill(0);
    let gathered = if rank == 1 {
        &mut output[..whole]
    } else {
        &mut []
    };
    comm.gather(&data[..share], gathered, 1).expect("blocks");
    if rank == 1 {
        check("gather", &output[..whole], &|index| {
            piece(index / pieces, index % pieces)
        });
    }
    let reduced = if rank == 0 { &mut output[..] } else { &mut [] };
    comm.reduce(&data, reduced, Op::Sum, 0).expect("a sum");
    if rank == 0 {
        check("reduce", &output, &sum);
    }
}
