//! Numbers in registers: 64 bits each, read as a type says.

use super::{Binary, Class, Compare, Type};

/// The lowest `bits` bits.
pub fn low(value: u64, bits: u32) -> u64 {
    match bits {
        64 => value,
        _ => value & ((1 << bits) - 1),
    }
}

/// The value with the sign of its lowest `bits` bits.
pub fn signed(value: u64, bits: u32) -> i64 {
    let unused = 64 - bits;
    (value << unused).cast_signed() >> unused
}

/// What an instruction with two operands gives; `None` if there is no such instruction.
pub fn binary(what: Binary, kind: Type, a: u64, b: u64) -> Option<u64> {
    match (kind.class, kind.bits) {
        (Class::Float, 32) => {
            let (a, b) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
            let result = match what {
                Binary::Add => a + b,
                Binary::Multiply => a * b,
                _ => return None,
            };
            Some(u64::from(result.to_bits()))
        }
        (Class::Float, 64) => {
            let (a, b) = (f64::from_bits(a), f64::from_bits(b));
            let result = match what {
                Binary::Add => a + b,
                Binary::Multiply => a * b,
                _ => return None,
            };
            Some(result.to_bits())
        }
        (Class::Float | Class::Predicate, _) => None,
        _ => integer(what, kind, a, b).map(|result| low(result, kind.bits)),
    }
}

fn integer(what: Binary, kind: Type, a: u64, b: u64) -> Option<u64> {
    let bits = kind.bits;
    let is_signed = kind.class == Class::Signed;
    let (sa, sb) = (signed(a, bits), signed(b, bits));
    let (a, b) = (low(a, bits), low(b, bits));
    let is_less = if is_signed { sa < sb } else { a < b };
    // Shifts by more than there are bits give what shifts by all bits do.
    let by = (b as u32 as u64).min(u64::from(bits)) as u32;
    Some(match what {
        Binary::Add => a.wrapping_add(b),
        Binary::Subtract => a.wrapping_sub(b),
        Binary::Multiply => a.wrapping_mul(b),
        // On a device this has no defined result, and does not stop.
        Binary::Divide if b == 0 => u64::MAX,
        Binary::Divide if is_signed => sa.wrapping_div(sb).cast_unsigned(),
        Binary::Divide => a / b,
        Binary::Min => [b, a][usize::from(is_less)],
        Binary::Max => [a, b][usize::from(is_less)],
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::ShiftLeft => a.checked_shl(by).unwrap_or(0),
        Binary::ShiftRight if is_signed => (sa >> by.min(63)).cast_unsigned(),
        Binary::ShiftRight => a.checked_shr(by).unwrap_or(0),
    })
}

/// The whole product; `None` if there is no such instruction.
pub fn product(kind: Type, a: u64, b: u64) -> Option<u64> {
    match (kind.class, kind.bits) {
        (Class::Unsigned, 32) => Some(low(a, 32) * low(b, 32)),
        (Class::Signed, 32) => Some((signed(a, 32) * signed(b, 32)).cast_unsigned()),
        _ => None,
    }
}

/// Whether the comparison holds; `None` if there is no such instruction.
pub fn compare(how: Compare, kind: Type, a: u64, b: u64) -> Option<bool> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let bits = kind.bits;
    let order = match (kind.class, bits) {
        (Class::Float, 32) => f32::from_bits(a as u32).partial_cmp(&f32::from_bits(b as u32)),
        (Class::Float, 64) => f64::from_bits(a).partial_cmp(&f64::from_bits(b)),
        (Class::Float | Class::Predicate, _) => return None,
        (Class::Signed, _) => Some(signed(a, bits).cmp(&signed(b, bits))),
        _ => Some(low(a, bits).cmp(&low(b, bits))),
    };
    Some(match how {
        Compare::Unordered => order.is_none(),
        Compare::Equal => order == Some(Equal),
        // Of floats, too: `ne` is false where one is not a number.
        Compare::NotEqual => matches!(order, Some(Less | Greater)),
        Compare::Less => order == Some(Less),
        Compare::LessOrEqual => matches!(order, Some(Less | Equal)),
        Compare::Greater => order == Some(Greater),
        Compare::GreaterOrEqual => matches!(order, Some(Greater | Equal)),
    })
}

/// A value as another type; `None` if there is no such instruction here.
pub fn convert(to: Type, from: Type, value: u64) -> Option<u64> {
    let is_integer = |kind: Type| matches!(kind.class, Class::Unsigned | Class::Signed);
    Some(match (to, from) {
        _ if is_integer(to) && is_integer(from) => {
            let wide = match from.class {
                Class::Signed => signed(value, from.bits).cast_unsigned(),
                _ => low(value, from.bits),
            };
            low(wide, to.bits)
        }
        _ if to.class != Class::Float || from.class != Class::Float => return None,
        _ => match (to.bits, from.bits) {
            (32, 16) => u64::from(from_half(value as u16).to_bits()),
            (16, 32) => u64::from(to_half(f32::from_bits(value as u32))),
            (32, 64) => u64::from((f64::from_bits(value) as f32).to_bits()),
            (64, 32) => f64::from(f32::from_bits(value as u32)).to_bits(),
            _ => return None,
        },
    })
}

/// What a device gives for a float of 16 bits that is not a number.
const HALF_NAN: u16 = 0x7fff;

fn from_half(half: u16) -> f32 {
    let (exponent, fraction) = (i32::from(half >> 10 & 0x1f), f32::from(half & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    };
    if half >> 15 == 1 {
        -magnitude
    } else {
        magnitude
    }
}

fn to_half(value: f32) -> u16 {
    let magnitude = f64::from(value.abs());
    let exponent = (magnitude.to_bits() >> 52) as i32 - 1023;
    // The last place of the result, and the bits above it.
    let exponent = exponent.max(-14);
    let places = (magnitude / 2f64.powi(exponent - 10)).round_ties_even();
    let bits = match magnitude {
        _ if value.is_nan() => return HALF_NAN,
        // From halfway between the largest number and the next power of two.
        _ if magnitude >= 65520.0 => 0x7c00,
        // The first bit of a normal number is not stored, and counts as one of the exponent.
        _ => (((exponent + 14) as u16) << 10) + places as u16,
    };
    bits | u16::from(value.is_sign_negative()) << 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_survive_and_round_to_even() {
        for half in 0..=u16::MAX {
            let value = from_half(half);
            let expected = if value.is_nan() { HALF_NAN } else { half };
            assert_eq!(to_half(value), expected, "{half:#x}");
        }
        let cases: [(f32, u16); 6] = [
            (1.0 + 2f32.powi(-11), 0x3c00),
            (1.0 + 3.0 * 2f32.powi(-11), 0x3c02),
            (65519.0, 0x7bff),
            (65520.0, 0x7c00),
            (2f32.powi(-25), 0x0000),
            (3.0 * 2f32.powi(-25), 0x0002),
        ];
        for (value, half) in cases {
            assert_eq!(to_half(value), half, "{value}");
        }
    }
}
