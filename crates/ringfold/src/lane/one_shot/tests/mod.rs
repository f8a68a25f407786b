//! Kernels that meet, over the software driver, with a device for each rank.

mod content;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::area::RANKS_MAX;
use super::call::flag;
use super::element::is_combined;
use super::fits_one_shot;
use super::limits::bytes_max;
use super::text::text;
use crate::communicator::{CallOptions, Counts};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::lane::tests::job::{Job, Rank, WATCHDOG, region};
use crate::lane::tests::{alone, driver};
use crate::lane::words::load_flag;
use crate::lane::{DeviceBuffer, DeviceRequest, DeviceWork, LaneConfig};
use crate::random::SplitMix64;
use crate::sync::lock;
use crate::types::{Collective, DType, Method, Op};
use content::{OPS, assemble, check_same, content};

const CONFIG: LaneConfig = LaneConfig {
    slot_bytes: 8192,
    slice_bytes: None,
    depth: 2,
    direct: true,
    one_shot: Some(true),
};

const FOUR: (&str, &str) = ("SOFTCUDA_DEVICES", "4");

/// How drivers run what is enqueued: with a thread for each stream, in a random order, and with one
/// queue for all streams of a device.
const DRIVERS: [&[(&str, &str)]; 3] = [
    &[FOUR],
    &[FOUR, ("SOFTCUDA_MODE", "seeded"), ("SOFTCUDA_SEED", "5")],
    &[FOUR, ("SOFTCUDA_QUEUES", "1")],
];

/// Elements that fit into one kernel here, and do not fill its vectors.
const COUNT: usize = 901;

fn job(world_size: usize) -> Job {
    Job::new(world_size, CONFIG).sharing(WATCHDOG)
}

/// How many calls of a rank were done by one kernel.
fn calls(rank: &Rank) -> u32 {
    let issuer = lock(&rank.lane.issuer);
    let one_shot = issuer.one_shot.as_ref().expect("kernels that meet");
    one_shot.last
}

/// A call in place.
fn request(memory: &DeviceMemory, count: usize) -> DeviceRequest {
    let buffer = || DeviceBuffer::new(vec![region(memory, 0..4 * count)]);
    let counts = Counts::Even(count as u64);
    let (input, output) = (buffer(), buffer());
    DeviceRequest::new(Collective::AllReduce, DType::F32, counts, input, output)
}

fn enqueue(rank: &Rank, request: DeviceRequest) -> Result<DeviceWork, Error> {
    // SAFETY: the memory lives until all streams are idle.
    unsafe { rank.lane.enqueue(request, rank.stream()) }
}

/// What the call left, which is no number: every byte is ones.
fn check_ones(rank: &Rank, memory: &DeviceMemory) {
    let found = rank.download(memory, 0..4 * COUNT);
    assert!(found.iter().all(|byte| *byte == 0xff), "numbers");
}

/// Waits until the lane has ended; the error of its next call.
fn later(rank: &Rank, memory: &DeviceMemory) -> Error {
    let begin = Instant::now();
    while rank.lane.fault().is_none() {
        assert!(begin.elapsed() < WATCHDOG, "no fault");
        std::thread::yield_now();
    }
    enqueue(rank, request(memory, COUNT)).expect_err("it has ended")
}

#[test]
fn kernels_that_meet_combine_as_the_host_does() {
    alone(&[FOUR], || {
        let seed = 23;
        for world_size in 2..=4 {
            job(world_size).run(|rank| {
                let mut made = 0;
                for (dtype, op) in DType::ALL
                    .iter()
                    .flat_map(|dtype| OPS.map(|op| (*dtype, op)))
                {
                    // Devices combine whatever the host combines, except fp8.
                    let is_fp8 = matches!(dtype, DType::F8E4M3 | DType::F8E5M2);
                    let combines = op.check(dtype).is_ok() && !is_fp8;
                    assert_eq!(is_combined(op, dtype), combines, "{op:?} {dtype}");
                    if !combines {
                        continue;
                    }
                    combine(rank, op, dtype, seed);
                    made += 1;
                }
                assert_eq!(calls(rank), made);
            });
        }
    });
}

/// It has no slices, and the call before it, which has the same numbers, brings nothing.
#[test]
fn a_call_of_nothing_behind_one_kernel_is_done() {
    alone(&[FOUR], || {
        job(2).run(|rank| {
            let memory = rank.upload(&[0; 4 * COUNT]);
            enqueue(rank, request(&memory, COUNT)).expect("no fault");
            assert_eq!(calls(rank), 1);
            let nothing = || DeviceBuffer::new(vec![region(&memory, 0..0)]);
            let counts = Counts::Even(0);
            let (input, output) = (nothing(), nothing());
            let call = Collective::AllGather;
            let call = DeviceRequest::new(call, DType::F32, counts, input, output);
            let work = enqueue(rank, call).expect("no fault");
            assert!(work.wait_on_host(WATCHDOG).expect("no fault"));
        });
    });
}

