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

/// The secret to use at `address`, or why there must be one.
pub(super) fn secret_for(address: &Address, secret: Option<Secret>) -> Result<Secret> {
    match (address, secret) {
        (_, Some(secret)) => Ok(secret),
        (Address::Unix { .. }, None) => Ok(Secret::same_user()),
        (Address::Tcp { .. }, None) => Err(Error::Bootstrap(format!(
            "refusing to meet at {address} without a secret, because anybody could join; set RINGFOLD_SECRET, or \
             RINGFOLD_SECRET_FILE to a file of mode 0600, to the same content on all ranks"
        ))),
    }
}

/// Binds the rendezvous; a name that is still taken, by a job that is just ending, is tried again.
pub(super) fn bind(address: &Address, deadline: Instant) -> Result<Listener> {
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

/// Connects to rank 0, which may not be there yet.
pub(super) fn reach(
    address: &Address,
    secret: &Secret,
    claim: Claim,
    deadline: Instant,
) -> Result<Socket> {
    let mut pause = RETRY.0;
    loop {
        let problem = match Socket::connect(address, deadline) {
            Err(error) => error.to_string(),
            Ok(socket) => {
                // More patience than the server has, so that its verdict arrives.
                let limit = deadline.min(Instant::now() + HANDSHAKE * 2);
                match auth::initiate(&socket, secret, claim, limit) {
                    Ok(()) => return Ok(socket),
                    Err(Failure::Refused(refusal)) if refusal.is_final() => {
                        return Err(Error::Bootstrap(format!(
                            "rank 0 at {address} and rank {} refuse each other: {refusal}",
                            claim.from
                        )));
                    }
                    Err(failure) => failure.to_string(),
                }
            }
        };
        if remaining(deadline).is_zero() {
            return Err(Error::Bootstrap(format!(
                "rank {} cannot reach rank 0 at {address}: {problem}; is rank 0 running, and is the address right?",
                claim.from
            )));
        }
        std::thread::sleep(pause.min(remaining(deadline)));
        pause = (pause * 2).min(RETRY.1);
    }
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
