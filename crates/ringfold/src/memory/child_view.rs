//! A forked child's view of registered memory: the same contents at the same addresses, in pages
//! that are private to the child.
//!
//! The pages are shared with the peers, so a child must not inherit them: its writes would reach
//! other ranks. The kernel leaves their mappings out of the child (`MADV_DONTFORK`), and a handler
//! (`pthread_atfork`) maps the files again at the same addresses, copy-on-write. So a child may
//! read and write. A page that the child has not written shows later writes of the parent and its
//! peers: it is a view, not a snapshot. A snapshot would copy all registered memory at every fork,
//! and most children (data loaders) never access it. A child made without the C library's `fork`
//! has nothing mapped at these addresses.
//!
//! # Invariants
//!
//! * The handler runs while other threads are stopped at any point: it takes no lock and allocates
//!   nothing. Entries are never freed, only reused, and an entry is live from the store of its
//!   address to the store of 0.
//! * Forks are [held off](crate::sys::fork) while an entry becomes live and the memory moves to the
//!   file's pages, and while both are undone. So a child has both or neither.
//! * Every fork is counted, so [`ChildView::withdraw`] knows whether any child may have a view.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::region::Region;
use crate::sys::fork::{Duty, NoFork};

/// A reusable record of a mapping of a file.
#[derive(Debug)]
struct MappingRecord {
    is_taken: AtomicBool,
    /// Start of the mapping; 0 while the entry is not live.
    address: AtomicUsize,
    bytes: AtomicUsize,
    fd: AtomicI32,
    offset: AtomicU64,
    next: *const MappingRecord,
}

// SAFETY: all fields but `next` are atomics, and `next` is written before the entry is published,
// never afterwards.
unsafe impl Sync for MappingRecord {}

static ENTRIES: AtomicPtr<MappingRecord> = AtomicPtr::new(ptr::null_mut());

/// Memory of which forked children have a view, until the view is withdrawn.
#[derive(Debug)]
pub struct ChildView {
    entry: &'static MappingRecord,
    /// The file, kept open because the handler maps it.
    _file: OwnedFd,
    /// Number of forks before the entry was live.
    forks: u64,
}

impl ChildView {
    /// Maps `file`, from `offset` on, at `region` in every child forked from now on. The region is
    /// a mapping of that file, begins and ends at a page boundary, and is excluded from children by
    /// the kernel.
    pub fn new(region: Region, file: OwnedFd, offset: usize, held_off: &NoFork) -> ChildView {
        held_off.in_child(Duty::Memory, show);
        let entry = take_entry();
        entry.bytes.store(region.bytes(), Ordering::Relaxed);
        entry.fd.store(file.as_raw_fd(), Ordering::Relaxed);
        entry.offset.store(offset as u64, Ordering::Relaxed);
        // No fork is in progress, so a child sees either the whole entry or none.
        (entry.address).store(region.address() as usize, Ordering::Relaxed);
        ChildView {
            entry,
            _file: file,
            forks: held_off.forks(),
        }
    }

    /// Ends the view for children forked from now on. Returns whether no child has the view, so
    /// that the pages may be freed. A child never calls `withdraw`: it has no such entries.
    pub fn withdraw(self, held_off: &NoFork) -> bool {
        self.entry.address.store(0, Ordering::Relaxed);
        // Pairs with the exchange in `take_entry`.
        self.entry.is_taken.store(false, Ordering::Release);
        held_off.forks() == self.forks
    }
}

fn entries() -> impl Iterator<Item = &'static MappingRecord> {
    // Pairs with the exchange in `take_entry`, also for the entries behind the first.
    let mut next = ENTRIES.load(Ordering::Acquire).cast_const();
    std::iter::from_fn(move || {
        // SAFETY: entries are leaked boxes, published whole.
        let entry = unsafe { next.as_ref() }?;
        next = entry.next;
        Some(entry)
    })
}

/// Takes a free entry, or makes one.
fn take_entry() -> &'static MappingRecord {
    let take = |entry: &&MappingRecord| {
        // Pairs with the store in `withdraw`.
        let taken =
            (entry.is_taken).compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    };
    if let Some(entry) = entries().find(take) {
        return entry;
    }
    let entry = Box::leak(Box::new(MappingRecord {
        is_taken: AtomicBool::new(true),
        address: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        fd: AtomicI32::new(-1),
        offset: AtomicU64::new(0),
        next: ptr::null(),
    }));
    loop {
        let first = ENTRIES.load(Ordering::Relaxed);
        entry.next = first;
        // Pairs with the load in `entries`.
        let pushed = ENTRIES.compare_exchange(first, entry, Ordering::Release, Ordering::Relaxed);
        if pushed.is_ok() {
            return entry;
        }
    }
}

/// Maps all live entries in this process, a child that was just forked.
fn show() {
    for entry in entries() {
        // Cleared: a child of this child inherits the view itself.
        let address = entry.address.swap(0, Ordering::Relaxed);
        if address != 0 {
            view(entry, address);
            entry.is_taken.store(false, Ordering::Release);
        }
    }
}

/// Maps an entry's file at its address.
fn view(entry: &MappingRecord, address: usize) {
    let bytes = entry.bytes.load(Ordering::Relaxed);
    let offset = entry.offset.load(Ordering::Relaxed);
    // SAFETY: the entry's owner keeps the descriptor open until it is withdrawn, and the child has
    // a copy of it.
    let file = unsafe { BorrowedFd::borrow_raw(entry.fd.load(Ordering::Relaxed)) };
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let place = ptr::with_exposed_provenance_mut(address);
    // SAFETY: the range was registered memory in the parent, and the kernel replaces no newer
    // mapping there: it fails then, as it does without memory, and the child's memory stays as is.
    let _ = unsafe { mmap(place, bytes, protection, flags, file, offset) };
}
