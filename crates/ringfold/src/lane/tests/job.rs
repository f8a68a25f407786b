//! A job of threads with a lane each, over the software driver.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::communicator::{Communicator, Counts, Target};
use crate::config::{Config, TransportChoice};
use crate::conformance::{Case, oracle};
use crate::control::socket::random;
use crate::device::{
    Device, DeviceMemory, DeviceRegion, Driver, Pin, Platform, ProgramStream, Stream,
};
use crate::lane::{DeviceBuffer, DeviceRequest, DeviceWork, Lane, LaneConfig};
use crate::memory::Owned;
use crate::random::SplitMix64;
use crate::sync::lock;
use crate::types::{Access, Collective, DType, Method, Op};

/// The most bytes of a buffer in these tests.
pub const BUFFER_BYTES: usize = 1 << 20;

/// Longer than any device takes here: what lasts longer is a deadlock.
pub const WATCHDOG: Duration = Duration::from_secs(120);

/// A lane of two small slots.
pub fn config() -> LaneConfig {
    LaneConfig {
        slot_bytes: 4096,
        depth: 2,
        ..LaneConfig::default()
    }
}

/// Calls that are made together, and how their buffers are divided.
#[derive(Clone, Debug)]
pub struct Plan {
    pub calls: Vec<Case>,
    /// Into how many pieces each buffer is cut.
    pub pieces: usize,
}

impl Plan {
    /// Any call of `world_size` ranks, or a group of them.
    pub fn any(random: &mut SplitMix64, world_size: usize) -> Plan {
        let calls = match random.index(4) {
            0 => 2 + random.index(3),
            _ => 1,
        };
        let mut plan = Plan {
            calls: vec![any_call(random, world_size)],
            pieces: 1 + random.index(3),
        };
        // Not all ranks have a part in a message: groups of one call may differ.
        let more = (1..calls).map(|_| any_call(random, world_size));
        plan.calls.extend(more);
        plan
    }
}

/// Any call of `world_size` ranks.
fn any_call(random: &mut SplitMix64, world_size: usize) -> Case {
    use Collective::{
        AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter, Send,
        SendRecv,
    };
    let collectives = [
        AllReduce,
        Reduce,
        Broadcast,
        AllGather,
        Gather,
        ReduceScatter,
        Scatter,
        AllToAll,
        SendRecv,
        Send,
    ];
    // A message needs two ranks.
    let kinds = collectives.len() - usize::from(world_size < 2);
    let collective = collectives[random.index(kinds)];
    let count = [0, 1, 3, 17, 300, 2500, 9001][random.index(7)];
    let mut case = Case::new(collective, Method::Ring, Access::Messages, count);
    case.dtype = DType::ALL[random.index(DType::ALL.len())];
    if matches!(collective, AllReduce | Reduce | ReduceScatter) {
        (case.op, case.dtype) = any_operation(random);
    }
    case.root = random.index(world_size);
    let is_in_place = !matches!(collective, AllToAll | SendRecv | Send);
    case.in_place = is_in_place && random.index(2) == 0;
    let is_per_rank = matches!(collective, AllGather | Gather | ReduceScatter | Scatter);
    if is_per_rank && random.index(3) == 0 {
        let any = |random: &mut SplitMix64| random.below(count.max(1) * 2);
        case.counts = Counts::PerRank((0..world_size).map(|_| any(random)).collect());
    }
    if collective == AllToAll && random.index(2) == 0 {
        // The oracle knows the counts.
        let none = vec![0; world_size];
        case.counts = Counts::Pairwise {
            input: none.clone(),
            output: none,
        };
    }
    case
}

