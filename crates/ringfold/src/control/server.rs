//! The rendezvous server: a thread in rank 0's process that owns every rank's control connection.
//!
//! One poll loop, in which nothing blocks, serves the [`HandshakeListener`] until all ranks have
//! joined, and the ranks. [`Hub`] decides about frames; this module moves bytes.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use log::{debug, warn};
use rustix::event::{PollFd, PollFlags};

use super::absence;
use super::auth::{Claim, Purpose, Refusal, Secret};
use super::fault::Class;
use super::frame::{Frame, RANK_FRAME_BYTES_MAX, Splitter};
use super::handshake::HandshakeListener;
use super::hub::Hub;
use super::poll::{EventFd, is_transient, ready, remaining, wait_for};
use super::socket::{Listener, Socket, random};
use crate::error::{Error, GONE, Result, gone_by};
use crate::silence::{PING, Silence, silent};
use crate::threads;

/// Maximum bytes queued for one rank before it counts as lost: two of the largest frames.
const BACKLOG_BYTES_MAX: usize = 512 << 20;
/// Maximum time that rank 0 waits for the others if it leaves first, so that they can finish what
/// they have begun.
const LINGER: Duration = Duration::from_millis(500);
/// Time limit for the last frames when rank 0 leaves.
const FLUSH: Duration = Duration::from_millis(200);
/// Bytes per read.
const READ_BYTES: usize = 64 << 10;

/// The server's thread. Dropping the value ends the thread, a moment later if other ranks are still
/// in the job.
#[derive(Debug)]
pub struct ServerThread {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Starts a server for `world_size` ranks. Rank 0 uses the returned socket; the others connect
    /// to `listeners` by `deadline`, and are refused if the server cannot be started.
    pub fn start(
        listeners: Vec<Listener>,
        world_size: u32,
        secret: Secret,
        silence: Silence,
        deadline: Instant,
    ) -> Result<(Socket, ServerThread)> {
        let needs = match Needs::new() {
            Ok(needs) => needs,
            Err(error) => {
                absence::decline(listeners, &secret, world_size as usize - 1);
                return Err(error);
            }
        };
        // The key travels in the clear, so it is sent only if no other process can eavesdrop.
        let is_unix = |listener: &Listener| matches!(listener, Listener::Unix(_));
        let key = match listeners.iter().all(is_unix) {
            true => needs.key,
            false => [0; 32],
        };
        let mut state = ServerState {
            hub: Hub::new(needs.job, key, world_size, deadline).with_silence(silence),
            listener: Some(HandshakeListener::new(listeners, &secret, Purpose::Control)),
            links: (0..world_size).map(|_| None).collect(),
            world_size,
            silence,
            next_ping: Instant::now() + PING,
            next_look: Instant::now(),
            accusations: Vec::new(),
            leaving: None,
            stop: needs.stop.clone(),
        };
        state.links[0] = Some(RankConnection::new(needs.servers));
        // Cannot fail: the thread waits for the state.
        let _ = needs.begin.send(state);
        let server = ServerThread {
            stop: needs.stop,
            thread: Some(needs.thread),
        };
        Ok((needs.rank_0s, server))
    }
}

/// The resources that the system may refuse, acquired before a rank is admitted.
struct Needs {
    rank_0s: Socket,
    servers: Socket,
    job: u64,
    key: [u8; 32],
    stop: Arc<EventFd>,
    /// Sends the state to serve to the thread.
    begin: SyncSender<ServerState>,
    thread: JoinHandle<()>,
}

impl Needs {
    fn new() -> Result<Needs> {
        let refused = |what| move |error| Error::system(what, error);
        let (rank_0s, servers) = Socket::pair().map_err(refused("cannot make a socket pair"))?;
        let stop = EventFd::new().map_err(refused("cannot make an eventfd"))?;
        let (job, key) = (u64::from_le_bytes(random()?), random()?);
        let (begin, state) = sync_channel::<ServerState>(1);
        let serve = move || state.recv().map_or((), ServerState::serve);
        Ok(Needs {
            rank_0s,
            servers,
            job,
            key,
            stop: Arc::new(stop),
            begin,
            thread: threads::start("ringfold-server", serve)?,
        })
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been printed already.
            let _ = thread.join();
        }
    }
}

