//! Non-blocking stream sockets, TCP or UNIX alike, whose every wait has a deadline.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};

use nix::sys::socket::{getsockopt, sockopt};
use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, FdFlags, fcntl_setfd, ioctl_fionbio, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, acceptfrom,
    acceptfrom_with, getsockname, socketpair,
};

use super::address::RendezvousAddress;
use super::connect;
use super::limit::Limit;
use super::poll::{is_transient, wait_for};
use crate::error::{Error, Refused, Result};
use crate::silence::Silence;
use crate::sys::unshared::Unshared;
use crate::sys::{self, TcpState, fork};

/// Maximum number of addresses that one rank listens on.
pub const CANDIDATES_MAX: usize = 16;

/// Flags of all sockets: none blocks, and a new program inherits none.
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The other end of a UNIX connection that belongs to another user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignPeer {
    /// User id of the other end.
    pub uid: u32,
    /// Id of the process that made the other end, unless it is in another process namespace.
    pub pid: Option<i32>,
}

impl ForeignPeer {
    /// Returns the stranger that `error` contains, if any.
    pub fn of(error: &io::Error) -> Option<ForeignPeer> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl fmt::Display for ForeignPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = process_name(self.pid);
        write!(f, "the other end belongs to user {} ({process})", self.uid)
    }
}

impl std::error::Error for ForeignPeer {}

/// Returns the user id of a UNIX connection's other end, and its process id if it has one here.
///
/// The kernel returns 0 for a process of another namespace. rustix's type for process ids cannot
/// hold 0, so its function must not be used.
fn peer(stream: &impl AsFd) -> io::Result<(u32, Option<i32>)> {
    let credentials = getsockopt(stream, sockopt::PeerCredentials)?;
    let pid = credentials.pid();
    Ok((credentials.uid(), (pid > 0).then_some(pid)))
}

/// Returns the name, for messages, of a process that may have no id here.
pub fn process_name(pid: Option<i32>) -> String {
    pid.map_or("a process of another namespace".into(), |pid| {
        format!("process {pid}")
    })
}

/// A connected, non-blocking stream socket.
#[derive(Debug)]
pub struct Socket {
    fd: Unshared,
    is_unix: bool,
}

impl Socket {
    /// Wraps a non-blocking TCP connection, and sets the options of a control connection.
    pub fn from_tcp(fd: Unshared) -> io::Result<Socket> {
        rustix::net::sockopt::set_tcp_nodelay(&fd, true)?;
        Silence::default().watch_control(&fd)?;
        Ok(Socket { fd, is_unix: false })
    }

