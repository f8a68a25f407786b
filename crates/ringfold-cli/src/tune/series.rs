//! Measured curves: at each size the times of the default choice, and of every way.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

use super::rows::{ANY, Asked, PLACEMENT, Row, Topic, Way};
use crate::bench::Size;
use crate::parse::parse_collective;
use crate::statistics::{self, Estimate};

/// One measurement of one way.
#[derive(Clone, Copy, Debug)]
pub struct Shot {
    pub round: Option<i64>,
    pub time_us: f64,
    /// Confidence interval of the median, if the file has it.
    pub interval_us: Option<(f64, f64)>,
}

/// All measurements of one way at one size.
#[derive(Clone, Debug, Default)]
pub struct Shots(pub Vec<Shot>);

/// The measurements at one size.
#[derive(Clone, Debug, Default)]
pub struct Point {
    /// The curve's measurements; empty if only ways were measured.
    pub curve: Shots,
    /// The way by which the curve's calls were carried out.
    pub pick: Option<Way>,
    /// The requested ways, in the order of the file.
    pub ways: Vec<(Way, Shots)>,
}

/// A time and, if the file has it, its interval.
type Time = (f64, Option<(f64, f64)>);

/// A curve, and the ways beside it.
#[derive(Clone, Debug)]
pub struct Series {
    pub topic: Topic,
    pub details: BTreeMap<&'static str, String>,
    pub points: BTreeMap<u64, Point>,
}

impl Shots {
    pub fn median_us(&self) -> f64 {
        self.estimate().middle
    }

    /// Returns the median and its interval: by repetitions if there are enough, otherwise the
    /// widest interval of any of them.
    pub fn estimate(&self) -> Estimate {
        let times: Vec<f64> = self.0.iter().map(|shot| shot.time_us).collect();
        let estimate = Estimate::of(&times);
        if statistics::are_enough(times.len()) {
            return estimate;
        }
        let intervals = || self.0.iter().filter_map(|shot| shot.interval_us);
        Estimate {
            low: intervals().map(|i| i.0).fold(estimate.low, f64::min),
            high: intervals().map(|i| i.1).fold(estimate.high, f64::max),
            ..estimate
        }
    }

    /// Returns the ratio of these times to those of `other`: by pairs of the same round, measured
    /// under the same conditions, if there are enough.
    pub fn over(&self, other: &Shots) -> Estimate {
        let pairs: Vec<f64> = self
            .0
            .iter()
            .filter_map(|shot| {
                let round = shot.round?;
                let partner = other.0.iter().find(|other| other.round == Some(round))?;
                Some(shot.time_us / partner.time_us)
            })
            .collect();
        match statistics::are_enough(pairs.len()) {
            true => Estimate::of(&pairs),
            false => self.estimate().over(other.estimate()),
        }
    }
}

impl Point {
    /// Returns the way with the least time, except the pick.
    pub fn best_other(&self) -> Option<&(Way, Shots)> {
        let is_other = |way: &Way| !self.pick.as_ref().is_some_and(|pick| pick.is_same(way));
        let others = self.ways.iter().filter(|(way, _)| is_other(way));
        others.min_by(|a, b| a.1.median_us().total_cmp(&b.1.median_us()))
    }

    /// Returns the pick's times as a requested way, if it was also requested.
    pub fn pick_asked_for(&self) -> Option<&Shots> {
        let pick = self.pick.as_ref()?;
        let mut ways = self.ways.iter();
        ways.find(|(way, _)| pick.is_same(way))
            .map(|(_, shots)| shots)
    }
}

impl Series {
    /// Describes the calls of the series.
    pub fn name(&self) -> String {
        let topic = &self.topic;
        let mut text = format!("{}, {} ranks", topic.collective, topic.ranks);
        if topic.nodes > 1 {
            text += &format!(" on {} hosts", topic.nodes);
        }
        let placement = self.details.get(PLACEMENT);
        if let Some(placement) = placement.filter(|placement| *placement != "even") {
            text += &format!(" ({placement})");
        }
        if topic.registered == 1 {
            text += ", registered memory";
        }
        for name in ["dtype", "op"] {
            if let Some(value) = self.details.get(name).filter(|value| *value != "none") {
                text += &format!(", {value}");
            }
        }
        if self.details.get("in_place").is_some_and(|v| v == "true") {
            text += ", in place";
        }
        text
    }

