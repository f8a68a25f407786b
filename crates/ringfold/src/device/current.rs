//! A context as this thread's current one: all calls on a device.

use std::any::Any;
use std::ffi::CStr;
use std::sync::Arc;

use super::gpu::{Device, Pushed};
use super::kernel::Kernel;
use super::memory::DeviceMemory;
use super::pinned::{Pin, PinnedRegion};
use super::region::{DeviceRegion, ProgramStream};
use super::stream::{Event, Stream};
use crate::error::{Error, Result};
use crate::region::Region;

/// What a word has.
const WORD_BYTES: usize = size_of::<u32>();

/// The device's context as this thread's current one. What was current before is again when this is
/// dropped.
#[derive(Debug)]
pub struct Current<'a> {
    device: &'a Arc<Device>,
    _pushed: Pushed<'a>,
}

impl Device {
    /// Makes its context this thread's current one until the value is dropped.
    pub fn enter(self: &Arc<Device>) -> Result<Current<'_>> {
        Ok(Current {
            _pushed: self.push()?,
            device: self,
        })
    }
}

impl Current<'_> {
    /// Pins `memory`, which must not be pinned in this process yet, for all devices. Its `owner`
    /// lives until it is unpinned.
    pub fn pin(&self, memory: Region, owner: Arc<dyn Any + Send + Sync>) -> Result<Pin> {
        Pin::new(self.device, memory, owner)
    }

    /// Makes a stream of the highest priority, which does not synchronize with the default stream.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self.device)
    }

    /// Makes an event.
    pub fn event(&self) -> Result<Event> {
        Event::new(self.device)
    }

    /// Allocates device memory.
    pub fn allocate(&self, bytes: usize) -> Result<DeviceMemory> {
        DeviceMemory::new(self.device, bytes)
    }

    /// Enqueues a copy from the device.
    pub fn bring(&self, stream: &Stream, from: DeviceRegion, into: PinnedRegion) -> Result<()> {
        self.check(from, into)?;
        let driver = self.device.driver();
        driver.copy_to_host(into.region(), from.address(), stream.handle())
    }

    /// Enqueues a copy to the device.
    pub fn take(&self, stream: &Stream, from: PinnedRegion, into: DeviceRegion) -> Result<()> {
        self.check(into, from)?;
        let driver = self.device.driver();
        driver.copy_to_device(into.address(), from.region(), stream.handle())
    }

    /// Enqueues a copy within the device.
    pub fn copy(&self, stream: &Stream, from: DeviceRegion, into: DeviceRegion) -> Result<()> {
        assert_eq!(from.bytes(), into.bytes(), "a copy of different lengths");
        self.check_own(from)?;
        self.check_own(into)?;
        let (driver, bytes) = (self.device.driver(), from.bytes());
        driver.copy_within(into.address(), from.address(), bytes, stream.handle())
    }

    /// Compiles the kernel `name` of a text in PTX, which takes `parameters` numbers of 64 bits.
    pub fn kernel(&self, text: &CStr, name: &CStr, parameters: usize) -> Result<Kernel> {
        Kernel::new(self.device, text, name, parameters)
    }

    /// Enqueues a kernel in `blocks` blocks of `threads` threads.
    ///
    /// # Safety
    /// What the kernel accesses with these arguments is memory of this device, or pinned, and as
    /// that of [`DeviceRegion::new`].
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        kernel: &Kernel,
        [blocks, threads]: [u32; 2],
        arguments: &[u64],
    ) -> Result<()> {
        let function = kernel.function(arguments.len());
        let driver = self.device.driver();
        driver.launch(function, [blocks, threads], arguments, stream.handle())
    }

    /// Enqueues a store of `value` to a word. A thread that loads the value with Acquire sees what
    /// the stream did before.
    pub fn write(&self, stream: &Stream, word: PinnedRegion, value: u32) -> Result<()> {
        assert_eq!(word.bytes(), WORD_BYTES, "a word");
        let driver = self.device.driver();
        driver.write_value(stream.handle(), word.device_address(), value)
    }

    /// Enqueues a wait until a word is at or past `value`, on the circle of 32-bit numbers: until
    /// `word - value`, wrapping, is not negative.
    pub fn wait(&self, stream: &Stream, word: PinnedRegion, value: u32) -> Result<()> {
        assert_eq!(word.bytes(), WORD_BYTES, "a word");
        let driver = self.device.driver();
        driver.wait_value(stream.handle(), word.device_address(), value)
    }

    /// Enqueues a [`write`](Current::write) and then a [`wait`](Current::wait), those that there
    /// are: one call of the driver, if it has such a call.
    pub fn write_and_wait(
        &self,
        stream: &Stream,
        written: Option<(PinnedRegion, u32)>,
        awaited: Option<(PinnedRegion, u32)>,
    ) -> Result<()> {
        match (written, awaited) {
            (Some(written), Some(awaited)) => {
                let words = [written, awaited];
                assert!(
                    words.iter().all(|(word, _)| word.bytes() == WORD_BYTES),
                    "words"
                );
                let [written, awaited] = words.map(|(word, value)| (word.device_address(), value));
                let driver = self.device.driver();
                driver.write_and_wait(stream.handle(), written, awaited)
            }
            (Some((word, value)), None) => self.write(stream, word, value),
            (None, Some((word, value))) => self.wait(stream, word, value),
            (None, None) => Ok(()),
        }
    }

    /// Has `streams` wait for all that `program` has been given so far.
    pub fn fork(&self, event: &Event, program: ProgramStream, streams: &[&Stream]) -> Result<()> {
        self.mark(event, program)?;
        let mut streams = streams.iter();
        streams.try_for_each(|stream| self.follow(stream, event))
    }

    /// Has `event` mark all that `program` has been given so far.
    pub fn mark(&self, event: &Event, program: ProgramStream) -> Result<()> {
        let driver = self.device.driver();
        driver.record_event(event.handle(), program.handle())
    }

    /// Has `stream` wait for what the latest record of `event` marks.
    pub fn follow(&self, stream: &Stream, event: &Event) -> Result<()> {
        let driver = self.device.driver();
        driver.wait_event(stream.handle(), event.handle())
    }

    /// Has `program` wait for what the latest [`record`](Current::record) of `event` marks.
    pub fn join(&self, event: &Event, program: ProgramStream) -> Result<()> {
        let driver = self.device.driver();
        driver.wait_event(program.handle(), event.handle())
    }

    /// Has `event` mark all that `stream` has been given so far.
    pub fn record(&self, event: &Event, stream: &Stream) -> Result<()> {
        let driver = self.device.driver();
        driver.record_event(event.handle(), stream.handle())
    }

    /// Whether what the latest record of `event` marks is done.
    pub fn is_reached(&self, event: &Event) -> Result<bool> {
        self.device.driver().is_reached(event.handle())
    }

    /// Whether all work of `stream` is done.
    pub fn is_idle(&self, stream: &Stream) -> Result<bool> {
        self.device.driver().is_idle(stream.handle())
    }

    /// Whether work for `program` becomes part of a graph instead of running.
    pub fn is_capturing(&self, program: ProgramStream) -> Result<bool> {
        self.device.driver().is_capturing(program.handle())
    }

    /// Whether a copy is between memory of this device and as many bytes.
    fn check(&self, device: DeviceRegion, host: PinnedRegion) -> Result<()> {
        assert_eq!(device.bytes(), host.bytes(), "a copy of different lengths");
        self.check_own(device)
    }

    /// Checks that memory is this device's.
    pub fn check_own(&self, device: DeviceRegion) -> Result<()> {
        if device.device() != self.device.ordinal() {
            return Err(Error::InvalidArgument(format!(
                "memory of device {} in a call on device {}",
                device.device(),
                self.device.ordinal()
            )));
        }
        Ok(())
    }
}
