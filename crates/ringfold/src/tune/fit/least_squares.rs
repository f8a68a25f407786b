//! Least squares for a few unknowns that cannot be negative.
//!
//! Measured times span many powers of ten, so every row is weighted by its relative error. An
//! unknown whose column is nearly a combination of those before it cannot be distinguished from
//! them: it is omitted and named, instead of getting a value that the next measurement would
//! contradict. With so few unknowns every subset of them is tried, so the best non-negative fit is
//! found exactly (Lawson & Hanson, *Solving Least Squares Problems*, 1974, chapter 23).

/// Minimum length of a column after projecting out those before it, as a fraction of its original
/// length.
const SEPARABLE_SHARE: f64 = 0.02;

/// Maximum number of unknowns: every set of them is tried.
const MAX_UNKNOWNS: usize = 8;

/// The outcome for one unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Coefficient {
    /// The unknown was determined.
    Fitted {
        /// The value; 0 if it would be negative.
        value: f64,
        /// The standard error of the value.
        error: f64,
    },
    /// No row depends on the unknown.
    Absent,
    /// The unknown's column is nearly a combination of those before it, so the unknown cannot be
    /// distinguished from them.
    Inseparable {
        /// The number of the earlier unknown whose column is most similar.
        from: usize,
    },
}

/// The outcome of a fit.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The outcome for each column.
    pub values: Vec<Coefficient>,
    /// The predicted time of each row.
    pub predicted: Vec<f64>,
    /// The share of the times' variance that the fit explains.
    pub r_squared: f64,
    /// The mean absolute relative error.
    pub mean_error: f64,
    /// The largest absolute relative error.
    pub worst_error: f64,
}

/// Finds the `x ≥ 0` for which `Σ_j columns[j][i]·x[j]` is closest to `times[i]`, relative to these
/// times, which are positive. Returns `None` if there are fewer rows than independent unknowns, or
/// no independent unknowns.
pub fn fit(columns: &[Vec<f64>], times: &[f64]) -> Option<Fit> {
    assert!(columns.len() <= MAX_UNKNOWNS);
    let weighted: Vec<Vec<f64>> = columns
        .iter()
        .map(|column| column.iter().zip(times).map(|(a, t)| a / t).collect())
        .collect();
    let mut values = separate(&weighted);
    let open: Vec<usize> = (0..columns.len())
        .filter(|&j| matches!(values[j], Coefficient::Fitted { .. }))
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
    for (at, &j) in chosen.iter().enumerate() {
        values[j] = Coefficient::Fitted {
            value: solved.x[at],
            error: solved.errors[at],
        };
    }
    let predicted = |row: usize| -> f64 {
        let terms = values.iter().zip(columns);
        terms
            .map(|(value, column)| value.number() * column[row])
            .sum()
    };
    let predicted = (0..times.len()).map(predicted).collect();
    Some(judge(values, predicted, times))
}

impl Coefficient {
    /// Returns the value; 0 if it was not determined.
    pub fn number(self) -> f64 {
        match self {
            Coefficient::Fitted { value, .. } => value,
            Coefficient::Absent | Coefficient::Inseparable { .. } => 0.0,
        }
    }
}

fn judge(values: Vec<Coefficient>, predicted: Vec<f64>, times: &[f64]) -> Fit {
    let count = times.len() as f64;
    let mean = times.iter().sum::<f64>() / count;
    let squares = |of: &dyn Fn(usize) -> f64| (0..times.len()).map(|i| of(i).powi(2)).sum::<f64>();
    let total = squares(&|i| times[i] - mean);
    let missed = squares(&|i| times[i] - predicted[i]);
    let errors = || (0..times.len()).map(|i| (predicted[i] / times[i] - 1.0).abs());
    let unexplained = if total > 0.0 { missed / total } else { 0.0 };
    Fit {
        r_squared: 1.0 - unexplained,
        mean_error: errors().sum::<f64>() / count,
        worst_error: errors().fold(0.0, f64::max),
        values,
        predicted,
    }
}

/// Determines which columns are independent of those before them (`Fitted`, still without a value).
fn separate(columns: &[Vec<f64>]) -> Vec<Coefficient> {
    let mut basis: Vec<Vec<f64>> = Vec::new();
    let mut independent = Vec::new();
    let mut values = Vec::new();
    for (j, column) in columns.iter().enumerate() {
        let left = rest(column, &basis);
        values.push(if dot(column, column) == 0.0 {
            Coefficient::Absent
        } else if length(&left) < SEPARABLE_SHARE * length(column) {
            let share = |at: &usize| dot(column, &basis[*at]).abs();
            let likest = (0..basis.len()).max_by(|a, b| share(a).total_cmp(&share(b)));
            Coefficient::Inseparable {
                from: likest.map_or(0, |at| independent[at]),
            }
        } else {
            basis.push(unit(&left));
            independent.push(j);
            Coefficient::Fitted {
                value: 0.0,
                error: 0.0,
            }
        });
    }
    values
}

struct Solved {
    x: Vec<f64>,
    errors: Vec<f64>,
    squares: f64,
}

/// Fits the chosen columns to ones by least squares; `None` if a value would be negative. An
/// unknown's value follows from the part of its column that is independent of the others (Frisch &
/// Waugh, 1933).
fn solve(columns: &[Vec<f64>], chosen: &[usize]) -> Option<Solved> {
    let own = |&j: &usize| {
        let others = chosen.iter().filter(|&&other| other != j);
        let basis = others.fold(Vec::new(), |mut basis, &other| {
            basis.push(unit(&rest(&columns[other], &basis)));
            basis
        });
        rest(&columns[j], &basis)
    };
    let owns: Vec<Vec<f64>> = chosen.iter().map(own).collect();
    let x: Vec<f64> = owns
        .iter()
        .map(|own| own.iter().sum::<f64>() / dot(own, own))
        .collect();
    if x.iter().any(|&x| x < 0.0) {
        return None;
    }
    let rows = columns[chosen[0]].len();
    let predicted =
        |i: usize| -> f64 { chosen.iter().zip(&x).map(|(&j, x)| columns[j][i] * x).sum() };
    let squares: f64 = (0..rows).map(|i| (1.0 - predicted(i)).powi(2)).sum();
    let freedom = rows.saturating_sub(chosen.len()).max(1) as f64;
    let errors = owns
        .iter()
        .map(|own| (squares / freedom).sqrt() / length(own))
        .collect();
    Some(Solved { x, errors, squares })
}

/// Returns the rest of a column after projecting out an orthonormal basis.
fn rest(column: &[f64], basis: &[Vec<f64>]) -> Vec<f64> {
    let mut rest = column.to_vec();
    for direction in basis {
        let share = dot(&rest, direction);
        for (a, d) in rest.iter_mut().zip(direction) {
            *a -= share * d;
        }
    }
    rest
}

fn unit(column: &[f64]) -> Vec<f64> {
    let length = length(column);
    column.iter().map(|a| a / length).collect()
}

fn length(column: &[f64]) -> f64 {
    dot(column, column).sqrt()
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the coefficients of α, β and γ for 2 to 16 ranks and 1 KiB to 1 GiB, by ring and
    /// recursive doubling.
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
            let Coefficient::Fitted { value, error } = *value else {
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
        assert_eq!(fit.values[2], Coefficient::Inseparable { from: 1 });
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
