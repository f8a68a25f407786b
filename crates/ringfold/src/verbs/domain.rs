//! A protection domain, and the memory registered with it.
//!
//! Keys belong to one domain: a peer reaches registered memory only through queue pairs of the same
//! domain, and through none once the registration has ended.

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use super::device::RdmaDevice;
use super::layout::{AsyncEvent, Mr, Pd};
use super::text;
use crate::error::Result;
use crate::memory::Region;

/// Accesses to registered memory, in addition to reads by this process' own requests, which are
/// always permitted: `IBV_ACCESS_LOCAL_WRITE` and `IBV_ACCESS_REMOTE_WRITE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAccess {
    /// Reads by this process' requests.
    Read = 0,
    /// Receives of messages.
    Receive = 1,
    /// Writes by peers that have the key.
    PeersWrite = 1 | 2,
}

/// A protection domain, freed when dropped.
#[derive(Debug)]
pub struct Domain {
    device: RdmaDevice,
    pd: *mut Pd,
}

// SAFETY: libibverbs allows calls on a domain from any thread, also at once.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Allocates a domain of `device`.
    ///
    /// # Errors
    /// `System` if the device has no more domains.
    pub fn new(device: RdmaDevice) -> Result<Arc<Domain>> {
        // SAFETY: an opened device.
        let pd = unsafe { (device.verbs.table.alloc_pd)(device.context) };
        if pd.is_null() {
            return Err(device.verbs.failure("alloc_pd"));
        }
        let domain = Domain { device, pd };
        super::unblock(domain.events())?;
        Ok(Arc::new(domain))
    }

    /// Returns the domain's device.
    pub fn device(&self) -> &RdmaDevice {
        &self.device
    }

    pub(super) fn pd(&self) -> *mut Pd {
        self.pd
    }

    /// Registers `region`, whose pages stay in memory until the result is dropped.
    ///
    /// # Errors
    /// `System` if the pages cannot be locked, or the device cannot reach them.
    pub fn register(
        self: &Arc<Domain>,
        region: Region,
        access: MemoryAccess,
    ) -> Result<MemoryRegion> {
        let verbs = self.device.verbs;
        // SAFETY: the memory is valid as long as the region is used (its maker's promise), which
        // `MemoryRegion` does; the device accesses it by address and never beyond its length.
        let mr = unsafe {
            let start = region.address().cast();
            (verbs.table.reg_mr)(self.pd, start, region.bytes(), access as i32)
        };
        if mr.is_null() {
            return Err(verbs.failure("reg_mr"));
        }
        // SAFETY: the library's new registration, which it does not change.
        let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
        Ok(MemoryRegion {
            domain: self.clone(),
            mr,
            lkey,
            rkey,
            region,
        })
    }

    /// Returns the descriptor that becomes readable when the device has an event.
    pub fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the device's own descriptor, open as long as the device.
        unsafe { BorrowedFd::borrow_raw((*self.device.context).async_fd) }
    }

    /// Returns the device's next event, with verbs' number, or `None`. The descriptor of events
    /// does not block.
    pub fn event(&self) -> Option<(u32, String)> {
        let table = &self.device.verbs.table;
        let mut event = AsyncEvent {
            element: ptr::null_mut(),
            event_type: 0,
        };
        // SAFETY: an opened device; the library fills the event in.
        if unsafe { (table.get_async_event)(self.device.context, &mut event) } != 0 {
            return None;
        }
        // SAFETY: the event that was just taken, once.
        unsafe { (table.ack_async_event)(&mut event) };
        // SAFETY: the library's text, which stays.
        let name = unsafe { text((table.event_type_str)(event.event_type)) };
        Some((event.event_type, name))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if self.device.is_inherited() {
            return;
        }
        // SAFETY: allocated once; all objects of the domain held it, and are gone.
        unsafe { (self.device.verbs.table.dealloc_pd)(self.pd) };
    }
}

/// Registered memory. Once this value is dropped, no peer's write changes the memory.
#[derive(Debug)]
pub struct MemoryRegion {
    domain: Arc<Domain>,
    mr: *mut Mr,
    lkey: u32,
    rkey: u32,
    region: Region,
}

// SAFETY: as for `Domain`.
unsafe impl Send for MemoryRegion {}

impl MemoryRegion {
    /// Returns the key for this process' requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Returns the key for peers' requests.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Returns the registered memory.
    pub fn region(&self) -> Region {
        self.region
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.domain.device.is_inherited() {
            return;
        }
        // SAFETY: registered once.
        unsafe { (self.domain.device.verbs.table.dereg_mr)(self.mr) };
    }
}
