//! Tells which sockets may be ready, and sleeps until one is.
//!
//! One epoll descriptor watches all sockets, edge-triggered: the connection remembers an edge until
//! a call finds the socket empty or full. The bell, which the waker and peers of this host ring, is
//! level-triggered. Only a wait that may block silences the bell, so that a ring is never lost to a
//! poll in between.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::error::{Error, Result};
use crate::transport::Waker;
use crate::transport::bell::{self, Bell};

/// Maximum number of events of one call; the next call returns the others.
const EVENTS: usize = 64;

/// Number of the bell, among those of the connections.
const BELL: u64 = u64::MAX;

/// State of a socket, as reported by epoll. A socket that has failed is ready in both directions.
pub struct Ready {
    pub readable: bool,
    pub writable: bool,
}

pub struct Readiness {
    epoll: OwnedFd,
    bell: Bell,
}

impl Readiness {
    /// Creates an instance whose sleep ends when `bell` rings.
    pub fn new(bell: Bell) -> Result<Readiness> {
        let failed = |error| Error::system("cannot create an epoll descriptor", error);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let id = EventData::new_u64(BELL);
        epoll::add(&epoll, &*bell, id, EventFlags::IN).map_err(failed)?;
        Ok(Readiness { epoll, bell })
    }

    /// Watches a socket under the number `id`.
    pub fn watch(&self, socket: impl AsFd, id: usize) -> Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, socket, EventData::new_u64(id as u64), flags)
            .map_err(|error| Error::system("cannot watch a socket", error))
    }

    /// Waits until an event occurs or `timeout` has passed; reports each socket's id and state to
    /// `ready`.
    pub fn wait(&self, timeout: Duration, mut ready: impl FnMut(usize, Ready)) -> Result<()> {
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
            if id == BELL {
                if may_block {
                    bell::silence(&self.bell);
                }
                continue;
            }
            let failed = EventFlags::ERR | EventFlags::HUP;
            let state = Ready {
                readable: flags.intersects(EventFlags::IN | EventFlags::RDHUP | failed),
                writable: flags.intersects(EventFlags::OUT | failed),
            };
            ready(id as usize, state);
        }
        Ok(())
    }

    pub fn waker(&self) -> Waker {
        // A handle that outlives the transport keeps no descriptor open.
        let bell = Arc::downgrade(&self.bell);
        Arc::new(move || {
            if let Some(bell) = bell.upgrade() {
                bell::ring(&bell);
            }
        })
    }
}
