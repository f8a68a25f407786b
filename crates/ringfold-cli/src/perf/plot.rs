//! `--plot`: bus bandwidth over size as an SVG, the curve by which collectives are tuned.
//!
//! Both axes are logarithmic, so that a dip by half looks the same at 1 KiB and at 1 GiB.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;

use super::arguments::Arguments;
use super::measure::Measurement;
use super::table::significant;

/// The picture's width and height: readable in a report without scaling.
const PICTURE: (u32, u32) = (960, 600);

/// At most so many byte sizes are named along the axis.
const MAX_SIZE_LABELS: usize = 14;

/// With more curves than this their names stand beside the chart instead of inside.
const MAX_INNER_LABELS: usize = 6;

/// The width of the names beside the chart.
const LEGEND_WIDTH: u32 = 230;

/// Colours that stay apart for colour-blind readers (Okabe and Ito).
const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

/// One line of the picture: points of size in bytes and bus bandwidth in 10^9 bytes per second.
struct Curve {
    label: String,
    in_place: bool,
    points: Vec<(f64, f64)>,
}

/// An axis of logarithms with its marks: linear between the first and the last of them, marked exactly there.
struct Axis(Vec<f64>);

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, pixels: (i32, i32)) -> i32 {
        let Range { start, end } = self.range();
        let share = (value - start) / (end - start);
        pixels.0 + (share * f64::from(pixels.1 - pixels.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.0.clone(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.0[0]..self.0[self.0.len() - 1]
    }
}

impl Curve {
    /// One colour a curve; where there are many, both placements share theirs.
    fn colour(&self, index: usize, is_crowded: bool) -> RGBColor {
        let index = if is_crowded { index / 2 } else { index };
        PALETTE[index % PALETTE.len()]
    }
}

/// Draws `rows` into the file.
pub fn draw(path: &Path, arguments: &Arguments, ranks: usize, rows: &[Measurement]) -> Result<()> {
    let curves = curves(rows);
    if curves.is_empty() {
        bail!("there is nothing to draw: no size has a bus bandwidth");
    }
    render(path, &title(arguments, ranks, rows), &curves)
        .map_err(|error| anyhow!("cannot draw `{}`: {error}", path.display()))
}

fn title(arguments: &Arguments, ranks: usize, rows: &[Measurement]) -> String {
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

/// One curve a case and placement; what all cases share is not repeated in their labels.
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
    for row in rows
        .iter()
        .filter(|row| row.size.bytes > 0 && row.busbw_gbps() > 0.0)
    {
        let mut words: Vec<String> = parts
            .iter()
            .filter(|part| differs(**part))
            .map(|part| part(row))
            .collect();
        words.push(
            if row.in_place {
                "in place"
            } else {
                "out of place"
            }
            .into(),
        );
        let label = words.join(" ");
        let point = (row.size.bytes as f64, row.busbw_gbps());
        match curves.iter_mut().find(|curve| curve.label == label) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve {
                label,
                in_place: row.in_place,
                points: vec![point],
            }),
        }
    }
    curves
}

fn render(path: &Path, title: &str, curves: &[Curve]) -> Result<(), Box<dyn std::error::Error>> {
    let is_crowded = curves.len() > MAX_INNER_LABELS;
    let (width, height) = PICTURE;
    let size = match is_crowded {
        true => (
            width + LEGEND_WIDTH,
            height.max(line_of_legend(curves.len()) as u32),
        ),
        false => PICTURE,
    };
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (area, legend) = root.split_horizontally(width);
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let sizes = ticks_of_sizes(points().map(|point| point.0));
    let rates = ticks_of_rates(points().map(|point| point.1));
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 22))
        .margin(16)
        .margin_right(28)
        .x_label_area_size(48)
        .y_label_area_size(70)
        .build_cartesian_2d(Axis(sizes.clone()), Axis(rates.clone()))?;
    chart
        .configure_mesh()
        .x_labels(sizes.len())
        .y_labels(rates.len())
        .x_label_formatter(&|x| bytes_label(x.exp2()))
        .y_label_formatter(&|y| significant(10f64.powf(*y)))
        .max_light_lines(0)
        .bold_line_style(BLACK.mix(0.12))
        .axis_style(BLACK.mix(0.6))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 16))
        .x_desc("size")
        .y_desc("bus bandwidth (GB/s)")
        .draw()?;
    for (index, curve) in curves.iter().enumerate() {
        let colour = curve.colour(index, is_crowded);
        let fill = if curve.in_place { WHITE } else { colour };
        let points = curve.points.iter().map(|(x, y)| (x.log2(), y.log10()));
        let line = chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
        let key = move |at| {
            EmptyElement::at(at)
                + PathElement::new(vec![(0, 0), (24, 0)], colour.stroke_width(2))
                + Circle::new((12, 0), 4, fill.filled())
                + Circle::new((12, 0), 4, colour.stroke_width(2))
        };
        if is_crowded {
            let y = line_of_legend(index);
            legend.draw(&key((0, y)))?;
            legend.draw(&Text::new(
                curve.label.as_str(),
                (34, y - 7),
                ("sans-serif", 15),
            ))?;
        } else {
            line.label(&curve.label).legend(key);
        }
        chart.draw_series(points.map(|at| {
            EmptyElement::at(at)
                + Circle::new((0, 0), 4, fill.filled())
                + Circle::new((0, 0), 4, colour.stroke_width(2))
        }))?;
    }
    if !is_crowded {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .legend_area_size(34)
            .margin(14)
            .label_font(("sans-serif", 15))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }
    root.present()?;
    Ok(())
}

