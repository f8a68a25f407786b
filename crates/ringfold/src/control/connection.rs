//! A rank's control connection: what its own threads send, and where its monitor leaves the
//! answers.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::fault::Fault;
use super::frame::Frame;
use super::poll::{EventFd, remaining};
use super::socket::Socket;
use super::standing::Standing;
use crate::error::{Error, Result};
use crate::sync::lock;
use crate::wait::SPAN_MAX;

/// How long one frame to the server may take: it always reads, so more means that it is frozen.
pub(super) const SEND: Duration = Duration::from_secs(2);
/// How much longer than the deadline of an exchange or a survey the server may take to answer.
pub(super) const ANSWER: Duration = Duration::from_millis(500);

/// Whether the server can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Open,
    /// Rank 0 left in good order, or there are no other ranks.
    Closed,
    /// The connection is gone and rank 0 with it.
    Lost,
}

/// The outcome of an exchange.
pub(super) type Gathered = Result<Vec<Vec<u8>>, Fault>;

/// What the caller's threads and the monitor share.
#[derive(Debug)]
pub struct ControlConnection {
    pub(super) rank: u32,
    pub(super) socket: Option<Socket>,
    /// Held while a frame is written, so that frames do not mix.
    writing: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
    pub(super) wake: EventFd,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) reach: Reach,
    /// By token: the exchanges that are waited for, and their outcomes.
    pub(super) exchanges: HashMap<u64, Option<Gathered>>,
    /// By token: the surveys that are waited for, and their outcomes.
    pub(super) surveys: HashMap<u64, Option<Vec<Option<Standing>>>>,
    next_survey: u64,
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
        let wake = EventFd::new();
        Ok(ControlConnection {
            rank,
            socket,
            writing: Mutex::new(()),
            state: Mutex::new(State {
                reach,
                exchanges: HashMap::new(),
                surveys: HashMap::new(),
                next_survey: 0,
                departed: vec![false; world_size],
                is_stopping: false,
            }),
            changed: Condvar::new(),
            wake: wake.map_err(|error| Error::system("cannot make an eventfd", error))?,
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Wakes the threads that wait for the state.
    pub(super) fn announce(&self) {
        self.changed.notify_all();
    }

    /// Sends `frame`; false when there is no server to send it to.
    pub(super) fn send(&self, frame: &Frame) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        if self.state().reach != Reach::Open {
            return false;
        }
        let bytes = frame.encode();
        let _guard = lock(&self.writing);
        socket.write_all(&bytes, Instant::now() + SEND).is_ok()
    }

    /// Asks how far the members of `communicator` are; `None` without an answer in time.
    pub(super) fn ask(
        &self,
        communicator: u64,
        timeout: Duration,
    ) -> Option<Vec<Option<Standing>>> {
        let timeout = timeout.min(SPAN_MAX);
        let token = {
            let mut state = self.state();
            state.next_survey += 1;
            let token = state.next_survey;
            state.surveys.insert(token, None);
            token
        };
        let frame = Frame::Ask {
            communicator,
            token,
            timeout_ms: timeout.as_millis() as u64,
        };
        let patience = match self.send(&frame) {
            true => timeout.saturating_add(ANSWER),
            false => Duration::ZERO,
        };
        let is_over = |state: &State| {
            let is_answered = state.surveys.get(&token).is_some_and(Option::is_some);
            state.reach != Reach::Open || is_answered
        };
        let mut state = self.wait_for(patience, is_over);
        state.surveys.remove(&token).flatten()
    }

    /// Waits until `is_ready` or the deadline.
    pub(super) fn wait_until(
        &self,
        deadline: Instant,
        is_ready: impl FnMut(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        self.wait_for(remaining(deadline), is_ready)
    }

    /// Waits until `is_ready`, at most `patience`.
    fn wait_for(
        &self,
        patience: Duration,
        mut is_ready: impl FnMut(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let (guard, _) = self
            .changed
            .wait_timeout_while(self.state(), patience, |state| !is_ready(state))
            .unwrap_or_else(PoisonError::into_inner);
        guard
    }
}
