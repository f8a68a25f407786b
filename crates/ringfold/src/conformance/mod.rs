//! The conformance suite: every collective, algorithm, data type and odd size on every transport,
//! checked against a naive oracle.
//!
//! One thread drives the engines of all ranks in a random order from a printed seed and never
//! waits. A run is therefore reproducible, and a deadlock shows as a long series of attempts
//! without progress. After a shorter series, virtual time jumps to the next event. If a call has a
//! short path, each rank chooses it or the schedule at random. Some calls are made once more with
//! data that devices move.

mod canonical;
mod case;
/// The calls' inputs and outputs, which the tests between processes include, too.
#[path = "../../tests/oracle/mod.rs"]
mod definitions;
mod departures;
mod gated;
mod late_merge;
mod lists;
mod messages;
mod mixes;
pub(crate) mod oracle;
mod order;
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::communicator::{Request, Target};
use crate::engine::late_ring::LateMergePolicy;
use crate::engine::tiny::part;
use crate::engine::{Engine, Gate, Job};
use crate::error::{Error, Result};
use crate::memory::{Owned, Pool, Region};
use crate::random::SplitMix64;
use crate::reduce::Parallel;
use crate::schedule::{Groups, Schedule};
use crate::transport::suite::{self, local::local};
use crate::transport::{Time, Transport};
use crate::types::{Access, Collective, Method, Protocol};
pub use case::Case;
use case::goes_by_ll;
use gated::{PartsOfCall, TestDevice};

/// Maximum number of consecutive attempts without progress; high, because operating systems may
/// delay loopback traffic.
const FRUITLESS_ROUNDS_MAX: u32 = 200_000;

/// Number of fruitless attempts between sleeps of 1 ms, during which other threads can run.
const FRUITLESS_ROUNDS_OF_A_REST: u32 = 500;

/// One of so many calls is made once more with data that devices move.
const GATED_OF: usize = 3;

/// A channel that no collective of the suite uses.
const SIGNAL_CHANNEL: usize = 2;

/// All ranks of a job, driven by one thread.
pub struct EngineWorld {
    engines: Vec<Engine>,
    random: SplitMix64,
    now: Time,
    /// Which of the ranks' memory is registered.
    registers: Registers,
    /// Whether ranks read messages from the memory of senders of their host.
    reads: bool,
    /// Whether a rank leaves when its call has ended.
    is_leaving: bool,
    /// The division of calls whose data devices move, if they do.
    division: Option<PartsOfCall>,
    /// The devices of the ranks' present calls.
    devices: Vec<Arc<TestDevice>>,
}

/// Which of the ranks' memory is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registers {
    Nothing,
    /// All memory, for methods that use registered buffers.
    All,
    /// Randomly chosen buffers, from which messages are lent.
    Some,
}

