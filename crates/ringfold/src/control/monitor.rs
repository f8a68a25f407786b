//! The thread that reads a rank's control connection and watches its neighbours' processes.
//!
//! The monitor passes verdicts to [`Health`](super::Health), answers inquiries, and passes the
//! server's answers on. It waits only in its poll, so that an inquiry is answered as long as the
//! process runs: an answer means that the process is not frozen.

use std::sync::Arc;
use std::time::{Duration, Instant};

use log::{debug, warn};
use rustix::event::{PollFd, PollFlags};

use super::connection::{ConnectionDescriptors, ControlConnection, Reach};
use super::frame::{Frame, Presence, Splitter};
use super::health::OpenCommunicators;
use super::poll::{EventFd, is_transient, ready, wait_for};
use super::socket::Socket;
use super::standing::Standing;
use super::watch::{Watched, watch};
use crate::error::{GONE, gone_by};
use crate::silence::{Silence, silent};
use crate::sys::TcpState;

/// Time limit for the server to tell whether a neighbour's process ended cleanly. The server
/// usually answers at once. If it does not, most often its own process is ending, which closes its
/// connections one by one: a rank that noticed this first has ended as well, and must not be blamed
/// for it.
const GRACE: Duration = Duration::from_millis(100);

/// The monitor's own state.
pub(super) struct Monitor {
    connection: Arc<ControlConnection>,
    communicators: Arc<OpenCommunicators>,
    splitter: Splitter,
    watched: Vec<Watched>,
    /// Peer timeout of rank 0's host.
    silence: Silence,
    /// Time of the next check for silence.
    next_look: Instant,
    /// Neighbours whose process has ended, and the time until which the server may judge each.
    suspects: Vec<(u32, Instant)>,
    buffer: Vec<u8>,
}

impl Monitor {
    pub(super) fn new(
        connection: Arc<ControlConnection>,
        communicators: Arc<OpenCommunicators>,
        splitter: Splitter,
        silence: Silence,
        ranks: &[Presence],
    ) -> Monitor {
        let watched = watch(ranks, connection.rank as usize);
        Monitor {
            connection,
            communicators,
            splitter,
            watched,
            silence,
            next_look: Instant::now(),
            suspects: Vec::new(),
            buffer: vec![0; 64 << 10],
        }
    }

    pub(super) fn run(mut self) {
        let Some(line) = self.connection.line() else {
            return;
        };
        let ConnectionDescriptors { socket, wake } = &*line;
        let gone = self.watched.extract_if(.., |watched| watched.is_gone());
        let gone: Vec<u32> = gone.map(|watched| watched.rank).collect();
        for rank in gone {
            self.suspect(rank);
        }
        loop {
            let ended = match self.wait(socket, wake) {
                Ok(ended) => ended,
                Err(error) => {
                    warn!(target: "ringfold::control", "the monitor stops: {error}");
                    return self.lose("the monitor could not poll");
                }
            };
            if self.connection.state().is_stopping {
                return;
            }
            // Frames that were sent before a death count before it.
            self.read(socket);
            for rank in ended {
                self.suspect(rank);
            }
            let now = Instant::now();
            self.judge_suspects(socket, now);
            self.listen_for_server(socket, now);
        }
    }

