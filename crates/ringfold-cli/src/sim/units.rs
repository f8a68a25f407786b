//! Times and rates as the tables show them.

use crate::numbers::significant;

/// A time in the largest unit that leaves a whole number or few digits: `5us`, `1.5ms`.
pub fn time_text(ps: u64) -> String {
    let units = [
        ("s", 1e12),
        ("ms", 1e9),
        ("us", 1e6),
        ("ns", 1e3),
        ("ps", 1.0),
    ];
    let fits = |(_, size): &&(&str, f64)| ps as f64 >= *size;
    let (unit, size) = units.iter().find(fits).unwrap_or(&("us", 1e6));
    format!("{}{unit}", significant(ps as f64 / size))
}

/// Microseconds with all digits that picoseconds have.
pub fn micros(ps: u64) -> String {
    format!("{}.{:06}", ps / 1_000_000, ps % 1_000_000)
}

/// Microseconds for people, to the nanosecond.
pub fn micros_shown(ps: u64) -> String {
    let ns = ps.saturating_add(500) / 1000;
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

/// A rate for its cost: `12.5 GB/s`, or `unlimited`.
pub fn rate_text(ps_per_byte: u64) -> String {
    match ps_per_byte {
        0 => "unlimited".into(),
        ps => format!("{} GB/s", significant(1e3 / ps as f64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_take_the_unit_that_fits() {
        for (ps, text) in [
            (0, "0us"),
            (7, "7ps"),
            (5_000_000, "5us"),
            (1_500_000_000, "1.5ms"),
            (5_655_360, "5.65536us"),
            (60_000_000_000_000, "60s"),
        ] {
            assert_eq!(time_text(ps), text);
        }
        assert_eq!(micros(25_966_080), "25.966080");
    }

    #[test]
    fn rates_are_the_inverse_of_costs() {
        assert_eq!(rate_text(80), "12.5 GB/s");
        assert_eq!(rate_text(0), "unlimited");
    }
}
