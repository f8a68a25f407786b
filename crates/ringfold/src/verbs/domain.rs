//! A protection domain, and the memory that is registered with it.
//!
//! Keys are of one domain: a peer reaches registered memory only through queue pairs of the same
//! domain, and through none once the registration is gone.

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use super::device::Device;
use super::layout::{AsyncEvent, Mr, Pd};
use super::text;
use crate::error::Result;
use crate::memory::Region;

/// Who may access registered memory beside this process' own requests, which may always read it:
/// `IBV_ACCESS_LOCAL_WRITE` and `IBV_ACCESS_REMOTE_WRITE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// This process' requests read it.
    Read = 0,
    /// Messages are received in it.
    Receive = 1,
    /// Peers that have its key write there.
    PeersWrite = 1 | 2,
}

/// A protection domain, freed when dropped.
#[derive(Debug)]
pub struct Domain {
    device: Device,
    pd: *mut Pd,
}

// SAFETY: libibverbs allows calls on a domain from any thread, also at once.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// One of `device`.
    ///
    /// # Errors
    /// `System` if the device has no more.
    pub fn new(device: Device) -> Result<Arc<Domain>> {
        // SAFETY: an opened device.
        let pd = unsafe { (device.verbs.table.alloc_pd)(device.context) };
        if pd.is_null() {
            return Err(device.verbs.failure("alloc_pd"));
        }
        let domain = Domain { device, pd };
        super::unblock(domain.events())?;
        Ok(Arc::new(domain))
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn pd(&self) -> *mut Pd {
        self.pd
    }

    /// Registers `region`, whose pages stay in memory until the result is dropped.
    ///
    /// # Errors
    /// `System` if they cannot be locked, or the device cannot reach them.
    pub fn register(self: &Arc<Domain>, region: Region, access: Access) -> Result<Registered> {
        let verbs = self.device.verbs;
        // SAFETY: the memory is valid as long as the region is used (its maker's promise), which
        // `Registered` does; the device accesses it by address and never beyond its length.
        let mr = unsafe {
            let start = region.address().cast();
            (verbs.table.reg_mr)(self.pd, start, region.bytes(), access as i32)
        };
        if mr.is_null() {
            return Err(verbs.failure("reg_mr"));
        }
        // SAFETY: the library's new registration, which it does not change.
        let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
        Ok(Registered {
            domain: self.clone(),
            mr,
            lkey,
            rkey,
            region,
        })
    }

    /// The descriptor that becomes readable when the device has something to tell.
    pub fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the device's own descriptor, open as long as the device.
        unsafe { BorrowedFd::borrow_raw((*self.device.context).async_fd) }
    }

    /// What the device tells next, with verbs' number; nothing if there is nothing. The descriptor
    /// of events does not block.
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
        // SAFETY: made once; all that was made of it held it, and is gone.
        unsafe { (self.device.verbs.table.dealloc_pd)(self.pd) };
    }
}

/// Registered memory, until it is dropped: from then on no peer's write changes it.
#[derive(Debug)]
pub struct Registered {
    domain: Arc<Domain>,
    mr: *mut Mr,
    lkey: u32,
    rkey: u32,
    region: Region,
}

// SAFETY: as for `Domain`.
unsafe impl Send for Registered {}

impl Registered {
    /// The key for this process' requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for peers'.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The memory.
    pub fn region(&self) -> Region {
        self.region
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.domain.device.is_inherited() {
            return;
        }
        // SAFETY: registered once.
        unsafe { (self.domain.device.verbs.table.dereg_mr)(self.mr) };
    }
}
