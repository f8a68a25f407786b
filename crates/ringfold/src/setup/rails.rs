//! The number of sockets of each channel between two ranks, and the networks over which these are
//! spread: derived from the records of both, so that both decide alike.
//!
//! A *rail* is a network in which both ranks have an interface, and which may be used beside
//! others. A rank's interfaces must be in different networks: a host sends data for one network
//! through one interface. With one rail or none, the sockets use the first address that answers.

use std::collections::BTreeMap;

use super::peer_info::PeerInfo;
use super::peer_info::endpoint::Endpoint;
use crate::control::mesh::RailAddresses;
use crate::transport::tcp::SOCKETS_MAX;

/// Maximum number of sockets of a channel if none is configured.
const AUTOMATIC_MAX: usize = 16;
/// Maximum number of helper threads: with the rank's own, as many as NCCL
/// uses on the NICs for which it uses the most.
const THREADS_MAX: usize = 3;

/// Rate of one TCP flow between fast cores, in Mbit/s.
const FLOW_MBPS: u32 = 20_000;

/// The sockets and rails of each channel between two ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bundle {
    /// Number of sockets.
    pub sockets: usize,
    /// Rails, if there are several, from the end that connects to the end that listens.
    pub rails: Vec<RailAddresses>,
    /// Number of sockets that fill a link between the ranks; of several rails, the largest number.
    pub link_sockets: usize,
    /// Rate of all sockets together on their links, in Mbit/s, if the links' rates are known.
    pub rate_mbps: Option<u32>,
}

impl Bundle {
    /// Returns the bundle of two ranks on different hosts, of which `lower` listens.
    pub fn between(lower: &PeerInfo, upper: &PeerInfo) -> Bundle {
        let mut pairs = pairs(lower, upper, |one, other| one.is_rail && other.is_rail);
        if pairs.len() < 2 {
            pairs.clear();
        }
        let link_sockets = match pairs.is_empty() {
            true => way(lower, upper).map_or(1, link_sockets),
            false => pairs.iter().copied().map(link_sockets).max().unwrap_or(1),
        };
        let permitted = lower.sockets_max.min(upper.sockets_max);
        let automatic = link_sockets.saturating_mul(pairs.len().max(1));
        let sockets = match lower.sockets {
            Some(count) => count.min(SOCKETS_MAX),
            None => automatic.min(permitted).clamp(1, AUTOMATIC_MAX),
        };
        // Drops rails that no socket would use, and the last one if it is the only one left.
        pairs.truncate(sockets);
        if pairs.len() < 2 {
            pairs.clear();
        }
        let rate_mbps = match pairs.is_empty() {
            true => way(lower, upper).and_then(slower_mbps),
            // The rails have equal shares, so the slowest determines the time.
            false => {
                let rates: Option<Vec<u32>> = pairs.iter().copied().map(slower_mbps).collect();
                let slowest = rates.and_then(|rates| rates.into_iter().min());
                slowest.map(|slowest| slowest.saturating_mul(pairs.len() as u32))
            }
        };
        let by_flows_mbps = FLOW_MBPS.saturating_mul(sockets as u32);
        let rail = |(lower, upper): (&Endpoint, &Endpoint)| RailAddresses {
            from: upper.address.ip(),
            to: lower.address,
        };
        Bundle {
            sockets,
            rails: pairs.into_iter().map(rail).collect(),
            link_sockets,
            rate_mbps: rate_mbps.map(|rate| rate.min(by_flows_mbps)),
        }
    }

    /// Returns the bundle of two ranks on one host: there are no links to fill.
    pub fn on_one_host(own: &PeerInfo) -> Bundle {
        Bundle {
            sockets: own.sockets.unwrap_or(1),
            rails: Vec::new(),
            link_sockets: 1,
            rate_mbps: None,
        }
    }
}

/// Returns the number of helper threads of a rank with `cores` spare cores: none, unless one flow
/// cannot fill a link.
pub(super) fn threads(bundles: &[(usize, Bundle)], cores: usize) -> usize {
    let is_fast = |bundle: &&Bundle| bundle.link_sockets > 1;
    let fast = bundles.iter().map(|(_, bundle)| bundle).filter(is_fast);
    let sockets = fast.map(|bundle| bundle.sockets).max().unwrap_or(1);
    (sockets - 1).min(cores).min(THREADS_MAX)
}