/// One call of random content, on odd places in memory.
fn combine(rank: &Rank, op: Op, dtype: DType, seed: u64) {
    let mut random = SplitMix64::stream(seed, u64::from(op.wire()) << 8 | dtype as u64);
    let size = dtype.size_bytes();
    let bytes = (1 + random.index(300)) * size;
    let rows: Vec<Vec<u8>> = (0..rank.lane.world_size())
        .map(|_| content(dtype, &mut random, bytes))
        .collect();
    // What follows is each rank's own.
    let own = rank.lane.rank();
    let mut random = SplitMix64::stream(seed, (own as u64) << 32 | u64::from(op.wire()));
    let begin = [0, size, 16][random.index(3)];
    let padding = vec![0x5a; begin];
    let around: Vec<u8> = [&padding[..], &rows[own], &[0x5a; 16]].concat();
    let memory = rank.upload(&around);
    let place = begin..begin + bytes;
    // A list of two, or one run.
    let middle = begin + random.index(bytes / size + 1) * size;
    let buffer = |in_two: bool, memory: &DeviceMemory| {
        let pieces = match in_two {
            true => vec![place.start..middle, middle..place.end],
            false => vec![place.clone()],
        };
        DeviceBuffer::new(
            pieces
                .into_iter()
                .map(|piece| region(memory, piece))
                .collect(),
        )
    };
    let other = rank.upload(&around);
    let into = [&memory, &other][random.index(2)];
    let counts = Counts::Even((bytes / size) as u64);
    let (input, output) = match random.index(3) {
        0 => (buffer(true, &memory), buffer(true, into)),
        _ => (buffer(false, &memory), buffer(false, into)),
    };
    let request = DeviceRequest {
        op,
        ..DeviceRequest::new(Collective::AllReduce, dtype, counts, input, output)
    };
    let work = enqueue(rank, request).expect("a call");
    work.join(rank.stream()).expect("no fault");
    let found = rank.download(into, 0..around.len());
    check_same(op, dtype, &found[place.clone()], &rows, seed);
    let is_untouched = |range: std::ops::Range<usize>| found[range].iter().all(|b| *b == 0x5a);
    assert!(is_untouched(0..begin) && is_untouched(place.end..around.len()));
    assert!(work.is_done());
}

#[test]
fn small_and_large_calls_take_turns() {
    for driver in DRIVERS {
        alone(driver, || {
            job(3).run(|rank| {
                let value = rank.lane.rank() as f32 + 1.0;
                let mut works = vec![];
                for round in 0..30 {
                    // Every third call is cut into slices.
                    let count = [1, COUNT, 5000][round % 3];
                    let memory = rank.upload(&vec![value; count].map_bytes());
                    let work = enqueue(rank, request(&memory, count)).expect("a call");
                    works.push((count, memory, work));
                }
                for (count, memory, work) in works {
                    work.join(rank.stream()).expect("no fault");
                    let found = rank.download(&memory, 0..4 * count);
                    assert_eq!(found, vec![6f32; count].map_bytes());
                }
                assert_eq!(calls(rank), 20);
            });
        });
    }
}

trait MapBytes {
    fn map_bytes(&self) -> Vec<u8>;
}

impl MapBytes for Vec<f32> {
    fn map_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|value| value.to_le_bytes()).collect()
    }
}

#[test]
fn ranks_on_one_device_and_ranks_that_share_no_memory_do_not_meet() {
    alone(&[("SOFTCUDA_DEVICES", "2")], || {
        let meets = |rank: &Rank| lock(&rank.lane.issuer).one_shot.is_some();
        // Two of three have the first device.
        job(3).run(|rank| assert!(!meets(rank)));
        Job::new(2, CONFIG).run(|rank| assert!(!meets(rank)));
        job(2).run(|rank| assert!(meets(rank)));
        let config = LaneConfig {
            one_shot: Some(false),
            ..CONFIG
        };
        Job::new(2, config)
            .sharing(WATCHDOG)
            .run(|rank| assert!(!meets(rank)));
    });
}

/// Waits until the kernel of `peer`'s first call has raised its flag, and so spins.
fn wait_until_peer_spins(rank: &Rank, peer: usize) {
    let issuer = lock(&rank.lane.issuer);
    let area = issuer.one_shot.as_ref().expect("kernels that meet").area;
    let place = rank
        .lane
        .staging
        .of_rank(peer)
        .expect("its memory")
        .one_shot();
    let begin = Instant::now();
    while load_flag(place.part(area.flag(1, 0)).region()) as u32 != 1 {
        assert!(begin.elapsed() < WATCHDOG, "no flag");
        std::thread::yield_now();
    }
}

