//! The long version of the kill tests: the times until every survivor gets the error, over many
//! kills of every kind.
//!
//! ```text
//! cargo test --release -p ringfold-cli --test faults -- --ignored --nocapture campaign
//! ```
//!
//! Prints a table and writes a line for each kill to `bench/results/kills.csv`. `CAMPAIGN_KILLS` is
//! the number of kills of each kind, `CAMPAIGN_CSV` another file, `CAMPAIGN_TRANSPORTS` and
//! `CAMPAIGN_RANKS` lists to choose from. A time is the slowest survivor's, from just before the
//! signal until its call has returned the error. Every result is checked and every survivor must
//! name the killed rank, as in the tests; times above the guaranteed ones are only counted.

use std::io::Write;
use std::thread::available_parallelism;

use crate::endings::{SIZES, TRANSPORTS, kill_one, script};
use crate::job::Plan;
use crate::random::Random;

/// Returns the guaranteed time for a crash on one host, in milliseconds, by transport.
fn promise_ms(transport: &str, world_size: usize) -> f64 {
    let cores = available_parallelism().map_or(1, usize::from);
    let oversubscribed = if world_size > cores { 50.0 } else { 0.0 };
    oversubscribed + if transport == "shm" { 10.0 } else { 100.0 }
}

fn setting(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.into())
}

#[test]
#[ignore = "takes many minutes, on a machine that does nothing else"]
fn every_survivor_knows_in_time() {
    let kills: usize = setting("CAMPAIGN_KILLS", "200").parse().expect("a number");
    let chosen_ranks = setting("CAMPAIGN_RANKS", "2,4,8");
    let chosen_transports = setting("CAMPAIGN_TRANSPORTS", &TRANSPORTS.join(","));
    let default_csv = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/results/kills.csv");
    let path = setting("CAMPAIGN_CSV", default_csv);
    if let Some(folder) = std::path::Path::new(&path).parent() {
        std::fs::create_dir_all(folder).expect("a folder for the results");
    }
    let mut csv = std::fs::File::create(&path).expect("a file for the results");
    writeln!(
        csv,
        "transport,bytes,ranks,victim,survivors,good_min,slowest_ms,fastest_ms"
    )
    .expect("the file takes lines");
    let mut random = Random::new("campaign");
    println!(
        "{:>9} {:>9} {:>5} {:>6} {:>9} {:>9} {:>9} {:>10} {:>8}",
        "transport",
        "bytes",
        "ranks",
        "kills",
        "median_ms",
        "p99_ms",
        "max_ms",
        "promise_ms",
        "too_late"
    );
    for transport in TRANSPORTS
        .iter()
        .filter(|name| chosen_transports.split(',').any(|one| one == **name))
    {
        for bytes in SIZES {
            for world_size in chosen_ranks
                .split(',')
                .map(|text| text.parse().expect("a number"))
            {
                let plan = Plan::new(world_size, transport, script("all_reduce", bytes));
                kind(&plan, kills, &mut random, &mut csv);
            }
        }
    }
    println!("every kill is in {path}");
}

/// Runs all kills of one kind, and prints a line of the table.
fn kind(plan: &Plan, kills: usize, random: &mut Random, csv: &mut impl Write) {
    let (transport, bytes, world_size) = (plan.transport, plan.script.bytes, plan.world_size);
    let mut slowest = Vec::with_capacity(kills);
    for _ in 0..kills {
        let victim = random.below(world_size);
        let (at_ns, endings) = kill_one(plan, victim, random);
        let times = endings
            .iter()
            .map(|(_, ending)| (ending.at_ns as f64 - at_ns as f64) / 1e6);
        let (least, most) = times.fold((f64::MAX, f64::MIN), |(least, most), time| {
            (least.min(time), most.max(time))
        });
        let good = endings
            .iter()
            .map(|(_, ending)| ending.good)
            .min()
            .unwrap_or(0);
        let survivors = endings.len();
        writeln!(
            csv,
            "{transport},{bytes},{world_size},{victim},{survivors},{good},{most:.3},{least:.3}"
        )
        .expect("the file takes lines");
        slowest.push(most);
    }
    slowest.sort_by(f64::total_cmp);
    let at = |share: f64| slowest[((slowest.len() - 1) as f64 * share).round() as usize];
    let promise = promise_ms(transport, world_size);
    let late = slowest.iter().filter(|time| **time > promise).count();
    println!(
        "{transport:>9} {bytes:>9} {world_size:>5} {kills:>6} {:>9.2} {:>9.2} {:>9.2} \
         {promise:>10} {late:>8}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
