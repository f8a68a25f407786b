//! The third stage of set-up: the linked ranks agree on the same terms.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::link::{Linked, RankLinks};
use super::placement::{Placement, ROOT, Sharing};
use super::terms::{AgreedTerms, Leading, Proposal};
use crate::communicator::group::RankGroup;
use crate::communicator::membership::Membership;
use crate::communicator::settings::Settings;
use crate::communicator::{ChoicePolicy, Communicator, EngineDriver, RankPosition};
use crate::config::{StragglerPolicy, TransportChoice};
use crate::engine::{Engine, late_ring};
use crate::error::Result;
use crate::memory::Pool;
use crate::testing::delay_injector::DelayInjector;
use crate::topology::Machine;
use crate::transport::Transport;
use crate::tune::calibration::CalibrationContext;
use crate::tune::plugin::{self, CommunicatorInfo, Plugin};
use crate::tune::{Constants, Limits, Rules, Tuning};
use crate::types::Method;
use crate::wait::Patience;

/// Bytes of scratch allocated before the first call, for a pipelined schedule's slices in flight.
const PREPARED_SCRATCH_BYTES: usize = 1 << 20;

/// A communicator, and what its ranks need for the last stage of its set-up.
pub(super) struct Agreed {
    pub communicator: Communicator,
    pub terms: AgreedTerms,
    /// The tuning rules of this rank, of which only rank 0's count.
    pub own_rules: Rules,
}

impl<'a> Linked<'a> {
    /// Exchanges the ranks' proposals, in the second of two exchanges. No rank continues before all
    /// are linked.
    pub fn agree(self) -> Result<Agreed> {
        let Linked {
            attempt,
            placement,
            links,
        } = self;
        let group = &attempt.group;
        let settings = &group.settings;
        let own_rules = match (&group.inherited.rules, &settings.rules) {
            (Some(inherited), _) => inherited.clone(),
            (None, Some(source)) if group.rank == 0 => source.read()?,
            (None, _) => Rules::default(),
        };
        let plugin = settings.tuner_plugin.as_deref();
        let plugin = plugin.and_then(|name| plugin::open(name, &members(group)));
        let name = plugin.as_ref().map(|plugin| plugin.name());
        let proposal = propose(group, &placement, &links, &own_rules, name);
        let terms = AgreedTerms::decide(attempt.agree("terms", &proposal)?)?;
        log_terms(&terms, name);
        let channels_max = links.channels_max();
        let hosts = group.hosts();
        let domains = terms.domain_count(hosts.count() as usize);
        let is_oversubscribed = placement.sharing.is_oversubscribed();
        let (transport, name, depart) = links.into_transport(is_oversubscribed, domains)?;
        attempt.set_waker(transport.waker());
        let place = RankPosition {
            rank: group.rank,
            world_size: group.world_ranks.len(),
            local_rank: group.local_rank(),
            local_size: group.local_ranks().len(),
            hosts: hosts.count() as usize,
            runs: hosts.runs() as usize,
            are_blocks: hosts.are_blocks(group.world_ranks.len() as u32),
            transport: name,
        };
        log_place(&place, placement.cores, settings);
        let plugin = plugin.filter(|_| terms.plugin.is_some());
        let slot_bytes = transport.windows().map(|windows| windows.slot_bytes());
        let policy = ChoicePolicy {
            // Applies until the set-up is complete.
            timeout: attempt.deadline.saturating_duration_since(Instant::now()),
            domains,
            slot_bytes,
            ..policy(group, channels_max, &terms, plugin)
        };
        let mut engine = engine(
            transport,
            channels_max,
            &place,
            &placement,
            (settings, &terms),
        );
        engine.set_hosts(hosts);
        let patience = patience(&place, &placement);
        let driver = EngineDriver::new(engine, place.rank, Box::new(attempt.watch()), patience);
        let membership = Membership::new(group.clone(), depart, attempt.mark.clone());
        Ok(Agreed {
            communicator: Communicator::new(driver, place, policy, membership),
            terms,
            own_rules,
        })
    }
}

/// Returns the proposal of this rank.
fn propose(
    group: &RankGroup,
    placement: &Placement,
    links: &RankLinks,
    rules: &Rules,
    plugin: Option<&str>,
) -> Proposal {
    let is_shared = links.is_shared();
    let settings = &group.settings;
    let local_ranks = group.local_ranks().len();
    let is_part = group.inherited.rules.is_some();
    let measured = group.inherited.measured.clone();
    let is_measured = measured.is_some();
    let Sharing { ranks, cores } = placement.sharing;
    let machine = Machine::read(Path::new(ROOT), cores);
    let (constants, limits) = match measured {
        Some((constants, limits)) => (Some(constants), limits),
        None => (None, Limits::derive(&machine, ranks)),
    };
    let is_forced = settings.algorithm.is_some() || settings.slice_bytes.is_some();
    let can_probe = is_shared && local_ranks <= placement.cores;
    let leading = || Leading {
        constants: constants.unwrap_or_else(|| derive(group, placement.sharing, links)),
        // No probe in parts, which are made often and side by side.
        is_probed: can_probe && settings.is_probing && !is_part && !is_measured && !is_forced,
        rules_bytes: rules.to_string().len(),
    };
    Proposal {
        limits: settings.limits.over(limits),
        domain: placement.domain,
        plugin: plugin.map(str::to_owned),
        is_reproducible: settings.reproducible,
        leading: (group.rank == 0).then(leading),
    }
}

