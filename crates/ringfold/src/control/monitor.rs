//! The thread that reads a rank's control connection and watches its neighbours' processes.
//!
//! It passes verdicts to [`Health`](super::Health), answers inquiries, and passes the server's
//! answers on. It never waits for anything but its poll, so that an inquiry is answered as long as
//! the process runs at all: that is what an answer means.

use std::sync::Arc;
use std::time::{Duration, Instant};

use log::{debug, warn};
use rustix::event::{PollFd, PollFlags};

use super::connection::{ControlConnection, Line, Reach};
use super::frame::{Frame, Presence, Splitter};
use super::health::OpenCommunicators;
use super::poll::{EventFd, is_transient, ready, wait_for};
use super::socket::Socket;
use super::standing::Standing;
use super::watch::{Watched, watch};
use crate::error::{GONE, gone_by};
use crate::silence::{Silence, silent};
use crate::sys::TcpState;

/// After a neighbour's process has ended, how long the server has to say whether that was in order.
/// It usually answers at once. When it does not, most often its own process is being ended, which
/// closes its connections one by one: a rank that heard of it before this one has ended as well,
/// and must not be blamed for it.
const GRACE: Duration = Duration::from_millis(100);

/// The monitor's own state.
pub(super) struct Monitor {
    connection: Arc<ControlConnection>,
    communicators: Arc<OpenCommunicators>,
    splitter: Splitter,
    watched: Vec<Watched>,
    /// How long rank 0's host may be silent.
    silence: Silence,
    /// When to look whether it has been.
    next_look: Instant,
    /// Neighbours whose process has ended, and until when the server may judge.
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
        let Line { socket, wake } = &*line;
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
            // What was said before a death counts before it.
            self.read(socket);
            for rank in ended {
                self.suspect(rank);
            }
            let now = Instant::now();
            self.judge_suspects(socket, now);
            self.listen_for_server(socket, now);
        }
    }

    /// Waits; the neighbours whose process has ended meanwhile.
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

    /// Reads and acts on everything that has arrived.
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
                    // An exchange for this communicator has become pointless.
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
                // First, so that who waits in a different call is known before a rank is blamed
                // for being late.
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

    /// A rank has left the job in good order.
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

    /// The server is gone without a goodbye. When rank 0 itself had said goodbye, that is what its
    /// end looks like.
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

    /// A neighbour's process has ended.
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
            // No server is left to say whether it said goodbye. If it is still needed, that
            // shows by itself.
            Reach::Closed => self.depart(rank),
            Reach::Lost => self.bury(rank, GONE),
        }
    }

    /// Loses the server if its host has been silent for too long. The kernel would find out by
    /// itself; but not as long as it waits for the acknowledgement of something that was sent in
    /// the meantime, a report for example.
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

    /// Buries the suspects on which the server has not said a word. Where the server cannot be
    /// heard either, a suspect may have ended because it lost the server, sooner than this rank
    /// does: that comes first.
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
