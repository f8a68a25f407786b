//! The set-up of communicators.
//!
//! A process detects its rank ([`launch`]) and joins its job's control plane. Typed stages follow.
//! Each owns its resources, the next one consumes it, and dropping one undoes it:
//!
//! ```text
//! Attempt ──► Discovered ──► Linked ──► Agreed ──► Communicator
//!   open in     the others'    shared     one table   the first calls
//!   the control offers; bound  memory,    of constants, are made
//!   plane       to cores       sockets    limits, rules
//! ```
//!
//! All ranks take part in two exchanges: of [`PeerInfo`](peer_info::PeerInfo) when they discover
//! each other, and of a [`Proposal`](terms::Proposal) when all are linked; RDMA has two more. A
//! part made by `split` passes the same stages; ranks that are threads skip them.

mod agree;
mod attempt;
mod beside;
mod board;
mod discover;
mod establish;
mod fabric;
pub mod launch;
mod link;
mod memory_costs;
mod offer;
pub mod peer_info;
mod placement;
mod rails;
mod split;
pub mod terms;
pub(crate) mod threads;
mod warm_up;

use std::time::Instant;

pub use launch::Explicit;

#[doc(hidden)]
pub use crate::testing::delay_injector::Injection;

use crate::communicator::Communicator;
use crate::communicator::group::{Inherited, RankGroup};
use crate::communicator::settings::Settings;
use crate::config::{Config, StragglerPolicy};
use crate::control::address::addresses;
use crate::control::limit::Limit;
use crate::control::{Cancel, Launch, RendezvousListener, Secret, Session};
use crate::env::{self, Environment};
use crate::error::{Error, Result};
use crate::topology::interface_choice::InterfaceChoice;
use crate::types::Method;
use establish::establish;

impl RendezvousListener {
    /// Opens listeners on free ports of this host's addresses: those that `RINGFOLD_SOCKET_IFNAME`
    /// (or gloo's or NCCL's variable) selects, or all but loopback, which is used only if there is
    /// nothing else. `toward` is a host name or an address: this host's address on the route to
    /// `toward` is first, which is `toward` itself if it is this host's.
    ///
    /// # Errors
    /// `Bootstrap` if no address can be listened on, or the variable leaves none. A `toward` that
    /// is unknown here is ignored. Blocks while its name is looked up, for 10 s at most.
    pub fn open(toward: Option<&str>) -> Result<RendezvousListener> {
        let choice = InterfaceChoice::find(&env::process);
        RendezvousListener::on(choice.as_ref(), toward)
    }
}

impl Communicator {
    /// Joins the job that the environment describes. A process without such an environment is a job
    /// of one rank.
    pub fn init() -> Result<Communicator> {
        Communicator::connect(Config::default())
    }

    /// Joins a job. Blocks until all ranks have joined, or the deadline for joining has passed.
    pub fn connect(config: Config) -> Result<Communicator> {
        join(config, None, None)
    }

    /// Joins a job as its rank 0, which the others reach at `listener`: they
    /// [`connect`](Communicator::connect) with its [`address`](RendezvousListener::address). A
    /// secret, in `config` or the environment, is required. Blocks as `connect` does; afterwards
    /// the listener is closed.
    ///
    /// ```
    /// use ringfold::{Communicator, Config, Op, RendezvousListener};
    ///
    /// let listener = RendezvousListener::open(None)?;
    /// // What a store, a queue or a file carries to the other ranks.
    /// let address = listener.address();
    /// let config = |rank| Config {
    ///     rank: Some(rank),
    ///     world_size: Some(2),
    ///     secret: Some("known to these ranks alone".into()),
    ///     ..Config::default()
    /// };
    /// let other = std::thread::spawn(move || {
    ///     let config = Config { address: Some(address), ..config(1) };
    ///     Communicator::connect(config)?.all_reduce(&mut [2.0f32], Op::Sum)
    /// });
    /// let comm = Communicator::connect_at(config(0), listener)?;
    /// let mut sum = [1.0f32];
    /// comm.all_reduce(&mut sum, Op::Sum)?;
    /// assert_eq!(sum, [3.0]);
    /// # other.join().expect("a thread")?;
    /// # Ok::<(), ringfold::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of `connect`, and `InvalidArgument` if `config` has an address, or this process
    /// is not rank 0.
    pub fn connect_at(config: Config, listener: RendezvousListener) -> Result<Communicator> {
        join(config, Some(listener), None)
    }

    /// Creates communicators of `world_size` ranks that are threads of this process: for tests and
    /// examples. Move each to its own thread. `split` is not supported.
    pub fn threads(world_size: usize) -> Vec<Communicator> {
        threads::threads(world_size)
    }

