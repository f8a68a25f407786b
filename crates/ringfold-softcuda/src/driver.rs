//! The one driver of a process, and what its calls have in common.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::call::Calls;
use crate::device::Device;
use crate::event::Event;
use crate::memory::Memory;
use crate::module::Function;
use crate::ptx::Module;
use crate::queue::Queue;
use crate::report;
use crate::settings::{Mode, Settings};
use crate::stepping::{self, Random};
use crate::stream::Stream;

/// Between two looks of a call that blocks.
const NAP: Duration = Duration::from_micros(20);

/// Everything that the calls of a process share.
#[derive(Debug)]
pub struct Driver {
    pub settings: Settings,
    pub calls: Calls,
    pub devices: Vec<Device>,
    pub memory: Memory,
    /// By handle; a handle is never used again.
    pub streams: Mutex<BTreeMap<usize, Arc<Stream>>>,
    /// By handle.
    pub events: Mutex<BTreeMap<usize, Arc<Event>>>,
    /// By handle.
    pub modules: Mutex<BTreeMap<usize, Module>>,
    /// By handle.
    pub functions: Mutex<BTreeMap<usize, Function>>,
    /// All queues that may have work, in the order of their creation.
    pub queues: Mutex<Vec<Arc<Queue>>>,
    pub random: Mutex<Random>,
    /// The process that made it.
    pub process: u32,
    /// Held for reading by calls that enqueue or create, for writing by `cuMemFree`.
    api: RwLock<()>,
    handles: Mutex<usize>,
}

/// The driver, which the first call of the process makes.
pub fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    static STARTED: OnceLock<()> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        let settings = Settings::read();
        Driver {
            calls: Calls::new(settings.fail.clone()),
            devices: Device::all(&settings),
            memory: Memory::default(),
            streams: Mutex::default(),
            events: Mutex::default(),
            modules: Mutex::default(),
            functions: Mutex::default(),
            queues: Mutex::default(),
            random: Mutex::new(Random(settings.seed)),
            process: std::process::id(),
            api: RwLock::new(()),
            handles: Mutex::new(0x5_0000),
            settings,
        }
    });
    STARTED.get_or_init(|| {
        report::start(driver);
        stepping::start(driver);
    });
    driver
}

impl Driver {
    /// The right to enqueue or create, which `cuMemFree` takes from all others while it waits.
    pub fn api(&self) -> RwLockReadGuard<'_, ()> {
        self.api.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all queues are empty while no other call may enqueue or create, then runs
    /// `then`.
    pub fn when_idle<T>(&self, then: impl FnOnce() -> T) -> T {
        let _alone = self.api.write().unwrap_or_else(PoisonError::into_inner);
        self.until(|| lock(&self.queues).iter().all(|queue| queue.is_idle()));
        then()
    }

    /// Blocks the call until `holds`; without threads of its own, the driver runs operations
    /// meanwhile.
    pub fn until(&self, holds: impl Fn() -> bool) {
        while !holds() {
            if self.settings.mode != Mode::Stepped || !self.step() {
                thread::sleep(NAP);
            }
        }
    }

    /// A handle that was never used.
    pub fn handle(&self) -> usize {
        let mut last = lock(&self.handles);
        *last += 0x10;
        *last
    }
}

/// Locks, also what a thread left in a panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds since an origin that all processes of the machine share.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