    /// Waits for events; returns the neighbours whose process has ended.
    fn wait(&mut self, socket: &Socket, wake: &EventFd) -> std::io::Result<Vec<u32>> {
        let is_open = self.connection.state().reach == Reach::Open;
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        let descriptors = self.watched.iter().filter_map(Watched::descriptor);
        fds.extend(descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        if is_open {
            fds.push(PollFd::new(socket, PollFlags::IN));
        }
        let is_far = is_open && !socket.is_unix();
        let suspects = self.suspects.iter().map(|(_, until)| *until);
        let deadline = suspects.chain(is_far.then_some(self.next_look)).min();
        wait_for(&mut fds, deadline)?;
        if !fds[0].revents().is_empty() {
            wake.clear();
        }
        let mut has_ended = ready(&fds[1..=self.watched.len()]).into_iter();
        let ended = self
            .watched
            .extract_if(.., |_| has_ended.next() == Some(true));
        Ok(ended.map(|watched| watched.rank).collect())
    }

    /// Reads and processes everything that has arrived.
    fn read(&mut self, socket: &Socket) {
        while self.connection.state().reach == Reach::Open {
            match socket.read(&mut self.buffer) {
                Ok(0) => return self.lose(GONE),
                Ok(count) => self.splitter.push(&self.buffer[..count]),
                Err(error) if is_transient(&error) => return,
                Err(error) => return self.lose(&gone_by(&error)),
            }
            loop {
                match self.splitter.next_frame() {
                    Ok(Some(frame)) => self.act(frame),
                    Ok(None) => break,
                    Err(_) => return self.lose("its server sent a malformed frame"),
                }
            }
        }
    }

    fn act(&mut self, frame: Frame) {
        match frame {
            Frame::Verdict {
                communicator,
                fault,
            } => {
                if let Some(health) = self.communicators.get(communicator) {
                    health.pronounce(&fault);
                    // An exchange for this communicator may have become pointless.
                    self.connection.announce();
                }
            }
            Frame::Left { communicator, rank } => {
                if let Some(health) = self.communicators.get(communicator) {
                    health.mark_left(rank);
                }
            }
            Frame::Departed { rank } => self.depart(rank),
            Frame::Inquiry {
                communicator,
                inquiry,
            } => {
                let health = self.communicators.get(communicator);
                // First, so that a rank that waits in a different call is known before a rank is
                // blamed for being late.
                if let Some(health) = &health
                    && let Some(position) = health.progress().position()
                {
                    health.claim(position);
                }
                let standing = health.map_or(Standing::default(), |h| h.progress().standing());
                self.connection.send(&Frame::Answer {
                    communicator,
                    inquiry,
                    standing,
                });
            }
            Frame::Gathered { token, .. }
            | Frame::Ungathered { token, .. }
            | Frame::Standings { token, .. } => {
                if let Some(entry) = self.connection.state().requests.get_mut(&token) {
                    *entry = Some(frame);
                }
                self.connection.announce();
            }
            Frame::Closing => {
                debug!(target: "ringfold::control", "rank 0 has left");
                self.connection.state().reach = Reach::Closed;
                self.depart(0);
            }
            Frame::Ping => {
                self.connection.send(&Frame::Pong);
            }
            other => debug!(target: "ringfold::control", "ignored {other:?}"),
        }
    }

    /// Records that a rank has left the job cleanly.
    fn depart(&mut self, rank: u32) {
        if let Some(departed) = self.connection.state().departed.get_mut(rank as usize) {
            *departed = true;
        }
        self.suspects.retain(|(suspect, _)| *suspect != rank);
        for health in self.communicators.all() {
            health.mark_left(rank);
        }
        self.connection.announce();
    }

    /// Handles the loss of the server without a goodbye. If rank 0 itself had said goodbye, the
    /// loss is its normal end.
    fn lose(&mut self, reason: &str) {
        let has_left = {
            let mut state = self.connection.state();
            let has_left = state.departed[0];
            state.reach = if has_left { Reach::Closed } else { Reach::Lost };
            has_left
        };
        if !has_left {
            self.bury(0, reason);
        }
        self.connection.announce();
    }

    /// Handles the end of a neighbour's process.
    fn suspect(&mut self, rank: u32) {
        let (reach, has_departed) = {
            let state = self.connection.state();
            (state.reach, state.departed[rank as usize])
        };
        if has_departed {
            return;
        }
        match reach {
            Reach::Open if rank == 0 => self.lose(GONE),
            Reach::Open => {
                self.connection.send(&Frame::Suspect { rank });
                self.suspects.push((rank, Instant::now() + GRACE));
            }
            // No server is left to tell whether the rank said goodbye. If the rank is still needed,
            // its absence will show.
            Reach::Closed => self.depart(rank),
            Reach::Lost => self.bury(rank, GONE),
        }
    }

    /// Loses the server if its host has been silent for too long. The kernel also detects silence,
    /// but not while it waits for the acknowledgement of data that was sent in the meantime, such
    /// as a report.
    fn listen_for_server(&mut self, socket: &Socket, now: Instant) {
        if now < self.next_look || self.connection.state().reach != Reach::Open {
            return;
        }
        let Some(state) = socket.tcp_state() else {
            self.next_look = now + self.silence.limit();
            return;
        };
        match self.silence.patience(&state) {
            Some(patience) => self.next_look = now + patience,
            None => self.lose(&silent(&state)),
        }
    }

    /// Declares suspects dead that the server has not judged in time. If the server is silent, too,
    /// a suspect may have ended because it lost the server before this rank did: that loss comes
    /// first, so the suspects get more time.
    fn judge_suspects(&mut self, socket: &Socket, now: Instant) {
        let is_open = self.connection.state().reach == Reach::Open;
        let is_silent = |state: TcpState| u128::from(state.quiet_ms) >= GRACE.as_millis();
        if is_open && socket.tcp_state().is_some_and(is_silent) {
            let due = self.suspects.iter_mut().filter(|(_, until)| *until <= now);
            due.for_each(|(_, until)| *until = now + GRACE);
            return;
        }
        let due = self.suspects.extract_if(.., |(_, until)| *until <= now);
        let due: Vec<u32> = due.map(|(rank, _)| rank).collect();
        for rank in due {
            self.bury(rank, GONE);
        }
    }

    fn bury(&self, rank: u32, reason: &str) {
        for health in self.communicators.all() {
            health.mark_dead(rank, reason);
        }
    }
}
