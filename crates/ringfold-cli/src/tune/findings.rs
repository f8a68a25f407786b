//! Finds the faults of a curve of bus bandwidth over size.
//!
//! A well-tuned curve is an S: it rises as long as latency matters and stays at the top. Suspicious
//! are a fall ([`FindingKind::Dip`]), a standstill below a top that is reached later
//! ([`FindingKind::Plateau`]), and a larger call that takes less time than a smaller one
//! ([`FindingKind::Inversion`]). If other ways were measured, the choice is certainly wrong at
//! sizes at which one of them is better ([`FindingKind::WrongChoice`]). A dip or a plateau at which
//! no way is better is a property of the machine, such as the end of a cache, and is only noted.
//!
//! Differences that chance explains are not reported: the whole interval of the difference has to
//! exceed the margin. `tune optimize` uses the same judgement ([`wrong_sizes`]), so both agree
//! about the same file.

use std::collections::BTreeSet;

use serde::Serialize;

use super::rows::{Topic, Way};
use super::series::{Series, Shots};
use crate::statistics::Estimate;

/// Default margin, in per cent: smaller differences are ignored.
pub const MARGIN_PERCENT: f64 = 5.0;

/// Factor by which a curve has to rise after a standstill for it to be a plateau and not the top.
const LATER_RISE: f64 = 1.1;

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingKind {
    Dip,
    Plateau,
    Inversion,
    #[serde(rename = "wrong choice")]
    WrongChoice,
}

impl FindingKind {
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::Dip => "dip",
            FindingKind::Plateau => "plateau",
            FindingKind::Inversion => "inversion",
            FindingKind::WrongChoice => "wrong choice",
        }
    }
}

/// A way that would have been better at a size, and its gain.
#[derive(Clone, Debug, Serialize)]
pub struct Better {
    pub bytes: u64,
    pub pick: Option<Way>,
    pub way: Way,
    pub way_us: f64,
    pub curve_us: f64,
    /// The curve's time over the way's.
    pub factor: Estimate,
}

/// A suspicious part of a curve.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub kind: FindingKind,
    /// The first size of the finding; `to_bytes` is the last.
    pub from_bytes: u64,
    pub to_bytes: u64,
    /// The size of comparison: the top before a dip, the larger call of an inversion, the beginning
    /// of a plateau.
    pub against_bytes: Option<u64>,
    /// The curve's bandwidth at the worst of the sizes over that at `against_bytes`; of an
    /// inversion or a wrong choice, a ratio of times.
    pub ratio: Estimate,
    /// The better ways at these sizes.
    pub better: Vec<Better>,
    /// Whether another way may be better: one is, or a size has no measurement of other ways.
    pub is_fault: bool,
}

impl Finding {
    /// Creates a finding at one size.
    fn new(kind: FindingKind, bytes: u64, against: Option<u64>, ratio: Estimate) -> Finding {
        Finding {
            kind,
            from_bytes: bytes,
            to_bytes: bytes,
            against_bytes: against,
            ratio,
            better: Vec::new(),
            is_fault: true,
        }
    }

    /// Adds this finding to those before it: to the last one if this one continues it, with the
    /// worse ratio of the two (of a plateau, the first).
    fn add_to(self, found: &mut Vec<Finding>, continues: impl FnOnce(&Finding) -> bool) {
        let Some(last) = found.last_mut().filter(|last| continues(last)) else {
            return found.push(self);
        };
        let is_worse = match self.kind {
            FindingKind::Dip => self.ratio.middle < last.ratio.middle,
            FindingKind::Plateau => false,
            FindingKind::Inversion | FindingKind::WrongChoice => {
                self.ratio.middle > last.ratio.middle
            }
        };
        if is_worse {
            last.ratio = self.ratio;
        }
        last.to_bytes = self.to_bytes;
        last.better.extend(self.better);
    }
}

/// Returns all findings about the series, in the order of sizes. `margin` is the relative
/// difference to ignore.
pub fn findings(series: &Series, margin: f64) -> Vec<Finding> {
    let curve = TimeCurve::new(series);
    let mut found = dips(&curve, margin);
    found.extend(plateaus(&curve, margin, &found));
    found.extend(inversions(&curve, margin));
    for finding in &mut found {
        judge(finding, series, margin);
    }
    found.extend(wrong_choices(series, margin));
    found.sort_by_key(|finding| finding.from_bytes);
    found
}

/// Returns the calls and sizes at which the default's pick is a wrong choice, so that a rule is
/// worth its while.
pub fn wrong_sizes(all: &[Series], margin: f64) -> BTreeSet<(Topic, u64)> {
    let sizes = |series| Series::measured(series).map(move |(bytes, _)| (series, bytes));
    let measured = all.iter().flat_map(sizes);
    let wrong = measured.filter(|(series, bytes)| better(series, *bytes, margin).is_some());
    wrong
        .map(|(series, bytes)| (series.topic.clone(), bytes))
        .collect()
}

/// The sizes and times of a curve, without empty calls.
struct TimeCurve {
    sizes: Vec<u64>,
    times_us: Vec<Estimate>,
}

