//! The user's handle to memory that a rank has registered with a communicator.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::Hold;
use super::child_view::ChildView;
use super::mapping::Mapping;
use super::remapped::Remapped;
use super::shared::{SharedMemory, check_plausible, in_pages};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::region::Region;
use crate::sys::fork;

/// Zeroed, page-aligned memory made by [`Communicator::alloc`](crate::Communicator::alloc), which
/// peers on this host can access in a call.
///
/// Use the memory as slices of any [`Element`] type, or as a region. The memory is this rank's own:
/// peers access it only in calls that use it, and only as defined by those calls. (After a failed
/// call, a peer may still finish a write for a moment; the contents are then undefined.)
///
/// Dropping this value frees the memory at once, on this rank alone, and waits for nothing; the
/// other ranks' parts stay. The value may be dropped before or after its communicator. A forked
/// child sees the contents at the same addresses, but shares nothing: its writes are private, and
/// memory that it has not written shows later writes to the original.
#[derive(Debug)]
pub struct Registered {
    // Dropped before the memory.
    hold: Option<Hold>,
    region: Region,
    sizes: Vec<usize>,
    memory: BackingMemory,
}

#[derive(Debug)]
enum BackingMemory {
    Shared(Arc<Own>),
    Private(#[allow(dead_code, reason = "held, not read")] Mapping),
}

/// This rank's own part of a registration. Dropping the last reference frees the memory, or moves
/// the user's buffer back to private memory.
#[derive(Debug)]
pub struct Own {
    file: SharedMemory,
    /// The user's buffer whose pages were moved into the file, if the registration is of a buffer.
    remapped: Option<Remapped>,
    /// The forked children's view of the memory.
    child_view: Option<ChildView>,
    /// Whether the pages stay as long as a peer has them mapped.
    is_left_to_peers: AtomicBool,
    /// The process that made this value: a forked child has only a view of the contents.
    process: u32,
}

impl Own {
    /// Makes the part in the memory of `file`, or in the buffer of `remapped`.
    pub fn new(file: SharedMemory, remapped: Option<Remapped>) -> Own {
        Own {
            file,
            remapped,
            child_view: None,
            is_left_to_peers: AtomicBool::new(false),
            process: std::process::id(),
        }
    }

    /// Returns all of the file's data, as mapped in this process.
    pub fn file(&self) -> Region {
        self.file.data()
    }

    /// Whether this process made the value, rather than inherited it by a fork.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Maps the file, whose descriptor is `fd`, in place of the user's buffer, if there is one.
    /// Forked children find the contents at the same addresses, without sharing them.
    pub fn take_place(&mut self, fd: OwnedFd) -> Result<()> {
        let (region, offset) = match &self.remapped {
            Some(remapped) => remapped.interior(),
            None => (self.file(), 0),
        };
        if region.is_empty() {
            return Ok(());
        }
        let refused = |error: std::io::Error| {
            let what = format!("cannot map {} bytes of registered memory", region.bytes());
            Error::system(what, error)
        };
        let is_remapped = self.remapped.is_some();
        let pages = is_remapped.then(|| Mapping::unshared(&fd, region.bytes(), offset));
        let pages = pages.transpose().map_err(refused)?;
        let held_off = fork::hold_off().map_err(refused)?;
        self.child_view = Some(ChildView::new(region, fd, offset, &held_off));
        if let (Some(remapped), Some(pages)) = (&mut self.remapped, pages) {
            remapped.remap(pages)?;
            drop(held_off);
            remapped.populate()?;
        }
        Ok(())
    }

    /// Returns the offset of `buffer` in the file, if all of `buffer` lies in this memory.
    pub fn offset(&self, buffer: Region) -> Option<usize> {
        let is_here = match &self.remapped {
            Some(remapped) => remapped.buffer().contains(buffer) && remapped.is_in_place(buffer),
            None => self.file().contains(buffer),
        };
        is_here.then(|| match &self.remapped {
            Some(remapped) => remapped.offset(buffer),
            None => buffer.address() as usize - self.file().address() as usize,
        })
    }

    /// Updates the file from `buffer`, all of which lies in this memory.
    pub fn sync_to_file(&self, buffer: Region) {
        if let Some(remapped) = &self.remapped {
            remapped.sync_to_file(buffer, self.file());
        }
    }

    /// Updates `buffer` from the file, if all of `buffer` lies in this memory.
    pub fn sync_from_file(&self, buffer: Region) {
        if let Some(remapped) = &self.remapped
            && remapped.buffer().contains(buffer)
        {
            remapped.sync_from_file(buffer, self.file());
        }
    }

