//! How long another host may give no sign of life, and what follows from it.
//!
//! A host that lost its power, or the way to it, says nothing. Its connections are then known to be
//! dead by what the kernel has not heard: acknowledgements of what was sent, and answers to its own
//! probes. One setting, the *peer timeout*, says how long that may last; rank 0's holds for all
//! ranks of a job. A process that is stopped is another matter: its kernel goes on answering.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use crate::error::{Error, Result};
use crate::sys::{self, TcpState};

/// How often ranks on other hosts are written to, so that a dead link has something to lose.
pub const PING: Duration = Duration::from_millis(500);

/// A look at a connection comes so much later than its end can be seen.
const LOOK: Duration = Duration::from_millis(20);

/// An idle connection is asked for a sign of life after this time, and again after as long.
const KEEPALIVE: Duration = Duration::from_secs(1);

/// The longest time between two attempts to send the same data, where the kernel (6.15) can be
/// told. Older ones double it from 0.2 s on, and may come back to a link only when it has been
/// there for as long as it was away.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// How much longer than the peer timeout a rank waits for the verdict on a peer that seems dead:
/// until then it may be rank 0 that is.
const VERDICT: Duration = Duration::from_millis(200);

/// Why a host whose connection has this state has failed.
pub fn silent(state: &TcpState) -> String {
    format!("its host has been silent for {} ms", state.quiet_ms)
}

/// How long a host may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence(Duration);

impl Default for Silence {
    fn default() -> Silence {
        Silence(Silence::DEFAULT)
    }
}

impl Silence {
    /// Unless something else is set.
    pub const DEFAULT: Duration = Duration::from_millis(2300);
    /// Less would take a lost packet, or an idle connection between two probes, for the end of a
    /// host.
    pub const MIN: Duration = Duration::from_secs(2);
    /// The kernel counts at most 127 probes.
    pub const MAX: Duration = Duration::from_secs(120);

    /// A host is dead that has been silent for `limit`.
    pub fn new(limit: Duration) -> Result<Silence> {
        match (Silence::MIN..=Silence::MAX).contains(&limit) {
            true => Ok(Silence(limit)),
            false => Err(Error::InvalidArgument(format!(
                "a peer timeout of {} ms; it can be {} to {} ms",
                limit.as_millis(),
                Silence::MIN.as_millis(),
                Silence::MAX.as_millis()
            ))),
        }
    }

    /// Without bounds.
    #[cfg(test)]
    pub fn of(limit: Duration) -> Silence {
        Silence(limit)
    }

    /// The limit.
    pub fn limit(&self) -> Duration {
        self.0
    }

    /// How long a rank that suspects a crash waits for the verdict that names who really crashed. A
    /// living server answers at once. When it does not, it may be the one that is gone, and the
    /// suspect no more than somebody who found out sooner: hence longer than a dead connection to
    /// the server takes to end.
    pub fn verdict_grace(&self) -> Duration {
        self.0 + VERDICT
    }

    /// Has the kernel ask for signs of life on a control connection, and end it when what was sent
    /// stays unacknowledged: traffic may be lost in one direction only. Both ends look at what they
    /// hear as well, by [`patience`](Silence::patience). The kernel must not be the more impatient
    /// one: what is sent into an outage is sent again at growing intervals, so it stays
    /// unacknowledged for longer than the link is away.
    pub fn watch_control(&self, socket: impl AsFd) -> io::Result<()> {
        self.watch(&socket)?;
        sockopt::set_tcp_user_timeout(&socket, self.0.as_millis() as u32)?;
        Ok(())
    }

    /// Has the kernel ask for signs of life on a data connection; what they say is looked at by
    /// [`is_data_broken`](Silence::is_data_broken). A limit on what is not acknowledged would also
    /// end the connection to a living peer that reads late.
    pub fn watch_data(&self, socket: impl AsFd) -> io::Result<()> {
        self.watch(&socket)?;
        sockopt::set_tcp_user_timeout(&socket, 0)?;
        Ok(())
    }

    fn watch(&self, socket: &impl AsFd) -> io::Result<()> {
        let probes = self.0.as_secs() + 2;
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(socket, KEEPALIVE)?;
        sockopt::set_tcp_keepcnt(socket, probes as u32)?;
        sys::limit_tcp_retry(socket.as_fd(), RETRY_MAX);
        Ok(())
    }

    /// How long to wait before the next look at a control connection whose state this is; `None`
    /// if it has been silent for too long.
    pub fn patience(&self, state: &TcpState) -> Option<Duration> {
        let quiet = Duration::from_millis(state.quiet_ms.into());
        (quiet <= self.0).then(|| self.0 - quiet + LOOK)
    }

    /// Whether a data connection whose state this is has been silent for too long. It may be idle,
    /// and is then tried every [`RETRY_MAX`] only: a host that is gone shows in the control
    /// connections, this finds the way between two others broken.
    pub fn is_data_broken(&self, state: &TcpState) -> bool {
        // A peer without room for more is asked at growing intervals, so its silence means nothing.
        let is_full = state.unsent_bytes > 0 && state.unacknowledged == 0;
        let limit = self.0 + RETRY_MAX.min(self.0);
        !is_full && u128::from(state.quiet_ms) > limit.as_millis()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_no_more_impatient_than_the_ends_of_a_connection() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let silence = Silence::default();
        silence.watch_control(&socket).unwrap();
        let kernel_ms = sockopt::tcp_user_timeout(&socket).unwrap();
        assert!(u128::from(kernel_ms) >= silence.limit().as_millis());
    }

    #[test]
    fn the_peer_timeout_has_bounds() {
        for good in [Silence::MIN, Silence::DEFAULT, Silence::MAX] {
            assert_eq!(Silence::new(good).expect("within bounds").limit(), good);
        }
        for bad in [Duration::ZERO, Silence::MIN / 2, Silence::MAX * 2] {
            let error = Silence::new(bad).expect_err("beyond bounds").to_string();
            assert!(error.contains("2000 to 120000 ms"), "{error}");
        }
    }
}
