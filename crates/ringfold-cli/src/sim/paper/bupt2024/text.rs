//! What `--paper bupt2024` prints: the table, the effect over α, the 25.3 %, and the paper's contradictions.

use std::fmt::Write as _;

use super::{
    ALPHA_TENTHS, BEST_DELAY_US, Point, Points, RANKS, REDUCE_PS, closed_form, effect, figures,
    transfer_ps,
};
use crate::sim::units::{micros, time_text};

pub fn text(points: &Points, all_reduce: (u64, u64)) -> String {
    let mut text = format!(
        "# Zhang et al., Communication Optimization Technology of Distributed Machine Learning Network, 2024\n\
         # reduce_scatter in a ring of {RANKS} ranks, T {}, Ttrans {}; the first reduction of rank 1 (B) takes T + ΔT.\n\
         # The rule: when T + ΔT > αT, C sends what it has to D, B sends its sum to D, and D reduces both at once.\n",
        time_text(REDUCE_PS),
        time_text(transfer_ps()),
    );
    text += &table(points);
    text += &over_alpha(points);
    text += &best(points, all_reduce);
    text += &agreement(points);
    text + CONTRADICTIONS
}

/// Figures 7 and 8 at one α.
fn table(points: &Points) -> String {
    let mut text = format!(
        "#\n# Figures 7 and 8 at α = {:.1}. The effect is the share of the ring's time that is saved,\n\
         #   path    until D has the chunk that was late: what the paper plots\n\
         #   whole   until all ranks have their chunks, reductions of a rank side by side\n\
         #   serial  the same, reductions of a rank one after the other\n\
         #  ΔT (us)    ring (us)     path (us)  effect (%)    whole (us)  effect (%)   serial (us)  effect (%)\n",
        tenths(ALPHA_TENTHS),
    );
    for point in points.table() {
        let _ = writeln!(
            text,
            "  {:>8}  {:>11}  {:>12}  {:>10.3}  {:>12}  {:>10.3}  {:>12}  {:>10.3}",
            point.delay_ps / 1_000_000,
            five_digits(point.ring_ps),
            five_digits(point.path_ps),
            point.path_effect(),
            five_digits(point.whole_ps),
            point.whole_effect(),
            five_digits(point.serial_ps),
            point.serial_effect(),
        );
    }
    text
}

/// Figures 9 and 10: a line for each α, a column for each ΔT.
fn over_alpha(points: &Points) -> String {
    let mut text = "#\n# Figures 9 and 10: the effect (%) on the path by α and ΔT; equal along α where B's message comes last\n#      α".to_owned();
    for us in figures::DELAYS_US {
        let _ = write!(text, "  {:>9}", format!("ΔT {us} us"));
    }
    text.push('\n');
    for alpha in (11..=35).step_by(2) {
        let _ = write!(text, "  {:>6.1}", tenths(alpha));
        for us in figures::DELAYS_US {
            let is_it =
                |point: &&Point| point.alpha_tenths == alpha && point.delay_ps == us * 1_000_000;
            let effect = points
                .over_alpha
                .iter()
                .find(is_it)
                .map_or(0.0, Point::path_effect);
            let _ = write!(text, "  {effect:>9.3}");
        }
        text.push('\n');
    }
    text
}

/// The figure in the abstract, and what it is a share of.
fn best(points: &Points, (ring_ps, strategy_ps): (u64, u64)) -> String {
    let Some(point) = points
        .table()
        .find(|point| point.delay_ps == BEST_DELAY_US * 1_000_000)
    else {
        return String::new();
    };
    format!(
        "#\n# The abstract's 25.3 %: α = {:.1}, ΔT = {BEST_DELAY_US} us, on the path of the late chunk: {:.3} %.\n\
         # At this point the whole reduce_scatter saves {:.3} % ({:.3} % with serial reductions), and a whole all_reduce,\n\
         # whose second half nothing shortens, {:.3} %: {} us instead of {} us.\n",
        tenths(ALPHA_TENTHS),
        point.path_effect(),
        point.whole_effect(),
        point.serial_effect(),
        effect(ring_ps, strategy_ps),
        five_digits(strategy_ps),
        five_digits(ring_ps),
    )
}

/// How far what was simulated is from the closed forms.
fn agreement(points: &Points) -> String {
    let mut worst_ps = 0;
    let mut count = 0;
    for (_, point) in points.all() {
        let due = closed_form(point.alpha_tenths, point.delay_ps);
        let pairs = [
            (point.ring_ps, due.ring_ps),
            (point.path_ps, due.path_ps),
            (point.whole_ps, due.whole_ps),
            (point.serial_ps, due.serial_ps),
        ];
        for (found, due) in pairs {
            worst_ps = worst_ps.max(found.abs_diff(due));
            count += 1;
        }
    }
    format!(
        "#\n# {count} times were simulated; from the closed forms they are at most {worst_ps} ps away.\n"
    )
}

const CONTRADICTIONS: &str = "\
#
# Where the paper contradicts itself (docs/papers.md says more):
# * It prints two triggers, T + ΔT > αT and T + ΔT > αT + Ttrans. With the second, equation (2) is never reached.
# * The captions of figures 5 and 6 are swapped against its text.
# * Equations (1) and (2) are about one chunk's path. The whole reduce_scatter cannot end before the other chunks are
#   around, so it saves at most ΔT; the effect falls with α for it only where α > 2.
# * It is exact only while both ranks know T, Ttrans and α and agree on the time: nothing tells B that C gave up.
";

fn tenths(alpha: u64) -> f64 {
    alpha as f64 / 10.0
}

/// Microseconds with the five digits that the literature has.
fn five_digits(ps: u64) -> String {
    let digits = micros(ps + 5);
    digits[..digits.len() - 1].to_owned()
}
