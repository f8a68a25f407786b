//! Least squares for a few unknowns that cannot be negative.
//!
//! Measured times span many powers of ten, so every row is weighted by its relative error. An
//! unknown whose column is nearly a combination of those before it cannot be distinguished from
//! them: it is omitted and named, instead of getting a value that the next measurement would
//! contradict. With so few unknowns every subset of them is tried, so the best non-negative fit is
//! found exactly (Lawson & Hanson, *Solving Least Squares Problems*, 1974, chapter 23).

/// What must remain of a column, as a fraction of its length, after projecting out those before it.
const SEPARABLE_SHARE: f64 = 0.02;

/// Most unknowns: every set of them is tried.
const MAX_UNKNOWNS: usize = 8;

/// What became of one unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// The value, and its standard error.
    Fitted { value: f64, error: f64 },
    /// No row depends on it.
    Absent,
    /// The rows depend on it exactly as on the unknown with this number, so that only the sum of
    /// both can be determined.
    Inseparable { from: usize },
}

/// The outcome of a fit.
#[derive(Clone, Debug)]
pub struct Fit {
    /// One for each column.
    pub values: Vec<Value>,
    /// What the fit predicts for each row.
    pub predicted: Vec<f64>,
    /// The share of the times' variance that the fit explains.
    pub r_squared: f64,
    /// The mean of the relative errors' sizes.
    pub mean_error: f64,
    /// The largest of them.
    pub worst_error: f64,
}

/// Finds `x ≥ 0` that brings `Σ_j columns[j][i]·x[j]` closest to `times[i]`, relative to these,
/// which are positive. `None` if there are fewer rows than independent unknowns, or nothing to
/// find.
pub fn fit(columns: &[Vec<f64>], times: &[f64]) -> Option<Fit> {
    assert!(columns.len() <= MAX_UNKNOWNS);
    let weighted: Vec<Vec<f64>> = columns
        .iter()
        .map(|column| column.iter().zip(times).map(|(a, t)| a / t).collect())
        .collect();
    let mut values = separate(&weighted);
    let open: Vec<usize> = (0..columns.len())
        .filter(|&j| matches!(values[j], Value::Fitted { .. }))
        .collect();
    if open.is_empty() || open.len() > times.len() {
        return None;
    }
    let best = (1u32..1 << open.len())
        .filter_map(|set| {
            let chosen: Vec<usize> = (0..open.len())
                .filter(|bit| set >> bit & 1 == 1)
                .map(|bit| open[bit])
                .collect();
            let solved = solve(&weighted, &chosen)?;
            Some((chosen, solved))
        })
        .min_by(|(_, one), (_, other)| one.squares.total_cmp(&other.squares))?;
    let (chosen, solved) = best;
    for &j in &open {
        values[j] = Value::Fitted {
            value: 0.0,
            error: 0.0,
        };
    }
    for (at, &j) in chosen.iter().enumerate() {
        values[j] = Value::Fitted {
            value: solved.x[at],
            error: solved.errors[at],
        };
    }
    let predicted: Vec<f64> = (0..times.len())
        .map(|i| {
            let terms = values.iter().zip(columns);
            terms
                .map(|(value, column)| value.number() * column[i])
                .sum()
        })
        .collect();
    Some(judge(values, predicted, times))
}

impl Value {
    /// The value as far as there is one.
    pub fn number(self) -> f64 {
        match self {
            Value::Fitted { value, .. } => value,
            Value::Absent | Value::Inseparable { .. } => 0.0,
        }
    }
}

fn judge(values: Vec<Value>, predicted: Vec<f64>, times: &[f64]) -> Fit {
    let count = times.len() as f64;
    let mean = times.iter().sum::<f64>() / count;
    let squares = |of: &dyn Fn(usize) -> f64| (0..times.len()).map(|i| of(i).powi(2)).sum::<f64>();
    let total = squares(&|i| times[i] - mean);
    let missed = squares(&|i| times[i] - predicted[i]);
    let errors = || (0..times.len()).map(|i| (predicted[i] / times[i] - 1.0).abs());
    Fit {
        r_squared: if total > 0.0 {
            1.0 - missed / total
        } else {
            1.0
        },
        mean_error: errors().sum::<f64>() / count,
        worst_error: errors().fold(0.0, f64::max),
        values,
        predicted,
    }
}

