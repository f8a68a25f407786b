//! Detection of this process' rank in its job, and of the address of rank 0.
//!
//! Arguments and `RINGFOLD_*` have precedence. Otherwise the launcher that started the process
//! decides: torchrun, Open MPI, PMI (MPICH and Intel MPI), MVAPICH, a Slurm step, or the index of a
//! Kubernetes job. Without any, the process is alone. Launchers start each other, so variables of
//! several may be set: [`claim`] decides which ones count, and refuses contradictions. Half of a
//! launcher's variables is an error, and half a place without a launcher a warning.
//!
//! Ranks that are all on one host meet at an abstract UNIX name, whatever address is set; only a
//! list of several addresses is used unchanged.

mod ancestry;
mod claim;
mod halves;
mod launchers;
mod slurm;

#[cfg(test)]
pub(crate) use launchers::launchers;

use crate::control::launch::hidden_name;
use crate::control::{Launch, RendezvousAddress, Secret};
use crate::env::{Environment, Lookup, process};
use crate::error::{Error, Result};
use ancestry::{Ancestry, ancestry};
use claim::{LauncherClaim, Nesting};
use launchers::{half, master, number};

/// Origins of places that do not come from a launcher.
const OWN: &str = "RINGFOLD_*";
const KUBERNETES: &str = "Kubernetes";
/// A pod's number in a Kubernetes Indexed Job.
const INDEX: &str = "JOB_COMPLETION_INDEX";

/// The caller's arguments, which take precedence over the environment.
#[derive(Clone, Debug, Default)]
pub struct Explicit {
    /// This process' rank.
    pub rank: Option<usize>,
    /// The number of ranks.
    pub world_size: Option<usize>,
    /// Addresses at which rank 0 listens.
    pub addresses: Vec<RendezvousAddress>,
    /// Whether this process is a rank 0 whose listeners are already open.
    pub has_listener: bool,
    /// The job's secret.
    pub secret: Option<Secret>,
}

/// The user and the parent process, which also identify a job on this host.
#[derive(Clone, Copy, Debug)]
pub struct ProcessIdentity {
    /// User id of this process.
    pub uid: u32,
    /// Process that started this one: the launcher, if no other is in between.
    pub parent_pid: u32,
}

impl ProcessIdentity {
    /// Returns the identity of this process.
    pub fn here() -> ProcessIdentity {
        ProcessIdentity {
            uid: rustix::process::getuid().as_raw(),
            parent_pid: std::os::unix::process::parent_id(),
        }
    }
}

/// The place where rank 0 listens.
enum RendezvousPlace {
    /// Addresses that were chosen.
    Given(Vec<RendezvousAddress>),
    /// A name on this host, derived from this text.
    Named(String),
}

impl Launch {
    /// Detects this process' place, from `explicit`, then from its environment.
    pub fn detect(explicit: &Explicit) -> Result<Launch> {
        Launch::resolve(explicit, &process, &ancestry, ProcessIdentity::here())
    }

    /// Logs a warning about variables that describe a larger job than this one.
    pub fn warn(&self) {
        if let Some(remark) = &self.remark {
            log::warn!(target: "ringfold::init", "{remark}");
        }
    }

