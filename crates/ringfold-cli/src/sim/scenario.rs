//! From settings to what the library simulates: defaults, and one value that varies.

use anyhow::{Result, anyhow, bail};
use ringfold::Weighting;
use ringfold::internals::simulate::{
    Compute, Delay, Devices, Disturbance, Grants, Links, Network, Payload, Scenario,
};
use ringfold::internals::tune::{DeviceConstants, RdmaCosts, balance};
use ringfold::internals::units::parse_time_ps;
use ringfold::{Collective, Method};

use super::disturbances::Late;
use super::parse::DeviceRate;
use super::settings::{AlgorithmChoice, DeviceSettings, Layers, Settings, Slice};

/// By default, data is moved and results are compared up to this size: more would exhaust the
/// machine's memory.
const REAL_BYTES_MAX: u64 = 256 << 20;

/// The most ranks: more is mistyped.
const RANKS_MAX: usize = 1 << 20;

/// The key that varies the delay of all slow reductions and late ranks, which is not a flag of its
/// own.
const DELAY: &str = "delay";

/// The scenario of these settings, with defaults for the rest.
pub fn scenario(layers: &Layers) -> Result<Scenario> {
    let settings = &delayed(layers)?;
    let default = Scenario::default();
    let ranks = settings.ranks.unwrap_or(default.ranks);
    let collective = settings.collective.unwrap_or(default.collective);
    let bytes = match (settings.bytes, settings.chunk_bytes) {
        _ if collective == Collective::Barrier => 0,
        (Some(bytes), _) => bytes.0,
        (None, Some(chunk)) => {
            let whole = chunk.0.checked_mul(ranks as u64);
            whole
                .ok_or_else(|| anyhow!("{ranks} chunks of {} bytes are too many bytes", chunk.0))?
        }
        (None, None) => default.bytes,
    };
    let all_bytes = u128::from(bytes) * ranks as u128;
    let mut scenario = Scenario {
        collective,
        algorithm: match settings.algorithm {
            Some(AlgorithmChoice::By(algorithm)) => Some(algorithm),
            // Settings of rings that bypass slow ranks, including `off`, imply the ring.
            None if settings.straggler.policy.is_some() => Some(Method::Ring),
            Some(AlgorithmChoice::Auto) | None => None,
        },
        dtype: settings.datatype.unwrap_or(default.dtype),
        op: settings.op.unwrap_or(default.op),
        root: settings
            .root
            .unwrap_or_else(|| root(settings, default.root)),
        ranks,
        bytes,
        slice_bytes: settings.slice_bytes.map(|slice| match slice {
            Slice::Whole => u64::MAX,
            Slice::Bytes(bytes) => bytes,
        }),
        network: network(settings, default.network),
        compute: compute(settings, default.compute),
        devices: devices(&settings.devices, layers.measured.devices.as_ref())?,
        has_barriers: settings.barriers.unwrap_or(default.has_barriers),
        disturbances: disturbances(settings)?,
        seed: settings.seed.unwrap_or(default.seed),
        timeout_ps: ps(settings.timeout, default.timeout_ps),
        detect_ps: ps(settings.detect, default.detect_ps),
        payload: match settings.payload {
            Some(payload) => payload,
            None if all_bytes <= u128::from(REAL_BYTES_MAX) => Payload::Real,
            None => Payload::Hollow,
        },
        traces: false,
        ..default
    };
    scenario.straggler = settings.straggler.policy(&scenario)?;
    if ranks > RANKS_MAX {
        bail!("{ranks} ranks; at most {RANKS_MAX}");
    }
    scenario.weights = match &settings.weights {
        None => None,
        Some(Weighting::Each(each)) => Some(each.clone()),
        Some(Weighting::Auto) => balance(&scenario.paces()),
    };
    scenario.check()?;
    Ok(scenario)
}

