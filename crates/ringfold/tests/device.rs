//! Tests of the device module over the software driver, which is opened by the name of its library,
//! and of the driver calls that a collective costs.

#[path = "device/hip.rs"]
mod hip;
#[path = "device/queue.rs"]
mod queue;
#[path = "device/software.rs"]
mod software;

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ringfold::internals::device::{
    Device, DeviceMemory, DeviceRegion, Event, Pin, PinnedRegion, ProgramStream, Stream,
};
use ringfold::{
    Collective, Communicator, Counts, DType, DeviceBuffer, DeviceRequest, Error, LaneConfig, Result,
};
use software::{Host, all_calls, alone, calls, capture, count, driver, fail, live, step};

const STEPPED: (&str, &str) = ("SOFTCUDA_MODE", "stepped");
/// Bytes of a slice, and of the line of each word after it: words share no line with data.
const SLICE_BYTES: usize = 4096;
const WORD_BYTES: usize = 128;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// Counts when nothing is pinned and no streams, events, contexts, memory or modules are left.
const NOTHING: [u64; 6] = [0; 6];

/// Returns the word at the beginning of a region.
fn word(region: PinnedRegion) -> &'static AtomicU32 {
    // SAFETY: four aligned bytes of memory that lives until the test's process ends or the test has
    // dropped its streams; all sides access them as an atomic.
    unsafe { AtomicU32::from_ptr(region.region().address().cast()) }
}

fn store(region: PinnedRegion, value: u32) {
    // Release: pairs with the wait of a stream.
    word(region).store(value, Ordering::Release);
}

fn load(region: PinnedRegion) -> u32 {
    // Acquire: pairs with the write of a stream.
    word(region).load(Ordering::Acquire)
}

/// A lane of one slice: pinned memory, device memory and two streams. Streams are dropped before
/// the memory that they use.
struct Lane {
    out: Stream,
    into: Stream,
    fork: Event,
    join: Event,
    pin: Pin,
    memory: DeviceMemory,
    device: Arc<Device>,
}

impl Lane {
    fn new() -> Result<Lane> {
        let device = Device::open(driver()?, 0)?;
        let host = Host::new(SLICE_BYTES + 4 * WORD_BYTES);
        let current = device.enter()?;
        let pin = current.pin(host.region(), host)?;
        let (out, into) = (current.stream()?, current.stream()?);
        Ok(Lane {
            fork: current.event()?,
            join: current.event()?,
            memory: current.allocate(SLICE_BYTES)?,
            out,
            into,
            pin,
            device: {
                drop(current);
                device
            },
        })
    }

    fn data(&self) -> PinnedRegion {
        self.pin.whole().part(0..SLICE_BYTES)
    }

    fn word(&self, index: usize) -> PinnedRegion {
        let start = SLICE_BYTES + index * WORD_BYTES;
        self.pin.whole().part(start..start + 4)
    }

    fn region(&self) -> DeviceRegion {
        // SAFETY: allocated as long as the lane, which waits for its streams.
        unsafe { self.memory.region() }
    }

    /// Copies the data to the device, and waits for the copy.
    fn fill(&self) -> Result<()> {
        let current = self.device.enter()?;
        current.take(&self.into, self.data(), self.region())?;
        until(|| current.is_idle(&self.into))
    }

    /// Issues one slice in the lane's order: a copy to the host, and a copy of the host's result
    /// back.
    fn issue(&self, number: u32) -> Result<()> {
        let current = self.device.enter()?;
        let [arrived, released, taken] = [0, 1, 2].map(|index| self.word(index));
        current.fork(&self.fork, ProgramStream::DEFAULT, &[&self.out, &self.into])?;
        current.bring(&self.out, self.region(), self.data())?;
        current.write(&self.out, arrived, number)?;
        current.wait(&self.into, released, number)?;
        current.take(&self.into, self.data(), self.region())?;
        current.write(&self.into, taken, number)?;
        current.record(&self.join, &self.into)?;
        current.join(&self.join, ProgramStream::DEFAULT)
    }

    /// Waits until both streams have no work.
    fn finish(&self) -> Result<()> {
        let current = self.device.enter()?;
        until(|| Ok(current.is_idle(&self.out)? && current.is_idle(&self.into)?))
    }