impl EngineWorld {
    pub fn new<T: Transport + 'static>(ranks: Vec<T>, seed: u64) -> EngineWorld {
        let world_size = ranks.len();
        let engine = |(rank, transport)| {
            let pool = Pool::default();
            let mut engine = Engine::new(Box::new(transport), rank, world_size, pool);
            // With helpers, a rank runs the schedule's steps even if another executor would take
            // the call. No step of the suite is large enough for a helper.
            if rank % 2 == 1 {
                *engine.parallel() = Parallel::new(1, 0);
            }
            engine
        };
        let engines: Vec<Engine> = ranks.into_iter().enumerate().map(engine).collect();
        EngineWorld {
            engines,
            random: SplitMix64(seed),
            now: Time(0),
            registers: Registers::Nothing,
            reads: false,
            is_leaving: false,
            division: None,
            devices: Vec::new(),
        }
    }

    /// Places the ranks on these hosts.
    pub fn on_hosts(mut self, hosts: &Groups) -> EngineWorld {
        for engine in &mut self.engines {
            engine.set_hosts(hosts.clone());
        }
        self
    }

    /// Makes rings bypass slow ranks.
    pub fn going_around(mut self, policy: LateMergePolicy) -> EngineWorld {
        for engine in &mut self.engines {
            engine.set_late_merge(policy, SIGNAL_CHANNEL);
        }
        self
    }

    /// Registers all memory, for methods that use registered buffers.
    pub fn registered(mut self) -> EngineWorld {
        self.registers = Registers::All;
        self
    }

    /// Registers some memory at random, for all methods.
    pub fn partly_registered(mut self) -> EngineWorld {
        self.registers = Registers::Some;
        self
    }

    /// Makes ranks read messages from the memory of senders of their host, if the system lets them.
    pub fn reading(mut self) -> EngineWorld {
        self.reads = (self.engines.iter_mut()).all(|engine| engine.transport().can_read_peers());
        self
    }

    /// Makes each rank leave at the end of its call; such a world serves only one call.
    pub fn leaving(mut self) -> EngineWorld {
        self.is_leaving = true;
        self
    }

    pub fn world_size(&self) -> usize {
        self.engines.len()
    }

    /// Returns the number of messages that each rank has lent.
    pub fn messages_lent(&mut self) -> Vec<u64> {
        let lent = |engine: &mut Engine| engine.transport().messages_lent();
        self.engines.iter_mut().map(lent).collect()
    }

    /// Returns whether this world tests this method and access.
    pub fn serves(&mut self, (algorithm, access): (Method, Access)) -> bool {
        let transport = self.engines[0].transport();
        let has_medium = access == Access::Messages || transport.windows().is_some();
        has_medium && (self.registers != Registers::All || algorithm.is_registered())
    }

    /// Registers memory of `rank` with all engines, which share one address space. Returns the
    /// registration's number.
    pub fn register(&mut self, rank: usize, memory: Region) -> u32 {
        let mut mapped = vec![Region::EMPTY; self.world_size()];
        mapped[rank] = memory;
        let numbers = self
            .engines
            .iter_mut()
            .map(|engine| engine.change_registry(|registry| registry.add(mapped.clone())));
        numbers.last().expect("a world has ranks")
    }

    fn unregister(&mut self, number: u32) {
        for engine in &mut self.engines {
            engine.change_registry(|registry| registry.remove(number));
        }
    }

    /// Makes the call on all ranks and compares every rank's output with the oracle's; then, of
    /// some calls, once more with data that devices move.
    pub fn check(&mut self, case: &Case) {
        self.check_each(&vec![case.clone(); self.world_size()]);
    }

    /// Like `check`, with a separate call for each rank.
    pub fn check_each(&mut self, cases: &[Case]) {
        let (world_size, first) = (self.world_size(), &cases[0]);
        let text = match cases.iter().all(|case| case.counts == first.counts) {
            true => format!("{world_size} ranks, {first:?}"),
            false => format!("{cases:?}"),
        };
        // Shown if the test fails, even by a panic in the engine.
        println!("{text}");
        if let Err(error) = self.run_each(cases) {
            panic!("{text}: {error}");
        }
        if self.can_be_gated(first) && self.random.index(GATED_OF) == 0 {
            let division = PartsOfCall::any(&mut self.random);
            println!("gated, {division:?}");
            self.division = Some(division);
            if let Err(error) = self.run_each(cases) {
                panic!("gated, {text}: {error}");
            }
            self.division = None;
        }
    }

    /// Whether devices can move the data of a call.
    fn can_be_gated(&self, case: &Case) -> bool {
        let is_alike = !matches!(case.collective, Collective::Barrier | Collective::Send);
        let is_plain = case.access != Access::Registered && case.registered.is_none();
        is_alike && is_plain && !self.is_leaving && case.protocol != Some(Protocol::Ll)
    }

    /// Like `check`, for transports that may fail; returns the error of the first rank that fails.
    pub fn run_and_compare(&mut self, case: &Case) -> Result<()> {
        self.run_each(&vec![case.clone(); self.world_size()])
    }

    pub fn run_each(&mut self, cases: &[Case]) -> Result<()> {
        let world_size = self.world_size();
        let of_rank = |(rank, case)| oracle::buffers(case, rank, world_size);
        let buffers: Vec<_> = cases.iter().enumerate().map(of_rank).collect();
        let mut registrations = Vec::new();
        for (rank, buffers) in buffers.iter().enumerate() {
            for memory in buffers.memory.iter().map(Owned::region) {
                let is_registered = match self.registers {
                    Registers::Nothing => false,
                    Registers::All => true,
                    Registers::Some => self.random.index(3) > 0,
                };
                if is_registered {
                    registrations.push(self.register(rank, memory));
                }
            }
        }
        self.run_on(cases, &buffers)?;
        for number in registrations {
            self.unregister(number);
        }
        Ok(())
    }

    /// Makes the calls on these buffers and compares the outputs.
    fn run_on(&mut self, cases: &[Case], buffers: &[CaseBuffers]) -> Result<()> {
        let regions: Vec<_> = buffers.iter().map(|buffers| buffers.regions()).collect();
        self.run(cases, &regions)?;
        let world_size = self.world_size();
        for (rank, (buffers, (_, output))) in buffers.iter().zip(&regions).enumerate() {
            let mut got = vec![0; output.bytes()];
            output.read(&mut got);
            let wrong = got
                .iter()
                .zip(&buffers.expected)
                .position(|(got, due)| got != due);
            assert!(
                wrong.is_none(),
                "rank {rank} of {world_size}, wrong from byte {wrong:?} on, {:?}",
                cases[rank]
            );
        }
        Ok(())
    }

    /// Like `check`, with all memory registered but the last rank's.
    pub fn check_with_one_unregistered(&mut self, case: &Case) {
        let world_size = self.world_size();
        let buffers: Vec<_> = (0..world_size)
            .map(|rank| oracle::buffers(case, rank, world_size))
            .collect();
        let mut registrations = Vec::new();
        for (rank, buffers) in buffers[..world_size - 1].iter().enumerate() {
            let memory = buffers.memory.iter().map(Owned::region);
            registrations.extend(memory.map(|memory| self.register(rank, memory)));
        }
        self.run_on(&vec![case.clone(); world_size], &buffers)
            .unwrap_or_else(|error| panic!("{world_size} ranks, {case:?}: {error}"));
        for number in registrations {
            self.unregister(number);
        }
    }

    /// Makes the call on two ranks that each expose their whole memory, although the other has
    /// mapped only half.
    pub fn run_with_a_false_claim(&mut self, case: &Case) -> Result<()> {
        let buffers = [0, 1].map(|rank| oracle::buffers(case, rank, 2));
        for (rank, buffers) in buffers.iter().enumerate() {
            for memory in &buffers.memory {
                let whole = memory.region();
                for (reader, engine) in self.engines.iter_mut().enumerate() {
                    let bytes = if reader == rank {
                        whole.bytes()
                    } else {
                        whole.bytes() / 2
                    };
                    let mut mapped = vec![Region::EMPTY; 2];
                    mapped[rank] = whole.part(0..bytes);
                    engine.change_registry(|registry| registry.add(mapped));
                }
            }
        }
        self.run_on(&[case.clone(), case.clone()], &buffers)
    }

    /// Makes the job of one rank.
    fn job(&self, case: &Case, rank: usize, (input, output): (Region, Region)) -> Result<Job> {
        let way = case.way(false);
        let mut request = Request::new(
            case.collective,
            case.dtype,
            case.counts.clone(),
            input,
            output,
        );
        request.op = case.op;
        let root = oracle::root(case, rank, self.world_size());
        request.target = Target::of(case.collective, root);
        let timeout = Duration::from_secs(60);
        let mut job = request.check(rank, self.world_size(), &way, timeout)?;
        // `stragglar` expects the root last.
        job.root = root;
        Ok(job)
    }

    fn run(&mut self, cases: &[Case], regions: &[(Region, Region)]) -> Result<()> {
        let world_size = self.world_size();
        let mut running = Vec::new();
        let prefers_ll = self.random.index(2) == 0;
        for (rank, (case, (input, output))) in cases.iter().zip(regions).enumerate() {
            let mut request = Request::new(
                case.collective,
                case.dtype,
                case.counts.clone(),
                *input,
                *output,
            );
            let prefers_ll = prefers_ll && goes_by_ll(case, &request, world_size);
            let requested = case.protocol.map(|protocol| protocol == Protocol::Ll);
            let mut way = case.way(requested.unwrap_or(prefers_ll));
            way.reads = self.reads && !case.collective.reduces();
            request.op = case.op;
            let root = oracle::root(case, rank, world_size);
            request.target = Target::of(case.collective, root);
            if case.collective == Collective::Send && rank > 1 {
                continue;
            }
            if case.collective == Collective::Send && rank == 1 {
                request.collective = Collective::Recv;
            }
            let timeout = Duration::from_secs(60);
            let mut job = match self.division {
                None => request.check(rank, world_size, &way, timeout)?,
                Some(division) => {
                    let longest = cases.iter().map(|case| case.counts.longest()).max();
                    let longest = longest.unwrap_or(0);
                    let device = TestDevice::new(&request, [rank, world_size], longest, division)?;
                    self.devices.push(device.clone());
                    let (way, gate) = (way.in_parts(), Gate::Own(device));
                    request.check_gated(rank, world_size, &way, timeout, gate)?
                }
            };
            (job.root, job.weights) = (root, case.weights.clone());
            let may_be_tiny = self.division.is_none() && self.may_be_tiny(case);
            let as_tiny = may_be_tiny && self.random.index(2) == 0;
            let engine = &mut self.engines[rank];
            let begun = match as_tiny && job.is_tiny() {
                true => engine.begin_tiny(&job)?,
                false => None,
            };
            if begun.is_none() {
                engine.submit(job)?;
            }
            running.push(rank);
        }
        self.drive(running)?;
        for device in self.devices.drain(..) {
            while device.step() {}
        }
        Ok(())
    }

    /// Returns whether a rank may use the tiny executor, which has the same schedule written out.
    fn may_be_tiny(&self, case: &Case) -> bool {
        case.access == Access::Staged && case.algorithm == part::algorithm(case.collective).into()
    }

    /// Drives the ranks in `running`.
    fn drive(&mut self, mut running: Vec<usize>) -> Result<()> {
        let mut fruitless = 0;
        while !running.is_empty() {
            let index = self.random.index(running.len());
            let rank = running[index];
            let engine = &mut self.engines[rank];
            let steps = self.random.index(2) == 0;
            let device = self.devices.get(rank).filter(|_| steps);
            let has_moved = device.is_some_and(|device| device.step());
            let progressed = engine.progress(self.now)? || has_moved;
            if !progressed && !self.devices.is_empty() && self.random.index(8) == 0 {
                gated::check_wait(engine, rank);
            }
            if engine.take_finished().is_some() {
                running.swap_remove(index);
                if self.is_leaving {
                    let alone = local(1).pop().expect("a rank");
                    *engine = Engine::new(Box::new(alone), 0, 1, Pool::default());
                }
            }
            fruitless = if progressed { 0 } else { fruitless + 1 };
            rest(fruitless);
            if fruitless > 16 * running.len() as u32 {
                let next = self
                    .engines
                    .iter_mut()
                    .filter_map(|engine| engine.next_event())
                    .min();
                self.now = next.map_or(self.now, |next| self.now.max(next));
            }
            if fruitless > FRUITLESS_ROUNDS_MAX {
                let waiting = running
                    .iter()
                    .map(|rank| (*rank, self.engines[*rank].waiting_for()))
                    .collect::<Vec<_>>();
                let what = format!("no rank makes progress: {waiting:?}");
                return Err(Error::Timeout {
                    waiting_for: running,
                    after_ms: 0,
                    site: None,
                }
                .at(crate::error::Site {
                    call: suite::call(0),
                    phase: what,
                }));
            }
        }
        Ok(())
    }
}

