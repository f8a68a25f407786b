//! A measurement on device memory: buffers on a device, their mirrors on the host, and a lane.
//!
//! Data is written and compared in pinned host memory. A mirror has the layout of its device
//! buffer: a region of the mirror stands for the same bytes on the device.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ringfold::internals::device::{
    Current, Device, DeviceMemory, DeviceRegion, Pin, PinnedRegion, ProgramStream, Stream,
};
use ringfold::{
    Carried, Collective, Communicator, DeviceBuffer, DeviceWork, Lane, LaneConfig, Region,
    Registered, Request, Target,
};

use super::devices::Devices;
use super::memory::{Memory, too_large};

/// Number of polls for completion between two checks for a fault, which take a lock.
const LOOKS: u32 = 1024;

/// Size of the copies that show how fast the link is.
const PIECE_BYTES: usize = 16 << 20;

/// Default deadline of a call on the device: the library's default.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A rank's device with two buffers, and its lane.
pub struct OnDevice {
    lane: Lane,
    /// Deadline of a call on the device.
    timeout: Duration,
    /// The stream that orders the calls; `out` and `into` are for copies alone, one per direction.
    program: Stream,
    out: Stream,
    into: Stream,
    sides: [Side; 2],
    device: Arc<Device>,
    /// The means by which the last call was carried out.
    carried: Cell<Carried>,
}

/// A buffer on the device, and its mirror.
struct Side {
    mirror: Arc<Registered>,
    pin: Pin,
    memory: DeviceMemory,
}

impl OnDevice {
    /// Allocates two buffers of `max_bytes` bytes. A call that takes the device longer than
    /// `timeout` ends the measurement. All ranks make this call together.
    pub fn new(
        communicator: &Communicator,
        devices: &Devices,
        config: LaneConfig,
        timeout: Option<Duration>,
        max_bytes: usize,
    ) -> Result<OnDevice> {
        let driver = devices.driver()?;
        let ordinal = devices.ordinal(communicator.local_rank(), driver.devices()?)?;
        let of_lane = communicator.split(Some(0), communicator.rank() as i64)?;
        let of_lane = of_lane.context("a communicator for the lane")?;
        // First, because all ranks fail here if one cannot use its device.
        let lane = Lane::new(of_lane, driver, ordinal, config)?;
        let device = Device::open(driver, ordinal)?;
        let bytes = max_bytes.max(1);
        let mirrors = [communicator.alloc(bytes)?, communicator.alloc(bytes)?];
        let current = device.enter()?;
        let side = |mirror: Registered| -> Result<Side> {
            let mirror = Arc::new(mirror);
            Ok(Side {
                pin: current.pin(mirror.region(), mirror.clone())?,
                memory: current.allocate(bytes).with_context(|| too_large(bytes))?,
                mirror,
            })
        };
        let [first, second] = mirrors.map(side);
        Ok(OnDevice {
            lane,
            timeout: timeout.unwrap_or(TIMEOUT),
            program: current.stream()?,
            out: current.stream()?,
            into: current.stream()?,
            sides: [first?, second?],
            device: device.clone(),
            carried: Cell::new(Carried::Host),
        })
    }

