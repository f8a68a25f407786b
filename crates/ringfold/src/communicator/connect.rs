//! From a configuration to a communicator: join the job, find out who shares a host, share memory or connect.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::agree::{Ready, RulesText};
use super::choices::Choices;
use super::driver::Driver;
use super::group::{Group, Inherited};
use super::settings::Settings;
use super::watch::{SessionWatch, Watch, renumbered};
use super::weigh::Agreed;
use super::{Communicator, Place, Policy, agree, placement, probe, share};
use crate::config::{Config, Straggler, TransportChoice};
use crate::control::address::addresses;
use crate::control::limit::{Cancelled, Limit};
use crate::control::poll::remaining;
use crate::control::{Cancel, Health, Launch, RendezvousListener, Secret, Session};
use crate::engine::{Engine, late_ring};
use crate::env::{self, Environment};
use crate::error::{Error, Result};
use crate::memory::{Life, Pool};
use crate::setup::Explicit;
use crate::testing::delay_injector::DelayInjector;
use crate::topology::neighbours::{self, Mark};
use crate::transport::Waker;
use crate::tune::plugin::{self, Members};
use crate::tune::{Rules, Tuning};
use crate::types::{Algorithm, Op};
use crate::wait::Patience;

/// Scratch that is ready before the first call: the slices in flight of a pipelined schedule.
const PREPARED_SCRATCH_BYTES: usize = 1 << 20;

/// What warms up: over messages enough for the way that large calls take, little enough for a slow network; through shared
/// memory every slot of a window.
const WARM_UP_BYTES: [usize; 2] = [64 << 10, 2 << 20];

/// What a communicator keeps of the bringing together, for its parts and its end.
pub(crate) struct Joint {
    group: Option<Group>,
    /// Says in shared memory that this rank leaves in good order.
    depart: Option<Box<dyn Fn() + Send + Sync>>,
    splits: AtomicU64,
    /// Tells other jobs of this host that this process is in one.
    _mark: Option<Arc<Mark>>,
}

impl Joint {
    /// Nothing stays: ranks that are threads.
    pub fn none() -> Joint {
        Joint {
            group: None,
            depart: None,
            splits: AtomicU64::new(0),
            _mark: None,
        }
    }

    /// The ranks within their job; none for ranks that are threads.
    pub fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }

    /// Says in shared memory that this rank leaves in good order.
    pub fn depart(&self) {
        if let Some(depart) = &self.depart {
            depart();
        }
    }
}

impl RendezvousListener {
    /// Opens listeners on free ports of this host's addresses: those that `RINGFOLD_SOCKET_IFNAME`
    /// chooses, or all but loopback, which is taken only where there is nothing else. `toward` is a
    /// host name or an address: the address by which that is reached from here comes first, which is
    /// its own if it is this host's.
    ///
    /// # Errors
    /// `Bootstrap` if no address can be listened on, or the variable leaves none. A `toward` that is
    /// not known here is ignored. Blocks as long as looking up its name takes, 10 s at most.
    pub fn open(toward: Option<&str>) -> Result<RendezvousListener> {
        let choice = env::process("RINGFOLD_SOCKET_IFNAME");
        RendezvousListener::on(choice.as_deref(), toward)
    }
}

