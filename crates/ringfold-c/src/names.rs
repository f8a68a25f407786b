//! Numbers of data types, operations and collectives.
//!
//! The numbers never change, and begin at 1, so that a field that was forgotten is an error.

use ringfold::{Collective, DType, Op, Result};

use crate::arguments::invalid;

/// Signed integer of 8 bits.
pub const RINGFOLD_INT8: u32 = 1;
/// Unsigned integer of 8 bits.
pub const RINGFOLD_UINT8: u32 = 2;
/// Signed integer of 16 bits.
pub const RINGFOLD_INT16: u32 = 3;
/// Unsigned integer of 16 bits.
pub const RINGFOLD_UINT16: u32 = 4;
/// Signed integer of 32 bits.
pub const RINGFOLD_INT32: u32 = 5;
/// Unsigned integer of 32 bits.
pub const RINGFOLD_UINT32: u32 = 6;
/// Signed integer of 64 bits.
pub const RINGFOLD_INT64: u32 = 7;
/// Unsigned integer of 64 bits.
pub const RINGFOLD_UINT64: u32 = 8;
/// IEEE half precision; sums are computed in 32 bits.
pub const RINGFOLD_FLOAT16: u32 = 9;
/// bfloat16; sums are computed in 32 bits.
pub const RINGFOLD_BFLOAT16: u32 = 10;
/// `float`.
pub const RINGFOLD_FLOAT32: u32 = 11;
/// `double`.
pub const RINGFOLD_FLOAT64: u32 = 12;
/// One byte, 0 or 1.
pub const RINGFOLD_BOOL: u32 = 13;
/// 8-bit float with 4 exponent bits and no infinity; a result beyond 464 is NaN.
pub const RINGFOLD_FLOAT8_E4M3: u32 = 14;
/// 8-bit float with 5 exponent bits; a result from 61440 on is infinite.
pub const RINGFOLD_FLOAT8_E5M2: u32 = 15;

/// Addition; integers wrap.
pub const RINGFOLD_SUM: u32 = 1;
/// Multiplication; integers wrap.
pub const RINGFOLD_PROD: u32 = 2;
/// The minimum; NaN if an element is NaN.
pub const RINGFOLD_MIN: u32 = 3;
/// The maximum; NaN if an element is NaN.
pub const RINGFOLD_MAX: u32 = 4;
/// The sum divided by the number of ranks; integers truncate.
pub const RINGFOLD_AVG: u32 = 5;
/// The sum of each rank's input times its own `factor`; floats only.
pub const RINGFOLD_PREMUL_SUM: u32 = 6;
/// Bitwise and.
pub const RINGFOLD_BAND: u32 = 7;
/// Bitwise or.
pub const RINGFOLD_BOR: u32 = 8;
/// Bitwise exclusive or.
pub const RINGFOLD_BXOR: u32 = 9;

/// Every rank gets the reduction of all inputs.
pub const RINGFOLD_ALL_REDUCE: u32 = 1;
/// Every rank gets the root's input.
pub const RINGFOLD_BROADCAST: u32 = 2;
/// The root gets the reduction of all inputs.
pub const RINGFOLD_REDUCE: u32 = 3;
/// Every rank gets all inputs, in rank order.
pub const RINGFOLD_ALL_GATHER: u32 = 4;
/// Rank i gets block i of the reduction of all inputs.
pub const RINGFOLD_REDUCE_SCATTER: u32 = 5;
/// The root gets all inputs, in rank order.
pub const RINGFOLD_GATHER: u32 = 6;
/// Rank i gets block i of the root's input.
pub const RINGFOLD_SCATTER: u32 = 7;
/// Block j of rank i's input becomes block i of rank j's output.
pub const RINGFOLD_ALL_TO_ALL: u32 = 8;
/// No rank leaves before all have entered.
pub const RINGFOLD_BARRIER: u32 = 9;
/// A message to the rank `root`.
pub const RINGFOLD_SEND: u32 = 10;
/// A message from the rank `root`.
pub const RINGFOLD_RECV: u32 = 11;
/// Every rank sends to the next one and receives from the previous one.
pub const RINGFOLD_SENDRECV: u32 = 12;

/// Returns the value with a number that C passed: one more than the number in the wire format.
fn named<T>(number: u32, kind: &str, find: impl Fn(u8) -> Option<T>) -> Result<T> {
    let wire = (number.checked_sub(1)).and_then(|wire| u8::try_from(wire).ok());
    wire.and_then(find).ok_or_else(|| match number {
        0 => invalid(format!("the {kind} is not set")),
        _ => invalid(format!("invalid {kind} number {number}")),
    })
}

/// Returns the data type with this number.
pub fn dtype(number: u32) -> Result<DType> {
    named(number, "data type", DType::from_wire)
}

/// Returns the collective with this number.
pub fn collective(number: u32) -> Result<Collective> {
    named(number, "collective", Collective::from_wire)
}

/// Returns the operation with this number; `factor` is that of `RINGFOLD_PREMUL_SUM`.
pub fn op(number: u32, factor: f64) -> Result<Op> {
    named(number, "operation", |wire| {
        let op = Op::NAMES.get(wire as usize)?.parse().ok()?;
        Some(match op {
            Op::PremulSum(_) => Op::PremulSum(factor),
            other => other,
        })
    })
}
