//! Lanes over the software driver while it refuses calls; each test has its own process.

#[path = "device/software.rs"]
#[allow(dead_code, reason = "shared with the tests of devices")]
mod software;

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use ringfold::internals::device::{Device, DeviceMemory, DeviceRegion, Pin, Stream};
use ringfold::{
    Collective, Communicator, Config, Counts, DType, DeviceBuffer, DeviceRequest, DeviceWork,
    Error, Lane, LaneConfig, ProgramStream, Result, TransportChoice, WaitPath,
};

use software::{Host, alone, driver, fail, live};

/// `CUDA_ERROR_LAUNCH_FAILED`, which the library reports and never handles.
const REFUSED: i32 = 719;
const RANKS: usize = 2;
/// Timeout, longer than any call takes here.
const LONG: Duration = Duration::from_secs(20);
/// Number of elements for three slices; and, if each rank has a device, for a call that one kernel
/// executes.
const COUNT: usize = 3000;
const SMALL_COUNT: usize = 500;
/// Number of elements of six slices, which ranks combine in shares.
const SHARED_COUNT: usize = 6000;

/// The values that elements may have: at first, after each call of two ranks that is carried out,
/// and bytes of ones (not a number) after a fault.
const VALUES: [u32; 5] = [
    1f32.to_bits(),
    2f32.to_bits(),
    4f32.to_bits(),
    8f32.to_bits(),
    u32::MAX,
];

/// Opens a lane of four small slots, with which words are batched.
fn open(communicator: Communicator, ordinal: usize) -> Result<Lane> {
    let config = LaneConfig {
        slot_bytes: 4096,
        depth: 4,
        one_shot: Some(true),
        ..LaneConfig::default()
    };
    Lane::new(communicator, driver().unwrap(), ordinal, config)
}

/// Observations of a rank.
#[derive(Debug)]
struct Seen {
    /// Class of the error with which the lane failed to open.
    no_lane: Option<&'static str>,
    /// The wait path of the rank's lane.
    path: Option<WaitPath>,
    /// Whether a call failed because of the refusal, when it was enqueued or later.
    is_refused: bool,
    /// Class of the error of a later call.
    later: Option<&'static str>,
    /// Whether the driver had not yet refused a call at the end; only rank 0 checks.
    is_over: bool,
}

/// State that the ranks of a job share.
struct Job {
    all: Barrier,
    /// Whether a call of any rank was refused.
    is_refused: AtomicBool,
}

/// Enqueues an all-reduce or an all-gather of `buffer`, in place.
fn enqueue(
    lane: &Lane,
    call: Collective,
    buffer: &DeviceBuffer,
    stream: ProgramStream,
) -> Result<DeviceWork> {
    let own_bytes = match call {
        Collective::AllGather => buffer.bytes() / RANKS,
        _ => buffer.bytes(),
    };
    let begin = buffer.bytes() - own_bytes;
    let begin = begin * lane.rank() / (RANKS - 1);
    let own = buffer.pieces(begin..begin + own_bytes);
    let input = DeviceBuffer::new(own.map(|(_, piece)| piece).collect());
    let (counts, output) = (Counts::Even(own_bytes as u64 / 4), buffer.clone());
    let request = DeviceRequest::new(call, DType::F32, counts, input, output);
    // SAFETY: the memory lives until the lane is closed.
    unsafe { lane.enqueue(request, stream) }
}

/// Returns the device of a rank, and the number of elements of its calls.
fn part(communicator: &Communicator, call: Collective) -> (usize, usize) {
    let shares = communicator.transport() == "shm" && call == Collective::AllReduce;
    match driver().unwrap().devices().unwrap() {
        1 if shares => (0, SHARED_COUNT),
        1 => (0, COUNT),
        _ => (communicator.rank(), SMALL_COUNT),
    }
}

