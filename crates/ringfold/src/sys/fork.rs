//! Descriptors that a forked child does not share.
//!
//! A connection ends for the peer when its last descriptor is closed. A child that was forked
//! without `exec` (a data loader's worker, for example) has copies of all of them, so that a parent
//! which is killed would look alive until the child ends, too. `close-on-exec` does not help, and
//! Linux has no flag for forks. So the numbers are listed here, and the child replaces each by a
//! socket that is connected to nothing: the number stays taken, hence the child's copy of a value
//! that owns it may be dropped as ever.
//!
//! # Invariants
//!
//! * A number is listed only while it is open: a value is struck off before its descriptor is
//!   closed.
//! * The child makes system calls only that are safe after a fork, takes no lock and allocates
//!   nothing.
//!
//! # What it does not do
//!
//! A fork at the moment between the making of a descriptor and its listing is not seen, and neither
//! is a process that was made by the bare system call `clone`, for which no handlers run.
//! Children that `exec` have close-on-exec.

use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// A place in the list that has no number.
const FREE: RawFd = -1;

/// Places of a block: with the pointer a page's fraction, and enough for most processes.
const BLOCK_PLACES: usize = 62;

/// A part of the list, which only grows.
struct Block {
    places: [AtomicI32; BLOCK_PLACES],
    /// A leaked block, or null.
    next: AtomicPtr<Block>,
}

static LIST: Block = Block::new();

/// A value whose descriptor a forked child does not share: there its number stands for a socket
/// without a connection.
#[derive(Debug)]
pub struct Unshared<T: AsFd> {
    /// Stands first, because it is dropped first.
    listed: Listed,
    value: T,
}

impl<T: AsFd> Unshared<T> {
    /// From now on children do not share it.
    pub fn new(value: T) -> Unshared<T> {
        Unshared {
            listed: Listed::new(value.as_fd().as_raw_fd()),
            value,
        }
    }

    /// The value, which children share again.
    pub fn into_inner(self) -> T {
        let Unshared { listed, value } = self;
        drop(listed);
        value
    }
}

impl<T: AsFd> Deref for Unshared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: AsFd> AsFd for Unshared<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.value.as_fd()
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
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: the handler lives as long as this library, which is never unloaded, and is
            // safe after a fork.
            let refused = unsafe { libc::pthread_atfork(None, None, Some(unshare)) };
            if refused != 0 {
                log::warn!(target: "ringfold::init", "forked children will share this process' \
                    connections");
            }
        });
        let take = |place: &AtomicI32| {
            // Independent numbers, here and below: a child has its own copy of the list, which no
            // other process changes.
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
        // In a child the place is free already, and may have been given to another number.
        let _ =
            self.place
                .compare_exchange(self.number, FREE, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Block {
    const fn new() -> Block {
        Block {
            places: [const { AtomicI32::new(FREE) }; BLOCK_PLACES],
            next: AtomicPtr::new(null_mut()),
        }
    }

    fn next(&self) -> Option<&'static Block> {
        // Pairs with the exchange in `next_or_new`.
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: null, or from the leaked box below, which is never freed.
        unsafe { next.as_ref() }
    }

    fn next_or_new(&self) -> &'static Block {
        if let Some(next) = self.next() {
            return next;
        }
        let new = Box::into_raw(Box::new(Block::new()));
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

/// Replaces all that is listed, in a child, whose only thread this is.
extern "C" fn unshare() {
    let mut blank = FREE;
    let mut block = Some(&LIST);
    while let Some(Block { places, .. }) = block {
        for place in places {
            // Struck off: whatever this number stands for later is the child's own.
            let number = place.swap(FREE, Ordering::Relaxed);
            if number != FREE {
                blank = replace(number, blank);
            }
        }
        block = block.and_then(Block::next);
    }
}

/// Makes `number` a copy of `blank`, which is made in its place if there is none; gives the blank.
fn replace(number: RawFd, blank: RawFd) -> RawFd {
    if blank != FREE {
        // SAFETY: numbers only. What `number` stood for is closed for this process, which owns it
        // by a copied value.
        unsafe { libc::dup3(blank, number, libc::O_CLOEXEC) };
        return blank;
    }
    // First of all a number becomes free, so that a process at its limit of descriptors gets one.
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

    /// Forks a child that lives until there is a byte at `hold`, and gives its process.
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
        // More than one block has room for.
        let pairs: Vec<_> = (0..2 * BLOCK_PLACES)
            .map(|_| UnixStream::pair().expect("sockets"))
            .collect();
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs
            .into_iter()
            .map(|(ours, theirs)| (Unshared::new(ours), theirs))
            .unzip();
        let child = fork_child(&hold);
        drop(ours);
        for mut end in theirs {
            assert_eq!(end.read(&mut [0]).expect("an end"), 0);
        }
        release.write_all(&[0]).expect("the child reads");
        let ended = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
        ended.expect("a child of our own");
    }
}
