//! Connecting with a time limit on every step, which the kernel's blocking calls do not have.
//!
//! A blocking `connect` to a UNIX name whose queue is full waits until the listener accepts, which
//! a stopped process never does; a name lookup waits for remote servers. So this module retries the
//! former and leaves the latter to a separate thread. The addresses of a name are tried in a
//! staggered way (RFC 8305), so that one without a server delays little.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, getpeername, getsockname, socket_with,
    sockopt,
};

use super::limit::Limit;
use super::poll::{ready, remaining, wait_for};
use crate::error::Refused;
use crate::sys::unshared::Unshared;
use crate::threads;

/// Default time limit of a name lookup.
pub(super) const LOOKUP: Duration = Duration::from_secs(10);
/// The delay between attempts to connect to the addresses of a name, as RFC 8305 recommends.
const STAGGER: Duration = Duration::from_millis(250);
/// The pause between attempts to connect to a name whose queue is full.
const FULL: Duration = Duration::from_millis(5);

/// Connects to the abstract name `name`. Fails with `TimedOut` if the queue stays full.
pub(super) fn unix(name: &str, limit: Limit<'_>) -> io::Result<Unshared> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let socket = stream_socket(AddressFamily::UNIX)?;
    loop {
        limit.check().map_err(io::Error::other)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if limit.is_over() => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "its connection queue stays full; is the listening process stopped?",
                ));
            }
            Err(Errno::AGAIN) => limit.pause(FULL).map_err(io::Error::other)?,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Connects to `address`; `prepare` sets the options that must be set before.
pub(super) fn tcp(
    address: &SocketAddr,
    limit: Limit<'_>,
    prepare: impl FnOnce(&Unshared) -> io::Result<()>,
) -> io::Result<Unshared> {
    let socket = begin(address, prepare)?;
    limit.wait(|until| {
        let mut entries = [PollFd::new(&socket, PollFlags::OUT)];
        Ok(wait_for(&mut entries, Some(until))? > 0)
    })?;
    finish(socket)
}

/// Connects to the first of `candidates` that answers. Each gets [`STAGGER`] before the next is
/// tried, too; the address families alternate. The error lists all failures.
pub(super) fn first(candidates: Vec<SocketAddr>, limit: Limit<'_>) -> io::Result<Unshared> {
    let mut waiting = in_turns(candidates).into_iter().peekable();
    let mut begun: Vec<(SocketAddr, Unshared)> = Vec::new();
    let mut failures = Vec::new();
    let mut next_start = Instant::now();
    loop {
        limit.check().map_err(io::Error::other)?;
        if remaining(next_start).is_zero()
            && let Some(address) = waiting.next()
        {
            match begin(&address, |_| Ok(())) {
                Ok(socket) => {
                    begun.push((address, socket));
                    next_start = Instant::now() + STAGGER;
                }
                // Another address would fail in the same way.
                Err(error) if Refused(&error).lacks_descriptors() => return Err(error),
                Err(error) => failures.push((address, error)),
            }
            continue;
        }
        if begun.is_empty() && waiting.peek().is_none() {
            return Err(all_failed(failures));
        }
        let start = waiting.peek().map(|_| next_start);
        let until = start.into_iter().chain([limit.next_look()]).min();
        let sockets = begun.iter();
        let mut entries: Vec<PollFd<'_>> = sockets
            .map(|(_, socket)| PollFd::new(socket, PollFlags::OUT))
            .collect();
        wait_for(&mut entries, until)?;
        let mut is_ready = ready(&entries).into_iter();
        for (address, socket) in begun.extract_if(.., |_| is_ready.next() == Some(true)) {
            match finish(socket) {
                Ok(stream) => return Ok(stream),
                Err(error) => failures.push((address, error)),
            }
            // The next address need not wait.
            next_start = Instant::now();
        }
        if limit.is_over() {
            let silent = begun.into_iter().map(|(address, _)| address);
            failures.extend(silent.map(|address| (address, io::ErrorKind::TimedOut.into())));
            return Err(all_failed(failures));
        }
    }
}

/// Returns the same addresses with the families alternating, starting with that of the first.
fn in_turns(candidates: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let leads_v6 = candidates.first().is_some_and(SocketAddr::is_ipv6);
    let is_first = |address: &SocketAddr| address.is_ipv6() == leads_v6;
    let (one, other): (Vec<_>, Vec<_>) = candidates.into_iter().partition(is_first);
    let mut ranked: Vec<(usize, SocketAddr)> = one.into_iter().enumerate().collect();
    ranked.extend(other.into_iter().enumerate());
    // Stable: within a turn the first family leads.
    ranked.sort_by_key(|(turn, _)| *turn);
    ranked.into_iter().map(|(_, address)| address).collect()
}

