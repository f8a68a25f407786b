//! Which way wins in which range of sizes.
//!
//! Ways are compared size by size, as ratios to the best there: a mean over a range of sizes would
//! be that of its largest size, or with a rate of none. A way that was not measured at every size
//! of a range cannot win in it. Everything here is a pure function of the rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::ranges::{self, Range};
use super::rows::{Asked, Metric, Row, Topic, Way};
use crate::statistics::median;

/// A line of the output, and how good its way was.
#[derive(Clone, Debug)]
pub struct Rule {
    pub topic: Topic,
    pub range: Range,
    pub way: Way,
    pub value: f64,
}

impl Rule {
    /// The rule as a tuner reads it.
    pub fn line(&self) -> String {
        let Rule {
            topic, range, way, ..
        } = self;
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

/// What rules are wanted.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The same ranges for everything, instead of one around each size.
    pub ranges: Option<Vec<Range>>,
    /// How much worse than the best a way may be that saves a rule.
    pub tolerance_percent: f64,
    /// The calls and sizes at which the default is wrong, if only these shall have rules.
    pub wrong: Option<BTreeSet<(Topic, u64)>>,
}

/// What each way took, repeats made one.
pub struct Points {
    metric: Metric,
    /// By topic and size the ways in the order of the file, each with its value.
    ways: BTreeMap<Topic, BTreeMap<u64, Vec<(Way, f64)>>>,
    /// By nodes and ranks, collective and size, how many rows there are.
    counts: BTreeMap<(i64, i64), BTreeMap<String, BTreeMap<u64, usize>>>,
    /// Nodes and ranks in the order of the file.
    dimensions: Vec<(i64, i64)>,
}

impl Points {
    pub fn new(rows: &[&Row], metric: Metric) -> Points {
        type Repeats = BTreeMap<Topic, BTreeMap<u64, Vec<(Way, Vec<f64>)>>>;
        let mut repeats = Repeats::new();
        let mut points = Points {
            metric,
            ways: BTreeMap::new(),
            counts: BTreeMap::new(),
            dimensions: Vec::new(),
        };
        for row in rows {
            let Some(value) = row.metric(metric) else {
                continue;
            };
            let topic = row.topic.clone();
            if row.asked == Asked::Default {
                continue;
            }
            let dimension = (topic.nodes, topic.ranks);
            if !points.dimensions.contains(&dimension) {
                points.dimensions.push(dimension);
            }
            let sizes = points
                .counts
                .entry(dimension)
                .or_default()
                .entry(topic.collective.clone());
            *sizes.or_default().entry(row.bytes).or_default() += 1;
            let ways = repeats.entry(topic).or_default().entry(row.bytes);
            let ways = ways.or_default();
            match ways.iter_mut().find(|(way, _)| *way == row.way) {
                Some((_, values)) => values.push(value),
                None => ways.push((row.way.clone(), vec![value])),
            }
        }
        let one = |values: Vec<f64>| median(&values);
        for (topic, sizes) in repeats {
            let made_one = |ways: Vec<(Way, Vec<f64>)>| {
                let ways = ways.into_iter();
                ways.map(|(way, values)| (way, one(values))).collect()
            };
            let sizes = sizes.into_iter();
            let sizes = sizes.map(|(bytes, ways)| (bytes, made_one(ways)));
            points.ways.insert(topic, sizes.collect());
        }
        points
    }

    /// Prints the ranges; collectives that were measured at the same sizes share their lines.
    pub fn dimensions(&self) -> String {
        let mut text = String::new();
        for (nodes, ranks) in &self.dimensions {
            let collectives = &self.counts[&(*nodes, *ranks)];
            let mut groups: Vec<(Vec<&String>, BTreeMap<u64, usize>)> = Vec::new();
            for (collective, sizes) in collectives {
                match groups
                    .iter_mut()
                    .find(|(_, counts)| counts.keys().eq(sizes.keys()))
                {
                    Some((names, counts)) => {
                        names.push(collective);
                        for (count, more) in counts.values_mut().zip(sizes.values()) {
                            *count += more;
                        }
                    }
                    None => groups.push((vec![collective], sizes.clone())),
                }
            }
            for (names, counts) in &groups {
                let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
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
                for (index, range) in ranges::around(&sizes).into_iter().enumerate() {
                    let _ = writeln!(
                        text,
                        "  Range {}: {} - {} bytes ({} data points, sizes: {})",
                        index + 1,
                        thousands(range.min),
                        thousands(range.max),
                        counts[&sizes[index]],
                        thousands(sizes[index]),
                    );
                }
            }
        }
        text
    }

    /// The sizes at which a collective was measured with this many nodes and ranks.
    fn sizes(&self, topic: &Topic) -> BTreeSet<u64> {
        let sizes = self
            .counts
            .get(&(topic.nodes, topic.ranks))
            .and_then(|collectives| collectives.get(&topic.collective));
        sizes.into_iter().flatten().map(|(&size, _)| size).collect()
    }

