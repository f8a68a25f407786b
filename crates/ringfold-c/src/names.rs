//! Numbers of data types, operations and collectives.
//!
//! The numbers never change, and begin at 1, so that a field that was forgotten is an error. C can
//! pass any number for an enumeration, but Rust's enumerations have no other values: functions take
//! an integer of the same size, which the header declares as the enumeration.

use ringfold::{Collective, DType, Op, Result};

use crate::arguments::invalid;

/// The type of the elements of a call.
#[repr(C)]
#[allow(non_camel_case_types, reason = "C's names")]
pub enum DTypeName {
    /// Signed integer of 8 bits.
    RINGFOLD_INT8 = 1,
    /// Unsigned integer of 8 bits.
    RINGFOLD_UINT8 = 2,
    /// Signed integer of 16 bits.
    RINGFOLD_INT16 = 3,
    /// Unsigned integer of 16 bits.
    RINGFOLD_UINT16 = 4,
    /// Signed integer of 32 bits.
    RINGFOLD_INT32 = 5,
    /// Unsigned integer of 32 bits.
    RINGFOLD_UINT32 = 6,
    /// Signed integer of 64 bits.
    RINGFOLD_INT64 = 7,
    /// Unsigned integer of 64 bits.
    RINGFOLD_UINT64 = 8,
    /// IEEE half precision; sums are computed in 32 bits.
    RINGFOLD_FLOAT16 = 9,
    /// bfloat16; sums are computed in 32 bits.
    RINGFOLD_BFLOAT16 = 10,
    /// `float`.
    RINGFOLD_FLOAT32 = 11,
    /// `double`.
    RINGFOLD_FLOAT64 = 12,
    /// One byte, 0 or 1.
    RINGFOLD_BOOL = 13,
    /// 8-bit float with 4 exponent bits and no infinity; a result beyond 464 is NaN.
    RINGFOLD_FLOAT8_E4M3 = 14,
    /// 8-bit float with 5 exponent bits; a result from 61440 on is infinite.
    RINGFOLD_FLOAT8_E5M2 = 15,
}

/// A [`DTypeName`] as C passes it: any number, until checked.
pub type DTypeNumber = u32;

/// The operation that combines the elements of all ranks.
#[repr(C)]
#[allow(non_camel_case_types, reason = "C's names")]
pub enum OpName {
    /// Addition; integers wrap.
    RINGFOLD_SUM = 1,
    /// Multiplication; integers wrap.
    RINGFOLD_PROD = 2,
    /// The minimum; NaN if an element is NaN.
    RINGFOLD_MIN = 3,
    /// The maximum; NaN if an element is NaN.
    RINGFOLD_MAX = 4,
    /// The sum divided by the number of ranks; integers truncate.
    RINGFOLD_AVG = 5,
    /// The sum of each rank's input times its own `factor`; floats only.
    RINGFOLD_PREMUL_SUM = 6,
    /// Bitwise and.
    RINGFOLD_BAND = 7,
    /// Bitwise or.
    RINGFOLD_BOR = 8,
    /// Bitwise exclusive or.
    RINGFOLD_BXOR = 9,
}

/// An [`OpName`] as C passes it: any number, until checked.
pub type OpNumber = u32;

/// The collective, or the end of a message, of a `ringfold_request_t`.
#[repr(C)]
#[allow(non_camel_case_types, reason = "C's names")]
pub enum CollectiveName {
    /// Every rank gets the reduction of all inputs.
    RINGFOLD_ALL_REDUCE = 1,
    /// Every rank gets the root's input.
    RINGFOLD_BROADCAST = 2,
    /// The root gets the reduction of all inputs.
    RINGFOLD_REDUCE = 3,
    /// Every rank gets all inputs, in rank order.
    RINGFOLD_ALL_GATHER = 4,
    /// Rank i gets block i of the reduction of all inputs.
    RINGFOLD_REDUCE_SCATTER = 5,
    /// The root gets all inputs, in rank order.
    RINGFOLD_GATHER = 6,
    /// Rank i gets block i of the root's input.
    RINGFOLD_SCATTER = 7,
    /// Block j of rank i's input becomes block i of rank j's output.
    RINGFOLD_ALL_TO_ALL = 8,
    /// No rank leaves before all have entered.
    RINGFOLD_BARRIER = 9,
    /// A message to the rank `root`.
    RINGFOLD_SEND = 10,
    /// A message from the rank `root`.
    RINGFOLD_RECV = 11,
    /// Every rank sends to the next one and receives from the previous one.
    RINGFOLD_SENDRECV = 12,
}

/// A [`CollectiveName`] as C passes it: any number, until checked.
pub type CollectiveNumber = u32;

/// Returns the value with a number that C passed: one more than the number in the wire format.
fn named<T>(number: u32, kind: &str, find: impl Fn(u8) -> Option<T>) -> Result<T> {
    let wire = (number.checked_sub(1)).and_then(|wire| u8::try_from(wire).ok());
    wire.and_then(find).ok_or_else(|| match number {
        0 => invalid(format!("the {kind} is not set")),
        _ => invalid(format!("invalid {kind} number {number}")),
    })
}

/// Returns the data type with this number.
pub fn dtype(number: DTypeNumber) -> Result<DType> {
    named(number, "data type", DType::from_wire)
}

/// Returns the collective with this number.
pub fn collective(number: CollectiveNumber) -> Result<Collective> {
    named(number, "collective", Collective::from_wire)
}

/// Returns the operation with this number; `factor` is that of `RINGFOLD_PREMUL_SUM`.
pub fn op(number: OpNumber, factor: f64) -> Result<Op> {
    named(number, "operation", |wire| {
        let op = Op::NAMES.get(wire as usize)?.parse().ok()?;
        Some(match op {
            Op::PremulSum(_) => Op::PremulSum(factor),
            other => other,
        })
    })
}