/// The default root: for `stragglar`, whose root is the late rank, the first late rank.
fn root(settings: &Settings, default: usize) -> usize {
    match (settings.algorithm, settings.late.first()) {
        (Some(AlgorithmChoice::By(Method::Stragglar)), Some(Late { rank, .. })) => *rank,
        _ => default,
    }
}

/// What is set of a time or of a rate, in picoseconds.
fn ps(set: Option<impl Into<u64>>, default: u64) -> u64 {
    set.map_or(default, Into::into)
}

fn network(settings: &Settings, default: Network) -> Network {
    let given = &settings.network;
    let links = Links {
        alpha_ps: ps(given.alpha, default.links.alpha_ps),
        ps_per_byte: ps(given.bandwidth, default.links.ps_per_byte),
        overhead_ps: ps(given.overhead, default.links.overhead_ps),
        crowded_ps: given.crowded_overhead.map(Into::into),
        packets_ps: ps(given.packets_overhead, default.links.packets_ps),
        work_ps_per_byte: ps(given.work_rate, default.links.work_ps_per_byte),
        gap_ps: ps(given.gap, default.links.gap_ps),
        window_bytes: given.window_bytes.map(|bytes| bytes.0),
        grants: given.grant.map(|grant| Grants {
            whole_bytes_max: RdmaCosts::WHOLE_BYTES_MAX as u64,
            grant_ps: grant.into(),
        }),
    };
    let is_local_said = given.local_alpha.is_some()
        || given.local_bandwidth.is_some()
        || given.local_overhead.is_some()
        || given.local_crowded_overhead.is_some()
        || given.local_work_rate.is_some()
        || given.local_window_bytes.is_some();
    Network {
        local: is_local_said.then(|| Links {
            alpha_ps: ps(given.local_alpha, links.alpha_ps),
            ps_per_byte: ps(given.local_bandwidth, links.ps_per_byte),
            overhead_ps: ps(given.local_overhead, links.overhead_ps),
            crowded_ps: match (given.local_crowded_overhead, given.local_overhead) {
                (None, None) => links.crowded_ps,
                (own, _) => own.map(Into::into),
            },
            // Memory has no packets.
            packets_ps: 0,
            work_ps_per_byte: ps(given.local_work_rate, links.work_ps_per_byte),
            window_bytes: given
                .local_window_bytes
                .map(|bytes| bytes.0)
                .or(links.window_bytes),
            grants: None,
            ..links
        }),
        links,
        ports: given.ports.unwrap_or(default.ports),
        sending: given.sending.unwrap_or(default.sending),
        ranks_per_host: given.ranks_per_host.unwrap_or(default.ranks_per_host),
        hosts_per_machine: given.hosts_per_machine.unwrap_or(default.hosts_per_machine),
        segment_bytes: given.segment_bytes.map(|bytes| bytes.0),
        memory_ps_per_byte: given.memory_bandwidth.map(Into::into),
        cores_per_host: settings.compute.cores_per_host,
        cache_bytes: settings.compute.cache_bytes.map(|bytes| bytes.0),
        switches: given.switch.iter().map(Into::into).collect(),
    }
}

fn compute(settings: &Settings, default: Compute) -> Compute {
    let given = &settings.compute;
    // Setting the time of a reduction replaces the default rate.
    let gamma = match given.reduce_time {
        Some(_) => 0,
        None => default.reduce_ps_per_byte,
    };
    Compute {
        reduce_ps: ps(given.reduce_time, default.reduce_ps),
        reduce_ps_per_byte: ps(given.reduce_rate, gamma),
        copy_ps_per_byte: ps(given.copy_rate, default.copy_ps_per_byte),
        miss_ps_per_byte: ps(given.miss_rate, default.miss_ps_per_byte),
        server: given.server.unwrap_or(default.server),
        spin_ps: ps(given.spin, default.spin_ps),
        wake_ps: ps(given.wake, default.wake_ps),
        switch_ps: ps(given.switch_time, default.switch_ps),
        ..default
    }
}

