//! Making one connection, every step of which ends by its limit: the kernel's own blocking calls do
//! not.
//!
//! A blocking `connect` to a UNIX name whose queue is full waits until the listener accepts, which
//! a stopped process never does; looking up a host's name waits for servers elsewhere. Here the
//! first is tried again and again, and the second is left to a thread of its own.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt};

use super::limit::Limit;
use super::poll::{remaining, wait_for};
use crate::threads;

/// How long looking up a host's name may take by default.
pub(super) const LOOKUP: Duration = Duration::from_secs(10);
/// The pause between attempts to connect to a name whose queue is full.
const FULL: Duration = Duration::from_millis(5);

/// Connects to the abstract name `name`. A queue that stays full is the error `TimedOut`.
pub(super) fn unix(name: &str, limit: Limit<'_>) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        limit.check().map_err(io::Error::other)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if limit.is_over() => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "its queue of connections stays full; is the process that listens there \
                     stopped?",
                ));
            }
            Err(Errno::AGAIN) => limit.pause(FULL).map_err(io::Error::other)?,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Connects to `address`; `prepare` sets what must be set before.
pub(super) fn tcp(
    address: &SocketAddr,
    limit: Limit<'_>,
    prepare: impl FnOnce(&OwnedFd) -> io::Result<()>,
) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    prepare(&socket)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => {}
        // An interrupted attempt goes on by itself.
        Err(Errno::INPROGRESS | Errno::INTR) => {
            limit.wait(|until| {
                let mut entries = [PollFd::new(&socket, PollFlags::OUT)];
                Ok(wait_for(&mut entries, Some(until))? > 0)
            })?;
            sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    // A port of the ephemeral range can connect to itself while there is no listener.
    match stream.local_addr()? == stream.peer_addr()? {
        true => Err(io::ErrorKind::ConnectionRefused.into()),
        false => Ok(stream),
    }
}

/// The addresses of `host`. Looking up a name cannot be ended from outside: the thread that does it
/// is left behind when the limit comes first. It has nothing but its copy of the name, and ends by
/// the resolver's own deadline.
pub(super) fn resolve(host: &str, port: u16, limit: Limit<'_>) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let name = host.to_owned();
    let (sender, answer) = sync_channel(1);
    threads::start("ringfold-lookup", move || {
        let found = (name.as_str(), port).to_socket_addrs();
        // The receiver is gone when the limit came first.
        let _ = sender.send(found.map(Iterator::collect));
    })
    .map_err(io::Error::other)?;
    let mut found = None;
    let looked_up = limit.wait(|until| match answer.recv_timeout(remaining(until)) {
        Ok(addresses) => {
            found = Some(addresses);
            Ok(true)
        }
        Err(RecvTimeoutError::Timeout) => Ok(false),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the lookup broke off")),
    });
    match (looked_up, found) {
        (Ok(()), Some(addresses)) => addresses,
        (Err(error), _) if error.kind() == io::ErrorKind::TimedOut => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("looking up `{host}` takes too long; give an address instead of a name"),
        )),
        (outcome, _) => Err(outcome.err().unwrap_or(io::ErrorKind::NotFound.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
    use std::time::Instant;

    use super::*;
    use crate::control::tests::{ample, watched};
    use crate::error::Error;

    /// A listener whose queue is full, and what fills it.
    fn full(name: &str) -> (UnixListener, Vec<UnixStream>) {
        let address = UnixAddress::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        // A shorter queue than the standard library's, so that few connections fill it.
        rustix::net::listen(&listener, 2).unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = unix(name, Limit::from(Instant::now())) {
            waiting.push(stream);
        }
        (listener, waiting)
    }

    #[test]
    fn a_full_queue_ends_at_the_deadline_or_earlier_when_the_wait_is_pointless() {
        watched(|| {
            let name = format!("ringfold-test-full-{}", std::process::id());
            let (listener, waiting) = full(&name);
            let soon = Instant::now() + Duration::from_millis(20);
            let error = unix(&name, soon.into()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
            let over = || Some(Error::Closed);
            let error = unix(&name, Limit::new(ample(), &over)).unwrap_err();
            assert!(matches!(Error::system("", error), Error::Closed));
            // As soon as there is room, the connection is made.
            let connected = std::thread::scope(|scope| {
                let attempt = scope.spawn(|| unix(&name, ample().into()));
                for _ in &waiting {
                    listener.accept().unwrap();
                }
                attempt.join().unwrap()
            });
            connected.unwrap();
        });
    }

    #[test]
    fn a_lookup_that_is_not_waited_for_is_left_behind() {
        watched(|| {
            let over = || Some(Error::Closed);
            let limit = Limit::new(ample(), &over);
            let error = resolve("no-such-host.invalid", 1, limit).unwrap_err();
            assert!(matches!(Error::system("", error), Error::Closed));
            let here = resolve("localhost", 7, ample().into()).unwrap();
            assert!(here.iter().all(|address| address.ip().is_loopback()));
        });
    }
}
