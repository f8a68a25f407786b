//! A communicator's settings: the caller's configuration first, then the environment, then the
//! defaults.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{Bind, Config, StragglerPolicy, TransportChoice};
use crate::congestion::Congestion;
use crate::engine::late_ring::MergeTarget;
use crate::env::{self, Environment};
use crate::error::{Error, Result};
use crate::schedule::Weighting;
use crate::silence::Silence;
use crate::testing::delay_injector::Injection;
use crate::topology::interface_choice::InterfaceChoice;
use crate::transport::P2P_CHANNEL;
use crate::transport::rdma::RegisterBytes;
use crate::transport::tcp::SOCKETS_MAX;
use crate::tune::calibration::CalibrationSource;
use crate::tune::channels::CHANNELS_MAX;
use crate::tune::limits::LimitOverrides;
use crate::tune::{AlgoFilter, Rules};
use crate::types::{Method, Protocol};
use crate::verbs::{DeviceChoice, LinkOptions};
use crate::wait::SPAN_MAX;

/// Default bytes of a rank's shared memory.
const SHM_BYTES: usize = 8 << 20;

/// Default number of recorded calls of each communicator: 6 MiB.
const TRACE_CALLS: usize = 100_000;

/// The settings of a communicator and its parts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The deadline of an operation.
    pub timeout: Duration,
    /// The deadline for all ranks to join.
    pub connect_timeout: Duration,
    /// The longest silence of another host, if this rank's setting is the one that applies.
    pub silence: Silence,
    /// The transports that may be used.
    pub transport: TransportChoice,
    /// The method of every collective that has it.
    pub algorithm: Option<Method>,
    /// The protocol of every call that can use it.
    pub protocol: Option<Protocol>,
    /// The methods and protocols that may be chosen.
    pub allowed: AlgoFilter,
    /// The rules that decide calls, if this rank's rules are the ones that apply.
    pub rules: Option<RuleSource>,
    /// The tuner plugin: a shared library that recalculates the costs of ways.
    pub tuner_plugin: Option<String>,
    /// The world rank known to be late.
    pub late_rank: Option<usize>,
    /// Maximum number of independent pipelines of calls over messages, if set.
    pub channels_max: Option<usize>,
    /// Bytes of a slice, the pipeline's unit.
    pub slice_bytes: Option<usize>,
    /// Bytes of a rank's shared memory.
    pub shm_bytes: usize,
    /// The interfaces that may be used.
    pub socket_ifname: Option<InterfaceChoice>,
    /// Number of sockets of each channel of a pair, instead of the number that the links need.
    pub sockets: Option<usize>,
    /// The congestion control of data connections.
    pub tcp_congestion: Congestion,
    /// Settings of RDMA between hosts.
    pub rdma: RdmaSettings,
    /// Limits instead of the derived ones, if this rank's table is the one that applies.
    pub limits: LimitOverrides,
    /// The weights by which ranks own parts of large all-reduces.
    pub weights: Option<Weighting>,
    /// Number of helper threads, instead of the number that the cores leave room for.
    pub helpers: Option<usize>,
    /// Whether rings bypass slow ranks.
    pub straggler: StragglerPolicy,
    /// Whether all reductions are in the order of the canonical tree, if this rank decides it.
    pub reproducible: bool,
    /// Delays of this rank's reductions, for experiments.
    pub injection: Option<Injection>,
    /// Whether the ranks are bound to cores.
    pub bind: Bind,
    /// A variable, if set, by which another program places the ranks.
    pub foreign_binding: Option<&'static str>,
    /// Whether doubtful limits may be probed.
    pub is_probing: bool,
    /// The source of the cost model's constants, if this rank's are the ones that apply.
    pub calibration: CalibrationSource,
    /// Settings of the board.
    pub showing: Showing,
}

/// Settings of RDMA.
#[derive(Clone, Debug, Default)]
pub struct RdmaSettings {
    /// A library to use instead of the installed libibverbs.
    pub library: Option<String>,
    /// Whether RDMA is used by name only.
    pub is_disabled: bool,
    /// The devices that may be used.
    pub devices: DeviceChoice,
    /// The index of the ports' addresses (GIDs), instead of the one that is found.
    pub gid_index: Option<u8>,
    /// Options of connections.
    pub link: LinkOptions,
    /// The length from which the memory of calls is registered with the devices.
    pub register_bytes: RegisterBytes,
}

impl RdmaSettings {
    fn new(environment: &Environment) -> RdmaSettings {
        let link = LinkOptions::default();
        RdmaSettings {
            library: environment.verbs_library.clone(),
            is_disabled: environment.ib_disable.unwrap_or(false),
            devices: environment.ib_hca.clone().unwrap_or_default(),
            gid_index: environment.ib_gid_index,
            link: LinkOptions {
                timeout: environment.ib_timeout.unwrap_or(link.timeout),
                retries: environment.ib_retries.unwrap_or(link.retries),
                service_level: environment.ib_service_level.unwrap_or(link.service_level),
                traffic_class: environment.ib_traffic_class.unwrap_or(link.traffic_class),
                pkey_index: environment.ib_pkey.map_or(link.pkey_index, u16::from),
            },
            register_bytes: environment.ib_register_bytes.unwrap_or_default(),
        }
    }
}

/// Settings of the board, which shows other processes a communicator's calls.
#[derive(Clone, Debug)]
pub struct Showing {
    /// Whether the communicator has a board.
    pub is_on: bool,
    /// The folder in which each call is recorded.
    pub records_in: Option<PathBuf>,
    /// Maximum number of recorded calls.
    pub records: usize,
}