/// Opens a lane and makes two calls while the driver refuses call `at` of `name`, and one more call
/// after all ranks have made these.
fn rank(communicator: Communicator, job: &Job, call: Collective, (name, at): Refused) -> Seen {
    let all = &job.all;
    let (ordinal, count) = part(&communicator, call);
    let data = DeviceData::new(ordinal, count);
    // SAFETY: the stream lives to the end.
    let stream = unsafe { ProgramStream::from_handle(data.program.handle()) };
    let buffer = DeviceBuffer::new(vec![data.region()]);
    let leads = communicator.rank() == 0;
    all.wait();
    if leads {
        fail(name, at, REFUSED);
    }
    all.wait();
    let lane = open(communicator, ordinal);
    let made = lane.as_ref().ok();
    // Each in place on the results of the one before.
    let enqueue = |lane: &Lane| {
        let work = enqueue(lane, call, &buffer, stream)?;
        work.join(stream).map(|()| work)
    };
    let calls = made.map(|lane| [(); 2].map(|()| enqueue(lane)));
    // Without memory operations the lane's thread may make the refused call, later.
    let is_refused = |call: &Result<DeviceWork>| match call {
        Ok(work) => work.wait_on_host(LONG).is_err(),
        Err(_) => true,
    };
    let is_refused = calls
        .iter()
        .flatten()
        .map(is_refused)
        .fold(false, |any, one| any | one);
    // Relaxed: the barrier orders the flag.
    job.is_refused.fetch_or(is_refused, Ordering::Relaxed);
    all.wait();
    if let Some(lane) = made.filter(|_| job.is_refused.load(Ordering::Relaxed)) {
        // The refusal of another rank's call takes a moment to arrive.
        let begin = Instant::now();
        while lane.fault().is_none() {
            assert!(begin.elapsed() < LONG, "a refused call is no fault");
            thread::yield_now();
        }
    }
    let later = made.map(enqueue);
    all.wait();
    // Calls at the end are not refused: another test checks the objects that are kept then.
    let is_over = leads && fail(c"*", 0, 0);
    all.wait();
    let seen = Seen {
        no_lane: lane.as_ref().err().map(|error| error.class()),
        path: made.map(Lane::wait_path),
        is_refused,
        later: later
            .iter()
            .flat_map(|call| call.as_ref().err())
            .map(Error::class)
            .next(),
        is_over,
    };
    drop((calls, later));
    if let Ok(lane) = lane {
        let _ = lane.close();
    }
    let torn = data.torn();
    assert!(torn.is_empty(), "call {at}: {torn:x?}, {seen:?}");
    // To free memory the driver waits for the streams of all ranks.
    all.wait();
    seen
}

/// The elements of a rank's calls on its device, and a mirror of them in pinned memory. The stream
/// and the pin are dropped before the memory.
struct DeviceData {
    program: Stream,
    pin: Pin,
    memory: DeviceMemory,
    device: Arc<Device>,
}

impl DeviceData {
    /// Fills the memory of `count` elements with the first of the values.
    fn new(ordinal: usize, count: usize) -> DeviceData {
        let device = Device::open(driver().unwrap(), ordinal).unwrap();
        let host = Host::new(count * 4);
        let ones = [VALUES[0].to_ne_bytes()].repeat(count);
        host.region().write(&ones.concat());
        let current = device.enter().unwrap();
        let data = DeviceData {
            program: current.stream().unwrap(),
            pin: current.pin(host.region(), host).unwrap(),
            memory: current.allocate(count * 4).unwrap(),
            device: device.clone(),
        };
        current
            .take(&data.program, data.pin.whole(), data.region())
            .unwrap();
        drop(current);
        data.wait();
        data
    }

    fn region(&self) -> DeviceRegion {
        // SAFETY: the memory is freed when all streams that use it are idle.
        unsafe { self.memory.region() }
    }

    /// Waits until the program's stream is idle.
    fn wait(&self) {
        while !self.device.enter().unwrap().is_idle(&self.program).unwrap() {
            thread::yield_now();
        }
    }

