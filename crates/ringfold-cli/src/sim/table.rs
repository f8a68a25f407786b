//! A line for each of many simulations, on standard output.

use std::fmt::Write as _;

use super::details::SWEPT;
use super::outcome::Outcome;
use super::units::micros_shown;
use super::vary::Variant;
use crate::numbers::{number, plural};
use crate::statistics::percentile;

/// The key whose values are draws of the same thing.
const SEED: &str = "seed";

/// The lines before the first row of many.
pub fn header(key: Option<&str>, variants: &[Variant]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let ratio = if variants.len() > 1 { "  to first" } else { "" };
    format!(
        "# ringfold sim version {version}\n\
         # {:>12}  {:<18}  {:<18}  {:>6}  {:>12}  {:>17}  {:>9}  {:>9}  {:>9}{ratio}\n\
         # {:>12}  {:<18}  {:<18}  {:>6}  {:>12}  {:>17}  {:>9}  {:>9}  {:>9}\n",
        key.unwrap_or(""),
        "",
        "algorithm",
        "ranks",
        "size",
        "time",
        "algbw",
        "busbw",
        "messages",
        "",
        "",
        "",
        "",
        "(B)",
        "(us)",
        "(GB/s)",
        "(GB/s)",
        "",
    )
}

/// One line; `first` is the first variant's at the same value.
pub fn row(outcome: &Outcome, first: &Outcome, is_compared: bool) -> String {
    let summary = &outcome.summary;
    let mut text = format!(
        "  {:>12}  {:<18}  {:<18}  {:>6}  {:>12}  {:>17}  {:>9}  {:>9}  {:>9}",
        outcome.value.as_ref().map_or("", |value| &value.label),
        outcome.variant,
        summary.algorithm(),
        summary.scenario.ranks,
        summary.scenario.bytes,
        micros_shown(summary.finished_ps),
        number(summary.algbw_gbps(), 9),
        number(summary.busbw_gbps(), 9),
        summary.messages,
    );
    if is_compared {
        let ratio = summary.finished_ps as f64 / first.summary.finished_ps.max(1) as f64;
        let _ = write!(text, "  {ratio:>8.4}");
    }
    if summary.events.is_none() {
        text += "  swept";
    }
    if !summary.is_clean() {
        let calls = plural(summary.failed_ranks, "call");
        let _ = write!(
            text,
            "  {calls} failed, {} broken",
            plural(summary.broken_promises, "promise")
        );
    }
    text.push('\n');
    text
}

/// What all draws of a seed come to, for each variant.
pub fn footer(key: Option<&str>, variants: &[Variant], outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    if outcomes
        .iter()
        .any(|outcome| outcome.summary.events.is_none())
    {
        text += SWEPT;
    }
    if key != Some(SEED) {
        return text;
    }
    let _ = write!(
        text,
        "#\n# {:<18}  {:>6}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}\n",
        "time over seeds",
        "draws",
        "mean (us)",
        "median (us)",
        "p99 (us)",
        "least (us)",
        "most (us)"
    );
    for variant in variants {
        let of_variant = outcomes
            .iter()
            .filter(|outcome| outcome.variant == variant.label);
        let times: Vec<f64> = of_variant
            .map(|outcome| outcome.summary.finished_ps as f64)
            .collect();
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let share = |percent: f64| percentile(&times, percent);
        let us = |ps: f64| format!("{:.3}", ps / 1e6);
        let _ = writeln!(
            text,
            "  {:<18}  {:>6}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}",
            variant.label,
            times.len(),
            us(mean),
            us(share(50.0)),
            us(share(99.0)),
            us(share(0.0)),
            us(share(100.0)),
        );
    }
    text
}