/// The source of a rank's rules.
#[derive(Clone, Debug)]
pub enum RuleSource {
    /// Rules from the caller.
    Given(Box<Rules>),
    /// A file, which is read when the rules are needed.
    File(String),
}

impl RuleSource {
    /// Returns the rules; logs their warnings.
    pub fn read(&self) -> Result<Rules> {
        let rules = match self {
            RuleSource::Given(rules) => Rules::clone(rules),
            RuleSource::File(path) => Rules::read(path)?,
        };
        for warning in rules.warnings() {
            log::warn!(target: "ringfold::tuning", "{warning}");
        }
        Ok(rules)
    }
}

impl Showing {
    fn new(environment: &Environment) -> Showing {
        Showing {
            is_on: environment.board.unwrap_or(true),
            records_in: environment.trace.clone().map(PathBuf::from),
            records: environment.trace_calls.unwrap_or(TRACE_CALLS),
        }
    }
}

impl Settings {
    /// Returns the number of streams between two ranks: messages, `channels` pipelines of
    /// collectives, and the signals of rings that bypass slow ranks.
    pub fn streams(&self, channels: usize) -> usize {
        Settings::signal_channel(channels) + usize::from(self.straggler != StragglerPolicy::Off)
    }

    /// Returns the channel of the signals of rings, if rings bypass slow ranks.
    pub fn signal_channel(channels: usize) -> usize {
        P2P_CHANNEL + 1 + channels
    }

    /// Returns the target of a late rank's sum, if rings bypass slow ranks.
    pub fn late_target(&self) -> Option<MergeTarget> {
        match self.straggler {
            StragglerPolicy::Off => None,
            StragglerPolicy::Next2 => Some(MergeTarget::Next2),
            StragglerPolicy::Tail => Some(MergeTarget::Tail),
        }
    }

    /// Describes the policy for slow ranks.
    pub fn straggler_policy(&self) -> String {
        match self.late_rank {
            Some(rank) => format!("{}, late rank {rank}", self.straggler.name()),
            None => self.straggler.name().to_owned(),
        }
    }

    /// Combines the configuration, the environment and the defaults.
    pub fn new(config: &Config, environment: &Environment) -> Result<Settings> {
        let silence = config.peer_timeout.or(environment.peer_timeout);
        let file = || environment.tuner_config.clone().map(RuleSource::File);
        Ok(Settings {
            timeout: config
                .timeout
                .or(environment.timeout)
                .unwrap_or(env::TIMEOUT)
                .min(SPAN_MAX),
            connect_timeout: config
                .connect_timeout
                .or(environment.connect_timeout)
                .unwrap_or(env::CONNECT_TIMEOUT)
                .min(SPAN_MAX),
            silence: silence.map(Silence::new).transpose()?.unwrap_or_default(),
            transport: config
                .transport
                .or(environment.transport)
                .unwrap_or_default(),
            algorithm: config.algorithm.or(environment.allowed.sole()),
            protocol: config.protocol,
            allowed: environment.allowed.clone(),
            rules: config
                .tuner_rules
                .clone()
                .map(|rules| RuleSource::Given(rules.into()))
                .or_else(file),
            tuner_plugin: config
                .tuner_plugin
                .clone()
                .or_else(|| environment.tuner_plugin.clone()),
            late_rank: config.late_rank.or(environment.late_rank),
            channels_max: up_to("maximum of channels", CHANNELS_MAX, config.max_channels)?
                .or(environment.max_channels),
            slice_bytes: config.slice_bytes.or(environment.slice_bytes),
            shm_bytes: environment.shm_bytes.unwrap_or(SHM_BYTES),
            socket_ifname: config
                .socket_ifname
                .clone()
                .map(InterfaceChoice::own)
                .or_else(|| environment.socket_ifname.clone()),
            sockets: up_to("number of sockets", SOCKETS_MAX, config.sockets)?
                .or(environment.sockets.flatten()),
            tcp_congestion: environment.tcp_congestion.clone().unwrap_or_default(),
            rdma: RdmaSettings::new(environment),
            limits: environment.limits.clone().unwrap_or_default(),
            weights: config
                .weights
                .clone()
                .or_else(|| environment.weights.clone()),
            helpers: config.helpers.or(environment.helpers),
            straggler: config
                .straggler
                .or(environment.straggler)
                .unwrap_or_default(),
            reproducible: config
                .reproducible
                .or(environment.reproducible)
                .unwrap_or(false),
            injection: None,
            bind: config.bind.or(environment.bind).unwrap_or_default(),
            foreign_binding: environment.foreign_binding,
            is_probing: environment.probe.unwrap_or(true),
            calibration: environment.calibration.clone().unwrap_or_default(),
            showing: Showing::new(environment),
        })
    }

    /// Drops the environment's weights if they are a list for another number of ranks: a program
    /// may make several communicators.
    pub fn ignore_misfitting_weights(&mut self, world_size: usize) {
        if let Some(Weighting::Each(each)) = &self.weights
            && each.len() != world_size
        {
            log::warn!(
                target: "ringfold::env",
                "RINGFOLD_WEIGHTS has {} weights for {world_size} ranks and is ignored: all ranks \
                    own equal parts",
                each.len()
            );
            self.weights = None;
        }
    }
}

/// Checks a setting of `Config` that is 1 to `most`, if set.
fn up_to(what: &str, most: usize, given: Option<usize>) -> Result<Option<usize>> {
    match given {
        Some(count) if !(1..=most).contains(&count) => Err(Error::InvalidArgument(format!(
            "invalid {what} {count}; use 1 to {most}"
        ))),
        given => Ok(given),
    }
}
