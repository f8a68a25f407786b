//! One rank of a job of several hosts that measures messages within rank 0's host, and from there
//! to another host.
//!
//! One [`pair`](super::pair) at a time exchanges messages, each rank on a core of its own or both
//! on one, while all others wait in a barrier. Single messages measure latency and polling. Calls
//! of an `all_reduce` measure the engine's and the kernel's time for messages and bytes: in
//! `recursive_doubling` both ranks send at once, in `tree` one after the other. The library defines
//! the numbers (`tune::links`). If RDMA joins the hosts, [`rdma`](super::rdma) measures the link
//! between them.

use std::time::Instant;

use anyhow::{Context as _, Result};
use ringfold::internals::random::SplitMix64;
use ringfold::internals::topology::Machine;
use ringfold::internals::tune::RdmaCosts;
use ringfold::internals::tune::calibration::{LinkCosts, LinkTimes};
use ringfold::{Communicator, Method};

use super::pair::{BOTH_WAYS, Calls, ONE_PACKET, Pair, ROUNDS};

/// Number of large messages in a row.
const LARGE_MESSAGES: usize = 16;

/// Elements of a large message, as schedules send them.
const LARGE: usize = (256 << 10) / size_of::<f32>();

/// Bytes of a call whose messages have several packets. `ONE_WAY` are the sizes of two calls that
/// differ only in the time for bytes, in one direction.
const PACKETS: usize = 4 << 10;
pub(super) const ONE_WAY: [usize; 2] = [16 << 10, 128 << 10];

/// Elements of a message that the caches hold. `MISSED_BYTES_MIN` and `MISSED_BYTES_MAX` bound the
/// bytes of a message that misses the caches: half of the last level, in and out on each rank.
const CACHED: usize = (1 << 20) / size_of::<f32>();
const MISSED_BYTES_MIN: usize = 16 << 20;
const MISSED_BYTES_MAX: usize = 64 << 20;

/// Number of reads of each byte that two ranks exchange: one to send it, and one to receive it.
const READS: f64 = 2.0;

/// Number of elements to combine, of which both operands fit the second-level cache.
const COMBINED: usize = (128 << 10) / size_of::<f32>();

/// Costs of the network between the hosts.
pub enum NetworkCosts {
    Sockets(LinkCosts),
    Rdma(RdmaCosts),
}

/// Measures the costs of messages. All ranks take part; only rank 0's result is valid. Costs of
/// links that this job does not have keep their defaults.
pub fn measure(communicator: &Communicator) -> Result<NetworkCosts> {
    let places = places(communicator)?;
    let of_host = |is_own: bool| {
        let others = places.iter().enumerate().skip(1);
        let found = others.filter(|(_, place)| (place.host == places[0].host) == is_own);
        found.map(|(rank, _)| rank).next()
    };
    let here = Machine::here();
    let mut costs = LinkCosts {
        reduce_us_per_byte: reduction(),
        cache_bytes: (here.last.bytes * here.cores.div_ceil(here.last.shared_by)) as f64,
        ..LinkCosts::default()
    };
    if let Some(peer) = of_host(true) {
        measure_rings(communicator, peer, &mut costs)?;
    }
    let peer = of_host(false).context("all ranks are on one host")?;
    let crowded_us = |alpha_us, overhead_us, costs: &LinkCosts| {
        let one_core = match places[peer].machine == places[0].machine {
            true => Pair::on_one_core(communicator, peer)?,
            false => None,
        };
        match one_core {
            Some(pair) => pair.crowded_us(alpha_us, overhead_us, pair.switch_us()?),
            // The effect of another rank on a core's caches is the same for every network.
            None => Ok(overhead_us + (costs.ring_crowded_us - costs.ring_overhead_us).max(0.0)),
        }
    };
    // A pair is dropped before ranks share a core, so that its ranks may use all their cores again.
    if communicator.transport().ends_with("rdma") {
        let mut rdma = Pair::new(communicator, peer)?.measure_rdma(costs.reduce_us_per_byte)?;
        rdma.rdma_crowded_us = crowded_us(rdma.rdma_alpha_us, rdma.rdma_overhead_us, &costs)?;
        return Ok(NetworkCosts::Rdma(rdma));
    }
    Pair::new(communicator, peer)?.measure_sockets(&mut costs)?;
    costs.socket_crowded_us = crowded_us(costs.socket_alpha_us, costs.socket_overhead_us, &costs)?;
    Ok(NetworkCosts::Sockets(costs))
}

