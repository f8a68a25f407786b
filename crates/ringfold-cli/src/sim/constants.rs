//! What is known of links, processors and devices, as settings of a simulation: by a calibration,
//! and of RDMA by assumption where none was given.

use std::path::Path;

use anyhow::{Result, bail};
use ringfold::internals::tune::RdmaCosts;
use ringfold::internals::tune::calibration::{Calibration, LinkCosts};

use super::parse::{Bytes, Rate, Span};
use super::settings::{ComputeSettings, NetworkSettings, Settings};

/// Picoseconds of a microsecond.
const PS_PER_US: f64 = 1e6;

/// The pieces in which messages go through rings and sockets, and over RDMA.
const SEGMENT_BYTES: u64 = 64 << 10;

/// What joins hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    Sockets,
    Rdma,
}

/// What was measured of links, by what joins the hosts.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    links: Option<LinkCosts>,
    rdma: Option<RdmaCosts>,
}

/// The settings that a calibration's file stands for.
pub fn read(path: &Path) -> Result<Settings> {
    let Calibration {
        links,
        rdma,
        devices,
        ..
    } = Calibration::read_any(path)?;
    if links.is_none() && rdma.is_none() && devices.is_none() {
        bail!(
            "`{}` says nothing of links or devices; run `ringfold tune calibrate` as the ranks of \
             a job of several hosts, or with `--device`",
            path.display()
        );
    }
    let mut settings = Settings::default();
    settings.network.measured = Some(Measured { links, rdma });
    settings.devices.measured = devices;
    Ok(settings)
}

/// These settings over what is known of the network that they are about.
pub fn under(settings: &Settings) -> Result<Settings> {
    let network = &settings.network;
    let Measured { links, rdma } = network.measured.clone().unwrap_or_default();
    let is_rdma = match network.fabric {
        Some(name) => Fabric::from(name) == Fabric::Rdma,
        None => links.is_none() && rdma.is_some(),
    };
    let is_registered = network.registered.unwrap_or(false);
    if is_registered && !is_rdma {
        bail!("memory is registered for RDMA only; give `--fabric rdma`");
    }
    let mut known = match links {
        Some(links) => of_links(&links),
        // Within a host and of processors something must be assumed, too.
        None if is_rdma => of_links(&LinkCosts::default()),
        None => Settings::default(),
    };
    if is_rdma {
        let rdma = rdma.unwrap_or_default();
        known.network = over_rdma(&rdma, is_registered, known.network);
    }
    known.overlay(settings);
    Ok(known)
}

fn span(us: f64) -> Option<Span> {
    let ps = (us * PS_PER_US).round() as u64;
    Some(Span { ps })
}

fn rate(us_per_byte: f64) -> Option<Rate> {
    let ps_per_byte = (us_per_byte * PS_PER_US).round() as u64;
    Some(Rate { ps_per_byte })
}

/// Links and processors.
fn of_links(links: &LinkCosts) -> Settings {
    let bytes = |bytes: f64| Some(Bytes(bytes as u64));
    Settings {
        network: NetworkSettings {
            alpha: span(links.socket_alpha_us),
            bandwidth: rate(links.socket_us_per_byte),
            overhead: span(links.socket_overhead_us),
            crowded_overhead: span(links.socket_crowded_us),
            packets_overhead: span(links.socket_packets_us),
            work_rate: rate(links.socket_work_us_per_byte),
            window_bytes: bytes(links.socket_window_bytes),
            local_alpha: span(links.ring_alpha_us),
            local_bandwidth: rate(0.0),
            local_overhead: span(links.ring_overhead_us),
            local_crowded_overhead: span(links.ring_crowded_us),
            local_work_rate: rate(links.ring_work_us_per_byte),
            local_window_bytes: bytes(links.ring_window_bytes),
            segment_bytes: Some(Bytes(SEGMENT_BYTES)),
            ..NetworkSettings::default()
        },
        compute: ComputeSettings {
            reduce_rate: rate(links.reduce_us_per_byte),
            cache_bytes: bytes(links.cache_bytes),
            miss_rate: rate(links.miss_us_per_byte),
            spin: span(links.spin_us),
            wake: span(links.wake_us),
            switch_time: span(links.switch_us),
            ..ComputeSettings::default()
        },
        ..Settings::default()
    }
}

/// The same network where RDMA joins the hosts. Where its rate was not measured the port's default
/// holds.
fn over_rdma(costs: &RdmaCosts, is_registered: bool, network: NetworkSettings) -> NetworkSettings {
    let work_us_per_byte = match is_registered {
        true => 0.0,
        false => costs.staging_us_per_byte,
    };
    NetworkSettings {
        alpha: span(costs.rdma_alpha_us),
        bandwidth: match costs.rdma_us_per_byte {
            0.0 => None,
            measured => rate(measured),
        },
        overhead: span(costs.rdma_overhead_us),
        crowded_overhead: span(costs.rdma_crowded_us),
        packets_overhead: None,
        work_rate: rate(work_us_per_byte),
        // A grant is for a whole message.
        window_bytes: None,
        grant: span(costs.rdma_grant_us),
        ..network
    }
}
