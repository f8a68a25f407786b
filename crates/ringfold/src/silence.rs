//! The peer timeout: how long another host may be silent, and how the silence is detected.
//!
//! A host without power, or without a network path, is silent. The host's connections are then
//! known to be dead because the kernel receives neither acknowledgements of sent data nor answers
//! to its probes. One setting, the *peer timeout*, limits the silence; rank 0's value applies to
//! all ranks of a job. A stopped process is another matter: its kernel still answers.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use crate::error::{Error, Result};
use crate::sys::{self, TcpState};

/// Interval of pings to ranks on other hosts, which leave unacknowledged data on a dead link.
pub const PING: Duration = Duration::from_millis(500);

/// Delay of a check after the earliest time at which a connection can be seen to be dead.
const LOOK: Duration = Duration::from_millis(20);

/// Time after which an idle connection is probed, and interval of further probes.
const KEEPALIVE: Duration = Duration::from_secs(1);

/// Maximum interval between retransmissions of the same data, if the kernel (from 6.15 on) can
/// limit it. Older kernels double the interval from 0.2 s on, and may retry only when the link has
/// been back for as long as it was away.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Additional time, after the peer timeout, for which a rank waits for the verdict on a peer that
/// seems dead: until then rank 0 may be the dead one.
const VERDICT: Duration = Duration::from_millis(200);

/// Returns the failure reason for a host whose connection has this state.
pub fn silent(state: &TcpState) -> String {
    format!("its host has been silent for {} ms", state.quiet_ms)
}

/// The peer timeout: the longest silence of a living host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence(Duration);

impl Default for Silence {
    fn default() -> Silence {
        Silence(Silence::DEFAULT)
    }
}

impl Silence {
    /// The default peer timeout.
    pub const DEFAULT: Duration = Duration::from_millis(2300);
    /// The minimum: less would mistake a lost packet, or an idle connection between two probes, for
    /// a dead host.
    pub const MIN: Duration = Duration::from_secs(2);
    /// The maximum: the kernel counts at most 127 probes.
    pub const MAX: Duration = Duration::from_secs(120);

    /// Makes the peer timeout `limit`, within the bounds.
    pub fn new(limit: Duration) -> Result<Silence> {
        match (Silence::MIN..=Silence::MAX).contains(&limit) {
            true => Ok(Silence(limit)),
            false => Err(Error::InvalidArgument(format!(
                "invalid peer timeout of {} ms; must be {} to {} ms",
                limit.as_millis(),
                Silence::MIN.as_millis(),
                Silence::MAX.as_millis()
            ))),
        }
    }

    /// Makes a peer timeout without bounds.
    #[cfg(test)]
    pub fn of(limit: Duration) -> Silence {
        Silence(limit)
    }

    /// Returns the peer timeout.
    pub fn limit(&self) -> Duration {
        self.0
    }

    /// Returns how long a rank that suspects a crash waits for the verdict that names the crashed
    /// rank. A living server answers at once. A silent server may itself be dead, and the suspect
    /// only a rank that noticed earlier: so the wait is longer than a dead connection to the server
    /// takes to end.
    pub fn verdict_grace(&self) -> Duration {
        self.0 + VERDICT
    }

    /// Makes the kernel probe a control connection, and end the connection if sent data stays
    /// unacknowledged: traffic may be lost in one direction only. Both ends also check their
    /// incoming traffic, by [`patience`](Silence::patience). The kernel must not be less patient:
    /// data sent into an outage is sent again at growing intervals, so it stays unacknowledged for
    /// longer than the outage.
    pub fn watch_control(&self, socket: impl AsFd) -> io::Result<()> {
        self.watch(&socket)?;
        sockopt::set_tcp_user_timeout(&socket, self.0.as_millis() as u32)?;
        Ok(())
    }

    /// Makes the kernel probe a data connection; [`is_data_broken`](Silence::is_data_broken)
    /// evaluates the answers. A limit on unacknowledged data would also end the connection to a
    /// living peer that reads late.
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

    /// Returns the time until the next check of a control connection with this state; `None` if the
    /// connection has been silent for too long.
    pub fn patience(&self, state: &TcpState) -> Option<Duration> {
        let quiet = Duration::from_millis(state.quiet_ms.into());
        (quiet <= self.0).then(|| self.0 - quiet + LOOK)
    }

    /// Whether a data connection with this state has been silent for too long: for the peer timeout
    /// and [`KEEPALIVE`], the interval at which an idle connection is probed. Dead hosts show in
    /// the control connections; this check finds a broken path between two living hosts.
    pub fn is_data_broken(&self, state: &TcpState) -> bool {
        // A peer without room is probed at growing intervals, so its silence proves nothing.
        let is_full = state.unsent_bytes > 0 && state.unacknowledged == 0;
        let limit = self.0 + KEEPALIVE.min(self.0);
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
    fn a_path_is_broken_one_probe_after_the_peer_timeout() {
        let silence = Silence::default();
        let after = |quiet: Duration| TcpState {
            unacknowledged: 1,
            unsent_bytes: 0,
            quiet_ms: quiet.as_millis() as u32,
            round_trip: Duration::ZERO,
        };
        let last = silence.limit() + KEEPALIVE;
        assert!(!silence.is_data_broken(&after(last)));
        let broken = after(last + Duration::from_millis(1));
        assert!(silence.is_data_broken(&broken));
        let full = TcpState {
            unacknowledged: 0,
            unsent_bytes: 1,
            ..broken
        };
        assert!(!silence.is_data_broken(&full));
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
