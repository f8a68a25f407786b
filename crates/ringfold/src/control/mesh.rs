//! Data connections between the ranks of a communicator.
//!
//! Connecting takes two steps, because addresses must be exchanged in between: a [`MeshListener`]
//! binds, then [`Mesh::connect`] makes all connections at once. Of two ranks, the lower one listens
//! and the higher one connects. Each connection proves the job's secret and names communicator,
//! ranks, channel and socket; both ends check these. The listeners are bound to the given addresses
//! only, and closed when the mesh is complete.
//!
//! Ranks with several networks in common spread the sockets of a channel over them: the connecting
//! end binds each socket to its own address of the network. A network that does not work yet is
//! waited for, and skipped if it stays so.

mod made;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use made::Made;

use super::auth::{Claim, HandshakeFailure, Purpose, Refusal, Secret, initiate};
use super::connect;
use super::handshake::{HANDSHAKE, HandshakeListener};
use super::limit::{GLANCE, Limit};
use super::socket::{CANDIDATES_MAX, Listener, Socket};
use crate::congestion::CongestionAlgorithms;
use crate::error::{Error, Refused, Result};
use crate::threads;
use crate::transport::tcp::Sockets;

/// Time limit for one address of a peer to answer before the next is tried.
const CANDIDATE: Duration = Duration::from_secs(3);
/// Maximum number of connecting threads.
const CONNECTORS_MAX: usize = 16;

/// Listeners at which the other ranks reach this rank.
#[derive(Debug)]
pub struct MeshListener {
    listeners: Vec<Listener>,
    addresses: Vec<SocketAddr>,
    congestion: CongestionAlgorithms,
}

impl MeshListener {
    /// Listens on free ports of exactly these addresses. Skips addresses that cannot be bound,
    /// unless none can. All connections begin with `congestion`.
    pub fn bind(
        candidates: &[IpAddr],
        secret: &Secret,
        congestion: CongestionAlgorithms,
    ) -> Result<MeshListener> {
        if secret.is_empty() {
            return Err(Error::Bootstrap(
                "refusing to listen for data without a secret, because any process could connect; \
                 set RINGFOLD_SECRET"
                    .into(),
            ));
        }
        let (listeners, addresses) = Listener::bind_free(candidates).map_err(|why| {
            Error::Bootstrap(format!(
                "no address to listen on for data ({why}); see RINGFOLD_SOCKET_IFNAME"
            ))
        })?;
        for listener in &listeners {
            congestion.apply(listener).map_err(|error| {
                Error::system("cannot set the congestion control of a listener", error)
            })?;
        }
        log::info!(target: "ringfold::control", "listening for data on {addresses:?}");
        Ok(MeshListener {
            listeners,
            addresses,
            congestion,
        })
    }

    /// Returns the bound addresses in order of preference, which the other ranks need to know.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

/// A rank to connect with.
#[derive(Clone, Debug)]
pub struct MeshPeer {
    /// Rank in the communicator.
    pub rank: usize,
    /// Addresses at which the peer listens, according to itself.
    pub addresses: Vec<SocketAddr>,
    /// Whether the peer is in this network namespace, so that loopback addresses reach it.
    pub shares_loopback: bool,
    /// Number of sockets of each channel, the same on the peer.
    pub sockets: usize,
    /// The networks over which the sockets are spread; none if any address will do.
    pub rails: Vec<RailAddresses>,
}

/// A network that two ranks have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailAddresses {
    /// Address of this rank.
    pub from: IpAddr,
    /// Address at which the peer listens.
    pub to: SocketAddr,
}

/// The connections to make, which every member describes alike.
#[derive(Debug)]
pub struct Mesh<'a> {
    /// The communicator's number.
    pub communicator: u64,
    /// Number of this rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// Number of channels of each pair.
    pub channels: usize,
    /// The job's secret.
    pub secret: &'a Secret,
    /// The ranks to connect with, without this one.
    pub peers: &'a [MeshPeer],
}