/// Where a line of the legend beside the chart stands.
fn line_of_legend(index: usize) -> i32 {
    60 + 20 * index as i32
}

/// Powers of two (as exponents) that enclose the sizes.
fn ticks_of_sizes(sizes: impl Iterator<Item = f64>) -> Vec<f64> {
    let (low, high) = ends(sizes.map(f64::log2));
    let (low, high) = (
        low.floor() as i32,
        (high.ceil() as i32).max(low.floor() as i32 + 1),
    );
    let step = ((high - low) as usize).div_ceil(MAX_SIZE_LABELS).max(1);
    let mut ticks: Vec<f64> = (low..high).step_by(step).map(f64::from).collect();
    ticks.push(ticks[ticks.len() - 1] + step as f64);
    ticks
}

/// 1, 2 and 5 of each power of ten (as exponents) that enclose the rates; only the powers where there are many.
fn ticks_of_rates(rates: impl Iterator<Item = f64>) -> Vec<f64> {
    let (low, high) = ends(rates.map(f64::log10));
    let many = high - low > 3.5;
    let steps: &[f64] = if many { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all: Vec<f64> = (low.floor() as i32..=high.ceil() as i32)
        .flat_map(|power| {
            steps
                .iter()
                .map(move |step| f64::from(power) + step.log10())
        })
        .collect();
    let first = all.iter().rposition(|&tick| tick <= low).unwrap_or(0);
    let last = all
        .iter()
        .position(|&tick| tick >= high)
        .unwrap_or(all.len() - 1);
    all[first..=last.max(first + 1).min(all.len() - 1)].to_vec()
}

fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// `8 B`, `1 KiB`, `64 MiB`.
pub fn bytes_label(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let rounded = (value * 10.0).round() / 10.0;
    format!("{rounded} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plausible curve: latency, then a bandwidth that is reached slowly.
    fn curve(in_place: bool) -> Curve {
        let points = (3..=26).map(|power| {
            let bytes = f64::from(1u32 << power);
            let slower = if in_place { 1.0 } else { 1.15 };
            (bytes, bytes / (4.0 + slower * bytes / 9e3) / 1e3)
        });
        Curve {
            label: if in_place { "in place" } else { "out of place" }.into(),
            in_place,
            points: points.collect(),
        }
    }

    #[test]
    fn a_picture_names_its_axes_and_curves() {
        let path = std::env::temp_dir().join(format!("ringfold-plot-{}.svg", std::process::id()));
        let curves = [curve(false), curve(true)];
        render(&path, "all_reduce, 4 ranks, ring over shm", &curves).unwrap();
        let picture = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for text in [
            "all_reduce, 4 ranks, ring over shm",
            "out of place",
            "8 B",
            "32 MiB",
            "bus bandwidth (GB/s)",
        ] {
            assert!(picture.contains(text), "{text}");
        }
        assert!(picture.matches("<polyline").count() >= 2);
    }

    #[test]
    fn sizes_are_named_in_binary_units() {
        assert_eq!(bytes_label(8.0), "8 B");
        assert_eq!(bytes_label(1024.0), "1 KiB");
        assert_eq!(bytes_label(1536.0), "1.5 KiB");
        assert_eq!(bytes_label((64 << 20) as f64), "64 MiB");
    }

    #[test]
    fn ticks_enclose_what_they_measure() {
        assert_eq!(
            ticks_of_sizes([8.0, 64.0].into_iter()),
            [3.0, 4.0, 5.0, 6.0]
        );
        assert_eq!(ticks_of_sizes([8.0].into_iter()), [3.0, 4.0]);
        let wide = ticks_of_sizes([8.0, (1u64 << 30) as f64].into_iter());
        assert!(
            wide[0] <= 3.0 && wide[wide.len() - 1] >= 30.0 && wide.len() <= MAX_SIZE_LABELS + 1
        );
        for rates in [
            vec![0.011, 9.0],
            vec![1.0],
            vec![3.0, 4.0],
            vec![1e-6, 100.0],
        ] {
            let (low, high) = ends(rates.iter().map(|rate: &f64| rate.log10()));
            let ticks = ticks_of_rates(rates.into_iter());
            assert!(
                ticks.len() >= 2 && ticks[0] <= low && ticks[ticks.len() - 1] >= high,
                "{ticks:?}"
            );
        }
    }
}