/// Any operation, and a type that has it. The oracle averages integers only.
fn any_operation(random: &mut SplitMix64) -> (Op, DType) {
    let operations = [
        Op::Sum,
        Op::Prod,
        Op::Min,
        Op::Max,
        Op::Avg,
        Op::PremulSum(2.0),
        Op::Band,
        Op::Bor,
        Op::Bxor,
    ];
    loop {
        let op = operations[random.index(operations.len())];
        let dtype = DType::ALL[random.index(DType::ALL.len())];
        let is_known = op != Op::Avg || matches!(dtype, DType::I32 | DType::U8 | DType::I64);
        if is_known && op.check(dtype).is_ok() {
            return (op, dtype);
        }
    }
}

/// What `rank` of `world_size` gives as counts.
fn counts(case: &Case, rank: usize, world_size: usize) -> Counts {
    match &case.counts {
        Counts::Pairwise { .. } => {
            let all = 0..world_size;
            Counts::Pairwise {
                input: all.clone().map(|to| oracle::pairwise(rank, to)).collect(),
                output: all.map(|from| oracle::pairwise(from, rank)).collect(),
            }
        }
        counts => counts.clone(),
    }
}

/// A job of threads.
pub struct Job {
    communicators: Vec<Communicator>,
    config: LaneConfig,
    driver: &'static Driver,
    /// One job at a time: see [`Rank::memory`].
    _alone: MutexGuard<'static, ()>,
}

/// One of its ranks.
pub struct Rank {
    pub lane: Lane,
    pub driver: &'static Driver,
    pub device: Arc<Device>,
    /// The program's own stream.
    pub program: Stream,
    /// What was allocated: the driver may hold all calls of the process while it frees memory,
    /// until the device is idle, so nothing is freed before all ranks are done.
    memory: Mutex<Vec<Arc<DeviceMemory>>>,
    /// What content is copied through.
    pub pin: Pin,
}

impl Job {
    pub fn new(world_size: usize, config: LaneConfig) -> Job {
        static ALONE: Mutex<()> = Mutex::new(());
        Job {
            communicators: Communicator::threads(world_size),
            config,
            driver: driver(Platform::Cuda),
            _alone: lock(&ALONE),
        }
    }

    /// The same of ranks that share memory as processes do, each with a mapping of its own, and
    /// with this deadline of calls. Their devices reach the slots of all.
    pub fn sharing(self, timeout: Duration) -> Job {
        let world_size = self.communicators.len();
        let name = u64::from_le_bytes(random().expect("random bytes"));
        let connect = |rank| {
            Communicator::connect(Config {
                rank: Some(rank),
                world_size: Some(world_size),
                address: Some(format!("unix:@ringfold-test-lane-{name:x}")),
                connect_timeout: Some(WATCHDOG),
                transport: Some(TransportChoice::Shm),
                timeout: Some(timeout),
                ..Config::default()
            })
        };
        let connect = &connect;
        let communicators = std::thread::scope(|scope| {
            let ranks = (0..world_size).map(|rank| scope.spawn(move || connect(rank)));
            let ranks: Vec<_> = ranks.collect();
            let joined = ranks.into_iter().map(|rank| rank.join().expect("a rank"));
            joined.map(|rank| rank.expect("a communicator")).collect()
        });
        Job {
            communicators,
            ..self
        }
    }

    /// The same without stream memory operations: by HIP's functions.
    pub fn by_host(self) -> Job {
        Job {
            driver: driver(Platform::Hip),
            ..self
        }
    }

    /// Has each rank do `work`.
    pub fn run(self, work: impl Fn(&Rank) + Sync) {
        self.run_owned(|rank, arrival| {
            work(&rank);
            rank.end(arrival);
        });
    }

    /// Has each rank do `work`, which ends it.
    pub fn run_owned(self, work: impl Fn(Rank, Arrival<'_>) + Sync) {
        let (work, config, driver) = (&work, self.config, self.driver);
        let arrivals = Arrivals::of(self.communicators.len());
        let arrivals = &arrivals;
        std::thread::scope(|scope| {
            for communicator in self.communicators {
                scope.spawn(move || {
                    let arrival = Arrival(arrivals);
                    let rank = Rank::new(communicator, driver, config);
                    work(rank, arrival);
                });
            }
        });
    }
}

/// Ranks that have not come to their end.
pub struct Arrivals {
    left: Mutex<usize>,
    /// Partner of changes of `left`.
    changed: Condvar,
}

/// A rank that comes to its end when this is dropped: also by a panic, or the others would wait for
/// it.
pub struct Arrival<'a>(&'a Arrivals);