impl TimeCurve {
    fn new(series: &Series) -> TimeCurve {
        // An empty call has a time, but no bandwidth.
        let points = series.curve().into_iter().filter(|(bytes, _)| *bytes > 0);
        let (sizes, times_us) = points.unzip();
        TimeCurve { sizes, times_us }
    }

    /// Returns bytes per microsecond; the bus factor is the same at all sizes.
    fn rate(&self, at: usize) -> Estimate {
        let time = self.times_us[at];
        let bytes = self.sizes[at] as f64;
        Estimate {
            low: bytes / time.high,
            middle: bytes / time.middle,
            high: bytes / time.low,
        }
    }
}

/// Finds runs of sizes at which the curve is surely below an earlier top.
fn dips(curve: &TimeCurve, margin: f64) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let mut top = 0;
    for at in 1..curve.sizes.len() {
        let ratio = curve.rate(at).over(curve.rate(top));
        if ratio.high < 1.0 - margin {
            let (before, against) = (curve.sizes[at - 1], Some(curve.sizes[top]));
            Finding::new(FindingKind::Dip, curve.sizes[at], against, ratio)
                .add_to(&mut found, |last| last.to_bytes == before);
        } else if curve.rate(at).middle > curve.rate(top).middle {
            top = at;
        }
    }
    found
}

/// Finds doublings over which the curve does not rise, though it rises later.
fn plateaus(curve: &TimeCurve, margin: f64, dips: &[Finding]) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let in_dip = |bytes: u64| {
        dips.iter()
            .any(|dip| (dip.from_bytes..=dip.to_bytes).contains(&bytes))
    };
    for at in 0..curve.sizes.len() {
        let double = curve.sizes[at].saturating_mul(2);
        let Some(next) = curve.sizes.iter().position(|&bytes| bytes >= double) else {
            break;
        };
        let here = curve.rate(at);
        let ratio = curve.rate(next).over(here);
        let is_still = ratio.middle < 1.0 + margin;
        let rises = (next + 1..curve.sizes.len())
            .any(|later| curve.rate(later).low > LATER_RISE * here.high);
        let (from, to) = (curve.sizes[at], curve.sizes[next]);
        if is_still && rises && !in_dip(from) && !in_dip(to) {
            let plateau = Finding::new(FindingKind::Plateau, from, Some(from), ratio);
            Finding {
                to_bytes: to,
                ..plateau
            }
            .add_to(&mut found, |last| last.to_bytes >= from);
        }
    }
    found
}

/// Finds sizes that surely take longer than a larger one.
fn inversions(curve: &TimeCurve, margin: f64) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for at in 0..curve.sizes.len() {
        let later = at + 1..curve.sizes.len();
        let over = |other: usize| curve.times_us[at].over(curve.times_us[other]);
        let Some(quickest) = later.max_by(|&a, &b| over(a).middle.total_cmp(&over(b).middle))
        else {
            break;
        };
        let ratio = over(quickest);
        if ratio.low > 1.0 + margin {
            let against = Some(curve.sizes[quickest]);
            Finding::new(FindingKind::Inversion, curve.sizes[at], against, ratio).add_to(
                &mut found,
                |last| {
                    at > 0 && last.to_bytes == curve.sizes[at - 1] && last.against_bytes == against
                },
            );
        }
    }
    found
}

/// Adds the better ways at the finding's sizes, and decides whether the finding is a fault.
fn judge(finding: &mut Finding, series: &Series, margin: f64) {
    let sizes = finding.from_bytes..=finding.to_bytes;
    let inside = series.measured().filter(|(at, _)| sizes.contains(at));
    let are_known = inside.clone().all(|(_, point)| !point.ways.is_empty());
    let found = inside.filter_map(|(bytes, _)| better(series, bytes, margin));
    finding.better.extend(found);
    finding.is_fault = !are_known || !finding.better.is_empty();
}

/// Finds the sizes at which another way is surely better; merges neighbours with the same two ways.
fn wrong_choices(series: &Series, margin: f64) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let mut previous = None;
    for (bytes, _) in series.measured() {
        let before = previous.replace(bytes);
        let Some(better) = better(series, bytes, margin) else {
            continue;
        };
        let wrong = Finding {
            better: vec![better.clone()],
            ..Finding::new(FindingKind::WrongChoice, bytes, None, better.factor)
        };
        wrong.add_to(&mut found, |last| {
            let first = &last.better[0];
            Some(last.to_bytes) == before && first.way == better.way && first.pick == better.pick
        });
    }
    found
}

/// Returns the best other way at this size, if it is surely better than the curve, and better than
/// the pick if the pick was also requested by name.
fn better(series: &Series, bytes: u64, margin: f64) -> Option<Better> {
    let point = series.points.get(&bytes)?;
    let (way, shots): &(Way, Shots) = point.best_other()?;
    let asked = point.pick_asked_for();
    if asked.is_some_and(|pick| pick.median_us() <= shots.median_us()) {
        return None;
    }
    let factor = point.curve.over(shots);
    (factor.low > 1.0 + margin).then(|| Better {
        bytes,
        pick: point.pick.clone(),
        way: way.clone(),
        way_us: shots.median_us(),
        curve_us: point.curve.median_us(),
        factor,
    })
}
