//! The terms of two levels over messages: between hosts, and within them.

#![forbid(unsafe_code)]

use super::{CostTerms, Load, LoadCounts, TermParameters, Within, over_messages};
use crate::types::{Collective, Method};
use Collective::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};

/// The shape of a job whose hosts have equally many ranks.
struct Hosts {
    ranks: f64,
    count: f64,
    /// Number of ranks of each host.
    size: f64,
    /// Number of runs of consecutive ranks of each host: the number of messages for blocks of all
    /// its ranks.
    runs: f64,
    /// Number of other hosts.
    others: f64,
    /// Number of other ranks of a rank's host.
    peers: f64,
    /// Number of hops of an exchange within a host: 1, or 0 without other ranks.
    level: f64,
}

impl CostTerms {
    /// Returns the terms of schedules of two levels.
    pub(super) fn two_levels(case: &TermParameters) -> Option<CostTerms> {
        let (ranks, count) = (f64::from(case.world_size), f64::from(case.hosts));
        let size = ranks / count;
        let hosts = Hosts {
            ranks,
            count,
            size,
            runs: f64::from(case.runs) / count,
            others: count - 1.0,
            peers: size - 1.0,
            level: f64::from(u8::from(size > 1.0)),
        };
        let (between, within) = match case.method {
            Method::Leader => (between_leaders(case, &hosts)?, under_leaders(case, &hosts)?),
            _ => (between_columns(case, &hosts)?, under_columns(case, &hosts)?),
        };
        let CostTerms {
            hops, busiest, all, ..
        } = within;
        Some(CostTerms {
            hops: between.hops + hops,
            busiest: between.busiest.and(busiest),
            all: between.all.and(all),
            fresh: 0.0,
            within: Some(Within { hops, busiest, all }),
        })
    }
}

impl CostTerms {
    /// Changes the exchange of columns between hosts to that of the canonical tree: each leader
    /// sends directly to all others, and partial results are `width` times as long as values.
    pub(in crate::tune) fn exchange_in_order(&mut self, collective: Collective, width: f64) {
        let (hops, longer) = match collective {
            // The partial results, then the results.
            AllReduce => (2.0, (width + 1.0) / 2.0),
            ReduceScatter => (1.0, width),
            _ => return,
        };
        let Some(within) = self.within else { return };
        self.hops = within.hops + hops;
        for (load, local) in [
            (&mut self.busiest, within.busiest),
            (&mut self.all, within.all),
        ] {
            load.bytes += (longer - 1.0) * (load.bytes - local.bytes);
        }
    }
}

/// Returns the terms of the exchange of columns, or of all ranks' own blocks, between the hosts.
fn between_columns(case: &TermParameters, hosts: &Hosts) -> Option<CostTerms> {
    let &Hosts {
        ranks,
        size,
        others,
        count,
        runs,
        ..
    } = hosts;
    let ring = |times: f64, reduced| {
        let each = [times * others, times * others / ranks, reduced];
        CostTerms::alike(times * others, each, ranks)
    };
    let chain = |reduces: f64| {
        let each = [others, others / size, reduces * others / size];
        CostTerms::apart(others, each, [others * size, others, reduces * others])
    };
    Some(match (case.collective, case.method) {
        (AllReduce, Method::MultiLeader) => {
            let one = over_messages(AllReduce, Method::RecursiveDoubling, case.hosts)?;
            CostTerms {
                busiest: one.busiest.of_columns(1.0, size),
                all: one.all.of_columns(size, size),
                ..one
            }
        }
        (AllReduce, _) => ring(2.0, others / ranks),
        (ReduceScatter, _) => ring(1.0, others / ranks),
        (AllGather, _) => ring(1.0, 0.0),
        (AllToAll, _) => {
            let each = [others * runs, others / count, 0.0];
            CostTerms::alike(others.min(1.0), each, ranks)
        }
        (Broadcast, _) => chain(0.0),
        (Reduce, _) => chain(1.0),
        _ => return None,
    })
}