impl Arrivals {
    fn of(ranks: usize) -> Arrivals {
        Arrivals {
            left: Mutex::new(ranks),
            changed: Condvar::new(),
        }
    }

    /// Waits for all ranks.
    fn wait(&self) {
        let left = lock(&self.left);
        let waited = self
            .changed
            .wait_timeout_while(left, WATCHDOG, |left| *left > 0);
        let (left, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        assert_eq!(*left, 0, "ranks that never end");
    }
}

impl Arrival<'_> {
    /// Waits for all ranks, this one having come to its end.
    fn wait(self) {
        let Arrival(all) = self;
        drop(self);
        all.wait();
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        *lock(&self.0.left) -= 1;
        self.0.changed.notify_all();
    }
}

/// The software driver, which cargo has built beside this test.
pub fn driver(platform: Platform) -> &'static Driver {
    let test = std::env::current_exe().expect("a path");
    let folder = test.parent().expect("a folder");
    let library = folder.join("libringfold_softcuda.so");
    Driver::of(platform, library.to_str()).expect("the software driver")
}

impl Rank {
    fn new(communicator: Communicator, driver: &'static Driver, config: LaneConfig) -> Rank {
        let ordinal = communicator.rank() % driver.devices().expect("a count");
        let device = Device::open(driver, ordinal).expect("a device");
        let host = Owned::zeroed(BUFFER_BYTES);
        let current = device.enter().expect("a context");
        let pin = current
            .pin(host.region(), Arc::new(host))
            .expect("pinned memory");
        let program = current.stream().expect("a stream");
        drop(current);
        let lane = Lane::new(communicator, driver, ordinal, config).expect("a lane");
        Rank {
            lane,
            driver,
            device,
            program,
            memory: Mutex::default(),
            pin,
        }
    }

    /// Waits for all streams, and closes the lane.
    pub fn end(self, arrival: Arrival<'_>) {
        self.wait();
        // After a fault, closing says so.
        let _ = self.lane.close();
        arrival.wait();
    }

    /// The same of a rank whose lane is gone before `then`.
    pub fn end_lane_first(self, arrival: Arrival<'_>, then: impl FnOnce()) {
        self.wait();
        drop(self.lane);
        then();
        arrival.wait();
    }

    /// The program's stream.
    pub fn stream(&self) -> ProgramStream {
        // SAFETY: the stream lives as long as `self`.
        unsafe { ProgramStream::from_handle(self.program.handle()) }
    }

