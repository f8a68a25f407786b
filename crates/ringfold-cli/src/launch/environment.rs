//! The variables that give a process its place in a job, and the default number of ranks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use anyhow::{Result, bail};
use ringfold::Bind;
use ringfold::internals::control::{Absence, Secret, random};
use rustix::fd::OwnedFd;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use super::MAX_RANKS;

/// Bytes of a job's secret: as many as the handshake's hash has.
const SECRET_BYTES: usize = 32;

/// Bytes of a job's name: enough that two jobs of one host never have the same.
const NAME_BYTES: usize = 8;

/// What all ranks of one job share.
pub struct Environment {
    ranks: usize,
    address: String,
    secret: String,
    /// None if no loopback address is up: ringfold's ranks do not need one.
    master: Option<Port>,
}

/// A port of this host for torch's store: the system assigns it to no other process while this
/// exists, but a process that requests it by number may listen there.
struct Port {
    address: SocketAddr,
    /// Bound, but not listening: the system does not assign the port to others, and both sides
    /// allow it to be shared.
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
            address: format!("unix:@ringfold-{}", random_hex::<NAME_BYTES>()?),
            secret: random_hex::<SECRET_BYTES>()?,
            master: Port::free(),
        })
    }

    /// What the other ranks learn when the process of `rank` ends well before it has joined.
    pub fn absence(&self, rank: usize) -> Option<Absence> {
        Some(Absence {
            rank,
            world_size: self.ranks,
            address: self.address.parse().ok()?,
            secret: Secret::new(self.secret.as_bytes()),
            reason: format!(
                "the process of rank {rank} has ended, with status 0, before it joined"
            ),
        })
    }

    /// The variables of one rank: ringfold's, and torchrun's for programs that know only those.
    pub fn variables(&self, rank: usize) -> Vec<(&'static str, String)> {
        let ranks = self.ranks.to_string();
        let rank = rank.to_string();
        let mut variables = vec![
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
        ];
        if let Some(Port { address, .. }) = &self.master {
            variables.push(("MASTER_ADDR", address.ip().to_string()));
            variables.push(("MASTER_PORT", address.port().to_string()));
        }
        variables
    }
}

/// One rank per core (within affinity and the control group's quota), and at least two, because one
/// rank has no peer.
pub fn default_ranks() -> usize {
    ringfold::internals::topology::cores::available().clamp(2, MAX_RANKS)
}

fn random_hex<const BYTES: usize>() -> Result<String> {
    let bytes: [u8; BYTES] = random()?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Port {
    /// A port of the first loopback address that is up.
    fn free() -> Option<Port> {
        let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let held: Vec<Result<Port>> = loopback.into_iter().map(Port::hold).collect();
        let refused = held.iter().find_map(|port| port.as_ref().err());
        let refused = refused.map_or(String::new(), |error| format!(" ({error:#})"));
        let port = held.into_iter().find_map(Result::ok);
        if port.is_none() {
            crate::complain(&format!(
                "no loopback address is up{refused}: the ranks get no MASTER_ADDR and MASTER_PORT, \
                 which torch.distributed needs; `ip link set lo up` fixes it"
            ));
        }
        port
    }

    fn hold(host: IpAddr) -> Result<Port> {
        let family = match host {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        let holder = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&holder, true)?;
        net::bind(&holder, &SocketAddr::new(host, 0))?;
        let address = SocketAddr::try_from(net::getsockname(&holder)?)?;
        // Where the interface is down, binding works and connecting does not.
        UdpSocket::bind((host, 0))?.connect(address)?;
        Ok(Port {
            address,
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
        let place = (
            Ipv4Addr::LOCALHOST,
            environment.master.as_ref().unwrap().address.port(),
        );
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
