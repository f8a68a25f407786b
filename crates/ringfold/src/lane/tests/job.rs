//! A job of threads with a lane each, over the software driver.

use std::sync::{Arc, Barrier, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::communicator::{Communicator, Counts};
use crate::conformance::{Buffers, Case, oracle};
use crate::device::{Device, DeviceMemory, DeviceRegion, Driver, Pin, ProgramStream, Stream};
use crate::lane::{DeviceBuffer, DeviceRequest, Lane, LaneConfig};
use crate::memory::Owned;
use crate::random::SplitMix64;
use crate::sync::lock;
use crate::types::{Access, Collective, DType, Method};

/// The most bytes of a buffer in these tests.
const BUFFER_BYTES: usize = 1 << 20;

/// Longer than any device takes here: what lasts longer is a deadlock.
const WATCHDOG: Duration = Duration::from_secs(60);

/// What has sums, in these tests.
const TYPES: [DType; 6] = [
    DType::F32,
    DType::F64,
    DType::BF16,
    DType::I8,
    DType::I32,
    DType::U64,
];

/// One call, and how its buffers are divided.
#[derive(Clone, Debug)]
pub struct Plan {
    pub case: Case,
    /// Into how many pieces each buffer is cut.
    pub pieces: usize,
}

impl Plan {
    /// Any call of `world_size` ranks.
    pub fn any(random: &mut SplitMix64, world_size: usize) -> Plan {
        use Collective::{
            AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
            Send, SendRecv,
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
        case.dtype = TYPES[random.index(TYPES.len())];
        case.root = random.index(world_size);
        let is_in_place = !matches!(collective, AllToAll | SendRecv | Send);
        case.in_place = is_in_place && random.index(2) == 0;
        if random.index(3) == 0 {
            let any = |random: &mut SplitMix64| random.below(count.max(1) * 2);
            case.counts = match collective {
                AllGather | Gather | ReduceScatter | Scatter => {
                    Counts::PerRank((0..world_size).map(|_| any(random)).collect())
                }
                _ => case.counts,
            };
        }
        let is_pairwise = collective == AllToAll && random.index(2) == 0;
        if is_pairwise {
            // The oracle knows the counts.
            let none = vec![0; world_size];
            case.counts = Counts::Pairwise {
                input: none.clone(),
                output: none,
            };
        }
        let pieces = 1 + random.index(3);
        Plan { case, pieces }
    }

    fn counts(&self, rank: usize, world_size: usize) -> Counts {
        match &self.case.counts {
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
}

/// A job of threads.
pub struct Job {
    communicators: Vec<Communicator>,
    config: LaneConfig,
    /// One job at a time: see [`Rank::memory`].
    _alone: MutexGuard<'static, ()>,
}

/// One of its ranks.
pub struct Rank {
    pub lane: Lane,
    pub device: Arc<Device>,
    /// The program's own stream.
    pub program: Stream,
    /// What was allocated: the driver may hold all calls of the process while it frees memory,
    /// until the device is idle, so nothing is freed before all ranks are done.
    memory: Mutex<Vec<Arc<DeviceMemory>>>,
    pin: Pin,
}

impl Job {
    pub fn new(world_size: usize, config: LaneConfig) -> Job {
        static ALONE: Mutex<()> = Mutex::new(());
        Job {
            communicators: Communicator::threads(world_size),
            config,
            _alone: lock(&ALONE),
        }
    }

    /// Has each rank do `work`.
    pub fn run(self, work: impl Fn(&Rank) + Sync) {
        let (work, config) = (&work, self.config);
        let all_done = Barrier::new(self.communicators.len());
        let all_done = &all_done;
        std::thread::scope(|scope| {
            for communicator in self.communicators {
                scope.spawn(move || {
                    let rank = Rank::new(communicator, config);
                    work(&rank);
                    rank.end(all_done);
                });
            }
        });
    }
}

/// The software driver, which cargo has built beside this test.
pub fn driver() -> &'static Driver {
    let test = std::env::current_exe().expect("a path");
    let folder = test.parent().expect("a folder");
    let library = folder.join("libringfold_softcuda.so");
    Driver::open(library.to_str()).expect("the software driver")
}

impl Rank {
    pub fn new(communicator: Communicator, config: LaneConfig) -> Rank {
        let device = Device::open(driver(), 0).expect("a device");
        let host = Owned::zeroed(BUFFER_BYTES);
        let current = device.enter().expect("a context");
        let pin = current
            .pin(host.region(), Arc::new(host))
            .expect("pinned memory");
        let program = current.stream().expect("a stream");
        drop(current);
        let lane = Lane::new(communicator, driver(), 0, config).expect("a lane");
        Rank {
            lane,
            device,
            program,
            memory: Mutex::default(),
            pin,
        }
    }

    /// Waits for all streams, and closes the lane.
    fn end(self, all_done: &Barrier) {
        self.wait();
        // After a fault, closing says so.
        let _ = self.lane.close();
        all_done.wait();
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

    /// Makes the call, and compares what it has left on the device.
    pub fn check(&self, plan: &Plan, seed: u64) {
        let (rank, world_size) = (self.lane.rank(), self.lane.world_size());
        let case = &plan.case;
        if case.collective == Collective::Send && rank > 1 {
            return;
        }
        let Buffers {
            memory,
            input,
            output,
            expected,
        } = oracle::buffers(case, rank, world_size);
        let content = |owned: &Owned| {
            let mut content = vec![0; owned.region().bytes()];
            owned.region().read(&mut content);
            content
        };
        let memory: Vec<Arc<DeviceMemory>> = memory
            .iter()
            .map(|owned| self.upload(&content(owned)))
            .collect();
        let (first, last) = (&memory[0], &memory[memory.len() - 1]);
        let request = DeviceRequest {
            op: case.op,
            root: oracle::root(case, rank, world_size),
            ..DeviceRequest::new(
                match (case.collective, rank) {
                    (Collective::Send, 1) => Collective::Recv,
                    (collective, _) => collective,
                },
                case.dtype,
                plan.counts(rank, world_size),
                buffer(first, input, plan.pieces),
                buffer(last, output.clone(), plan.pieces),
            )
        };
        // SAFETY: the memory lives until the program's stream has gone past the call.
        let work = unsafe { self.lane.enqueue(request, self.stream()) };
        let work =
            work.unwrap_or_else(|error| panic!("seed {seed}, rank {rank}, {plan:?}: {error}"));
        work.join(self.stream()).expect("no fault");
        let found = self.download(last, output);
        self.wait();
        assert!(
            found == expected,
            "seed {seed}, rank {rank} of {world_size}: {plan:?}"
        );
        assert!(work.is_done());
    }
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
