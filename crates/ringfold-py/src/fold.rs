//! Combination of a rank's own arrays in the order of the canonical tree.

use pyo3::prelude::*;
use ringfold::Op;

use crate::buffer::Buffer;
use crate::exceptions::{exception, invalid_argument};

/// Combines `inputs` into `output`, all of one type and length.
#[pyfunction]
pub fn fold(
    py: Python<'_>,
    inputs: Vec<PyRef<'_, Buffer>>,
    output: PyRef<'_, Buffer>,
    op: &str,
) -> PyResult<()> {
    let (dtype, region) = (output.dtype(), output.region());
    for input in &inputs {
        if input.dtype() != dtype || input.region().bytes() != region.bytes() {
            return Err(invalid_argument(format!(
                "fold: an input of {} bytes of {} beside one of {} bytes of {dtype}; give arrays \
                 of one type and shape",
                input.region().bytes(),
                input.dtype(),
                region.bytes(),
            )));
        }
    }
    let regions: Vec<_> = inputs.iter().map(|input| input.region()).collect();
    let op: Op = op
        .parse()
        .map_err(ringfold::Error::from)
        .map_err(exception)?;
    let folded = py.detach(|| ringfold::fold_regions(dtype, &regions, op, region));
    folded.map_err(exception)
}
