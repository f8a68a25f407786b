//! Joining a job: rank 0 binds its addresses, and the others connect and wait until all ranks have
//! joined.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use log::{debug, info, warn};

use super::address::RendezvousAddress;
use super::auth::{self, Claim, HandshakeFailure, Secret};
use super::frame::{Frame, Malformed, Presence, SERVER_FRAME_BYTES_MAX, Splitter};
use super::handshake;
use super::launch::Launch;
use super::limit::Limit;
use super::poll::is_transient;
use super::socket::{CANDIDATES_MAX, ForeignPeer, Listener, Socket, process_name};
use crate::error::{Error, Refused, Result};
use crate::silence::Silence;
use crate::topology::interface_choice::InterfaceChoice;
use crate::topology::interfaces;

/// Shortest and longest pause between attempts to reach rank 0, which may not have started yet; the
/// pause doubles each time.
const RETRY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// Time limit for a process that was just killed to release its address.
const ENDING: Duration = Duration::from_secs(1);

/// Shortest and longest time limit for one of several candidates to answer; doubles each time.
const CANDIDATE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));

/// Returns the secret to use at `addresses`, or an error if one is required and missing.
pub(super) fn secret_for(
    addresses: &[RendezvousAddress],
    secret: Option<Secret>,
) -> Result<Secret> {
    let network = addresses
        .iter()
        .find(|address| matches!(address, RendezvousAddress::Tcp { .. }));
    match (network, secret.filter(|secret| !secret.is_empty())) {
        (_, Some(secret)) => Ok(secret),
        (None, None) => Ok(Secret::same_user()),
        (Some(address), None) => Err(Error::Bootstrap(format!(
            "refusing to join at {address} without a secret, because any process could join; set \
             RINGFOLD_SECRET, or RINGFOLD_SECRET_FILE to a file of mode 0600, to the same content \
             on all ranks"
        ))),
    }
}

/// Binds the rendezvous at all addresses of `launch`, and at its public name if that is free.
pub(super) fn bind(launch: &Launch, limit: Limit<'_>) -> Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    for address in &launch.addresses {
        listeners.extend(bind_one(address, launch.socket_ifname.as_ref(), limit)?);
    }
    if let Some(name) = &launch.public_name {
        match Listener::bind(name, limit) {
            Ok(bound) => listeners.extend(bound),
            // Ranks with the same secret do not need the public name.
            Err(error) => debug!(target: "ringfold::control", "cannot listen at {name}: {error}"),
        }
    }
    Ok(listeners)
}

/// Binds one address, with its listeners [`beyond_loopback`]. Retries an address that may belong to
/// a process that was just killed.
fn bind_one(
    address: &RendezvousAddress,
    choice: Option<&InterfaceChoice>,
    limit: Limit<'_>,
) -> Result<Vec<Listener>> {
    let grace = limit.within(ENDING);
    let mut pause = RETRY.0;
    loop {
        let error = match try_to_bind(address, choice, limit) {
            Ok(listeners) => {
                info!(target: "ringfold::control", "rank 0 listens at {address}");
                return Ok(listeners);
            }
            Err(error) => error,
        };
        limit.check()?;
        let holder = match error.kind() {
            ErrorKind::AddrInUse => Some(Holder::of(address)),
            _ => None,
        };
        if grace.is_over() || !matches!(holder, Some(Holder::Own(_) | Holder::Unknown)) {
            let why = holder.map_or(String::new(), |holder| format!(" ({holder})"));
            return Err(Error::Bootstrap(format!(
                "rank 0 cannot listen at {address}: {}{why}; RINGFOLD_ADDR must name an address of \
                 rank 0's host and a free port",
                Refused(&error)
            )));
        }
        grace.pause(pause)?;
        pause = (pause * 2).min(RETRY.1);
    }
}

/// Binds one address, with its listeners [`beyond_loopback`].
pub(super) fn try_to_bind(
    address: &RendezvousAddress,
    choice: Option<&InterfaceChoice>,
    limit: Limit<'_>,
) -> io::Result<Vec<Listener>> {
    let mut bound = Listener::bind(address, limit)?;
    bound.extend(beyond_loopback(address, &bound, choice));
    Ok(bound)
}

/// The holder of an address that rank 0 needs.
enum Holder {
    /// A process of this user.
    Own(i32),
    Stranger(ForeignPeer),
    /// Unknown, because a port does not tell, or a name has just become free.
    Unknown,
}

impl Holder {
    fn of(address: &RendezvousAddress) -> Holder {
        let RendezvousAddress::Unix { .. } = address else {
            return Holder::Unknown;
        };
        // Connects at once or not at all.
        match Socket::connect(address, Instant::now()) {
            Ok(socket) => socket.peer_process().map_or(Holder::Unknown, Holder::Own),
            Err(error) => ForeignPeer::of(&error).map_or(Holder::Unknown, Holder::Stranger),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Own(pid) => write!(f, "this user's process {pid} listens there"),
            Holder::Stranger(stranger) => write!(f, "{}", squatted(stranger)),
            Holder::Unknown => f.write_str("another program listens there"),
        }
    }
}

