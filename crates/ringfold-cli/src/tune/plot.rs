//! `tune plot`: the five pictures by which an operator finds a wrong choice, as NVIDIA's article
//! draws them.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;
use ringfold::Collective;

use super::rows::Table;
use super::series::{self, Series};
use crate::launch::usage;
use crate::parse::parse_collective;
use crate::plot::{Axis, Chart, Corner, Curve, PALETTE, Scale, Style};
use crate::statistics::Estimate;

/// Colours of curves that lie over ways: the last one, black, which no way has, and a bright one.
const OVER: usize = PALETTE.len() - 1;
const BEFORE: usize = 1;

/// How ways beyond as many as there are colours look.
const STYLES: [Style; 3] = [Style::Filled, Style::Hollow, Style::Dashed];

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// The curve of each file
    Curve,
    /// Every candidate of a sweep: a line for each pair of algorithm and protocol
    Ways,
    /// Every candidate, and over them the default's picks
    Picks,
    /// Every candidate of the first file, and over them its curve and that of the second: before
    /// and after
    After,
}

/// Draw curves as SVG: one or several, all candidates, the default's picks, before and after
///
/// Reads what `ringfold tune sweep` or `ringfold perf --csv` writes.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// What is drawn
    figure: Figure,

    /// What was measured
    #[arg(required = true)]
    csv: Vec<PathBuf>,

    /// The picture
    #[arg(short, long, value_name = "FILE.svg")]
    output: PathBuf,

    /// Names for the files' curves, in their order
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    labels: Vec<String>,

    /// Draw this collective, where files hold several
    #[arg(long, value_name = "NAME", value_parser = parse_collective)]
    collective: Option<Collective>,

    /// Draw the measurements of this many ranks, if files hold several
    #[arg(long, value_name = "N")]
    ranks: Option<i64>,

    /// Draw times instead of bus bandwidths
    #[arg(long)]
    time: bool,

    /// Linear vertical axis, which shows losses at the top, instead of a logarithmic one, which
    /// shows small sizes
    #[arg(long)]
    linear: bool,
}

const EXAMPLES: &str = "\
Examples:
  ringfold tune plot curve perf.csv -o curve.svg                   bandwidth over size
  ringfold tune plot curve good.csv bad.csv --labels good,bad -o two.svg
  ringfold tune plot ways sweep.csv -o ways.svg                    one line for each candidate
  ringfold tune plot picks sweep.csv -o picks.svg                  where the default loses
  ringfold tune plot after sweep.csv tuned-sweep.csv -o after.svg  before and after";

/// Draws and returns the exit status.
pub fn run(arguments: &Arguments) -> Result<u8> {
    let files = arguments.csv.len();
    let wanted = match arguments.figure {
        Figure::Curve => files,
        Figure::Ways | Figure::Picks => 1,
        Figure::After => 2,
    };
    if files != wanted {
        return Err(usage(anyhow!(
            "this figure is of {wanted} files, not of {files}"
        )));
    }
    let series = arguments.csv.iter().map(|path| one_series(arguments, path));
    let all: Vec<Series> = series.collect::<Result<_>>()?;
    let mut curves = Vec::new();
    if arguments.figure != Figure::Curve {
        curves.extend(arguments.ways(&all[0]));
    }
    match arguments.figure {
        Figure::Curve => {
            for (index, series) in all.iter().enumerate() {
                let stem = arguments.csv[index].file_stem().unwrap_or_default();
                let label = arguments.label(index, &stem.to_string_lossy());
                curves.push(arguments.curve(series, label, Style::Filled, index));
            }
        }
        Figure::Ways => {}
        Figure::Picks => {
            let label = arguments.label(0, "the default's picks");
            curves.push(arguments.curve(&all[0], label, Style::Broad, OVER));
        }
        Figure::After => {
            let labels = [arguments.label(0, "before"), arguments.label(1, "after")];
            for ((series, label), colour) in all.iter().zip(labels).zip([BEFORE, OVER]) {
                curves.push(arguments.curve(series, label, Style::Broad, colour));
            }
        }
    }
    arguments.draw(&all[0], curves)?;
    Ok(0)
}

/// The measurements to draw. If there are in-place ones, too, these are left out.
fn one_series(arguments: &Arguments, path: &Path) -> Result<Series> {
    let table = Table::read(path)?;
    let is_wanted = |series: &Series| {
        let collective = parse_collective(&series.topic.collective).ok();
        arguments.collective.is_none_or(|c| collective == Some(c))
            && arguments.ranks.is_none_or(|n| series.topic.ranks == n)
    };
    let rows = match arguments.figure {
        // There is no curve apart from the ways.
        Figure::Ways => table.all_as_ways(),
        _ => table.rows,
    };
    let mut all = series::series(&rows, &[])?;
    all.retain(is_wanted);
    if all.len() > 1 {
        all.retain(|series| series.details.get("in_place").is_none_or(|v| v == "false"));
    }
    let shown = path.display();
    match all.len() {
        0 => bail!("`{shown}` has nothing of what is to be drawn"),
        1 => Ok(all.remove(0)),
        _ => {
            let names: Vec<String> = all.iter().map(Series::name).collect();
            bail!(
                "`{shown}` holds {}; choose one by --collective and --ranks",
                names.join("; ")
            )
        }
    }
}

/// How values become curves.
impl Arguments {
    /// The name of a file's curve.
    fn label(&self, file: usize, otherwise: &str) -> String {
        let given = self.labels.get(file);
        given.cloned().unwrap_or_else(|| otherwise.to_owned())
    }

    fn curve(&self, series: &Series, label: String, style: Style, colour: usize) -> Curve {
        Curve {
            label,
            style,
            colour,
            points: self.points(series, &series.curve()),
        }
    }

    /// A line for each way; as many colours as there are, then other looks.
    fn ways(&self, series: &Series) -> Vec<Curve> {
        let ways = series.ways();
        let lines = ways.into_iter().enumerate();
        lines
            .map(|(index, (way, points))| Curve {
                label: way.to_string(),
                style: STYLES[index / OVER % STYLES.len()],
                colour: index % OVER,
                points: self.points(series, &points),
            })
            .collect()
    }

    fn points(&self, series: &Series, times: &[(u64, Estimate)]) -> Vec<(f64, f64)> {
        let value = |bytes: u64, time: Estimate| match self.time {
            true => time.middle,
            false => series.busbw_gbps(bytes, time.middle),
        };
        let points = times.iter();
        points
            .map(|&(bytes, time)| (bytes as f64, value(bytes, time)))
            .collect()
    }

    fn draw(&self, series: &Series, curves: Vec<Curve>) -> Result<()> {
        let title = if self.time {
            "time (us)"
        } else {
            "bus bandwidth (GB/s)"
        };
        let (scale, legend) = match (self.linear, self.time) {
            (true, _) => (Scale::Linear, Corner::UpperLeft),
            (false, true) => (Scale::Logarithmic, Corner::UpperLeft),
            (false, false) => (Scale::Logarithmic, Corner::LowerRight),
        };
        let chart = Chart {
            title: series.name(),
            x: Axis::new("size", Scale::Bytes),
            y: Axis::new(title, scale),
            legend,
            curves,
        };
        chart.draw(&self.output)
    }
}
