//! Constants of links, processors and devices, as settings of a simulation: from a calibration, and
//! for RDMA assumed if there is none.

use std::path::Path;

use anyhow::{Result, bail};
use ringfold::internals::tune::calibration::{Calibration, LinkCosts};
use ringfold::internals::tune::{DeviceConstants, RdmaCosts};
use toml::{Table, Value};

/// Picoseconds of a microsecond.
const PS_PER_US: f64 = 1e6;

/// The pieces in which messages go through rings and sockets, and over RDMA.
const SEGMENT_BYTES: u64 = 64 << 10;

/// The network between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    Sockets,
    Rdma,
}

/// A file of `ringfold tune calibrate`.
#[derive(Clone, Debug, Default)]
pub struct MeasuredCosts {
    links: Option<LinkCosts>,
    rdma: Option<RdmaCosts>,
    pub devices: Option<DeviceConstants>,
}

impl MeasuredCosts {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<MeasuredCosts> {
        let Calibration {
            links,
            rdma,
            devices,
            ..
        } = Calibration::read_any(path)?;
        if links.is_none() && rdma.is_none() && devices.is_none() {
            bail!(
                "`{}` says nothing of links or devices; run `ringfold tune calibrate` as the ranks \
                 of a job of several hosts, or with `--device`",
                path.display()
            );
        }
        Ok(MeasuredCosts {
            links,
            rdma,
            devices,
        })
    }

    /// The constants of a network over `fabric`, or by default over the one that was measured, as
    /// the lowest layer. `is_registered`: whether the data is in registered memory.
    pub fn under(&self, fabric: Option<Fabric>, is_registered: bool) -> Result<Table> {
        let is_rdma = match fabric {
            Some(fabric) => fabric == Fabric::Rdma,
            None => self.links.is_none() && self.rdma.is_some(),
        };
        if is_registered && !is_rdma {
            bail!("memory is registered for RDMA only; give `--fabric rdma`");
        }
        // Over RDMA, a host's own links and the processors need assumptions, too.
        let assumed = is_rdma.then(LinkCosts::default);
        let Some(links) = self.links.clone().or(assumed) else {
            return Ok(Table::new());
        };
        let mut network = sockets(&links);
        if is_rdma {
            over_rdma(
                &self.rdma.clone().unwrap_or_default(),
                is_registered,
                &mut network,
            );
        }
        Ok(table([
            ("network", Value::Table(network)),
            ("compute", Value::Table(processors(&links))),
        ]))
    }
}

fn table<const N: usize>(pairs: [(&str, Value); N]) -> Table {
    Table::from_iter(pairs.map(|(key, value)| (key.to_owned(), value)))
}

fn span(us: f64) -> Value {
    format!("{}ps", (us * PS_PER_US).round() as u64).into()
}

/// A rate in whole picoseconds per byte.
fn rate(us_per_byte: f64) -> Value {
    match (us_per_byte * PS_PER_US).round() {
        0.0 => "unlimited".into(),
        ps => format!("{}B/s", 1e12 / ps).into(),
    }
}

fn bytes(bytes: f64) -> Value {
    format!("{}", bytes as u64).into()
}

/// The links between and within hosts.
fn sockets(links: &LinkCosts) -> Table {
    table([
        ("alpha", span(links.socket_alpha_us)),
        ("bandwidth", rate(links.socket_us_per_byte)),
        ("overhead", span(links.socket_overhead_us)),
        ("crowded_overhead", span(links.socket_crowded_us)),
        ("packets_overhead", span(links.socket_packets_us)),
        ("work_rate", rate(links.socket_work_us_per_byte)),
        ("window_bytes", bytes(links.socket_window_bytes)),
        ("local_alpha", span(links.ring_alpha_us)),
        ("local_bandwidth", rate(0.0)),
        ("local_overhead", span(links.ring_overhead_us)),
        ("local_crowded_overhead", span(links.ring_crowded_us)),
        ("local_work_rate", rate(links.ring_work_us_per_byte)),
        ("local_window_bytes", bytes(links.ring_window_bytes)),
        ("segment_bytes", bytes(SEGMENT_BYTES as f64)),
    ])
}

fn processors(links: &LinkCosts) -> Table {
    table([
        ("reduce_rate", rate(links.reduce_us_per_byte)),
        ("cache_bytes", bytes(links.cache_bytes)),
        ("miss_rate", rate(links.miss_us_per_byte)),
        ("spin", span(links.spin_us)),
        ("wake", span(links.wake_us)),
        ("switch_time", span(links.switch_us)),
    ])
}

/// Replaces the links between hosts by RDMA's. If its rate was not measured, the port's default
/// remains. A grant is for a whole message, so there is no window.
fn over_rdma(costs: &RdmaCosts, is_registered: bool, network: &mut Table) {
    for key in ["bandwidth", "packets_overhead", "window_bytes"] {
        network.remove(key);
    }
    let work_us_per_byte = match is_registered {
        true => 0.0,
        false => costs.staging_us_per_byte,
    };
    network.extend(table([
        ("alpha", span(costs.rdma_alpha_us)),
        ("overhead", span(costs.rdma_overhead_us)),
        ("crowded_overhead", span(costs.rdma_crowded_us)),
        ("work_rate", rate(work_us_per_byte)),
        ("grant", span(costs.rdma_grant_us)),
    ]));
    if costs.rdma_us_per_byte > 0.0 {
        network.insert("bandwidth".into(), rate(costs.rdma_us_per_byte));
    }
}