/// Returns a text about a name that another user holds, and the remedy.
fn squatted(stranger: &ForeignPeer) -> String {
    format!(
        "user {} holds that name with {}, as any user of this host can; set RINGFOLD_SECRET on all \
         ranks, so that they use a name that only they know",
        stranger.uid,
        process_name(stranger.pid)
    )
}

/// Binds the same port at the interfaces that `choice` selects, if `address` is a host's own name
/// that means only the loopback here, which no other host can reach. On other systems, such a name
/// means an interface. A rendezvous by TCP always has a secret.
fn beyond_loopback(
    address: &RendezvousAddress,
    bound: &[Listener],
    choice: Option<&InterfaceChoice>,
) -> Vec<Listener> {
    let locals = bound.iter().map(Listener::local);
    let locals: Option<Vec<SocketAddr>> = locals.collect();
    let locals = locals.unwrap_or_default();
    let is_loopback = |local: &SocketAddr| local.ip().is_loopback();
    let Some(local) = locals.first().filter(|_| locals.iter().all(is_loopback)) else {
        return Vec::new();
    };
    let candidates = match address.is_own_name() {
        true => interfaces::candidates(choice, false).map(|found| found.addresses()),
        false => Ok(Vec::new()),
    };
    let candidates = candidates.unwrap_or_else(|error| {
        debug!(target: "ringfold::control", "no interfaces for rank 0 to listen on: {error}");
        Vec::new()
    });
    let candidates = candidates.into_iter().take(CANDIDATES_MAX);
    let places = candidates.map(|candidate| SocketAddr::new(candidate, local.port()));
    let others: Vec<Listener> = places
        .filter_map(|place| {
            let bound = Listener::bind_tcp(place);
            let bound = bound.inspect_err(|error| {
                debug!(target: "ringfold::control", "cannot listen at {place}: {error}");
            });
            bound.ok()
        })
        .collect();
    let there: Vec<SocketAddr> = others.iter().filter_map(Listener::local).collect();
    match there.is_empty() {
        true => warn!(
            target: "ringfold::control",
            "{address} is {local} here, which other hosts cannot reach; if there are any, set \
             RINGFOLD_ADDR to an address that they know"
        ),
        false => info!(
            target: "ringfold::control",
            "{address} is {local} here, so rank 0 also listens at {there:?} for other hosts"
        ),
    }
    others
}

/// Connects to rank 0, which may not have started yet, at the first of `addresses` that can be
/// reached.
pub(super) fn reach(
    addresses: &[RendezvousAddress],
    secret: &Secret,
    claim: Claim,
    limit: Limit<'_>,
) -> Result<Socket> {
    let (mut pause, mut patience) = (RETRY.0, CANDIDATE.0);
    let is_single = addresses.len() == 1;
    let mut is_first_round = true;
    // The last informative problem of each address.
    let mut known: Vec<Option<Problem>> = addresses.iter().map(|_| None).collect();
    loop {
        for (address, known) in addresses.iter().zip(&mut known) {
            let candidate = match is_single {
                true => limit,
                false => limit.within(patience),
            };
            match attempt(address, secret, claim, candidate, limit) {
                Ok(socket) => return Ok(socket),
                // An attempt that the limit cut short tells less than the one before.
                Err(problem)
                    if known.is_none()
                        || problem.kind != ProblemKind::Passing
                        || !limit.is_over() =>
                {
                    *known = Some(problem);
                }
                Err(_) => {}
            }
            limit.check()?;
        }
        let problems = addresses.iter().zip(known.iter().flatten());
        let problems: Vec<(&RendezvousAddress, &Problem)> = problems.collect();
        let mut kinds = problems.iter().map(|(_, problem)| problem.kind);
        // One of several candidates may belong to another job, so the others are tried once more.
        if kinds.clone().any(|kind| kind == ProblemKind::Refused) && (is_single || !is_first_round)
        {
            return Err(Error::Bootstrap(format!(
                "the handshake of rank {} with rank 0 was refused: {}",
                claim.from,
                list(&problems)
            )));
        }
        if limit.is_over() || kinds.all(|kind| kind == ProblemKind::Hopeless) {
            return Err(Error::Bootstrap(format!(
                "rank {} cannot reach rank 0 ({}); is rank 0 running, and is the address right?",
                claim.from,
                list(&problems)
            )));
        }
        limit.pause(pause)?;
        pause = (pause * 2).min(RETRY.1);
        patience = (patience * 2).min(CANDIDATE.1);
        is_first_round = false;
    }
}

/// Whether trying again can help.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProblemKind {
    /// Rank 0 may not have started yet, or be busy.
    Passing,
    /// Rank 0 cannot be reached at this address.
    Hopeless,
    /// A retry cannot help, if rank 0 is at this address.
    Refused,
}