    /// Returns the bus bandwidth in 10^9 bytes per second.
    pub fn busbw_gbps(&self, bytes: u64, time_us: f64) -> f64 {
        let ranks = usize::try_from(self.topic.ranks).unwrap_or(0);
        let collective = parse_collective(&self.topic.collective);
        let factor = collective.map_or(1.0, |collective| Size::bus_factor(collective, ranks));
        bytes as f64 / time_us / 1e3 * factor
    }

    /// Returns the sizes at which the curve was measured.
    pub fn measured(&self) -> impl Iterator<Item = (u64, &Point)> + Clone {
        let points = self.points.iter().map(|(&bytes, point)| (bytes, point));
        points.filter(|(_, point)| !point.curve.0.is_empty())
    }

    /// Returns the sizes and times of the curve.
    pub fn curve(&self) -> Vec<(u64, Estimate)> {
        let points = self.measured();
        points
            .map(|(bytes, point)| (bytes, point.curve.estimate()))
            .collect()
    }

    /// Returns every requested way.
    pub fn ways(&self) -> BTreeSet<&Way> {
        let ways = self.points.values().flat_map(|point| &point.ways);
        ways.map(|(way, _)| way).collect()
    }

    /// Whether a row of another file is about the same calls; properties missing in either do not
    /// count.
    fn is_about(&self, row: &Row) -> bool {
        let agree = |a: i64, b: i64| a == b || a == ANY || b == ANY;
        let is_same = |a: &str, b: &str| match (parse_collective(a), parse_collective(b)) {
            (Ok(a), Ok(b)) => a == b,
            _ => a == b,
        };
        let (own, other) = (&self.topic, &row.topic);
        is_same(&own.collective, &other.collective)
            && own.ranks == other.ranks
            && agree(own.nodes, other.nodes)
            && agree(own.group, other.group)
            && agree(own.registered, other.registered)
            && self.details.iter().all(|(name, value)| {
                let said = row.details.get(name);
                said.is_none_or(|said| said == value)
            })
    }
}

/// Returns the curves of a file: of its default's rows if the file identifies them, otherwise of
/// all its rows. `others` are rows of further ways from other files.
pub fn series(rows: &[Row], others: &[Row]) -> Result<Vec<Series>> {
    series_by(rows, others, |row| Some((row.time_us()?, row.interval_us)))
}

/// Like `series`, but with another quantity in place of times, of which less is better.
pub fn series_by(
    rows: &[Row],
    others: &[Row],
    time: impl Fn(&Row) -> Option<Time>,
) -> Result<Vec<Series>> {
    let shot = |row: &Row| {
        let (time_us, interval_us) = time(row)?;
        Some(Shot {
            round: row.round,
            time_us,
            interval_us,
        })
    };
    let mut all: Vec<Series> = Vec::new();
    for row in rows {
        let is_of = |series: &Series| series.topic == row.topic && series.details == row.details;
        let index = all.iter().position(is_of).unwrap_or_else(|| {
            all.push(Series {
                topic: row.topic.clone(),
                details: row.details.clone(),
                points: BTreeMap::new(),
            });
            all.len() - 1
        });
        let point = all[index].points.entry(row.bytes).or_default();
        let Some(shot) = shot(row) else { continue };
        match row.asked {
            Asked::Way => add_way(point, row, shot),
            Asked::Default | Asked::Unsaid => {
                if row.asked == Asked::Unsaid
                    && point.pick.as_ref().is_some_and(|pick| *pick != row.way)
                {
                    bail!(
                        "{} bytes were measured by {} and by {}, and the file does not mark the \
                         curve; pass one file for the curve, and the others by --ways",
                        row.bytes,
                        point.pick.as_ref().map_or("", |pick| &pick.algorithm),
                        row.way.algorithm,
                    );
                }
                point.curve.0.push(shot);
                point.pick.get_or_insert_with(|| row.way.clone());
            }
        }
    }
    for row in others {
        let Some(shot) = shot(row) else { continue };
        for series in all.iter_mut().filter(|series| series.is_about(row)) {
            if let Some(point) = series.points.get_mut(&row.bytes) {
                // Rounds of another run do not pair with these.
                let round = None;
                add_way(point, row, Shot { round, ..shot });
            }
        }
    }
    Ok(all)
}

fn add_way(point: &mut Point, row: &Row, shot: Shot) {
    match point.ways.iter_mut().find(|(way, _)| *way == row.way) {
        Some((_, shots)) => shots.0.push(shot),
        None => point.ways.push((row.way.clone(), Shots(vec![shot]))),
    }
}