/// Which columns are independent (`Fitted`, still without a value), by Gram-Schmidt in the given
/// order.
fn separate(columns: &[Vec<f64>]) -> Vec<Value> {
    let mut basis: Vec<(usize, Vec<f64>)> = Vec::new();
    let mut values = Vec::new();
    for (j, column) in columns.iter().enumerate() {
        let length = dot(column, column).sqrt();
        if length == 0.0 {
            values.push(Value::Absent);
            continue;
        }
        let mut rest: Vec<f64> = column.iter().map(|a| a / length).collect();
        let mut likest = (0.0, 0);
        for (of, direction) in &basis {
            let share = dot(&rest, direction);
            if share.abs() > likest.0 {
                likest = (share.abs(), *of);
            }
            for (a, d) in rest.iter_mut().zip(direction) {
                *a -= share * d;
            }
        }
        let left = dot(&rest, &rest).sqrt();
        if left < SEPARABLE_SHARE {
            values.push(Value::Inseparable { from: likest.1 });
            continue;
        }
        basis.push((j, rest.iter().map(|a| a / left).collect()));
        values.push(Value::Fitted {
            value: 0.0,
            error: 0.0,
        });
    }
    values
}

struct Solved {
    x: Vec<f64>,
    errors: Vec<f64>,
    squares: f64,
}

/// The least squares of the chosen columns against ones; `None` where a value would be negative.
fn solve(columns: &[Vec<f64>], chosen: &[usize]) -> Option<Solved> {
    let length = |&j: &usize| dot(&columns[j], &columns[j]).sqrt();
    let scale: Vec<f64> = chosen.iter().map(length).collect();
    let units: Vec<Vec<f64>> = chosen
        .iter()
        .zip(&scale)
        .map(|(&j, length)| columns[j].iter().map(|a| a / length).collect())
        .collect();
    let n = chosen.len();
    let rows = columns[chosen[0]].len();
    let mut normal: Vec<Vec<f64>> = vec![vec![0.0; 2 * n + 1]; n];
    for (row, line) in normal.iter_mut().enumerate() {
        for (column, cell) in line[..n].iter_mut().enumerate() {
            *cell = dot(&units[row], &units[column]);
        }
        line[n] = units[row].iter().sum();
        line[n + 1 + row] = 1.0;
    }
    eliminate(&mut normal)?;
    let scaled: Vec<f64> = normal.iter().map(|line| line[n]).collect();
    if scaled.iter().any(|&x| x < 0.0) {
        return None;
    }
    let squares: f64 = (0..rows)
        .map(|i| {
            let sum: f64 = (0..n).map(|at| scaled[at] * units[at][i]).sum();
            (1.0 - sum).powi(2)
        })
        .sum();
    let freedom = rows.saturating_sub(n).max(1) as f64;
    let errors = (0..n)
        .map(|at| (squares / freedom * normal[at][n + 1 + at]).max(0.0).sqrt() / scale[at])
        .collect();
    let x = (0..n).map(|at| scaled[at] / scale[at]).collect();
    Some(Solved { x, errors, squares })
}

