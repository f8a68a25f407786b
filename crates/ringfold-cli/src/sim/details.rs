//! All about one simulation, on standard output.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ringfold::Collective;
use ringfold::internals::simulate::{
    Delay, Devices, Disturbance, LateMergePolicy, LinkEnds, Links, Network, PathKind, Ports,
    Report, Sending, Server, Signals, Slow, Timers,
};

use super::outcome::Summary;
use super::units::{micros_shown, rate_text, time_text};
use crate::numbers::{bytes_label, plural, significant};

/// The maximum number of lines of a list that are shown; the JSON has all.
const MAX_LINES: usize = 16;

/// All about one simulation.
pub fn details(summary: &Summary, report: Option<&Report>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("# ringfold sim version {version}\n");
    text += &about(summary);
    text += "#\n";
    let mut line = |name: &str, value: String, unit: &str| {
        let _ = writeln!(text, "  {name:<8}  {value:>16}{unit}");
    };
    line("time", micros_shown(summary.finished_ps), " us");
    // Data that did not arrive has no rate.
    if summary.failed_ranks == 0 {
        line("algbw", significant(summary.algbw_gbps()), " GB/s");
        line("busbw", significant(summary.busbw_gbps()), " GB/s");
    }
    if let (Some(limit_ps), Some(of_limit)) = (summary.limit_ps, summary.of_limit()) {
        let unit = " us (the same copies, without waiting for anything)";
        line("limit", micros_shown(limit_ps), unit);
        line("of limit", significant(100.0 * of_limit), " %");
    }
    line("messages", summary.messages.to_string(), "");
    let sent = bytes_label(summary.sent_bytes as f64);
    let (value, unit) = sent.split_once(' ').unwrap_or((&sent, ""));
    line("sent", value.to_owned(), &format!(" {unit}"));
    if let Some(events) = summary.events {
        line("events", events.to_string(), "");
    }
    if summary.results_ps != summary.finished_ps {
        let unit = " us (the last rank's last reduction)";
        line("reduced", micros_shown(summary.results_ps), unit);
    }
    let Some(report) = report else {
        return text + SWEPT;
    };
    text += &critical_path(report);
    text += &ranks(report);
    text += &links(report);
    text + &verdict(report)
}

/// The note for results without the engine.
pub const SWEPT: &str = "\
#
# By the longest path through the schedule, because nothing contends: the engine's time, without
# links, critical path and promises. `--method engine` has these.
";

/// What was simulated, as comments.
fn about(summary: &Summary) -> String {
    let scenario = &summary.scenario;
    let slice = match scenario.slice_bytes {
        Some(bytes) if bytes < scenario.bytes => {
            format!("slices of {}", bytes_label(bytes as f64))
        }
        _ => "one slice".to_owned(),
    };
    let size = match scenario.collective {
        Collective::Barrier => String::new(),
        _ => format!(
            ", {} of {}, {slice}",
            bytes_label(scenario.bytes as f64),
            scenario.dtype
        ),
    };
    let mut text = format!(
        "# {} by {} over messages, {}{size}, seed {}\n",
        scenario.collective,
        summary.algorithm(),
        plural(scenario.ranks, "rank"),
        scenario.seed,
    );
    text += &network_text(&scenario.network);
    if let Some(devices) = &scenario.devices {
        text += &devices_text(devices, scenario.ranks);
    }
    let compute = &scenario.compute;
    let _ = writeln!(
        text,
        "# reductions: {} and {}, {}",
        time_text(compute.reduce_ps),
        rate_text(compute.reduce_ps_per_byte),
        match compute.server {
            Server::Parallel => "side by side",
            Server::Serial => "one after the other",
        },
    );
    if let Some(policy) = &scenario.straggler {
        let _ = writeln!(text, "# {}", policy_text(policy));
    }
    for disturbance in scenario.disturbances.iter().take(MAX_LINES) {
        let _ = writeln!(text, "# {}", trouble(disturbance));
    }
    text + &more(scenario.disturbances.len(), "disturbances")
}

