//! Who this process is among the ranks, and where rank 0 is met.
//!
//! The first source that says anything is believed: arguments and `RINGFOLD_*`, torchrun, a Slurm step, Open MPI, PMI
//! (MPICH and Intel MPI), MVAPICH, the index of a Kubernetes job; else the process is alone. A torchrun started by srun
//! leaves both sets of variables, hence that order. A source that says only half is an error, not a guess.
//!
//! When all ranks are on one host they meet at an abstract UNIX socket, whatever the address says.

use sha2::{Digest, Sha256};

use super::auth::Secret;
use super::socket::Address;
use crate::env::{Environment, Lookup, process};
use crate::error::{Error, Result};
use crate::silence::Silence;

/// A process' place in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// This process' rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// This process' number on its host, if the launcher says so.
    pub local_rank: Option<usize>,
    /// The number of ranks on this host, if the launcher says so.
    pub local_world_size: Option<usize>,
    /// Where rank 0 may be met, in the order in which it is tried; none only for a job of one rank, or for a rank 0 that
    /// has a [`Meeting`](super::Meeting).
    pub addresses: Vec<Address>,
    /// The name that follows from the address alone, where a secret hides the one that is used:
    /// rank 0 listens there too, if no other user does, so that ranks with another secret, or none,
    /// find out.
    pub public_name: Option<Address>,
    /// How long another host may be silent; rank 0's holds.
    pub silence: Silence,
    /// Who said all this.
    pub origin: &'static str,
}

/// What the caller knows; it goes before the environment.
#[derive(Clone, Debug, Default)]
pub struct Explicit {
    /// This process' rank.
    pub rank: Option<usize>,
    /// The number of ranks.
    pub world_size: Option<usize>,
    /// Where rank 0 may be met.
    pub addresses: Vec<Address>,
    /// Whether this is a rank 0 that has a place to be met.
    pub has_meeting: bool,
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

/// Where rank 0 is met.
enum Place {
    /// At addresses that somebody chose.
    Given(Vec<Address>),
    /// On this host, under a name that follows from this.
    Named(String),
}

/// The names by which a launcher says who a process is.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
    local_world_size: &'static str,
    /// Whether one of rank and size without the other is an error rather than another program's business.
    is_strict: bool,
    /// Variables that are the same on all ranks of a job and different for two jobs on one host.
    job: &'static [&'static str],
}

/// Bytes of a name that follows from a secret.
const NAME_BYTES: usize = 16;

