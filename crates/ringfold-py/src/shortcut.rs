//! `torch.distributed.all_reduce` of one tensor, in a group that ringfold serves alone, without
//! torch's Python code.

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};

use crate::shortest::{ShortestSum, call};

/// The function behind torch's `all_reduce`, with a shorter path for the most frequent calls. All
/// others go to torch's own function.
#[pyclass(frozen, module = "ringfold._native")]
pub struct AllReduceShortcut {
    function: Py<PyAny>,
    /// The names of torch's module `distributed_c10d`.
    module: Py<PyDict>,
    /// Whether a mode observes torch's functions.
    is_observed: Py<PyAny>,
    /// The class of groups that ringfold serves alone, and its method `allreduce`.
    class: Py<PyAny>,
    method: Py<PyAny>,
}

#[pymethods]
impl AllReduceShortcut {
    #[new]
    fn new(
        function: Py<PyAny>,
        module: Py<PyDict>,
        is_observed: Py<PyAny>,
        class: &Bound<'_, PyAny>,
    ) -> PyResult<AllReduceShortcut> {
        Ok(AllReduceShortcut {
            function,
            module,
            is_observed,
            method: class.getattr("allreduce")?.unbind(),
            class: class.clone().unbind(),
        })
    }

    /// The name of torch's function, which appears in its log.
    #[getter]
    fn __name__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.function.bind(py).getattr(intern!(py, "__name__"))
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = args.py();
        match self.sum(args, kwargs)? {
            Some(made) => Ok(made.into_bound(py)),
            None => self.function.bind(py).call(args, kwargs),
        }
    }
}

impl AllReduceShortcut {
    /// Makes the call if it is of the usual form, and returns its handle, or Python's `None` if the
    /// caller waits; returns `None` otherwise.
    fn sum(
        &self,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let py = args.py();
        let Some(arguments) = Arguments::of(args, kwargs)? else {
            return Ok(None);
        };
        let world = self.module.bind(py).get_item(intern!(py, "_world"))?;
        let Some(world) = world else {
            return Ok(None);
        };
        let group = match arguments.group {
            Some(group) => group,
            None => world.getattr(intern!(py, "default_pg"))?,
        };
        if group.get_type_ptr().cast() != self.class.as_ptr()
            || !self
                .class
                .bind(py)
                .getattr(intern!(py, "allreduce"))?
                .is(&self.method)
        {
            return Ok(None);
        }
        // SAFETY: an object of a Python class, which has a dictionary; the result is a new
        // reference.
        let own = unsafe {
            let dictionary = ffi::PyObject_GenericGetDict(group.as_ptr(), std::ptr::null_mut());
            Bound::from_owned_ptr_or_err(py, dictionary)?
        };
        let own = own.cast_into::<PyDict>()?;
        let Some(path) = own.get_item(intern!(py, "_shortest"))? else {
            return Ok(None);
        };
        let path = path.cast_into::<ShortestSum>()?;
        let path = path.get();
        let coalesced = world.getattr(intern!(py, "pg_coalesce_state"))?;
        if !arguments.op.is_none_or(|op| path.is_sum(&op))
            || own.contains(intern!(py, "allreduce"))?
            || !coalesced.cast_into::<PyDict>()?.is_empty()
            || call(py, &self.is_observed)?.is_truthy()?
        {
            return Ok(None);
        }
        let (tensor, timeout_s) = (&arguments.tensor, path.timeout_s());
        match arguments.is_async {
            true => path.start(tensor, timeout_s),
            false => Ok(path.sum(tensor, timeout_s)?.then(|| py.None())),
        }
    }
}

/// The arguments of a call.
struct Arguments<'py> {
    tensor: Bound<'py, PyAny>,
    op: Option<Bound<'py, PyAny>>,
    group: Option<Bound<'py, PyAny>>,
    is_async: bool,
}

impl<'py> Arguments<'py> {
    /// Returns the arguments; `None` if they are not those of torch's function.
    fn of(
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<Arguments<'py>>> {
        let py = args.py();
        let count = args.len();
        if !(1..=4).contains(&count) {
            return Ok(None);
        }
        let mut named = 0;
        let mut argument = |at: usize, name| match kwargs {
            _ if at < count => args.get_item(at).map(Some),
            Some(kwargs) => {
                let found = kwargs.get_item(name)?;
                named += usize::from(found.is_some());
                Ok(found)
            }
            None => Ok(None),
        };
        let op = argument(1, intern!(py, "op"))?;
        let group = argument(2, intern!(py, "group"))?;
        let is_async = argument(3, intern!(py, "async_op"))?;
        let is_async = match is_async {
            Some(asked) => asked
                .cast_exact::<PyBool>()
                .ok()
                .map(|asked| asked.is_true()),
            None => Some(false),
        };
        let is_usual = kwargs.map_or(0, |kwargs| kwargs.len()) == named;
        let Some(is_async) = is_async.filter(|_| is_usual) else {
            return Ok(None);
        };
        Ok(Some(Arguments {
            tensor: args.get_item(0)?,
            op,
            group: group.filter(|group| !group.is_none()),
            is_async,
        }))
    }
}
