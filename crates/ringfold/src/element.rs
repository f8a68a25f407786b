//! The Rust types of elements, each with its [`DType`].
//!
//! Half precision, bfloat16 and the two 8-bit floats are stored as bits: they convert to and from
//! `f32`, and have no arithmetic of their own. Reductions are in [`crate::reduce`].
//!
//! `bool` is not an element type: a peer may send any byte, and a `bool` other than 0 and 1 would
//! be undefined behaviour. Pass bytes instead, with [`DType::Bool`] in a
//! [`Request`](crate::Request) if they are booleans.

pub(crate) mod convert;

use std::fmt;

use crate::types::DType;

mod sealed {
    /// Keeps [`super::Element`] closed: a type's layout must be the one its `DType` names.
    pub trait Sealed {}
}

/// A type whose slices collectives accept.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The element's data type on the wire.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident,)*) => {
        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {
                const DTYPE: DType = DType::$dtype;
            }
            const _: () = assert!(size_of::<$rust>() == DType::$dtype.size_bytes());
        )*
    };
}

elements! {
    i8 => I8,
    u8 => U8,
    i16 => I16,
    u16 => U16,
    i32 => I32,
    u32 => U32,
    i64 => I64,
    u64 => U64,
    F16 => F16,
    BF16 => BF16,
    f32 => F32,
    f64 => F64,
    F8E4M3 => F8E4M3,
    F8E5M2 => F8E5M2,
}

/// Defines a floating-point type by its bits. Equality compares the numbers: NaN differs from
/// itself, and both zeros are equal.
macro_rules! short_float {
    ($(#[$meta:meta])* $name:ident, $bits:ty, $widen:path, $narrow:path) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default)]
        #[repr(transparent)]
        pub struct $name(
            /// The bits of the number.
            pub $bits,
        );

        impl $name {
            /// Converts to the nearest number, ties to even.
            pub fn from_f32(value: f32) -> $name {
                $name($narrow(value))
            }

            /// Converts to the same number, exactly.
            pub fn to_f32(self) -> f32 {
                $widen(self.0)
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &$name) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }
    };
}

short_float! {
    /// IEEE half precision: 5 exponent and 10 mantissa bits.
    F16, u16, convert::f16_to_f32, convert::f32_to_f16
}

short_float! {
    /// bfloat16: the upper half of an `f32`.
    BF16, u16, convert::bf16_to_f32, convert::f32_to_bf16
}

short_float! {
    /// 8-bit float with 4 exponent and 3 mantissa bits, without infinity; too large a number
    /// becomes NaN.
    F8E4M3, u8, convert::e4m3_to_f32, convert::f32_to_e4m3
}

short_float! {
    /// 8-bit float with 5 exponent and 2 mantissa bits; too large a number becomes infinity.
    F8E5M2, u8, convert::e5m2_to_f32, convert::f32_to_e5m2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_floats_compare_as_numbers() {
        assert_eq!(F16(0x8000), F16(0));
        assert_ne!(F16(0x7e00), F16(0x7e00));
        assert_eq!(format!("{:?}", BF16::from_f32(1.5)), "1.5");
        assert_eq!(F8E5M2::default().to_f32(), 0.0);
        assert_eq!(F8E4M3::from_f32(448.0).0, 0x7e);
    }
}
