//! `--stats`: lateness in the timed calls, combined over all ranks.

use std::fmt::Write;
use std::time::Duration;

use ringfold::{LATENESS_CLASSES, PeerStats, Stats};
use serde_json::{Value, json};

/// Numbers in a rank's counts, besides the `PEER_NUMBERS` of each peer.
const OWN_NUMBERS: usize = 3;
const PEER_NUMBERS: usize = 4 + LATENESS_CLASSES;

/// Returns the length of a rank's counts as numbers, among `world_size` ranks.
pub fn numbers(world_size: usize) -> usize {
    OWN_NUMBERS + world_size * PEER_NUMBERS
}

/// Encodes a rank's counts as numbers, to be gathered.
pub fn encode(stats: &Stats) -> Vec<f64> {
    let ns = |time: Duration| time.as_nanos() as f64;
    let mut numbers = vec![
        stats.calls as f64,
        stats.times_last as f64,
        ns(stats.waited),
    ];
    for peer in &stats.peers {
        numbers.push(peer.last as f64);
        numbers.extend([peer.lateness, peer.most, peer.waited].map(ns));
        numbers.extend(peer.histogram.map(|count| count as f64));
    }
    numbers
}

/// Decodes the counts that `encode` returned.
pub fn decode(numbers: &[f64]) -> Stats {
    let time = |ns: f64| Duration::from_nanos(ns as u64);
    let (own, peers) = numbers.split_at(OWN_NUMBERS);
    let peer = |numbers: &[f64]| {
        let mut histogram = [0; LATENESS_CLASSES];
        for (count, number) in histogram.iter_mut().zip(&numbers[4..]) {
            *count = *number as u64;
        }
        PeerStats {
            last: numbers[0] as u64,
            lateness: time(numbers[1]),
            most: time(numbers[2]),
            waited: time(numbers[3]),
            histogram,
        }
    };
    Stats {
        calls: own[0] as u64,
        times_last: own[1] as u64,
        waited: time(own[2]),
        peers: peers.chunks_exact(PEER_NUMBERS).map(peer).collect(),
    }
}

/// Merges all ranks' counts about `rank`.
fn blamed(all: &[Stats], rank: usize) -> PeerStats {
    let mut blamed = PeerStats::default();
    for stats in all {
        blamed.merge(&stats.peers[rank]);
    }
    blamed
}

/// Returns the table below the measurements.
pub fn table(all: &[Stats]) -> String {
    let calls = all.first().map_or(0, |stats| stats.calls);
    let mut text = format!(
        "# Lateness in {calls} timed calls. last: calls in which the rank arrived last and did not \
         wait; blamed: how often\n\
         # another rank waited for it last, and for how long on average and at most; waited: the \
         rank's own total wait\n\
         # {:>5} {:>9} {:>9} {:>12} {:>12} {:>12}\n",
        "rank", "last", "blamed", "mean_us", "most_us", "waited_ms"
    );
    for (rank, stats) in all.iter().enumerate() {
        let blamed = blamed(all, rank);
        let mean_us = blamed.lateness.as_secs_f64() * 1e6 / blamed.last.max(1) as f64;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "# {rank:>5} {:>9} {:>9} {mean_us:>12.1} {:>12.1} {:>12.3}",
            stats.times_last,
            blamed.last,
            blamed.most.as_secs_f64() * 1e6,
            stats.waited.as_secs_f64() * 1e3,
        );
    }
    text
}

/// Returns all counts for other programs: each rank's own view, and the others' counts about it.
pub fn document(all: &[Stats]) -> Value {
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    let peer = |peer: &PeerStats| {
        json!({
            "last": peer.last,
            "lateness_us": us(peer.lateness),
            "most_us": us(peer.most),
            "waited_us": us(peer.waited),
            "histogram": peer.histogram,
        })
    };
    let rank = |(rank, stats): (usize, &Stats)| {
        json!({
            "rank": rank,
            "calls": stats.calls,
            "arrived_last": stats.times_last,
            "waited_us": us(stats.waited),
            "blamed": peer(&blamed(all, rank)),
            "peers": stats.peers.iter().map(peer).collect::<Vec<_>>(),
        })
    };
    all.iter().enumerate().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_survive_being_gathered() {
        let mut peer = PeerStats {
            last: 3,
            lateness: Duration::from_micros(1500),
            most: Duration::from_micros(1000),
            waited: Duration::from_micros(1700),
            ..PeerStats::default()
        };
        peer.histogram[9] = 2;
        peer.histogram[10] = 1;
        let stats = Stats {
            calls: 9,
            times_last: 6,
            waited: Duration::from_micros(1800),
            peers: vec![PeerStats::default(), peer],
        };
        let numbers = encode(&stats);
        assert_eq!(numbers.len(), super::numbers(2));
        assert_eq!(decode(&numbers), stats);
        let text = table(&[stats.clone(), stats]);
        let row = text.lines().last().expect("a row");
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells, ["#", "1", "6", "6", "500.0", "1000.0", "1.800"]);
    }
}
