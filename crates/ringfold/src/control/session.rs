//! A rank's membership in a job: its connection to the rendezvous server and the thread that reads
//! it.
//!
//! [`Session`] owns both. When its last communicator is closed, or its last clone is dropped, the
//! session says goodbye, waits a bounded time for the server to pass that on, and ends the thread.
//! The goodbye is confirmed so that no neighbour sees the process end before it knows that the rank
//! left cleanly.

mod exchange;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::address::RendezvousAddress;
use super::auth::{Claim, Secret};
use super::connection::{ANSWER, ControlConnection, Reach};
use super::frame::{Frame, Presence, SERVER_FRAME_BYTES_MAX, Splitter};
use super::health::{Health, OpenCommunicators};
use super::launch::Launch;
use super::limit::Limit;
use super::listener::RendezvousListener;
use super::monitor::Monitor;
use super::rendezvous::{await_welcome, bind, reach, secret_for, withdraw};
use super::server::ServerThread;
use super::socket::{Socket, random};
use crate::error::{Error, GONE, Result};
use crate::silence::Silence;
use crate::sync::lock;
use crate::threads;
use crate::topology::HostId;
use crate::transport::Waker;

/// Time limit for the confirmation of the goodbye, which is slow only on a machine with far too
/// many processes.
const GOODBYE: Duration = Duration::from_secs(1);

/// A rank's membership in a job. Clones share the membership.
#[derive(Clone, Debug)]
pub struct Session(Arc<Owner>);

#[derive(Debug)]
struct Owner {
    job: u64,
    secret: Secret,
    ranks: Vec<Presence>,
    silence: Silence,
    connection: Arc<ControlConnection>,
    communicators: Arc<OpenCommunicators>,
    /// The session's threads; empty once this rank has left.
    threads: Mutex<Threads>,
    /// The process that joined; a forked child is not a member.
    pid: u32,
}

/// The threads of a membership: none in a job of one rank.
#[derive(Debug, Default)]
struct Threads {
    monitor: Option<JoinHandle<()>>,
    server: Option<ServerThread>,
}

impl Session {
    /// Joins the job that `launch` describes, by `deadline`. A job of one rank opens no connection.
    pub fn join(launch: &Launch, secret: Option<Secret>, deadline: Instant) -> Result<Session> {
        Session::join_at(launch, None, secret, deadline.into())
    }

    /// Like [`join`](Session::join), but `limit` can cancel it; rank 0 may pass listeners that are
    /// already open instead of addresses.
    pub fn join_at(
        launch: &Launch,
        listener: Option<RendezvousListener>,
        secret: Option<Secret>,
        limit: Limit<'_>,
    ) -> Result<Session> {
        let presence = Presence {
            host: HostId::here()?,
            pid: std::process::id(),
        };
        if launch.rank >= launch.world_size || u32::try_from(launch.world_size).is_err() {
            return Err(Error::InvalidArgument(format!(
                "invalid rank {} of {} ranks",
                launch.rank, launch.world_size
            )));
        }
        if launch.world_size == 1 {
            return Session::alone(presence);
        }
        if launch.addresses.is_empty() && listener.is_none() {
            return Err(Error::Bootstrap(
                "no address of rank 0; set RINGFOLD_ADDR to `host:port` of rank 0 on all ranks"
                    .into(),
            ));
        }
        let addresses = match &listener {
            Some(listener) => listener.addresses(),
            None => &launch.addresses,
        };
        let found = secret_for(addresses, secret.clone())?;
        let (socket, server) = match launch.rank {
            0 => {
                let (socket, server) = Session::serve(launch, listener, found, limit)?;
                (socket, Some(server))
            }
            _ => (Session::reach_server(launch, &found, limit)?, None),
        };
        Session::enter(launch, secret, socket, server, presence, limit)
    }

