//! Elementwise arithmetic over several buffers.

use crate::error::Result;
use crate::memory::Region;
use crate::types::{DType, Op};

/// The combining loop of one operation and data type, chosen for this CPU.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    dtype: DType,
    run: unsafe fn(*mut u8, &[*const u8], usize),
}

impl Kernel {
    /// The kernel of `op` (its combining part: `Avg` and `PremulSum` are sums) for `dtype`.
    pub fn new(op: Op, dtype: DType) -> Result<Kernel> {
        op.check(dtype)?;
        unsafe fn todo(_: *mut u8, _: &[*const u8], _: usize) {}
        Ok(Kernel { dtype, run: todo })
    }

    /// Sets every element of `into` to the combination of that element of `sources`, from first to last.
    ///
    /// All regions have the same length, a multiple of the element's size. `into` may be one of the sources; it may not
    /// overlap one in part. At least one source. 16-bit floats are accumulated in `F32` and rounded once.
    pub fn fold(&self, into: Region, sources: &[Region]) {
        let _ = (self.dtype, self.run, into, sources);
    }
}

/// What every element is scaled by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factor {
    /// Floats.
    Multiply(f64),
    /// Integers, truncating.
    Divide(u64),
}

/// into = from scaled.
pub fn scale(dtype: DType, into: Region, from: Region, factor: Factor) -> Result<()> {
    let _ = (dtype, factor, into, from);
    Ok(())
}
