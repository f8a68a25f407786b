//! Charts as SVG: curves over a common axis, with their names.
//!
//! The caller chooses the scale of each axis, which decides the marks and labels. Data becomes a
//! [`Chart`]; no module outside this one uses plotters.

pub mod events;
mod scale;
mod timeline;

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use plotters::coord::Shift;
use plotters::prelude::*;

use scale::Marks;
pub use scale::Scale;
pub use timeline::{Bar, Timeline};

/// A chart's width and height: readable in a report without scaling.
const PICTURE: (u32, u32) = (960, 600);

/// Maximum number of curves that are named inside the chart; more are named beside it.
const MAX_INNER_LABELS: usize = 6;

/// Width of the names beside the chart.
const LEGEND_WIDTH: u32 = 230;

/// Radius of a point.
const RADIUS: i32 = 4;

/// Colours that colour-blind readers can tell apart: those of Okabe and Ito, then darker ones of
/// Tol's. Black, the last one, is the only one without a hue.
pub const PALETTE: [RGBColor; 11] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(136, 34, 85),
    RGBColor(51, 34, 136),
    RGBColor(153, 153, 51),
    RGBColor(121, 85, 72),
    RGBColor(0, 0, 0),
];

/// The area of a picture.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A chart's axes, and the plane between them.
type Plane<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Marks, Marks>>;

/// The title and the scale of an axis.
#[derive(Clone, Debug)]
pub struct Axis {
    pub title: String,
    pub scale: Scale,
}

/// The appearance of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A line through filled points.
    Filled,
    /// A line through hollow points.
    Hollow,
}

/// A curve's values, label and appearance.
#[derive(Clone, Debug)]
pub struct Curve {
    pub label: String,
    pub style: Style,
    /// Index into [`PALETTE`], modulo its length; two curves may share a colour.
    pub colour: usize,
    pub points: Vec<(f64, f64)>,
}

/// The corner inside the chart for the names of few curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corner {
    UpperLeft,
    LowerRight,
}

/// A picture of curves.
#[derive(Clone, Debug)]
pub struct Chart {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub legend: Corner,
    pub curves: Vec<Curve>,
}

impl Axis {
    pub fn new(title: &str, scale: Scale) -> Axis {
        Axis {
            title: title.into(),
            scale,
        }
    }
}

impl Chart {
    /// Draws the chart into the file, without points that an axis cannot show.
    pub fn draw(&self, path: &Path) -> Result<()> {
        let shown = |curve: &Curve| curve.points.iter().any(|&point| self.shows(point));
        if !self.curves.iter().any(shown) {
            bail!("there is nothing to draw in `{}`", path.display());
        }
        self.render(path)
            .map_err(|error| anyhow!("cannot draw `{}`: {error}", path.display()))
    }

