//! `--plot`: bus bandwidth over size, the curve by which collectives are tuned.
//!
//! Both axes are logarithmic, so that a dip by half looks the same at 1 KiB and at 1 GiB.

use std::path::Path;

use anyhow::Result;

use super::arguments::PerfArguments;
use crate::bench::Measurement;
use crate::plot::{Axis, Chart, Corner, Curve, Scale, Style};

/// With more curves than this, both placements of a case share a colour.
const MANY_CURVES: usize = 6;

/// Draws `rows` into the file.
pub fn draw(
    path: &Path,
    arguments: &PerfArguments,
    ranks: usize,
    rows: &[Measurement],
) -> Result<()> {
    let chart = Chart {
        title: title(arguments, ranks, rows),
        x: Axis::new("size", Scale::Bytes),
        y: Axis::new("bus bandwidth (GB/s)", Scale::Logarithmic),
        legend: Corner::LowerRight,
        curves: curves(rows),
    };
    chart.draw(path)
}

fn title(arguments: &PerfArguments, ranks: usize, rows: &[Measurement]) -> String {
    let list = |name: fn(&Measurement) -> &str| {
        let mut names: Vec<&str> = Vec::new();
        for row in rows {
            if !names.contains(&name(row)) {
                names.push(name(row));
            }
        }
        names.join(", ")
    };
    format!(
        "{}, {ranks} ranks, {} over {}",
        arguments.collective,
        list(|row| &row.algorithm),
        list(|row| &row.transport),
    )
}

/// Returns one curve per case and placement; labels omit the properties that all cases share.
fn curves(rows: &[Measurement]) -> Vec<Curve> {
    let differs =
        |part: fn(&Measurement) -> String| rows.iter().any(|row| part(row) != part(&rows[0]));
    let parts: [fn(&Measurement) -> String; 3] = [
        |row| row.case.dtype.to_string(),
        |row| row.case.op.unwrap_or("").to_owned(),
        |row| {
            row.case
                .root
                .map_or(String::new(), |root| format!("root {root}"))
        },
    ];
    let mut curves: Vec<Curve> = Vec::new();
    for row in rows.iter().filter(|row| row.size.bytes > 0) {
        let mut words: Vec<String> = parts
            .iter()
            .filter(|part| differs(**part))
            .map(|part| part(row))
            .collect();
        let (placement, style) = match row.in_place {
            true => ("in place", Style::Hollow),
            false => ("out of place", Style::Filled),
        };
        words.push(placement.into());
        let label = words.join(" ");
        let point = (row.size.bytes as f64, row.busbw_gbps());
        match curves.iter_mut().find(|curve| curve.label == label) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve {
                label,
                style,
                colour: curves.len(),
                points: vec![point],
            }),
        }
    }
    if curves.len() > MANY_CURVES {
        for curve in &mut curves {
            curve.colour /= 2;
        }
    }
    curves
}