    /// Wraps a non-blocking UNIX connection if its other end belongs to this user; otherwise the
    /// error is a [`ForeignPeer`].
    pub fn from_unix(fd: Unshared) -> io::Result<Socket> {
        let (uid, pid) = peer(&fd)?;
        if uid != rustix::process::getuid().as_raw() {
            let stranger = ForeignPeer { uid, pid };
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, stranger));
        }
        Ok(Socket { fd, is_unix: true })
    }

    /// Creates two connected sockets.
    pub fn pair() -> io::Result<(Socket, Socket)> {
        let held_off = fork::hold_off()?;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
        let [a, b] = [a, b].map(|end| Unshared::new(end, &held_off));
        drop(held_off);
        Ok((Socket::from_unix(a)?, Socket::from_unix(b)?))
    }

    /// Makes one attempt to connect to `address`.
    pub fn connect<'a>(
        address: &RendezvousAddress,
        limit: impl Into<Limit<'a>>,
    ) -> io::Result<Socket> {
        let limit = limit.into();
        match address {
            RendezvousAddress::Unix { name } => Socket::from_unix(connect::unix(name, limit)?),
            RendezvousAddress::Tcp { host, port } => {
                let candidates = connect::resolve(host, *port, limit)?;
                Socket::from_tcp(connect::first(candidates, limit)?)
            }
        }
    }

    /// Makes the kernel check for signs of life of the other host, as `silence` specifies.
    pub fn watch_for_silence(&self, silence: Silence) -> io::Result<()> {
        match self.is_unix {
            true => Ok(()),
            false => silence.watch_control(&self.fd),
        }
    }

    /// Returns the kernel's state of a TCP connection, if available.
    pub fn tcp_state(&self) -> Option<TcpState> {
        match self.is_unix {
            true => None,
            false => sys::tcp_state(self.fd.as_fd()).ok().flatten(),
        }
    }

    /// Whether this is a UNIX socket: same host, same user.
    pub fn is_unix(&self) -> bool {
        self.is_unix
    }

    /// Returns the process id of the other end of a UNIX connection, if it has one here.
    pub fn peer_process(&self) -> Option<i32> {
        peer(&self.fd).ok()?.1
    }

    /// Reads the available bytes; `Ok(0)` is the end.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(&self.fd, buffer, RecvFlags::DONTWAIT)?.0)
    }

    /// Writes as many bytes as fit.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::net::send(&self.fd, bytes, flags)?)
    }

    /// Fills `buffer`.
    pub fn read_exact<'a>(
        &self,
        mut buffer: &mut [u8],
        limit: impl Into<Limit<'a>>,
    ) -> io::Result<()> {
        let limit = limit.into();
        while !buffer.is_empty() {
            match self.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => buffer = &mut buffer[count..],
                Err(error) if is_transient(&error) => self.wait(PollFlags::IN, limit)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`.
    pub fn write_all<'a>(&self, mut bytes: &[u8], limit: impl Into<Limit<'a>>) -> io::Result<()> {
        let limit = limit.into();
        while !bytes.is_empty() {
            match self.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if is_transient(&error) => self.wait(PollFlags::OUT, limit)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until there is something to read.
    pub fn wait_readable<'a>(&self, limit: impl Into<Limit<'a>>) -> io::Result<()> {
        self.wait(PollFlags::IN, limit.into())
    }

    fn wait(&self, flags: PollFlags, limit: Limit<'_>) -> io::Result<()> {
        limit.wait(|until| {
            let mut entries = [PollFd::new(&self.fd, flags)];
            Ok(wait_for(&mut entries, Some(until))? > 0)
        })
    }

    /// Returns the descriptor of the connection.
    pub fn into_fd(self) -> Unshared {
        self.fd
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A listening socket that never blocks.
#[derive(Debug)]
pub enum Listener {
    /// A listener on a TCP address.
    Tcp(Unshared),
    /// A listener on an abstract UNIX name.
    Unix(Unshared),
}

impl Listener {
    /// Binds to the abstract name `name`.
    pub fn bind_name(name: &str) -> io::Result<Listener> {
        let address = UnixAddress::from_abstract_name(name)?;
        let bind = || {
            let listener = UnixListener::bind_addr(&address)?;
            listener.set_nonblocking(true)?;
            Ok(listener.into())
        };
        Ok(Listener::Unix(Unshared::make(bind)?))
    }

    /// Binds to exactly `place`.
    pub fn bind_tcp(place: SocketAddr) -> io::Result<Listener> {
        let bind = || {
            let listener = TcpListener::bind(place)?;
            listener.set_nonblocking(true)?;
            Ok(listener.into())
        };
        Ok(Listener::Tcp(Unshared::make(bind)?))
    }

    /// Binds to `address`: to all addresses of a host's name, because another host may know it by
    /// any of them. Skips addresses that this host does not have, unless it has none. A name lookup
    /// ends by `limit`.
    pub fn bind<'a>(
        address: &RendezvousAddress,
        limit: impl Into<Limit<'a>>,
    ) -> io::Result<Vec<Listener>> {
        let (host, port) = match address {
            RendezvousAddress::Unix { name } => return Ok(vec![Listener::bind_name(name)?]),
            RendezvousAddress::Tcp { host, port } => (host, *port),
        };
        let mut places = connect::resolve(host, port, limit.into())?;
        places.truncate(CANDIDATES_MAX);
        let mut bound = Vec::new();
        let mut missing = None;
        for place in places {
            match Listener::bind_tcp(place) {
                Ok(listener) => bound.push(listener),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT) => {
                        missing.get_or_insert(error);
                    }
                    _ => return Err(error),
                },
            }
        }
        match (bound.is_empty(), missing) {
            (true, missing) => Err(missing.unwrap_or(io::ErrorKind::NotFound.into())),
            (false, _) => Ok(bound),
        }
    }

    /// Returns the address of a TCP listener.
    pub fn local(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => getsockname(listener).ok()?.try_into().ok(),
            Listener::Unix(_) => None,
        }
    }

    /// Binds to free ports of exactly these `hosts`, [`CANDIDATES_MAX`] at most, and returns the
    /// addresses. Skips hosts that cannot be bound; if none can, the error lists the causes.
    pub fn bind_free(hosts: &[IpAddr]) -> Result<(Vec<Listener>, Vec<SocketAddr>), String> {
        let bind = |host: &IpAddr| {
            let listener = Listener::bind_tcp(SocketAddr::new(*host, 0))?;
            let address = listener.local().ok_or(io::ErrorKind::AddrNotAvailable)?;
            Ok((listener, address))
        };
        let mut bound = (Vec::new(), Vec::new());
        let mut failures = Vec::new();
        for host in hosts.iter().take(CANDIDATES_MAX) {
            match bind(host) {
                Ok(one) => bound.extend([one]),
                Err::<_, io::Error>(error) => failures.push(format!("{host}: {}", Refused(&error))),
            }
        }
        match (bound.0.is_empty(), failures.is_empty()) {
            (false, _) => Ok(bound),
            (true, true) => Err("no interface is left".into()),
            (true, false) => Err(failures.join("; ")),
        }
    }

    /// Returns another descriptor of the same queue.
    pub fn try_clone(&self) -> io::Result<Listener> {
        let clone = Unshared::make(|| self.as_fd().try_clone_to_owned())?;
        Ok(match self {
            Listener::Tcp(_) => Listener::Tcp(clone),
            Listener::Unix(_) => Listener::Unix(clone),
        })
    }

    /// Accepts the next connection, if one is waiting; returns the name of its other end, too.
    pub fn accept(&self) -> io::Result<(String, Socket)> {
        match self {
            Listener::Tcp(listener) => {
                let (socket, from) = accept(listener)?;
                let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                let from = from.map_or_else(|| "a socket".into(), |from| from.to_string());
                Ok((from, Socket::from_tcp(socket)?))
            }
            Listener::Unix(listener) => {
                let (socket, _) = accept(listener)?;
                let (_, pid) = peer(&socket)?;
                Ok((process_name(pid), Socket::from_unix(socket)?))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

fn accept(listener: &Unshared) -> io::Result<(Unshared, Option<SocketAddrAny>)> {
    let mut from = None;
    let socket = Unshared::make(|| {
        let socket;
        (socket, from) = retry_on_intr(|| match acceptfrom_with(listener, FLAGS) {
            // A sandbox may support only the older call.
            Err(Errno::NOSYS | Errno::PERM) => accept_plainly(listener),
            accepted => accepted,
        })?;
        Ok(socket)
    })?;
    Ok((socket, from))
}

fn accept_plainly(listener: &Unshared) -> Result<(OwnedFd, Option<SocketAddrAny>), Errno> {
    let (socket, from) = acceptfrom(listener)?;
    ioctl_fionbio(&socket, true)?;
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok((socket, from))
}

/// Returns an array of random bytes.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut bytes[filled..], flags) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::system("cannot read random bytes", error)),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_read_ends_at_its_deadline() {
        let (a, _b) = Socket::pair().unwrap();
        let deadline = Instant::now() + Duration::from_millis(20);
        let error = a.read_exact(&mut [0; 1], deadline).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