/// Measures the costs of messages to rank `peer` of the same host.
fn measure_rings(communicator: &Communicator, peer: usize, costs: &mut LinkCosts) -> Result<()> {
    let pair = Pair::new(communicator, peer)?;
    (costs.ring_alpha_us, costs.ring_overhead_us) = pair.single()?.latency_us();
    // Both ends copy at the same time.
    let large_us = pair.stream_us(LARGE_MESSAGES, LARGE)?;
    costs.ring_work_us_per_byte = large_us / (LARGE * size_of::<f32>()) as f64;
    // The pair's ranks may use all their cores again before ranks share one core.
    drop(pair);
    costs.ring_crowded_us = costs.ring_overhead_us;
    if let Some(pair) = Pair::on_one_core(communicator, peer)? {
        costs.switch_us = pair.switch_us()?;
        let (alpha_us, overhead_us) = (costs.ring_alpha_us, costs.ring_overhead_us);
        costs.ring_crowded_us = pair.crowded_us(alpha_us, overhead_us, costs.switch_us)?;
    }
    Ok(())
}

/// The host of a rank: `host` is equal on ranks that share it, `machine` if they share a machine.
struct RankHost {
    host: usize,
    machine: u64,
}

/// Returns each rank's place.
fn places(communicator: &Communicator) -> Result<Vec<RankHost>> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let machine = boot.bytes().fold(0, |digest, byte| {
        SplitMix64::stream(digest, byte.into()).next_u64()
    });
    let mut machines = vec![0; communicator.world_size()];
    communicator.all_gather(&[machine], &mut machines)?;
    let hosts = communicator.hosts_of_ranks().into_iter();
    let place = |(host, machine)| RankHost { host, machine };
    Ok(hosts.zip(machines).map(place).collect())
}

impl Pair<'_> {
    /// Measures the costs of messages through sockets.
    fn measure_sockets(&self, costs: &mut LinkCosts) -> Result<()> {
        let reduce_us_per_byte = costs.reduce_us_per_byte;
        let calls = Calls::new(self, BOTH_WAYS[1])?;
        let single = self.single()?;
        let (doubling, tree) = (Method::RecursiveDoubling, Method::Tree);
        let (alpha_us, _) = single.latency_us();
        let packet_us = calls.hop_us(ONE_PACKET)?;
        let packets_us = calls.hop_us(PACKETS)?;
        let slope = |method, sizes| -> Result<f64> {
            Ok(calls.us_per_byte(method, sizes)? - reduce_us_per_byte)
        };
        let exchange_us_per_byte = slope(doubling, BOTH_WAYS)?.max(0.0);
        let times = LinkTimes {
            hop_us: single.hop_us,
            message_us: (packet_us - alpha_us).max(0.0) / 2.0,
            one_way_us_per_byte: slope(tree, ONE_WAY)?.max(0.0) / 2.0,
            exchange_us_per_byte,
        };
        let processor_us_per_byte = calls.processor_us_per_byte()? - reduce_us_per_byte;
        let (link, work) = times.byte_us(processor_us_per_byte.max(0.0));
        (costs.socket_us_per_byte, costs.socket_work_us_per_byte) = (link, work);
        (costs.socket_alpha_us, costs.socket_overhead_us) = (alpha_us, times.message_us);
        let bytes_us = PACKETS as f64 * exchange_us_per_byte;
        costs.socket_packets_us = (packets_us - packet_us - bytes_us).max(0.0) / 2.0;
        let missed = (costs.cache_bytes as usize / 2).clamp(MISSED_BYTES_MIN, MISSED_BYTES_MAX);
        let missed_us_per_byte = self.exchange_us_per_byte(missed / size_of::<f32>())?;
        let more = missed_us_per_byte - self.exchange_us_per_byte(CACHED)?;
        // Behind a slow link the difference does not show the cost of memory.
        if link == 0.0 {
            costs.miss_us_per_byte = more.max(0.0) / READS;
        }
        (costs.spin_us, costs.wake_us) = self.sleep(single.hop_us)?;
        Ok(())
    }
}

/// Returns the microseconds for combining a byte in a cache.
fn reduction() -> f64 {
    let (mut sum, other) = (vec![1f32; COMBINED], vec![1f32; COMBINED]);
    let times_us = (0..ROUNDS).map(|_| {
        let begun = Instant::now();
        for (sum, other) in sum.iter_mut().zip(std::hint::black_box(&other)) {
            *sum += other;
        }
        std::hint::black_box(&mut sum);
        begun.elapsed().as_secs_f64() * 1e6 / (COMBINED * size_of::<f32>()) as f64
    });
    // The minimum, because other work of the core only adds to the time.
    times_us.fold(f64::INFINITY, f64::min)
}