    /// Like [`detect`](Launch::detect), but a pure function.
    pub fn resolve(
        explicit: &Explicit,
        lookup: Lookup<'_>,
        ancestry: Ancestry<'_>,
        identity: ProcessIdentity,
    ) -> Result<Launch> {
        let own = Environment::from_lookup(lookup)?;
        let mut launch = Launch::place(explicit, &own, lookup, ancestry)?;
        if launch.rank >= launch.world_size {
            return Err(Error::InvalidArgument(format!(
                "invalid rank {} of {} ranks ({})",
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
                (RendezvousPlace::Given(addresses), _) => (addresses, None),
                (RendezvousPlace::Named(name), None) => {
                    (vec![RendezvousAddress::local(identity.uid, &name)], None)
                }
                (RendezvousPlace::Named(name), Some(secret)) => {
                    let public = RendezvousAddress::local(identity.uid, &name);
                    let hidden = hidden_name(&public, secret);
                    (
                        vec![RendezvousAddress::local(identity.uid, &hidden)],
                        Some(public),
                    )
                }
            };
        }
        Ok(launch)
    }

    /// Returns the place without the addresses.
    fn place(
        explicit: &Explicit,
        own: &Environment,
        lookup: Lookup<'_>,
        ancestry: Ancestry<'_>,
    ) -> Result<Launch> {
        if let (Some(rank), Some(world_size)) = (explicit.rank, explicit.world_size) {
            // The caller assigns the ranks: a launcher's local ranks and hosts do not apply.
            return Ok(Launch::new(rank, world_size, "arguments"));
        }
        let rank = explicit.rank.or(own.rank);
        let world_size = explicit.world_size.or(own.world_size);
        let (rank, world_size) = match (rank, world_size) {
            (Some(rank), Some(size)) => (rank, size),
            (Some(_), None) => {
                return Err(half("the rank", "RINGFOLD_RANK", "RINGFOLD_WORLD_SIZE"));
            }
            (None, size) => return Launch::launched(size, own, lookup, ancestry),
        };
        let origin = match explicit.rank {
            Some(_) => "arguments",
            None => OWN,
        };
        if explicit.rank.is_none() && explicit.world_size.is_none() {
            check_inherited(rank, world_size, lookup, ancestry)?;
        }
        Ok(Launch {
            local_rank: own.local_rank,
            local_world_size: own.local_world_size,
            ..Launch::new(rank, world_size, origin)
        })
    }

    /// Returns the place from a launcher; `world_size` is that of a Kubernetes job, whose pods have
    /// only an index.
    fn launched(
        world_size: Option<usize>,
        own: &Environment,
        lookup: Lookup<'_>,
        ancestry: Ancestry<'_>,
    ) -> Result<Launch> {
        let mut claims = launchers::claims(lookup)?;
        if let Some(size) = world_size {
            let Some(index) = number(lookup, INDEX)? else {
                return Err(half(
                    "the world size",
                    "RINGFOLD_WORLD_SIZE",
                    "RINGFOLD_RANK",
                ));
            };
            claims.push(LauncherClaim {
                name: KUBERNETES,
                rank: index,
                world_size: size,
                local_rank: own.local_rank,
                local_world_size: own.local_world_size,
                nesting: Nesting::Tasks,
                agents: None,
                is_genuine: true,
                variables: [INDEX, "RINGFOLD_WORLD_SIZE", "RINGFOLD_LOCAL_RANK"],
            });
        }
        Ok(match launchers::settle(claims, ancestry)? {
            Some(claim) => Launch {
                local_rank: claim.local_rank,
                local_world_size: claim.local_world_size,
                ..Launch::new(claim.rank, claim.world_size, claim.name)
            },
            None => Launch {
                local_rank: Some(0),
                local_world_size: Some(1),
                remark: halves::remark(lookup),
                ..Launch::new(0, 1, "no launcher")
            },
        })
    }

    /// Returns where rank 0 listens, from the addresses `given` or from the launcher.
    fn rendezvous(
        &self,
        given: Vec<RendezvousAddress>,
        lookup: Lookup<'_>,
        identity: ProcessIdentity,
    ) -> Result<RendezvousPlace> {
        let is_one_host = self.local_world_size == Some(self.world_size);
        let implied = match <[RendezvousAddress; 1]>::try_from(given) {
            Ok([address]) => Some(address),
            // A list of several is used unchanged.
            Err(several) if !several.is_empty() => return Ok(RendezvousPlace::Given(several)),
            Err(_) => match master(lookup)? {
                None if !is_one_host => launchers::implied_address(self.origin, lookup),
                other => other,
            },
        };
        match implied {
            Some(RendezvousAddress::Tcp { host, port }) if is_one_host || is_loopback(&host) => {
                Ok(RendezvousPlace::Named(port.to_string()))
            }
            Some(address) => Ok(RendezvousPlace::Given(vec![address])),
            None if is_one_host => Ok(RendezvousPlace::Named(launchers::job_name(
                self.origin,
                lookup,
                identity.parent_pid,
            ))),
            None => Err(Error::Bootstrap(format!(
                "{} provides this process' rank but no address of rank 0; set RINGFOLD_ADDR to \
                 `host:port` of rank 0 on all ranks",
                self.origin
            ))),
        }
    }
}

/// Refuses a place that a launcher's processes inherited from the process that called the launcher:
/// all of them would use the same one.
fn check_inherited(
    rank: usize,
    world_size: usize,
    lookup: Lookup<'_>,
    ancestry: Ancestry<'_>,
) -> Result<()> {
    let own = ["RINGFOLD_RANK", "RINGFOLD_WORLD_SIZE"];
    let differs = |claim: &LauncherClaim| (claim.rank, claim.world_size) != (rank, world_size);
    // Incomplete variables make no place, and none is needed here.
    let claims = launchers::claims(lookup).unwrap_or_default();
    let newer = claims.into_iter().find(|claim| {
        claim.is_genuine && differs(claim) && claim.is_newer_than(&own, ancestry) == Some(true)
    });
    newer.map_or(Ok(()), |claim| {
        let [name, size] = own;
        Err(claim.contradicts(format!("{name}={rank} and {size}={world_size} are older")))
    })
}

/// Whether the text is a loopback address or `localhost`; names are not resolved.
fn is_loopback(host: &str) -> bool {
    match host.parse::<std::net::IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost",
    }
}

#[cfg(test)]
mod tests;