/// Joins a job; rank 0 may bring listeners that are open already.
pub fn connect(config: Config, listener: Option<RendezvousListener>) -> Result<Communicator> {
    env::init_logging()?;
    let environment = Environment::read()?;
    let mut settings = Settings::new(&config, &environment)?;
    let addresses = config.address.as_deref().map(addresses).transpose()?;
    if listener.is_some() && addresses.is_some() {
        return Err(Error::InvalidArgument(
            "a meeting and an address; rank 0 gives one, the others the address".into(),
        ));
    }
    let secret = config
        .secret
        .as_ref()
        .map(|text| Secret::new(text.as_bytes()))
        .or(environment.secret);
    let mut launch = Launch::detect(&Explicit {
        rank: config.rank,
        world_size: config.world_size,
        addresses: addresses.unwrap_or_default(),
        has_listener: listener.is_some(),
        secret: secret.clone(),
    })?;
    if listener.is_some() && launch.rank != 0 {
        return Err(Error::InvalidArgument(format!(
            "rank {} is not met by anybody; give it the address of rank 0's meeting",
            launch.rank
        )));
    }
    check_late_rank(&settings, launch.world_size)?;
    check_deterministic(&config, &settings)?;
    env::note_rank(launch.rank);
    if launch.rank == 0 || launch.local_rank == Some(0) {
        env::warn_of_unknown();
    }
    if config.weights.is_none() {
        settings.ignore_misfitting_weights(launch.world_size);
    }
    let deadline = Instant::now() + settings.connect_timeout;
    launch.silence = settings.silence;
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
    log::info!(
        target: "ringfold::init",
        "rank {} of {}, as {} says",
        launch.rank,
        launch.world_size,
        launch.origin
    );
    let world_ranks = (0..launch.world_size).collect();
    let group = Group {
        session,
        settings,
        id: 0,
        world_ranks,
        rank,
        inherited: None,
    };
    establish(group, config.cancel.as_ref(), &|| None)
}

/// Parts of a communicator; `cancel` ends the making of them.
pub fn split(
    parent: &Communicator,
    color: Option<u32>,
    key: i64,
    cancel: Option<&Cancel>,
) -> Result<Option<Communicator>> {
    let Some(group) = &parent.joint.group else {
        return Err(Error::Unsupported("split of ranks that are threads".into()));
    };
    // A counter by itself; every rank makes the same splits in the same order.
    let number = parent.joint.splits.fetch_add(1, Ordering::Relaxed);
    let deadline = Instant::now() + group.settings.connect_timeout;
    let wish = Wish { color, key }.encode();
    let watch = parent.driver.watch();
    let wishes = group.exchange(&format!("split {number}"), &wish, deadline, &|| {
        watch.fault()
    });
    let wishes = wishes.map_err(|error| match error {
        // It is a member of the parent, which ends with it: by one error on all ranks.
        Error::PeerFailed { .. } => watch.settle(error, watch.crash_grace()),
        other => other,
    })?;
    let wishes: Vec<Wish> = wishes
        .iter()
        .enumerate()
        .map(|(peer, blob)| {
            Wish::decode(blob).ok_or_else(|| {
                let what = "a wish for a split that means nothing".into();
                Error::Corrupt {
                    peer,
                    what,
                    site: None,
                }
            })
        })
        .collect::<Result<_>>()?;
    let Some(color) = color else { return Ok(None) };
    let mut ranks: Vec<usize> = (0..wishes.len())
        .filter(|rank| wishes[*rank].color == Some(color))
        .collect();
    ranks.sort_by_key(|rank| (wishes[*rank].key, *rank));
    let place = ranks.iter().position(|rank| *rank == group.rank);
    let rank = place.unwrap_or_else(|| unreachable!("this rank's own wish has its color"));
    let world_ranks = ranks.iter().map(|rank| group.world_ranks[*rank]).collect();
    // A probe was made with as many ranks; with others its answers mean little.
    let is_as_large = ranks.len() == wishes.len();
    let id = part_id(group.id, number, color);
    let tuning = &parent.policy.tuning;
    let part = Group {
        id,
        world_ranks,
        rank,
        inherited: Some(Inherited {
            rules: tuning.rules.clone(),
            measured: is_as_large.then(|| (tuning.constants.clone(), tuning.limits)),
        }),
        ..group.clone()
    };
    let server = group.world_ranks.iter().position(|rank| *rank == 0);
    // A rank that fails in the parent does not come, and ranks that split meanwhile must not wait
    // for it.
    let parents_end = || {
        let fault = watch.fault()?;
        let reason = format!("the communicator that it was split from has ended: {fault}");
        Some(Error::Aborted { rank, reason })
    };
    let made = establish(part, cancel, &parents_end).map(Some);
    made.map_err(|error| match (watch.fault(), error, server) {
        (Some(fault), ..) => fault,
        // The rank that had the server is missing in this communicator, too, which ends with it.
        (_, Error::Bootstrap(_), Some(rank)) if group.session.has_lost_server() => {
            let reason = "its control connection was closed".into();
            let site = None;
            watch.settle(
                Error::PeerFailed { rank, reason, site },
                watch.crash_grace(),
            )
        }
        // The part does not exist: its ranks are known by their numbers here.
        (_, error, _) => renumbered(error, &ranks),
    })
}

