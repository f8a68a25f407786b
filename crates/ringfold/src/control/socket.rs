//! Non-blocking stream sockets, TCP or UNIX alike, whose every wait has a deadline.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::address::Address;
use super::connect;
use super::limit::Limit;
use super::poll::{is_transient, wait_for};
use crate::error::{Error, Refused, Result};
use crate::silence::Silence;
use crate::sys::fork::Unshared;
use crate::sys::{self, TcpState};

/// The most addresses one rank listens on.
pub const CANDIDATES_MAX: usize = 16;

/// The other end of a UNIX connection that belongs to another user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// The user.
    pub uid: u32,
    /// The process that made the other end.
    pub pid: i32,
}

impl Stranger {
    /// The stranger that `error` is about.
    pub fn of(error: &io::Error) -> Option<Stranger> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stranger { uid, pid } = self;
        write!(f, "the other end belongs to user {uid} (process {pid})")
    }
}

impl std::error::Error for Stranger {}

/// A connected, non-blocking stream socket.
#[derive(Debug)]
pub struct Socket {
    fd: Unshared<OwnedFd>,
    is_unix: bool,
}

impl Socket {
    /// Takes over a TCP connection, with the options of a control connection.
    pub fn from_tcp(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Silence::default().watch_control(&stream)?;
        Ok(Socket {
            fd: Unshared::new(stream.into()),
            is_unix: false,
        })
    }

    /// Takes over a UNIX connection, if its other end belongs to this user; otherwise the error is
    /// a [`Stranger`].
    pub fn from_unix(stream: UnixStream) -> io::Result<Socket> {
        let theirs = sockopt::socket_peercred(&stream)?;
        if theirs.uid != rustix::process::getuid() {
            let stranger = Stranger {
                uid: theirs.uid.as_raw(),
                pid: theirs.pid.as_raw_nonzero().get(),
            };
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, stranger));
        }
        stream.set_nonblocking(true)?;
        Ok(Socket {
            fd: Unshared::new(stream.into()),
            is_unix: true,
        })
    }

    /// Two connected ends.
    pub fn pair() -> io::Result<(Socket, Socket)> {
        let (a, b) = UnixStream::pair()?;
        Ok((Socket::from_unix(a)?, Socket::from_unix(b)?))
    }

    /// One attempt to connect to `address`.
    pub fn connect<'a>(address: &Address, limit: impl Into<Limit<'a>>) -> io::Result<Socket> {
        let limit = limit.into();
        match address {
            Address::Unix { name } => Socket::from_unix(connect::unix(name, limit)?),
            Address::Tcp { host, port } => {
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                for candidate in connect::resolve(host, *port, limit)? {
                    match connect::tcp(&candidate, limit, |_| Ok(())) {
                        Ok(stream) => return Socket::from_tcp(stream),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Has the kernel look for signs of life of the other host, as `silence` says.
    pub fn watch_for_silence(&self, silence: Silence) -> io::Result<()> {
        match self.is_unix {
            true => Ok(()),
            false => silence.watch_control(&self.fd),
        }
    }

    /// What the kernel knows about the other end of a TCP connection, if it tells.
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

    /// The process at the other end of a UNIX connection.
    pub fn peer_process(&self) -> Option<i32> {
        let credentials = sockopt::socket_peercred(&self.fd).ok()?;
        Some(credentials.pid.as_raw_nonzero().get())
    }

    /// Reads what is there; `Ok(0)` is the end.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(&self.fd, buffer, RecvFlags::DONTWAIT)?.0)
    }

    /// Writes what fits.
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

    /// The connection as a plain descriptor.
    pub fn into_fd(self) -> OwnedFd {
        self.fd.into_inner()
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
    /// On one address.
    Tcp(Unshared<TcpListener>),
    /// On an abstract name.
    Unix(Unshared<UnixListener>),
}

impl Listener {
    /// Binds to exactly `address`; only a host's name takes time.
    pub fn bind(address: &Address) -> io::Result<Listener> {
        Listener::bind_within(address, Instant::now() + connect::LOOKUP)
    }

    /// The same, with a limit for looking up a host's name.
    pub fn bind_within<'a>(address: &Address, limit: impl Into<Limit<'a>>) -> io::Result<Listener> {
        match address {
            Address::Unix { name } => {
                let address = UnixAddress::from_abstract_name(name)?;
                let listener = UnixListener::bind_addr(&address)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Unix(Unshared::new(listener)))
            }
            Address::Tcp { host, port } => {
                let places = connect::resolve(host, *port, limit.into())?;
                let listener = TcpListener::bind(places.as_slice())?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Tcp(Unshared::new(listener)))
            }
        }
    }

    /// Binds to free ports of exactly these `hosts`, [`CANDIDATES_MAX`] at most; where these are.
    /// One that cannot be bound is left out, unless none can: then the error says why.
    pub fn bind_free(hosts: &[IpAddr]) -> Result<(Vec<Listener>, Vec<SocketAddr>), String> {
        let bind = |host: &IpAddr| {
            let listener = TcpListener::bind((*host, 0))?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((Listener::Tcp(Unshared::new(listener)), address))
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

    /// Another descriptor of the same queue.
    pub fn try_clone(&self) -> io::Result<Listener> {
        Ok(match self {
            Listener::Tcp(listener) => Listener::Tcp(Unshared::new(listener.try_clone()?)),
            Listener::Unix(listener) => Listener::Unix(Unshared::new(listener.try_clone()?)),
        })
    }

    /// The next connection, if one is waiting: who it says it is, and the socket.
    pub fn accept(&self) -> io::Result<(String, Socket)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, from) = listener.accept()?;
                Ok((from.to_string(), Socket::from_tcp(stream)?))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                let pid = sockopt::socket_peercred(&stream)?.pid;
                Ok((
                    format!("process {}", pid.as_raw_nonzero()),
                    Socket::from_unix(stream)?,
                ))
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

/// Fills an array with random bytes.
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_read_ends_at_its_deadline() {
        let (a, _b) = Socket::pair().unwrap();
        let deadline = Instant::now() + Duration::from_millis(20);
        let error = a.read_exact(&mut [0; 1], deadline).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
