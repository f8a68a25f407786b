//! One call's arguments, as the Python package passes them.

use std::str::FromStr;

use pyo3::prelude::*;
use ringfold::{Collective, Counts, DType, Error, Op, Region, Target};

use crate::buffer::Buffer;
use crate::exceptions::{exception, invalid_argument};
use crate::layout::dtype_named;
use crate::signals::seconds;
use crate::work::{Promised, Work};

/// The address of memory and its number of bytes; `(0, 0)` is none.
pub type MemorySpan = (usize, usize);

/// The number of elements: a number, a list with one per rank, or a pair of lists (sent to,
/// received from each rank).
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

/// A call to make, and the objects that keep its memory alive.
#[pyclass(frozen, module = "ringfold._native")]
#[derive(Debug)]
pub struct Request {
    request: ringfold::Request,
    #[allow(dead_code, reason = "held, not read")]
    memory: RequestMemory,
}

#[derive(Debug)]
#[allow(dead_code, reason = "held, not read")]
enum RequestMemory {
    Buffers(Option<Py<Buffer>>, Option<Py<Buffer>>),
    Owner(Option<Py<PyAny>>),
}

impl Request {
    /// Returns the core's form of the request; its regions are valid as long as `self` is held.
    pub fn core(&self) -> &ringfold::Request {
        &self.request
    }

    /// Returns the result of the call, which is `array` in the framework of `like`.
    pub fn promise(&self, array: Option<Py<PyAny>>, like: Option<Py<PyAny>>) -> Promised {
        Promised {
            array,
            like,
            has_source: self.request.target == Target::AnySource,
        }
    }
}

#[pymethods]
impl Request {
    #[new]
    #[pyo3(signature = (
        collective, counts, input, output, *, op="sum", factor=1.0, root=0, tag=0, algorithm=None,
        timeout=None, reproducible=false
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        collective: &str,
        counts: CountsArgument,
        input: Option<Py<Buffer>>,
        output: Option<Py<Buffer>>,
        op: &str,
        factor: f64,
        root: Option<i64>,
        tag: i64,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        reproducible: bool,
    ) -> PyResult<Request> {
        let (read, filled) = (input.as_ref().map(Py::get), output.as_ref().map(Py::get));
        let regions = (
            read.map_or(Region::EMPTY, Buffer::region),
            filled.map_or(Region::EMPTY, Buffer::region),
        );
        let dtype = same_dtype(read, filled)?;
        let mut request = core(
            collective, dtype, counts, regions, op, factor, root, tag, algorithm, timeout,
        )?;
        request.options.reproducible = reproducible;
        Ok(Request {
            request,
            memory: RequestMemory::Buffers(input, output),
        })
    }

    /// Makes a request for memory by its address: contiguous, aligned, in this process, and kept
    /// alive by `owner`. The caller guarantees these properties; only null and misaligned addresses
    /// are refused.
    #[staticmethod]
    #[pyo3(signature = (
        collective, dtype, counts, input, output, *, op="sum", factor=1.0, root=0, tag=0,
        algorithm=None, timeout=None, owner=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn raw(
        collective: &str,
        dtype: &str,
        counts: CountsArgument,
        input: MemorySpan,
        output: MemorySpan,
        op: &str,
        factor: f64,
        root: Option<i64>,
        tag: i64,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        owner: Option<Py<PyAny>>,
    ) -> PyResult<Request> {
        let dtype = dtype_named(dtype)?;
        let regions = (region(input, dtype)?, region(output, dtype)?);
        Ok(Request {
            request: core(
                collective, dtype, counts, regions, op, factor, root, tag, algorithm, timeout,
            )?,
            memory: RequestMemory::Owner(owner),
        })
    }

    /// Returns the handle of the call, which is still to be started. `communicator` stays open as
    /// long as the handle exists; the other arguments are those of `Communicator.run`.
    #[pyo3(signature = (communicator=None, array=None, like=None))]
    pub fn handle(
        &self,
        communicator: Option<Py<PyAny>>,
        array: Option<Py<PyAny>>,
        like: Option<Py<PyAny>>,
    ) -> Work {
        Work::new(communicator, self.promise(array, like))
    }
}

/// Returns a call's arguments in the core's form.
#[allow(clippy::too_many_arguments, reason = "as many as a call has")]
pub fn core(
    collective: &str,
    dtype: DType,
    counts: CountsArgument,
    (input, output): (Region, Region),
    op: &str,
    factor: f64,
    root: Option<i64>,
    tag: i64,
    algorithm: Option<&str>,
    timeout: Option<f64>,
) -> PyResult<ringfold::Request> {
    let collective: Collective = collective.parse().map_err(exception)?;
    let mut request = ringfold::Request::new(collective, dtype, counts.into(), input, output);
    request.op = match op.parse().map_err(exception)? {
        Op::PremulSum(_) => Op::PremulSum(factor),
        other => other,
    };
    request.target = match root {
        Some(root) => usize::try_from(root)
            .map(|rank| Target::of(collective, rank))
            .map_err(|_| {
                invalid_argument(format!("{collective} with rank {root}; ranks count from 0"))
            })?,
        None if collective == Collective::Recv => Target::AnySource,
        None => {
            return Err(invalid_argument(format!(
                "{collective} without a rank; only `recv` can omit it"
            )));
        }
    };
    request.tag = u32::try_from(tag)
        .map_err(|_| invalid_argument(format!("tag {tag}; tags are 0 to {}", u32::MAX)))?;
    request.options.algorithm = named(algorithm)?;
    request.options.timeout = seconds(timeout)?;
    Ok(request)
}

/// Returns the memory at a place that a Python caller vouches for.
fn region((address, bytes): MemorySpan, dtype: DType) -> PyResult<Region> {
    if bytes == 0 {
        return Ok(Region::EMPTY);
    }
    if address == 0 || !address.is_multiple_of(dtype.size_bytes()) {
        return Err(invalid_argument(format!(
            "invalid address {address:#x} for {bytes} bytes of {dtype}: null, or not aligned to \
             the type"
        )));
    }
    let start = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the Python caller's guarantee; the request holds the memory's owner, and every call
    // holds the request.
    Ok(unsafe { Region::new(start, bytes) })
}

/// Parses a choice from its name; `None` leaves the choice to the library.
pub fn named<T: FromStr<Err: Into<Error>>>(name: Option<&str>) -> PyResult<Option<T>> {
    name.map(str::parse::<T>).transpose().map_err(exception)
}

/// Returns the type of the buffers' elements; a barrier has neither buffers nor a type.
fn same_dtype(input: Option<&Buffer>, output: Option<&Buffer>) -> PyResult<DType> {
    match (input.map(Buffer::dtype), output.map(Buffer::dtype)) {
        (Some(input), Some(output)) if input != output => Err(invalid_argument(format!(
            "the input has type {input}, the output {output}; they must be the same"
        ))),
        (Some(dtype), _) | (None, Some(dtype)) => Ok(dtype),
        (None, None) => Ok(DType::U8),
    }
}