    /// Creates communicators of the ranks with equal `color`, ordered by `key`, then by rank here.
    ///
    /// Collective: every rank calls it; a rank with the color `None` takes part and gets `None`.
    /// The new communicators are independent of this one and of each other: own streams, own order
    /// of calls.
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>> {
        self.check_open()?;
        split::split(self, color, key, None)
    }

    /// Like [`split`](Communicator::split), but another thread can cancel it: then the new
    /// communicator fails on all its ranks with `Error::Aborted`.
    pub fn split_unless(
        &self,
        color: Option<u32>,
        key: i64,
        cancel: &Cancel,
    ) -> Result<Option<Communicator>> {
        self.check_open()?;
        split::split(self, color, key, Some(cancel))
    }
}

/// Joins a job with delays in this rank's reductions: for experiments with slow ranks.
#[doc(hidden)]
pub fn connect_slowed(config: Config, injection: Option<Injection>) -> Result<Communicator> {
    join(config, None, injection)
}

/// Joins a job; rank 0 may pass listeners that are already open.
fn join(
    config: Config,
    listener: Option<RendezvousListener>,
    injection: Option<Injection>,
) -> Result<Communicator> {
    env::init_logging()?;
    let environment = Environment::read()?;
    let mut settings = Settings::new(&config, &environment)?;
    settings.injection = injection;
    let secret = config.secret.clone();
    let secret = secret.map(|secret| secret.checked("the argument `secret`"));
    let secret = secret.transpose()?.or(environment.secret);
    let mut launch = detect(&config, listener.is_some(), secret.clone())?;
    check_late_rank(&settings, launch.world_size)?;
    check_reproducible(&settings)?;
    env::note_rank(launch.rank);
    if launch.rank == 0 || launch.local_rank == Some(0) {
        env::warn_of_unknown();
    }
    if config.weights.is_none() {
        settings.ignore_misfitting_weights(launch.world_size);
    }
    let deadline = Instant::now() + settings.connect_timeout;
    launch.silence = settings.silence;
    launch.socket_ifname = settings.socket_ifname.clone();
    let rank = launch.rank;
    let given_up = || {
        let reason = config.cancel.as_ref()?.reason()?;
        Some(Error::Aborted { rank, reason })
    };
    let limit = match config.cancel {
        Some(_) => Limit::new(deadline, &given_up),
        None => deadline.into(),
    };
    let session = Session::join_at(&launch, listener, secret, limit)?;
    log::log!(
        target: "ringfold::init",
        env::level_for_all(rank),
        "rank {rank} of {} joined, with settings from {}",
        launch.world_size,
        launch.origin
    );
    let group = RankGroup {
        session,
        settings,
        id: 0,
        world_ranks: (0..launch.world_size).collect(),
        rank,
        inherited: Inherited::default(),
    };
    establish(group, config.cancel.as_ref(), &|| None)
}

/// Detects this process' place, and the addresses of rank 0.
fn detect(config: &Config, has_listener: bool, secret: Option<Secret>) -> Result<Launch> {
    let given = config.address.as_deref().map(addresses).transpose()?;
    if has_listener && given.is_some() {
        return Err(Error::InvalidArgument(
            "both a listener and an address; pass the listener on rank 0 and the address on the \
                other ranks"
                .into(),
        ));
    }
    let launch = Launch::detect(&Explicit {
        rank: config.rank,
        world_size: config.world_size,
        addresses: given.unwrap_or_default(),
        has_listener,
        secret,
    })?;
    launch.warn();
    if has_listener && launch.rank != 0 {
        return Err(Error::InvalidArgument(format!(
            "a listener on rank {}, which is not rank 0; pass the address of rank 0's listener \
                instead",
            launch.rank
        )));
    }
    Ok(launch)
}

/// Refuses reproducible results together with an order of reduction that varies.
fn check_reproducible(settings: &Settings) -> Result<()> {
    if !settings.reproducible || settings.straggler == StragglerPolicy::Off {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "reproducible results are incompatible with the straggler policy `{}`, whose order of \
         additions depends on which rank is late; disable one of them",
        settings.straggler.name()
    )))
}

/// Refuses a late rank that does not exist, and an algorithm that needs one if none is known.
fn check_late_rank(settings: &Settings, world_size: usize) -> Result<()> {
    let text = match settings.late_rank {
        Some(late) if late >= world_size => {
            format!("invalid late rank {late} of {world_size} ranks; ranks are numbered from 0")
        }
        None if settings.algorithm == Some(Method::Stragglar) => {
            "algorithm `stragglar` needs a late rank; set RINGFOLD_LATE_RANK".into()
        }
        _ => return Ok(()),
    };
    Err(Error::InvalidArgument(text))
}

#[cfg(test)]
mod tests;