#[test]
fn an_abort_ends_kernels_that_spin() {
    for driver in DRIVERS {
        alone(driver, || {
            job(3).run(|rank| {
                let memory = rank.upload(&[0; 4 * COUNT]);
                if rank.lane.rank() == 1 {
                    wait_until_peer_spins(rank, 0);
                    rank.lane.abort("the test");
                } else if let Ok(work) = enqueue(rank, request(&memory, COUNT)) {
                    let _ = work.join(rank.stream());
                    check_ones(rank, &memory);
                    assert!(crate::wait::wait_until(|| work.is_done(), WATCHDOG));
                }
                let error = later(rank, &memory);
                assert_eq!(error.class(), "Aborted", "{error}");
                assert!(error.to_string().contains("rank 1"), "{error}");
            });
        });
    }
}

/// A peer whose kernel has found all flags may read it then, and takes it for good.
#[test]
fn after_a_fault_a_row_stays_when_its_lane_is_gone() {
    alone(&[FOUR], || {
        let (is_gone, row) = (Barrier::new(2), vec![7f32; COUNT].map_bytes());
        job(2).run_owned(|rank, arrival| {
            if rank.lane.rank() == 1 {
                let memory = rank.upload(&row);
                let work = enqueue(&rank, request(&memory, COUNT)).expect("no fault");
                wait_until_peer_spins(&rank, 1);
                rank.lane.abort("the test");
                drop(work);
                rank.end_lane_first(arrival, || {
                    is_gone.wait();
                });
                return;
            }
            is_gone.wait();
            let area = lock(&rank.lane.issuer)
                .one_shot
                .as_ref()
                .expect("kernels")
                .area;
            let place = rank.lane.staging.of_rank(1).expect("its memory").one_shot();
            let mut found = vec![0; row.len()];
            place
                .part(area.row(1))
                .region()
                .part(0..row.len())
                .read(&mut found);
            assert!(found == row, "the row of a peer that is gone");
            rank.end(arrival);
        });
    });
}

#[test]
fn a_deadline_ends_kernels_that_spin_and_names_the_rank_that_did_not_come() {
    alone(&[FOUR], || {
        job(3).run(|rank| {
            let memory = rank.upload(&[0; 4 * COUNT]);
            if rank.lane.rank() != 2 {
                let request = DeviceRequest {
                    options: CallOptions {
                        timeout: Some(Duration::from_millis(300)),
                        ..CallOptions::default()
                    },
                    ..request(&memory, COUNT)
                };
                let work = enqueue(rank, request).expect("a call");
                let _ = work.join(rank.stream());
                check_ones(rank, &memory);
            }
            let error = later(rank, &memory);
            assert_eq!(error.class(), "Timeout", "{error}");
            assert!(error.to_string().contains("rank 2"), "{error}");
        });
    });
}

#[test]
fn different_calls_give_no_numbers_and_a_mismatch() {
    for driver in DRIVERS {
        alone(driver, || {
            for way in 0..3 {
                job(2).run(|rank| {
                    let memory = rank.upload(&[0; 4 * 5000]);
                    let leads = rank.lane.rank() == 0;
                    let usual = request(&memory, COUNT);
                    let request = match way {
                        _ if leads => usual,
                        0 => DeviceRequest {
                            op: Op::Max,
                            ..usual
                        },
                        1 => request(&memory, COUNT + 1),
                        // One that is cut into slices.
                        _ => request(&memory, 5000),
                    };
                    let work = enqueue(rank, request).expect("nothing is known yet");
                    let _ = work.join(rank.stream());
                    check_ones(rank, &memory);
                    let error = later(rank, &memory);
                    assert_eq!(error.class(), "Mismatch", "{error}");
                });
            }
        });
    }
}

#[test]
fn only_small_sums_fit() {
    let device = crate::device::Device::open(driver(crate::device::Platform::Cuda), 0);
    let device = device.expect("a device");
    let current = device.enter().expect("a context");
    let memory = current.allocate(4 * COUNT).expect("memory");
    let fits = |request: DeviceRequest, bytes_max| fits_one_shot(&request, bytes_max);
    let usual = || request(&memory, COUNT);
    assert!(fits(usual(), 4 * COUNT) && !fits(usual(), 4 * COUNT - 16));
    assert!(!fits(usual(), bytes_max(RANKS_MAX + 1, 1 << 20)));
    assert!(!fits(request(&memory, 0), 4096));
    let changes: [fn(&mut DeviceRequest); 3] = [
        |request| request.op = Op::PremulSum(2.0),
        |request| request.options.algorithm = Some(Method::Ring),
        |request| request.collective = Collective::Reduce,
    ];
    for change in changes {
        let mut request = usual();
        change(&mut request);
        assert!(!fits(request, 1 << 20));
    }
}

#[test]
fn a_flag_says_which_call_it_is() {
    let flag = |op, count| flag(op, DType::F32, count, 7);
    let first = flag(Op::Sum, 10);
    assert_eq!(first as u32, 7);
    assert_ne!(first, flag(Op::Max, 10));
    assert_ne!(first, flag(Op::Sum, 11));
}

#[test]
fn the_assembler_takes_every_text() {
    assemble("one_shot", |op, dtype| text(op, dtype, 1, 3));
}
