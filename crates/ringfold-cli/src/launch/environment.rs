//! The variables that tell a process its place in a job, and how many ranks a job has by default.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail};
use ringfold::Bind;
use rustix::fd::OwnedFd;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use super::MAX_RANKS;

/// Bytes of a job's secret: as many as the handshake's hash has.
const SECRET_BYTES: usize = 32;

/// Bytes of a job's name: enough that two jobs of one host never meet.
const NAME_BYTES: usize = 8;

/// What all ranks of one job share.
pub struct Environment {
    ranks: usize,
    address: String,
    secret: String,
    master: Port,
}

/// A port of this host for torch's store: nobody is given it while this exists, but who asks for it by number may listen
/// there.
struct Port {
    number: u16,
    /// Bound, and does not listen: the system keeps the port from those that want any, and both sides say that it may be
    /// shared.
    _holder: OwnedFd,
}

impl Environment {
    /// A new job of `ranks` ranks on this host.
    pub fn new(ranks: usize) -> Result<Environment> {
        if ranks == 0 || ranks > MAX_RANKS {
            bail!("cannot start {ranks} ranks on one host; choose 1 to {MAX_RANKS}");
        }
        Ok(Environment {
            ranks,
            address: format!("unix:@ringfold-{}", random_hex(NAME_BYTES)?),
            secret: random_hex(SECRET_BYTES)?,
            master: Port::free()?,
        })
    }

    /// The variables of one rank: ringfold's, and torchrun's for programs that know only those.
    pub fn variables(&self, rank: usize) -> Vec<(&'static str, String)> {
        let ranks = self.ranks.to_string();
        let rank = rank.to_string();
        vec![
            ("RINGFOLD_RANK", rank.clone()),
            ("RINGFOLD_WORLD_SIZE", ranks.clone()),
            ("RINGFOLD_LOCAL_RANK", rank.clone()),
            ("RINGFOLD_LOCAL_WORLD_SIZE", ranks.clone()),
            ("RINGFOLD_ADDR", self.address.clone()),
            ("RINGFOLD_SECRET", self.secret.clone()),
            // What is to be bound is bound before the rank runs.
            ("RINGFOLD_BIND", Bind::None.name().into()),
            ("RANK", rank.clone()),
            ("WORLD_SIZE", ranks.clone()),
            ("LOCAL_RANK", rank),
            ("LOCAL_WORLD_SIZE", ranks),
            ("MASTER_ADDR", "127.0.0.1".into()),
            ("MASTER_PORT", self.master.number.to_string()),
        ]
    }
}

/// One rank per core (as affinity and the control group's quota leave them), and at least two, because one rank has
/// nobody to talk to.
pub fn default_ranks() -> usize {
    ringfold::topology::cores::available().clamp(2, MAX_RANKS)
}

fn random_hex(bytes: usize) -> Result<String> {
    let mut random = vec![0; bytes];
    let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .context("cannot get random bytes")?;
    if filled != bytes {
        bail!("got {filled} random bytes of {bytes}");
    }
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Port {
    fn free() -> Result<Port> {
        Port::hold().context("cannot find a free port")
    }

    fn hold() -> Result<Port> {
        let holder = net::socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        sockopt::set_socket_reuseaddr(&holder, true)?;
        net::bind(&holder, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = SocketAddr::try_from(net::getsockname(&holder)?)?;
        Ok(Port {
            number: address.port(),
            _holder: holder,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_gets_its_number_and_the_same_secret() {
        let environment = Environment::new(3).unwrap();
        let first = environment.variables(0);
        let last = environment.variables(2);
        let value = |list: &[(&str, String)], name: &str| {
            list.iter().find(|(n, _)| *n == name).unwrap().1.clone()
        };
        assert_eq!(value(&first, "RINGFOLD_RANK"), "0");
        assert_eq!(value(&last, "RINGFOLD_RANK"), "2");
        assert_eq!(value(&last, "WORLD_SIZE"), "3");
        assert_eq!(
            value(&first, "RINGFOLD_SECRET"),
            value(&last, "RINGFOLD_SECRET")
        );
        assert_eq!(value(&first, "RINGFOLD_SECRET").len(), 2 * SECRET_BYTES);
        let other = Environment::new(3).unwrap().variables(0);
        assert_ne!(
            value(&first, "RINGFOLD_ADDR"),
            value(&other, "RINGFOLD_ADDR")
        );
    }

    #[test]
    fn the_store_may_listen_at_its_port() {
        let environment = Environment::new(2).unwrap();
        let place = (Ipv4Addr::LOCALHOST, environment.master.number);
        std::net::TcpListener::bind(place).unwrap();
        // And again: a store that was closed may be opened anew.
        std::net::TcpListener::bind(place).unwrap();
    }

    #[test]
    fn a_job_without_ranks_is_refused() {
        assert!(Environment::new(0).is_err());
        assert!(Environment::new(MAX_RANKS + 1).is_err());
    }
}
