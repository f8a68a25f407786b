//! Data connections between the ranks of a communicator.
//!
//! In two steps, because addresses must be exchanged between them: a [`MeshListener`] binds and
//! says where, then [`Mesh::connect`] makes all connections at once. Of two ranks the lower one
//! listens and the higher one connects. Each connection proves the job's secret and names
//! communicator, ranks and channel; both ends check these. The listeners are bound to the given
//! addresses alone, and closed when the mesh is complete.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::auth::{Claim, Failure, Purpose, Refusal, Secret, initiate};
use super::handshake::{HANDSHAKE, HandshakeListener};
pub use super::limit::Cancelled;
use super::limit::{GLANCE, Limit};
use super::poll::{EventFd, remaining, wait_for};
use super::socket::{Listener, Socket};
use crate::error::{Error, Result};
use crate::sys::fork::Unshared;
use crate::threads;

/// How long one address of a peer has to answer before the next is tried.
const CANDIDATE: Duration = Duration::from_secs(3);
/// Threads that connect at the same time.
const CONNECTORS_MAX: usize = 16;
/// The most addresses one rank listens on.
pub const CANDIDATES_MAX: usize = 16;

/// Where a rank can be reached.
#[derive(Debug)]
pub struct MeshListener {
    listeners: Vec<Unshared<TcpListener>>,
    addresses: Vec<SocketAddr>,
}

impl MeshListener {
    /// Listens on free ports of exactly these addresses. One that cannot be bound is left out,
    /// unless none can.
    pub fn bind(candidates: &[IpAddr], secret: &Secret) -> Result<MeshListener> {
        if secret.is_empty() {
            return Err(Error::Bootstrap(
                "refusing to listen for data without a secret, because any process could connect; \
                 set RINGFOLD_SECRET"
                    .into(),
            ));
        }
        let mut bound = MeshListener {
            listeners: Vec::new(),
            addresses: Vec::new(),
        };
        let mut failures = Vec::new();
        for candidate in candidates.iter().take(CANDIDATES_MAX) {
            match listen(*candidate) {
                Ok((listener, address)) => {
                    log::info!(target: "ringfold::control", "listening for data on {address}");
                    bound.listeners.push(Unshared::new(listener));
                    bound.addresses.push(address);
                }
                Err(error) => failures.push(format!("{candidate}: {error}")),
            }
        }
        match bound.listeners.is_empty() {
            false => Ok(bound),
            true => Err(Error::Bootstrap(format!(
                "no address to listen on for data ({}); see RINGFOLD_SOCKET_IFNAME",
                if failures.is_empty() {
                    "no interface is left".into()
                } else {
                    failures.join("; ")
                }
            ))),
        }
    }

