//! Determines which way wins in which range of sizes.
//!
//! Ways are compared size by size, as ratios to the best way there: a mean of times over a range
//! would reflect only its largest size, and a mean of rates no size. A way that was not measured at
//! every size of a range cannot win in it. Everything here is a pure function of the rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::Result;
use indicatif::HumanCount;

use super::ranges::{self, Range};
use super::rows::{Asked, Metric, Row, Topic, Way};
use super::series::{Point, Series, series_by};

/// A line of the output, and its way's value.
#[derive(Clone, Debug)]
pub struct Rule {
    pub topic: Topic,
    pub range: Range,
    pub way: Way,
    pub value: f64,
}

impl Rule {
    /// Returns the rule as a tuner reads it.
    pub fn line(&self) -> String {
        let (topic, range, way) = (&self.topic, self.range, &self.way);
        format!(
            "{},{},{},{},{},{},{},{},{},{}",
            topic.collective,
            range.min,
            range.max,
            way.algorithm,
            way.protocol,
            way.channels,
            topic.nodes,
            topic.ranks,
            topic.group,
            topic.registered,
        )
    }
}

/// The requested kind of rules.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The same ranges for all calls, instead of one around each size.
    pub ranges: Option<Vec<Range>>,
    /// Accepted loss of a way that saves a rule, relative to the best way.
    pub tolerance_percent: f64,
    /// The calls and sizes at which the default is wrong, if only these get rules.
    pub wrong: Option<BTreeSet<(Topic, u64)>>,
}

/// The values of each way, by call.
pub struct Points {
    metric: Metric,
    /// A series for each call that rules distinguish, in the order of the file.
    calls: Vec<Series>,
}

/// Number of rows of each size.
type Counts = BTreeMap<u64, usize>;

impl Points {
    /// Collects the points of all rows but the default's.
    pub fn new(rows: &[&Row], metric: Metric) -> Result<Points> {
        let ways = rows.iter().filter(|row| row.asked != Asked::Default);
        let as_way = |row: &&Row| Row {
            asked: Asked::Way,
            details: BTreeMap::new(),
            ..(*row).clone()
        };
        let rows: Vec<Row> = ways.map(as_way).collect();
        let calls = series_by(&rows, &[], |row| Some((row.metric(metric)?, None)))?;
        Ok(Points { metric, calls })
    }

    /// Describes the ranges; collectives that were measured at the same sizes share their lines.
    pub fn dimensions(&self) -> String {
        let mut text = String::new();
        let mut seen = BTreeSet::new();
        let all = self.calls.iter().map(|call| &call.topic);
        let all = all.map(|topic| (topic.nodes, topic.ranks));
        for (nodes, ranks) in all.filter(|dimension| seen.insert(*dimension)) {
            let mut groups: Vec<(Vec<&str>, Counts)> = Vec::new();
            for (collective, sizes) in self.counts(nodes, ranks) {
                let mut known = groups.iter_mut();
                match known.find(|(_, counts)| counts.keys().eq(sizes.keys())) {
                    Some((names, counts)) => {
                        names.push(collective);
                        for (count, more) in counts.values_mut().zip(sizes.values()) {
                            *count += more;
                        }
                    }
                    None => groups.push((vec![collective], sizes)),
                }
            }
            for (names, counts) in &groups {
                let whose = match groups.len() {
                    1 => String::new(),
                    _ => format!(", {}", names.join(", ")),
                };
                let n = counts.len();
                let _ = writeln!(
                    text,
                    "Dimension {nodes} nodes, {ranks} ranks{whose}: {n} size ranges from {n} \
                     unique sizes:"
                );
                let sizes: Vec<u64> = counts.keys().copied().collect();
                let ranges = ranges::around(&sizes).into_iter().zip(counts);
                for (number, (range, (size, count))) in (1..).zip(ranges) {
                    let _ = writeln!(
                        text,
                        "  Range {number}: {} - {} bytes ({count} data points, sizes: {})",
                        HumanCount(range.min),
                        HumanCount(range.max),
                        HumanCount(*size),
                    );
                }
            }
        }
        text
    }

    /// Counts the rows with this many nodes and ranks, by collective and size.
    fn counts(&self, nodes: i64, ranks: i64) -> BTreeMap<&str, Counts> {
        let mut counts: BTreeMap<&str, Counts> = BTreeMap::new();
        for Series { topic, points, .. } in &self.calls {
            if (topic.nodes, topic.ranks) == (nodes, ranks) {
                let sizes = counts.entry(&topic.collective).or_default();
                for (&bytes, point) in points {
                    let rows = point.ways.iter().map(|(_, shots)| shots.0.len());
                    *sizes.entry(bytes).or_default() += rows.sum::<usize>();
                }
            }
        }
        counts
    }

    /// Returns a rule for every range with measurements or, if that is the policy, with a wrong
    /// default.
    pub fn rules(&self, policy: &Policy) -> Vec<Rule> {
        let mut rules = Vec::new();
        let mut calls: Vec<&Series> = self.calls.iter().collect();
        calls.sort_by_key(|call| &call.topic);
        for Series { topic, points, .. } in calls {
            let counts = self.counts(topic.nodes, topic.ranks);
            let measured: Vec<u64> = counts[&*topic.collective].keys().copied().collect();
            let ranges = match &policy.ranges {
                Some(ranges) => with_strangers(ranges, &measured),
                None => ranges::around(&measured),
            };
            let is_wrong = |range: &Range| {
                let mut inside = points.range(range.min..=range.max);
                let wrong = policy.wrong.as_ref();
                wrong.is_none_or(|wrong| {
                    inside.any(|(&bytes, _)| wrong.contains(&(topic.clone(), bytes)))
                })
            };
            let mut contests: Vec<Contest> = ranges
                .into_iter()
                .filter(is_wrong)
                .filter_map(|range| self.contest(points, range))
                .collect();
            if policy.ranges.is_none() && policy.wrong.is_some() {
                end_what_one_size_says(&mut contests, points);
            }
            rules.extend(winners(topic, &contests, policy.tolerance_percent));
        }
        rules
    }

