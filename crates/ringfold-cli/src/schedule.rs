//! `ringfold schedule`: shows an algorithm's steps and predicted cost, and proves it correct.

use std::fmt::Write as _;
use std::iter;

use anyhow::{Context, Result, anyhow, bail};
use ringfold::internals::schedule::Listing;
use ringfold::internals::schedule::check::{self, Slices};
use ringfold::internals::schedule::{Access, Groups, Schedule, Spec};
use ringfold::internals::tune::cost::{self, Costs};
use ringfold::internals::tune::{CostTerms, is_two_levels};
use ringfold::{Collective, Error, Method};
use serde_json::{Value, json};

use crate::numbers::plural;
use crate::output;
use crate::parse::{parse_algorithm, parse_bytes, parse_collective};
use crate::status::usage;

/// Maximum number of ranks: the proof keeps every chunk of every rank in memory.
const MAX_RANKS: u32 = 1024;

/// The slices with which `--check` runs a schedule, and the rounds between their starts.
const OVERLAPPED: [Slices; 2] = [
    Slices {
        count: 1,
        distance: 1,
    },
    Slices {
        count: 3,
        distance: 1,
    },
];

/// Show an algorithm's steps and predicted cost, and prove it correct
///
/// Without --algorithm, compares all algorithms that serve the collective. `in`, `out` and `tmp`
/// are the input, the output and scratch memory; `[2]` is chunk 2, and `[2..4]` are chunks 2 and 3.
/// Costs are closed forms (see docs/explanation/algorithms.md). Over `messages`, every rank has its
/// own host and its own link to a 100 Gbit/s network with TCP's latency. Over `shared`, all ranks
/// share one host, which copies at 10 GB/s on one core and at 40 GB/s on all cores. So do not
/// compare times over `messages` with times over `shared`. Use the costs to compare algorithms, not
/// to replace measurements.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ScheduleArguments {
    /// all_reduce, broadcast, reduce, all_gather, reduce_scatter, gather, scatter, all_to_all,
    /// sendrecv, barrier, send or recv
    #[arg(value_parser = parse_collective)]
    collective: Collective,

    /// The algorithm [default: all that serve the collective]
    #[arg(short = 'A', long, value_name = "NAME", value_parser = parse_algorithm)]
    algorithm: Option<Method>,

    /// Number of ranks
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS as i64),
    )]
    ranks: u32,

    /// List the steps of this rank only
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,

    /// Number of hosts of equal size, or the ranks of each host in rank order, such as 3,1: for
    /// `hierarchical`, `multi_leader` and `leader` over messages
    #[arg(long, value_name = "HOSTS", default_value = "1")]
    hosts: String,

    /// Root rank; the peer for send and recv, the late rank for stragglar
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,

    /// Medium: messages, or published memory between ranks of one host [default: messages, or the
    /// medium that the algorithm is made for]
    #[arg(long, value_name = "NAME", value_parser = ["messages", "shared"])]
    medium: Option<String>,

    /// Size of the call, as nccl-tests counts it
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = parse_bytes)]
    bytes: u64,

    /// Print costs and each rank's work as JSON
    #[arg(long, conflicts_with = "check")]
    json: bool,

    /// Only prove the schedules: in place and out of place, in one slice and in several overlapped
    /// slices
    #[arg(long)]
    check: bool,
}

const EXAMPLES: &str = "\
Examples:
  ringfold schedule all_reduce                                 compare the algorithms
  ringfold schedule all_reduce --algorithm ring --ranks 4      steps, bytes and cost
  ringfold schedule all_reduce --algorithm direct --medium shared --ranks 8 --rank 0
  ringfold schedule reduce_scatter --ranks 13 --check          prove all of them";

/// Prints the schedules, their comparison or the proofs, and returns the exit status.
pub fn run(arguments: ScheduleArguments) -> Result<u8> {
    let n = arguments.ranks;
    if arguments.root >= n || arguments.rank.is_some_and(|rank| rank >= n) {
        return Err(usage(anyhow!("ranks of {n} are 0 to {}", n - 1)));
    }
    let candidates = candidates(&arguments).map_err(usage)?;
    let text = if arguments.check {
        proofs(&arguments, &candidates)?
    } else if arguments.json {
        format!("{:#}\n", json(&arguments, &candidates)?)
    } else if arguments.algorithm.is_some() {
        listings(&arguments, &candidates)?
    } else {
        comparison(&arguments, &candidates)
    };
    output::print(&text)?;
    Ok(0)
}

