//! All about one simulation, on standard output.

use std::fmt::Write as _;

use ringfold::Collective;
use ringfold::internals::simulate::{
    Delay, Disturbance, LinkEnds, Links, Network, PathKind, Policy, Ports, Report, Sending, Server,
    Signals, Slow, Timers,
};

use super::outcome::Summary;
use super::units::{micros_shown, plural, rate_text, time_text};
use crate::numbers::{bytes_label, significant};

/// The maximum number of lines of a list that are shown; the JSON has all.
const MAX_LINES: usize = 16;

/// All about one simulation.
pub fn details(summary: &Summary, report: Option<&Report>) -> String {
    let mut text = format!("# ringfold sim version {}\n", env!("CARGO_PKG_VERSION"));
    text += &about(summary);
    let _ = writeln!(
        text,
        "#\n  time      {:>16} us",
        micros_shown(summary.finished_ps)
    );
    // A rate of what did not arrive would mean nothing.
    if summary.failed_ranks == 0 {
        let _ = writeln!(
            text,
            "  algbw     {:>16} GB/s",
            significant(summary.algbw_gbps())
        );
        let _ = writeln!(
            text,
            "  busbw     {:>16} GB/s",
            significant(summary.busbw_gbps())
        );
    }
    let _ = writeln!(
        text,
        "  messages  {:>16}\n  sent      {:>16} B",
        summary.messages, summary.sent_bytes
    );
    let _ = summary
        .events
        .iter()
        .try_for_each(|events| writeln!(text, "  events    {events:>16}"));
    if summary.results_ps != summary.finished_ps {
        let _ = writeln!(
            text,
            "  reduced   {:>16} us (the last rank's last reduction)",
            micros_shown(summary.results_ps)
        );
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
        let _ = writeln!(
            text,
            "# switch {}: {}, {}",
            switch.name,
            rate_text(switch.ps_per_byte),
            plural(switch.ranks.len(), "rank")
        );
    }
    text
}

fn links_text(links: &Links) -> String {
    let mut text = format!(
        "{} and {}",
        time_text(links.alpha_ps),
        rate_text(links.ps_per_byte)
    );
    for (name, ps) in [("o", links.overhead_ps), ("g", links.gap_ps)] {
        if ps > 0 {
            let _ = write!(text, ", {name} {}", time_text(ps));
        }
    }
    text
}

/// How ranks go around slow ones, in words.
fn policy_text(policy: &Policy) -> String {
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
        } => format!(
            "after {alpha} times {} and {}",
            time_text(reduce_ps),
            time_text(transfer_ps)
        ),
        Timers::Running { alpha, floor_ps } => {
            format!(
                "after {alpha} times the usual, at least {}",
                time_text(floor_ps)
            )
        }
    };
    format!(
        "around slow ranks: {} {signals}, {usual}",
        policy.target.name()
    )
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
            format!(
                "rank {rank} is frozen from {} to {}",
                time_text(*from_ps),
                time_text(*until_ps)
            )
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

/// What the end waited for, by kind.
fn critical_path(report: &Report) -> String {
    let kinds = [
        PathKind::Start,
        PathKind::Overhead,
        PathKind::Port,
        PathKind::Transmit,
        PathKind::Wire,
        PathKind::Wait,
        PathKind::Queue,
        PathKind::Reduce,
        PathKind::Slow,
        PathKind::Copy,
    ];
    let mut text = "#\n# critical path: what the end waited for\n\
        #   kind       parts          time (us)       %\n"
        .to_owned();
    for kind in kinds {
        let parts = || report.critical_path.iter().filter(|part| part.kind == kind);
        let ps: u64 = parts().map(|part| part.end_ps - part.begin_ps).sum();
        if ps > 0 {
            let _ = writeln!(
                text,
                "    {:<9} {:>6}  {:>17}  {:>6.2}",
                kind.name(),
                parts().count(),
                micros_shown(ps),
                percent(ps, report.finished_ps),
            );
        }
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
        (us)  messages             sent (B)\n"
        .to_owned();
    for &rank in order.iter().take(MAX_LINES) {
        let part = &report.ranks[rank];
        let _ = writeln!(
            text,
            "    {rank:>4}  {:>17}  {:>6.2}  {:>17}  {:>17}  {:>17}  {:>8}  {:>19}",
            micros_shown(blame(rank)),
            percent(blame(rank), report.finished_ps),
            micros_shown(part.finished_ps),
            micros_shown(part.reduce_ps),
            micros_shown(part.waited_ps),
            part.sent_messages,
            part.sent_bytes,
        );
    }
    text + &more(order.len(), "ranks")
}

/// The traffic, the busiest link first.
fn links(report: &Report) -> String {
    let mut order: Vec<_> = report.links.iter().collect();
    order.sort_by_key(|link| (std::cmp::Reverse(link.busy_ps), link.from, link.to));
    let mut text = "#\n# links, by how long they were busy\n\
        #   from    to  messages             bytes          busy (us)       %\n"
        .to_owned();
    for link in order.iter().take(MAX_LINES) {
        let _ = writeln!(
            text,
            "    {:>4}  {:>4}  {:>8}  {:>16}  {:>17}  {:>6.2}",
            link.from,
            link.to,
            link.messages,
            link.bytes,
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
    let failed = report
        .ranks
        .iter()
        .filter(|rank| rank.outcome.is_err())
        .count();
    let calls = match failed {
        0 => "all calls returned Ok".to_owned(),
        count => format!("{} failed", plural(count, "call")),
    };
    let promises = match report.promises.len() {
        0 => "all promises were kept".to_owned(),
        count => format!("BROKEN: {}", plural(count, "promise")),
    };
    let mut text = format!("#\n# {calls}, {promises}\n");
    let errors = || {
        let ranks = report.ranks.iter().enumerate();
        ranks.filter_map(|(rank, part)| Some((rank, part.outcome.as_ref().err()?)))
    };
    for (rank, error) in errors().take(MAX_LINES) {
        let _ = writeln!(text, "#   rank {rank}: {error}");
    }
    text += &more(errors().count(), "errors");
    for promise in &report.promises {
        let rank = promise
            .rank
            .map_or(String::new(), |rank| format!(" on rank {rank}"));
        let _ = writeln!(
            text,
            "#   {:?}{rank} at {} us: {}",
            promise.promise,
            micros_shown(promise.at_ps),
            promise.what
        );
    }
    text
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    100.0 * part as f64 / whole as f64
}
