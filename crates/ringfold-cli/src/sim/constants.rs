//! What a calibration says of links, processors and devices, as settings of a simulation.

use std::path::Path;

use anyhow::{Result, bail};
use ringfold::internals::tune::calibration::{Calibration, LinkCosts};

use super::parse::{Bytes, Rate, Span};
use super::settings::{ComputeSettings, NetworkSettings, Settings};

/// Picoseconds of a microsecond.
const PS_PER_US: f64 = 1e6;

/// The pieces in which messages go through rings and sockets.
const SEGMENT_BYTES: u64 = 64 << 10;

/// The settings that a calibration's file stands for.
pub fn read(path: &Path) -> Result<Settings> {
    let Calibration { links, devices, .. } = Calibration::read_any(path)?;
    if links.is_none() && devices.is_none() {
        bail!(
            "`{}` says nothing of links or devices; run `ringfold tune calibrate` as the ranks of \
             a job of several hosts, or with `--device`",
            path.display()
        );
    }
    let mut settings = links.as_ref().map(of_links).unwrap_or_default();
    settings.devices.measured = devices;
    Ok(settings)
}

/// Links and processors.
fn of_links(links: &LinkCosts) -> Settings {
    let span = |us: f64| {
        Some(Span {
            ps: (us * PS_PER_US).round() as u64,
        })
    };
    let rate = |us_per_byte: f64| {
        Some(Rate {
            ps_per_byte: (us_per_byte * PS_PER_US).round() as u64,
        })
    };
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