fn devices(given: &DeviceSettings, measured: Option<&DeviceConstants>) -> Result<Option<Devices>> {
    let default = measured.map_or_else(Devices::default, Devices::like);
    let Some(rate) = given.device else {
        if *given != DeviceSettings::default() {
            bail!("settings of devices, but no data is on devices; give `--device 25GB/s`");
        }
        return Ok(None);
    };
    let rates = match rate {
        DeviceRate::Of(rate) => [rate.ps_per_byte; 2],
        DeviceRate::Measured if measured.is_some() => {
            [default.out_ps_per_byte, default.in_ps_per_byte]
        }
        DeviceRate::Measured => bail!(
            "nothing was measured of devices; give `--constants` a file that `ringfold tune \
             calibrate --device cuda` has written, or a rate"
        ),
    };
    let in_ps_per_byte = ps(given.device_in, rates[1]);
    // The same part of the link's rate.
    let read_ps_per_byte =
        default.read_ps_per_byte * in_ps_per_byte / default.in_ps_per_byte.max(1);
    Ok(Some(Devices {
        out_ps_per_byte: rates[0],
        in_ps_per_byte,
        launch_ps: ps(given.device_launch, default.launch_ps),
        flag_ps: ps(given.device_flag, default.flag_ps),
        read_ps_per_byte: ps(given.device_read, read_ps_per_byte),
        one_shot: given.one_shot.or(default.one_shot),
        carried: None,
        duplex: given.device_duplex.unwrap_or(default.duplex),
        copy_ps: ps(given.device_copy, default.copy_ps),
        gap_ps: ps(given.device_gap, default.gap_ps),
        chain_ps: ps(given.device_chain, default.chain_ps),
        signal_ps: ps(given.device_signal, default.signal_ps),
        enqueue_ps: ps(given.device_enqueue, default.enqueue_ps),
        slot_bytes: given.slot_bytes.map_or(default.slot_bytes, |bytes| bytes.0),
        slice_bytes: given.device_slice_bytes.map(|bytes| bytes.0),
        depth: given.slots.unwrap_or(default.depth),
        direct: given.direct.unwrap_or(default.direct),
        ranks_per_device: given.ranks_per_device.unwrap_or(default.ranks_per_device),
    }))
}

fn disturbances(settings: &Settings) -> Result<Vec<Disturbance>> {
    let slow = settings
        .slow
        .iter()
        .map(|&slow| Ok(Disturbance::Slow(slow)));
    let late = settings.late.iter().map(|late| Ok(late.into()));
    let stalls = settings.stall.iter().map(|stall| Ok(stall.into()));
    let links = settings.slow_link.iter().map(TryInto::try_into);
    let dead = settings.dead.iter().map(|dead| Ok(dead.into()));
    slow.chain(late)
        .chain(stalls)
        .chain(links)
        .chain(dead)
        .collect()
}

/// Sets what varies.
pub fn vary(layers: &mut Layers, key: &str, text: &str) -> Result<()> {
    if key == DELAY {
        layers.delay_ps = Some(parse_time_ps(text)?);
        return Ok(());
    }
    layers.set(key, text, &[DELAY])
}

/// The settings, with the delay of every slow reduction and late rank if that varies.
fn delayed(layers: &Layers) -> Result<Settings> {
    let mut settings = layers.settings()?;
    let Some(ps) = layers.delay_ps else {
        return Ok(settings);
    };
    if settings.slow.is_empty() && settings.late.is_empty() {
        bail!(
            "`{DELAY}` varies the delay of what is slow or late, but nothing is; give `--slow` or \
             `--late`"
        );
    }
    for slow in &mut settings.slow {
        slow.delay = match slow.delay {
            Delay::Fixed(_) | Delay::Uniform { .. } => Delay::Fixed(ps),
            Delay::Exponential { .. } => Delay::Exponential { mean_ps: ps },
        };
    }
    for late in &mut settings.late {
        late.delay.ps = ps;
    }
    Ok(settings)
}
