//! Axes: the positions of their marks, and the marks' labels.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

use crate::numbers::{bytes_label, significant};

/// Maximum number of labelled marks along an axis.
const MAX_MARKS: usize = 14;

/// Approximate number of marks of a linear axis.
const LINEAR_MARKS: f64 = 8.0;

/// Number of decades above which only the powers of ten are marked.
const MANY_DECADES: f64 = 3.5;

/// The mapping of values to places on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Powers of two of bytes: `1 KiB`, `64 MiB`.
    Bytes,
    /// Powers of two of a number, such as ranks.
    Doubling,
    /// 1, 2 and 5 of each power of ten, so that half as much is the same distance everywhere.
    Logarithmic,
    /// Even steps, from zero unless that would squeeze the values.
    Linear,
}

impl Scale {
    /// Returns the place of a value on the axis.
    pub fn place(self, value: f64) -> f64 {
        match self {
            Scale::Bytes | Scale::Doubling => value.log2(),
            Scale::Logarithmic => value.log10(),
            Scale::Linear => value,
        }
    }

    /// Whether the value has a place on the axis.
    pub fn shows(self, value: f64) -> bool {
        value.is_finite() && (self == Scale::Linear || value > 0.0)
    }

    /// Returns the label of the mark at this place.
    pub fn label(self, place: f64) -> String {
        match self {
            Scale::Bytes => bytes_label(place.exp2()),
            Scale::Doubling => significant(place.exp2()),
            Scale::Logarithmic => significant(10f64.powf(place)),
            // Steps such as 0.1 are not exact, and their sums would show the error.
            Scale::Linear => significant((place * 1e9).round() / 1e9),
        }
    }

    /// Returns the places of marks that enclose the values; at least two.
    pub fn marks(self, values: impl Iterator<Item = f64>) -> Marks {
        let (low, high) = values
            .filter(|&value| self.shows(value))
            .map(|value| self.place(value))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), place| {
                (low.min(place), high.max(place))
            });
        // Without values, any axis will do.
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        Marks(match self {
            Scale::Bytes | Scale::Doubling => powers_of_two(low, high),
            Scale::Logarithmic => decades(low, high),
            Scale::Linear => even_steps(low, high),
        })
    }
}

/// An axis that is linear between its first and last mark, and has labels exactly at its marks.
#[derive(Clone, Debug)]
pub struct Marks(pub Vec<f64>);

impl Ranged for Marks {
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

fn powers_of_two(low: f64, high: f64) -> Vec<f64> {
    let first = low.floor() as i32;
    let last = (high.ceil() as i32).max(first + 1);
    let step = ((last - first) as usize).div_ceil(MAX_MARKS).max(1);
    let mut marks: Vec<f64> = (first..last).step_by(step).map(f64::from).collect();
    marks.push(marks[marks.len() - 1] + step as f64);
    marks
}

fn decades(low: f64, high: f64) -> Vec<f64> {
    let many = high - low > MANY_DECADES;
    let steps: &[f64] = if many { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all: Vec<f64> = (low.floor() as i32..=high.ceil() as i32)
        .flat_map(|power| {
            steps
                .iter()
                .map(move |step| f64::from(power) + step.log10())
        })
        .collect();
    let first = all.iter().rposition(|&mark| mark <= low).unwrap_or(0);
    let last = all
        .iter()
        .position(|&mark| mark >= high)
        .unwrap_or(all.len() - 1);
    all[first..=last.max(first + 1).min(all.len() - 1)].to_vec()
}

fn even_steps(low: f64, high: f64) -> Vec<f64> {
    let low = if low >= 0.0 && low <= high / 2.0 {
        0.0
    } else {
        low
    };
    let width = if high > low { high - low } else { 1.0 };
    let rough = width / LINEAR_MARKS;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|&step| step >= rough * 0.999)
        .unwrap_or(10.0 * power);
    let first = (low / step + 1e-9).floor() as i64;
    let last = ((high / step - 1e-9).ceil() as i64).max(first + 1);
    (first..=last).map(|count| count as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(scale: Scale, values: &[f64]) -> Vec<f64> {
        scale.marks(values.iter().copied()).0
    }

    #[test]
    fn marks_enclose_what_they_measure() {
        assert_eq!(marks(Scale::Bytes, &[8.0, 64.0]), [3.0, 4.0, 5.0, 6.0]);
        assert_eq!(marks(Scale::Bytes, &[8.0]), [3.0, 4.0]);
        assert!(marks(Scale::Bytes, &[8.0, (1u64 << 30) as f64]).len() <= MAX_MARKS + 1);
        for values in [
            vec![0.011, 9.0],
            vec![1.0],
            vec![3.0, 4.0],
            vec![1e-6, 100.0],
            vec![25.9, 26.1],
        ] {
            for scale in [
                Scale::Bytes,
                Scale::Doubling,
                Scale::Logarithmic,
                Scale::Linear,
            ] {
                let marks = marks(scale, &values);
                let places = || values.iter().map(|&value| scale.place(value));
                let low = places().fold(f64::INFINITY, f64::min);
                let high = places().fold(f64::NEG_INFINITY, f64::max);
                let last = marks[marks.len() - 1];
                assert!(
                    marks.len() >= 2 && marks[0] <= low + 1e-6 && last >= high - 1e-6,
                    "{scale:?} {values:?}: {marks:?}"
                );
            }
        }
    }

    #[test]
    fn linear_axes_start_at_zero_where_that_costs_no_room() {
        assert_eq!(marks(Scale::Linear, &[1.0, 8.0])[0], 0.0);
        assert_eq!(marks(Scale::Linear, &[0.0, 30.0]).len(), 7);
        assert!(marks(Scale::Linear, &[100.0, 101.0])[0] >= 99.0);
        assert_eq!(Scale::Linear.label(0.1 + 0.2), "0.3");
    }

    #[test]
    fn what_has_no_logarithm_has_no_place() {
        assert!(!Scale::Logarithmic.shows(0.0) && !Scale::Bytes.shows(-1.0));
        assert!(Scale::Linear.shows(0.0) && !Scale::Linear.shows(f64::NAN));
    }
}
