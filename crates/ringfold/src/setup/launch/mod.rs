//! Who this process is among the ranks, and where rank 0 listens.
//!
//! The first source that says anything decides: arguments and `RINGFOLD_*`, torchrun, a Slurm step,
//! Open MPI, PMI (MPICH and Intel MPI), MVAPICH, the index of a Kubernetes job; else the process is
//! alone. A torchrun started by srun leaves both sets of variables, hence that order. A source that
//! says only half is an error, not a guess.
//!
//! When all ranks are on one host they meet at an abstract UNIX socket, whatever the address says.

mod launchers;

#[cfg(test)]
pub(crate) use launchers::launchers;

use crate::control::launch::hidden_name;
use crate::control::{Address, Launch, Secret};
use crate::env::{Environment, Lookup, process};
use crate::error::{Error, Result};
use launchers::{half, master, number, slurm_address};

/// What the caller says; it takes precedence over the environment.
#[derive(Clone, Debug, Default)]
pub struct Explicit {
    /// This process' rank.
    pub rank: Option<usize>,
    /// The number of ranks.
    pub world_size: Option<usize>,
    /// Where rank 0 listens.
    pub addresses: Vec<Address>,
    /// Whether this is a rank 0 whose listeners are open already.
    pub has_listener: bool,
    /// The job's secret.
    pub secret: Option<Secret>,
}

/// What else identifies a job on this host.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// This user.
    pub uid: u32,
    /// The process that started this one: the launcher, if nothing stands between.
    pub parent_pid: u32,
}

impl Identity {
    /// This process'.
    pub fn here() -> Identity {
        Identity {
            uid: rustix::process::getuid().as_raw(),
            parent_pid: std::os::unix::process::parent_id(),
        }
    }
}

/// Where rank 0 listens.
enum Place {
    /// At addresses that were chosen.
    Given(Vec<Address>),
    /// On this host, under a name that follows from this.
    Named(String),
}

impl Launch {
    /// This process' place, from `explicit`, then from its environment.
    pub fn detect(explicit: &Explicit) -> Result<Launch> {
        Launch::resolve(explicit, &process, Identity::here())
    }

    /// The same as a pure function.
    pub fn resolve(explicit: &Explicit, lookup: Lookup<'_>, identity: Identity) -> Result<Launch> {
        let own = Environment::from_lookup(lookup)?;
        let mut launch = Launch::place(explicit, &own, lookup)?;
        if launch.rank >= launch.world_size {
            return Err(Error::InvalidArgument(format!(
                "rank {} of {} ranks is impossible ({})",
                launch.rank, launch.world_size, launch.origin
            )));
        }
        if launch.world_size > 1 && !explicit.has_listener {
            let given = match explicit.addresses.is_empty() {
                true => own.addresses.clone().unwrap_or_default(),
                false => explicit.addresses.clone(),
            };
            let place = launch.rendezvous(given, lookup, identity)?;
            let secret = explicit.secret.as_ref().or(own.secret.as_ref());
            (launch.addresses, launch.public_name) = match (place, secret) {
                (Place::Given(addresses), _) => (addresses, None),
                (Place::Named(name), None) => (vec![Address::local(identity.uid, &name)], None),
                (Place::Named(name), Some(secret)) => {
                    let public = Address::local(identity.uid, &name);
                    let hidden = hidden_name(&public, secret);
                    (vec![Address::local(identity.uid, &hidden)], Some(public))
                }
            };
        }
        Ok(launch)
    }

    /// Everything but the address.
    fn place(explicit: &Explicit, own: &Environment, lookup: Lookup<'_>) -> Result<Launch> {
        if let (Some(rank), Some(world_size)) = (explicit.rank, explicit.world_size) {
            // The caller's own ranks: what a launcher says about hosts is about others.
            return Ok(Launch::new(rank, world_size, "arguments"));
        }
        let is_indexed = explicit.rank.is_none() && own.rank.is_none();
        let index = match is_indexed {
            true => number(lookup, "JOB_COMPLETION_INDEX")?,
            false => None,
        };
        let rank = explicit.rank.or(own.rank);
        let world_size = explicit.world_size.or(own.world_size);
        let (rank, world_size, origin) = match (rank.or(index), world_size) {
            (Some(rank), Some(size)) if is_indexed => (rank, size, "Kubernetes"),
            (Some(rank), Some(size)) if explicit.rank.is_some() => (rank, size, "arguments"),
            (Some(rank), Some(size)) => (rank, size, "RINGFOLD_*"),
            (Some(_), None) if !is_indexed => {
                return Err(half("the rank", "RINGFOLD_RANK", "RINGFOLD_WORLD_SIZE"));
            }
            (None, Some(_)) => {
                return Err(half(
                    "the world size",
                    "RINGFOLD_WORLD_SIZE",
                    "RINGFOLD_RANK",
                ));
            }
            (_, None) => return Launch::from_launchers(lookup),
        };
        Ok(Launch {
            local_rank: own.local_rank,
            local_world_size: own.local_world_size,
            ..Launch::new(rank, world_size, origin)
        })
    }

    /// Where rank 0 listens, from what was `given` or what the launcher implies.
    fn rendezvous(
        &self,
        given: Vec<Address>,
        lookup: Lookup<'_>,
        identity: Identity,
    ) -> Result<Place> {
        let is_one_host = self.local_world_size == Some(self.world_size);
        let implied = match <[Address; 1]>::try_from(given) {
            Ok([address]) => Some(address),
            // A list of several is taken as it is.
            Err(several) if !several.is_empty() => return Ok(Place::Given(several)),
            Err(_) => match master(lookup)? {
                None if self.origin == "Slurm" && !is_one_host => slurm_address(lookup),
                other => other,
            },
        };
        match implied {
            Some(Address::Tcp { host, port }) if is_one_host || is_loopback(&host) => {
                Ok(Place::Named(port.to_string()))
            }
            Some(address) => Ok(Place::Given(vec![address])),
            None if is_one_host => Ok(Place::Named(launchers::job_name(
                self.origin,
                lookup,
                identity.parent_pid,
            ))),
            None => Err(Error::Bootstrap(format!(
                "{} says who this rank is, but not where rank 0 is; set RINGFOLD_ADDR to \
                 `host:port` of rank 0 on all ranks",
                self.origin
            ))),
        }
    }
}

/// Whether the text is a loopback address; names are not resolved.
fn is_loopback(host: &str) -> bool {
    match host.parse::<std::net::IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost",
    }
}

#[cfg(test)]
mod tests;
