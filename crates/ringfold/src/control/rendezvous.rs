//! The way into a job: where rank 0 listens, and how the others get there and wait until all have come.

use std::time::{Duration, Instant};

use log::{info, warn};

use super::auth::{self, Claim, Failure, Secret};
use super::door::HANDSHAKE;
use super::frame::{Frame, Presence, Splitter};
use super::socket::{Address, Listener, Socket, is_transient, remaining};
use crate::error::{Error, Result};

/// The pause between attempts to reach rank 0, which may not have started yet: it doubles from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// How long one of several candidates may take to answer: it doubles from the first to the second.
const CANDIDATE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));

/// The secret to use at `addresses`, or why there must be one.
pub(super) fn secret_for(addresses: &[Address], secret: Option<Secret>) -> Result<Secret> {
    let network = addresses
        .iter()
        .find(|address| matches!(address, Address::Tcp { .. }));
    match (network, secret) {
        (_, Some(secret)) => Ok(secret),
        (None, None) => Ok(Secret::same_user()),
        (Some(address), None) => Err(Error::Bootstrap(format!(
            "refusing to meet at {address} without a secret, because anybody could join; set RINGFOLD_SECRET, or \
             RINGFOLD_SECRET_FILE to a file of mode 0600, to the same content on all ranks"
        ))),
    }
}

/// Binds the rendezvous at all of `addresses`.
pub(super) fn bind(addresses: &[Address], deadline: Instant) -> Result<Vec<Listener>> {
    addresses
        .iter()
        .map(|address| bind_one(address, deadline))
        .collect()
}

/// Binds one address; a name that is still taken, by a job that is just ending, is tried again.
fn bind_one(address: &Address, deadline: Instant) -> Result<Listener> {
    let mut pause = RETRY.0;
    loop {
        match Listener::bind(address) {
            Ok(listener) => {
                info!(target: "ringfold::control", "rank 0 is met at {address}");
                warn_of_loopback(address, &listener);
                return Ok(listener);
            }
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrInUse
                    && !remaining(deadline).is_zero() =>
            {
                std::thread::sleep(pause.min(remaining(deadline)));
                pause = (pause * 2).min(RETRY.1);
            }
            Err(error) => {
                return Err(Error::Bootstrap(format!(
                    "rank 0 cannot listen at {address}: {error}; RINGFOLD_ADDR must name an address of rank 0's host and a free port"
                )));
            }
        }
    }
}

/// On some systems a host's own name means its loopback, which no other host can reach.
fn warn_of_loopback(address: &Address, listener: &Listener) {
    if let Listener::Tcp(listener) = listener
        && let Ok(local) = listener.local_addr()
        && local.ip().is_loopback()
    {
        warn!(
            target: "ringfold::control",
            "{address} is {local} here, which other hosts cannot reach; if there are any, set RINGFOLD_ADDR to an \
             address that they know"
        );
    }
}

/// Connects to rank 0, which may not be there yet, at the first of `addresses` where it can be reached.
pub(super) fn reach(
    addresses: &[Address],
    secret: &Secret,
    claim: Claim,
    deadline: Instant,
) -> Result<Socket> {
    let (mut pause, mut patience) = (RETRY.0, CANDIDATE.0);
    let is_single = addresses.len() == 1;
    let mut is_first_round = true;
    loop {
        let mut problems = Vec::new();
        let mut is_refused = false;
        for address in addresses {
            let limit = match is_single {
                true => deadline,
                false => deadline.min(Instant::now() + patience),
            };
            match attempt(address, secret, claim, limit, deadline) {
                Ok(socket) => return Ok(socket),
                Err(problem) => {
                    is_refused |= problem.is_final;
                    problems.push((address, problem.text));
                }
            }
        }
        // Of several candidates one may be somebody else's on this side, so the others get another chance.
        if is_refused && (is_single || !is_first_round) {
            return Err(Error::Bootstrap(format!(
                "rank {} and rank 0 refuse each other: {}",
                claim.from,
                list(&problems)
            )));
        }
        if remaining(deadline).is_zero() {
            return Err(Error::Bootstrap(format!(
                "rank {} cannot reach rank 0 ({}); is rank 0 running, and is the address right?",
                claim.from,
                list(&problems)
            )));
        }
        std::thread::sleep(pause.min(remaining(deadline)));
        pause = (pause * 2).min(RETRY.1);
        patience = (patience * 2).min(CANDIDATE.1);
        is_first_round = false;
    }
}

/// Why rank 0 was not reached, and whether trying again is pointless.
struct Problem {
    text: String,
    is_final: bool,
}

impl Problem {
    fn passing(text: impl ToString) -> Problem {
        Problem {
            text: text.to_string(),
            is_final: false,
        }
    }
}

/// Tries one address: the connection by `limit`, all of it by `deadline`.
fn attempt(
    address: &Address,
    secret: &Secret,
    claim: Claim,
    limit: Instant,
    deadline: Instant,
) -> Result<Socket, Problem> {
    let socket = Socket::connect(address, limit).map_err(Problem::passing)?;
    // More patience than the server has, so that its verdict arrives.
    let limit = deadline.min(Instant::now() + HANDSHAKE * 2);
    match auth::initiate(&socket, secret, claim, limit) {
        Ok(()) => Ok(socket),
        Err(Failure::Refused(refusal)) => Err(Problem {
            text: refusal.to_string(),
            is_final: refusal.is_final(),
        }),
        Err(failure) => Err(Problem::passing(failure)),
    }
}

fn list(problems: &[(&Address, String)]) -> String {
    let entries = problems
        .iter()
        .map(|(address, text)| format!("{address}: {text}"));
    entries.collect::<Vec<_>>().join("; ")
}

/// Waits until all ranks have joined.
pub(super) fn await_welcome(
    socket: &Socket,
    splitter: &mut Splitter,
    deadline: Instant,
) -> Result<(u64, [u8; 32], Vec<Presence>)> {
    let mut byte = vec![0; 4096];
    loop {
        match splitter.next_frame() {
            Ok(Some(Frame::Welcome { job, key, ranks })) => return Ok((job, key, ranks)),
            Ok(Some(Frame::Cancelled { ranks, reason })) => {
                return Err(Error::Bootstrap(format!(
                    "the job did not come together: {reason}; missing ranks: {ranks:?}"
                )));
            }
            Ok(Some(Frame::Ping)) => {
                let pong = Frame::Pong.encode();
                socket
                    .write_all(&pong, deadline)
                    .map_err(|error| Error::system("joining", error))?;
                continue;
            }
            Ok(Some(Frame::Closing)) => {
                return Err(Error::Bootstrap(
                    "rank 0 has left before all ranks joined".into(),
                ));
            }
            Ok(Some(_)) | Err(_) => {
                return Err(Error::Bootstrap(
                    "rank 0 does not speak this protocol".into(),
                ));
            }
            Ok(None) => {}
        }
        match socket.read(&mut byte) {
            Ok(0) => {
                return Err(Error::Bootstrap(
                    "rank 0 ended before all ranks joined".into(),
                ));
            }
            Ok(count) => splitter.push(&byte[..count]),
            Err(error) if is_transient(&error) => {
                socket.wait_readable(deadline).map_err(|error| {
                    Error::Bootstrap(format!("waiting for all ranks to join: {error}"))
                })?;
            }
            Err(error) => return Err(Error::system("joining", error)),
        }
    }
}