/// Returns the rate of the slowest links of a rank, in Mbit/s, if all its links' rates are known.
pub(super) fn rate_mbps(bundles: &[(usize, Bundle)]) -> Option<u32> {
    let rates: Option<Vec<u32>> = bundles.iter().map(|(_, bundle)| bundle.rate_mbps).collect();
    rates?.into_iter().min()
}

/// Logs the sockets and rails in use, once for all ranks with the same.
pub(super) fn log(bundles: &[(usize, Bundle)], is_asked: bool, threads: usize) {
    let mut kinds: BTreeMap<(usize, usize, usize), Vec<usize>> = BTreeMap::new();
    for (rank, bundle) in bundles {
        let kind = (bundle.sockets, bundle.rails.len(), bundle.link_sockets);
        kinds.entry(kind).or_default().push(*rank);
    }
    for ((sockets, rails, link_sockets), ranks) in kinds {
        let why = match (is_asked, link_sockets) {
            (true, _) => "as RINGFOLD_SOCKETS says".into(),
            (false, 1) => "no link needs more".into(),
            (false, count) => format!("their links need {count} each"),
        };
        let over = match rails {
            0 => String::new(),
            _ => format!(
                " over {rails} rails, such as {}",
                example(bundles, ranks[0])
            ),
        };
        let by = match threads {
            0 => String::new(),
            _ => format!(", moved by {threads} threads beside the rank's own"),
        };
        log::info!(
            target: "ringfold::init",
            "{sockets} sockets for each channel with ranks {ranks:?}{over} ({why}){by}"
        );
    }
}

/// Returns the rails of `rank` as text.
fn example(bundles: &[(usize, Bundle)], rank: usize) -> String {
    let mut bundles = bundles.iter();
    let bundle = bundles.find(|(other, _)| *other == rank);
    let rails = bundle.iter().flat_map(|(_, bundle)| &bundle.rails);
    let texts: Vec<String> = rails
        .map(|rail| format!("{} to {}", rail.from, rail.to.ip()))
        .collect();
    texts.join(" and ")
}

/// Returns pairs of endpoints of both ranks in a common network, in the lower rank's order. No
/// interface is in two pairs.
fn pairs<'a>(
    lower: &'a PeerInfo,
    upper: &'a PeerInfo,
    is_usable: impl Fn(&Endpoint, &Endpoint) -> bool,
) -> Vec<(&'a Endpoint, &'a Endpoint)> {
    let mut pairs: Vec<(&Endpoint, &Endpoint)> = Vec::new();
    for one in &lower.endpoints {
        let is_free = |other: &Endpoint| {
            let mut taken = pairs.iter();
            taken.all(|(a, b)| a.interface != one.interface && b.interface != other.interface)
        };
        let other = upper
            .endpoints
            .iter()
            .find(|other| one.shares_network(other) && is_free(other) && is_usable(one, other));
        pairs.extend(other.map(|other| (one, other)));
    }
    pairs
}

/// Returns the endpoints that a single connection most likely uses: in a common network, or else
/// the ones that each rank prefers.
fn way<'a>(lower: &'a PeerInfo, upper: &'a PeerInfo) -> Option<(&'a Endpoint, &'a Endpoint)> {
    let common = pairs(lower, upper, |_, _| true).into_iter().next();
    let is_apart = |endpoint: &&Endpoint| !endpoint.address.ip().is_loopback();
    common.or_else(|| {
        let first = |info: &'a PeerInfo| info.endpoints.iter().find(is_apart);
        first(lower).zip(first(upper))
    })
}

/// Returns the rate of the slower of two links, if both are known.
fn slower_mbps((lower, upper): (&Endpoint, &Endpoint)) -> Option<u32> {
    Some(lower.link.rate_mbps?.min(upper.link.rate_mbps?)).filter(|rate| *rate > 0)
}

/// Returns the number of sockets that fill the slower of two links.
fn link_sockets((lower, upper): (&Endpoint, &Endpoint)) -> usize {
    lower.link.sockets.min(upper.link.sockets).max(1)
}

#[cfg(test)]
mod tests;
