//! Descriptors that a forked child does not share.
//!
//! A connection ends for the peer when its last descriptor is closed. A child forked without `exec`
//! (a data loader's worker, for example) has copies of all descriptors, so a killed parent would
//! look alive until the child ends, too. `close-on-exec` does not help, and Linux has no flag for
//! forks. So the numbers are listed here, and the child replaces each by an unconnected socket. The
//! number stays taken, so the child may drop its copy of a value that owns it.
//!
//! # Invariants
//!
//! * A number is listed as long as it is open, as far as a fork can see: forks are
//!   [held off](super::fork) from the making of a descriptor to its listing, and while a value is
//!   removed from the list and closed.
//! * The child makes only system calls that are safe after a fork, takes no lock and allocates
//!   nothing.
//!
//! # What it does not do
//!
//! A process made by the bare system call `clone`, which runs no handlers, shares all descriptors.
//! For children that `exec`, there is close-on-exec.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use super::fork::{self, Duty, NoFork};

/// The value of a place in the list without a number.
const FREE: RawFd = -1;

/// Number of places in a block: 256 bytes with the pointer, and enough for most processes.
const BLOCK_PLACES: usize = 62;

/// A part of the list, which only grows.
struct DescriptorBlock {
    places: [AtomicI32; BLOCK_PLACES],
    /// The next block, which is leaked, or null.
    next: AtomicPtr<DescriptorBlock>,
}

static LIST: DescriptorBlock = DescriptorBlock::new();

/// A descriptor that forked children do not share: in a child, its number is an unconnected socket.
#[derive(Debug)]
pub struct Unshared {
    /// Dropped first: removed from the list before the descriptor is closed.
    listed: Listed,
    fd: OwnedFd,
    /// Dropped last: holds off forks while the descriptor is closed.
    closing: Option<NoFork>,
}

impl Unshared {
    /// Keeps children from sharing `fd`, which was made while forks were held off.
    pub fn new(fd: OwnedFd, held_off: &NoFork) -> Unshared {
        held_off.in_child(Duty::Descriptors, replace_all);
        Unshared {
            listed: Listed::new(fd.as_raw_fd()),
            fd,
            closing: None,
        }
    }

    /// Wraps a test's socket, which children do not share from now on.
    #[cfg(test)]
    pub fn adopt(socket: impl Into<OwnedFd>) -> Unshared {
        Unshared::make(|| Ok(socket.into())).expect("no fork hangs")
    }

    /// Makes a descriptor that children never share. `make` does not block.
    pub fn make(make: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<Unshared> {
        let held_off = fork::hold_off()?;
        Ok(Unshared::new(make()?, &held_off))
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        debug_assert_eq!(self.listed.number, self.fd.as_raw_fd());
        // If this fails, a child that is forked at this moment keeps a copy.
        self.closing = fork::hold_off().ok();
    }
}

impl AsFd for Unshared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A number on the list.
#[derive(Debug)]
struct Listed {
    place: &'static AtomicI32,
    number: RawFd,
}

impl Listed {
    fn new(number: RawFd) -> Listed {
        let take = |place: &AtomicI32| {
            // Relaxed, here and below: the numbers are independent, and a child has its own copy of
            // the list, which no other process changes.
            let taken = place.compare_exchange(FREE, number, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok()
        };
        let mut block = &LIST;
        loop {
            if let Some(place) = block.places.iter().find(|place| take(place)) {
                return Listed { place, number };
            }
            block = block.next_or_new();
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        // In a child, the place is free already, and may hold another number.
        let _ =
            self.place
                .compare_exchange(self.number, FREE, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl DescriptorBlock {
    const fn new() -> DescriptorBlock {
        DescriptorBlock {
            places: [const { AtomicI32::new(FREE) }; BLOCK_PLACES],
            next: AtomicPtr::new(null_mut()),
        }
    }

    fn next(&self) -> Option<&'static DescriptorBlock> {
        // Pairs with the exchange in `next_or_new`.
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: null, or from the leaked box below, which is never freed.
        unsafe { next.as_ref() }
    }

    fn next_or_new(&self) -> &'static DescriptorBlock {
        if let Some(next) = self.next() {
            return next;
        }
        let new = Box::into_raw(Box::new(DescriptorBlock::new()));
        // Pairs with the load in `next`.
        let (done, failed) = (Ordering::Release, Ordering::Acquire);
        let before = self.next.compare_exchange(null_mut(), new, done, failed);
        let next = match before {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: made above, and not visible to any other thread yet.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
        // SAFETY: not null, and leaked.
        unsafe { &*next }
    }
}

/// Replaces all listed descriptors, in a child, whose only thread this is.
fn replace_all() {
    let mut blank = FREE;
    let mut block = Some(&LIST);
    while let Some(DescriptorBlock { places, .. }) = block {
        for place in places {
            // Removed from the list: from now on, this number is the child's own.
            let number = place.swap(FREE, Ordering::Relaxed);
            if number != FREE {
                blank = replace(number, blank);
            }
        }
        block = block.and_then(DescriptorBlock::next);
    }
}

/// Replaces `number` by a copy of `blank`, or by a new blank if there is none. Returns the blank.
fn replace(number: RawFd, blank: RawFd) -> RawFd {
    if blank != FREE {
        // SAFETY: numbers only. The descriptor that `number` named is closed for this process,
        // which owns it by a copied value.
        unsafe { libc::dup3(blank, number, libc::O_CLOEXEC) };
        return blank;
    }
    // Closed first, so that a process at its limit of descriptors has a free number.
    // SAFETY: as above; the number is taken again at once.
    unsafe { libc::close(number) };
    // SAFETY: no memory is involved.
    let new = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if new != number && new >= 0 {
        // SAFETY: `new` was made above, and `number` is free.
        unsafe { libc::dup3(new, number, libc::O_CLOEXEC) };
        // SAFETY: made above, and not used afterwards.
        unsafe { libc::close(new) };
        return number;
    }
    new.max(FREE)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    const WATCHDOG: std::time::Duration = std::time::Duration::from_secs(120);

    /// Forks a child that lives until a byte arrives at `hold`, and returns its process id.
    fn fork_child(hold: &UnixStream) -> rustix::process::Pid {
        // SAFETY: the child makes system calls only.
        match unsafe { libc::fork() } {
            0 => {
                let mut byte = 0_u8;
                // SAFETY: one byte of the stack; the descriptor is open.
                unsafe { libc::read(hold.as_raw_fd(), (&raw mut byte).cast(), 1) };
                // SAFETY: ends the child, whose memory is not shared.
                unsafe { libc::_exit(0) }
            }
            pid => rustix::process::Pid::from_raw(pid).expect("a child"),
        }
    }

    #[test]
    fn a_connection_ends_although_a_child_lives_on() {
        let (hold, mut release) = UnixStream::pair().expect("sockets");
        // More than one block has places for.
        let pairs: Vec<_> = (0..2 * BLOCK_PLACES)
            .map(|_| UnixStream::pair().expect("sockets"))
            .collect();
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs
            .into_iter()
            .map(|(ours, theirs)| (Unshared::adopt(ours), theirs))
            .unzip();
        let child = fork_child(&hold);
        drop(ours);
        for mut end in theirs {
            // Without an end, the test fails instead of waiting forever.
            end.set_read_timeout(Some(WATCHDOG)).expect("a socket");
            assert_eq!(end.read(&mut [0]).expect("an end"), 0);
        }
        release.write_all(&[0]).expect("the child reads");
        let ended = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
        ended.expect("a child of our own");
    }
}
