//! A rank's control connection: the rank's threads send frames, and its monitor stores the answers.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::frame::Frame;
use super::poll::{EventFd, remaining};
use super::socket::Socket;
use crate::error::{Error, Result};
use crate::sync::lock;

/// Time limit for one frame to the server, which always reads: a timeout means that it is frozen.
pub(super) const SEND: Duration = Duration::from_secs(2);
/// Extra time for the server's answer after the deadline of a join, an exchange or a survey.
pub(super) const ANSWER: Duration = Duration::from_millis(500);

/// Reachability of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Open,
    /// Rank 0 left cleanly, or there are no other ranks.
    Closed,
    /// The connection is lost, and rank 0 with it.
    Lost,
}

/// Outcome of a request, as this rank saw it.
pub(super) struct RequestOutcome {
    /// The server's answer, if any.
    pub(super) answer: Option<Frame>,
    /// Reachability of the server at the end.
    pub(super) reach: Reach,
    /// Whether the request was sent.
    pub(super) is_sent: bool,
}

/// A control connection, shared by the caller's threads and the monitor.
#[derive(Debug)]
pub struct ControlConnection {
    pub(super) rank: u32,
    /// The open connection; `None` after this rank has left, even if this value is still held.
    line: Mutex<Option<Arc<ConnectionDescriptors>>>,
    /// Held while a frame is written, so that frames do not interleave.
    writing: Mutex<()>,
    state: Mutex<ConnectionState>,
    changed: Condvar,
}

/// The descriptors of a connection.
#[derive(Debug)]
pub(super) struct ConnectionDescriptors {
    pub(super) socket: Socket,
    /// Wakes the monitor.
    pub(super) wake: EventFd,
}

#[derive(Debug)]
pub(super) struct ConnectionState {
    pub(super) reach: Reach,
    /// Pending requests by token, with the server's answers.
    pub(super) requests: HashMap<u64, Option<Frame>>,
    pub(super) requests_begun: u64,
    pub(super) departed: Vec<bool>,
    pub(super) is_stopping: bool,
}

impl ControlConnection {
    pub(super) fn new(
        rank: u32,
        world_size: usize,
        socket: Option<Socket>,
        reach: Reach,
    ) -> Result<ControlConnection> {
        let line = |socket| {
            let wake = EventFd::new();
            let wake = wake.map_err(|error| Error::system("cannot make an eventfd", error))?;
            Ok::<_, Error>(Arc::new(ConnectionDescriptors { socket, wake }))
        };
        Ok(ControlConnection {
            rank,
            line: Mutex::new(socket.map(line).transpose()?),
            writing: Mutex::new(()),
            state: Mutex::new(ConnectionState {
                reach,
                requests: HashMap::new(),
                requests_begun: 0,
                departed: vec![false; world_size],
                is_stopping: false,
            }),
            changed: Condvar::new(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ConnectionState> {
        lock(&self.state)
    }

    /// Returns the descriptors, which stay open as long as the result lives.
    pub(super) fn line(&self) -> Option<Arc<ConnectionDescriptors>> {
        lock(&self.line).clone()
    }

    /// Closes the descriptors as soon as no thread uses them.
    pub(super) fn close(&self) {
        drop(lock(&self.line).take());
    }

    /// Wakes the threads that wait for a change of the state.
    pub(super) fn announce(&self) {
        self.changed.notify_all();
    }

    /// Stops the monitor, and ends every wait for the server.
    pub(super) fn stop(&self) {
        {
            let mut state = self.state();
            state.is_stopping = true;
            // Later requests get no answer.
            if state.reach == Reach::Open {
                state.reach = Reach::Closed;
            }
        }
        if let Some(line) = self.line() {
            line.wake.signal();
        }
        self.announce();
    }

    /// Sends `frame`; returns whether it was sent.
    pub(super) fn send(&self, frame: &Frame) -> bool {
        let Some(line) = self.line() else {
            return false;
        };
        if self.state().reach != Reach::Open {
            return false;
        }
        let bytes = frame.encode();
        let _guard = lock(&self.writing);
        line.socket.write_all(&bytes, Instant::now() + SEND).is_ok()
    }

    /// Sends the request that `frame` builds from a new token, and waits for the answer: until
    /// `deadline`, or until `is_pointless`, called after every change, returns true.
    pub(super) fn request(
        &self,
        frame: impl FnOnce(u64) -> Frame,
        deadline: Instant,
        is_pointless: impl Fn() -> bool,
    ) -> RequestOutcome {
        let token = {
            let mut state = self.state();
            state.requests_begun += 1;
            let token = state.requests_begun;
            state.requests.insert(token, None);
            token
        };
        let is_sent = self.send(&frame(token));
        // If sending failed, the monitor is about to find out that the server has ended.
        let wait_end = match is_sent {
            true => deadline,
            false => deadline.min(Instant::now() + SEND),
        };
        let mut state = self.wait_until(wait_end, |state| {
            let is_answered = state.requests.get(&token).is_some_and(Option::is_some);
            state.reach != Reach::Open || is_answered || is_pointless()
        });
        RequestOutcome {
            answer: state.requests.remove(&token).flatten(),
            reach: state.reach,
            is_sent,
        }
    }

    /// Waits until `is_ready` returns true, or until the deadline.
    pub(super) fn wait_until(
        &self,
        deadline: Instant,
        mut is_ready: impl FnMut(&ConnectionState) -> bool,
    ) -> MutexGuard<'_, ConnectionState> {
        let (guard, _) = self
            .changed
            .wait_timeout_while(self.state(), remaining(deadline), |state| !is_ready(state))
            .unwrap_or_else(PoisonError::into_inner);
        guard
    }
}