/// A rank's connection.
struct RankConnection {
    socket: Socket,
    splitter: Splitter,
    outgoing: VecDeque<u8>,
    /// Whether the rank has said goodbye.
    is_ended: bool,
    /// Whether a ping is not answered yet. A frozen rank gets no more pings, or they would fill its
    /// buffer and make the link look dead.
    awaits_pong: bool,
}

impl RankConnection {
    fn new(socket: Socket) -> RankConnection {
        RankConnection {
            socket,
            splitter: Splitter::new(RANK_FRAME_BYTES_MAX),
            outgoing: VecDeque::new(),
            is_ended: false,
            awaits_pong: false,
        }
    }

    /// Sends as much as fits; an error means that the connection is lost.
    fn flush(&mut self) -> std::io::Result<()> {
        while !self.outgoing.is_empty() {
            match self.socket.write(self.outgoing.as_slices().0) {
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if is_transient(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.outgoing.shrink_to(READ_BYTES);
        Ok(())
    }
}

/// Returns the ranks that `frame` reports as gone.
fn accused(frame: &Frame) -> Vec<u32> {
    match frame {
        Frame::Suspect { rank } => vec![*rank],
        Frame::Report { fault, .. } if fault.class == Class::PeerFailed => fault.ranks.clone(),
        _ => Vec::new(),
    }
}

struct ServerState {
    hub: Hub,
    /// Listener for joining ranks; `None` once all ranks have joined.
    listener: Option<HandshakeListener>,
    links: Vec<Option<RankConnection>>,
    world_size: u32,
    silence: Silence,
    next_ping: Instant,
    /// Time of the next check whether hosts have been silent for too long.
    next_look: Instant,
    /// Frames that report other ranks as gone, and their senders.
    accusations: Vec<(usize, Frame)>,
    /// End of rank 0's wait for the others; set when rank 0 leaves.
    leaving: Option<Instant>,
    stop: Arc<EventFd>,
}

impl ServerState {
    fn serve(mut self) {
        while !self.is_over()
            && let Some((connecting, ranks)) = self.wait()
        {
            self.admit(&connecting);
            for rank in ranks {
                self.read(rank);
            }
            self.judge_accusations();
            let now = Instant::now();
            self.hub.tick(now);
            self.ping(now);
            self.listen_for_hosts(now);
            self.send();
            if self.hub.is_complete() && !self.hub.is_cancelled() && self.listener.take().is_some()
            {
                debug!(target: "ringfold::control", "all {} ranks have joined", self.world_size);
            }
        }
        self.leave();
    }

    /// Whether rank 0 has left and need not stay for the others.
    fn is_over(&self) -> bool {
        // Ranks that connect late to a cancelled job are refused with this reason.
        let is_needed =
            self.hub.is_in_use() || (self.hub.is_cancelled() && self.listener.is_some());
        self.leaving
            .is_some_and(|until| !is_needed || remaining(until).is_zero())
    }

    /// Waits for work; returns which joining connections and which ranks are ready. `None`: polling
    /// failed.
    fn wait(&mut self) -> Option<(Vec<bool>, Vec<usize>)> {
        let mut fds = vec![PollFd::new(&*self.stop, PollFlags::IN)];
        if let Some(listener) = &self.listener {
            listener.add_descriptors(&mut fds);
        }
        let connecting = fds.len();
        let mut ranks = Vec::with_capacity(self.links.len());
        let mut has_remote = false;
        for (rank, link) in self.links.iter().enumerate() {
            let Some(link) = link else { continue };
            let mut flags = PollFlags::IN;
            if !link.outgoing.is_empty() {
                flags |= PollFlags::OUT;
            }
            has_remote |= !link.socket.is_unix();
            ranks.push(rank);
            fds.push(PollFd::from_borrowed_fd(link.socket.as_fd(), flags));
        }
        let impatient = self
            .listener
            .as_ref()
            .and_then(HandshakeListener::next_deadline);
        let deadline = impatient
            .into_iter()
            .chain(self.hub.next_deadline())
            .chain(has_remote.then_some(self.next_ping.min(self.next_look)))
            .chain(self.leaving)
            .min();
        if let Err(error) = wait_for(&mut fds, deadline) {
            warn!(target: "ringfold::control", "the rendezvous server stops: {error}");
            return None;
        }
        let is_ready = ready(&fds);
        if is_ready[0] {
            self.stop.clear();
            self.leaving = Some(Instant::now() + LINGER);
        }
        let ready_ranks = ranks.into_iter().zip(&is_ready[connecting..]);
        let ready_ranks = ready_ranks.filter(|(_, ready)| **ready);
        Some((
            is_ready[1..connecting].to_vec(),
            ready_ranks.map(|(rank, _)| rank).collect(),
        ))
    }

    fn admit(&mut self, connecting: &[bool]) {
        let Some(listener) = &mut self.listener else {
            return;
        };
        let world_size = self.world_size;
        let mut is_taken: Vec<bool> = (0..world_size)
            .map(|rank| {
                let link = self.links[rank as usize].as_ref();
                link.is_some_and(|link| !link.is_ended) || self.hub.is_known(rank)
            })
            .collect();
        let is_cancelled = self.hub.is_cancelled();
        let mut judge = |claim: &Claim| {
            if claim.world_size != world_size {
                Err(Refusal::WorldSize {
                    claimed: claim.world_size,
                    expected: world_size,
                })
            } else if claim.from == 0 || claim.from >= world_size || claim.to != 0 {
                Err(Refusal::Rank)
            } else if is_cancelled {
                Err(Refusal::GivenUp)
            } else if std::mem::replace(&mut is_taken[claim.from as usize], true) {
                Err(Refusal::Duplicate)
            } else {
                Ok(())
            }
        };
        for (claim, socket) in listener.serve(connecting, &mut judge) {
            if let Err(error) = socket.watch_for_silence(self.silence) {
                warn!(
                    target: "ringfold::control",
                    "cannot set the peer timeout of rank {}'s host, so the default applies: \
                     {error}",
                    claim.from
                );
            }
            self.links[claim.from as usize] = Some(RankConnection::new(socket));
        }
        if let Some(refused) = listener.take_refused() {
            self.hub.note_refused(refused);
        }
        if let Some(want) = listener.want() {
            let reason = format!("rank 0's process cannot take more connections: {want}");
            self.hub.give_up(&self.hub.absent(), &reason);
        }
    }

    /// Reads and processes everything that `rank` has sent.
    fn read(&mut self, rank: usize) {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let Some(link) = &mut self.links[rank] else {
                return;
            };
            let end = match link.socket.read(&mut buffer) {
                Ok(0) => Some(GONE.into()),
                Ok(count) => {
                    link.splitter.push(&buffer[..count]);
                    None
                }
                Err(error) if is_transient(&error) => return,
                Err(error) => Some(gone_by(&error)),
            };
            if let Some(reason) = end {
                return self.lose(rank, &reason);
            }
            if let Err(what) = self.act(rank) {
                return self.lose(rank, what);
            }
        }
    }

    /// Accepts reports that a rank has died, after reading all that the accused rank has sent: an
    /// abort or a goodbye, by which it announced why it left, arrived before the accusation. If the
    /// accused rank accused a third one, and left for that reason, its accusation is judged first.
    fn judge_accusations(&mut self) {
        let mut pending = VecDeque::from(std::mem::take(&mut self.accusations));
        while let Some((witness, frame)) = pending.pop_front() {
            for suspect in accused(&frame) {
                if (suspect as usize) < self.links.len() {
                    self.read(suspect as usize);
                }
            }
            if self.accusations.is_empty() {
                // An accusation by a dead rank is ignored.
                let _ = self.hub.receive(witness as u32, frame, Instant::now());
                continue;
            }
            pending.push_front((witness, frame));
            for accusation in self.accusations.drain(..).rev() {
                pending.push_front(accusation);
            }
        }
    }

    /// Processes the complete frames of `rank`.
    fn act(&mut self, rank: usize) -> Result<(), &'static str> {
        while let Some(link) = &mut self.links[rank] {
            let frame = match link.splitter.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(_) => return Err("it sent a malformed frame"),
            };
            if !accused(&frame).is_empty() {
                self.accusations.push((rank, frame));
                continue;
            }
            if frame == Frame::Pong {
                link.awaits_pong = false;
                continue;
            }
            link.is_ended |= frame == Frame::Goodbye;
            self.hub
                .receive(rank as u32, frame, Instant::now())
                .map_err(|violation| violation.0)?;
        }
        Ok(())
    }

