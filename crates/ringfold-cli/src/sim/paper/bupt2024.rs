//! Zhang, Deng, Song, Xue, Guo & Huang, *Communication Optimization Technology of Distributed Machine Learning Network*,
//! Designing Techniques of Posts and Telecommunications, 2024(2): a reduce_scatter that walks around a slow rank.
//!
//! Four ranks in a ring, chunks of 8 KiB, links of 5 µs and 100 Gbit/s, reductions of T = 3 µs. One reduction, the first of
//! rank B, takes T + ΔT. When T + ΔT > αT, rank C sends what it has to D without waiting, B sends its sum to D as well, and
//! D reduces both at once. What this saves is told by two closed forms, and measured in two ways that the paper does not
//! keep apart: on the *path* of the one chunk that was late, until D has it, and for the *whole* reduce_scatter, which
//! cannot end before the other chunks have gone around.

mod figures;
mod text;

use std::path::Path;

use anyhow::{Context, Result};
use ringfold::simulate::{
    self, Compute, Delay, Disturbance, Network, Policy, Ports, Scenario, Server, Signals, Slow,
    Target, Timers,
};
use ringfold::{Algorithm, Collective};
use serde_json::json;

use super::super::arguments::Arguments;
use super::super::units::micros;
use crate::output;

/// T: what a reduction takes.
const REDUCE_PS: u64 = 3_000_000;

/// One rank's chunk.
const CHUNK_BYTES: u64 = 8192;

/// The ranks of the paper's ring: A, B, C and D.
const RANKS: u64 = 4;

/// The rank that is slow once, and which of its reductions is.
const SLOW_RANK: usize = 1;
const SLOW_STEP: u32 = 1;

/// The rank that owns the chunk that is late: D.
const OWNER: usize = 3;

/// α of the table, in tenths: the one that gives the 25.3 % (see docs/papers.md).
const ALPHA_TENTHS: u64 = 18;

/// ΔT of the table, in microseconds.
const DELAYS_US: [u64; 11] = [2, 3, 5, 6, 7, 8, 9, 10, 15, 20, 30];

/// The point at which the saving is 25.3 % of the path.
const BEST_DELAY_US: u64 = 8;

/// One setting, with what was simulated and what the closed forms say.
#[derive(Clone, Debug)]
struct Point {
    alpha_tenths: u64,
    delay_ps: u64,
    /// The ring's reduce_scatter.
    ring_ps: u64,
    /// Until D has the late chunk, by the paper's rule.
    path_ps: u64,
    /// The whole reduce_scatter by the paper's rule, reductions side by side.
    whole_ps: u64,
    /// The same where a rank reduces one thing after the other.
    serial_ps: u64,
}

impl Point {
    /// What the paper calls the effect: the share of the ring's time that is saved until D has the chunk.
    fn path_effect(&self) -> f64 {
        effect(self.ring_ps, self.path_ps)
    }

    fn whole_effect(&self) -> f64 {
        effect(self.ring_ps, self.whole_ps)
    }

    fn serial_effect(&self) -> f64 {
        effect(self.ring_ps, self.serial_ps)
    }
}

fn effect(ring_ps: u64, strategy_ps: u64) -> f64 {
    100.0 * (ring_ps as f64 - strategy_ps as f64) / ring_ps as f64
}

/// Ttrans: the latency and the time on the link.
fn transfer_ps() -> u64 {
    let links = Scenario::default().network.links;
    links.alpha_ps + CHUNK_BYTES * links.ps_per_byte
}

/// What the strategy saves on the late chunk's path: the paper's equations (1) and (2).
fn saving_ps(alpha_tenths: u64, delay_ps: u64) -> u64 {
    let patience_ps = alpha_tenths * REDUCE_PS / 10;
    if REDUCE_PS + delay_ps <= patience_ps {
        return 0;
    }
    if REDUCE_PS + delay_ps > patience_ps + transfer_ps() {
        return REDUCE_PS + transfer_ps();
    }
    // ΔT + (2 − α)T; ΔT is above (α − 1)T here.
    delay_ps + 2 * REDUCE_PS - patience_ps
}

/// The point by the closed forms.
fn closed_form(alpha_tenths: u64, delay_ps: u64) -> Point {
    let undisturbed_ps = (RANKS - 1) * (REDUCE_PS + transfer_ps());
    let ring_ps = undisturbed_ps + delay_ps;
    let saving_ps = saving_ps(alpha_tenths, delay_ps);
    // The slow rank's next chunk is late, too, where it reduces one thing after the other, and nobody walks around that.
    let serial_saving_ps = saving_ps.min(transfer_ps());
    Point {
        alpha_tenths,
        delay_ps,
        ring_ps,
        path_ps: ring_ps - saving_ps,
        whole_ps: (ring_ps - saving_ps).max(undisturbed_ps),
        serial_ps: match saving_ps {
            0 => ring_ps,
            _ => (ring_ps - serial_saving_ps).max(undisturbed_ps),
        },
    }
}

