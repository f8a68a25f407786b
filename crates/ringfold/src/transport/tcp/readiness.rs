//! Which sockets may be worth a try, and sleeping until one is.
//!
//! One epoll descriptor watches all sockets, edge-triggered: an edge is remembered by the
//! connection until a call finds the socket empty or full. The waker's event counter is
//! level-triggered and emptied only by a wait that may block, so that a wake is never lost to a
//! poll that came between.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::error::{Error, Result};
use crate::transport::Waker;

/// Events taken over in one call; what is left comes with the next.
const EVENTS: usize = 64;

/// The waker's place among the connections' numbers.
const WAKER: u64 = u64::MAX;

pub struct Readiness {
    epoll: OwnedFd,
    wakes: Arc<OwnedFd>,
}

impl Readiness {
    pub fn new() -> Result<Readiness> {
        let failed = |error| Error::system("cannot create an epoll descriptor", error);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wakes = eventfd(0, flags).map_err(failed)?;
        let id = EventData::new_u64(WAKER);
        epoll::add(&epoll, &wakes, id, EventFlags::IN).map_err(failed)?;
        Ok(Readiness {
            epoll,
            wakes: Arc::new(wakes),
        })
    }

    /// Watches a socket under the number `id`.
    pub fn watch(&self, socket: impl AsFd, id: usize) -> Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, socket, EventData::new_u64(id as u64), flags)
            .map_err(|error| Error::system("cannot watch a socket", error))
    }

    /// Waits until an event occurs or `timeout` has passed; reports (id, readable, writable) of
    /// each socket to `ready`.
    pub fn wait(&self, timeout: Duration, mut ready: impl FnMut(usize, bool, bool)) -> Result<()> {
        let may_block = !timeout.is_zero();
        let timeout = Timespec {
            tv_sec: timeout.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut room = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        let events = match epoll::wait(&self.epoll, &mut room, Some(&timeout)) {
            Ok((events, _)) => events,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(Error::system("cannot wait for sockets", error)),
        };
        for event in events {
            let (id, flags) = (event.data.u64(), event.flags);
            if id == WAKER {
                if may_block {
                    // Failing means that the counter is zero, which is what is wanted.
                    let _ = rustix::io::read(&self.wakes, &mut [0_u8; 8]);
                }
                continue;
            }
            let ended = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            let readable = flags.intersects(EventFlags::IN | ended);
            let writable = flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
            ready(id as usize, readable, writable);
        }
        Ok(())
    }

    pub fn waker(&self) -> Waker {
        let wakes = self.wakes.clone();
        Arc::new(move || {
            // Failing means that the counter is full of wakes already.
            let _ = rustix::io::write(&*wakes, &1_u64.to_ne_bytes());
        })
    }
}