    /// Where it listens, in order of preference: what the other ranks need to know.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

fn listen(candidate: IpAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((candidate, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// A rank that gets connections.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its rank in the communicator.
    pub rank: usize,
    /// Where it says that it listens.
    pub addresses: Vec<SocketAddr>,
    /// Whether it is on this host: only then loopback addresses mean it.
    pub is_same_host: bool,
}

/// The connections to be made, as every member describes them alike.
#[derive(Debug)]
pub struct Mesh<'a> {
    /// The communicator's number.
    pub communicator: u64,
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// Connections per pair.
    pub channels: usize,
    /// The job's secret.
    pub secret: &'a Secret,
    /// The ranks to connect with, without this one.
    pub peers: &'a [Peer],
}

impl Mesh<'_> {
    /// Makes all connections by `deadline`: by peer and channel, non-blocking and without delay.
    /// Ranks that are no peers have none.
    pub fn connect(
        &self,
        listener: MeshListener,
        deadline: Instant,
        cancelled: Cancelled<'_>,
    ) -> Result<Vec<Vec<TcpStream>>> {
        let made = Made::new(self.world_size, self.channels)?;
        let (above, below): (Vec<&Peer>, Vec<&Peer>) =
            self.peers.iter().partition(|peer| peer.rank > self.rank);
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let connect = || {
                // A ticket counter: nothing is published with it.
                while let Some(peer) = below.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = self.reach(peer, &made, deadline, cancelled) {
                        made.fail(error);
                        return;
                    }
                }
            };
            for connectors in 0..below.len().min(CONNECTORS_MAX) {
                match threads::start_within(scope, "ringfold-connect", connect) {
                    Ok(_) => {}
                    // Fewer take longer.
                    Err(_) if connectors > 0 => break,
                    Err(error) => {
                        made.fail(error);
                        break;
                    }
                }
            }
            if let Err(error) = self.await_peers(&above, listener, &made, deadline, cancelled) {
                made.fail(error);
            }
        });
        made.finish()
    }

    /// Connects all channels to `peer`, of which is known that it listens: as long as it does and
    /// says nothing, it is waited for.
    fn reach(
        &self,
        peer: &Peer,
        made: &Made,
        deadline: Instant,
        cancelled: Cancelled<'_>,
    ) -> Result<()> {
        let mut addresses = peer.addresses.clone();
        addresses.truncate(CANDIDATES_MAX);
        addresses.retain(|address| peer.is_same_host || !address.ip().is_loopback());
        // On one host the loopback is the shortest way.
        addresses.sort_by_key(|address| !address.ip().is_loopback());
        let mut failures;
        // One connection that cannot be made is enough.
        let is_over = || cancelled().or_else(|| made.is_failed().then_some(Error::Closed));
        let limit = Limit::new(deadline, &is_over);
        loop {
            failures = Vec::new();
            let mut is_slow = false;
            for (index, address) in addresses.iter().enumerate() {
                let patience = match index + 1 < addresses.len() {
                    true => limit.within(HANDSHAKE * 2),
                    false => limit,
                };
                match self.reach_at(peer, *address, made, patience) {
                    Ok(()) => return Ok(()),
                    Err(Unreachable::Final(error)) => return Err(error),
                    Err(Unreachable::Slow(why)) => {
                        is_slow = true;
                        failures.push(format!("{address}: {why}"));
                    }
                    Err(Unreachable::Here(why)) => failures.push(format!("{address}: {why}")),
                }
            }
            if !is_slow || limit.is_over() {
                break;
            }
            limit.pause(GLANCE)?;
        }
        let tried = match failures.is_empty() {
            true => "it has no address that can be reached from here".into(),
            false => failures.join("; "),
        };
        Err(Error::Bootstrap(format!(
            "rank {} cannot reach rank {} for data ({tried}); check firewalls, or choose with \
             RINGFOLD_SOCKET_IFNAME",
            self.rank, peer.rank
        )))
    }

    /// Connects the channels to `peer` that are still missing at one of its addresses.
    fn reach_at(
        &self,
        peer: &Peer,
        address: SocketAddr,
        made: &Made,
        limit: Limit<'_>,
    ) -> Result<(), Unreachable> {
        for channel in 0..self.channels {
            limit.check().map_err(Unreachable::Final)?;
            if made.has(peer.rank, channel) {
                continue;
            }
            let left = remaining(limit.within(CANDIDATE).deadline()).max(Duration::from_millis(1));
            let here = |error: io::Error| Unreachable::Here(error.to_string());
            let stream = TcpStream::connect_timeout(&address, left).map_err(here)?;
            let kept = stream.try_clone().map_err(here)?;
            let socket = Socket::from_tcp(stream).map_err(here)?;
            let claim = self.claim(channel, peer.rank);
            initiate(&socket, self.secret, claim, limit).map_err(|failure| match failure {
                Failure::Broken(error) => Unreachable::Slow(error.to_string()),
                refused => Unreachable::Here(refused.to_string()),
            })?;
            made.add(peer.rank, channel, kept);
        }
        Ok(())
    }

    fn claim(&self, channel: usize, to: usize) -> Claim {
        Claim {
            purpose: Purpose::Data,
            channel: channel as u32,
            communicator: self.communicator,
            from: self.rank as u32,
            to: to as u32,
            world_size: self.world_size as u32,
        }
    }

    /// Lets in all channels of the peers `above`.
    fn await_peers(
        &self,
        above: &[&Peer],
        listener: MeshListener,
        made: &Made,
        deadline: Instant,
        cancelled: Cancelled<'_>,
    ) -> Result<()> {
        let listeners = listener.listeners.into_iter().map(Listener::Tcp).collect();
        let mut handshakes = HandshakeListener::new(listeners, self.secret, Purpose::Data);
        let mut is_taken = vec![false; self.world_size * self.channels];
        let mut missing = above.len() * self.channels;
        while missing > 0 {
            if let Some(error) = cancelled() {
                return Err(error);
            }
            if made.is_failed() {
                return Ok(());
            }
            if remaining(deadline).is_zero() {
                return Err(self.missing_peers(above, &is_taken));
            }
            let mut fds = vec![PollFd::new(&made.wake, rustix::event::PollFlags::IN)];
            handshakes.add_descriptors(&mut fds);
            let limit = deadline.min(Instant::now() + GLANCE);
            wait_for(&mut fds, Some(limit)).map_err(|e| Error::system("cannot poll", e))?;
            let is_ready: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut judge = |claim: &Claim| self.judge(claim, above, &mut is_taken);
            for (claim, socket) in handshakes.serve(&is_ready, &mut judge) {
                let stream = TcpStream::from(socket.into_fd());
                made.add(claim.from as usize, claim.channel as usize, stream);
                missing -= 1;
            }
            if let Some(want) = handshakes.want() {
                return Err(Error::Bootstrap(format!(
                    "rank {} cannot take more connections for data: {want}",
                    self.rank
                )));
            }
        }
        Ok(())
    }

    /// Whether a claim is one of the connections that are due here, and the first of its kind.
    fn judge(&self, claim: &Claim, above: &[&Peer], is_taken: &mut [bool]) -> Result<(), Refusal> {
        if claim.communicator != self.communicator {
            return Err(Refusal::Communicator);
        }
        if claim.world_size as usize != self.world_size {
            return Err(Refusal::WorldSize);
        }
        let (from, channel) = (claim.from as usize, claim.channel as usize);
        let is_due = above.iter().any(|peer| peer.rank == from) && channel < self.channels;
        if !is_due || claim.to as usize != self.rank {
            return Err(Refusal::Rank);
        }
        match std::mem::replace(&mut is_taken[from * self.channels + channel], true) {
            true => Err(Refusal::Duplicate),
            false => Ok(()),
        }
    }

    fn missing_peers(&self, above: &[&Peer], is_taken: &[bool]) -> Error {
        let channels = |rank: usize| &is_taken[rank * self.channels..][..self.channels];
        let missing: Vec<usize> = above
            .iter()
            .map(|peer| peer.rank)
            .filter(|rank| channels(*rank).contains(&false))
            .collect();
        Error::Bootstrap(format!(
            "ranks {missing:?} did not connect to rank {} for data; check firewalls, or choose \
             with RINGFOLD_SOCKET_IFNAME",
            self.rank
        ))
    }
}

