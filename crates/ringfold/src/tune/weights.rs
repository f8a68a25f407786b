//! Ownership weights from measured speeds: each rank's share of a weighted `direct` all-reduce.
//!
//! # Model
//!
//! By the formula of [`cost::weighted`](super::cost::weighted), rank `i`, which owns the part `w`,
//! takes `c + a·w`. With the best weights all owners finish together, at `T`:
//! `w = max(0, (T - c) / a)` with a sum of 1 ("water filling"). A rank with `c >= T` owns nothing:
//! no weight can relieve it further, and it takes `c`.
//!
//! # Noise
//!
//! Weights are for ranks that stay slow. A rank counts as slower or faster than the others only if
//! it was so in every round of measurements ([`steady`]). Weights are proposed only if the formula
//! predicts a gain ([`balance`]), and kept only if calls with them were measured to be faster than
//! calls without ([`pays`]).

use super::cost::weighted::{RankSpeed, growth, time_ps};
use super::fit::{Pairs, median};

/// The weight of a rank that owns as much as it would without weights.
pub const EVEN: u32 = 100;

/// Relative distance from the median within which speeds count as equal: measurements of equal
/// ranks differ by as much.
const ALIKE: f64 = 0.15;

/// Minimum gain of calls with weights, as a fraction of their time without: less is within the
/// noise of a busy machine.
const GAIN_MIN: f64 = 0.1;

/// The smallest weight of an owner: less is not worth messages of its own.
const LEAST: u32 = EVEN / 16;

/// Returns the weights with which the slowest rank finishes earliest, in rank order; `None` if even
/// shares are as good. The function is pure, so ranks with the same inputs make the same decision.
pub fn balance(paces: &[RankSpeed]) -> Option<Vec<u32>> {
    let ranks = paces.len();
    let paces = settled(paces)?;
    let mut order: Vec<usize> = (0..ranks).collect();
    order.sort_by(|one, other| paces[*one].link_ps.total_cmp(&paces[*other].link_ps));
    // With the fastest ranks so far as owners, the sum of their parts at T is `rate * T - offset`.
    let (mut rate, mut offset, mut time) = (0.0, 0.0, f64::INFINITY);
    for &rank in &order {
        let growth = growth(&paces[rank], ranks);
        if paces[rank].link_ps >= time || growth <= 0.0 {
            break;
        }
        rate += 1.0 / growth;
        offset += paces[rank].link_ps / growth;
        time = (1.0 + offset) / rate;
    }
    if !time.is_finite() {
        return None;
    }
    let weight = |pace: &RankSpeed| {
        let part = ((time - pace.link_ps) / growth(pace, ranks)).max(0.0);
        let weight = (part * (ranks as f64) * f64::from(EVEN)).round() as u32;
        if weight < LEAST { 0 } else { weight }
    };
    let weights: Vec<u32> = paces.iter().map(weight).collect();
    let [with, without] = [&weights, &vec![EVEN; ranks]].map(|each| time_ps(&paces, each, 1));
    is_gain(with, without).then_some(weights)
}

/// Returns the speeds of ranks that were measured in several rounds, each in rank order. A rank
/// that was slower than the others in every round, or faster in every round, has the median speed
/// times the median of its ratios; all others have the median speed.
pub fn steady(rounds: &[Vec<RankSpeed>]) -> Vec<RankSpeed> {
    let ranks = rounds.first().map_or(0, Vec::len);
    by_resource(|of| {
        let middle = |round: &Vec<RankSpeed>| median(round.iter().map(of));
        let middles: Vec<f64> = rounds.iter().map(middle).collect();
        let usual = median(middles.iter().copied());
        let steady = |rank: usize| {
            let pairs = rounds.iter().zip(&middles);
            let ratios = pairs.map(|(round, middle)| of(&round[rank]) / middle);
            let is_slow = ratios.clone().all(|ratio| ratio > 1.0 + ALIKE);
            let is_fast = ratios.clone().all(|ratio| ratio < 1.0 - ALIKE);
            if is_slow || is_fast {
                usual * median(ratios)
            } else {
                usual
            }
        };
        (0..ranks).map(steady).collect()
    })
}

/// Whether weights pay, from the times of calls that were made in alternation with and without
/// them. Weights pay if the median with them is smaller by `GAIN_MIN`, and each call with them was
/// faster than the call without before it.
pub fn pays(pairs: &Pairs) -> bool {
    let [with, without] = pairs.medians();
    is_gain(with, without) && pairs.is_first_always_faster()
}

fn is_gain(with: f64, without: f64) -> bool {
    with < (1.0 - GAIN_MIN) * without
}

/// Returns the speeds without noise; `None` without ranks, or if a number is invalid.
fn settled(paces: &[RankSpeed]) -> Option<Vec<RankSpeed>> {
    let is_speed = |number: f64| number.is_finite() && number >= 0.0;
    let are_speeds = |pace: &RankSpeed| is_speed(pace.link_ps) && is_speed(pace.reduce_ps);
    (!paces.is_empty() && paces.iter().all(are_speeds)).then(|| {
        by_resource(|of| {
            let middle = median(paces.iter().map(of));
            let is_near = |number: f64| (number - middle).abs() <= ALIKE * middle;
            let numbers = paces.iter().map(of);
            numbers
                .map(|number| if is_near(number) { middle } else { number })
                .collect()
        })
    })
}