    /// Waits until the program's stream is idle.
    pub fn wait(&self) {
        let begin = Instant::now();
        let current = self.device.enter().expect("a context");
        while !current.is_idle(&self.program).expect("an answer") {
            assert!(begin.elapsed() < WATCHDOG, "a device waits for ever");
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// Device memory with this content.
    pub fn upload(&self, content: &[u8]) -> Arc<DeviceMemory> {
        let current = self.device.enter().expect("a context");
        let memory = current.allocate(content.len().max(1)).expect("memory");
        let memory = Arc::new(memory);
        lock(&self.memory).push(memory.clone());
        if !content.is_empty() {
            let part = self.pin.whole().part(0..content.len());
            part.region().write(content);
            let into = region(&memory, 0..content.len());
            current.take(&self.program, part, into).expect("a copy");
            drop(current);
            self.wait();
        }
        memory
    }

    /// What device memory holds behind the program's stream.
    pub fn download(&self, memory: &DeviceMemory, bytes: std::ops::Range<usize>) -> Vec<u8> {
        let mut content = vec![0; bytes.len()];
        if !bytes.is_empty() {
            let part = self.pin.whole().part(0..bytes.len());
            let current = self.device.enter().expect("a context");
            current
                .bring(&self.program, region(memory, bytes), part)
                .expect("a copy");
            drop(current);
            self.wait();
            part.region().read(&mut content);
        }
        content
    }

    /// Makes the calls of all plans, one plan after the other, and then compares what they have
    /// left on the device.
    pub fn check(&self, plans: &[Plan], seed: u64) {
        let prepared: Vec<_> = plans.iter().map(|plan| self.prepare(plan)).collect();
        let mut works = vec![];
        for (plan, calls) in plans.iter().zip(&prepared) {
            if calls.is_empty() {
                continue;
            }
            let requests = calls.iter().map(|call| call.request.clone()).collect();
            // SAFETY: the memory lives until the program's stream has gone past the call.
            let work = unsafe { self.lane.enqueue_group(requests, self.stream()) };
            let rank = self.lane.rank();
            works.push(work.unwrap_or_else(|e| panic!("seed {seed}, rank {rank}, {plan:?}: {e}")));
        }
        let last = works.last();
        if let Some(work) = last {
            work.join(self.stream()).expect("no fault");
        }
        for (plan, calls) in plans.iter().zip(&prepared) {
            for call in calls {
                let found = self.download(&call.memory, call.output.clone());
                let (rank, world_size) = (self.lane.rank(), self.lane.world_size());
                assert!(
                    found == call.expected,
                    "seed {seed}, rank {rank} of {world_size}: {plan:?}"
                );
            }
        }
        self.wait();
        assert!(works.iter().all(DeviceWork::is_done));
    }

    /// The calls of `plan` that this rank has a part in, with their input on the device.
    fn prepare(&self, plan: &Plan) -> Vec<Prepared> {
        let (rank, world_size) = (self.lane.rank(), self.lane.world_size());
        let is_part = |case: &&Case| case.collective != Collective::Send || rank < 2;
        let calls = plan.calls.iter().filter(is_part);
        let prepare = |case: &Case| {
            let buffers = oracle::buffers(case, rank, world_size);
            let upload = |owned: &Owned| {
                let mut content = vec![0; owned.region().bytes()];
                owned.region().read(&mut content);
                self.upload(&content)
            };
            let memory: Vec<Arc<DeviceMemory>> = buffers.memory.iter().map(upload).collect();
            let (first, last) = (&memory[0], &memory[memory.len() - 1]);
            let collective = match (case.collective, rank) {
                (Collective::Send, 1) => Collective::Recv,
                (collective, _) => collective,
            };
            let input = buffer(first, buffers.input, plan.pieces);
            let output = buffer(last, buffers.output.clone(), plan.pieces);
            let counts = counts(case, rank, world_size);
            Prepared {
                request: DeviceRequest {
                    op: case.op,
                    target: Target::of(case.collective, oracle::root(case, rank, world_size)),
                    ..DeviceRequest::new(collective, case.dtype, counts, input, output)
                },
                memory: last.clone(),
                output: buffers.output,
                expected: buffers.expected,
            }
        };
        calls.map(prepare).collect()
    }
}

/// A call with its input on the device, and what it must leave there.
struct Prepared {
    request: DeviceRequest,
    memory: Arc<DeviceMemory>,
    output: std::ops::Range<usize>,
    expected: Vec<u8>,
}

/// Bytes `range` of `memory`.
pub fn region(memory: &DeviceMemory, range: std::ops::Range<usize>) -> DeviceRegion {
    // SAFETY: what is enqueued with it is waited for before the memory goes.
    unsafe { memory.region() }.part(range)
}

/// The same, as a buffer of several pieces.
fn buffer(memory: &DeviceMemory, range: std::ops::Range<usize>, pieces: usize) -> DeviceBuffer {
    let each = range.len().div_ceil(pieces).max(1);
    let begins = range.clone().step_by(each);
    let piece = |begin: usize| region(memory, begin..range.end.min(begin + each));
    DeviceBuffer::new(begins.map(piece).collect())
}