    /// A rule for every range in which something was measured or, if that is the policy, the
    /// default is wrong.
    pub fn rules(&self, policy: &Policy) -> Vec<Rule> {
        let mut rules = Vec::new();
        for (topic, sizes) in &self.ways {
            let measured = self.sizes(topic);
            let ranges = match &policy.ranges {
                Some(ranges) => with_strangers(ranges, &measured),
                None => ranges::around(&Vec::from_iter(measured)),
            };
            let is_wrong = |range: Range| {
                let mut inside = sizes.range(range.min..=range.max);
                let wrong = policy.wrong.as_ref();
                wrong.is_none_or(|wrong| {
                    inside.any(|(&bytes, _)| wrong.contains(&(topic.clone(), bytes)))
                })
            };
            let mut contests: Vec<Contest> = ranges
                .into_iter()
                .filter(|range| is_wrong(*range))
                .filter_map(|range| self.contest(sizes, range))
                .collect();
            if policy.ranges.is_none() && policy.wrong.is_some() {
                end_what_one_size_says(&mut contests, sizes);
            }
            rules.extend(winners(topic, &contests, policy.tolerance_percent));
        }
        rules
    }

    /// How the ways of a range compare.
    fn contest(&self, sizes: &BTreeMap<u64, Vec<(Way, f64)>>, range: Range) -> Option<Contest> {
        let metric = self.metric;
        let better = |a: f64, b: f64| if metric.is_better(b, a) { b } else { a };
        let mut entrants: Vec<Entrant> = Vec::new();
        for ways in sizes.range(range.min..=range.max).map(|(_, ways)| ways) {
            let best = ways.iter().map(|(_, value)| *value).reduce(better)?;
            for (way, value) in ways {
                let log_loss = metric.loss(*value, best).ln();
                match entrants.iter_mut().find(|entrant| entrant.way == *way) {
                    Some(entrant) => {
                        entrant.value = better(entrant.value, *value);
                        entrant.log_losses += log_loss;
                        entrant.sizes += 1;
                    }
                    None => entrants.push(Entrant {
                        way: way.clone(),
                        value: *value,
                        log_losses: log_loss,
                        sizes: 1,
                    }),
                }
            }
        }
        let most = entrants.iter().map(|entrant| entrant.sizes).max()?;
        // What was not measured at every size cannot be said to be good there.
        entrants.retain(|entrant| entrant.sizes == most);
        Some(Contest { range, entrants })
    }
}

/// The ways of one range.
struct Contest {
    range: Range,
    entrants: Vec<Entrant>,
}

/// One way in one range.
struct Entrant {
    way: Way,
    /// Its best value, to be shown.
    value: f64,
    /// How much worse than the best it is, as logarithms, summed over its sizes.
    log_losses: f64,
    sizes: usize,
}

impl Entrant {
    fn loss(&self) -> f64 {
        (self.log_losses / self.sizes as f64).exp()
    }
}

impl Contest {
    /// The first of the best.
    fn best(&self) -> &Entrant {
        let mut best = &self.entrants[0];
        for entrant in &self.entrants {
            if entrant.loss() < best.loss() {
                best = entrant;
            }
        }
        best
    }

    fn find(&self, way: &Way, tolerance_percent: f64) -> Option<&Entrant> {
        let limit = self.best().loss() * (1.0 + tolerance_percent / 100.0);
        let entrants = self.entrants.iter();
        entrants
            .filter(|entrant| entrant.loss() <= limit)
            .find(|entrant| entrant.way == *way)
    }
}

/// Ends the last range at the last size, unless the same way is the best at the size before it,
/// too: one size alone does not say what holds for all that are larger.
fn end_what_one_size_says(contests: &mut [Contest], sizes: &BTreeMap<u64, Vec<(Way, f64)>>) {
    let [rest @ .., last] = contests else { return };
    let is_same =
        |before: &Contest| before.range.meets(last.range) && before.best().way == last.best().way;
    if last.range.max == u64::MAX && !rest.last().is_some_and(is_same) {
        last.range.max = sizes.keys().next_back().copied().unwrap_or(u64::MAX);
    }
}

/// The way of each range: the best, or with a tolerance the one that stays good for the most
/// consecutive ranges.
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

/// The ranges, and one for each size that is in none.
fn with_strangers(ranges: &[Range], sizes: &BTreeSet<u64>) -> Vec<Range> {
    let is_outside = |size: &&u64| !ranges.iter().any(|range| range.holds(**size));
    let strangers = sizes.iter().filter(is_outside);
    let mut all = ranges.to_vec();
    all.extend(strangers.map(|&size| Range::new(size, size)));
    all.sort_unstable();
    all
}

/// Makes one of neighbouring rules that say the same.
pub fn merge(rules: &[Rule], metric: Metric) -> Vec<Rule> {
    let mut merged: Vec<Rule> = Vec::new();
    for rule in rules {
        match merged.last_mut() {
            Some(last)
                if last.topic == rule.topic
                    && last.way == rule.way
                    && last.range.meets(rule.range) =>
            {
                last.range.max = rule.range.max;
                if metric.is_better(rule.value, last.value) {
                    last.value = rule.value;
                }
            }
            _ => merged.push(rule.clone()),
        }
    }
    merged
}

/// `1,048,576`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
