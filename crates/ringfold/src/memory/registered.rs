//! Memory that a rank has registered with a communicator, as its user holds it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::Hold;
use super::child_view::ChildView;
use super::mapping::Mapping;
use super::region::Region;
use super::remapped::Remapped;
use super::shared::{Shared, check_plausible, in_pages};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::sys::fork;

/// Zeroed memory made by [`Communicator::alloc`](crate::Communicator::alloc), page-aligned, whose
/// peers on this host can reach it in a call.
///
/// Use it by slices of any [`Element`] type, or as a region. It is this rank's own: peers touch it
/// only in calls that it is given to, and only as these say. (After a call that failed a peer may
/// still write for a moment what it had begun; the contents are undefined then.)
///
/// Dropping it gives the memory back at once and waits for nothing, on this rank alone; the other
/// ranks' parts stay. It may be dropped before or after its communicator. A forked child finds the
/// contents there, but shares nothing: what it writes is its own, and what it has not written shows
/// what is written here later.
#[derive(Debug)]
pub struct Registered {
    // Goes before the memory.
    hold: Option<Hold>,
    region: Region,
    sizes: Vec<usize>,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Shared(Arc<Own>),
    Private(#[allow(dead_code, reason = "held, not read")] Mapping),
}

/// This rank's own part of a registration. With the last of it the memory goes, or is moved back to
/// where it was.
#[derive(Debug)]
pub struct Own {
    file: Shared,
    /// The user's memory whose pages are the file's, if it was there before.
    remapped: Option<Remapped>,
    /// What forked children get a view of.
    child_view: Option<ChildView>,
    /// Whether the pages stay as long as a peer has them mapped.
    is_left_to_peers: AtomicBool,
    /// The process that made it: a forked child has a view of the contents, and none of the rest.
    process: u32,
}

impl Own {
    /// Memory in `file`, or that of `remapped`.
    pub fn new(file: Shared, remapped: Option<Remapped>) -> Own {
        Own {
            file,
            remapped,
            child_view: None,
            is_left_to_peers: AtomicBool::new(false),
            process: std::process::id(),
        }
    }

    /// All of the file's data, as this process has it mapped.
    pub fn file(&self) -> Region {
        self.file.data()
    }

    /// Whether this process made it, and was not forked since.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Maps the file, whose descriptor is `fd`, in the place of memory that was there before, and
    /// has forked children find the contents at the same addresses, without sharing them.
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

    /// Where in the file `buffer` lies, if it lies whole in this memory.
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

    /// Brings the file up to date with `buffer`, which lies whole in this memory.
    pub fn sync_to_file(&self, buffer: Region) {
        if let Some(remapped) = &self.remapped {
            remapped.sync_to_file(buffer, self.file());
        }
    }

    /// Brings `buffer`, if it lies whole in this memory, up to date with the file.
    pub fn sync_from_file(&self, buffer: Region) {
        if let Some(remapped) = &self.remapped
            && remapped.buffer().contains(buffer)
        {
            remapped.sync_from_file(buffer, self.file());
        }
    }

    /// Moves memory that was there before back; whether no child has a view of the file.
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
                // Relaxed: its setter held this, and gave it up before.
                let is_left = self.is_left_to_peers.load(Ordering::Relaxed);
                // Children that look at the pages keep them, as long as they live.
                if is_nowhere && !is_left {
                    self.file.free();
                }
            }
            Err(error) => {
                // Children go on to get their view of it.
                std::mem::forget(self.child_view.take());
                log::warn!(
                    target: "ringfold::transport",
                    "a registered buffer cannot be moved back, and stays shared memory: {error}"
                );
            }
        }
    }
}

/// At least `bytes` zeroed bytes that no other process can reach, page-aligned, on huge pages where
/// the kernel has them, and of memory node `node` where one is given.
pub fn private_memory(bytes: usize, node: Option<usize>) -> Result<Mapping> {
    check_plausible(bytes)?;
    let refused = |error: Errno| {
        let what = format!("cannot get {bytes} bytes of memory; ask for less");
        Error::system(what, error)
    };
    let whole = in_pages(bytes.max(1)).ok_or_else(|| refused(Errno::NOMEM))?;
    let mapping = Mapping::anonymous(whole).map_err(refused)?;
    mapping.advise_huge_pages();
    if let Some(node) = node {
        mapping.prefer_node(node);
    }
    match mapping.populate(mapping.region()) {
        // Kernels before 5.14 lack it: the first use is then slower, nothing else.
        Ok(()) | Err(Errno::INVAL) => Ok(mapping),
        Err(error) => Err(refused(error)),
    }
}

impl Registered {
    /// The first `bytes` bytes of `own`, which the peers have mapped.
    pub(crate) fn shared(own: Arc<Own>, bytes: usize, sizes: Vec<usize>) -> Registered {
        Registered {
            hold: None,
            region: own.file().part(0..bytes),
            sizes,
            memory: Memory::Shared(own),
        }
    }

    /// The first `bytes` bytes of `private`, where there are no peers to share with.
    pub(crate) fn private(private: Mapping, bytes: usize, sizes: Vec<usize>) -> Registered {
        Registered {
            hold: None,
            region: private.region().part(0..bytes),
            sizes,
            memory: Memory::Private(private),
        }
    }

    /// Has `hold` go before the memory.
    pub(crate) fn keep(&mut self, hold: Option<Hold>) {
        self.hold = hold;
    }

    /// The length in bytes.
    pub fn bytes(&self) -> usize {
        self.region.bytes()
    }

    /// Has the pages, and what they hold, stay as long as a peer has them mapped. Otherwise they go
    /// with this value, and a peer that still looks finds zeros.
    pub(crate) fn leave_to_peers(&self) {
        if let Memory::Shared(own) = &self.memory {
            // Partner: the load when the last of it is dropped.
            own.is_left_to_peers.store(true, Ordering::Relaxed);
        }
    }

    /// What each rank asked for, in bytes.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Whether the peers can reach it. Otherwise it is memory like any other.
    pub fn is_shared(&self) -> bool {
        matches!(self.memory, Memory::Shared(_))
    }

    /// The memory as a region, for [`Request`](crate::Request)s. It is valid until this value is
    /// dropped.
    pub fn region(&self) -> Region {
        self.region
    }

    /// The memory as elements; bytes at the end that make no whole element are left out.
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

    /// Like `as_slice`, to be written.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        let count = self.bytes() / size_of::<T>();
        if count == 0 {
            return &mut [];
        }
        // SAFETY: as in `as_slice`; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.region.address().cast(), count) }
    }
}