    /// Returns elements that have none of the values.
    fn torn(&self) -> Vec<u32> {
        // What the program's stream waits for is over: otherwise memory that it may use is kept.
        self.wait();
        let current = self.device.enter().unwrap();
        current
            .bring(&self.program, self.region(), self.pin.whole())
            .unwrap();
        drop(current);
        self.wait();
        let mut found = vec![0; self.pin.whole().bytes()];
        self.pin.whole().region().read(&mut found);
        let words = found.chunks(4).map(|word| word.try_into().unwrap());
        let words = words.map(u32::from_ne_bytes);
        words.filter(|word| !VALUES.contains(word)).collect()
    }
}

/// Connects ranks that share memory, so that devices read the slots of all ranks.
fn sharing(ranks: usize) -> Vec<Communicator> {
    let name = u64::from_le_bytes(ringfold::internals::control::random().unwrap());
    let connect = move |rank| {
        Communicator::connect(Config {
            rank: Some(rank),
            world_size: Some(ranks),
            address: Some(format!("unix:@ringfold-test-lanes-{name:x}")),
            transport: Some(TransportChoice::Shm),
            ..Config::default()
        })
    };
    let ranks = (0..ranks).map(|rank| thread::spawn(move || connect(rank)));
    let ranks: Vec<_> = ranks.collect();
    let joined = ranks.into_iter().map(|rank| rank.join().unwrap());
    joined.map(Result::unwrap).collect()
}

/// Distance between the refused calls if refusing all would take too long, and the variable that
/// holds the first of them.
const APART: usize = 9;
const FIRST: &str = "TEST_LANES_FIRST";

