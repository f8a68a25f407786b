//! Streams: a handle for a share of a queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use crate::call::{Answer, Refusal};
use crate::device::context_of;
use crate::driver::{Driver, lock};
use crate::operation::Operation;
use crate::queue::Queue;
use crate::report::end;
use crate::settings::Mode;

/// The handles of the default stream: none, and `CU_STREAM_LEGACY`.
const DEFAULT: [usize; 2] = [0, 1];
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// The operations that run during a call that enqueues are fewer than this, in stepped mode.
const STEPS_PER_CALL: usize = 3;

/// A stream.
#[derive(Debug)]
pub struct Stream {
    pub handle: usize,
    pub device: usize,
    pub priority: i32,
    pub queue: Arc<Queue>,
    /// What `cuStreamIsCapturing` answers.
    pub capture: AtomicI32,
    /// Operations that are not done.
    left: AtomicUsize,
}

impl Stream {
    /// Whether all its operations are done.
    pub fn is_idle(&self) -> bool {
        // Acquire: pairs with `end_operation`, so that what they did is seen.
        self.left.load(Ordering::Acquire) == 0
    }

    /// Counts an operation.
    pub fn begin_operation(&self) {
        // Relaxed: the queue's lock orders it before the end.
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts its end.
    pub fn end_operation(&self) {
        // Release: pairs with the load in `is_idle`.
        self.left.fetch_sub(1, Ordering::Release);
    }

    /// Whether it is the default stream of its context.
    pub fn is_default(&self) -> bool {
        self.handle == context_of(self.device)
    }
}

impl Driver {
    /// Makes a stream of the current context; its handle.
    pub fn create_stream(&'static self, flags: u32, priority: i32) -> Answer<usize> {
        let _api = self.api();
        let device = self.current()?;
        if flags != NON_BLOCKING {
            end("a stream is created that synchronizes with the default stream".into());
        }
        Ok(self.add_stream(device, self.handle(), priority).handle)
    }

    /// Destroys a stream, which must be idle.
    pub fn destroy_stream(&self, handle: usize) -> Answer {
        let _api = self.api();
        if DEFAULT.contains(&handle) {
            return Err(Refusal::INVALID_HANDLE);
        }
        let removed = lock(&self.streams).remove(&handle);
        let stream = removed.unwrap_or_else(|| no_stream(handle));
        if !stream.is_idle() {
            end(format!("stream {handle:#x} is destroyed with work in it"));
        }
        if self.settings.queues == 0 {
            stream.queue.close();
            lock(&self.queues).retain(|queue| !Arc::ptr_eq(queue, &stream.queue));
        }
        Ok(())
    }

    /// The stream of a handle.
    pub fn stream(&'static self, handle: usize) -> Answer<Arc<Stream>> {
        if handle == PER_THREAD {
            end("the default stream of each thread is not modelled".into());
        }
        if DEFAULT.contains(&handle) {
            let device = self.current()?;
            let own = context_of(device);
            let known = lock(&self.streams).get(&own).cloned();
            return Ok(known.unwrap_or_else(|| self.add_stream(device, own, 0)));
        }
        let known = lock(&self.streams).get(&handle).cloned();
        Ok(known.unwrap_or_else(|| no_stream(handle)))
    }

    /// Appends an operation to a stream of the current context. Blocks while its queue is full.
    pub fn enqueue(&'static self, handle: usize, operation: Operation) -> Answer {
        let api = self.api();
        let current = self.current()?;
        let stream = self.stream(handle)?;
        if stream.device != current {
            return Err(Refusal::INVALID_HANDLE);
        }
        // Relaxed: the program orders its own calls.
        if stream.capture.load(Ordering::Relaxed) != 0 {
            end(format!(
                "work for stream {handle:#x}, which is captured: {operation}"
            ));
        }
        let queue = stream.queue.clone();
        self.until(|| !queue.is_full(self.settings.queue_operations_max));
        queue.push(stream, operation);
        drop(api);
        if self.settings.mode == Mode::Stepped {
            let steps = lock(&self.random).below(STEPS_PER_CALL);
            (0..steps).for_each(|_| {
                self.step();
            });
        }
        Ok(())
    }

    fn add_stream(&'static self, device: usize, handle: usize, priority: i32) -> Arc<Stream> {
        let stream = Arc::new(Stream {
            handle,
            device,
            priority,
            queue: self.queue_for(device),
            capture: AtomicI32::new(0),
            left: AtomicUsize::new(0),
        });
        lock(&self.streams).entry(handle).or_insert(stream).clone()
    }

    /// The queue of a new stream: its own, or one of the device's in turn.
    fn queue_for(&'static self, device: usize) -> Arc<Queue> {
        let of_device = |queue: &&Arc<Queue>| queue.device == device;
        let shared: Vec<_> = lock(&self.queues)
            .iter()
            .filter(of_device)
            .cloned()
            .collect();
        if self.settings.queues == 0 || shared.len() < self.settings.queues {
            return Queue::start(self, device);
        }
        let streams = lock(&self.streams);
        let of_device = streams.values().filter(|stream| stream.device == device);
        shared[of_device.count() % shared.len()].clone()
    }
}

fn no_stream(handle: usize) -> ! {
    end(format!(
        "stream {handle:#x} is used, but was destroyed or never made"
    ))
}
