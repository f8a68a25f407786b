//! Charts of simulations: curves over the swept setting, and each rank's activity over time in one
//! simulation.

use anyhow::{Result, anyhow, bail};
use ringfold::internals::simulate::{Report, TimelineLane};

use super::outcome::Outcome;
use super::vary::Variation;
use crate::numbers::bytes_label;
use crate::plot::{Axis, Bar, Chart, Corner, Curve, Scale, Style, Timeline};
use crate::status::usage;

/// More ranks than this are no picture.
const MAX_RANKS: usize = 64;

/// More bars than this no viewer shows.
const MAX_BARS: usize = 50_000;

/// The lines of a rank, from above, and which lanes are on them. Those of devices are only drawn
/// where there are devices.
const LINES: [&[TimelineLane]; 5] = [
    &[TimelineLane::Bring],
    &[TimelineLane::Transmit],
    &[TimelineLane::Receive],
    &[
        TimelineLane::Reduce,
        TimelineLane::Slow,
        TimelineLane::Copy,
        TimelineLane::Overhead,
        TimelineLane::Stall,
    ],
    &[TimelineLane::Take],
];

/// The curves of a sweep: bus bandwidth over size, else time.
pub fn curves(sweep: &Variation, outcomes: &[Outcome]) -> Chart {
    let is_size = sweep.key == "bytes";
    let mut curves: Vec<Curve> = Vec::new();
    for outcome in outcomes {
        let Some(x) = outcome.value.as_ref().and_then(|value| value.number) else {
            continue;
        };
        let y = match is_size {
            true => outcome.summary.busbw_gbps(),
            false => outcome.summary.finished_ps as f64 / 1e6,
        };
        let label = match outcome.variant.as_str() {
            "" => outcome.summary.algorithm(),
            variant => variant.to_owned(),
        };
        // The tuner may choose anew at every value; that is one curve.
        let is_same = |curve: &Curve| outcome.variant.is_empty() || curve.label == label;
        match curves.iter_mut().find(|curve| is_same(curve)) {
            Some(curve) => {
                if curve.label != label {
                    curve.label = "the tuner's choice".into();
                }
                curve.points.push((x, y));
            }
            None => curves.push(Curve {
                label,
                style: Style::Filled,
                colour: curves.len(),
                points: vec![(x, y)],
            }),
        }
    }
    let scale = sweep.scale.unwrap_or(Scale::Linear);
    Chart {
        title: title(sweep, outcomes),
        x: Axis::new(&sweep.axis, scale),
        y: match (is_size, scale) {
            (true, _) => Axis::new("bus bandwidth (GB/s)", Scale::Logarithmic),
            (false, Scale::Linear) => Axis::new("time (µs)", Scale::Linear),
            (false, _) => Axis::new("time (µs)", Scale::Logarithmic),
        },
        legend: if is_size {
            Corner::LowerRight
        } else {
            Corner::UpperLeft
        },
        curves,
    }
}

/// What all simulations have in common.
fn title(sweep: &Variation, outcomes: &[Outcome]) -> String {
    let scenarios = || outcomes.iter().map(|outcome| &outcome.summary.scenario);
    let Some(first) = scenarios().next() else {
        return String::new();
    };
    let mut words = vec![first.collective.to_string()];
    if scenarios().all(|scenario| scenario.ranks == first.ranks) {
        words.push(format!("{} ranks", first.ranks));
    }
    if sweep.key != "bytes" && scenarios().all(|scenario| scenario.bytes == first.bytes) {
        words.push(bytes_label(first.bytes as f64));
    }
    words.push("simulated".into());
    words.join(", ")
}

/// Refuses more ranks than [`gantt`] draws.
pub fn check_gantt(ranks: usize) -> Result<()> {
    if ranks > MAX_RANKS {
        return Err(usage(anyhow!(
            "`--gantt` draws at most {MAX_RANKS} ranks, and there are {ranks}; `--trace` writes a \
             timeline that zooms"
        )));
    }
    Ok(())
}

/// What each rank does when; of ranks that [`check_gantt`] accepts.
pub fn gantt(report: &Report) -> Result<Timeline> {
    let scenario = &report.scenario;
    let is_drawn = |lanes: &&&[TimelineLane]| {
        let is_of_device = lanes
            .iter()
            .any(|lane| matches!(lane, TimelineLane::Bring | TimelineLane::Take));
        scenario.devices.is_some() || !is_of_device
    };
    let lines: Vec<&[TimelineLane]> = LINES.iter().filter(is_drawn).copied().collect();
    let mut kinds = lines.concat();
    kinds.retain(|lane| report.trace.iter().any(|event| event.lane == *lane));
    let mut bars = Vec::new();
    for event in &report.trace {
        let line = lines.iter().position(|lanes| lanes.contains(&event.lane));
        let kind = kinds.iter().position(|lane| *lane == event.lane);
        let (Some(line), Some(kind)) = (line, kind) else {
            continue;
        };
        bars.push(Bar {
            row: event.rank,
            line,
            kind,
            begin: event.begin_ps as f64 / 1e6,
            end: event.end_ps as f64 / 1e6,
        });
    }
    if bars.len() > MAX_BARS {
        bail!(
            "`--gantt` draws at most {MAX_BARS} bars, and there are {}; `--trace` writes a \
             timeline that zooms",
            bars.len()
        );
    }
    Ok(Timeline {
        title: format!(
            "{} by {}, {} ranks, {}: {:.3} µs",
            scenario.collective,
            scenario
                .algorithm
                .map_or(String::new(), |algorithm| algorithm.to_string()),
            scenario.ranks,
            bytes_label(scenario.bytes as f64),
            report.finished_ps as f64 / 1e6,
        ),
        rows: (0..scenario.ranks)
            .map(|rank| format!("rank {rank}"))
            .collect(),
        lines: lines.len(),
        kinds: kinds.iter().map(|lane| lane.name().to_owned()).collect(),
        bars,
    })
}