/// The paper's call with its slow reduction.
fn scenario(collective: Collective, delay_ps: u64, server: Server) -> Scenario {
    let slow = Slow {
        rank: Some(SLOW_RANK),
        step: Some(SLOW_STEP),
        delay: Delay::Fixed(delay_ps),
        probability: 1.0,
    };
    Scenario {
        collective,
        algorithm: Some(Algorithm::Ring),
        ranks: RANKS as usize,
        bytes: RANKS * CHUNK_BYTES,
        slice_bytes: Some(u64::MAX),
        // The paper does not speak of ports: two messages may come to D at once.
        network: Network {
            ports: Ports::Unlimited,
            ..Network::default()
        },
        compute: Compute {
            reduce_ps: REDUCE_PS,
            server,
            ..Compute::FREE
        },
        disturbances: vec![Disturbance::Slow(slow)],
        ..Scenario::default()
    }
}

/// The scenario with the paper's rule, in which nobody tells anybody anything.
fn with_rule(scenario: Scenario, alpha_tenths: u64) -> Scenario {
    let rule = Policy {
        target: Target::Next2,
        signals: Signals {
            late: false,
            skip: false,
            silent: true,
        },
        timers: Timers::Fixed {
            alpha: alpha_tenths as f64 / 10.0,
            reduce_ps: REDUCE_PS,
            transfer_ps: transfer_ps(),
        },
    };
    Scenario {
        straggler: Some(rule),
        ..scenario
    }
}

/// The point as it is simulated.
fn simulated(alpha_tenths: u64, delay_ps: u64) -> Result<Point> {
    let of = |server| scenario(Collective::ReduceScatter, delay_ps, server);
    let ring = simulate::run(&of(Server::Parallel))?;
    let by_rule = |server| simulate::run(&with_rule(of(server), alpha_tenths));
    let side_by_side = by_rule(Server::Parallel)?;
    let late = side_by_side
        .chunks
        .iter()
        .find(|chunk| chunk.owner == OWNER);
    Ok(Point {
        alpha_tenths,
        delay_ps,
        ring_ps: ring.results_ps,
        path_ps: late.context("the late chunk has no owner")?.complete_ps,
        whole_ps: side_by_side.results_ps,
        serial_ps: by_rule(Server::Serial)?.results_ps,
    })
}

/// The whole all_reduce at the point of the 25.3 %: the ring's time, and that by the paper's rule.
fn all_reduce() -> Result<(u64, u64)> {
    let delay_ps = BEST_DELAY_US * 1_000_000;
    let scenario = scenario(Collective::AllReduce, delay_ps, Server::Parallel);
    let ring = simulate::run(&scenario)?;
    let strategy = simulate::run(&with_rule(scenario, ALPHA_TENTHS))?;
    Ok((ring.finished_ps, strategy.finished_ps))
}

/// The figures' points, each simulated once.
struct Points {
    /// Figures 7 and 8, and the table: over ΔT, for several α.
    over_delay: Vec<Point>,
    /// Figure 9: over α, for several ΔT.
    over_alpha: Vec<Point>,
    /// Figure 10: over large ΔT.
    over_large_delay: Vec<Point>,
}

impl Points {
    fn simulate() -> Result<Points> {
        let all = |pairs: Vec<(u64, u64)>| -> Result<Vec<Point>> {
            pairs
                .into_iter()
                .map(|(alpha, delay)| simulated(alpha, delay))
                .collect()
        };
        let half_us = 500_000;
        let pairs = |alphas: &[u64],
                     delays: std::ops::RangeInclusive<u64>,
                     step_ps: u64|
         -> Vec<(u64, u64)> {
            let delays = || delays.clone().map(move |count| count * step_ps);
            alphas
                .iter()
                .flat_map(|&alpha| delays().map(move |delay| (alpha, delay)))
                .collect()
        };
        let mut over_delay = pairs(&figures::ALPHAS_TENTHS, 0..=24, half_us);
        over_delay.extend(DELAYS_US.map(|us| (ALPHA_TENTHS, us * 1_000_000)));
        over_delay.sort_unstable();
        over_delay.dedup();
        let over_alpha = figures::DELAYS_US
            .into_iter()
            .flat_map(|us| (11..=35).map(move |alpha| (alpha, us * 1_000_000)));
        Ok(Points {
            over_delay: all(over_delay)?,
            over_alpha: all(over_alpha.collect())?,
            over_large_delay: all(pairs(&figures::LARGE_ALPHAS_TENTHS, 5..=30, 4 * half_us))?,
        })
    }