/// Returns the constants of rank 0: measured on this machine, or the defaults. Links have the rate
/// that the system reports, unless messages over them were measured.
fn derive(group: &RankGroup, sharing: Sharing, links: &RankLinks) -> Constants {
    let Sharing { ranks, cores } = sharing;
    let machine = Machine::read(Path::new(ROOT), cores);
    let context = CalibrationContext {
        is_shared: links.is_shared(),
        ranks: group.world_ranks.len(),
    };
    let calibration = group.calibration().unwrap_or_default();
    let knows_rate = calibration.knows_rate(links.is_rdma());
    let calibration = match group.hosts().count() {
        1 => calibration,
        _ => calibration.of_several_hosts(),
    };
    let calibration = match links.is_rdma() {
        true => calibration.over_rdma(),
        false => calibration,
    };
    let constants = calibration.constants(context, &machine, ranks);
    match links.rate_mbps() {
        // Sockets within one host have no link, and so no rate.
        Some(rate_mbps) if !knows_rate => constants.over_links(rate_mbps),
        _ => constants,
    }
}

fn engine(
    transport: Box<dyn Transport>,
    channels_max: usize,
    place: &RankPosition,
    placement: &Placement,
    (settings, terms): (&Settings, &AgreedTerms),
) -> Engine {
    let transport = match settings.injection.clone() {
        Some(injection) => Box::new(DelayInjector::new(transport, place.rank, injection)),
        None => transport,
    };
    let pool = Pool::default();
    pool.prepare(PREPARED_SCRATCH_BYTES);
    let mut engine = Engine::new(transport, place.rank, place.world_size, pool);
    if let Some(target) = settings.late_target() {
        let is_oversubscribed = placement.sharing.is_oversubscribed();
        let policy = late_ring::LateMergePolicy::new(target, is_oversubscribed);
        engine.set_late_merge(policy, Settings::signal_channel(channels_max));
    }
    *engine.parallel() = placement.parallel(settings, &terms.limits);
    engine
}

/// Returns the policy for the choice of each call's way.
fn policy(
    group: &RankGroup,
    channels_max: usize,
    terms: &AgreedTerms,
    plugin: Option<Arc<dyn Plugin>>,
) -> ChoicePolicy {
    let settings = &group.settings;
    let late = settings.late_rank;
    let late_rank = late.and_then(|late| group.world_ranks.iter().position(|rank| *rank == late));
    // Parts without the late rank choose freely.
    let knows_late = |algorithm: &Method| *algorithm != Method::Stragglar || late_rank.is_some();
    ChoicePolicy {
        algorithm: settings.algorithm.filter(knows_late),
        late_rank,
        bypasses_stragglers: settings.straggler != StragglerPolicy::Off && !terms.is_reproducible,
        is_reproducible: terms.is_reproducible,
        ..ChoicePolicy::new(Tuning {
            protocol: settings.protocol,
            allowed: settings.allowed.clone(),
            channels_max,
            slice_bytes: settings.slice_bytes,
            plugin,
            ..Tuning::new(terms.constants.clone(), terms.limits)
        })
    }
}

fn patience(place: &RankPosition, placement: &Placement) -> Patience {
    match place.transport {
        "shm" | "self" => Patience::new(place.local_size, placement.cores),
        // A poll only reads a queue in memory.
        "rdma" | "shm+rdma" => {
            let Sharing { ranks, cores } = placement.sharing;
            Patience::new(ranks, cores)
        }
        _ => {
            let Sharing { ranks, cores } = placement.sharing;
            Patience::on_sockets(ranks, cores)
        }
    }
}

/// Returns the description of the ranks for a plugin.
fn members(group: &RankGroup) -> CommunicatorInfo {
    let ranks = group.world_ranks.len();
    let members = group.hosts().members(ranks as u32);
    let ranks_per_host: Vec<usize> = members.iter().map(Vec::len).collect();
    CommunicatorInfo {
        communicator: group.id,
        ranks,
        hosts: ranks_per_host.len(),
        ranks_per_host_min: ranks_per_host.iter().min().copied().unwrap_or(1),
        ranks_per_host_max: ranks_per_host.iter().max().copied().unwrap_or(1),
    }
}

fn log_terms(terms: &AgreedTerms, plugin: Option<&str>) {
    if let (Some(name), None) = (plugin, &terms.plugin) {
        log::warn!(
            target: "ringfold::tuning",
            "plugin `{name}` is not on all ranks, so the model decides; set RINGFOLD_TUNER_PLUGIN \
             to the same value and install the library on all hosts"
        );
    }
    log::debug!(
        target: "ringfold::tuning",
        "rank 0's limits, from its caches, its cores and RINGFOLD_LIMITS: {}{}",
        terms.limits,
        if terms.is_probed { "; a probe follows" } else { "" }
    );
    log::debug!(
        target: "ringfold::tuning",
        "rank 0's constants of the cost model: {}", terms.constants
    );
}

fn log_place(place: &RankPosition, cores: usize, settings: &Settings) {
    let requested = match settings.transport {
        TransportChoice::Auto => String::new(),
        choice => format!(" ({choice} requested)"),
    };
    log::info!(
        target: "ringfold::init",
        "rank {} of {}: transport {}{requested}, {}; {} and {} on this host",
        place.rank,
        place.world_size,
        place.transport,
        counted(place.hosts, "host"),
        counted(place.local_size, "rank"),
        counted(cores, "core")
    );
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
