//! The congestion control of data connections.
//!
//! A kernel whose default is bbr paces its sends by its estimate of the path. Between hosts of one
//! data centre, where a round trip takes microseconds, pacing costs more than half of the rate; bbr
//! is made for long paths with losses. So data connections begin with cubic (reno if cubic is not
//! permitted), and return to the kernel's default if their round trip shows a long path. The choice
//! affects only the sends of this end; the two ends need not agree.
//!
//! The algorithm is set before connecting: a connection that has begun with bbr stays paced.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::error::{Error, Result};
use crate::sys;

/// The shortest round trip of a path that leaves the data centre.
const LONG_ROUND_TRIP: Duration = Duration::from_millis(5);

/// Algorithms that do not pace, in order of preference. Every kernel permits the last one.
const UNPACED: [&str; 2] = ["cubic", "reno"];

/// The congestion control of data connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// Chosen by the kernel's default and the path.
    #[default]
    Auto,
    /// The kernel's default.
    Kernel,
    /// The algorithm of this name.
    Named(String),
}

/// The algorithms chosen for this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CongestionAlgorithms {
    /// The algorithm of new connections; `None` for the kernel's default.
    first: Option<String>,
    /// The algorithm to which connections with a long path switch; `None` for no switch.
    on_long_paths: Option<String>,
}

impl FromStr for Congestion {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Congestion, Infallible> {
        Ok(match text {
            "auto" => Congestion::Auto,
            "default" => Congestion::Kernel,
            name => Congestion::Named(name.into()),
        })
    }
}

impl Congestion {
    /// Chooses from the algorithms that this kernel has and permits.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the kernel lacks or forbids the algorithm requested by name.
    pub fn decide(&self) -> Result<CongestionAlgorithms> {
        let failed = |error: io::Error| Error::system("cannot query the congestion control", error);
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
            // For hosts with IPv6 only.
            .or_else(|_| socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None))
            .map_err(|error| failed(error.into()))?;
        let default = sockopt::tcp_congestion(&socket).map_err(|error| failed(error.into()))?;
        let set = |name: &str| sockopt::set_tcp_congestion(&socket, name);
        match self {
            Congestion::Kernel => Ok(CongestionAlgorithms::default()),
            Congestion::Named(name) => match set(name) {
                Ok(()) => Ok(CongestionAlgorithms {
                    first: Some(name.clone()),
                    on_long_paths: None,
                }),
                Err(error) => Err(Error::InvalidArgument(format!(
                    "RINGFOLD_TCP_CONGESTION=`{name}`: {error}; this kernel permits those in \
                     /proc/sys/net/ipv4/tcp_allowed_congestion_control"
                ))),
            },
            Congestion::Auto if !default.starts_with("bbr") => Ok(CongestionAlgorithms::default()),
            Congestion::Auto => {
                let first = UNPACED.into_iter().find(|name| set(name).is_ok());
                Ok(CongestionAlgorithms {
                    on_long_paths: first.map(|_| default),
                    first: first.map(str::to_owned),
                })
            }
        }
    }
}

impl CongestionAlgorithms {
    /// Returns the algorithm of new connections, if it is not the kernel's default.
    pub fn first(&self) -> Option<&str> {
        self.first.as_deref()
    }

    /// Sets the algorithm of the connections that `socket` will make or accept.
    pub fn apply(&self, socket: impl AsFd) -> io::Result<()> {
        match &self.first {
            Some(name) => Ok(sockopt::set_tcp_congestion(socket, name)?),
            None => Ok(()),
        }
    }

    /// Switches a connection to the algorithm for long paths if its round trip is long.
    pub fn adapt(&self, socket: impl AsFd) -> io::Result<()> {
        let Some(name) = &self.on_long_paths else {
            return Ok(());
        };
        match sys::tcp_state(socket.as_fd())? {
            Some(state) if state.round_trip >= LONG_ROUND_TRIP => {
                Ok(sockopt::set_tcp_congestion(socket, name)?)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default() -> String {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        sockopt::tcp_congestion(socket).unwrap()
    }

    #[test]
    fn what_the_kernel_lacks_is_refused_by_its_name() {
        let error = "bogus".parse::<Congestion>().unwrap().decide().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("RINGFOLD_TCP_CONGESTION=`bogus`"), "{text}");
    }

    #[test]
    fn what_is_asked_for_is_what_a_connection_begins_with() {
        let decision = Congestion::Named("reno".into()).decide().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        decision.apply(&listener).unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        assert_eq!(sockopt::tcp_congestion(&far).unwrap(), "reno");
        assert_eq!(sockopt::tcp_congestion(&near).unwrap(), default());
    }

    #[test]
    fn only_a_default_that_paces_is_replaced() {
        let first = Congestion::Auto.decide().unwrap().first;
        assert_eq!(first.is_some(), default().starts_with("bbr"));
        assert_eq!(
            Congestion::Kernel.decide().unwrap(),
            CongestionAlgorithms::default()
        );
    }
}