/// A number for part `color` of split `number` of communicator `parent`: the same on all its ranks, another for every
/// part.
fn part_id(parent: u64, number: u64, color: u32) -> u64 {
    let mut mixed = parent;
    for word in [number + 1, color as u64] {
        mixed = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^= mixed >> 29;
    }
    // 0 is the job's own communicator.
    mixed | 1
}

/// What a rank wants of a split. 16 bytes: whether there is a color, the color, the key.
struct Wish {
    color: Option<u32>,
    key: i64,
}

impl Wish {
    fn encode(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0] = self.color.is_some() as u8;
        bytes[4..8].copy_from_slice(&self.color.unwrap_or(0).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Wish> {
        let bytes: &[u8; 16] = bytes.try_into().ok()?;
        let color = u32::from_le_bytes(bytes[4..8].try_into().ok()?);
        let key = i64::from_le_bytes(bytes[8..16].try_into().ok()?);
        Some(Wish {
            color: (bytes[0] == 1).then_some(color),
            key,
        })
    }
}

/// Makes the communicator of a group whose ranks all do the same now; `cancel` ends that on all of
/// them, and so does an error from `is_pointless`.
fn establish(
    group: Group,
    cancel: Option<&Cancel>,
    is_pointless: Cancelled<'_>,
) -> Result<Communicator> {
    let deadline = Instant::now() + group.settings.connect_timeout;
    let world_size = group.world_ranks.len();
    let hosts = group.hosts();
    if group.settings.transport == TransportChoice::Shm && hosts > 1 {
        return Err(Error::Bootstrap(format!(
            "transport shm, but the {world_size} ranks are on {hosts} hosts (or in different network or process \
             namespaces); use transport auto"
        )));
    }
    // Opened before there is a transport to wake, so that the set-up ends when a rank fails in it.
    let bell: Arc<OnceLock<Waker>> = Arc::default();
    let ring = bell.clone();
    let waker = Arc::new(move || ring.get().map_or((), |wake| wake()));
    let health = group.session.open(group.id, &group.members(), waker)?;
    let session = group.session.clone();
    let id = group.id;
    let has_rank_0 = group.world_ranks.contains(&0);
    let watch = SessionWatch::new(health.clone(), &group);
    let giving_up = health.clone();
    let _telling = cancel.map(|cancel| cancel.on_cancel(move |reason| giving_up.give_up(reason)));
    let assembled = assemble(group, health, &bell, deadline, is_pointless);
    assembled.map_err(|error| {
        // All ranks get one error, and the others need not wait for their deadlines.
        let grace = match has_rank_0 || !session.has_lost_server() {
            true => watch.crash_grace().min(remaining(deadline)),
            // There is none to give it.
            false => Duration::ZERO,
        };
        let error = watch.settle_making(error, grace);
        // What is open would outlive the session.
        session.close(id);
        error
    })
}

/// Links the ranks, and makes the communicator when all are linked.
fn assemble(
    group: Group,
    health: Arc<Health>,
    bell: &OnceLock<Waker>,
    deadline: Instant,
    is_pointless: Cancelled<'_>,
) -> Result<Communicator> {
    let world_size = group.world_ranks.len();
    let local_ranks = group.local_ranks();
    let hosts = group.hosts();
    let mark = neighbours::mark();
    let watch = SessionWatch::new(health, &group);
    let verdict = || watch.fault().or_else(is_pointless);
    let placement = placement::settle(&group, &local_ranks, deadline, &verdict)?;
    let cores = placement.cores;
    let domains = placement.domains(&group, deadline, &verdict)?;
    let links = share::link(&group, cores, domains, &verdict, deadline)?;
    let local_rank = local_ranks
        .iter()
        .position(|rank| *rank == group.rank)
        .unwrap_or(0);
    let place = Place {
        rank: group.rank,
        world_size,
        local_rank,
        local_size: local_ranks.len(),
        hosts,
        transport: links.name,
    };
    let mut transport = links.transport;
    // Set once, here.
    let _ = bell.set(transport.waker());
    let slot_bytes = transport.windows().map(|windows| windows.slot_bytes());
    let settings = group.settings.clone();
    let is_job = group.id == 0;
    let pool = Pool::default();
    pool.prepare(PREPARED_SCRATCH_BYTES);
    if let Some(injection) = settings.injection.clone() {
        transport = Box::new(DelayInjector::new(transport, group.rank, injection));
    }
    let mut engine = Engine::new(transport, group.rank, world_size, pool);
    if let Some(target) = settings.straggler.target() {
        let is_crowded = local_ranks.len() > cores;
        let policy = late_ring::Policy::new(target, is_crowded);
        engine.set_late_merge(policy, settings.signal_channel());
    }
    let patience = match links.name {
        "shm" | "self" => Patience::new(local_ranks.len(), cores),
        _ => {
            let sharing = placement.sharing;
            Patience::on_sockets(sharing.ranks, sharing.cores)
        }
    };
    log_choice(&place, cores, settings.transport);
    // Nobody goes on before everybody can.
    let can_probe = slot_bytes.is_some() && local_ranks.len() <= cores;
    let rules = match (&group.inherited, &settings.rules) {
        (Some(inherited), _) => inherited.rules.clone(),
        (None, Some(source)) if group.rank == 0 => source.read()?,
        (None, _) => Rules::default(),
    };
    let plugin = settings.tuner_plugin.as_deref();
    let plugin = plugin.and_then(|name| plugin::open(name, &members(&group)));
    let ready = Ready {
        cores,
        sharing: placement.sharing,
        is_shared: slot_bytes.is_some(),
        can_probe,
        rules: &rules,
        plugin: plugin.as_ref().map(|plugin| plugin.name()),
    };
    let terms = agree::agree(&group, &ready, &verdict, deadline)?;
    engine.set_domains(domains as u32);
    *engine.parallel() = placement.parallel(&settings, local_ranks.len(), &terms.limits);
    let late = settings.late_rank;
    let late_rank = late.and_then(|late| group.world_ranks.iter().position(|rank| *rank == late));
    // Parts to which the late rank does not belong do what they find best.
    let knows_late =
        |algorithm: &Algorithm| *algorithm != Algorithm::Stragglar || late_rank.is_some();
    let algorithm = settings.algorithm.filter(knows_late);
    let mut communicator = Communicator {
        driver: Arc::new(Driver::new(engine, group.rank, Box::new(watch), patience)),
        policy: Policy {
            is_silent: false,
            algorithm,
            late_rank,
            goes_around: settings.straggler != Straggler::Off,
            tuning: Tuning {
                protocol: settings.protocol,
                allowed: settings.allowed.clone(),
                channels: settings.channels,
                chunk_bytes: settings.chunk_bytes,
                slice_bytes: settings.slice_bytes,
                plugin: plugin.filter(|_| terms.plugin.is_some()),
                ..Tuning::new(terms.constants, terms.limits)
            },
            // Until the ranks are together.
            timeout: deadline.saturating_duration_since(Instant::now()),
            domains,
            slot_bytes,
        },
        place,
        weights: Agreed::default(),
        choices: Choices::default(),
        joint: Joint {
            group: Some(group),
            depart: links.depart,
            splits: AtomicU64::new(0),
            _mark: mark,
        },
        life: Arc::new(Life::new()),
    };
    communicator.driver.set_preparing(true);
    warm_up(&communicator)?;
    let rules = match terms.rules {
        RulesText::Told(rules) => *rules,
        RulesText::Later(bytes) => agree::send_rules(&communicator, &rules, bytes)?,
    };
    // What was calibrated knows more.
    let is_calibrated = {
        let corrections = &communicator.policy.tuning.constants.corrections;
        !corrections.is_empty()
    };
    if terms.is_probed && !is_calibrated {
        probe::probe(&mut communicator)?;
    }
    communicator.set_rules(rules);
    communicator.tell_model();
    // Those of the job: its parts have other ranks.
    if let (Some(weighting), true) = (&settings.weights, is_job) {
        communicator.weigh(weighting)?;
    }
    communicator.driver.set_preparing(false);
    communicator.policy.timeout = settings.timeout;
    Ok(communicator)
}

/// A late rank that exists, and one where it must be known.
/// Refuses results that are to be the same in every run, made in an order that is not.
fn check_deterministic(config: &Config, settings: &Settings) -> Result<()> {
    if config.deterministic != Some(true) || settings.straggler == Straggler::Off {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "deterministic results and the straggler policy `{}`, which adds in an order that depends on who is late; leave one of \
         them out",
        settings.straggler.name()
    )))
}

