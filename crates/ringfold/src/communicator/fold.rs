//! A rank's own values combined as a collective combines those of ranks.

#![forbid(unsafe_code)]

use super::typed::{readable, writable};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::reduce::ReductionKernel;
use crate::types::{DType, Op};

/// Sets each element of `output` to the combination of that element of all `inputs`, in the order
/// of the canonical tree ([`Config::reproducible`](crate::Config::reproducible)).
///
/// If each rank combines a power of two inputs, and then makes a reproducible all-reduce, the
/// result has the bits of an all-reduce in which each input is a rank's own. So 8 ranks with an
/// input each, and 4 ranks with 2 inputs each, compute the same. `fold` rounds 16- and 8-bit
/// floats, and the all-reduce rounds them again: convert such inputs to `f32` first to get the same
/// bits.
///
/// Needs no communicator, and may be called from any thread.
///
/// # Errors
///
/// `InvalidArgument` if there is no input, an input has another length than `output`, the type does
/// not have the operation, or `op` is `Avg` or `PremulSum`, which belong to the ranks.
///
/// ```
/// use ringfold::Op;
///
/// let mut gradient = [0f32; 2];
/// ringfold::fold(&[&[1.0, 2.0], &[3.0, 4.0], &[5.0, 6.0]], Op::Sum, &mut gradient)?;
/// assert_eq!(gradient, [9.0, 12.0]);
/// # Ok::<(), ringfold::Error>(())
/// ```
pub fn fold<T: Element>(inputs: &[&[T]], op: Op, output: &mut [T]) -> Result<()> {
    if let Some(input) = inputs.iter().find(|input| input.len() != output.len()) {
        return Err(Error::InvalidArgument(format!(
            "fold: an input of {} elements for an output of {}; give inputs of the output's length",
            input.len(),
            output.len()
        )));
    }
    let sources: Vec<Region> = inputs.iter().map(|input| readable(input)).collect();
    fold_regions(T::DTYPE, &sources, op, writable(output))
}

/// Does the same as [`fold`] with memory, all of one length; `output` may be one of the inputs.
pub fn fold_regions(dtype: DType, inputs: &[Region], op: Op, output: Region) -> Result<()> {
    if inputs.is_empty() {
        return Err(Error::InvalidArgument(
            "fold: no input; give one at least".into(),
        ));
    }
    if op != op.combining() {
        return Err(Error::InvalidArgument(format!(
            "fold: operation `{op}` needs the number of ranks; use sum, and scale the result"
        )));
    }
    ReductionKernel::new(op, dtype)?.fold(output, inputs);
    Ok(())
}