/// Returns the terms of the messages between the members of a host and its leaders.
fn under_columns(case: &TermParameters, hosts: &Hosts) -> Option<CostTerms> {
    let &Hosts {
        ranks,
        count,
        peers,
        level,
        ..
    } = hosts;
    let part = peers / hosts.size;
    let alike = |hops: f64, each: LoadCounts| CostTerms::alike(hops * level, each, ranks);
    Some(match case.collective {
        AllReduce => alike(2.0, [2.0 * peers, 2.0 * part, part]),
        ReduceScatter => alike(1.0, [count * peers, part, part]),
        AllGather | AllToAll => alike(1.0, [count * peers, part, 0.0]),
        Broadcast => CostTerms::apart(
            // The root needs nothing back.
            (ranks - 1.0).min(2.0 * level),
            [2.0 * peers, 2.0 * part, 0.0],
            [peers * ranks, peers * count, 0.0],
        ),
        Reduce => CostTerms::apart(
            2.0 * level,
            [2.0 * peers, 2.0 * part, part],
            [peers * (ranks + 1.0), peers * count + part, peers * count],
        ),
        _ => return None,
    })
}

/// Returns the terms of the exchange between the leaders, one of each host.
fn between_leaders(case: &TermParameters, hosts: &Hosts) -> Option<CostTerms> {
    use Method::{RecursiveDoubling, Tree};
    let one_level = |method| over_messages(case.collective, method, case.hosts);
    match case.collective {
        AllReduce | Barrier => one_level(RecursiveDoubling),
        Broadcast | Reduce => one_level(Tree),
        AllGather => Some(doubling(case.hosts, hosts.runs, 0.0)),
        // Each message waits for the one received in the round before.
        ReduceScatter => Some(CostTerms {
            hops: f64::from(case.hosts.next_power_of_two().trailing_zeros()),
            ..doubling(case.hosts, hosts.runs, 1.0)
        }),
        Gather | Scatter => {
            let root = [hosts.others * hosts.runs, hosts.others / hosts.count, 0.0];
            Some(CostTerms::apart(hosts.others.min(1.0), root, root))
        }
        _ => None,
    }
}

/// Returns the terms of the messages between the members of a host and its leader.
fn under_leaders(case: &TermParameters, hosts: &Hosts) -> Option<CostTerms> {
    let &Hosts {
        ranks,
        count,
        peers,
        level,
        ..
    } = hosts;
    let block = 1.0 / ranks;
    // For each member: the leader's messages, their bytes together, and the bytes reduced.
    let (times, bytes, reduced) = match case.collective {
        AllReduce => (2.0, 2.0, 1.0),
        Barrier => (2.0, 0.0, 0.0),
        Broadcast => (1.0, 1.0, 0.0),
        Reduce => (1.0, 1.0, 1.0),
        AllGather => (2.0, 1.0 + block, 0.0),
        ReduceScatter => (2.0, 1.0 + block, 1.0),
        Gather | Scatter => (1.0, block, 0.0),
        _ => return None,
    };
    let each = [times, bytes, reduced];
    Some(CostTerms::apart(
        times * level,
        each.map(|needed| needed * peers),
        each.map(|needed| needed * peers * count),
    ))
}

/// Returns the terms of an exchange of blocks of ever more hosts, or of reduced blocks of ever
/// fewer. In each round a leader sends as many messages as a host has `runs`, and one more if the
/// hosts' blocks wrap around the end of the ring.
fn doubling(hosts: u32, runs: f64, reduces: f64) -> CostTerms {
    let (mut busiest, mut all, mut hops) = ([0.0; 3], [0.0; 3], 0);
    let depth = hosts.next_power_of_two().trailing_zeros();
    for bit in 0..depth {
        let count = (hosts - (1 << bit)).min(1 << bit);
        let bytes = f64::from(count);
        let part = bytes / f64::from(hosts);
        let apart = f64::from(count - 1);
        let of_round = [runs + apart.min(1.0), part, reduces * part];
        let of_all = [f64::from(hosts) * runs + apart, bytes, reduces * bytes];
        busiest = [0, 1, 2].map(|kind| busiest[kind] + of_round[kind]);
        all = [0, 1, 2].map(|kind| all[kind] + of_all[kind]);
        // A message waits for those of the rounds in which its blocks arrived.
        hops = hops.max(1 + count.next_power_of_two().trailing_zeros());
    }
    CostTerms::apart(f64::from(hops), busiest, all)
}

impl Load {
    /// Returns this load for `count` of the `columns` columns that share the data.
    fn of_columns(self, count: f64, columns: f64) -> Load {
        Load {
            messages: self.messages * count,
            bytes: self.bytes * count / columns,
            reduced: self.reduced * count / columns,
        }
    }
}
