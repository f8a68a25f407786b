//! The parts that all measurements share: a rank's device, pinned memory, words, times and output.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ringfold::env::Environment;
use ringfold::internals::device::{Device, DeviceMemory, Pin, PinnedRegion, ProgramStream, Stream};
use ringfold::internals::units::bytes;
use ringfold::{Communicator, DeviceRegion, Driver, Op, Result};

/// Bytes of a word.
const WORD_BYTES: usize = size_of::<u32>();
/// Distance between two words in bytes: each word has its own cache line.
const LINE_BYTES: usize = 128;
/// Number of words of a rig.
pub const WORDS: usize = 4;

/// A rank and its device.
pub struct Rig {
    pub communicator: Communicator,
    pub driver: &'static Driver,
    pub ordinal: usize,
    pub device: Arc<Device>,
}

impl Rig {
    pub fn new(communicator: Communicator) -> Result<Rig> {
        let driver = Driver::open(Environment::read()?.cuda_library.as_deref())?;
        let ordinal = communicator.local_rank() % driver.devices()?.max(1);
        Ok(Rig {
            device: Device::open(driver, ordinal)?,
            communicator,
            driver,
            ordinal,
        })
    }

    /// Opens the same GPU again as a separate owner, which frees memory without checking whether
    /// this device's streams have work.
    pub fn other(&self) -> Result<Arc<Device>> {
        Device::open(self.driver, self.ordinal)
    }

    /// Allocates pinned memory of this rank, in a memfd. Collective.
    pub fn pinned(&self, bytes: usize) -> Result<Pin> {
        let memory = self.communicator.alloc(bytes)?;
        memory.region().touch();
        let region = memory.region();
        self.device.enter()?.pin(region, Arc::new(memory))
    }

    /// Allocates words that are zero. Collective.
    pub fn words(&self) -> Result<[Word; WORDS]> {
        let pin = Arc::new(self.pinned(WORDS * LINE_BYTES)?);
        Ok(std::array::from_fn(|index| Word {
            begin: index * LINE_BYTES,
            pin: pin.clone(),
        }))
    }

    pub fn allocate(&self, bytes: usize) -> Result<DeviceMemory> {
        self.device.enter()?.allocate(bytes)
    }

    pub fn stream(&self) -> Result<Stream> {
        self.device.enter()?.stream()
    }

    /// Waits until `stream` is idle.
    pub fn finish(&self, stream: &Stream) -> Result<()> {
        let current = self.device.enter()?;
        while !current.is_idle(stream)? {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Returns the maximum of all ranks' values.
    pub fn most(&self, value: f64) -> Result<f64> {
        self.over_ranks(value, Op::Max)
    }

    /// Returns the sum of all ranks' values.
    pub fn sum(&self, value: f64) -> Result<f64> {
        self.over_ranks(value, Op::Sum)
    }

    fn over_ranks(&self, value: f64, op: Op) -> Result<f64> {
        let mut all = [value];
        self.communicator.all_reduce(&mut all, op)?;
        Ok(all[0])
    }

    /// Prints a line of the output on rank 0.
    pub fn say(&self, name: &str, setting: &str, value: f64, unit: &str) {
        if self.communicator.rank() == 0 {
            println!("{name},{setting},{value:.3},{unit}");
        }
    }
}

/// A word of pinned memory that a device and this process write and read.
#[derive(Clone)]
pub struct Word {
    pin: Arc<Pin>,
    begin: usize,
}

impl Word {
    /// Returns the word's memory, for the calls of a device.
    pub fn region(&self) -> PinnedRegion {
        self.pin.whole().part(self.begin..self.begin + WORD_BYTES)
    }

    pub fn load(&self) -> u32 {
        self.atomic().load(Ordering::Acquire)
    }

    pub fn store(&self, value: u32) {
        self.atomic().store(value, Ordering::Release);
    }

    /// Returns whether the word is at or past `value`, modulo 2³².
    pub fn has_reached(&self, value: u32) -> bool {
        self.load().wrapping_sub(value).cast_signed() >= 0
    }

    /// Spins until the word is at or past `value`.
    pub fn spin(&self, value: u32) {
        while !self.has_reached(value) {
            std::hint::spin_loop();
        }
    }

    /// Returns the word as an atomic. Its partner is the device, which fences its writes and waits.
    fn atomic(&self) -> &AtomicU32 {
        // SAFETY: a line of a page, so aligned; mapped as long as the pin lives; only accessed as
        // an atomic, and by the device.
        unsafe { &*self.region().region().address().cast::<AtomicU32>() }
    }
}

/// Returns all of `memory`, which the caller keeps until its streams are idle.
pub fn whole(memory: &DeviceMemory) -> DeviceRegion {
    // SAFETY: every measurement waits for its streams before its memory is freed, and orders its
    // work by streams.
    unsafe { memory.region() }
}

/// Returns `stream` as a stream of the program.
pub fn program(stream: &Stream) -> ProgramStream {
    // SAFETY: every measurement keeps its streams until their work is done.
    unsafe { ProgramStream::from_handle(stream.handle()) }
}

/// Returns the time in microseconds.
pub fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Returns the median time of `run` in microseconds, after a tenth as many runs to warm up.
pub fn median_us(times: usize, mut run: impl FnMut() -> Result<Duration>) -> Result<f64> {
    let all: Result<Vec<f64>> = (0..times + times / 10).map(|_| run().map(us)).collect();
    let mut counted = all?.split_off(times / 10);
    counted.sort_by(f64::total_cmp);
    Ok(counted[times / 2])
}

/// Calls `run`; returns its result and the time that it took.
pub fn time<T>(run: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let begin = Instant::now();
    let made = run()?;
    Ok((made, begin.elapsed()))
}

/// Returns the value of the argument `name=value`, or `default`.
pub fn value(name: &str, default: &str) -> String {
    let mut words = std::env::args().skip(2);
    let word = words.find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned()));
    word.unwrap_or_else(|| default.to_owned())
}

/// Returns the numbers of the argument `name=number,number`, or of `default`.
pub fn numbers(name: &str, default: &str) -> Vec<usize> {
    let parse = |word: &str| bytes(word).unwrap_or_else(|why| panic!("`{name}={word}`: {why}"));
    let words = value(name, default);
    words.split(',').map(parse).collect()
}

/// Returns the number of the argument `name=number`, or `default`.
pub fn number(name: &str, default: &str) -> usize {
    numbers(name, default)[0]
}
