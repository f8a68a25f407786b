//! Figures 7 to 10 of the paper, drawn from what was simulated.

use std::path::Path;

use anyhow::Result;

use super::{ALPHA_TENTHS, BEST_DELAY_US, Point, Points};
use crate::plot::{Axis, Chart, Corner, Curve, Mark, Scale, Style};

/// α of figure 8, in tenths.
pub const ALPHAS_TENTHS: [u64; 6] = [12, 15, 18, 20, 25, 30];

/// ΔT of figure 9, in microseconds.
pub const DELAYS_US: [u64; 5] = [5, 8, 10, 15, 20];

/// α of figure 10, in tenths.
pub const LARGE_ALPHAS_TENTHS: [u64; 3] = [18, 25, 30];

/// Draws all four into the folder.
pub fn draw(folder: &Path, points: &Points) -> Result<()> {
    super::super::make_folder(folder)?;
    let pictures = [
        (7, seven(points)),
        (8, eight(points)),
        (9, nine(points)),
        (10, ten(points)),
    ];
    for (number, chart) in pictures {
        chart.draw(&folder.join(format!("bupt2024-figure-{number}.svg")))?;
    }
    Ok(())
}

/// Time over ΔT: the ring, and the strategy in both metrics.
fn seven(points: &Points) -> Chart {
    let whole_us = || {
        points.over_delay.iter().filter(|point| {
            point.alpha_tenths == ALPHA_TENTHS && point.delay_ps.is_multiple_of(1_000_000)
        })
    };
    let of = |time: fn(&Point) -> u64| -> Vec<(f64, f64)> {
        whole_us()
            .map(|point| (us(point.delay_ps), us(time(point))))
            .collect()
    };
    Chart {
        title: format!(
            "Figure 7: reduce_scatter of a ring with one slow reduction, α = {:.1}",
            alpha(ALPHA_TENTHS)
        ),
        x: Axis::new("ΔT (µs)", Scale::Linear),
        y: Axis::new("time (µs)", Scale::Linear),
        legend: Corner::UpperLeft,
        curves: vec![
            curve("ring", Style::Filled, 0, of(|point| point.ring_ps)),
            curve(
                "strategy, path of the late chunk",
                Style::Filled,
                1,
                of(|point| point.path_ps),
            ),
            curve(
                "strategy, whole reduce_scatter",
                Style::Hollow,
                2,
                of(|point| point.whole_ps),
            ),
            curve(
                "the same, serial reductions",
                Style::Hollow,
                3,
                of(|point| point.serial_ps),
            ),
        ],
        marks: Vec::new(),
    }
}

/// The effect over ΔT, for several α.
fn eight(points: &Points) -> Chart {
    let limit_ps = 12_000_000;
    let curves = ALPHAS_TENTHS.iter().enumerate().map(|(colour, &tenths)| {
        let own = points.over_delay.iter();
        let own = own.filter(|point| point.alpha_tenths == tenths && point.delay_ps <= limit_ps);
        let places = own
            .map(|point| (us(point.delay_ps), point.path_effect()))
            .collect();
        curve(
            &format!("α = {:.1}", alpha(tenths)),
            Style::Filled,
            colour,
            places,
        )
    });
    let best = points
        .table()
        .find(|point| point.delay_ps == BEST_DELAY_US * 1_000_000);
    Chart {
        marks: best.map(mark).into_iter().collect(),
        ..effect_chart(
            "Figure 8: the effect on the late chunk's path over ΔT and α",
            "ΔT (µs)",
            curves.collect(),
        )
    }
}

/// The effect over α, for several ΔT.
fn nine(points: &Points) -> Chart {
    let curves = DELAYS_US.iter().enumerate().map(|(colour, &delay_us)| {
        let own = points
            .over_alpha
            .iter()
            .filter(|point| point.delay_ps == delay_us * 1_000_000);
        let places = own
            .map(|point| (alpha(point.alpha_tenths), point.path_effect()))
            .collect();
        curve(
            &format!("ΔT = {delay_us} µs"),
            Style::Filled,
            colour,
            places,
        )
    });
    effect_chart(
        "Figure 9: the effect on the late chunk's path over α",
        "α",
        curves.collect(),
    )
}

/// The effect over large ΔT.
fn ten(points: &Points) -> Chart {
    let curves = LARGE_ALPHAS_TENTHS
        .iter()
        .enumerate()
        .map(|(colour, &tenths)| {
            let own = points
                .over_large_delay
                .iter()
                .filter(|point| point.alpha_tenths == tenths);
            let places = own
                .map(|point| (us(point.delay_ps), point.path_effect()))
                .collect();
            // Where B's message comes last the curves are one: only hollow points show those below.
            let style = if colour == 0 {
                Style::Filled
            } else {
                Style::Hollow
            };
            curve(&format!("α = {:.1}", alpha(tenths)), style, colour, places)
        });
    effect_chart(
        "Figure 10: the effect on the late chunk's path over large ΔT",
        "ΔT (µs)",
        curves.collect(),
    )
}

fn effect_chart(title: &str, axis: &str, curves: Vec<Curve>) -> Chart {
    Chart {
        title: title.into(),
        x: Axis::new(axis, Scale::Linear),
        y: Axis::new("effect (% of the ring's time)", Scale::Linear),
        legend: Corner::LowerRight,
        curves,
        marks: Vec::new(),
    }
}

/// The point of the abstract.
fn mark(point: &Point) -> Mark {
    Mark {
        at: (us(point.delay_ps), point.path_effect()),
        label: format!("{:.1} %", point.path_effect()),
    }
}

fn curve(label: &str, style: Style, colour: usize, points: Vec<(f64, f64)>) -> Curve {
    Curve {
        label: label.into(),
        style,
        colour,
        points,
    }
}

fn us(ps: u64) -> f64 {
    ps as f64 / 1e6
}

fn alpha(tenths: u64) -> f64 {
    tenths as f64 / 10.0
}
