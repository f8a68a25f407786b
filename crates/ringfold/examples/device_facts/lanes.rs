//! Checks a lane's results while another thread allocates and frees memory: if the driver holds its
//! lock until a device is idle, calls in the wrong order deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ringfold::internals::device::{Device, DeviceMemory, Pin, Stream};
use ringfold::{
    Collective, Counts, DType, DeviceBuffer, DeviceRequest, DeviceWork, Lane, LaneConfig, Result,
};

use crate::rig::{Rig, number, program, whole};

const ELEMENT_BYTES: usize = size_of::<u32>();
/// Pause between two allocations.
const PAUSE: Duration = Duration::from_micros(300);
const SMALL_BYTES: usize = 4096;
/// An element with all bits set, which a fault leaves in the output.
pub const ONES: u32 = u32::MAX;

/// A lane with an input and an output of the same size.
pub struct Checked {
    pub lane: Lane,
    pub stream: Stream,
    input: DeviceMemory,
    output: DeviceMemory,
    host: Pin,
    bytes: usize,
}

impl Checked {
    pub fn new(rig: &Rig, bytes: usize) -> Result<Checked> {
        let communicator = &rig.communicator;
        let part = communicator.split(Some(0), communicator.rank() as i64)?;
        let part = part.expect("a part of all ranks, because all gave the same color");
        let config = LaneConfig {
            slot_bytes: number("slot_bytes", "2M"),
            ..LaneConfig::default()
        };
        Ok(Checked {
            lane: Lane::new(part, rig.driver, rig.ordinal, config)?,
            stream: rig.stream()?,
            input: rig.allocate(bytes)?,
            output: rig.allocate(bytes)?,
            host: rig.pinned(bytes)?,
            bytes,
        })
    }

    /// Fills the input with this rank's numbers for `round`, and the output with zeros.
    pub fn fill(&self, rig: &Rig, round: u32) -> Result<()> {
        let current = rig.device.enter()?;
        let contents = numbers(self.bytes, |index| element(rig, round, index));
        self.host.whole().region().write(&contents);
        current.take(&self.stream, self.host.whole(), whole(&self.input))?;
        rig.finish(&self.stream)?;
        self.host.whole().region().write(&vec![0; self.bytes]);
        current.take(&self.stream, self.host.whole(), whole(&self.output))?;
        rig.finish(&self.stream)
    }

    /// Enqueues an all-reduce, and makes the stream wait for it.
    pub fn enqueue(&self) -> Result<DeviceWork> {
        let count = Counts::Even((self.bytes / ELEMENT_BYTES) as u64);
        let buffer = |memory| DeviceBuffer::new(vec![whole(memory)]);
        let (input, output) = (buffer(&self.input), buffer(&self.output));
        let request = DeviceRequest::new(Collective::AllReduce, DType::U32, count, input, output);
        let stream = program(&self.stream);
        // SAFETY: the memory outlives the lane, which waits for its calls before it ends.
        let work = unsafe { self.lane.enqueue(request, stream) }?;
        work.join(stream)?;
        Ok(work)
    }

    /// Counts the elements of the output that are neither the sum for `round` nor in `accepted`.
    pub fn wrong(&self, rig: &Rig, round: u32, accepted: &[u32]) -> Result<usize> {
        let current = rig.device.enter()?;
        current.bring(&self.stream, whole(&self.output), self.host.whole())?;
        rig.finish(&self.stream)?;
        let mut found = vec![0; self.bytes];
        self.host.whole().region().read(&mut found);
        let sum = |index| {
            let ranks = 0..rig.communicator.world_size();
            ranks.fold(0u32, |sum, rank| {
                sum.wrapping_add(of_rank(rank, round, index))
            })
        };
        let words = found.chunks_exact(ELEMENT_BYTES).enumerate();
        let is_wrong = |(index, word): (usize, &[u8])| {
            let word = word.try_into().map(u32::from_ne_bytes);
            word.is_ok_and(|word| word != sum(index) && !accepted.contains(&word))
        };
        Ok(words.filter(|each| is_wrong(*each)).count())
    }
}

fn element(rig: &Rig, round: u32, index: usize) -> u32 {
    of_rank(rig.communicator.rank(), round, index)
}

/// Returns an element of a rank's input, such that no sum is zero or has all bits set.
fn of_rank(rank: usize, round: u32, index: usize) -> u32 {
    1 + (rank as u32 + 1) * (index as u32 % 1009 + round % 61)
}

fn numbers(bytes: usize, element: impl Fn(usize) -> u32) -> Vec<u8> {
    let all = 0..bytes / ELEMENT_BYTES;
    let mut contents: Vec<u8> = all.flat_map(|index| element(index).to_ne_bytes()).collect();
    contents.resize(bytes, 0);
    contents
}

/// Runs rounds of two all-reduces for `seconds`, beside a thread that allocates and frees memory.
pub fn measure(rig: &Rig) -> Result<()> {
    let seconds = Duration::from_secs(number("seconds", "10") as u64);
    let checked = Checked::new(rig, number("bytes", "8M"))?;
    let ends = Arc::new(AtomicBool::new(false));
    let churn = {
        let (device, ends) = (rig.other()?, ends.clone());
        thread::spawn(move || churn(&device, &ends))
    };
    let (begin, mut rounds, mut wrong) = (Instant::now(), 0, 0);
    // All ranks use the maximum, so that they make the same calls.
    while rig.most(begin.elapsed().as_secs_f64())? < seconds.as_secs_f64() {
        checked.fill(rig, rounds)?;
        checked.enqueue()?;
        checked.enqueue()?;
        rig.finish(&checked.stream)?;
        wrong += checked.wrong(rig, rounds, &[])?;
        rounds += 1;
    }
    ends.store(true, Ordering::Relaxed);
    let frees = churn.join().expect("a thread that does not panic")?;
    checked.lane.close()?;
    let setting = format!("ranks={}", rig.communicator.world_size());
    let (wrong, frees) = (rig.sum(wrong as f64)?, rig.sum(frees as f64)?);
    rig.say("churn rounds", &setting, f64::from(rounds), "rounds");
    rig.say("churn frees", &setting, frees, "calls");
    rig.say("churn wrong", &setting, wrong, "elements");
    Ok(())
}

/// Allocates and frees memory until `ends` is set; returns the number of times.
fn churn(device: &Arc<Device>, ends: &AtomicBool) -> Result<usize> {
    let mut times = 0;
    while !ends.load(Ordering::Relaxed) {
        drop(device.enter()?.allocate(SMALL_BYTES)?);
        times += 1;
        thread::sleep(PAUSE);
    }
    Ok(times)
}