/// The function whose call is refused, or `*`, and the number of the call.
type Refused = (&'static CStr, u64);

/// All functions except the queries that are polled until work is done.
const ALL: &CStr = c"*";

/// Refuses one of `calls` after the other until a job ends without having made the refused call.
fn refuse(
    calls: impl Iterator<Item = u64>,
    path: WaitPath,
    call: Collective,
    ranks: fn(usize) -> Vec<Communicator>,
) {
    refuse_calls_of(ALL, calls, path, call, ranks);
}

fn refuse_calls_of(
    name: &'static CStr,
    calls: impl Iterator<Item = u64>,
    path: WaitPath,
    call: Collective,
    ranks: fn(usize) -> Vec<Communicator>,
) {
    let before = live();
    for at in calls {
        let job = Arc::new(Job {
            all: Barrier::new(RANKS),
            is_refused: AtomicBool::new(false),
        });
        let ranks = ranks(RANKS).into_iter().map(|communicator| {
            let job = job.clone();
            thread::spawn(move || rank(communicator, &job, call, (name, at)))
        });
        let ranks: Vec<_> = ranks.collect();
        let seen: Vec<Seen> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert_eq!(live(), before, "after call {at}: {seen:?}");
        assert_eq!(seen[0].no_lane, seen[1].no_lane, "call {at}: {seen:?}");
        let paths = seen.iter().flat_map(|rank| rank.path);
        assert!(paths.into_iter().all(|each| each == path), "{seen:?}");
        if seen.iter().any(|rank| rank.is_refused) {
            let ends = seen.iter().all(|rank| rank.later == Some("Aborted"));
            assert!(ends, "call {at}: {seen:?}");
        }
        if seen[0].is_over {
            let is_fine = seen
                .iter()
                .all(|rank| rank.no_lane.is_none() && !rank.is_refused);
            let met_min = if name == ALL { 50 } else { 1 };
            assert!(at > met_min && is_fine, "call {at}: {seen:?}");
            break;
        }
    }
}

#[test]
fn every_refused_call_of_the_driver_ends_the_lane_on_all_ranks() {
    let settings = [("SOFTCUDA_LATENCY_US", "0")];
    alone(&settings, || {
        refuse(
            (1..).step_by(1),
            WaitPath::Stream,
            Collective::AllReduce,
            Communicator::threads,
        );
    });
}

#[test]
fn refused_calls_end_a_lane_whose_devices_read_all_slots() {
    let settings = [("SOFTCUDA_LATENCY_US", "0")];
    alone(&settings, || {
        for call in [Collective::AllGather, Collective::AllReduce] {
            refuse((1..).step_by(APART), WaitPath::Stream, call, sharing);
        }
    });
}

#[test]
fn refused_calls_end_a_lane_whose_kernels_wait_for_each_other() {
    let settings = [("SOFTCUDA_LATENCY_US", "0"), ("SOFTCUDA_DEVICES", "2")];
    alone(&settings, || {
        refuse(
            (1..).step_by(4),
            WaitPath::Stream,
            Collective::AllReduce,
            sharing,
        );
    });
}

/// Names of the driver functions that the issuing thread calls for an all-reduce.
const ENQUEUING: [&CStr; 8] = [
    c"cuEventRecord",
    c"cuStreamWaitEvent",
    c"cuLaunchKernel",
    c"cuMemcpyDtoHAsync_v2",
    c"cuMemcpyHtoDAsync_v2",
    c"cuMemcpyDtoDAsync_v2",
    c"cuStreamWriteValue32_v2",
    c"cuStreamWaitValue32_v2",
];

/// Makes small calls on this rank's own device; returns the number of calls of each driver function
/// on all ranks.
fn small_calls(communicator: Communicator, all: &Barrier) -> [u64; ENQUEUING.len()] {
    let ordinal = communicator.rank();
    let lane = open(communicator, ordinal).unwrap();
    let memory = lane.device().enter().unwrap().allocate(SMALL_COUNT * 4);
    let memory = memory.unwrap();
    // SAFETY: the memory is freed when the lane is closed.
    let buffer = DeviceBuffer::new(vec![unsafe { memory.region() }]);
    all.wait();
    let before = ENQUEUING.map(software::calls);
    all.wait();
    for _ in 0..SMALL_CALLS {
        let work = enqueue(
            &lane,
            Collective::AllReduce,
            &buffer,
            ProgramStream::DEFAULT,
        )
        .unwrap();
        assert!(work.wait_on_host(LONG).unwrap());
    }
    all.wait();
    let after = ENQUEUING.map(software::calls);
    all.wait();
    lane.close().unwrap();
    // To free memory the driver waits for the streams of all ranks.
    all.wait();
    std::array::from_fn(|name| after[name] - before[name])
}

const SMALL_CALLS: u64 = 10;

#[test]
fn a_small_all_reduce_takes_four_calls_of_the_driver() {
    alone(&[("SOFTCUDA_DEVICES", "2")], || {
        let all = Barrier::new(RANKS);
        let all = &all;
        thread::scope(|scope| {
            let ranks = sharing(RANKS).into_iter();
            let ranks = ranks.map(|rank| scope.spawn(move || small_calls(rank, all)));
            let ranks: Vec<_> = ranks.collect();
            // Records of the fork and of the end, a wait for the fork, and the kernel.
            let each = [2, 1, 1, 0, 0, 0, 0, 0].map(|calls| calls * SMALL_CALLS * RANKS as u64);
            for rank in ranks {
                assert_eq!(rank.join().unwrap(), each);
            }
        });
    });
}

#[test]
#[ignore = "deep: takes a minute"]
fn every_single_refused_call_ends_a_lane_whose_devices_read_all_slots() {
    for first in 1..=APART {
        let first = first.to_string();
        let settings = [("SOFTCUDA_LATENCY_US", "0"), (FIRST, &first)];
        alone(&settings, || {
            let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
            for call in [Collective::AllGather, Collective::AllReduce] {
                refuse((first..).step_by(APART), WaitPath::Stream, call, sharing);
            }
        });
    }
}

/// The lane's thread makes most of the calls, and polls for arrived slices as often as it can.
#[test]
fn a_refused_call_ends_a_lane_without_memory_operations_on_all_ranks() {
    let settings = [("SOFTCUDA_LATENCY_US", "0"), ("SOFTCUDA_MEMOPS", "0")];
    alone(&settings, || {
        refuse(
            (1..).step_by(1),
            WaitPath::Host,
            Collective::AllReduce,
            Communicator::threads,
        );
        let (path, call) = (WaitPath::Host, Collective::AllReduce);
        refuse_calls_of(c"cuEventQuery", 1..9, path, call, Communicator::threads);
    });
}
