//! A rank's membership in a job: its connection to the rendezvous server and the thread that reads it.
//!
//! [`Session`] is the owner; its last clone says goodbye when it is dropped, waits a bounded time for the server to pass
//! that on, and ends the thread. The goodbye is confirmed so that no neighbour can see the process end before it knows
//! that the end was in order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::auth::{Claim, Purpose, Secret};
use super::fault::{Class, Fault};
use super::frame::{
    BLOB_BYTES_MAX, Frame, KEY_BYTES_MAX, Presence, SERVER_FRAME_BYTES_MAX, Splitter,
};
use super::health::Health;
use super::launch::Launch;
use super::limit::Limit;
use super::meeting::Meeting;
use super::monitor::Monitor;
use super::rendezvous::{await_welcome, bind, reach, secret_for, withdraw};
use super::server::Server;
use super::socket::{Address, Bell, Socket, random, remaining};
use super::standing::Standing;
use crate::error::{Error, Result};
use crate::silence::Silence;
use crate::threads;
use crate::topology::HostId;
use crate::transport::Waker;
use crate::wait::SPAN_MAX;

/// How long one frame to the server may take: it always reads, so more means that it is frozen.
const SEND: Duration = Duration::from_secs(2);
/// How long the confirmation of the goodbye may take, which is long only on a machine with far too many processes.
const GOODBYE: Duration = Duration::from_secs(1);
/// How much longer than the deadline of an exchange or a survey the server may take to say so.
const ANSWER: Duration = Duration::from_millis(500);
/// A rank in a job. Clones are the same membership.
#[derive(Clone, Debug)]
pub struct Session(Arc<Owner>);

/// Whether the server can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Open,
    /// Rank 0 left in good order, or there is nobody else.
    Closed,
    /// The connection is gone and rank 0 with it.
    Lost,
}

/// What came of an exchange.
pub(super) type Gathered = Result<Vec<Vec<u8>>, Fault>;

/// What the user's threads and the monitor share.
#[derive(Debug)]
pub struct Line {
    pub(super) rank: u32,
    pub(super) socket: Option<Socket>,
    /// Held while a frame is written, so that frames do not mix.
    writing: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
    pub(super) bell: Bell,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) reach: Reach,
    pub(super) healths: HashMap<u64, Arc<Health>>,
    /// By token: exchanges that are waited for, and what came of them.
    pub(super) exchanges: HashMap<u64, Option<Gathered>>,
    /// By token: surveys that are waited for, and what came of them.
    pub(super) surveys: HashMap<u64, Option<Vec<Option<Standing>>>>,
    next_survey: u64,
    pub(super) departed: Vec<bool>,
    pub(super) is_stopping: bool,
}