    /// Cancels the requested failures, and waits until both streams have no work.
    fn drain(&self) {
        fail(c"*", 0, 0);
        self.finish().unwrap();
    }
}

/// Polls until `done`; runs the driver's steps in between if the driver has no threads.
fn until(mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let begin = Instant::now();
    while !done()? {
        step();
        assert!(begin.elapsed() < Duration::from_secs(50), "timed out");
    }
    Ok(())
}

/// Sends slices to the host and back; the host adds one to each byte.
fn round_trip() {
    let lane = Lane::new().unwrap();
    let input: Vec<u8> = (0..SLICE_BYTES).map(|index| (index % 251) as u8).collect();
    lane.data().region().write(&input);
    lane.fill().unwrap();
    for number in 1..=5 {
        lane.data().region().write(&[0; SLICE_BYTES]);
        lane.issue(number).unwrap();
        until(|| Ok(load(lane.word(0)) == number)).unwrap();
        let mut values = vec![0; SLICE_BYTES];
        lane.data().region().read(&mut values);
        let expected = |by: u32| -> Vec<u8> {
            input
                .iter()
                .map(|byte| byte.wrapping_add(by as u8))
                .collect()
        };
        assert_eq!(values, expected(number - 1));
        lane.data().region().write(&expected(number));
        store(lane.word(1), number);
        until(|| Ok(load(lane.word(2)) == number)).unwrap();
        let current = lane.device.enter().unwrap();
        until(|| current.is_reached(&lane.join)).unwrap();
    }
    lane.drain();
    drop(lane);
    assert_eq!(live(), NOTHING);
}

#[test]
fn a_slice_goes_to_the_host_and_back_in_every_mode() {
    alone(&[], round_trip);
    for seed in ["1", "2", "3"] {
        for mode in ["seeded", "stepped"] {
            alone(
                &[("SOFTCUDA_MODE", mode), ("SOFTCUDA_SEED", seed)],
                round_trip,
            );
        }
    }
}

#[test]
fn a_slice_costs_few_calls() {
    alone(&[STEPPED], || {
        let lane = Lane::new().unwrap();
        lane.issue(1).unwrap();
        store(lane.word(1), 1);
        lane.drain();
        let before = [
            c"cuMemcpyDtoHAsync_v2",
            c"cuStreamWriteValue32_v2",
            c"cuCtxPushCurrent_v2",
        ]
        .map(calls);
        lane.issue(2).unwrap();
        store(lane.word(1), 2);
        let after = [
            c"cuMemcpyDtoHAsync_v2",
            c"cuStreamWriteValue32_v2",
            c"cuCtxPushCurrent_v2",
        ]
        .map(calls);
        assert_eq!(
            [0, 1, 2].map(|index| after[index] - before[index]),
            [1, 2, 1]
        );
        lane.drain();
    });
}

/// Returns the memory and the request of an all-reduce of `slices` slices, and a stream of `gate`
/// that waits until the gate's first word is 1.
fn held(gate: &Lane, slices: usize) -> (DeviceMemory, DeviceRequest, ProgramStream) {
    let bytes = slices * SLICE_BYTES;
    let current = gate.device.enter().unwrap();
    let memory = current.allocate(bytes).unwrap();
    // SAFETY: the memory lives until the call is done.
    let buffer = || DeviceBuffer::new(vec![unsafe { memory.region() }]);
    let counts = Counts::Even(bytes as u64);
    let (collective, dtype) = (Collective::AllReduce, DType::U8);
    let request = DeviceRequest::new(collective, dtype, counts, buffer(), buffer());
    current.wait(&gate.out, gate.word(0), 1).unwrap();
    // SAFETY: the stream lives until it is idle.
    let program = unsafe { ProgramStream::from_handle(gate.out.handle()) };
    (memory, request, program)
}

/// Counts the driver calls by which a lane enqueues an all-reduce of `slices` slices behind an
/// operation that waits, so that none of the lane's waits is satisfied when it is enqueued.
fn calls_of_slices(lane: &ringfold::Lane, slices: usize) -> u64 {
    let gate = Lane::new().unwrap();
    let (_memory, request, program) = held(&gate, slices);
    let before = all_calls();
    // SAFETY: the memory lives until the call is done, and nothing else accesses it.
    let work = unsafe { lane.enqueue(request, program) }.unwrap();
    let calls = all_calls() - before;
    store(gate.word(0), 1);
    work.join(program).unwrap();
    assert!(work.wait_on_host(Duration::from_secs(50)).unwrap());
    gate.finish().unwrap();
    calls
}