/// Why a connection could not be made.
enum Unreachable {
    /// Not at this address.
    Here(String),
    /// A process listens there and has not answered in time, or has refused this rank because
    /// this rank itself was slow: one of the two may have stood still.
    Slow(String),
    /// Trying further is pointless.
    Final(Error),
}

/// The connections so far, shared by the threads that make them.
struct Made {
    streams: Mutex<Vec<Vec<Option<Unshared<TcpStream>>>>>,
    failure: Mutex<Option<Error>>,
    is_failed: AtomicBool,
    /// Tells the accepting thread of a failure.
    wake: EventFd,
}

impl Made {
    fn new(world_size: usize, channels: usize) -> Result<Made> {
        let row = || (0..channels).map(|_| None).collect();
        Ok(Made {
            streams: Mutex::new((0..world_size).map(|_| row()).collect()),
            failure: Mutex::new(None),
            is_failed: AtomicBool::new(false),
            wake: EventFd::new().map_err(|error| Error::system("cannot make an eventfd", error))?,
        })
    }

    fn has(&self, peer: usize, channel: usize) -> bool {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams[peer][channel].is_some()
    }

    fn add(&self, peer: usize, channel: usize, stream: TcpStream) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams[peer][channel] = Some(Unshared::new(stream));
    }

    /// The first failure stands.
    fn fail(&self, error: Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
        // A hint to stop early; the failure itself is behind the lock.
        self.is_failed.store(true, Ordering::Relaxed);
        self.wake.signal();
    }

    fn is_failed(&self) -> bool {
        self.is_failed.load(Ordering::Relaxed)
    }

    fn finish(self) -> Result<Vec<Vec<TcpStream>>> {
        let failure = self
            .failure
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = failure {
            return Err(error);
        }
        let streams = self
            .streams
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(streams
            .into_iter()
            .map(|row| {
                row.into_iter()
                    .flatten()
                    .map(Unshared::into_inner)
                    .collect()
            })
            .collect())
    }
}
