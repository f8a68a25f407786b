//! How many sockets two ranks have for each channel, and over which networks they are spread: from
//! what both have said, so that both decide alike.
//!
//! A *rail* is a network in which both have an interface, and which may be used beside others. The
//! interfaces of a rank must be in different networks: what leaves a host for one network leaves by
//! one interface. With one rail or none, the sockets go by the first address that answers.

use std::collections::BTreeMap;

use super::endpoint::Endpoint;
use super::peer_info::PeerInfo;
use crate::control::mesh::Rail;
use crate::transport::tcp::SOCKETS_MAX;

/// The most sockets of a channel that nothing asked for.
const AUTOMATIC_MAX: usize = 16;
/// The most threads that help and that nothing asked for: with the rank's own, as many as NCCL
/// takes on the NICs for which it takes the most.
const THREADS_AUTOMATIC_MAX: usize = 3;

/// What one TCP flow reaches between fast cores, in Mbit/s.
const FLOW_MBPS: u32 = 20_000;

/// What two ranks have for each channel between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bundle {
    /// The number of sockets.
    pub sockets: usize,
    /// The rails, if there are several, from the end that connects to the one that listens.
    pub rails: Vec<Rail>,
    /// How many sockets fill the slowest link between them.
    pub link_sockets: usize,
    /// What all sockets together reach on their links, in Mbit/s, where the links' rates are known.
    pub rate_mbps: Option<u32>,
}

impl Bundle {
    /// Of two ranks on different hosts, of which `lower` listens.
    pub fn between(lower: &PeerInfo, upper: &PeerInfo) -> Bundle {
        let mut pairs = pairs(lower, upper, |one, other| one.is_rail && other.is_rail);
        if pairs.len() < 2 {
            pairs.clear();
        }
        let link_sockets = match pairs.is_empty() {
            true => way(lower, upper).map_or(1, link_sockets),
            false => pairs.iter().copied().map(link_sockets).max().unwrap_or(1),
        };
        let permitted = lower.sockets_max.min(upper.sockets_max) as usize;
        let automatic = link_sockets.saturating_mul(pairs.len().max(1));
        let sockets = match lower.sockets {
            Some(count) => (count as usize).min(SOCKETS_MAX),
            None => automatic.min(permitted).clamp(1, AUTOMATIC_MAX),
        };
        // One that no socket would use, and the only one left then.
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
        let rail = |(lower, upper): (&Endpoint, &Endpoint)| Rail {
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

    /// Of two ranks on one host: there are no links to fill.
    pub fn on_one_host(own: &PeerInfo) -> Bundle {
        Bundle {
            sockets: own.sockets.map_or(1, |count| count as usize),
            rails: Vec::new(),
            link_sockets: 1,
            rate_mbps: None,
        }
    }
}

/// How many threads help a rank with `cores` cores to spare: as many as `asked`; else none, unless
/// one flow cannot fill a link.
pub(super) fn threads(asked: Option<usize>, bundles: &[(usize, Bundle)], cores: usize) -> usize {
    let is_fast = |bundle: &&Bundle| bundle.link_sockets > 1;
    let fast = bundles.iter().map(|(_, bundle)| bundle).filter(is_fast);
    let sockets = fast.map(|bundle| bundle.sockets).max().unwrap_or(1);
    asked.unwrap_or((sockets - 1).min(cores).min(THREADS_AUTOMATIC_MAX))
}

/// What the slowest links of a rank carry, in Mbit/s, if the rates of all its links are known.
pub(super) fn rate_mbps(bundles: &[(usize, Bundle)]) -> Option<u32> {
    let rates: Option<Vec<u32>> = bundles.iter().map(|(_, bundle)| bundle.rate_mbps).collect();
    rates?.into_iter().min()
}

/// Says what is used, once for all ranks with the same.
pub(super) fn log(bundles: &[(usize, Bundle)], is_asked: bool, threads: usize) {
    let mut kinds: BTreeMap<(usize, usize, usize), Vec<usize>> = BTreeMap::new();
    for (rank, bundle) in bundles {
        let kind = (bundle.sockets, bundle.rails.len(), bundle.link_sockets);
        kinds.entry(kind).or_default().push(*rank);
    }
    for ((sockets, rails, link_sockets), ranks) in kinds {
        let why = match (is_asked, link_sockets) {
            (true, _) => "as RINGFOLD_SOCKETS says".into(),
            (false, 1) => "none of the links is known to need more".into(),
            (false, count) => format!("their links need {count} each"),
        };
        let over = match rails {
            0 => String::new(),
            _ => format!(
                " over {rails} rails, such as {}",
                example(bundles, ranks[0])
            ),
        };
        log::info!(
            target: "ringfold::init",
            "{sockets} sockets for each channel with ranks {ranks:?}{over} ({why}), moved by \
             {threads} threads beside the rank's own"
        );
    }
}

/// The rails of `rank`.
fn example(bundles: &[(usize, Bundle)], rank: usize) -> String {
    let mut bundles = bundles.iter();
    let bundle = bundles.find(|(other, _)| *other == rank);
    let rails = bundle.iter().flat_map(|(_, bundle)| &bundle.rails);
    let texts: Vec<String> = rails
        .map(|rail| format!("{} to {}", rail.from, rail.to.ip()))
        .collect();
    texts.join(" and ")
}

/// Endpoints of both in one network each, in the lower rank's order. No interface is in two of
/// them.
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

/// The endpoints between which a single connection most likely goes: in a network of both, or else
/// what each prefers.
fn way<'a>(lower: &'a PeerInfo, upper: &'a PeerInfo) -> Option<(&'a Endpoint, &'a Endpoint)> {
    let common = pairs(lower, upper, |_, _| true).into_iter().next();
    let is_apart = |endpoint: &&Endpoint| !endpoint.address.ip().is_loopback();
    common.or_else(|| {
        let first = |info: &'a PeerInfo| info.endpoints.iter().find(is_apart);
        first(lower).zip(first(upper))
    })
}

/// The rate of the slower of two links.
fn slower_mbps((lower, upper): (&Endpoint, &Endpoint)) -> Option<u32> {
    Some(lower.link.rate_mbps?.min(upper.link.rate_mbps?)).filter(|rate| *rate > 0)
}

/// How many sockets fill the slower of two links.
fn link_sockets((lower, upper): (&Endpoint, &Endpoint)) -> usize {
    lower.link.sockets.min(upper.link.sockets).max(1)
}

#[cfg(test)]
mod tests;