impl Mesh<'_> {
    /// Makes all connections within `limit`: by peer, channel and socket, non-blocking and without
    /// Nagle's delay. Ranks that are no peers have none.
    pub fn connect(&self, listener: MeshListener, limit: Limit<'_>) -> Result<Sockets> {
        let mut counts = vec![0; self.world_size];
        for peer in self.peers {
            counts[peer.rank] = peer.sockets;
        }
        let congestion = listener.congestion.clone();
        let made = Made::new(&counts, self.channels, congestion, limit)?;
        let (above, below): (Vec<&MeshPeer>, Vec<&MeshPeer>) =
            self.peers.iter().partition(|peer| peer.rank > self.rank);
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let connect = || {
                // A ticket counter: nothing is published with it.
                while let Some(peer) = below.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = self.reach(peer, &made, limit) {
                        made.fail(error);
                        return;
                    }
                }
            };
            for connectors in 0..below.len().min(CONNECTORS_MAX) {
                match threads::start_within(scope, "ringfold-connect", connect) {
                    Ok(_) => {}
                    // With fewer threads, connecting only takes longer.
                    Err(_) if connectors > 0 => break,
                    Err(error) => {
                        made.fail(error);
                        break;
                    }
                }
            }
            if let Err(error) = self.await_peers(&above, listener, &made, limit) {
                made.fail(error);
            }
        });
        made.finish()
    }

    /// Connects all channels to `peer`, which is known to listen: waits while it is silent or no
    /// route leads there.
    fn reach(&self, peer: &MeshPeer, made: &Made, limit: Limit<'_>) -> Result<()> {
        let mut addresses = peer.addresses.clone();
        addresses.truncate(CANDIDATES_MAX);
        addresses.retain(|address| peer.shares_loopback || !address.ip().is_loopback());
        // On one host, the loopback is the shortest path.
        addresses.sort_by_key(|address| !address.ip().is_loopback());
        // One failed connection ends all attempts.
        let is_over = || {
            limit
                .check()
                .err()
                .or(made.is_failed().then_some(Error::Closed))
        };
        let limit = Limit::new(limit.deadline(), &is_over);
        self.reach_by_rails(peer, made, limit)?;
        let mut failures = vec![None; addresses.len()];
        let told = |failures: &[Option<String>]| {
            let told = addresses.iter().zip(failures);
            let told =
                told.filter_map(|(address, why)| Some(format!("{address}: {}", why.as_ref()?)));
            told.collect::<Vec<_>>().join("; ")
        };
        let mut is_said = false;
        loop {
            let mut may_change = false;
            for (index, address) in addresses.iter().enumerate() {
                let patience = match index + 1 < addresses.len() {
                    true => limit.within(HANDSHAKE * 2),
                    false => limit,
                };
                let why = match self.reach_at(peer, (None, *address), |_| true, made, patience) {
                    Ok(()) => return Ok(()),
                    Err(Unreachable::Final(error)) => return Err(error),
                    Err(Unreachable::Yet(why)) => {
                        may_change = true;
                        why
                    }
                    Err(Unreachable::Here(why)) => why,
                };
                // An attempt that the limit cut short tells less than the one before.
                if failures[index].is_none() || !limit.is_over() {
                    failures[index] = Some(why);
                }
            }
            if !may_change || limit.is_over() {
                break;
            }
            if !is_said {
                is_said = true;
                log::warn!(
                    target: "ringfold::control",
                    "rank {} does not reach rank {} for data yet ({}); it keeps trying until the \
                     deadline for joining",
                    self.rank, peer.rank, told(&failures)
                );
            }
            limit.pause(GLANCE)?;
        }
        let tried = match addresses.is_empty() {
            true => "it has no address that can be reached from here".into(),
            false => told(&failures),
        };
        Err(Error::Bootstrap(format!(
            "rank {} cannot reach rank {} for data ({tried}); check links, routes and firewalls, \
             or choose with RINGFOLD_SOCKET_IFNAME",
            self.rank, peer.rank
        )))
    }

    /// Spreads the sockets of `peer` over its rails. Sockets of a rail that fails use the others;
    /// if none works, the missing sockets are left to the caller.
    fn reach_by_rails(&self, peer: &MeshPeer, made: &Made, limit: Limit<'_>) -> Result<()> {
        let mut rails = peer.rails.clone();
        while !rails.is_empty() {
            let mut working = Vec::new();
            for (index, rail) in rails.iter().enumerate() {
                let is_its = |socket: usize| socket % rails.len() == index;
                match self.reach_by_rail(peer, *rail, is_its, made, limit) {
                    Ok(()) => working.push(*rail),
                    Err(Unreachable::Final(error)) => return Err(error),
                    Err(Unreachable::Yet(why) | Unreachable::Here(why)) => log::warn!(
                        target: "ringfold::control",
                        "data with rank {} does not use the rail from {} to {}: {why}; see \
                         RINGFOLD_SOCKET_IFNAME",
                        peer.rank, rail.from, rail.to.ip()
                    ),
                }
            }
            if working.len() == rails.len() {
                break;
            }
            rails = working;
        }
        Ok(())
    }

    /// Connects the sockets to `peer` that `is_its` selects, over a rail. Waits for a rail that
    /// does not work yet.
    fn reach_by_rail(
        &self,
        peer: &MeshPeer,
        rail: RailAddresses,
        is_its: impl Fn(usize) -> bool,
        made: &Made,
        limit: Limit<'_>,
    ) -> Result<(), Unreachable> {
        let way = (Some(rail.from), rail.to);
        let mut is_said = false;
        loop {
            match self.reach_at(peer, way, &is_its, made, limit.within(HANDSHAKE * 2)) {
                Err(Unreachable::Yet(why)) if Instant::now() < made.rails_until => {
                    if !std::mem::replace(&mut is_said, true) {
                        log::warn!(
                            target: "ringfold::control",
                            "data with rank {} waits for the rail from {} to {}: {why}",
                            peer.rank, rail.from, rail.to.ip()
                        );
                    }
                }
                outcome => return outcome,
            }
            limit.pause(GLANCE).map_err(Unreachable::Final)?;
        }
    }

    /// Connects the sockets to `peer` that are still missing and that `is_its` selects, from the
    /// local address `from`, if set, to the peer's address `to`.
    fn reach_at(
        &self,
        peer: &MeshPeer,
        (from, to): (Option<IpAddr>, SocketAddr),
        is_its: impl Fn(usize) -> bool,
        made: &Made,
        limit: Limit<'_>,
    ) -> Result<(), Unreachable> {
        for (channel, index) in self.places(peer).filter(|(_, index)| is_its(*index)) {
            limit.check().map_err(Unreachable::Final)?;
            if made.has(peer.rank, channel, index) {
                continue;
            }
            let stream = connect::tcp(&to, limit.within(CANDIDATE), |socket| {
                if let Some(from) = from {
                    rustix::net::bind(socket, &SocketAddr::new(from, 0))?;
                }
                made.congestion.apply(socket)
            });
            let socket = stream.and_then(Socket::from_tcp);
            let socket = socket.map_err(|error| match limit.check() {
                Ok(()) if Refused(&error).lacks_descriptors() => {
                    Unreachable::Final(Error::system("cannot make a socket for data", error))
                }
                Ok(()) if may_change(&error) => Unreachable::Yet(error.to_string()),
                Ok(()) => Unreachable::Here(error.to_string()),
                Err(over) => Unreachable::Final(over),
            })?;
            let claim = self.claim(peer.rank, channel, index);
            initiate(&socket, self.secret, claim, limit).map_err(|failure| {
                match (limit.check(), failure) {
                    (Err(over), _) => Unreachable::Final(over),
                    (Ok(()), HandshakeFailure::Broken(error)) => {
                        Unreachable::Yet(error.to_string())
                    }
                    (Ok(()), refused) => Unreachable::Here(refused.to_string()),
                }
            })?;
            made.add(peer.rank, channel, index, socket);
        }
        Ok(())
    }

    /// Returns channel and socket of all connections with `peer`.
    fn places(&self, peer: &MeshPeer) -> impl Iterator<Item = (usize, usize)> + use<> {
        let sockets = peer.sockets;
        (0..self.channels).flat_map(move |channel| (0..sockets).map(move |index| (channel, index)))
    }

    fn claim(&self, to: usize, channel: usize, index: usize) -> Claim {
        Claim {
            purpose: Purpose::Data,
            channel: channel as u32,
            communicator: self.communicator,
            from: self.rank as u32,
            to: to as u32,
            world_size: self.world_size as u32,
            socket: index as u32,
        }
    }

    /// Admits all channels of the peers `above`.
    fn await_peers(
        &self,
        above: &[&MeshPeer],
        listener: MeshListener,
        made: &Made,
        limit: Limit<'_>,
    ) -> Result<()> {
        let MeshListener {
            listeners,
            addresses,
            ..
        } = listener;
        let mut handshakes = HandshakeListener::new(listeners, self.secret, Purpose::Data);
        let mut taken = BTreeSet::new();
        let sockets: usize = above.iter().map(|peer| peer.sockets).sum();
        let mut missing = sockets * self.channels;
        while missing > 0 {
            limit.check()?;
            if made.is_failed() {
                return Ok(());
            }
            if limit.is_over() {
                return Err(self.missing_peers(above, &taken, &addresses));
            }
            let mut judge = |claim: &Claim| self.judge(claim, above, &mut taken);
            let until = limit.next_look();
            for (claim, socket) in handshakes.wait(Some(&made.wake), until, &mut judge)? {
                let [from, channel, index] = place(&claim);
                made.add(from, channel, index, socket);
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

    /// Checks that a claim is for a connection that is due here, and the first for it.
    fn judge(
        &self,
        claim: &Claim,
        above: &[&MeshPeer],
        taken: &mut BTreeSet<[usize; 3]>,
    ) -> Result<(), Refusal> {
        if claim.communicator != self.communicator {
            return Err(Refusal::Communicator);
        }
        if claim.world_size as usize != self.world_size {
            return Err(Refusal::WorldSize {
                claimed: claim.world_size,
                expected: self.world_size as u32,
            });
        }
        let [from, channel, index] = place(claim);
        let peer = above.iter().find(|peer| peer.rank == from);
        let is_due = peer.is_some_and(|peer| channel < self.channels && index < peer.sockets);
        if !is_due || claim.to as usize != self.rank {
            return Err(Refusal::Rank);
        }
        match taken.insert(place(claim)) {
            true => Ok(()),
            false => Err(Refusal::Duplicate),
        }
    }

    /// Returns the error for peers `above` that did not connect to any of this rank's `addresses`.
    fn missing_peers(
        &self,
        above: &[&MeshPeer],
        taken: &BTreeSet<[usize; 3]>,
        addresses: &[SocketAddr],
    ) -> Error {
        let is_missing = |peer: &&&MeshPeer| {
            let mut places = self.places(peer);
            !places.all(|(channel, index)| taken.contains(&[peer.rank, channel, index]))
        };
        let missing: Vec<usize> = above
            .iter()
            .filter(is_missing)
            .map(|peer| peer.rank)
            .collect();
        Error::Bootstrap(format!(
            "ranks {missing:?} did not connect to rank {} for data at {addresses:?}; check links, \
             routes and firewalls, or choose with RINGFOLD_SOCKET_IFNAME",
            self.rank
        ))
    }
}

/// Returns the rank, channel and socket of a connection.
fn place(claim: &Claim) -> [usize; 3] {
    [claim.from, claim.channel, claim.socket].map(|number| number as usize)
}

/// Cause of a failed connection attempt.
enum Unreachable {
    /// The peer cannot be reached at this address.
    Here(String),
    /// The peer cannot be reached yet. Either no route leads there at the moment; or a process
    /// listens there and has not answered in time, or has dropped this rank for being slow, so one
    /// of the two may have been stopped.
    Yet(String),
    /// Further attempts are pointless.
    Final(Error),
}

/// Whether a link that comes up, or a route that is learnt, may fix the error. A refused connection
/// stays refused: the peer has announced that it listens.
fn may_change(error: &io::Error) -> bool {
    use io::ErrorKind::{
        AddrNotAvailable, HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut,
    };
    // `AddrNotAvailable`: the address of a link that has just come up is still tentative.
    matches!(
        error.kind(),
        AddrNotAvailable | HostUnreachable | NetworkDown | NetworkUnreachable | TimedOut
    )
}