/// Combines the errors of several attempts.
fn all_failed(mut failures: Vec<(SocketAddr, io::Error)>) -> io::Error {
    if failures.len() < 2 {
        let only = failures.pop();
        return only.map_or(io::ErrorKind::NotFound.into(), |(_, error)| error);
    }
    let kind = failures[0].1.kind();
    let texts = failures.iter();
    let texts = texts.map(|(address, error)| format!("{}: {error}", address.ip()));
    io::Error::new(kind, texts.collect::<Vec<_>>().join(", "))
}

/// Starts connecting to `address`.
fn begin(
    address: &SocketAddr,
    prepare: impl FnOnce(&Unshared) -> io::Result<()>,
) -> io::Result<Unshared> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = stream_socket(family)?;
    prepare(&socket)?;
    match rustix::net::connect(&socket, address) {
        // The kernel continues an interrupted attempt.
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Completes the connection of a socket that is ready.
fn finish(socket: Unshared) -> io::Result<Unshared> {
    sockopt::socket_error(&socket)??;
    // A port of the ephemeral range can connect to itself while there is no listener.
    match Some(getsockname(&socket)?) == getpeername(&socket)? {
        true => Err(io::ErrorKind::ConnectionRefused.into()),
        false => Ok(socket),
    }
}

/// Creates a non-blocking stream socket that forked children do not share.
fn stream_socket(family: AddressFamily) -> io::Result<Unshared> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Unshared::make(|| Ok(socket_with(family, SocketType::STREAM, flags, None)?))
}

/// Returns the addresses of `host`, each once. A lookup cannot be cancelled: its thread is left
/// behind if the limit ends first. The thread owns only its copy of the name, and ends by the
/// resolver's own deadline.
pub(super) fn resolve(host: &str, port: u16, limit: Limit<'_>) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let name = host.to_owned();
    let (sender, answer) = sync_channel(1);
    threads::start("ringfold-lookup", move || {
        let found = (name.as_str(), port).to_socket_addrs().map(|found| {
            // A hosts file may have several lines for one address.
            let mut distinct: Vec<SocketAddr> = Vec::new();
            for address in found {
                if !distinct.contains(&address) {
                    distinct.push(address);
                }
            }
            distinct
        });
        // The receiver has been dropped if the limit ended first.
        let _ = sender.send(found);
    })
    .map_err(io::Error::other)?;
    let mut found = None;
    let looked_up = limit.wait(|until| match answer.recv_timeout(remaining(until)) {
        Ok(addresses) => {
            found = Some(addresses);
            Ok(true)
        }
        Err(RecvTimeoutError::Timeout) => Ok(false),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other(
            "the lookup thread ended \
            without a result",
        )),
    });
    match (looked_up, found) {
        (Ok(()), Some(addresses)) => addresses,
        (Err(error), _) if error.kind() == io::ErrorKind::TimedOut => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("looking up `{host}` timed out; use an address instead of a name"),
        )),
        (outcome, _) => Err(outcome.err().unwrap_or(io::ErrorKind::NotFound.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};

    use super::*;
    use crate::control::tests::{ample, watched};
    use crate::error::Error;

    /// Returns a listener whose queue is full, and the connections that fill it.
    fn full(name: &str) -> (UnixListener, Vec<Unshared>) {
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
    fn families_take_turns() {
        let addresses = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let given = addresses(&["[fd00::1]:1", "[fd00::2]:1", "10.0.0.1:1", "[fd00::3]:1"]);
        let turns = addresses(&["[fd00::1]:1", "10.0.0.1:1", "[fd00::2]:1", "[fd00::3]:1"]);
        assert_eq!(in_turns(given), turns);
    }

    #[test]
    fn an_address_that_nobody_serves_does_not_hide_one_that_answers() {
        watched(|| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let at = |host: &str| SocketAddr::new(host.parse().unwrap(), port);
            // Refused at once; the combined error lists each address.
            let there = first(vec![at("127.0.0.2"), at("127.0.0.1")], ample().into()).unwrap();
            let peer = getpeername(&there).unwrap().unwrap();
            assert_eq!(SocketAddr::try_from(peer).unwrap(), at("127.0.0.1"));
            let error = first(vec![at("127.0.0.2"), at("127.0.0.3")], ample().into()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            let text = error.to_string();
            assert!(
                text.contains("127.0.0.2: ") && text.contains("127.0.0.3: "),
                "{text}"
            );
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
