//! Definitions of the operations on two elements.
//!
//! Every operation is commutative bit for bit, NaN payloads excepted. Floating-point comparisons
//! are written as selections that vectorise. A NaN wins over every other operand. Of two zeros,
//! `Min` returns `-0` and `Max` returns `+0`, in either order.

/// An operation on two values of type `T`.
pub(super) trait Join<T> {
    fn join(a: T, b: T) -> T;
}

pub(super) struct Sum;
pub(super) struct Prod;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct Band;
pub(super) struct Bor;
pub(super) struct Bxor;

macro_rules! joins {
    ($($op:ident for $($t:ty)*: |$a:ident, $b:ident| $result:expr;)*) => {
        $($(
            impl Join<$t> for $op {
                #[inline(always)]
                fn join($a: $t, $b: $t) -> $t {
                    $result
                }
            }
        )*)*
    };
}

// Wrapping sums and products have the same bits for signed and unsigned types, and bit operations
// have the same bits at any width: one type serves all.
joins! {
    Sum for u8 u16 u32 u64: |a, b| a.wrapping_add(b);
    Prod for u8 u16 u32 u64: |a, b| a.wrapping_mul(b);
    Sum for f32 f64: |a, b| a + b;
    Prod for f32 f64: |a, b| a * b;
    Min for i8 u8 i16 u16 i32 u32 i64 u64: |a, b| if a < b { a } else { b };
    Max for i8 u8 i16 u16 i32 u32 i64 u64: |a, b| if a > b { a } else { b };
    Band for u8: |a, b| a & b;
    Bor for u8: |a, b| a | b;
    Bxor for u8: |a, b| a ^ b;
}

macro_rules! float_extrema {
    ($($t:ident)*) => {
        $(
            impl Join<$t> for Min {
                #[inline(always)]
                fn join(a: $t, b: $t) -> $t {
                    // A NaN in `b` fails both comparisons and is selected; equal numbers differ at
                    // most in a zero's sign.
                    let smaller = if a < b { a } else { b };
                    let both = $t::from_bits(a.to_bits() | b.to_bits());
                    let smaller = if a == b { both } else { smaller };
                    if a.is_nan() { a } else { smaller }
                }
            }

            impl Join<$t> for Max {
                #[inline(always)]
                fn join(a: $t, b: $t) -> $t {
                    let larger = if a > b { a } else { b };
                    let both = $t::from_bits(a.to_bits() & b.to_bits());
                    let larger = if a == b { both } else { larger };
                    if a.is_nan() { a } else { larger }
                }
            }
        )*
    };
}

float_extrema! { f32 f64 }