/// The cause of a failed attempt to reach rank 0.
struct Problem {
    text: String,
    kind: ProblemKind,
}

impl Problem {
    fn new(kind: ProblemKind, text: impl ToString) -> Problem {
        let text = text.to_string();
        Problem { text, kind }
    }

    /// Classifies the error of a connection attempt.
    fn of(error: &std::io::Error) -> Problem {
        match ForeignPeer::of(error) {
            Some(stranger) => Problem::new(ProblemKind::Hopeless, squatted(&stranger)),
            None if Refused(error).lacks_descriptors() => {
                Problem::new(ProblemKind::Hopeless, Refused(error))
            }
            None => Problem::new(ProblemKind::Passing, error),
        }
    }
}

/// Tries one address: connects within `candidate`, and completes the handshake within `limit`.
fn attempt(
    address: &RendezvousAddress,
    secret: &Secret,
    claim: Claim,
    candidate: Limit<'_>,
    limit: Limit<'_>,
) -> Result<Socket, Problem> {
    let socket = Socket::connect(address, candidate).map_err(|error| Problem::of(&error))?;
    let patience = handshake::patience(&socket, limit);
    match auth::initiate(&socket, secret, claim, patience) {
        Ok(()) => Ok(socket),
        Err(HandshakeFailure::Refused(refusal)) if refusal.is_final() => {
            Err(Problem::new(ProblemKind::Refused, refusal))
        }
        Err(failure) => Err(Problem::new(ProblemKind::Passing, failure)),
    }
}

fn list(problems: &[(&RendezvousAddress, &Problem)]) -> String {
    let entries = problems
        .iter()
        .map(|(address, problem)| format!("{address}: {}", problem.text));
    entries.collect::<Vec<_>>().join("; ")
}

/// Waits until all ranks have joined.
pub(super) fn await_welcome(
    socket: &Socket,
    splitter: &mut Splitter,
    limit: Limit<'_>,
) -> Result<(u64, [u8; 32], Silence, Vec<Presence>)> {
    let failed = |why: &str| Err(Error::Bootstrap(why.into()));
    let mut refused = None;
    loop {
        match next_frame(socket, splitter, limit) {
            Ok(Frame::Welcome {
                job,
                key,
                silence_ms,
                ranks,
            }) => {
                let silence = Silence::new(Duration::from_millis(silence_ms))?;
                return Ok((job, key, silence, ranks));
            }
            Ok(Frame::Cancelled { ranks, reason }) => {
                return Err(Error::Bootstrap(format!(
                    "not all ranks joined: {reason}; missing ranks: {ranks:?}"
                )));
            }
            Ok(Frame::Refused { reason }) => refused = Some(reason),
            Ok(Frame::Ping) => {
                let sent = socket.write_all(&Frame::Pong.encode(), limit);
                sent.map_err(|error| Error::system("joining", error))?;
            }
            Ok(Frame::Closing) => return failed("rank 0 has left before all ranks joined"),
            Ok(_) => return failed("rank 0 does not speak this protocol"),
            Err(error) => match error.kind() {
                ErrorKind::InvalidData => return failed("rank 0 does not speak this protocol"),
                ErrorKind::UnexpectedEof => return failed("rank 0 ended before all ranks joined"),
                ErrorKind::TimedOut => {
                    let also = refused.map_or(String::new(), |text| format!("; {text}"));
                    return failed(&format!("waiting for all ranks to join: {error}{also}"));
                }
                _ => return Err(Error::system("joining", error)),
            },
        }
    }
}

/// Reads the next frame from a server. Malformed bytes are the error `InvalidData`, and the end of
/// the connection is `UnexpectedEof`.
fn next_frame(socket: &Socket, splitter: &mut Splitter, limit: Limit<'_>) -> io::Result<Frame> {
    let mut buffer = [0; 4096];
    loop {
        match splitter.next_frame() {
            Ok(Some(frame)) => return Ok(frame),
            Ok(None) => {}
            Err(Malformed) => return Err(ErrorKind::InvalidData.into()),
        }
        match socket.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => splitter.push(&buffer[..count]),
            Err(error) if is_transient(&error) => socket.wait_readable(limit)?,
            Err(error) => return Err(error),
        }
    }
}

/// Leaves a job that not all ranks have joined yet, so that this rank may join again: says goodbye,
/// and waits until rank 0 has confirmed that.
pub(super) fn withdraw(socket: &Socket, deadline: Instant) {
    let mut splitter = Splitter::new(SERVER_FRAME_BYTES_MAX);
    let mut frame = || next_frame(socket, &mut splitter, deadline.into());
    // Without a connection there is nothing to leave.
    if socket.write_all(&Frame::Goodbye.encode(), deadline).is_ok() {
        while frame().is_ok_and(|frame| !matches!(frame, Frame::Departed { .. })) {}
    }
}
