//! The rendezvous server: a thread in rank 0's process that owns every rank's control connection.
//!
//! One poll loop, in which nothing blocks: the [`Door`] until all ranks have joined, and the ranks. What to do about a
//! frame is [`Hub`]'s business; this module moves bytes.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use log::{debug, info, warn};
use rustix::event::{PollFd, PollFlags};

use super::auth::{Claim, Purpose, Refusal, Secret};
use super::door::Door;
use super::fault::Class;
use super::frame::{Frame, RANK_FRAME_BYTES_MAX, Splitter};
use super::hub::Hub;
use super::socket::{Bell, Listener, Socket, is_transient, random, remaining, wait_for};
use crate::error::{Error, Result};
use crate::silence::{PING, Silence};
use crate::threads;

/// Bytes that may wait to be sent to one rank before it counts as lost: two of the largest frames.
const BACKLOG_BYTES_MAX: usize = 512 << 20;
/// How long rank 0 stays for the others when it leaves before them, so that what they have begun can end.
const LINGER: Duration = Duration::from_millis(500);
/// How long the last frames may take when rank 0 leaves.
const FLUSH: Duration = Duration::from_millis(200);
/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// The server's thread; it ends when this is dropped, a moment later if other ranks are still in the job.
#[derive(Debug)]
pub struct Server {
    stop: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `world_size` ranks. Rank 0 is at the other end of `own`; the others come to `listeners` by `deadline`.
    pub fn start(
        listeners: Vec<Listener>,
        own: Socket,
        world_size: u32,
        secret: Secret,
        silence: Silence,
        deadline: Instant,
    ) -> Result<Server> {
        let bell = || Bell::new().map_err(|error| Error::system("cannot make an eventfd", error));
        let stop = Arc::new(bell()?);
        let job = u64::from_le_bytes(random()?);
        // Travels in the clear, so only where nobody else can listen.
        let is_unix = |listener: &Listener| matches!(listener, Listener::Unix(_));
        let key = match listeners.iter().all(is_unix) {
            true => random()?,
            false => [0; 32],
        };
        let mut state = State {
            hub: Hub::new(job, key, world_size, deadline).with_silence(silence),
            door: Some(Door::new(listeners, &secret, Purpose::Control)),
            links: (0..world_size).map(|_| None).collect(),
            world_size,
            silence,
            next_ping: Instant::now() + PING,
            accusations: Vec::new(),
            leaving: None,
            stop: stop.clone(),
        };
        state.links[0] = Some(Link::new(own));
        let thread = threads::start("ringfold-server", move || state.serve())?;
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

/// A rank's connection.
struct Link {
    socket: Socket,
    splitter: Splitter,
    outgoing: VecDeque<u8>,
    /// Whether it has said goodbye.
    is_ended: bool,
    /// Whether a ping is not answered yet: a frozen rank gets no more of them, or they would fill its buffer and look
    /// like a dead link.
    awaits_pong: bool,
}

impl Link {
    fn new(socket: Socket) -> Link {
        Link {
            socket,
            splitter: Splitter::new(RANK_FRAME_BYTES_MAX),
            outgoing: VecDeque::new(),
            is_ended: false,
            awaits_pong: false,
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

/// Whom `frame` says to be gone.
fn accused(frame: &Frame) -> Vec<u32> {
    match frame {
        Frame::Suspect { rank } => vec![*rank],
        Frame::Report { fault, .. } if fault.class == Class::PeerFailed => fault.ranks.clone(),
        _ => Vec::new(),
    }
}

struct State {
    hub: Hub,
    /// Open until all ranks have joined.
    door: Option<Door>,
    links: Vec<Option<Link>>,
    world_size: u32,
    silence: Silence,
    next_ping: Instant,
    /// Frames that blame others for being gone, and who sent them.
    accusations: Vec<(usize, Frame)>,
    /// Set when rank 0 leaves: until when it stays for the others.
    leaving: Option<Instant>,
    stop: Arc<Bell>,
}

impl State {
    fn serve(mut self) {
        while !self.is_over()
            && let Some((at_door, ranks)) = self.wait()
        {
            self.admit(&at_door);
            for rank in ranks {
                self.read(rank);
            }
            self.judge_accusations();
            let now = Instant::now();
            self.hub.tick(now);
            self.ping(now);
            self.send();
            if self.hub.is_complete() && !self.hub.is_cancelled() && self.door.take().is_some() {
                info!(target: "ringfold::control", "all {} ranks have joined", self.world_size);
            }
        }
        self.leave();
    }

    /// Whether rank 0 has left and need not stay for the others.
    fn is_over(&self) -> bool {
        // Ranks that come late to a job that was given up learn it.
        let is_needed = self.hub.is_in_use() || (self.hub.is_cancelled() && self.door.is_some());
        self.leaving
            .is_some_and(|until| !is_needed || remaining(until).is_zero())
    }

    /// Waits for something to do: who is ready at the door, and which ranks. `None`: polling failed.
    fn wait(&mut self) -> Option<(Vec<bool>, Vec<usize>)> {
        let mut fds = vec![PollFd::new(&*self.stop, PollFlags::IN)];
        if let Some(door) = &self.door {
            door.add_descriptors(&mut fds);
        }
        let at_door = fds.len();
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
        let impatient = self.door.as_ref().and_then(Door::next_deadline);
        let deadline = impatient
            .into_iter()
            .chain(self.hub.next_deadline())
            .chain(has_remote.then_some(self.next_ping))
            .chain(self.leaving)
            .min();
        if let Err(error) = wait_for(&mut fds, deadline) {
            warn!(target: "ringfold::control", "the rendezvous server stops: {error}");
            return None;
        }
        let is_ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if is_ready[0] {
            self.stop.answer();
            self.leaving = Some(Instant::now() + LINGER);
        }
        let ready_ranks = ranks.into_iter().zip(&is_ready[at_door..]);
        let ready_ranks = ready_ranks.filter(|(_, ready)| **ready);
        Some((
            is_ready[1..at_door].to_vec(),
            ready_ranks.map(|(rank, _)| rank).collect(),
        ))
    }

    fn admit(&mut self, at_door: &[bool]) {
        let Some(door) = &mut self.door else {
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
                Err(Refusal::WorldSize)
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
        for (claim, socket) in door.serve(at_door, &mut judge) {
            if let Err(error) = socket.watch_for_silence(self.silence) {
                warn!(target: "ringfold::control", "rank {}'s host is watched as by default: {error}", claim.from);
            }
            self.links[claim.from as usize] = Some(Link::new(socket));
        }
        if let Some(refused) = door.take_refused() {
            self.hub.note_refused(refused);
        }
        if let Some(want) = door.want() {
            let reason = format!("rank 0's process cannot take more connections: {want}");
            self.hub.give_up(&self.hub.absent(), &reason);
        }
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

    /// Believes the ranks that saw another one go, after reading what that one still said: if it
    /// told why it left, by an abort or a goodbye, that arrived before the accusation. If it
    /// accused a third one, and left for that reason, its own accusation is judged first.
    fn judge_accusations(&mut self) {
        let mut pending = VecDeque::from(std::mem::take(&mut self.accusations));
        while let Some((witness, frame)) = pending.pop_front() {
            for suspect in accused(&frame) {
                if (suspect as usize) < self.links.len() {
                    self.read(suspect as usize);
                }
            }
            if self.accusations.is_empty() {
                // A witness that is not here any more is no witness.
                let _ = self.hub.receive(witness as u32, frame, Instant::now());
                continue;
            }
            pending.push_front((witness, frame));
            for accusation in self.accusations.drain(..).rev() {
                pending.push_front(accusation);
            }
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
                .map_err(|misconduct| misconduct.0)?;
        }
        Ok(())
    }

    fn lose(&mut self, rank: usize, reason: &str) {
        // One that has not said who it is yet may have been too slow for its own patience, and
        // comes again.
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

    /// Hands the hub's frames to the sockets, rank 0's last: its process may end as soon as it hears a verdict, and this
    /// server with it. A lost rank makes new frames; hence the loop, which ends because a rank is lost once.
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

#[cfg(test)]
mod tests {
    use super::super::fault::Fault;
    use super::super::frame::Presence;
    use super::*;
    use crate::topology::HostId;

    /// A server of three ranks that have joined and opened communicator 7, and the ranks' ends.
    fn job() -> (State, Vec<Socket>) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut hub = Hub::new(1, [0; 32], 3, deadline);
        let host = HostId::here().expect("this host has a name");
        let members = vec![0, 1, 2];
        for rank in 0..3 {
            let presence = Presence {
                host,
                pid: rank + 1,
            };
            let joined = hub.receive(rank, Frame::Join(presence), deadline);
            joined.expect("a rank may join");
        }
        for rank in 0..3 {
            let open = Frame::Open {
                communicator: 7,
                members: members.clone(),
            };
            let opened = hub.receive(rank, open, deadline);
            opened.expect("a rank may open a communicator");
        }
        let pairs = (0..3).map(|_| Socket::pair().expect("socket pairs are to be had"));
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.unzip();
        let state = State {
            hub,
            door: None,
            links: ours.into_iter().map(Link::new).map(Some).collect(),
            world_size: 3,
            silence: Silence::default(),
            next_ping: deadline,
            accusations: Vec::new(),
            leaving: None,
            stop: Arc::new(Bell::new().expect("eventfds are to be had")),
        };
        (state, theirs)
    }

    fn report(class: Class, rank: u32) -> Vec<u8> {
        let fault = Fault {
            class,
            ..Fault::peer_failed(rank, "so it is said")
        };
        let frame = Frame::Report {
            communicator: 7,
            fault,
        };
        frame.encode()
    }

    #[test]
    fn who_hears_a_verdict_in_rank_0_can_end_without_keeping_it_from_others() {
        for _ in 0..500 {
            let (mut state, mut ranks) = job();
            let first = ranks.remove(0);
            let listener = std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                // It does not sleep, so that it looks at the others as soon as it can.
                while first.read(&mut buffer).is_err() {}
                ranks
                    .iter()
                    .all(|rank| rank.read(&mut buffer).is_ok_and(|count| count > 0))
            });
            let aborted = Fault {
                class: Class::Aborted,
                ..Fault::peer_failed(2, "so it is said")
            };
            let frame = Frame::Report {
                communicator: 7,
                fault: aborted,
            };
            // What the ranks were told when they joined.
            drop(state.hub.take_output());
            let told = state.hub.receive(2, frame, Instant::now());
            told.expect("a rank may report");
            state.send();
            assert!(
                listener.join().expect("it listens"),
                "somebody has not been told"
            );
        }
    }

    #[test]
    fn an_abort_counts_before_the_accusation_that_its_author_is_gone() {
        let (mut state, ranks) = job();
        let soon = Instant::now() + Duration::from_secs(60);
        ranks[2]
            .write_all(&report(Class::Aborted, 2), soon)
            .expect("a small frame fits");
        ranks[1]
            .write_all(&report(Class::PeerFailed, 2), soon)
            .expect("a small frame fits");
        // As in a round of the server in which both are ready.
        for rank in [1, 2] {
            state.read(rank);
        }
        state.judge_accusations();
        let verdicts = state.hub.take_output().into_iter();
        let classes: Vec<Class> = verdicts
            .filter_map(|(_, frame)| match frame {
                Frame::Verdict { fault, .. } => Some(fault.class),
                _ => None,
            })
            .collect();
        assert_eq!(classes, [Class::Aborted; 3]);
    }
    #[test]
    fn a_rank_that_left_because_of_a_dead_one_is_not_blamed_for_it() {
        let (mut state, mut ranks) = job();
        let soon = Instant::now() + Duration::from_secs(60);
        let write =
            |rank: &Socket, bytes: &[u8]| rank.write_all(bytes, soon).expect("a small frame fits");
        // Rank 2 has died, rank 1 has seen it and left, and rank 0 has seen rank 1 leave.
        drop(ranks.pop());
        write(&ranks[1], &Frame::Suspect { rank: 2 }.encode());
        write(&ranks[1], &Frame::Close { communicator: 7 }.encode());
        write(&ranks[0], &report(Class::PeerFailed, 1));
        drop(state.hub.take_output());
        // As in a round of the server that began before the others were ready.
        state.read(0);
        state.judge_accusations();
        let verdicts = state.hub.take_output().into_iter();
        let blamed: Vec<Vec<u32>> = verdicts
            .filter_map(|(_, frame)| match frame {
                Frame::Verdict { fault, .. } => Some(fault.ranks),
                _ => None,
            })
            .collect();
        assert_eq!(blamed[0], [2]);
    }
}
