//! Callers' memory that requests name directly while it is held.
//!
//! # Model
//!
//! Memory that a caller registers with its communicator is registered with the device as a whole,
//! on request. The memory of a single call is registered window by window, each when a message
//! first uses it, so that a window is registered while the one before is on the wire. The oldest
//! unused windows are deregistered, so that a call pins a bounded part of its memory.
//!
//! # Invariants
//!
//! Only memory that somebody holds is registered, never an address that was seen before. So no
//! registration is stale: memory that was unmapped, and memory mapped there afterwards, was no
//! longer held. Whatever still refers to a window, the device can no longer reach it when the hold
//! is dropped.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::error::Result;
use crate::memory::Region;
use crate::sync::lock;
use crate::verbs::{Domain, MemoryAccess, MemoryRegion, RemoteAddress};

/// Length of the parts in which a call's memory is registered.
pub const WINDOW_BYTES: usize = 1 << 20;

/// Number of a call's windows above which unused ones are deregistered.
pub const WINDOWS_MAX: usize = 32;

/// A registered part, or the whole, of held memory. The registration lasts while a request uses the
/// window, unless the holder ends it.
#[derive(Debug)]
pub struct Window {
    lkey: u32,
    rkey: u32,
    registered: Mutex<Option<MemoryRegion>>,
}

impl Window {
    fn new(registered: MemoryRegion) -> Window {
        Window {
            lkey: registered.lkey(),
            rkey: registered.rkey(),
            registered: Mutex::new(Some(registered)),
        }
    }

    /// Returns the key for this process' requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Returns the address and key with which a peer writes to `part` of the window.
    pub fn place(&self, part: Region) -> RemoteAddress {
        RemoteAddress {
            address: part.address() as u64,
            rkey: self.rkey,
        }
    }

    fn end(&self) {
        drop(lock(&self.registered).take());
    }
}

/// Registered windows of held memory.
#[derive(Debug)]
struct RegisteredWindows {
    /// Windows by place in the memory.
    found: Vec<Option<Arc<Window>>>,
    /// Places of the registered windows, the oldest first.
    order: VecDeque<usize>,
    /// Whether registration has ended, with the links or because the device refused.
    is_ended: bool,
}

/// Memory that a caller holds. Dropping the value ends all registrations.
#[derive(Debug)]
pub struct HeldMemory {
    domain: Arc<Domain>,
    region: Region,
    access: MemoryAccess,
    window_bytes: usize,
    windows: Mutex<RegisteredWindows>,
    /// The process that registers the memory: a forked child has no registration.
    process: u32,
}

impl HeldMemory {
    /// Holds `region`, to be registered in windows of `window_bytes`.
    pub fn new(
        domain: &Arc<Domain>,
        region: Region,
        access: MemoryAccess,
        window_bytes: usize,
    ) -> HeldMemory {
        let offset = region.address() as usize % window_bytes;
        HeldMemory {
            domain: domain.clone(),
            region,
            access,
            window_bytes,
            windows: Mutex::new(RegisteredWindows {
                found: vec![None; (offset + region.bytes()).div_ceil(window_bytes)],
                order: VecDeque::new(),
                is_ended: false,
            }),
            process: std::process::id(),
        }
    }

    /// Holds `region`, and registers it as a whole now.
    ///
    /// # Errors
    /// `System` if the registration fails.
    pub fn whole(domain: &Arc<Domain>, region: Region) -> Result<HeldMemory> {
        let window = Window::new(domain.register(region, MemoryAccess::PeersWrite)?);
        Ok(HeldMemory {
            domain: domain.clone(),
            region,
            access: MemoryAccess::PeersWrite,
            window_bytes: usize::MAX,
            windows: Mutex::new(RegisteredWindows {
                found: vec![Some(Arc::new(window))],
                order: VecDeque::new(),
                is_ended: false,
            }),
            process: std::process::id(),
        })
    }

    /// Whether `part` lies in this memory, and may be accessed in this way.
    pub fn permits(&self, part: Region, access: MemoryAccess) -> bool {
        self.region.contains(part)
            && (self.access == MemoryAccess::PeersWrite || access == self.access)
    }

    /// Returns the window at the beginning of `part`, which lies in this memory, and the number of
    /// bytes of `part` in the window. Registers the window if necessary. `None` once registration
    /// has ended.
    ///
    /// # Errors
    /// `System` if the registration fails; registration then ends.
    pub fn window(&self, part: Region) -> Result<Option<(Arc<Window>, usize)>> {
        let mut windows = lock(&self.windows);
        if windows.is_ended {
            return Ok(None);
        }
        let first = self.region.address() as usize / self.window_bytes;
        let begin = part.address() as usize;
        let place = begin / self.window_bytes - first;
        let (from, to) = self.bounds(first + place);
        let bytes = part.bytes().min(to - begin);
        if let Some(window) = &windows.found[place] {
            return Ok(Some((window.clone(), bytes)));
        }
        let start = self.region.address() as usize;
        let whole = self.region.part(from - start..to - start);
        let registered = self.domain.register(whole, self.access);
        let registered = registered.inspect_err(|_| windows.is_ended = true)?;
        let window = Arc::new(Window::new(registered));
        windows.found[place] = Some(window.clone());
        windows.order.push_back(place);
        windows.shrink();
        Ok(Some((window, bytes)))
    }

    /// Returns the bounds of the window with this number, counted from address 0.
    fn bounds(&self, number: usize) -> (usize, usize) {
        let start = self.region.address() as usize;
        let from = number * self.window_bytes;
        let to = from.saturating_add(self.window_bytes);
        (from.max(start), to.min(start + self.region.bytes()))
    }

    /// Returns the number of registered windows.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        lock(&self.windows).found.iter().flatten().count()
    }

    /// Ends all registrations: the device no longer reaches the memory.
    pub fn end(&self) {
        let mut windows = lock(&self.windows);
        windows.is_ended = true;
        windows
            .found
            .drain(..)
            .flatten()
            .for_each(|window| window.end());
    }
}

impl RegisteredWindows {
    /// Deregisters the oldest windows that no request uses, if there are too many.
    fn shrink(&mut self) {
        let is_used = |window: &Arc<Window>| Arc::strong_count(window) > 1;
        let excess = self.order.len().saturating_sub(WINDOWS_MAX);
        for _ in 0..excess {
            let found = &self.found;
            let mut order = self.order.iter();
            let unused = order.position(|place| !found[*place].as_ref().is_some_and(is_used));
            let Some(place) = unused.and_then(|at| self.order.remove(at)) else {
                return;
            };
            self.found[place] = None;
        }
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.end();
            return;
        }
        // A forked child leaves the device alone.
        if let Ok(windows) = self.windows.get_mut() {
            windows.found.drain(..).for_each(std::mem::forget);
        }
    }
}