    fn lose(&mut self, rank: usize, reason: &str) {
        // A rank that has not sent its `Join` yet may have been too slow for its own patience, and
        // connects again.
        if let Some(link) = self.links[rank].take()
            && !link.is_ended
            && self.hub.is_known(rank as u32)
        {
            debug!(target: "ringfold::control", "rank {rank} is lost: {reason}");
            self.hub.lose(rank as u32, reason);
        }
    }

    fn ping(&mut self, now: Instant) {
        if now < self.next_ping {
            return;
        }
        self.next_ping = now + PING;
        let bytes = Frame::Ping.encode();
        for link in self.links.iter_mut().flatten() {
            if !link.socket.is_unix() && !link.awaits_pong {
                link.awaits_pong = true;
                link.outgoing.extend(&bytes);
            }
        }
    }

    /// Loses the ranks whose hosts have been silent for too long.
    fn listen_for_hosts(&mut self, now: Instant) {
        if now < self.next_look {
            return;
        }
        let mut patience = self.silence.limit();
        for rank in 0..self.links.len() {
            let link = self.links[rank].as_ref();
            let Some(state) = link.and_then(|link| link.socket.tcp_state()) else {
                continue;
            };
            match self.silence.patience(&state) {
                Some(time) => patience = patience.min(time),
                None => self.lose(rank, &silent(&state)),
            }
        }
        self.next_look = now + patience;
    }

