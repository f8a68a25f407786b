//! Timelines as SVG: a row for each actor, with coloured bars for its activities over time.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::PALETTE;
use super::scale::Scale;

/// Width of the picture without the names of rows.
const WIDTH: u32 = 1100;

/// Width of the names of rows, on the left.
const NAMES_WIDTH: i32 = 90;

/// Height of the title and the key, above the rows; `BOTTOM` is the height of the axis, below.
const TOP: i32 = 76;
const BOTTOM: i32 = 52;
const MARGIN: i32 = 20;

/// Heights of a bar and of the gap between rows.
const BAR: i32 = 9;
const GAP: i32 = 7;

/// A bar: an activity of an actor, from one time to another, in microseconds.
#[derive(Clone, Debug)]
pub struct Bar {
    pub row: usize,
    /// Number of the line within the row, from above.
    pub line: usize,
    /// Number of the kind, which decides the colour.
    pub kind: usize,
    pub begin: f64,
    pub end: f64,
}

/// A picture of bars.
#[derive(Clone, Debug)]
pub struct Timeline {
    pub title: String,
    pub rows: Vec<String>,
    /// Number of lines of each row.
    pub lines: usize,
    pub kinds: Vec<String>,
    pub bars: Vec<Bar>,
}

impl Timeline {
    /// Draws the timeline into the file.
    pub fn draw(&self, path: &Path) -> Result<()> {
        self.render(path)
            .map_err(|error| anyhow!("cannot draw `{}`: {error}", path.display()))
    }

    fn row_height(&self) -> i32 {
        BAR * self.lines as i32 + GAP
    }

    fn render(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let height = TOP + self.row_height() * self.rows.len() as i32 + BOTTOM;
        let root =
            SVGBackend::new(path, (WIDTH + NAMES_WIDTH as u32, height as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        let font = ("sans-serif", 13).into_font();
        root.draw(&Text::new(
            self.title.as_str(),
            (MARGIN, 12),
            ("sans-serif", 18).into_font(),
        ))?;
        self.key(&root)?;
        let marks = Scale::Linear.marks(self.bars.iter().flat_map(|bar| [bar.begin, bar.end]));
        let end = marks.0[marks.0.len() - 1].max(f64::MIN_POSITIVE);
        let width = f64::from(WIDTH as i32 - MARGIN);
        let x = |time: f64| NAMES_WIDTH + (time / end * width).round() as i32;
        let bottom = height - BOTTOM;
        for &mark in marks.0.iter().filter(|&&mark| mark >= 0.0) {
            let line = vec![(x(mark), TOP - 4), (x(mark), bottom)];
            root.draw(&PathElement::new(line, BLACK.mix(0.12)))?;
            let label = Scale::Linear.label(mark);
            let left = x(mark) - 4 * label.len() as i32;
            root.draw(&Text::new(label, (left, bottom + 6), font.clone()))?;
        }
        root.draw(&Text::new(
            "time (µs)",
            (NAMES_WIDTH + WIDTH as i32 / 2 - 40, bottom + 26),
            font.clone(),
        ))?;
        for (row, name) in self.rows.iter().enumerate() {
            let y = TOP + self.row_height() * row as i32;
            let middle = y + BAR * self.lines as i32 / 2 - 8;
            root.draw(&Text::new(name.as_str(), (MARGIN, middle), font.clone()))?;
            let line = vec![
                (NAMES_WIDTH, y - GAP / 2),
                (NAMES_WIDTH + width as i32, y - GAP / 2),
            ];
            root.draw(&PathElement::new(line, BLACK.mix(0.12)))?;
        }
        for bar in &self.bars {
            let y = TOP + self.row_height() * bar.row as i32 + BAR * bar.line as i32;
            let (left, right) = (x(bar.begin), x(bar.end));
            let corners = [(left, y), (right.max(left + 1), y + BAR - 1)];
            root.draw(&Rectangle::new(
                corners,
                PALETTE[bar.kind % PALETTE.len()].filled(),
            ))?;
            if right > left + 3 {
                // An edge separates consecutive bars.
                root.draw(&Rectangle::new(corners, WHITE.mix(0.7)))?;
            }
        }
        root.present()?;
        Ok(())
    }

    /// Draws the key of the colours.
    fn key(&self, root: &DrawingArea<SVGBackend, Shift>) -> Result<(), Box<dyn std::error::Error>> {
        let mut left = NAMES_WIDTH;
        for (kind, name) in self.kinds.iter().enumerate() {
            let corners = [(left, 44), (left + 14, 56)];
            root.draw(&Rectangle::new(
                corners,
                PALETTE[kind % PALETTE.len()].filled(),
            ))?;
            root.draw(&Text::new(
                name.as_str(),
                (left + 20, 42),
                ("sans-serif", 14),
            ))?;
            left += 40 + 8 * name.chars().count() as i32;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_names_rows_and_kinds() {
        let timeline = Timeline {
            title: "two ranks".into(),
            rows: vec!["rank 0".into(), "rank 1".into()],
            lines: 2,
            kinds: vec!["send".into(), "reduce".into()],
            bars: vec![
                Bar {
                    row: 0,
                    line: 0,
                    kind: 0,
                    begin: 0.0,
                    end: 5.0,
                },
                Bar {
                    row: 1,
                    line: 1,
                    kind: 1,
                    begin: 5.0,
                    end: 8.0,
                },
            ],
        };
        let path =
            std::env::temp_dir().join(format!("ringfold-timeline-{}.svg", std::process::id()));
        timeline.draw(&path).unwrap();
        let picture = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for text in ["two ranks", "rank 1", "reduce", "time (µs)"] {
            assert!(picture.contains(text), "{text}");
        }
        assert!(picture.matches("<rect").count() >= 5);
    }
}