#[test]
fn a_slice_of_a_collective_takes_four_calls() {
    alone(&[("SOFTCUDA_LATENCY_US", "0")], || {
        let communicator = Communicator::threads(1).remove(0);
        let config = LaneConfig {
            slot_bytes: SLICE_BYTES,
            depth: 4,
            ..LaneConfig::default()
        };
        let lane = ringfold::Lane::new(communicator, driver().unwrap(), 0, config).unwrap();
        // The first call creates the events that later calls reuse.
        let [_, short, long] = [1, 20, 100].map(|slices| calls_of_slices(&lane, slices));
        // Slots that are free at first need no wait; the host may report the last slot as free only
        // after the previous call is done. Apart from that, the calls differ only in their slices.
        let more = long - short;
        assert!(
            (80 * 4 - 1..=80 * 4 + 1).contains(&more),
            "{more} calls for 80 slices more"
        );
        // The rest of a call takes few: its order behind the program's stream, and its end.
        assert!(short <= 20 * 4 + 16, "{short} calls for 20 slices");
        lane.close().unwrap();
    });
}

#[test]
fn a_device_says_what_it_is() {
    alone(
        &[("SOFTCUDA_DEVICES", "2"), ("SOFTCUDA_VERSION", "12080")],
        || {
            let driver = driver().unwrap();
            assert_eq!((driver.version(), driver.devices().unwrap()), ((12, 8), 2));
            let devices = [0, 1].map(|ordinal| Device::open(driver, ordinal).unwrap());
            let [first, second] =
                [&devices[0], &devices[1]].map(|device| device.attributes().clone());
            assert_eq!((first.ordinal, second.ordinal), (0, 1));
            assert_eq!((first.name.as_str(), first.copy_engines), ("softcuda", 2));
            assert_eq!(first.bus_id, "FFFF:00:00.0");
            assert!(first.uuid != second.uuid && first.numa_node.is_none());
            assert!(first.pins_memory && first.has_memory_operations);
            let text = Device::open(driver, 2).unwrap_err().to_string();
            assert_eq!(text, "there is no device 2: this process sees 2");
            // A library that is opened twice is one driver.
            assert!(std::ptr::eq(driver, software::driver().unwrap()));
        },
    );
}

#[test]
fn memory_belongs_to_its_device() {
    alone(&[("SOFTCUDA_DEVICES", "2")], || {
        let lane = Lane::new().unwrap();
        let (driver, region) = (driver().unwrap(), lane.region());
        assert_eq!(driver.device_of(region.address()).unwrap(), Some(0));
        let host = lane.data().region().address() as usize;
        assert_eq!(driver.device_of(host).unwrap(), None);
        assert_eq!(driver.device_of(0x10).unwrap(), None);
        // SAFETY: the call is refused, so nothing is accessed.
        let other = unsafe { DeviceRegion::new(1, region.address(), region.bytes()) };
        let current = lane.device.enter().unwrap();
        let error = current.bring(&lane.out, other, lane.data()).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
        assert_eq!(calls(c"cuMemcpyDtoHAsync_v2"), 0);
    });
}

/// The driver functions that a lane needs.
const FUNCTIONS: [&CStr; 16] = [
    c"cuInit",
    c"cuDevicePrimaryCtxRetain",
    c"cuCtxPushCurrent_v2",
    c"cuCtxGetStreamPriorityRange",
    c"cuMemAlloc_v2",
    c"cuMemHostRegister_v2",
    c"cuMemHostGetDevicePointer_v2",
    c"cuStreamCreateWithPriority",
    c"cuEventCreate",
    c"cuEventRecord",
    c"cuStreamWaitEvent",
    c"cuMemcpyDtoHAsync_v2",
    c"cuMemcpyHtoDAsync_v2",
    c"cuStreamWaitValue32_v2",
    c"cuStreamWriteValue32_v2",
    c"cuStreamQuery",
];

/// Does everything that a lane does, once.
fn attempt() -> Result<()> {
    let lane = Lane::new()?;
    store(lane.word(1), 1);
    let issued = lane.fill().and_then(|()| lane.issue(1));
    let finished = issued.and_then(|()| lane.finish());
    if finished.is_err() {
        lane.drain();
    }
    finished
}

