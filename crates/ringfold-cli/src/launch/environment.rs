//! The variables that give a process its place in a job, and the default number of ranks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::ExitStatus;

use anyhow::{Context, Result, anyhow, bail};
use ringfold::Bind;
use ringfold::internals::control::{Absence, Address, Launch, Secret, random};
use ringfold::internals::setup::Explicit;
use rustix::fd::OwnedFd;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use super::{MAX_RANKS, usage};

/// Bytes of a job's secret: as many as the handshake's hash has.
const SECRET_BYTES: usize = 32;

/// Bytes of a job's name: enough that two jobs of one host never have the same.
const NAME_BYTES: usize = 8;

/// This host among those of a job. Each has a launcher of its own, with the same number of ranks.
#[derive(Clone, Debug)]
pub struct Place {
    /// The number of hosts.
    pub hosts: usize,
    /// Which of them this is, from 0; rank 0 is on host 0.
    pub host_rank: usize,
    /// Where rank 0 listens; torch's store uses the port after it.
    pub address: Address,
}

/// What all ranks of one job share, and which of them are on this host.
pub struct Environment {
    /// The number of ranks on this host.
    ranks: usize,
    /// The first of them.
    first: usize,
    world_size: usize,
    /// As the ranks get it.
    address: Address,
    /// Where they meet in fact: for a loopback address that is a name of this host.
    meeting: Address,
    /// The interfaces to be met at, if they are chosen.
    socket_ifname: Option<String>,
    secret: JobSecret,
    master: Master,
}

/// The secret by which the ranks know each other.
enum JobSecret {
    /// Made by this launcher for its ranks.
    Made(String),
    /// Inherited by the ranks of all hosts.
    Inherited(Secret),
}

/// Where torch's store listens.
enum Master {
    /// No loopback address is up: ringfold's ranks do not need one.
    Nowhere,
    Here(Port),
    /// The host of rank 0, with the port after rank 0's.
    RankZero {
        host: String,
        port: u16,
    },
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
        check_count(ranks)?;
        let address = Address::Unix {
            name: format!("ringfold-{}", random_hex::<NAME_BYTES>()?),
        };
        Ok(Environment {
            ranks,
            first: 0,
            world_size: ranks,
            meeting: address.clone(),
            socket_ifname: None,
            address,
            secret: JobSecret::Made(random_hex::<SECRET_BYTES>()?),
            master: Port::free().map_or(Master::Nowhere, Master::Here),
        })
    }

    /// The part of a job on several hosts that has its `ranks` ranks on this one. The secret is
    /// that of this process' environment.
    pub fn at(place: &Place, ranks: usize) -> Result<Environment> {
        check_count(ranks)?;
        let Place {
            hosts, host_rank, ..
        } = *place;
        let Address::Tcp { host, port } = &place.address else {
            return Err(usage(anyhow!(
                "other hosts cannot reach `{}`; --addr takes a host and a port, such as \
                 node0:29400",
                place.address
            )));
        };
        let store_port = port.checked_add(1);
        let store_port =
            store_port.ok_or_else(|| usage(anyhow!("torch's store has no port after 65535")))?;
        let Some(secret) = ringfold::env::job_secret()? else {
            bail!(
                "a job on several hosts needs a secret: set RINGFOLD_SECRET_FILE to a file of mode \
                 0600 with the same content on all hosts; `(umask 077; head -c16 /dev/urandom | \
                 base64 > job.secret)` makes it"
            );
        };
        let world_size = hosts.checked_mul(ranks).context("too many ranks")?;
        let launch = Launch::detect(&Explicit {
            rank: Some(host_rank * ranks),
            world_size: Some(world_size),
            addresses: vec![place.address.clone()],
            has_listener: false,
            secret: Some(secret.clone()),
        })?;
        let variables = ringfold::env::Environment::from_lookup(&ringfold::env::process)?;
        let meeting = launch.addresses.into_iter().next();
        Ok(Environment {
            ranks,
            first: host_rank * ranks,
            world_size,
            meeting: meeting.unwrap_or_else(|| place.address.clone()),
            socket_ifname: variables.socket_ifname,
            address: place.address.clone(),
            secret: JobSecret::Inherited(secret),
            master: Master::RankZero {
                host: host.clone(),
                port: store_port,
            },
        })
    }

    /// The rank of process `local_rank` of this host.
    pub fn rank(&self, local_rank: usize) -> usize {
        self.first + local_rank
    }

    /// Whether the job has ranks that this launcher did not start.
    pub fn has_other_hosts(&self) -> bool {
        self.world_size > self.ranks
    }

    /// What the other ranks learn when process `local_rank` ends before it has joined.
    pub fn absence(&self, local_rank: usize, status: ExitStatus) -> Absence {
        let rank = self.rank(local_rank);
        Absence {
            rank,
            world_size: self.world_size,
            address: self.meeting.clone(),
            socket_ifname: self.socket_ifname.clone(),
            secret: match &self.secret {
                JobSecret::Made(text) => Secret::new(text.as_bytes()),
                JobSecret::Inherited(secret) => secret.clone(),
            },
            reason: format!("{} before it joined", how_it_ended(rank, status)),
        }
    }

    /// The variables of one process: ringfold's, and torchrun's for programs that know only those.
    pub fn variables(&self, local_rank: usize) -> Vec<(&'static str, String)> {
        let world_size = self.world_size.to_string();
        let rank = self.rank(local_rank).to_string();
        let local_size = self.ranks.to_string();
        let local_rank = local_rank.to_string();
        let mut variables = vec![
            ("RINGFOLD_RANK", rank.clone()),
            ("RINGFOLD_WORLD_SIZE", world_size.clone()),
            ("RINGFOLD_LOCAL_RANK", local_rank.clone()),
            ("RINGFOLD_LOCAL_WORLD_SIZE", local_size.clone()),
            ("RINGFOLD_ADDR", self.address.to_string()),
            // What is to be bound is bound before the rank runs.
            ("RINGFOLD_BIND", Bind::None.name().into()),
            ("RANK", rank),
            ("WORLD_SIZE", world_size),
            ("LOCAL_RANK", local_rank),
            ("LOCAL_WORLD_SIZE", local_size),
        ];
        if let JobSecret::Made(secret) = &self.secret {
            variables.push(("RINGFOLD_SECRET", secret.clone()));
        }
        let master = match &self.master {
            Master::Nowhere => None,
            Master::Here(Port { address, .. }) => Some((address.ip().to_string(), address.port())),
            Master::RankZero { host, port } => Some((host.clone(), *port)),
        };
        if let Some((host, port)) = master {
            variables.push(("MASTER_ADDR", host));
            variables.push(("MASTER_PORT", port.to_string()));
        }
        variables
    }
}

fn how_it_ended(rank: usize, status: ExitStatus) -> String {
    match status.success() {
        true => format!("the process of rank {rank} has ended, with status 0,"),
        false => format!("the process of rank {rank} {}", super::describe(status)),
    }
}

fn check_count(ranks: usize) -> Result<()> {
    if ranks == 0 || ranks > MAX_RANKS {
        bail!("cannot start {ranks} ranks on one host; choose 1 to {MAX_RANKS}");
    }
    Ok(())
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
        let Master::Here(port) = &environment.master else {
            panic!("no loopback address");
        };
        let place = (Ipv4Addr::LOCALHOST, port.address.port());
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