/// Gauss and Jordan's elimination with pivots; `None` for a singular matrix.
fn eliminate(matrix: &mut [Vec<f64>]) -> Option<()> {
    let n = matrix.len();
    for column in 0..n {
        let size = |row: &usize| matrix[*row][column].abs();
        let pivot = (column..n).max_by(|a, b| size(a).total_cmp(&size(b)))?;
        if matrix[pivot][column].abs() < 1e-12 {
            return None;
        }
        matrix.swap(column, pivot);
        let head = matrix[column][column];
        for cell in &mut matrix[column] {
            *cell /= head;
        }
        let line = matrix[column].clone();
        for (row, other) in matrix.iter_mut().enumerate() {
            if row != column {
                let factor = other[column];
                for (cell, value) in other.iter_mut().zip(&line) {
                    *cell -= factor * value;
                }
            }
        }
    }
    Some(())
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// α, β and γ of ranks 2 to 16 and sizes 1 KiB to 1 GiB, by ring and recursive doubling.
    fn columns() -> Vec<Vec<f64>> {
        let mut columns = vec![Vec::new(); 3];
        for n in [2.0f64, 4.0, 8.0, 16.0] {
            for power in (10..=30).step_by(2) {
                let size = f64::from(power).exp2();
                let share = (n - 1.0) / n;
                for row in [
                    [2.0 * (n - 1.0), 2.0 * share * size, share * size],
                    [n.log2(), n.log2() * size, n.log2() * size],
                ] {
                    for (column, value) in columns.iter_mut().zip(row) {
                        column.push(value);
                    }
                }
            }
        }
        columns
    }

    fn times(columns: &[Vec<f64>], x: &[f64], noise: f64) -> Vec<f64> {
        (0..columns[0].len())
            .map(|i| {
                let sum: f64 = columns.iter().zip(x).map(|(column, x)| column[i] * x).sum();
                // A fixed pattern of errors from -1 to 1 that follows neither sizes nor algorithms.
                sum * (1.0 + noise * ((i * 5 % 7) as f64 / 3.0 - 1.0))
            })
            .collect()
    }

    #[test]
    fn exact_times_give_back_their_constants() {
        let columns = columns();
        let due = [5.0, 8e-5, 5e-5];
        let fit = fit(&columns, &times(&columns, &due, 0.0)).unwrap();
        for (value, due) in fit.values.iter().zip(due) {
            assert!((value.number() / due - 1.0).abs() < 1e-6, "{fit:?}");
        }
        assert!(fit.r_squared > 1.0 - 1e-9 && fit.worst_error < 1e-6);
    }

    #[test]
    fn noise_shows_in_the_errors_and_not_much_in_the_constants() {
        let columns = columns();
        let due = [5.0, 8e-5, 5e-5];
        let fit = fit(&columns, &times(&columns, &due, 0.05)).unwrap();
        for (value, due) in fit.values.iter().zip(due) {
            let Value::Fitted { value, error } = *value else {
                panic!("{fit:?}");
            };
            assert!((value - due).abs() < 4.0 * error && error < due, "{fit:?}");
        }
        assert!((0.02..0.06).contains(&fit.mean_error), "{fit:?}");
    }

    #[test]
    fn constants_that_cannot_be_told_apart_are_named() {
        let mut columns = columns();
        columns[2] = columns[1].iter().map(|a| a / 2.0).collect();
        let times = times(&columns, &[5.0, 8e-5, 5e-5], 0.0);
        let fit = fit(&columns, &times).unwrap();
        assert_eq!(fit.values[2], Value::Inseparable { from: 1 });
        assert!((fit.values[1].number() - 10.5e-5).abs() < 1e-9, "{fit:?}");
    }

    #[test]
    fn nothing_becomes_negative() {
        let columns = columns();
        let fit = fit(&columns, &times(&columns, &[5.0, 8e-5, -1e-5], 0.0)).unwrap();
        assert!(fit.values.iter().all(|value| value.number() >= 0.0));
        assert_eq!(fit.values[2].number(), 0.0);
    }

    #[test]
    fn too_few_rows_are_no_fit() {
        assert!(fit(&[vec![1.0], vec![2.0]], &[1.0]).is_some());
        assert!(fit(&[vec![1.0, 0.0], vec![0.0, 1.0]], &[1.0, 1.0]).is_some());
        assert!(fit(&[vec![0.0, 0.0]], &[1.0, 1.0]).is_none());
        let none: [Vec<f64>; 0] = [];
        assert!(fit(&none, &[1.0]).is_none());
    }
}
