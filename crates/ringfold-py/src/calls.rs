//! The calls of Python's `Communicator` on usual arrays, without Python code.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use pyo3::{Borrowed, intern};
use ringfold::{Collective, Counts, Op};

use crate::communicator::Communicator;
use crate::layout::Kind;
use crate::usual::{empty_like, usual};

/// The base class of Python's `Communicator`, which makes all calls that are not usual.
#[pyclass(subclass, frozen, module = "ringfold._native")]
#[derive(Debug)]
pub struct Calls {
    native: Py<Communicator>,
    /// The calls collected in each thread's open group.
    groups: Py<PyDict>,
}

/// An argument that was given, or is left at its default.
pub struct Given<'py>(Option<Bound<'py, PyAny>>);

impl<'a, 'py> FromPyObject<'a, 'py> for Given<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Given<'py>> {
        Ok(Given(Some(object.to_owned())))
    }
}

impl Given<'_> {
    /// Returns the operation, if it has a name alone.
    fn operation(&self) -> Option<Op> {
        let Some(given) = &self.0 else {
            return Some(Op::Sum);
        };
        let name = given.cast::<PyString>().ok()?.to_str().ok()?;
        let op = name.parse().ok()?;
        (!matches!(op, Op::PremulSum(_))).then_some(op)
    }
}

#[pymethods]
impl Calls {
    #[new]
    fn new(py: Python<'_>, native: Py<Communicator>) -> Calls {
        Calls {
            native,
            groups: PyDict::new(py).unbind(),
        }
    }

    #[getter]
    fn _native(&self, py: Python<'_>) -> Py<Communicator> {
        self.native.clone_ref(py)
    }

    #[getter]
    fn _groups(&self, py: Python<'_>) -> Py<PyDict> {
        self.groups.clone_ref(py)
    }

    /// Return a new array, the reduction of all `x`; `x` stays unchanged unless `out=x`.
    ///
    /// torch.distributed's `all_reduce` and mpi4py's with `IN_PLACE` store the result in `x`.
    #[pyo3(
        signature = (
            x, op=Given(None), *, out=None, async_=None, timeout=None, algorithm=None,
            reproducible=false
        ),
        text_signature = "($self, x, op='sum', *, out=None, async_=False, timeout=None, \
                          algorithm=None, reproducible=False)"
    )]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn all_reduce<'py>(
        slf: &Bound<'py, Self>,
        x: Bound<'py, PyAny>,
        op: Given<'py>,
        out: Option<Bound<'py, PyAny>>,
        async_: Option<Bound<'py, PyAny>>,
        timeout: Option<Bound<'py, PyAny>>,
        algorithm: Option<Bound<'py, PyAny>>,
        reproducible: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let is_async = match &async_ {
            Some(asked) => asked.is_truthy()?,
            None => false,
        };
        if !is_async
            && timeout.is_none()
            && algorithm.is_none()
            && let Some(op) = op.operation()
            && let Some(result) = slf.get().reduce_usual(&x, op, out.as_ref(), reproducible)?
        {
            return Ok(result);
        }
        let others = PyDict::new(py);
        if let Some(op) = op.0 {
            others.set_item("op", op)?;
        }
        others.set_item("out", out)?;
        others.set_item("async_", is_async)?;
        others.set_item("timeout", timeout)?;
        others.set_item("algorithm", algorithm)?;
        others.set_item("reproducible", reproducible)?;
        slf.call_method(intern!(py, "_all_reduce"), (x,), Some(&others))
    }
}

impl Calls {
    /// Reduces `x` if it and the result are usual arrays; returns the result.
    fn reduce_usual<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        op: Op,
        out: Option<&Bound<'py, PyAny>>,
        reproducible: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = x.py();
        let Some(source) = usual(x) else {
            return Ok(None);
        };
        if !self.groups.bind(py).is_empty() {
            return Ok(None);
        }
        let result = match out {
            Some(out) => out.clone(),
            None if source.kind == Kind::Buffer => empty_like(x)?,
            None => return Ok(None),
        };
        let other = match result.is(x) {
            true => None,
            false => Some(usual(&result)),
        };
        let Some(target) = other.as_ref().map_or(Some(&source), Option::as_ref) else {
            return Ok(None);
        };
        let (dtype, count) = (source.dtype, source.count());
        if target.is_read_only || target.dtype != dtype || target.count() != count {
            return Ok(None);
        }
        let (input, output) = (source.region(), target.region());
        let (collective, counts) = (Collective::AllReduce, Counts::Even(count as u64));
        let mut request = ringfold::Request::new(collective, dtype, counts, input, output);
        request.op = op;
        request.options.reproducible = reproducible;
        // SAFETY: both arrays are held until the call is complete. The Python caller must not use
        // their memory meanwhile, as with every library that works on arrays without the GIL.
        unsafe { self.native.get().carry_out(py, &request) }?;
        Ok(Some(result))
    }
}