/// Returns each rank's pace, by applying `numbers` to the ranks' links, and to their reductions.
fn by_resource(numbers: impl Fn(fn(&RankSpeed) -> f64) -> Vec<f64>) -> Vec<RankSpeed> {
    let links = numbers(|pace| pace.link_ps);
    let reduces = numbers(|pace| pace.reduce_ps);
    let pairs = links.into_iter().zip(reduces);
    pairs
        .map(|(link_ps, reduce_ps)| RankSpeed { link_ps, reduce_ps })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::cost::weighted::time_ps;
    use super::*;

    fn links(factors: &[f64]) -> Vec<RankSpeed> {
        let pace = |factor: &f64| RankSpeed {
            link_ps: 80.0 * factor,
            reduce_ps: 0.0,
        };
        factors.iter().map(pace).collect()
    }

    /// Returns the time with balanced weights, in units of the vector's time on a fast link.
    fn units(factors: &[f64]) -> f64 {
        let paces = links(factors);
        let weights = balance(&paces).unwrap_or(vec![EVEN; factors.len()]);
        time_ps(&paces, &weights, 1 << 20) / (80.0 * f64::from(1 << 20))
    }

    #[test]
    fn ranks_that_are_alike_need_no_weights() {
        assert_eq!(balance(&links(&[1.0; 8])), None);
        assert_eq!(balance(&links(&[1.0, 1.1, 0.9, 1.05])), None);
        assert_eq!(balance(&[]), None);
        assert_eq!(balance(&links(&[1.0])), None);
        assert_eq!(balance(&links(&[1.0, f64::NAN])), None);
    }

    #[test]
    fn a_rank_that_was_slow_once_is_as_fast_as_the_others() {
        let rounds = |factors: [[f64; 3]; 3]| factors.map(|round| links(&round));
        let noise = rounds([[1.0, 3.0, 1.0], [1.0, 1.0, 0.5], [2.0, 2.0, 2.0]]);
        assert_eq!(steady(&noise), links(&[1.0; 3]));
        let slow = rounds([[1.0, 3.0, 1.0], [1.0, 2.0, 0.5], [2.0, 5.0, 2.0]]);
        assert_eq!(steady(&slow), links(&[1.0, 2.5, 1.0]));
        assert_eq!(steady(&[]), []);
    }

    #[test]
    fn a_small_gain_is_not_worth_weights() {
        let mut paces = links(&[1.0; 2]);
        (paces[0].reduce_ps, paces[1].reduce_ps) = (10.0, 13.0);
        assert_eq!(
            balance(&paces),
            None,
            "half of three tenths of what is a ninth"
        );
        paces[1].reduce_ps = 80.0;
        assert!(balance(&paces).is_some());
    }

    #[test]
    fn weights_pay_if_calls_with_them_are_quicker_each_time_and_by_a_margin() {
        let pays = |with: &[f64], without: &[f64]| {
            let pairs = with.iter().zip(without);
            super::pays(&Pairs(
                pairs.map(|(with, without)| [*with, *without]).collect(),
            ))
        };
        assert!(pays(&[80.0, 85.0, 70.0], &[100.0, 101.0, 99.0]));
        assert!(
            !pays(&[95.0, 96.0, 97.0], &[100.0, 101.0, 99.0]),
            "too little"
        );
        assert!(
            !pays(&[50.0, 120.0, 50.0], &[100.0, 101.0, 99.0]),
            "once slower"
        );
        assert!(!pays(&[223.0; 3], &[81.0; 3]));
    }

    #[test]
    fn a_rank_at_a_quarter_among_four_owns_nothing() {
        assert_eq!(
            balance(&links(&[1.0, 1.0, 4.0, 1.0])),
            Some(vec![133, 133, 0, 133])
        );
        assert_eq!(units(&[1.0, 1.0, 4.0, 1.0]), 4.0);
    }

    /// Published values for links of one rank that are slower by a factor, among 8 and among 64
    /// ranks.
    #[test]
    fn a_slow_link_costs_what_is_published_for_it() {
        for (ranks, factor, expected) in [
            (8, 1.25, 1.80),
            (8, 1.5, 1.83),
            (8, 2.0, 2.0),
            (8, 4.0, 4.0),
            (64, 1.25, 1.975),
            (64, 1.5, 1.979),
            (64, 2.0, 2.0),
        ] {
            let mut factors = vec![1.0; ranks];
            factors[ranks / 2] = factor;
            let found = units(&factors);
            // Weights are whole numbers.
            assert!(
                (found - expected).abs() < 0.02,
                "{ranks} ranks, {factor}: {found}"
            );
        }
    }

    #[test]
    fn a_slow_core_is_relieved_of_combining() {
        let mut paces = links(&[1.0; 4]);
        for pace in &mut paces {
            pace.reduce_ps = 50.0;
        }
        paces[1].reduce_ps = 500.0;
        let weights = balance(&paces).expect("weights");
        assert!(weights[1] < EVEN / 2 && weights[0] > EVEN, "{weights:?}");
        let even = time_ps(&paces, &[EVEN; 4], 1000);
        assert!(time_ps(&paces, &weights, 1000) < 0.7 * even);
    }

    #[test]
    fn between_two_ranks_only_combining_can_be_shared_out() {
        assert_eq!(balance(&links(&[1.0, 4.0])), None);
        let mut paces = links(&[1.0, 1.0]);
        (paces[0].reduce_ps, paces[1].reduce_ps) = (50.0, 150.0);
        assert_eq!(balance(&paces), Some(vec![150, 50]));
    }
}