    /// Every point with the number of the figure that it is in.
    fn all<'a>(&'a self) -> impl Iterator<Item = (&'static str, &'a Point)> {
        let named = |name, points: &'a [Point]| points.iter().map(move |point| (name, point));
        named("7, 8", &self.over_delay)
            .chain(named("9", &self.over_alpha))
            .chain(named("10", &self.over_large_delay))
    }

    /// The points of the table: one α, the ΔT that are listed.
    fn table(&self) -> impl Iterator<Item = &Point> {
        let is_listed = |ps: u64| DELAYS_US.map(|us| us * 1_000_000).contains(&ps);
        self.over_delay
            .iter()
            .filter(move |point| point.alpha_tenths == ALPHA_TENTHS && is_listed(point.delay_ps))
    }
}

/// Prints the table, what the figures show, and what to make of it.
pub fn run(arguments: &Arguments) -> Result<()> {
    let points = Points::simulate()?;
    let all_reduce = all_reduce()?;
    if let Some(path) = &arguments.csv {
        write_csv(path, &points)?;
    }
    if let Some(path) = &arguments.json {
        write_json(path, &points, all_reduce)?;
    }
    if !arguments.stdout_is_data() {
        super::super::print(&text::text(&points, all_reduce))?;
    }
    match &arguments.plot {
        Some(folder) => figures::draw(folder, &points),
        None => Ok(()),
    }
}

fn write_csv(path: &Path, points: &Points) -> Result<()> {
    let mut writer = csv::Writer::from_writer(output::open(path)?);
    let columns = [
        "figure",
        "alpha",
        "delay_us",
        "ring_us",
        "path_us",
        "path_effect_percent",
        "whole_us",
        "whole_effect_percent",
        "serial_us",
        "serial_effect_percent",
    ];
    writer.write_record(columns).map_err(std::io::Error::from)?;
    for (figure, point) in points.all() {
        let percent = |effect: f64| format!("{effect:.3}");
        let fields = [
            figure.to_owned(),
            format!("{:.1}", point.alpha_tenths as f64 / 10.0),
            micros(point.delay_ps),
            micros(point.ring_ps),
            micros(point.path_ps),
            percent(point.path_effect()),
            micros(point.whole_ps),
            percent(point.whole_effect()),
            micros(point.serial_ps),
            percent(point.serial_effect()),
        ];
        writer.write_record(fields).map_err(std::io::Error::from)?;
    }
    Ok(writer.flush()?)
}

fn write_json(path: &Path, points: &Points, (ring_ps, strategy_ps): (u64, u64)) -> Result<()> {
    let us = |ps: u64| ps as f64 / 1e6;
    let points = points.all().map(|(figure, point)| {
        json!({
            "figure": figure,
            "alpha": point.alpha_tenths as f64 / 10.0,
            "delay_us": us(point.delay_ps),
            "ring_us": us(point.ring_ps),
            "path_us": us(point.path_ps),
            "whole_us": us(point.whole_ps),
            "serial_us": us(point.serial_ps),
        })
    });
    let document = json!({
        "paper": "bupt2024",
        "reduce_us": us(REDUCE_PS),
        "transfer_us": us(transfer_ps()),
        "points": points.collect::<Vec<_>>(),
        "all_reduce": {"ring_us": us(ring_ps), "strategy_us": us(strategy_ps)},
    });
    super::write_json(path, &document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closed_forms_give_the_papers_equations() {
        let point = |alpha, us: u64| closed_form(alpha, us * 1_000_000);
        // Not triggered; C's message last (2); B's message last (1).
        assert_eq!(saving_ps(18, 2_000_000), 0);
        assert_eq!(saving_ps(18, 3_000_000), 3_600_000);
        assert_eq!(saving_ps(18, 30_000_000), 8_655_360);
        assert_eq!(point(18, 8).ring_ps, 33_966_080);
        assert_eq!(format!("{:.3}", point(18, 8).path_effect()), "25.319");
        assert_eq!(format!("{:.3}", point(18, 8).whole_effect()), "23.553");
        assert_eq!(format!("{:.3}", point(18, 8).serial_effect()), "16.650");
    }
}