    /// Passes the hub's frames to the sockets, rank 0's last: its process may end as soon as it
    /// gets a verdict, and this server with it. A lost rank makes new frames; hence the loop, which
    /// ends because a rank is lost only once.
    fn send(&mut self) {
        loop {
            for (to, frame) in self.hub.take_output() {
                if let Some(link) = &mut self.links[to as usize] {
                    link.outgoing.extend(frame.encode());
                }
            }
            let mut lost = Vec::new();
            for (rank, link) in self.links.iter_mut().enumerate().rev() {
                let Some(link) = link else { continue };
                match link.flush() {
                    Err(error) => lost.push((rank, gone_by(&error))),
                    Ok(()) if link.outgoing.len() > BACKLOG_BYTES_MAX => {
                        lost.push((rank, "it does not read its control connection".into()));
                    }
                    Ok(()) => {}
                }
            }
            if lost.is_empty() {
                return;
            }
            for (rank, reason) in lost {
                self.lose(rank, &reason);
            }
        }
    }

    /// Says goodbye to all ranks and ends.
    fn leave(mut self) {
        self.hub.shut();
        let deadline = Instant::now() + FLUSH;
        loop {
            self.send();
            let waiting = self
                .links
                .iter()
                .flatten()
                .filter(|l| !l.outgoing.is_empty());
            let mut fds: Vec<PollFd<'_>> = waiting
                .map(|link| PollFd::from_borrowed_fd(link.socket.as_fd(), PollFlags::OUT))
                .collect();
            if fds.is_empty() || remaining(deadline).is_zero() {
                return;
            }
            if wait_for(&mut fds, Some(deadline)).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