/// Returns the requested schedules that exist.
fn candidates(arguments: &ScheduleArguments) -> Result<Vec<Spec>> {
    let collective = arguments.collective;
    let is_asked_medium = |access: &&Access| {
        let asked = arguments.medium.as_ref();
        asked.is_none_or(|name| *name == access.medium())
    };
    let hosts = hosts(&arguments.hosts, arguments.ranks)?;
    let spec = |method: Method, access: Access| Spec {
        hosts: hosts.clone(),
        rank: arguments.rank.unwrap_or(0),
        root: arguments.root,
        ..Spec::new(collective, method, access, arguments.ranks)
    };
    let served: Vec<Spec> = Access::ALL
        .iter()
        .filter(is_asked_medium)
        .flat_map(|&access| {
            let spec = &spec;
            Schedule::methods(collective, access).map(move |method| spec(method, access))
        })
        .collect();
    let Some(algorithm) = arguments.algorithm else {
        // On one host, two levels over messages are the same as one.
        let is_flat = |spec: &Spec| spec.access.is_shared() || !is_two_levels(spec.method());
        let compared = served.into_iter();
        return Ok(compared
            .filter(|spec| spec.hosts.count() > 1 || is_flat(spec))
            .collect());
    };
    let is_asked = |spec: &&Spec| spec.method() == algorithm;
    let mut chosen: Vec<Spec> = served.iter().filter(is_asked).cloned().collect();
    if chosen.is_empty() {
        let names: Vec<String> = served.iter().map(name).collect();
        bail!(
            "no schedule of {collective} by `{algorithm}`; there are {}",
            names.join(", ")
        );
    }
    if !arguments.check {
        chosen.truncate(1);
    }
    Ok(chosen)
}

/// Returns the hosts of `ranks` ranks, from the hosts' number or sizes.
fn hosts(text: &str, ranks: u32) -> Result<Groups> {
    let sizes = text.split(',').map(|size| size.trim().parse::<u32>());
    let sizes: Vec<u32> = sizes.collect::<Result<_, _>>().with_context(|| {
        format!("--hosts {text}: write the number of hosts, or the ranks of each")
    })?;
    let wrong = || format!("--hosts {text}: {ranks} ranks do not fit these hosts");
    if let [count] = sizes[..] {
        return Groups::equal(ranks, count).with_context(wrong);
    }
    let numbers = sizes.iter().enumerate();
    let of_ranks: Vec<usize> = numbers
        .flat_map(|(host, size)| iter::repeat_n(host, (*size).min(MAX_RANKS) as usize))
        .collect();
    let is_filled = of_ranks.len() == ranks as usize && !sizes.contains(&0);
    anyhow::ensure!(is_filled, wrong());
    Ok(Groups::new(&of_ranks))
}

/// Returns the name of a schedule: `ring over messages`.
fn name(spec: &Spec) -> String {
    format!("{} over {}", spec.method(), spec.access.medium())
}

fn listings(arguments: &ScheduleArguments, candidates: &[Spec]) -> Result<String> {
    let mut text = String::new();
    for spec in candidates {
        let listing = Listing::new(spec, arguments.bytes, arguments.rank)?;
        let _ = writeln!(text, "{listing}");
        text += &cost(spec, arguments.bytes).unwrap_or_default();
    }
    Ok(text)
}

/// Describes the α-β-γ cost, if there is a closed form.
fn cost(spec: &Spec, size: u64) -> Option<String> {
    let CostTerms { hops, busiest, .. } = CostTerms::of(spec)?;
    let time = predict(spec, size)?;
    Some(format!(
        "cost: {hops:.0} α + {:.4} S β + {:.4} S γ ({:.0} messages or publications in all); S = \
         {size} bytes should take {time:.1} us\n",
        busiest.bytes, busiest.reduced, busiest.messages,
    ))
}

fn predict(spec: &Spec, size: u64) -> Option<f64> {
    cost::predict(spec, size, &Costs::default())
}