/// In order of precedence.
const LAUNCHERS: [Launcher; 5] = [
    Launcher {
        name: "torchrun",
        rank: "RANK",
        world_size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_world_size: "LOCAL_WORLD_SIZE",
        is_strict: true,
        job: &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
    },
    // A batch script has a rank, too; only a step says how many tasks it has.
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        world_size: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        local_world_size: "",
        is_strict: false,
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        is_strict: true,
        job: &["PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"],
    },
    Launcher {
        name: "PMI",
        rank: "PMI_RANK",
        world_size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_world_size: "MPI_LOCALNRANKS",
        is_strict: true,
        job: &["PMI_JOBID", "PMI_PORT"],
    },
    Launcher {
        name: "MVAPICH",
        rank: "MV2_COMM_WORLD_RANK",
        world_size: "MV2_COMM_WORLD_SIZE",
        local_rank: "MV2_COMM_WORLD_LOCAL_RANK",
        local_world_size: "MV2_COMM_WORLD_LOCAL_SIZE",
        is_strict: true,
        job: &["PMI_JOBID", "PMI_PORT"],
    },
];

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
        if launch.world_size > 1 && !explicit.has_meeting {
            let given = match explicit.addresses.is_empty() {
                true => own.addresses.clone(),
                false => explicit.addresses.clone(),
            };
            let place = launch.meeting_place(given, lookup, identity)?;
            let secret = explicit.secret.as_ref().or(own.secret.as_ref());
            (launch.addresses, launch.public_name) = match (place, secret) {
                (Place::Given(addresses), _) => (addresses, None),
                (Place::Named(name), None) => (vec![local_address(identity.uid, &name)], None),
                (Place::Named(name), Some(secret)) => {
                    let public = local_address(identity.uid, &name);
                    let hidden = hidden_name(&public, secret);
                    (vec![local_address(identity.uid, &hidden)], Some(public))
                }
            };
        }
        Ok(launch)
    }

    /// Everything but the address.
    fn place(explicit: &Explicit, own: &Environment, lookup: Lookup<'_>) -> Result<Launch> {
        if let (Some(rank), Some(world_size)) = (explicit.rank, explicit.world_size) {
            // Ranks of the caller's own making: what a launcher says of hosts is about others.
            return Ok(Launch {
                rank,
                world_size,
                local_rank: None,
                local_world_size: None,
                addresses: Vec::new(),
                public_name: None,
                silence: Silence::default(),
                origin: "arguments",
            });
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
            rank,
            world_size,
            local_rank: own.local_rank,
            local_world_size: own.local_world_size,
            addresses: Vec::new(),
            public_name: None,
            silence: Silence::default(),
            origin,
        })
    }

    fn from_launchers(lookup: Lookup<'_>) -> Result<Launch> {
        for launcher in &LAUNCHERS {
            let rank = number(lookup, launcher.rank)?;
            let world_size = number(lookup, launcher.world_size)?;
            let (rank, world_size) = match (rank, world_size) {
                (Some(rank), Some(size)) => (rank, size),
                (Some(_), None) if launcher.is_strict => {
                    return Err(half(launcher.name, launcher.rank, launcher.world_size));
                }
                (None, Some(_)) if launcher.is_strict => {
                    return Err(half(launcher.name, launcher.world_size, launcher.rank));
                }
                _ => continue,
            };
            let local_world_size = match launcher.name {
                "Slurm" => slurm_local_size(lookup),
                _ => number(lookup, launcher.local_world_size)?,
            };
            return Ok(Launch {
                rank,
                world_size,
                local_rank: number(lookup, launcher.local_rank)?,
                local_world_size,
                addresses: Vec::new(),
                public_name: None,
                silence: Silence::default(),
                origin: launcher.name,
            });
        }
        Ok(Launch {
            rank: 0,
            world_size: 1,
            local_rank: Some(0),
            local_world_size: Some(1),
            addresses: Vec::new(),
            public_name: None,
            silence: Silence::default(),
            origin: "no launcher",
        })
    }

    /// Where rank 0 is met, from what was `given` or what the launcher implies.
    fn meeting_place(
        &self,
        given: Vec<Address>,
        lookup: Lookup<'_>,
        identity: Identity,
    ) -> Result<Place> {
        let is_one_host = self.local_world_size == Some(self.world_size);
        let implied = match <[Address; 1]>::try_from(given) {
            Ok([address]) => Some(address),
            // Who lists several places means these.
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
            None if is_one_host => Ok(Place::Named(self.job_name(lookup, identity))),
            None => Err(Error::Bootstrap(format!(
                "{} says who this rank is, but not where rank 0 is; set RINGFOLD_ADDR to `host:port` of rank 0 on all \
                 ranks",
                self.origin
            ))),
        }
    }

    /// A name for this job on this host, from what its launcher tells all ranks; at worst the launcher's process.
    fn job_name(&self, lookup: Lookup<'_>, identity: Identity) -> String {
        let launcher = LAUNCHERS
            .iter()
            .find(|launcher| launcher.name == self.origin);
        let names = launcher.map_or(&[] as &[&str], |launcher| launcher.job);
        let values: Vec<String> = names.iter().filter_map(|name| lookup(name)).collect();
        let text = match values.is_empty() {
            true => format!("parent {}", identity.parent_pid),
            false => values.join("\n"),
        };
        let digest = Sha256::digest(text.as_bytes());
        digest[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// The launchers' names and their variables, in order of precedence, as rows of a table.
pub fn launchers() -> String {
    let mut rows = String::from(
        "| launcher | rank | world size | local rank | local world size |\n|---|---|---|---|---|\n",
    );
    for launcher in &LAUNCHERS {
        let local_world_size = match launcher.name {
            "Slurm" => "SLURM_STEP_TASKS_PER_NODE",
            _ => launcher.local_world_size,
        };
        rows.push_str(&format!(
            "| {} | `{}` | `{}` | `{}` | `{local_world_size}` |\n",
            launcher.name, launcher.rank, launcher.world_size, launcher.local_rank
        ));
    }
    rows.push_str("| Kubernetes | `JOB_COMPLETION_INDEX` | `RINGFOLD_WORLD_SIZE` | | |\n");
    rows
}

fn half(who: &str, there: &str, missing: &str) -> Error {
    Error::InvalidArgument(format!(
        "{who} is given by {there}, but {missing} is not; give both or neither"
    ))
}

fn number(lookup: Lookup<'_>, name: &str) -> Result<Option<usize>> {
    let Some(text) = lookup(name) else {
        return Ok(None);
    };
    let number = text.trim().parse().map_err(|_| {
        Error::InvalidArgument(format!(
            "{name}=`{text}`: must be a whole number, 0 or more"
        ))
    })?;
    Ok(Some(number))
}

/// What stands for `public` where a secret is known: no other user can tell it beforehand, nor take
/// it.
pub(super) fn hidden_name(public: &Address, secret: &Secret) -> String {
    let key = secret.derive("name", public.to_string().as_bytes());
    let digits = key[..NAME_BYTES].iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

fn local_address(uid: u32, name: &str) -> Address {
    Address::Unix {
        name: format!("ringfold-{uid}-{name}"),
    }
}

/// Whether the text alone says so; names are not resolved.
fn is_loopback(host: &str) -> bool {
    match host.parse::<std::net::IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost",
    }
}

/// torch's address, one port further: that port itself belongs to torch's store.
fn master(lookup: Lookup<'_>) -> Result<Option<Address>> {
    let (host, port) = match (lookup("MASTER_ADDR"), number(lookup, "MASTER_PORT")?) {
        (Some(host), Some(port)) => (host, port),
        (None, None) => return Ok(None),
        (Some(_), None) => return Err(half("rank 0's host", "MASTER_ADDR", "MASTER_PORT")),
        (None, Some(_)) => return Err(half("rank 0's port", "MASTER_PORT", "MASTER_ADDR")),
    };
    match u16::try_from(port.saturating_add(1)) {
        Ok(port) => Ok(Some(Address::Tcp { host, port })),
        Err(_) => Err(Error::InvalidArgument(format!(
            "MASTER_PORT={port}: the port after it is needed, and there is none; choose a lower one or set RINGFOLD_ADDR"
        ))),
    }
}

/// The first host of a Slurm step, and a port above the ephemeral ones that its job and step number choose.
fn slurm_address(lookup: Lookup<'_>) -> Option<Address> {
    const FIRST_PORT: u64 = 61440;
    let list = lookup("SLURM_STEP_NODELIST").or_else(|| lookup("SLURM_JOB_NODELIST"))?;
    let job: u64 = lookup("SLURM_JOB_ID")?.parse().ok()?;
    let step = lookup("SLURM_STEP_ID").and_then(|text| text.parse().ok());
    let offset = job.wrapping_add(step.unwrap_or(0u64).wrapping_mul(251)) % 4096;
    Some(Address::Tcp {
        host: first_host(&list)?,
        port: (FIRST_PORT + offset) as u16,
    })
}

/// The first host of a Slurm list: `node[01-04,7],login1` begins with `node01`. Brackets may stand anywhere in a name.
fn first_host(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list.trim();
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        name.push_str(&rest[..end]);
        rest = &rest[end..];
        if !rest.starts_with('[') {
            return (!name.is_empty()).then_some(name);
        }
        let close = rest.find(']')?;
        let inside = &rest[1..close];
        name.push_str(inside.split([',', '-']).next()?);
        rest = &rest[close + 1..];
    }
}

/// This node's tasks, from a list like `2(x3),1`: three nodes of two tasks, then one of one.
fn slurm_local_size(lookup: Lookup<'_>) -> Option<usize> {
    let list = lookup("SLURM_STEP_TASKS_PER_NODE")?;
    let mut node: usize = lookup("SLURM_NODEID")?.parse().ok()?;
    for part in list.split(',') {
        let (tasks, repeats) = match part.split_once("(x") {
            Some((tasks, repeats)) => (tasks, repeats.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if node < repeats {
            return tasks.parse().ok();
        }
        node -= repeats;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        uid: 1000,
        parent_pid: 4711,
    };

    fn resolve(pairs: &[(&str, &str)]) -> Result<Launch> {
        resolve_with(&Explicit::default(), pairs)
    }

    fn resolve_with(explicit: &Explicit, pairs: &[(&str, &str)]) -> Result<Launch> {
        let lookup = |name: &str| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.to_string())
        };
        Launch::resolve(explicit, &lookup, IDENTITY)
    }

    fn texts(launch: &Launch) -> Vec<String> {
        launch.addresses.iter().map(Address::to_string).collect()
    }

    fn summary(pairs: &[(&str, &str)]) -> String {
        match resolve(pairs) {
            Ok(launch) => format!(
                "{} {}/{} {} {}",
                launch.origin,
                launch.rank,
                launch.world_size,
                launch
                    .local_world_size
                    .map_or("?".into(), |n| n.to_string()),
                match launch.addresses.is_empty() {
                    true => "-".into(),
                    false => texts(&launch).join(","),
                }
            ),
            Err(error) => error.to_string(),
        }
    }

    const TORCHRUN: [(&str, &str); 6] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "node1"),
        ("MASTER_PORT", "29500"),
    ];
    const SLURM: [(&str, &str); 8] = [
        ("SLURM_PROCID", "5"),
        ("SLURM_STEP_NUM_TASKS", "7"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NODEID", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
        ("SLURM_STEP_NODELIST", "node[01-04,7]"),
        ("SLURM_JOB_ID", "100"),
        ("SLURM_STEP_ID", "1"),
    ];

    #[test]
    fn without_any_variable_the_process_is_alone() {
        assert_eq!(summary(&[]), "no launcher 0/1 1 -");
    }

    #[test]
    fn every_launcher_is_understood() {
        assert_eq!(summary(&TORCHRUN), "torchrun 3/8 2 node1:29501");
        assert_eq!(summary(&SLURM), "Slurm 5/7 2 node01:61791");
        let open_mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("RINGFOLD_ADDR", "10.0.0.1:7"),
        ];
        assert_eq!(summary(&open_mpi), "Open MPI 1/4 2 10.0.0.1:7");
        let pmi = [
            ("PMI_RANK", "1"),
            ("PMI_SIZE", "4"),
            ("RINGFOLD_ADDR", "h:7"),
        ];
        assert_eq!(summary(&pmi), "PMI 1/4 ? h:7");
        let mvapich = [
            ("MV2_COMM_WORLD_RANK", "0"),
            ("MV2_COMM_WORLD_SIZE", "2"),
            ("RINGFOLD_ADDR", "h:7"),
        ];
        assert_eq!(summary(&mvapich), "MVAPICH 0/2 ? h:7");
        let kubernetes = [
            ("JOB_COMPLETION_INDEX", "2"),
            ("RINGFOLD_WORLD_SIZE", "3"),
            ("RINGFOLD_ADDR", "job-0.svc:7"),
        ];
        assert_eq!(summary(&kubernetes), "Kubernetes 2/3 ? job-0.svc:7");
    }

    #[test]
    fn arguments_go_before_variables_and_those_before_launchers() {
        let mut pairs = TORCHRUN.to_vec();
        pairs.extend(SLURM);
        assert!(summary(&pairs).starts_with("torchrun"));
        pairs.extend([("RINGFOLD_RANK", "0"), ("RINGFOLD_WORLD_SIZE", "2")]);
        assert_eq!(summary(&pairs), "RINGFOLD_* 0/2 ? node1:29501");
        let explicit = Explicit {
            rank: Some(1),
            world_size: None,
            addresses: vec!["unix:@x".parse().unwrap()],
            ..Explicit::default()
        };
        let launch = resolve_with(&explicit, &pairs).unwrap();
        assert_eq!((launch.rank, launch.world_size), (1, 2));
        assert_eq!(texts(&launch), ["unix:@x"]);
    }

    #[test]
    fn ranks_of_the_callers_own_making_have_nothing_of_the_launcher() {
        let mut pairs = TORCHRUN.to_vec();
        pairs.extend([
            ("RINGFOLD_LOCAL_WORLD_SIZE", "2"),
            ("JOB_COMPLETION_INDEX", "x"),
        ]);
        let explicit = Explicit {
            rank: Some(1),
            world_size: Some(2),
            addresses: vec!["10.0.0.1:7".parse().unwrap()],
            ..Explicit::default()
        };
        let launch = resolve_with(&explicit, &pairs).unwrap();
        assert_eq!((launch.rank, launch.world_size), (1, 2));
        assert_eq!(texts(&launch), ["10.0.0.1:7"]);
        let host = Explicit {
            rank: Some(0),
            addresses: Vec::new(),
            has_meeting: true,
            ..explicit
        };
        assert_eq!(texts(&resolve_with(&host, &pairs).unwrap()).len(), 0);
    }

    #[test]
    fn several_places_are_taken_as_they_are() {
        let given = "unix:@a,localhost:7,10.0.0.1:7";
        let pairs = [
            ("RINGFOLD_RANK", "0"),
            ("RINGFOLD_WORLD_SIZE", "2"),
            ("RINGFOLD_ADDR", given),
        ];
        assert!(summary(&pairs).ends_with(given), "{}", summary(&pairs));
    }

    #[test]
    fn half_a_place_is_an_error_that_names_the_other_half() {
        let halves = [
            ("RINGFOLD_RANK", "RINGFOLD_WORLD_SIZE"),
            ("RINGFOLD_WORLD_SIZE", "RINGFOLD_RANK"),
            ("RANK", "WORLD_SIZE"),
            ("WORLD_SIZE", "RANK"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ];
        for (there, missing) in halves {
            let error = summary(&[(there, "1")]);
            assert!(error.contains(missing), "{error}");
        }
        // A batch script and a lone index are no job.
        assert_eq!(
            summary(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]),
            summary(&[])
        );
        assert_eq!(summary(&[("JOB_COMPLETION_INDEX", "4")]), summary(&[]));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        assert!(summary(&[("RANK", "x"), ("WORLD_SIZE", "2")]).contains("RANK"));
        assert!(summary(&[("RANK", "2"), ("WORLD_SIZE", "2")]).contains("impossible"));
        let without_address = [("PMI_RANK", "1"), ("PMI_SIZE", "4")];
        assert!(summary(&without_address).contains("RINGFOLD_ADDR"));
        let mut last_port = TORCHRUN;
        last_port[5].1 = "65535";
        assert!(summary(&last_port).contains("MASTER_PORT"));
    }

    #[test]
    fn ranks_of_one_host_meet_at_a_unix_socket() {
        let mut local = TORCHRUN;
        local[3].1 = "8";
        assert!(summary(&local).ends_with("unix:@ringfold-1000-29501"));
        let loopback = [
            ("RINGFOLD_RANK", "0"),
            ("RINGFOLD_WORLD_SIZE", "2"),
            ("RINGFOLD_ADDR", "localhost:7"),
        ];
        assert!(summary(&loopback).ends_with("unix:@ringfold-1000-7"));
    }

    #[test]
    fn mpirun_on_one_host_needs_no_address() {
        let job = |namespace: &'static str| {
            [
                ("OMPI_COMM_WORLD_RANK", "1"),
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                ("PMIX_NAMESPACE", namespace),
            ]
        };
        let first = resolve(&job("a@1")).unwrap().addresses.remove(0);
        let again = resolve(&job("a@1")).unwrap().addresses.remove(0);
        let other = resolve(&job("b@1")).unwrap().addresses.remove(0);
        assert_eq!(first, again);
        assert_ne!(first, other);
        // The name is one that can be used.
        first.to_string().parse::<Address>().unwrap();
    }

    #[test]
    fn slurm_lists_begin_with_their_first_host() {
        let lists = [
            ("node1", "node1"),
            ("node[01-04,7]", "node01"),
            ("node[3]", "node3"),
            ("a,b", "a"),
            ("rack[1-2]n[05-06].x,login", "rack1n05.x"),
        ];
        for (list, first) in lists {
            assert_eq!(first_host(list).unwrap(), first);
        }
        for broken in ["", "node[1", ","] {
            assert_eq!(first_host(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_secret_hides_the_name_that_follows_from_a_port() {
        let place = |secret: &'static str| {
            let mut pairs = vec![
                ("RINGFOLD_RANK", "1"),
                ("RINGFOLD_WORLD_SIZE", "2"),
                ("RINGFOLD_ADDR", "127.0.0.1:7"),
            ];
            pairs.extend((!secret.is_empty()).then_some(("RINGFOLD_SECRET", secret)));
            let launch = resolve(&pairs).unwrap();
            (texts(&launch).remove(0), launch.public_name)
        };
        let public: Address = "unix:@ringfold-1000-7".parse().unwrap();
        assert_eq!(place(""), (public.to_string(), None));
        let (hidden, known) = place("one secret");
        assert_eq!(known, Some(public.clone()));
        assert_eq!(place("one secret").0, hidden);
        assert!(hidden.starts_with("unix:@ringfold-1000-") && hidden != public.to_string());
        assert_ne!(place("another secret").0, hidden);
    }
}
