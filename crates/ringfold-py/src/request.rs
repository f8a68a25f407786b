//! One call's arguments, as the Python package gives them.

use pyo3::prelude::*;
use ringfold::memory::Region;
use ringfold::{Algorithm, Collective, Counts, DType, Op};

use crate::buffer::Buffer;
use crate::exceptions::{exception, invalid_argument};
use crate::signals::seconds;

/// How many elements: a number, a list with one for each rank, or a pair of lists (given to, got from each rank).
#[derive(FromPyObject)]
pub enum CountsArgument {
    Even(u64),
    Pairwise((Vec<u64>, Vec<u64>)),
    PerRank(Vec<u64>),
}

impl From<CountsArgument> for Counts {
    fn from(argument: CountsArgument) -> Counts {
        match argument {
            CountsArgument::Even(count) => Counts::Even(count),
            CountsArgument::PerRank(counts) => Counts::PerRank(counts),
            CountsArgument::Pairwise((input, output)) => Counts::Pairwise { input, output },
        }
    }
}

/// A call to make, with the buffers that it uses.
#[pyclass(frozen, module = "ringfold._native")]
#[derive(Debug)]
pub struct Request {
    request: ringfold::Request,
    input: Option<Py<Buffer>>,
    output: Option<Py<Buffer>>,
}

impl Request {
    /// The core's form; its regions are valid as long as `self`, or what `buffers` gives, is held.
    pub fn core(&self) -> &ringfold::Request {
        &self.request
    }

    /// The buffers, to be held by whoever outlives this request.
    pub fn buffers(&self, py: Python<'_>) -> Vec<Py<Buffer>> {
        let both = [&self.input, &self.output];
        both.iter()
            .filter_map(|buffer| buffer.as_ref().map(|held| held.clone_ref(py)))
            .collect()
    }
}

#[pymethods]
impl Request {
    #[new]
    #[pyo3(signature = (collective, counts, input, output, *, op="sum", factor=1.0, root=0, tag=0, algorithm=None, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        collective: &str,
        counts: CountsArgument,
        input: Option<Py<Buffer>>,
        output: Option<Py<Buffer>>,
        op: &str,
        factor: f64,
        root: usize,
        tag: u32,
        algorithm: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Request> {
        let collective: Collective = collective.parse().map_err(exception)?;
        let (read, filled) = (input.as_ref().map(Py::get), output.as_ref().map(Py::get));
        let mut request = ringfold::Request::new(
            collective,
            same_dtype(read, filled)?,
            counts.into(),
            read.map_or(Region::EMPTY, Buffer::region),
            filled.map_or(Region::EMPTY, Buffer::region),
        );
        request.op = match op.parse().map_err(exception)? {
            Op::PremulSum(_) => Op::PremulSum(factor),
            other => other,
        };
        request.root = root;
        request.tag = tag;
        request.algorithm = algorithm_named(algorithm)?;
        request.timeout = seconds(timeout)?;
        Ok(Request {
            request,
            input,
            output,
        })
    }
}

/// The algorithm of that name; `None` leaves the choice to the tuner.
pub fn algorithm_named(name: Option<&str>) -> PyResult<Option<Algorithm>> {
    name.map(|name| name.parse().map_err(exception)).transpose()
}

/// The type of the buffers' elements; a barrier has neither, and no type.
fn same_dtype(input: Option<&Buffer>, output: Option<&Buffer>) -> PyResult<DType> {
    match (input.map(Buffer::dtype), output.map(Buffer::dtype)) {
        (Some(input), Some(output)) if input != output => Err(invalid_argument(format!(
            "the input has type {input}, the output {output}; they must be the same"
        ))),
        (Some(dtype), _) | (None, Some(dtype)) => Ok(dtype),
        (None, None) => Ok(DType::U8),
    }
}
