//! Formats numbers for tables and figures.

/// Formats `value` as precisely as `width` allows: with two decimals, one, none, or an exponent
/// (nccl-tests' rule).
pub fn number(value: f64, width: usize) -> String {
    for decimals in [2, 1, 0] {
        let text = format!("{value:.decimals$}");
        if text.len() <= width {
            return text;
        }
    }
    scientific(value, usize::from(width >= 7))
}

/// Formats six significant digits without trailing zeros, like C's `%g`.
pub fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let magnitude = value.abs().log10().floor() as i32;
    let text = match magnitude {
        -5..6 => format!("{value:.*}", (5 - magnitude) as usize),
        _ => scientific(value, 5),
    };
    let (digits, exponent) = text.split_at(text.find('e').unwrap_or(text.len()));
    let digits = match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    };
    format!("{digits}{exponent}")
}

/// Formats like C's `%e`: the exponent has a sign and at least two digits.
fn scientific(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    let Some((digits, exponent)) = text.split_once('e') else {
        return text;
    };
    match exponent.strip_prefix('-') {
        Some(exponent) => format!("{digits}e-{exponent:0>2}"),
        None => format!("{digits}e+{exponent:0>2}"),
    }
}

/// Formats bytes: `8 B`, `1 KiB`, `64 MiB`.
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

/// Formats nanoseconds: `12 us`, `3.4 ms`.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.0} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

/// Formats a count with its noun: `1 rank`, `2 ranks`.
pub fn plural(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_named_in_binary_units() {
        assert_eq!(bytes_label(8.0), "8 B");
        assert_eq!(bytes_label(1024.0), "1 KiB");
        assert_eq!(bytes_label(1536.0), "1.5 KiB");
        assert_eq!(bytes_label((64 << 20) as f64), "64 MiB");
    }

    #[test]
    fn numbers_take_the_precision_that_fits() {
        assert_eq!(number(1.0, 7), "1.00");
        assert_eq!(number(1234.567, 7), "1234.57");
        assert_eq!(number(12345.67, 7), "12345.7");
        assert_eq!(number(1234567.0, 7), "1234567");
        assert_eq!(number(123456789.0, 7), "1.2e+08");
        assert_eq!(number(123.456, 6), "123.46");
        assert_eq!(number(1234567.0, 6), "1e+06");
        assert_eq!(number(0.0, 6), "0.00");
    }

    #[test]
    fn significant_digits_are_those_of_c() {
        assert_eq!(significant(0.0), "0");
        assert_eq!(significant(12.5), "12.5");
        assert_eq!(significant(1.2345678), "1.23457");
        assert_eq!(significant(123456.7), "123457");
        assert_eq!(significant(0.00123), "0.00123");
        assert_eq!(significant(1e-6), "1e-06");
        assert_eq!(significant(1.5e7), "1.5e+07");
    }
}