    /// Starts the server in rank 0's process, and returns rank 0's own connection to it.
    fn serve(
        launch: &Launch,
        listener: Option<RendezvousListener>,
        secret: Secret,
        limit: Limit<'_>,
    ) -> Result<(Socket, ServerThread)> {
        let listeners = match listener {
            Some(listener) => listener.into_listeners(),
            None => bind(launch, limit)?,
        };
        let (world_size, deadline) = (launch.world_size as u32, limit.deadline());
        ServerThread::start(listeners, world_size, secret, launch.silence, deadline)
    }

    /// Connects another rank to rank 0's server.
    fn reach_server(launch: &Launch, secret: &Secret, limit: Limit<'_>) -> Result<Socket> {
        let claim = Claim::control(launch.rank, launch.world_size);
        let candidates = launch.addresses.iter().chain(&launch.public_name);
        let candidates: Vec<RendezvousAddress> = candidates.cloned().collect();
        let socket = reach(&candidates, secret, claim, limit)?;
        // This rank's own limit, until rank 0's is known.
        let watched = socket.watch_for_silence(launch.silence);
        watched.map_err(|error| Error::system("cannot watch rank 0's host", error))?;
        Ok(socket)
    }

    /// Creates the session of a job of one rank.
    fn alone(presence: Presence) -> Result<Session> {
        let connection = ControlConnection::new(0, 1, None, Reach::Closed)?;
        Ok(Session(Arc::new(Owner {
            job: u64::from_le_bytes(random()?),
            secret: Secret::new(random::<32>()?),
            ranks: vec![presence],
            silence: Silence::default(),
            connection: Arc::new(connection),
            communicators: Arc::default(),
            threads: Mutex::default(),
            pid: presence.pid,
        })))
    }