/// Sleeps now and then while no rank makes progress, so that the transport's threads can run.
fn rest(fruitless: u32) {
    if fruitless % FRUITLESS_ROUNDS_OF_A_REST == FRUITLESS_ROUNDS_OF_A_REST - 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns every method and access of a collective that `world_size` ranks can use.
pub fn ways(collective: Collective, world_size: usize) -> Vec<(Method, Access)> {
    let mut ways = Vec::new();
    for access in [Access::Registered, Access::Staged, Access::Messages] {
        for algorithm in Schedule::methods(collective, access) {
            let blocks = matches!(
                collective,
                Collective::AllGather | Collective::ReduceScatter
            );
            if algorithm == Method::RecursiveDoubling && blocks && !world_size.is_power_of_two() {
                continue;
            }
            ways.push((algorithm, access));
        }
    }
    ways
}

/// The memory of one rank's call.
pub(crate) struct CaseBuffers {
    pub memory: Vec<Owned>,
    pub input: std::ops::Range<usize>,
    pub output: std::ops::Range<usize>,
    pub expected: Vec<u8>,
}

impl CaseBuffers {
    /// Returns input and output, which lie in one allocation if the call is in place.
    pub fn regions(&self) -> (Region, Region) {
        let output = self.memory.last().expect("at least one piece");
        (
            self.memory[0].region().part(self.input.clone()),
            output.region().part(self.output.clone()),
        )
    }
}