    /// Returns the name of the last call's method if the call used no algorithm of the host's.
    pub fn in_place_of_algorithm(&self) -> Option<&'static str> {
        self.carried.get().in_place_of_algorithm()
    }

    /// Returns the mirrors of both buffers.
    pub fn mirrors(&self) -> [Memory; 2] {
        let mirror = |side: &Side| Memory::shared(side.mirror.clone());
        self.sides.each_ref().map(mirror)
    }

    /// Closes the lane.
    pub fn close(self) -> Result<()> {
        Ok(self.lane.close()?)
    }

    /// Copies the first `bytes` bytes of both mirrors to the device.
    pub fn upload(&self, bytes: usize) -> Result<()> {
        self.each_side(bytes, |current, host, device| {
            current.take(&self.program, host, device)
        })
    }

    /// Copies the first `bytes` bytes of both device buffers to their mirrors.
    pub fn download(&self, bytes: usize) -> Result<()> {
        self.each_side(bytes, |current, host, device| {
            current.bring(&self.program, device, host)
        })
    }

    fn each_side(
        &self,
        bytes: usize,
        copy: impl Fn(&Current<'_>, PinnedRegion, DeviceRegion) -> ringfold::Result<()>,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let current = self.device.enter()?;
        for side in &self.sides {
            copy(
                &current,
                side.pin.whole().part(0..bytes),
                side.region().part(0..bytes),
            )?;
        }
        self.wait_for(1, || Ok(current.is_idle(&self.program)?))
    }

    /// Enqueues `request`, given in regions of the mirrors, and makes the program's stream wait for
    /// the call.
    pub fn start(&self, request: &Request) -> Result<DeviceWork> {
        let buffer = |region| DeviceBuffer::new(self.region(region).into_iter().collect());
        let on_device = request.with_memory(buffer(request.input), buffer(request.output));
        // SAFETY: the stream lives as long as `self`, and so does the lane.
        let program = unsafe { ProgramStream::from_handle(self.program.handle()) };
        // SAFETY: the memory outlives the lane, whose end waits for its calls; all other copies of
        // the memory are in this stream or after the wait for it.
        let work = unsafe { self.lane.enqueue(on_device, program) }?;
        work.join(program)?;
        self.carried.set(work.carried());
        Ok(work)
    }

    /// Waits until the device has done `work`, the last of `calls` calls.
    pub fn wait(&self, work: &DeviceWork, calls: u32) -> Result<()> {
        self.wait_for(calls, || Ok(work.is_done()))
    }

    /// Waits until `is_done` returns true. Fails if a fault has ended the lane, or if the device
    /// takes longer than the deadlines of `calls` calls together.
    fn wait_for(&self, calls: u32, is_done: impl Fn() -> Result<bool>) -> Result<()> {
        let (start, limit) = (Instant::now(), self.timeout.saturating_mul(calls));
        let fault = || self.lane.fault().map_or(Ok(()), |fault| Err(fault.into()));
        let mut looks = 0u32;
        while !is_done()? {
            thread::yield_now();
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                fault()?;
                if start.elapsed() > limit {
                    return self.hangs(limit);
                }
            }
        }
        fault()
    }

    /// Aborts all ranks: the device has exceeded its deadline.
    #[cold]
    fn hangs(&self, limit: Duration) -> Result<()> {
        let (rank, device) = (self.lane.rank(), self.device.ordinal());
        let text = format!(
            "device {device} of rank {rank} has not done its copies within {limit:?}; the device \
             hangs, or `--timeout` is too short"
        );
        self.lane.abort(&text);
        bail!(text)
    }

    /// Returns the time per call of the copies of `calls` calls like `request`, in microseconds:
    /// both directions at the same time, in pieces of 16 MiB, with no copy waiting for another. No
    /// call can be faster. The copied data is not used.
    pub fn copies_us(&self, request: &Request, calls: u32) -> Result<f64> {
        let [kept_in, kept_out] = self.kept_bytes(request);
        let moved = |region: Region, kept: usize| region.part(kept..region.bytes());
        let (input, output) = (
            moved(request.input, kept_in),
            moved(request.output, kept_out),
        );
        let longest = input.bytes().max(output.bytes());
        let (input, output) = (self.region(input), self.region(output));
        let [from, to] = self.sides.each_ref().map(|side| side.pin.whole());
        let current = self.device.enter()?;
        let start = Instant::now();
        for _ in 0..calls {
            for begin in (0..longest).step_by(PIECE_BYTES) {
                let piece = |region: DeviceRegion| begin..region.bytes().min(begin + PIECE_BYTES);
                let is_there = |region: &DeviceRegion| begin < region.bytes();
                if let Some(input) = input.filter(is_there) {
                    let piece = piece(input);
                    current.bring(&self.out, input.part(piece.clone()), from.part(piece))?;
                }
                if let Some(output) = output.filter(is_there) {
                    let piece = piece(output);
                    current.take(&self.into, to.part(piece.clone()), output.part(piece))?;
                }
            }
        }
        self.wait_for(calls, || {
            Ok(current.is_idle(&self.out)? && current.is_idle(&self.into)?)
        })?;
        Ok(start.elapsed().as_nanos() as f64 / 1e3 / f64::from(calls))
    }

    /// Returns the bytes of the input and of the output that do not leave the device in direct
    /// calls: a rank's message to itself.
    fn kept_bytes(&self, request: &Request) -> [usize; 2] {
        use Collective::{AllGather, AllToAll, Broadcast, Gather, Scatter};
        if !self.lane.is_direct() || request.options.algorithm.is_some() {
            return [0, 0];
        }
        let is_root = request.target == Target::Root(self.lane.rank());
        let (input, output) = (request.input.bytes(), request.output.bytes());
        let block = |bytes: usize| bytes / self.lane.world_size();
        match request.collective {
            AllToAll => [block(input), block(output)],
            AllGather => [0, block(output)],
            Gather if is_root => [0, block(output)],
            Scatter if is_root => [block(input), output],
            Broadcast if is_root => [0, output],
            _ => [0, 0],
        }
    }

    /// Returns the region of the device for which a region of a mirror stands; `None` if the region
    /// is empty.
    fn region(&self, region: Region) -> Option<DeviceRegion> {
        let place = |side: &Side| {
            let whole = side.pin.whole().region();
            let begin = (region.address() as usize).checked_sub(whole.address() as usize)?;
            let is_inside = begin + region.bytes() <= whole.bytes();
            is_inside.then(|| side.region().part(begin..begin + region.bytes()))
        };
        let filled = !region.is_empty();
        filled.then(|| self.sides.iter().find_map(place)).flatten()
    }
}

impl Side {
    fn region(&self) -> DeviceRegion {
        // SAFETY: the memory outlives the lane and the streams, and every access to it is waited
        // for before any other begins.
        unsafe { self.memory.region() }
    }
}