impl Line {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
        let _guard = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        socket.write_all(&bytes, Instant::now() + SEND).is_ok()
    }

    /// Asks how far the members of `communicator` are; nothing when nobody answers in time.
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
    fn wait_until(
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

#[derive(Debug)]
struct Owner {
    world_size: usize,
    job: u64,
    secret: Secret,
    ranks: Vec<Presence>,
    silence: Silence,
    line: Arc<Line>,
    tokens: AtomicU64,
    monitor: Option<JoinHandle<()>>,
    server: Option<Server>,
    /// The process that joined; a forked child is not a member.
    pid: u32,
}

impl Session {
    /// Joins the job that `launch` describes, by `deadline`. A job of one rank opens nothing.
    pub fn join(launch: &Launch, secret: Option<Secret>, deadline: Instant) -> Result<Session> {
        Session::join_at(launch, None, secret, deadline.into())
    }

    /// Like [`join`](Session::join), and can be given up; rank 0 may have a place where it is met,
    /// instead of addresses.
    pub fn join_at(
        launch: &Launch,
        meeting: Option<Meeting>,
        secret: Option<Secret>,
        limit: Limit<'_>,
    ) -> Result<Session> {
        let presence = Presence {
            host: HostId::here()?,
            pid: std::process::id(),
        };
        if launch.rank >= launch.world_size || u32::try_from(launch.world_size).is_err() {
            return Err(Error::InvalidArgument(format!(
                "rank {} of {} ranks is impossible",
                launch.rank, launch.world_size
            )));
        }
        if launch.world_size == 1 {
            return Session::alone(presence);
        }
        let addresses = launch.addresses.as_slice();
        if addresses.is_empty() && meeting.is_none() {
            return Err(Error::Bootstrap(
                "no address to meet rank 0 at; set RINGFOLD_ADDR to `host:port` of rank 0 on all ranks".into(),
            ));
        }
        let given = secret.clone();
        let secret = match &meeting {
            Some(meeting) => secret_for(meeting.addresses(), secret)?,
            None => secret_for(addresses, secret)?,
        };
        let world_size = launch.world_size as u32;
        let (socket, server) = match launch.rank {
            0 => {
                let listeners = match meeting {
                    Some(meeting) => meeting.into_listeners(),
                    None => bind(addresses, launch.public_name.as_ref(), limit)?,
                };
                let (own, theirs) =
                    Socket::pair().map_err(|e| Error::system("cannot make a socket pair", e))?;
                let deadline = limit.deadline();
                let silence = launch.silence;
                let server =
                    Server::start(listeners, theirs, world_size, secret, silence, deadline)?;
                (own, Some(server))
            }
            rank => {
                let claim = Claim {
                    purpose: Purpose::Control,
                    channel: 0,
                    communicator: 0,
                    from: rank as u32,
                    to: 0,
                    world_size,
                };
                let places: Vec<Address> = addresses
                    .iter()
                    .chain(&launch.public_name)
                    .cloned()
                    .collect();
                let socket = reach(&places, &secret, claim, limit)?;
                // Its own, until rank 0's is known.
                let watched = socket.watch_for_silence(launch.silence);
                watched.map_err(|error| Error::system("cannot watch rank 0's host", error))?;
                (socket, None)
            }
        };
        Session::enter(launch, given, socket, server, presence, limit)
    }

    /// A job of one rank.
    fn alone(presence: Presence) -> Result<Session> {
        let line = Line::new(0, 1, None, Reach::Closed)?;
        Ok(Session(Arc::new(Owner {
            world_size: 1,
            job: u64::from_le_bytes(random()?),
            secret: Secret::new(random::<32>()?),
            ranks: vec![presence],
            silence: Silence::default(),
            line: Arc::new(line),
            tokens: AtomicU64::new(0),
            monitor: None,
            server: None,
            pid: presence.pid,
        })))
    }

    /// The part of joining that follows the handshake.
    fn enter(
        launch: &Launch,
        secret: Option<Secret>,
        socket: Socket,
        server: Option<Server>,
        presence: Presence,
        limit: Limit<'_>,
    ) -> Result<Session> {
        let broke = |error| Error::system("the connection to rank 0 broke while joining", error);
        let join = Frame::Join(presence).encode();
        socket.write_all(&join, limit).map_err(broke)?;
        let mut splitter = Splitter::new(SERVER_FRAME_BYTES_MAX);
        let welcome = await_welcome(&socket, &mut splitter, limit.extended(ANSWER));
        if server.is_none() && limit.check().is_err() {
            withdraw(&socket, Instant::now() + GOODBYE);
        }
        let (job, key, silence, ranks) = welcome?;
        if ranks.len() != launch.world_size {
            return Err(Error::Bootstrap(
                "rank 0 welcomed another number of ranks".into(),
            ));
        }
        socket.watch_for_silence(silence).map_err(broke)?;
        if silence != launch.silence {
            log::info!(
                target: "ringfold::init",
                "hosts may be silent for {} ms, as rank 0 has it", silence.limit().as_millis()
            );
        }
        crate::env::note_rank(launch.rank);
        let rank = launch.rank as u32;
        let line = Line::new(rank, ranks.len(), Some(socket), Reach::Open)?;
        let line = Arc::new(line);
        let monitor = Monitor::new(line.clone(), splitter, silence, &ranks);
        let thread = threads::start("ringfold-monitor", move || monitor.run())?;
        Ok(Session(Arc::new(Owner {
            world_size: ranks.len(),
            job,
            secret: secret.unwrap_or_else(|| Secret::new(key)),
            ranks,
            silence,
            line,
            tokens: AtomicU64::new(0),
            monitor: Some(thread),
            server,
            pid: presence.pid,
        })))
    }

    /// This process' world rank.
    pub fn rank(&self) -> usize {
        self.0.line.rank as usize
    }

    /// The number of ranks in the job.
    pub fn world_size(&self) -> usize {
        self.0.world_size
    }

    /// Whether the server, which rank 0's process has, is gone without a goodbye: nothing is
    /// brought together any more, and no verdict comes from it.
    pub fn has_lost_server(&self) -> bool {
        self.0.line.state().reach == Reach::Lost
    }

    /// A random number that all ranks of this job, and no other job, have.
    pub fn job(&self) -> u64 {
        self.0.job
    }

    /// The secret of this job's other connections: the one it was given, or one that rank 0 made up and passed on over
    /// UNIX sockets of this user.
    pub fn secret(&self) -> &Secret {
        &self.0.secret
    }

    /// How long another host may be silent: rank 0's setting.
    pub fn silence(&self) -> Silence {
        self.0.silence
    }

    /// The host of a world rank, by which ranks on one host are told.
    pub fn host(&self, rank: usize) -> HostId {
        self.0.ranks[rank].host
    }

    /// The process of a rank, in its host's numbers.
    pub fn pid(&self, rank: usize) -> u32 {
        self.0.ranks[rank].pid
    }

    /// Gives `blob` to all `members` (world ranks, ascending, this one among them) and gets theirs, in their order.
    ///
    /// All members use the same `key`; one key is used again only after all of them are through. An error names the
    /// ranks that did not come as positions in `members`.
    pub fn exchange(
        &self,
        key: &str,
        members: &[usize],
        blob: &[u8],
        deadline: Instant,
    ) -> Result<Vec<Vec<u8>>> {
        self.exchange_unless(key, members, blob, deadline, &|| None)
    }

    /// Like [`exchange`](Session::exchange), and ends early when `pointless` gives an error: a verdict on the communicator
    /// that the exchange is for. It is asked whenever something happened.
    pub fn exchange_unless(
        &self,
        key: &str,
        members: &[usize],
        blob: &[u8],
        deadline: Instant,
        pointless: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        let list = self.check_members(members)?;
        if blob.len() > BLOB_BYTES_MAX || key.len() > KEY_BYTES_MAX {
            return Err(Error::InvalidArgument(format!(
                "an exchange takes {BLOB_BYTES_MAX} bytes under a key of {KEY_BYTES_MAX}, not {} under {}",
                blob.len(),
                key.len()
            )));
        }
        if members.len() == 1 {
            return Ok(vec![blob.to_vec()]);
        }
        let started = Instant::now();
        // A counter by itself: nothing is published with it.
        let token = self.0.tokens.fetch_add(1, Ordering::Relaxed);
        self.0.line.state().exchanges.insert(token, None);
        let frame = Frame::Exchange {
            token,
            timeout_ms: remaining(deadline).as_millis() as u64,
            key: key.into(),
            members: list.clone(),
            blob: blob.to_vec(),
        };
        let is_sent = self.0.line.send(&frame);
        let is_over = |state: &State| {
            let is_answered = state.exchanges.get(&token).is_some_and(Option::is_some);
            state.reach != Reach::Open || is_answered || pointless().is_some()
        };
        // Where it could not be sent, the monitor is about to find out that the server is gone.
        let wait_end = match is_sent {
            true => deadline + ANSWER,
            false => Instant::now() + SEND,
        };
        let mut state = self.0.line.wait_until(wait_end, is_over);
        let outcome = state.exchanges.remove(&token).flatten();
        let reach = state.reach;
        drop(state);
        // The verdict says why the exchange has failed, and to all ranks the same.
        if !matches!(outcome, Some(Ok(_)))
            && let Some(error) = pointless()
        {
            return Err(error);
        }
        let is_orphaned = outcome.is_none() && reach != Reach::Open && list[0] != 0;
        if is_orphaned {
            return Err(Error::Bootstrap(
                "rank 0 of the job, whose process brings ranks together, has ended; join a new job"
                    .into(),
            ));
        }
        let after_ms = started.elapsed().as_millis() as u64;
        let fault = match outcome {
            Some(Ok(blobs)) if blobs.len() == members.len() => return Ok(blobs),
            Some(Ok(_)) => Fault::peer_failed(0, "its server sent an incomplete exchange"),
            Some(Err(fault)) => fault,
            None => match reach {
                Reach::Closed => Fault::peer_failed(0, "it has left the job"),
                Reach::Lost => Fault::peer_failed(0, "its control connection was closed"),
                Reach::Open if !is_sent => {
                    Fault::peer_failed(0, "it does not read its control connection")
                }
                // Not even the server answered.
                Reach::Open => Fault {
                    class: Class::Timeout,
                    ranks: vec![0],
                    text: String::new(),
                    after_ms,
                },
            },
        };
        // Only this rank knows how long it waited; other classes do not say it.
        Err(Fault { after_ms, ..fault }.to_error(&list))
    }

    /// Registers `communicator` (the same number on all members and used once), of `members` (world ranks, ascending).
    /// `waker` ends a wait of the data path when there is something new to look at.
    pub fn open(&self, communicator: u64, members: &[usize], waker: Waker) -> Result<Arc<Health>> {
        let list = self.check_members(members)?;
        // Checked above: this rank is a member.
        let me = list.binary_search(&self.0.line.rank).unwrap_or(0);
        let line = self.0.line.clone();
        let health = Arc::new(Health::new(communicator, list.clone(), me, waker, line));
        {
            let mut state = self.0.line.state();
            if state.healths.contains_key(&communicator) {
                return Err(Error::InvalidArgument(format!(
                    "communicator {communicator:x} is open already"
                )));
            }
            state.healths.insert(communicator, health.clone());
            for rank in &list {
                if state.departed[*rank as usize] {
                    health.mark_left(*rank);
                }
            }
            if state.reach == Reach::Lost {
                health.mark_dead(0, "its control connection was closed");
            }
        }
        let members = list;
        self.0.line.send(&Frame::Open {
            communicator,
            members,
        });
        Ok(health)
    }

    /// Leaves `communicator` in good order.
    pub fn close(&self, communicator: u64) {
        if self.0.line.state().healths.remove(&communicator).is_some() && !self.0.is_forked() {
            self.0.line.send(&Frame::Close { communicator });
        }
    }

    fn check_members(&self, members: &[usize]) -> Result<Vec<u32>> {
        let is_ascending = members.windows(2).all(|pair| pair[0] < pair[1]);
        let is_inside = members.last().is_some_and(|last| *last < self.0.world_size);
        if !is_ascending || !is_inside || !members.contains(&self.rank()) {
            return Err(Error::InvalidArgument(format!(
                "members {members:?} are not ascending ranks below {} with rank {} among them",
                self.0.world_size,
                self.rank()
            )));
        }
        Ok(members.iter().map(|rank| *rank as u32).collect())
    }
}

impl Line {
    pub(super) fn new(
        rank: u32,
        world_size: usize,
        socket: Option<Socket>,
        reach: Reach,
    ) -> Result<Line> {
        Ok(Line {
            rank,
            socket,
            writing: Mutex::new(()),
            state: Mutex::new(State {
                reach,
                healths: HashMap::new(),
                exchanges: HashMap::new(),
                surveys: HashMap::new(),
                next_survey: 0,
                departed: vec![false; world_size],
                is_stopping: false,
            }),
            changed: Condvar::new(),
            bell: Bell::new().map_err(|error| Error::system("cannot make an eventfd", error))?,
        })
    }
}

impl Owner {
    fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.is_forked() {
            // The threads are the parent's, and so is the goodbye.
            std::mem::forget((self.monitor.take(), self.server.take()));
            return;
        }
        let me = self.line.rank as usize;
        if self.line.send(&Frame::Goodbye) {
            let deadline = Instant::now() + GOODBYE;
            drop(self.line.wait_until(deadline, |state| {
                state.reach != Reach::Open || state.departed[me]
            }));
        }
        self.line.state().is_stopping = true;
        self.line.bell.ring();
        if let Some(thread) = self.monitor.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic in the thread has been printed; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}