fn check_late_rank(settings: &Settings, world_size: usize) -> Result<()> {
    let text = match settings.late_rank {
        Some(late) if late >= world_size => {
            format!("late rank {late} of {world_size} ranks; they count from 0")
        }
        None if settings.algorithm == Some(Algorithm::Stragglar) => {
            "`stragglar` for every call does not know which rank is late; set RINGFOLD_LATE_RANK"
                .into()
        }
        _ => return Ok(()),
    };
    Err(Error::InvalidArgument(text))
}

/// What a plugin is told of the ranks.
fn members(group: &Group) -> Members {
    let ranks_per_host = group.ranks_per_host();
    Members {
        communicator: group.id,
        ranks: group.world_ranks.len(),
        hosts: ranks_per_host.len(),
        ranks_per_host_min: ranks_per_host.iter().min().copied().unwrap_or(1),
        ranks_per_host_max: ranks_per_host.iter().max().copied().unwrap_or(1),
    }
}

/// Makes the calls that training makes most, once, on memory that nobody looks at: the first real call then finds plans
/// made, code and windows present, and is as fast as the tenth.
fn warm_up(communicator: &Communicator) -> Result<()> {
    let bytes = WARM_UP_BYTES[communicator.policy.slot_bytes.is_some() as usize];
    let input = vec![0f32; bytes / size_of::<f32>()];
    let mut output = input.clone();
    communicator.all_reduce_into(&input, &mut output, Op::Sum)?;
    communicator.all_reduce(&mut output, Op::Sum)?;
    communicator.all_reduce(&mut output[..1], Op::Sum)
}

fn log_choice(place: &Place, cores: usize, asked: TransportChoice) {
    let Place {
        rank,
        world_size,
        local_size,
        hosts,
        transport,
        ..
    } = place;
    log::info!(
        target: "ringfold::init",
        "rank {rank} of {world_size}: {local_size} ranks share this host and {cores} cores, {hosts} hosts, transport \
         {transport} ({} was asked for)",
        asked.name()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deterministic_results_and_a_straggler_policy_are_refused_together() {
        let config = |straggler, deterministic| Config {
            straggler: Some(straggler),
            deterministic: Some(deterministic),
            ..Config::default()
        };
        let check = |config: Config| {
            let settings = Settings::new(&config, &Environment::default()).unwrap();
            check_deterministic(&config, &settings)
        };
        let error = check(config(Straggler::Tail, true)).unwrap_err();
        assert!(error.to_string().contains("`tail`"), "{error}");
        check(config(Straggler::Tail, false)).expect("as it was asked for");
        check(config(Straggler::Off, true)).expect("as it is anyway");
    }
}