/// Header of the comparison: the two machines, whose times are not comparable.
const MACHINES: &str = "\
# time over messages: each rank on a host of its own, 5 us and 100 Gbit/s for each
# time over shared: all ranks on one host, 10 GB/s for each core and 40 GB/s for all ranks together
# push, serve, over shared: only for buffers that all ranks have registered
";

/// Returns a table of all algorithms.
fn comparison(arguments: &ScheduleArguments, candidates: &[Spec]) -> String {
    let mut text = format!(
        "# {}, {} ranks, S = {} bytes: what each rank needs\n\
         {MACHINES}# {:<20}  {:<8}  {:>6}  {:>8}  {:>9}  {:>9}  {:>10}\n",
        arguments.collective,
        arguments.ranks,
        arguments.bytes,
        "algorithm",
        "medium",
        "α",
        "messages",
        "β (S)",
        "γ (S)",
        "time (us)",
    );
    for spec in candidates {
        let (method, medium) = (spec.method().name(), spec.access.medium());
        let _ = write!(text, "  {method:<20}  {medium:<8}");
        match CostTerms::of(spec).zip(predict(spec, arguments.bytes)) {
            Some((CostTerms { hops, busiest, .. }, time)) => {
                let _ = writeln!(
                    text,
                    "  {:>6.0}  {:>8.0}  {:>9.4}  {:>9.4}  {time:>10.1}",
                    hops, busiest.messages, busiest.bytes, busiest.reduced,
                );
            }
            None => text += "  does not support this number of ranks\n",
        }
    }
    text
}

fn json(arguments: &ScheduleArguments, candidates: &[Spec]) -> Result<Value> {
    let (collective, n) = (arguments.collective, arguments.ranks);
    let mut entries = Vec::new();
    for spec in candidates {
        let proof = match check::check(spec, false) {
            Ok(proof) => proof,
            Err(Error::Unsupported(_)) if arguments.algorithm.is_none() => continue,
            Err(error) => return Err(error.into()),
        };
        entries.push(json!({
            "algorithm": spec.method().name(),
            "medium": spec.access.medium(),
            "rounds": proof.rounds,
            "cost": CostTerms::of(spec).map(|terms| json!({
                "hops": terms.hops,
                "messages": terms.busiest.messages,
                "bytes": terms.busiest.bytes,
                "reduced": terms.busiest.reduced,
                "time_us": predict(spec, arguments.bytes),
            })),
            "ranks": proof.ranks.iter().map(|work| json!({
                "steps": work.steps,
                "messages_sent": work.messages_sent,
                "messages_received": work.messages_received,
                "chunks_sent": work.chunks_sent,
                "chunks_received": work.chunks_received,
                "chunks_reduced": work.chunks_reduced,
                "chunks_copied": work.chunks_copied,
                "chunks_published": work.chunks_published,
                "chunks_fetched": work.chunks_fetched,
            })).collect::<Vec<_>>(),
        }));
    }
    Ok(json!({
        "collective": collective.name(),
        "world_size": n,
        "root": arguments.root,
        "bytes": arguments.bytes,
        "schedules": entries,
    }))
}

fn proofs(arguments: &ScheduleArguments, candidates: &[Spec]) -> Result<String> {
    let mut text = String::new();
    for spec in candidates {
        let name = name(spec);
        let schedules = match check::schedules(spec) {
            Ok(schedules) => schedules,
            // Without `--algorithm`, algorithms that do not support this many ranks are skipped.
            Err(Error::Unsupported(why)) if arguments.algorithm.is_none() => {
                let _ = writeln!(text, "{name}: not offered: {why}");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let mut rounds = 0;
        for slices in OVERLAPPED {
            // Some schedules are valid only for a buffer in one slice.
            if slices.count > 1 && schedules[0].needs_one_slice {
                continue;
            }
            for in_place in [false, true] {
                let proof = check::check_sliced(&schedules, in_place, slices)
                    .with_context(|| format!("{name} is wrong"))?;
                rounds = proof.rounds;
            }
        }
        let collective = arguments.collective;
        let ranks = arguments.ranks;
        let _ = writeln!(
            text,
            "{collective} by {name}, {ranks} ranks: proved, {}",
            plural(rounds as usize, "round"),
        );
    }
    Ok(text)
}