    /// Moves the user's buffer back, and ends the view. Returns whether no child has a view.
    fn leave_place(&mut self) -> std::io::Result<bool> {
        let copy = self
            .remapped
            .as_ref()
            .map(Remapped::copy_back)
            .transpose()?;
        let held_off = fork::hold_off()?;
        if let Some(remapped) = &mut self.remapped {
            remapped.restore(copy.flatten(), self.file.data())?;
        }
        let view = self.child_view.take();
        Ok(view.is_none_or(|view| view.withdraw(&held_off)))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        self.file.announce_release();
        match self.leave_place() {
            Ok(is_nowhere) => {
                // Relaxed: the setter's reference to this value was dropped before.
                let is_left = self.is_left_to_peers.load(Ordering::Relaxed);
                // Children with a view keep the pages as long as they live.
                if is_nowhere && !is_left {
                    self.file.free();
                }
            }
            Err(error) => {
                // Children continue to get a view of the memory.
                std::mem::forget(self.child_view.take());
                log::warn!(
                    target: "ringfold::transport",
                    "a registered buffer cannot be moved back, and stays shared memory: {error}"
                );
            }
        }
    }
}

/// Maps at least `bytes` zeroed bytes that no other process can access: page-aligned, on huge pages
/// if the kernel has them, and on memory node `node` if given.
pub fn private_memory(bytes: usize, node: Option<usize>) -> Result<Mapping> {
    check_plausible(bytes)?;
    let refused = |error: Errno| {
        let what = format!("cannot allocate {bytes} bytes of memory; request less");
        Error::system(what, error)
    };
    let whole = in_pages(bytes.max(1)).ok_or_else(|| refused(Errno::NOMEM))?;
    let mapping = Mapping::anonymous(whole).map_err(refused)?;
    mapping.advise_huge_pages();
    if let Some(node) = node {
        mapping.prefer_node(node);
    }
    match mapping.populate(mapping.region()) {
        // Kernels before 5.14 cannot populate: only the first use is slower.
        Ok(()) | Err(Errno::INVAL) => Ok(mapping),
        Err(error) => Err(refused(error)),
    }
}

impl Registered {
    /// Makes a handle to the first `bytes` bytes of `own`, which the peers have mapped.
    pub(crate) fn shared(own: Arc<Own>, bytes: usize, sizes: Vec<usize>) -> Registered {
        Registered {
            hold: None,
            region: own.file().part(0..bytes),
            sizes,
            memory: BackingMemory::Shared(own),
        }
    }

    /// Makes a handle to the first `bytes` bytes of `private`, if there are no peers to share with.
    pub(crate) fn private(private: Mapping, bytes: usize, sizes: Vec<usize>) -> Registered {
        Registered {
            hold: None,
            region: private.region().part(0..bytes),
            sizes,
            memory: BackingMemory::Private(private),
        }
    }

    /// Attaches `hold`, which is dropped before the memory.
    pub(crate) fn keep(&mut self, hold: Option<Hold>) {
        self.hold = hold;
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        self.region.bytes()
    }

    /// Keeps the pages and their contents as long as a peer has them mapped. Otherwise the pages
    /// are freed with this value, and a peer that still reads them finds zeros.
    pub(crate) fn leave_to_peers(&self) {
        if let BackingMemory::Shared(own) = &self.memory {
            // Pairs with the load in the drop of the last reference.
            own.is_left_to_peers.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the size that each rank requested, in bytes.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Whether peers can access the memory. Otherwise it is ordinary memory.
    pub fn is_shared(&self) -> bool {
        matches!(self.memory, BackingMemory::Shared(_))
    }

    /// Returns the memory as a region, for [`Request`](crate::Request)s. The region is valid until
    /// this value is dropped.
    pub fn region(&self) -> Region {
        self.region
    }

    /// Returns the memory as elements, without bytes at the end that make no whole element.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        let count = self.bytes() / size_of::<T>();
        if count == 0 {
            return &[];
        }
        // SAFETY: valid for `bytes` as long as `self`, aligned to a page, any bytes are elements,
        // and nothing is written while `self` is borrowed: this process writes by `as_mut_slice`,
        // and peers in calls, which borrow what they fill.
        unsafe { std::slice::from_raw_parts(self.region.address().cast(), count) }
    }

    /// Returns the memory as mutable elements, like `as_slice`.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        let count = self.bytes() / size_of::<T>();
        if count == 0 {
            return &mut [];
        }
        // SAFETY: as in `as_slice`; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.region.address().cast(), count) }
    }
}