    fn shows(&self, (x, y): (f64, f64)) -> bool {
        self.x.scale.shows(x) && self.y.scale.shows(y)
    }

    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (self.x.scale.place(x), self.y.scale.place(y))
    }

    fn render(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let is_crowded = self.curves.len() > MAX_INNER_LABELS;
        let (width, height) = PICTURE;
        let size = match is_crowded {
            true => (
                width + LEGEND_WIDTH,
                height.max(line_of_legend(self.curves.len()) as u32),
            ),
            false => PICTURE,
        };
        let root = SVGBackend::new(path, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (area, legend) = root.split_horizontally(width);
        let points = || {
            let all = self.curves.iter().flat_map(|curve| &curve.points);
            all.copied().filter(|&point| self.shows(point))
        };
        let columns = self.x.scale.marks(points().map(|point| point.0));
        let rows = self.y.scale.marks(points().map(|point| point.1));
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 22))
            .margin(16)
            .margin_right(28)
            .x_label_area_size(48)
            .y_label_area_size(70)
            .build_cartesian_2d(columns.clone(), rows.clone())?;
        chart
            .configure_mesh()
            .x_labels(columns.0.len())
            .y_labels(rows.0.len())
            .x_label_formatter(&|x| self.x.scale.label(*x))
            .y_label_formatter(&|y| self.y.scale.label(*y))
            .max_light_lines(0)
            .bold_line_style(BLACK.mix(0.12))
            .axis_style(BLACK.mix(0.6))
            .label_style(("sans-serif", 14))
            .axis_desc_style(("sans-serif", 16))
            .x_desc(&self.x.title)
            .y_desc(&self.y.title)
            .draw()?;
        for (index, curve) in self.curves.iter().enumerate() {
            let beside = is_crowded.then_some((&legend, line_of_legend(index)));
            self.draw_curve(curve, &mut chart, beside)?;
        }
        if !is_crowded {
            chart
                .configure_series_labels()
                .position(match self.legend {
                    Corner::UpperLeft => SeriesLabelPosition::UpperLeft,
                    Corner::LowerRight => SeriesLabelPosition::LowerRight,
                })
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

    /// Draws a curve, and its name at this height of the legend beside the chart, if there is one.
    fn draw_curve<'a>(
        &self,
        curve: &Curve,
        chart: &mut Plane<'a>,
        beside: Option<(&Area<'a>, i32)>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let colour = PALETTE[curve.colour % PALETTE.len()];
        let stroke = colour.stroke_width(2);
        let fill = match curve.style {
            Style::Hollow => WHITE,
            Style::Filled => colour,
        };
        let point = move |at| {
            EmptyElement::at(at)
                + Circle::new((0, 0), RADIUS, fill.filled())
                + Circle::new((0, 0), RADIUS, stroke)
        };
        let shown = curve.points.iter().filter(|&&point| self.shows(point));
        let places: Vec<(f64, f64)> = shown.map(|&point| self.place(point)).collect();
        let key = move |at| {
            EmptyElement::at(at)
                + PathElement::new(vec![(0, 0), (24, 0)], stroke)
                + Circle::new((12, 0), RADIUS, fill.filled())
                + Circle::new((12, 0), RADIUS, stroke)
        };
        let line = chart.draw_series(LineSeries::new(places.iter().copied(), stroke))?;
        match beside {
            Some((legend, y)) => {
                legend.draw(&key((0, y)))?;
                let name = curve.label.as_str();
                legend.draw(&Text::new(name, (34, y - 7), ("sans-serif", 15)))?;
            }
            None => {
                line.label(&curve.label).legend(key);
            }
        }
        chart.draw_series(places.into_iter().map(point))?;
        Ok(())
    }
}

/// Returns the vertical position of a line of the legend beside the chart.
fn line_of_legend(index: usize) -> i32 {
    60 + 20 * index as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a plausible curve: latency, then a bandwidth that is reached slowly.
    fn curve(label: &str, style: Style) -> Curve {
        let points = (3..=26).map(|power| {
            let bytes = f64::from(1u32 << power);
            (bytes, bytes / (4.0 + bytes / 9e3) / 1e3)
        });
        Curve {
            label: label.into(),
            style,
            colour: 0,
            points: points.collect(),
        }
    }

    fn chart(curves: Vec<Curve>) -> Chart {
        Chart {
            title: "all_reduce, 4 ranks, ring over shm".into(),
            x: Axis::new("size", Scale::Bytes),
            y: Axis::new("bus bandwidth (GB/s)", Scale::Logarithmic),
            legend: Corner::LowerRight,
            curves,
        }
    }

    /// Draws the chart and returns the picture's text.
    fn drawn(chart: &Chart, name: &str) -> Result<String> {
        let file = format!("ringfold-plot-{}-{name}.svg", std::process::id());
        let path = std::env::temp_dir().join(file);
        let outcome = chart.draw(&path);
        let picture = std::fs::read_to_string(&path).unwrap_or_default();
        let _ = std::fs::remove_file(&path);
        outcome.map(|()| picture)
    }

    #[test]
    fn a_picture_names_its_axes_and_curves() {
        let curves = vec![
            curve("out of place", Style::Filled),
            curve("in place", Style::Hollow),
        ];
        let picture = drawn(&chart(curves), "few").unwrap();
        for text in [
            "all_reduce, 4 ranks, ring over shm",
            "out of place",
            "in place",
            "8 B",
            "32 MiB",
            "bus bandwidth (GB/s)",
        ] {
            assert!(picture.contains(text), "{text}");
        }
        assert!(picture.matches("<polyline").count() >= 2);
    }

    #[test]
    fn many_curves_are_all_named_beside_the_chart() {
        let curves = (0..30).map(|index| curve(&format!("curve {index}"), Style::Filled));
        let picture = drawn(&chart(curves.collect()), "many").unwrap();
        assert!(picture.contains("curve 29"));
    }

    #[test]
    fn nothing_to_draw_is_said_and_not_drawn() {
        let mut empty = curve("zeros", Style::Filled);
        empty.points = vec![(0.0, 1.0)];
        let error = drawn(&chart(vec![empty]), "none").unwrap_err();
        assert!(error.to_string().contains("nothing to draw"), "{error}");
    }
}