#[test]
fn each_call_that_fails_is_an_error_with_its_name() {
    alone(&[("SOFTCUDA_LATENCY_US", "0")], || {
        for function in FUNCTIONS {
            for at in 1.. {
                // Objects that an earlier failed teardown has kept are not this attempt's.
                let before = live();
                fail(function, at, OUT_OF_MEMORY);
                let attempt = attempt();
                let was_enough = fail(c"*", 0, 0);
                if let Err(error) = attempt {
                    let call = function.to_str().unwrap();
                    let text = format!("{call}: CUDA_ERROR_OUT_OF_MEMORY");
                    assert_eq!((error.class(), error.to_string()), ("System", text));
                    assert_eq!(live(), before, "after call {at} of {call}");
                } else if was_enough {
                    assert!(at > 1, "{function:?} is not called");
                    assert_eq!(live(), before);
                    break;
                }
            }
        }
    });
}

#[test]
fn a_driver_without_memory_operations_is_unsupported() {
    alone(&[("SOFTCUDA_MEMOPS", "0")], || {
        let lane = Lane::new().unwrap();
        let current = lane.device.enter().unwrap();
        let error = current.write(&lane.out, lane.word(0), 1).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
        let text = error.to_string();
        assert_eq!(text, "cuStreamWriteValue32_v2: CUDA_ERROR_NOT_SUPPORTED");
    });
}

#[test]
fn what_a_stream_may_still_use_is_kept() {
    alone(&[STEPPED], || {
        let lane = Lane::new().unwrap();
        let current = lane.device.enter().unwrap();
        current.wait(&lane.out, lane.word(0), 1).unwrap();
        let host = Host::new(4096);
        let pin = current.pin(host.region(), host.clone()).unwrap();
        let text = pin.release().unwrap_err().to_string();
        assert_eq!(
            text,
            "4096 bytes stay pinned: device 0 may still access them"
        );
        // The pin's memory is kept, too.
        assert_eq!(Arc::strong_count(&host), 2);
        drop(current);
        // The driver ends the process if a stream with work is destroyed, or memory in use is
        // unpinned; and freeing device memory would wait forever.
        drop(lane);
        assert_eq!(
            [c"streams", c"pinned", c"memory", c"events"].map(count),
            [1, 2, 1, 2],
            "with a device that is kept, so are its events"
        );
    });
}

#[test]
fn a_capture_is_seen() {
    alone(&[], || {
        let device = Device::open(driver().unwrap(), 0).unwrap();
        let current = device.enter().unwrap();
        assert!(!current.is_capturing(ProgramStream::DEFAULT).unwrap());
        capture(0, 1);
        assert!(current.is_capturing(ProgramStream::DEFAULT).unwrap());
    });
}

#[test]
fn a_forked_child_is_told_what_to_do() {
    alone(&[], || {
        let driver = driver().unwrap();
        let device = Device::open(driver, 0).unwrap();
        // SAFETY: the child makes calls that are refused because it was forked, and ends.
        match unsafe { libc::fork() } {
            0 => {
                let own = device.enter().unwrap_err().to_string();
                // The driver refuses to open a device in a forked child.
                let new = Device::open(driver, 0).unwrap_err().to_string();
                let right = own.contains("forked child")
                    && own.contains("started instead")
                    && new.contains("CUDA_ERROR_NOT_INITIALIZED")
                    && new.ends_with("spawn it instead");
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(i32::from(!right)) }
            }
            child => {
                let mut status = 1;
                // SAFETY: the child is ours, and `status` takes a number.
                unsafe { libc::waitpid(child, &mut status, 0) };
                assert_eq!(status, 0);
            }
        }
    });
}

#[test]
fn events_are_used_again() {
    alone(&[STEPPED], || {
        let device = Device::open(driver().unwrap(), 0).unwrap();
        for _ in 0..10 {
            let current = device.enter().unwrap();
            let events = [current.event().unwrap(), current.event().unwrap()];
            drop(events);
        }
        assert_eq!((calls(c"cuEventCreate"), count(c"events")), (2, 2));
        drop(device);
        assert_eq!(live(), NOTHING);
    });
}