/// Links, hosts and switches.
fn network_text(network: &Network) -> String {
    let ports = match network.ports {
        Ports::Full => "full duplex",
        Ports::Half => "half duplex",
        Ports::Unlimited => "ports without limit",
    };
    let sending = match network.sending {
        Sending::Eager => "eager",
        Sending::Rendezvous => "rendezvous",
    };
    let links = links_text(&network.links);
    let mut text = format!("# links: {links}, {ports}, {sending}\n");
    if network.ranks_per_host > 1 {
        let local = network.local.as_ref().map(links_text);
        let memory = network.memory_ps_per_byte.map(rate_text);
        let cores = network.cores_per_host.map(|cores| plural(cores, "core"));
        let parts = [
            Some(format!("{} each", plural(network.ranks_per_host, "rank"))),
            local.map(|links| format!("{links} within")),
            memory.map(|rate| format!("memory {rate}")),
            cores,
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let _ = writeln!(text, "# hosts: {}", parts.join(", "));
    }
    for switch in &network.switches {
        let (name, rate) = (&switch.name, rate_text(switch.ps_per_byte));
        let ranks = plural(switch.ranks.len(), "rank");
        let _ = writeln!(text, "# switch {name}: {rate}, {ranks}");
    }
    text
}

/// The devices that the data is on.
fn devices_text(devices: &Devices, ranks: usize) -> String {
    let (out, into) = (devices.out_ps_per_byte, devices.in_ps_per_byte);
    let rates = match out == into {
        true => format!("{} each way", rate_text(out)),
        false => format!("{} out and {} in", rate_text(out), rate_text(into)),
    };
    let count = devices.device(ranks - 1) + 1;
    format!(
        "# devices: {count}, {rates}, {} of it both ways at once; a copy {}, {} \
         of it on the link, a chain {} more, a signal {}, a driver call {}; {} of {}\n",
        significant(devices.duplex),
        time_text(devices.copy_ps),
        time_text(devices.gap_ps),
        time_text(devices.chain_ps),
        time_text(devices.signal_ps),
        time_text(devices.enqueue_ps),
        plural(devices.depth as usize, "slot"),
        bytes_label(devices.slot_bytes as f64),
    )
}

fn links_text(links: &Links) -> String {
    let (latency, rate) = (time_text(links.alpha_ps), rate_text(links.ps_per_byte));
    let mut text = format!("{latency} and {rate}");
    for (name, ps) in [("o", links.overhead_ps), ("g", links.gap_ps)] {
        if ps > 0 {
            let _ = write!(text, ", {name} {}", time_text(ps));
        }
    }
    if let Some(grants) = &links.grants {
        let _ = write!(text, ", grants in {}", time_text(grants.grant_ps));
    }
    text
}

/// How ranks go around slow ones, in words.
fn policy_text(policy: &LateMergePolicy) -> String {
    let signals = match policy.signals {
        Signals { silent: true, .. } => "silently",
        Signals {
            late: true,
            skip: true,
            ..
        } => "by LATE and SKIP",
        Signals { late: true, .. } => "by LATE",
        Signals { .. } => "by SKIP",
    };
    let usual = match policy.timers {
        Timers::Fixed {
            alpha,
            reduce_ps,
            transfer_ps,
        } => {
            let (reduction, transfer) = (time_text(reduce_ps), time_text(transfer_ps));
            format!("after {alpha} times {reduction} and {transfer}")
        }
        Timers::Running { alpha, floor_ps } => {
            let floor = time_text(floor_ps);
            format!("after {alpha} times the usual, at least {floor}")
        }
    };
    let target = policy.target.name();
    format!("around slow ranks: {target} {signals}, {usual}")
}

/// What goes wrong, in words.
fn trouble(disturbance: &Disturbance) -> String {
    match disturbance {
        Disturbance::Slow(slow) => slow_text(slow),
        Disturbance::Late { rank, delay_ps } => {
            format!("rank {rank} begins {} late", time_text(*delay_ps))
        }
        Disturbance::Stall {
            rank,
            from_ps,
            until_ps,
        } => {
            let (from, until) = (time_text(*from_ps), time_text(*until_ps));
            format!("rank {rank} is frozen from {from} to {until}")
        }
        Disturbance::SlowLink { ends, factor } => match ends {
            LinkEnds::Port(rank) => format!("the port of rank {rank} is {factor} times as slow"),
            LinkEnds::Pair(from, to) => {
                format!("the way from rank {from} to {to} is {factor} times as slow")
            }
        },
        Disturbance::Dead { rank, at_ps } => format!("rank {rank} dies at {}", time_text(*at_ps)),
    }
}

fn slow_text(slow: &Slow) -> String {
    let rank = slow
        .rank
        .map_or("every rank".to_owned(), |rank| format!("rank {rank}"));
    let step = slow.step.map_or("every reduction".to_owned(), |step| {
        format!("reduction {step}")
    });
    let delay = match slow.delay {
        Delay::Fixed(ps) => time_text(ps),
        Delay::Exponential { mean_ps } => {
            format!("{} on average (exponential)", time_text(mean_ps))
        }
        Delay::Uniform { from_ps, to_ps } => {
            format!("{} to {}", time_text(from_ps), time_text(to_ps))
        }
    };
    let often = match slow.probability {
        1.0 => String::new(),
        p => format!(" with probability {p}"),
    };
    format!("{step} of {rank} takes {delay} longer{often}")
}

/// The critical path, by kind.
fn critical_path(report: &Report) -> String {
    let mut kinds: BTreeMap<PathKind, (usize, u64)> = BTreeMap::new();
    for part in &report.critical_path {
        let (parts, ps) = kinds.entry(part.kind).or_default();
        *parts += 1;
        *ps += part.end_ps - part.begin_ps;
    }
    let mut text = "#\n# critical path\n\
        #   kind       parts          time (us)       %\n"
        .to_owned();
    for (kind, (parts, ps)) in kinds.into_iter().filter(|(_, (_, ps))| *ps > 0) {
        let _ = writeln!(
            text,
            "    {:<9} {parts:>6}  {:>17}  {:>6.2}",
            kind.name(),
            micros_shown(ps),
            percent(ps, report.finished_ps),
        );
    }
    text
}

/// Every rank's part, the one that is most to blame first.
fn ranks(report: &Report) -> String {
    let mut order: Vec<usize> = (0..report.ranks.len()).collect();
    let blame = |rank: usize| report.blame_ps.get(rank).copied().unwrap_or(0);
    order.sort_by_key(|&rank| (std::cmp::Reverse(blame(rank)), rank));
    let mut text = "#\n# ranks, by how much of the critical path was spent on them\n\
        #   rank         blame (us)       %      finished (us)       reduced (us)        waited \
        (us)  messages        sent\n"
        .to_owned();
    for &rank in order.iter().take(MAX_LINES) {
        let part = &report.ranks[rank];
        let _ = writeln!(
            text,
            "    {rank:>4}  {:>17}  {:>6.2}  {:>17}  {:>17}  {:>17}  {:>8}  {:>10}",
            micros_shown(blame(rank)),
            percent(blame(rank), report.finished_ps),
            micros_shown(part.finished_ps),
            micros_shown(part.reduce_ps),
            micros_shown(part.waited_ps),
            part.sent_messages,
            bytes_label(part.sent_bytes as f64),
        );
    }
    text + &more(order.len(), "ranks")
}

/// The traffic, the busiest link first.
fn links(report: &Report) -> String {
    let mut order: Vec<_> = report.links.iter().collect();
    order.sort_by_key(|link| (std::cmp::Reverse(link.busy_ps), link.from, link.to));
    let mut text = "#\n# links, by how long they were busy\n\
        #   from    to  messages       bytes          busy (us)       %\n"
        .to_owned();
    for link in order.iter().take(MAX_LINES) {
        let _ = writeln!(
            text,
            "    {:>4}  {:>4}  {:>8}  {:>10}  {:>17}  {:>6.2}",
            link.from,
            link.to,
            link.messages,
            bytes_label(link.bytes as f64),
            micros_shown(link.busy_ps),
            percent(link.busy_ps, report.finished_ps),
        );
    }
    text + &more(order.len(), "links")
}

fn more(count: usize, what: &str) -> String {
    match count.saturating_sub(MAX_LINES) {
        0 => String::new(),
        rest => format!("#   and {rest} {what} more; `--json` has all\n"),
    }
}

/// Whether all went as promised.
fn verdict(report: &Report) -> String {
    let ranks = report.ranks.iter().enumerate();
    let errors = ranks.filter_map(|(rank, part)| Some((rank, part.outcome.as_ref().err()?)));
    let errors: Vec<_> = errors.collect();
    let calls = match errors.len() {
        0 => "all calls returned Ok".to_owned(),
        count => format!("{} failed", plural(count, "call")),
    };
    let promises = match report.promises.len() {
        0 => "all guarantees held".to_owned(),
        count => format!("BROKEN: {}", plural(count, "guarantee")),
    };
    let mut text = format!("#\n# {calls}, {promises}\n");
    for (rank, error) in errors.iter().take(MAX_LINES) {
        let _ = writeln!(text, "#   rank {rank}: {error}");
    }
    text += &more(errors.len(), "errors");
    for promise in &report.promises {
        let rank = promise.rank.map(|rank| format!(" on rank {rank}"));
        let (rank, at) = (rank.unwrap_or_default(), micros_shown(promise.at_ps));
        let (kind, what) = (promise.promise, &promise.what);
        let _ = writeln!(text, "#   {kind:?}{rank} at {at} us: {what}");
    }
    text
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}