    /// Joins after the handshake: waits for all ranks, and starts the monitor.
    fn enter(
        launch: &Launch,
        secret: Option<Secret>,
        socket: Socket,
        server: Option<ServerThread>,
        presence: Presence,
        limit: Limit<'_>,
    ) -> Result<Session> {
        let broke = |error| Error::system("the connection to rank 0 broke while joining", error);
        let join = Frame::Join { presence }.encode();
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
                "peer timeout {} ms, as set on rank 0", silence.limit().as_millis()
            );
        }
        let rank = launch.rank as u32;
        let connection = ControlConnection::new(rank, ranks.len(), Some(socket), Reach::Open)?;
        let connection = Arc::new(connection);
        let communicators = Arc::<OpenCommunicators>::default();
        let open = communicators.clone();
        let monitor = Monitor::new(connection.clone(), open, splitter, silence, &ranks);
        let thread = threads::start("ringfold-monitor", move || monitor.run())?;
        Ok(Session(Arc::new(Owner {
            job,
            secret: secret.unwrap_or_else(|| Secret::new(key)),
            ranks,
            silence,
            connection,
            communicators,
            threads: Mutex::new(Threads {
                monitor: Some(thread),
                server,
            }),
            pid: presence.pid,
        })))
    }

    /// Returns this process' world rank.
    pub fn rank(&self) -> usize {
        self.0.connection.rank as usize
    }

    /// Returns the number of ranks in the job.
    pub fn world_size(&self) -> usize {
        self.0.ranks.len()
    }

    /// Whether the server, in rank 0's process, was lost without a goodbye: exchanges fail from
    /// then on, and the server sends no verdict.
    pub fn has_lost_server(&self) -> bool {
        self.0.connection.state().reach == Reach::Lost
    }

    /// Whether the server can be reached, so that exchanges are possible.
    pub fn is_open(&self) -> bool {
        self.0.connection.state().reach == Reach::Open
    }

    /// Returns this job's random number, which all of its ranks, and no other job, have.
    pub fn job(&self) -> u64 {
        self.0.job
    }

    /// Returns the secret of this job's other connections: the one that was passed in, or a random
    /// one that rank 0 sent over UNIX sockets of this user.
    pub fn secret(&self) -> &Secret {
        &self.0.secret
    }

    /// Returns the peer timeout: how long another host may be silent, as set on rank 0.
    pub fn silence(&self) -> Silence {
        self.0.silence
    }

    /// Returns the host of a world rank.
    pub fn host(&self, rank: usize) -> HostId {
        self.0.ranks[rank].host
    }

    /// Returns the process id of a world rank on its host.
    pub fn pid(&self, rank: usize) -> u32 {
        self.0.ranks[rank].pid
    }

    /// Registers `communicator`, a number that is the same on all its ranks and used once; `ranks`
    /// are its world ranks. `waker` ends a wait of the data path after a change.
    pub fn open(&self, communicator: u64, ranks: &[usize], waker: Waker) -> Result<Arc<Health>> {
        let (ranks, members) = self.check_members(ranks)?;
        let me = ranks
            .iter()
            .position(|rank| *rank == self.0.connection.rank);
        // Checked above: this rank is one of them.
        let me = me.unwrap_or(0);
        let connection = self.0.connection.clone();
        let health = Health::new(communicator, ranks, me, waker, connection);
        let health = Arc::new(health);
        // Before the state is read: the monitor passes on every later change.
        self.0.communicators.add(communicator, &health)?;
        {
            let state = self.0.connection.state();
            let departed = |rank: &&u32| state.departed[**rank as usize];
            members
                .iter()
                .filter(departed)
                .for_each(|rank| health.mark_left(*rank));
            if state.reach == Reach::Lost {
                health.mark_dead(0, GONE);
            }
        }
        self.0.connection.send(&Frame::Open {
            communicator,
            members,
        });
        Ok(health)
    }

    /// Closes `communicator` cleanly.
    pub fn close(&self, communicator: u64) {
        if self.0.communicators.remove(communicator) && !self.0.is_forked() {
            self.0.connection.send(&Frame::Close { communicator });
        }
    }

    /// Leaves the job cleanly if no communicator of it is open: the process may end without
    /// dropping the session. Blocks until the server has confirmed that, for a second at most, and
    /// on rank 0 until the other ranks have left, too, for half a second at most.
    pub fn leave_if_unused(&self) {
        if !self.0.is_forked() && self.0.communicators.all().is_empty() {
            let threads = std::mem::take(&mut *lock(&self.0.threads));
            self.0.leave(threads);
        }
    }

    /// Checks the world ranks of a communicator; returns them in its order, and in ascending order.
    fn check_members(&self, ranks: &[usize]) -> Result<(Vec<u32>, Vec<u32>)> {
        let in_order: Vec<u32> = ranks.iter().map(|rank| *rank as u32).collect();
        let mut ascending = in_order.clone();
        ascending.sort_unstable();
        let is_inside = ranks.iter().all(|rank| *rank < self.world_size());
        let are_different = ascending.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_inside || !are_different || !ranks.contains(&self.rank()) {
            return Err(Error::InvalidArgument(format!(
                "invalid members {ranks:?}: must be distinct ranks below {} and include rank {}",
                self.world_size(),
                self.rank()
            )));
        }
        Ok((in_order, ascending))
    }
}

impl Owner {
    fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }

    /// Says goodbye and ends the threads.
    fn leave(&self, threads: Threads) {
        let Some(monitor) = threads.monitor else {
            return;
        };
        let me = self.connection.rank as usize;
        if self.connection.send(&Frame::Goodbye) {
            let deadline = Instant::now() + GOODBYE;
            drop(self.connection.wait_until(deadline, |state| {
                state.reach != Reach::Open || state.departed[me]
            }));
        }
        self.connection.stop();
        if monitor.thread().id() != std::thread::current().id() {
            // A panic in the thread has been printed already.
            let _ = monitor.join();
        }
        self.connection.close();
        // Waits for the others, whose goodbyes this rank's monitor need not receive.
        drop(threads.server);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let threads = self.threads.get_mut();
        let threads = std::mem::take(threads.unwrap_or_else(PoisonError::into_inner));
        match self.is_forked() {
            // The threads are the parent's, and so is the goodbye.
            true => std::mem::forget(threads),
            false => self.leave(threads),
        }
    }
}