    /// Compares the ways of a range.
    fn contest(&self, points: &BTreeMap<u64, Point>, range: Range) -> Option<Contest> {
        let metric = self.metric;
        let better = |a: f64, b: f64| if metric.is_better(b, a) { b } else { a };
        let mut entrants: Vec<Entrant> = Vec::new();
        for (_, Point { ways, .. }) in points.range(range.min..=range.max) {
            let values = ways.iter().map(|(way, shots)| (way, shots.median_us()));
            let best = values.clone().map(|(_, value)| value).reduce(better)?;
            for (way, value) in values {
                let log_loss = (metric.cost(value) / metric.cost(best)).ln();
                match entrants.iter_mut().find(|entrant| entrant.way == *way) {
                    Some(entrant) => {
                        entrant.value = better(entrant.value, value);
                        entrant.log_losses += log_loss;
                        entrant.sizes += 1;
                    }
                    None => entrants.push(Entrant {
                        way: way.clone(),
                        value,
                        log_losses: log_loss,
                        sizes: 1,
                    }),
                }
            }
        }
        let most = entrants.iter().map(|entrant| entrant.sizes).max()?;
        // A way that was not measured at every size cannot be judged for the range.
        entrants.retain(|entrant| entrant.sizes == most);
        entrants.sort_by(|one, other| one.loss().total_cmp(&other.loss()));
        Some(Contest { range, entrants })
    }
}

/// The comparison of the ways of one range.
struct Contest {
    range: Range,
    /// The ways, at least one, the best first.
    entrants: Vec<Entrant>,
}

/// One way in one range.
struct Entrant {
    way: Way,
    /// The way's best value, to be shown.
    value: f64,
    /// Logarithms of the way's costs relative to the best way's, summed over its sizes.
    log_losses: f64,
    sizes: usize,
}

impl Entrant {
    fn loss(&self) -> f64 {
        (self.log_losses / self.sizes as f64).exp()
    }
}

impl Contest {
    fn best(&self) -> &Entrant {
        &self.entrants[0]
    }

    fn find(&self, way: &Way, tolerance_percent: f64) -> Option<&Entrant> {
        let limit = self.best().loss() * (1.0 + tolerance_percent / 100.0);
        let mut entrants = self.entrants.iter();
        entrants.find(|entrant| entrant.way == *way && entrant.loss() <= limit)
    }
}

/// Ends the last range at the last size, unless the same way is the best at the size before it,
/// too: a single size is no evidence for all larger ones.
fn end_what_one_size_says(contests: &mut [Contest], points: &BTreeMap<u64, Point>) {
    let [rest @ .., last] = contests else { return };
    let is_same =
        |before: &Contest| before.range.meets(last.range) && before.best().way == last.best().way;
    if last.range.max == u64::MAX && !rest.last().is_some_and(is_same) {
        last.range.max = points.keys().next_back().copied().unwrap_or(u64::MAX);
    }
}

/// Returns the way for each range: the best or, with a tolerance, the way that stays good for the
/// most consecutive ranges.
fn winners(topic: &Topic, contests: &[Contest], tolerance_percent: f64) -> Vec<Rule> {
    let mut rules = Vec::with_capacity(contests.len());
    let mut at = 0;
    while at < contests.len() {
        let run = |way: &Way| -> Vec<&Entrant> {
            let rest = contests[at..].iter();
            rest.map_while(|contest| contest.find(way, tolerance_percent))
                .collect()
        };
        let mut chosen = vec![contests[at].best()];
        if tolerance_percent > 0.0 {
            let badness = |run: &[&Entrant]| run.iter().map(|entrant| entrant.loss()).sum::<f64>();
            for entrant in &contests[at].entrants {
                let other = run(&entrant.way);
                let is_longer = other.len() > chosen.len();
                if is_longer || other.len() == chosen.len() && badness(&other) < badness(&chosen) {
                    chosen = other;
                }
            }
        }
        for (contest, entrant) in contests[at..].iter().zip(&chosen) {
            rules.push(Rule {
                topic: topic.clone(),
                range: contest.range,
                way: entrant.way.clone(),
                value: entrant.value,
            });
        }
        at += chosen.len();
    }
    rules
}

/// Returns the ranges, and one for each size outside all of them.
fn with_strangers(ranges: &[Range], sizes: &[u64]) -> Vec<Range> {
    let is_outside = |size: &&u64| !ranges.iter().any(|range| range.holds(**size));
    let strangers = sizes.iter().filter(is_outside);
    let mut all = ranges.to_vec();
    all.extend(strangers.map(|&size| Range::new(size, size)));
    all.sort_unstable();
    all
}

/// Merges neighbouring rules of one call that have the same way.
pub fn merge(rules: &[Rule], metric: Metric) -> Vec<Rule> {
    let mut merged: Vec<Rule> = Vec::new();
    for rule in rules {
        let says_the_same = |last: &&mut Rule| {
            last.topic == rule.topic && last.way == rule.way && last.range.meets(rule.range)
        };
        match merged.last_mut().filter(says_the_same) {
            Some(last) => {
                last.range.max = rule.range.max;
                if metric.is_better(rule.value, last.value) {
                    last.value = rule.value;
                }
            }
            None => merged.push(rule.clone()),
        }
    }
    merged
}
