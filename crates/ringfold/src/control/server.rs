//! The rendezvous server: a thread in rank 0's process that owns every rank's control connection.
//!
//! One poll loop, in which nothing blocks: a listener until all ranks have joined, a bounded number of strangers in
//! their handshake, and the ranks. What to do about a frame is [`Hub`]'s business; this module moves bytes. A stranger
//! that is slow, talks nonsense or has the wrong secret is counted, logged once and dropped, and delays nobody.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use log::{debug, info, warn};
use rustix::event::{PollFd, PollFlags};

use super::auth::{
    self, Acceptor, CHALLENGE_BYTES, Claim, HELLO_BYTES, PROOF_BYTES, Purpose, Refusal, Secret,
};
use super::frame::{Frame, RANK_FRAME_BYTES_MAX, Splitter};
use super::hub::Hub;
use super::socket::{Bell, Listener, Socket, is_transient, random, remaining, wait_for};
use crate::error::{Error, Result};

/// How long a stranger has for its handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(2);
/// Strangers in their handshake at once; more wait in the listener's queue.
const STRANGERS_MAX: usize = 256;
/// Bytes that may wait to be sent to one rank before it counts as lost: two of the largest frames.
const BACKLOG_BYTES_MAX: usize = 512 << 20;
/// How often ranks on other hosts are written to, so that a dead link has something to lose.
const PING: Duration = Duration::from_millis(500);
/// How long the last frames may take when rank 0 leaves.
const FLUSH: Duration = Duration::from_millis(200);
/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// The server's thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    stop: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `world_size` ranks. Rank 0 is at the other end of `own`; the others come to `listener` by `deadline`.
    pub fn start(
        listener: Listener,
        own: Socket,
        world_size: u32,
        secret: Secret,
        deadline: Instant,
    ) -> Result<Server> {
        let bell = || Bell::new().map_err(|error| Error::system("cannot make an eventfd", error));
        let stop = Arc::new(bell()?);
        let job = u64::from_le_bytes(random()?);
        let mut state = State {
            hub: Hub::new(job, world_size, deadline),
            listener: Some(listener),
            strangers: Vec::new(),
            links: (0..world_size).map(|_| None).collect(),
            secret,
            world_size,
            next_ping: Instant::now() + PING,
            turned_away: 0,
            suspicions: Vec::new(),
            stop: stop.clone(),
        };
        state.links[0] = Some(Link::new(own));
        let thread = std::thread::Builder::new()
            .name("ringfold-server".into())
            .spawn(move || state.serve())
            .map_err(|error| Error::system("cannot start the rendezvous server", error))?;
        Ok(Server {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.ring();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been printed; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

/// A connection in its handshake.
struct Stranger {
    socket: Socket,
    name: String,
    deadline: Instant,
    acceptor: Acceptor,
    /// The message that is being received: hello, or proof when there is a claim.
    received: Vec<u8>,
    claim: Option<Claim>,
}

/// What became of a stranger.
enum Progress {
    Waiting,
    Admitted(u32),
    TurnedAway(String),
}

/// A rank's connection.
struct Link {
    socket: Socket,
    splitter: Splitter,
    outgoing: VecDeque<u8>,
    is_ended: bool,
}

impl Link {
    fn new(socket: Socket) -> Link {
        Link {
            socket,
            splitter: Splitter::new(RANK_FRAME_BYTES_MAX),
            outgoing: VecDeque::new(),
            is_ended: false,
        }
    }

    /// Sends what fits; an error means that the connection is gone.
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

struct State {
    hub: Hub,
    listener: Option<Listener>,
    strangers: Vec<Stranger>,
    links: Vec<Option<Link>>,
    secret: Secret,
    world_size: u32,
    next_ping: Instant,
    turned_away: u64,
    /// Witness and suspect.
    suspicions: Vec<(usize, usize)>,
    stop: Arc<Bell>,
}

/// What a poll entry stands for.
#[derive(Clone, Copy)]
enum Entry {
    Stop,
    Listener,
    Stranger(usize),
    Rank(usize),
}

impl State {
    fn serve(mut self) {
        loop {
            let Some(ready) = self.wait() else {
                return self.leave();
            };
            // Strangers may be removed while they are served: the last one first.
            for entry in ready.into_iter().rev() {
                match entry {
                    Entry::Stop => return self.leave(),
                    Entry::Listener => self.accept(),
                    Entry::Stranger(index) => self.serve_stranger(index),
                    Entry::Rank(rank) => self.read(rank),
                }
            }
            self.judge_suspicions();
            let now = Instant::now();
            self.drop_slow_strangers(now);
            self.hub.tick(now);
            self.ping(now);
            self.send();
            if self.hub.is_complete() && self.listener.take().is_some() {
                self.strangers.clear();
                info!(target: "ringfold::control", "all {} ranks have joined", self.world_size);
            }
        }
    }

    /// Waits for something to do. `None`: polling itself failed.
    fn wait(&self) -> Option<Vec<Entry>> {
        let mut entries = vec![Entry::Stop];
        let mut fds = vec![PollFd::new(&*self.stop, PollFlags::IN)];
        if let Some(listener) = &self.listener
            && self.strangers.len() < STRANGERS_MAX
        {
            entries.push(Entry::Listener);
            fds.push(PollFd::new(listener, PollFlags::IN));
        }
        for (index, stranger) in self.strangers.iter().enumerate() {
            entries.push(Entry::Stranger(index));
            fds.push(PollFd::new(&stranger.socket, PollFlags::IN));
        }
        let mut has_remote = false;
        for (rank, link) in self.links.iter().enumerate() {
            let Some(link) = link else { continue };
            let mut flags = PollFlags::IN;
            if !link.outgoing.is_empty() {
                flags |= PollFlags::OUT;
            }
            has_remote |= !link.socket.is_unix();
            entries.push(Entry::Rank(rank));
            fds.push(PollFd::from_borrowed_fd(link.socket.as_fd(), flags));
        }
        let deadlines = self.strangers.iter().map(|stranger| stranger.deadline);
        let deadline = deadlines
            .chain(self.hub.next_deadline())
            .chain(has_remote.then_some(self.next_ping))
            .min();
        if let Err(error) = wait_for(&mut fds, deadline) {
            warn!(target: "ringfold::control", "the rendezvous server stops: {error}");
            return None;
        }
        let ready = entries.into_iter().zip(&fds);
        Some(
            ready
                .filter(|(_, fd)| !fd.revents().is_empty())
                .map(|(entry, _)| entry)
                .collect(),
        )
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        match listener.accept() {
            Ok((name, socket)) => self.strangers.push(Stranger {
                socket,
                name,
                deadline: Instant::now() + HANDSHAKE,
                acceptor: Acceptor::new(&self.secret),
                received: Vec::with_capacity(HELLO_BYTES),
                claim: None,
            }),
            Err(error) if is_transient(&error) => {}
            Err(error) => self.turn_away("a connection", &error.to_string()),
        }
    }

    fn serve_stranger(&mut self, index: usize) {
        let world_size = self.world_size;
        let taken: Vec<u32> = self.taken();
        let stranger = &mut self.strangers[index];
        let admit = |claim: &Claim| {
            if claim.world_size != world_size {
                Err(Refusal::WorldSize)
            } else if claim.from == 0 || claim.from >= world_size || claim.to != 0 {
                Err(Refusal::Rank)
            } else if taken.contains(&claim.from) {
                Err(Refusal::Duplicate)
            } else {
                Ok(())
            }
        };
        match stranger.advance(admit) {
            Progress::Waiting => {}
            Progress::Admitted(rank) => {
                let stranger = self.strangers.swap_remove(index);
                debug!(target: "ringfold::control", "rank {rank} connected from {}", stranger.name);
                self.links[rank as usize] = Some(Link::new(stranger.socket));
            }
            Progress::TurnedAway(why) => {
                let stranger = self.strangers.swap_remove(index);
                self.turn_away(&stranger.name, &why);
            }
        }
    }

    /// Ranks that have, or have had, a connection.
    fn taken(&self) -> Vec<u32> {
        let ranks = 0..self.world_size;
        ranks
            .filter(|rank| self.links[*rank as usize].is_some() || self.hub.is_known(*rank))
            .collect()
    }

    fn drop_slow_strangers(&mut self, now: Instant) {
        let (keep, slow): (Vec<_>, Vec<_>) = std::mem::take(&mut self.strangers)
            .into_iter()
            .partition(|stranger| now < stranger.deadline);
        self.strangers = keep;
        for stranger in slow {
            self.turn_away(&stranger.name, "it was too slow");
        }
    }

    /// Counts a stranger that did not get in; only the first is worth a line.
    fn turn_away(&mut self, name: &str, why: &str) {
        self.turned_away += 1;
        let level = match self.turned_away {
            1 => log::Level::Warn,
            _ => log::Level::Debug,
        };
        log::log!(target: "ringfold::control", level, "turned away {name}: {why}");
    }

    /// Reads all that `rank` has sent, and acts on it.
    fn read(&mut self, rank: usize) {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let Some(link) = &mut self.links[rank] else {
                return;
            };
            let end = match link.socket.read(&mut buffer) {
                Ok(0) => Some("its control connection was closed".to_string()),
                Ok(count) => {
                    link.splitter.push(&buffer[..count]);
                    None
                }
                Err(error) if is_transient(&error) => return,
                Err(error) => Some(format!("its control connection broke: {error}")),
            };
            if let Some(reason) = end {
                return self.lose(rank, &reason);
            }
            if let Err(what) = self.act(rank) {
                return self.lose(rank, what);
            }
        }
    }

    /// Believes the ranks that saw another one's process end, after reading what that one still said: its goodbye, if
    /// there was one, arrived before the suspicion.
    fn judge_suspicions(&mut self) {
        while let Some((witness, suspect)) = self.suspicions.pop() {
            self.read(suspect);
            let rank = suspect as u32;
            // A witness that is not here any more is no witness.
            let _ = self
                .hub
                .receive(witness as u32, Frame::Suspect { rank }, Instant::now());
        }
    }

    /// Acts on the complete frames of `rank`.
    fn act(&mut self, rank: usize) -> Result<(), &'static str> {
        while let Some(link) = &mut self.links[rank] {
            let frame = match link.splitter.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(_) => return Err("it sent a malformed frame"),
            };
            if let Frame::Suspect { rank: suspect } = frame {
                if (suspect as usize) < self.links.len() {
                    self.suspicions.push((rank, suspect as usize));
                }
                continue;
            }
            link.is_ended |= frame == Frame::Goodbye;
            self.hub
                .receive(rank as u32, frame, Instant::now())
                .map_err(|misconduct| misconduct.0)?;
        }
        Ok(())
    }

    fn lose(&mut self, rank: usize, reason: &str) {
        if let Some(link) = self.links[rank].take()
            && !link.is_ended
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
            if !link.socket.is_unix() && link.outgoing.is_empty() {
                link.outgoing.extend(&bytes);
            }
        }
    }

    /// Hands the hub's frames to the sockets. A lost rank makes new frames; hence the loop, which ends because a rank
    /// is lost once.
    fn send(&mut self) {
        loop {
            for (to, frame) in self.hub.take_output() {
                if let Some(link) = &mut self.links[to as usize] {
                    link.outgoing.extend(frame.encode());
                }
            }
            let mut lost = Vec::new();
            for (rank, link) in self.links.iter_mut().enumerate() {
                let Some(link) = link else { continue };
                match link.flush() {
                    Err(error) => {
                        lost.push((rank, format!("its control connection broke: {error}")))
                    }
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

    /// Says goodbye to all and ends.
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

impl Stranger {
    /// Goes on with the handshake as far as the bytes that are there allow.
    fn advance(&mut self, admit: impl FnOnce(&Claim) -> Result<(), Refusal>) -> Progress {
        let mut admit = Some(admit);
        loop {
            let wanted = match self.claim {
                None => HELLO_BYTES,
                Some(_) => PROOF_BYTES,
            };
            let mut buffer = [0; HELLO_BYTES];
            let room = &mut buffer[..wanted - self.received.len()];
            match self.socket.read(room) {
                Ok(0) => return Progress::TurnedAway("it left in the middle of the handshake; a rank whose secret differs does that too".into()),
                Ok(count) => self.received.extend_from_slice(&room[..count]),
                Err(error) if is_transient(&error) => return Progress::Waiting,
                Err(error) => return Progress::TurnedAway(error.to_string()),
            }
            if self.received.len() < wanted {
                continue;
            }
            let message = std::mem::take(&mut self.received);
            let Some(claim) = self.claim else {
                match self.challenge(&message) {
                    Ok(claim) => self.claim = Some(claim),
                    Err(why) => return Progress::TurnedAway(why),
                }
                continue;
            };
            let Some(admit) = admit.take() else {
                return Progress::Waiting;
            };
            return self.judge(&message, claim, admit);
        }
    }

    fn challenge(&mut self, message: &[u8]) -> Result<Claim, String> {
        let hello: &[u8; HELLO_BYTES] = message.try_into().map_err(|_| "a short hello")?;
        let nonce = random().map_err(|error| error.to_string())?;
        let (challenge, claim) = self.acceptor.challenge(hello, Purpose::Control, nonce);
        // Fits into any socket's buffer; a peer whose buffer is full has not read what was never sent.
        let sent = self
            .socket
            .write(&challenge)
            .map_err(|error| error.to_string())?;
        match claim {
            Ok(claim) if sent == CHALLENGE_BYTES => Ok(claim),
            Ok(_) => Err("it does not read".into()),
            Err(refusal) => Err(refusal.to_string()),
        }
    }

    fn judge(
        &mut self,
        message: &[u8],
        claim: Claim,
        admit: impl FnOnce(&Claim) -> Result<(), Refusal>,
    ) -> Progress {
        let Ok(proof) = message.try_into() else {
            return Progress::TurnedAway("a short proof".into());
        };
        let refusal = self
            .acceptor
            .check(proof)
            .and_then(|()| admit(&claim))
            .err();
        let answer = self.acceptor.answer(refusal);
        match (self.socket.write(&answer), refusal) {
            (_, Some(refusal)) => {
                Progress::TurnedAway(format!("claiming rank {}: {refusal}", claim.from))
            }
            (Ok(auth::ANSWER_BYTES), None) => Progress::Admitted(claim.from),
            (Ok(_), None) => Progress::TurnedAway("it does not read".into()),
            (Err(error), None) => Progress::TurnedAway(error.to_string()),
        }
    }
}
