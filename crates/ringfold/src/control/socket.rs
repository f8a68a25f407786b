//! Non-blocking stream sockets, TCP or UNIX alike, whose every wait has a deadline.

use std::fmt;
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::connect;
use super::limit::Limit;
use crate::error::{Error, Result};
use crate::silence::Silence;
use crate::sys::fork::Unshared;
use crate::sys::{self, TcpState};

/// Where rank 0 is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host name or address, and a port.
    Tcp {
        /// As given, without brackets.
        host: String,
        /// Never 0.
        port: u16,
    },
    /// A name in the abstract namespace of UNIX sockets; reachable from this network namespace alone.
    Unix {
        /// Without the `@`.
        name: String,
    },
}

/// Bytes of an abstract name that every kernel takes.
const UNIX_NAME_MAX: usize = 100;

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address> {
        let wrong = |why: &str| {
            Error::InvalidArgument(format!(
                "address `{text}` {why}; give `host:port` or `unix:@name`"
            ))
        };
        if let Some(rest) = text.strip_prefix("unix:") {
            let name = rest
                .strip_prefix('@')
                .ok_or_else(|| wrong("is not an abstract UNIX name"))?;
            if name.is_empty() || name.len() > UNIX_NAME_MAX {
                return Err(wrong("has an empty or too long name"));
            }
            return Ok(Address::Unix { name: name.into() });
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("has no port"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match port.parse::<u16>() {
            Ok(port) if port > 0 && !host.is_empty() => Ok(Address::Tcp {
                host: host.into(),
                port,
            }),
            _ => Err(wrong("has no usable host or port")),
        }
    }
}

/// The most places that rank 0 may be met at.
const ADDRESSES_MAX: usize = 64;

/// Reads a list of places, separated by commas, at which rank 0 may be met.
pub fn addresses(text: &str) -> Result<Vec<Address>> {
    let list: Result<Vec<Address>> = text
        .split(',')
        .map(|item| item.trim().parse())
        .take(ADDRESSES_MAX + 1)
        .collect();
    let list = list?;
    match list.len() <= ADDRESSES_MAX {
        true => Ok(list),
        false => Err(Error::InvalidArgument(format!(
            "more than {ADDRESSES_MAX} addresses of rank 0; give those by which the ranks reach it"
        ))),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix { name } => write!(f, "unix:@{name}"),
        }
    }
}

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
                    match connect::tcp(&candidate, limit) {
                        Ok(stream) => return Socket::from_tcp(stream),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Has the kernel end this connection when the other host has been silent for as long as
    /// `silence` says.
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

    /// Binds to a free port of `host`; where that is.
    pub fn bind_free(host: IpAddr) -> io::Result<(Listener, Address)> {
        let listener = TcpListener::bind((host, 0))?;
        listener.set_nonblocking(true)?;
        let address = Address::Tcp {
            host: host.to_string(),
            port: listener.local_addr()?.port(),
        };
        Ok((Listener::Tcp(Unshared::new(listener)), address))
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

/// Ends another thread's [`wait_for`].
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A silent bell.
    pub fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Rings until `answer`.
    pub fn ring(&self) {
        // A full counter refuses the write; the bell is ringing already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Stops ringing.
    pub fn answer(&self) {
        // A silent bell refuses the read; there is nothing to stop.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of `entries` has something or the deadline has passed (then 0).
pub fn wait_for(entries: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<usize> {
    loop {
        let timeout = deadline.map(|deadline| {
            let left = remaining(deadline);
            Timespec {
                tv_sec: left.as_secs() as _,
                tv_nsec: left.subsec_nanos() as _,
            }
        });
        match poll(entries, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// The time left until `deadline`.
pub fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Whether the call can simply be made again later.
pub fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
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
    use super::*;

    #[test]
    fn addresses_read_back_as_they_were_written() {
        for text in ["node1:29501", "[::1]:80", "10.0.0.1:1", "unix:@job-7"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn unusable_addresses_are_refused() {
        for text in [
            "",
            "node1",
            "node1:",
            "node1:0",
            ":1",
            "node1:70000",
            "unix:/tmp/x",
            "unix:@",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn lists_of_addresses_keep_their_order_and_are_bounded() {
        let list = addresses("unix:@a, 10.0.0.1:1,[fd00::1]:2").unwrap();
        let texts: Vec<String> = list.iter().map(Address::to_string).collect();
        assert_eq!(texts, ["unix:@a", "10.0.0.1:1", "[fd00::1]:2"]);
        for text in ["", ",", "a:1,", "a:1,,b:2", &vec!["a:1"; 65].join(",")] {
            assert!(addresses(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_read_ends_at_its_deadline() {
        let (a, _b) = Socket::pair().unwrap();
        let deadline = Instant::now() + Duration::from_millis(20);
        let error = a.read_exact(&mut [0; 1], deadline).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
