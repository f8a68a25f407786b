//! What a forked child finds at the addresses of registered memory: its contents, in pages that are
//! private to the child.
//!
//! The pages are shared with the peers, so a child must not have them: what it writes would reach
//! other ranks. The kernel leaves their mappings out of the child (`MADV_DONTFORK`), and a handler
//! (`pthread_atfork`) maps the files again at the same addresses, copy-on-write. So a child may
//! read and write. A page that it has not written to shows what the parent and its peers write
//! there later: it is a view, not a snapshot, because a snapshot would copy all registered memory
//! at every fork, and most children (data loaders) never look at it. A child that was made without
//! the C library's `fork` has nothing at these addresses.
//!
//! # Invariants
//!
//! * The handler runs where other threads were stopped anywhere: it takes no lock and allocates
//!   nothing. Entries are never freed, only used again, and an entry is live from the store of its
//!   address to the store of 0.
//! * An entry becomes live, and the memory is moved to the file's pages, while forks are
//!   [held off](crate::sys::fork); likewise back. So a child has both or neither.
//! * Every fork is counted, so [`ChildView::withdraw`] knows whether any child may have a view.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::region::Region;
use crate::sys::fork::{Duty, NoFork};

/// A place for a mapping of a file.
#[derive(Debug)]
struct Entry {
    is_taken: AtomicBool,
    /// 0 while the entry is not live.
    address: AtomicUsize,
    bytes: AtomicUsize,
    fd: AtomicI32,
    offset: AtomicU64,
    next: *const Entry,
}

// SAFETY: all fields but `next` are atomics, and `next` is written before the entry is published,
// never afterwards.
unsafe impl Sync for Entry {}

static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

/// Memory that forked children get a view of, until it is withdrawn.
#[derive(Debug)]
pub struct ChildView {
    entry: &'static Entry,
    /// The handler maps it.
    _file: OwnedFd,
    /// Forks before there was the entry.
    forks: u64,
}

impl ChildView {
    /// Has children made from now on find at `region` the contents of `file` from `offset` on. The
    /// region is a mapping of that file, begins and ends with a page, and is kept from children by
    /// the kernel.
    pub fn new(region: Region, file: OwnedFd, offset: usize, held_off: &NoFork) -> ChildView {
        held_off.in_child(Duty::Memory, show);
        let entry = take_entry();
        entry.bytes.store(region.bytes(), Ordering::Relaxed);
        entry.fd.store(file.as_raw_fd(), Ordering::Relaxed);
        entry.offset.store(offset as u64, Ordering::Relaxed);
        // A child sees all of it or, before, nothing: no fork is under way.
        (entry.address).store(region.address() as usize, Ordering::Relaxed);
        ChildView {
            entry,
            _file: file,
            forks: held_off.forks(),
        }
    }

    /// Children made from now on do not get it. Gives whether no child has it, so that its pages
    /// may be freed. Never called in a child, which has no such entries.
    pub fn withdraw(self, held_off: &NoFork) -> bool {
        self.entry.address.store(0, Ordering::Relaxed);
        // Pairs with the exchange in `take_entry`.
        self.entry.is_taken.store(false, Ordering::Release);
        held_off.forks() == self.forks
    }
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    // Pairs with the exchange in `take_entry`, also for the entries behind the first.
    let mut next = ENTRIES.load(Ordering::Acquire).cast_const();
    std::iter::from_fn(move || {
        // SAFETY: entries are leaked boxes, published whole.
        let entry = unsafe { next.as_ref() }?;
        next = entry.next;
        Some(entry)
    })
}

/// A free entry, or a new one.
fn take_entry() -> &'static Entry {
    let take = |entry: &&Entry| {
        // Pairs with the store in `withdraw`.
        let taken =
            (entry.is_taken).compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    };
    if let Some(entry) = entries().find(take) {
        return entry;
    }
    let entry = Box::leak(Box::new(Entry {
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

/// Has this process, a child that was forked just now, find all there is to find.
fn show() {
    for entry in entries() {
        // Taken out: a child of this child inherits the view itself.
        let address = entry.address.swap(0, Ordering::Relaxed);
        if address != 0 {
            view(entry, address);
            entry.is_taken.store(false, Ordering::Release);
        }
    }
}

/// Maps an entry's file at its address.
fn view(entry: &Entry, address: usize) {
    let bytes = entry.bytes.load(Ordering::Relaxed);
    let offset = entry.offset.load(Ordering::Relaxed);
    // SAFETY: the entry's owner keeps the descriptor open until it is withdrawn, and the child has
    // a copy of it.
    let file = unsafe { BorrowedFd::borrow_raw(entry.fd.load(Ordering::Relaxed)) };
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let place = ptr::with_exposed_provenance_mut(address);
    // SAFETY: the range was registered memory in the parent, and the kernel replaces nothing that
    // came to lie there since: it fails then, as it does for want of memory, and the child has what
    // it has without this.
    let _ = unsafe { mmap(place, bytes, protection, flags, file, offset) };
}
