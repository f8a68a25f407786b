//! The most frequent call of training, an `all_reduce` of torch that sums one small tensor in
//! place, without Python code but for the handle of an asynchronous call.
//!
//! Any call that is not of this form, or that something observes, is left to Python.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList};
use ringfold::{Collective, Counts};

use crate::communicator::Communicator;
use crate::flight::{Counter, FlightRing, Sum, now_ns};
use crate::layout::Kind;
use crate::signals::seconds;
use crate::usual::{Usual, usual};
use crate::work::{Promised, Work};

/// Functions of torch that tell whether something observes the calls of this thread, and the types
/// and values of the usual options.
#[derive(FromPyObject)]
struct TorchChecks {
    /// The number of dispatch modes.
    #[pyo3(item)]
    count_modes: Py<PyAny>,
    /// Whether the profiler runs.
    #[pyo3(item)]
    is_profiled: Py<PyAny>,
    /// The level of function transforms, or none.
    #[pyo3(item)]
    transform_level: Py<PyAny>,
    /// Whether handles are registered with torch.
    #[pyo3(item)]
    is_noticed: Py<PyAny>,
    #[pyo3(item)]
    options: Py<PyAny>,
    #[pyo3(item)]
    sum: Py<PyAny>,
    /// A timeout that is not set, unless it is longer.
    #[pyo3(item)]
    no_time: Py<PyAny>,
}

/// The sums of one group.
#[pyclass(frozen, module = "ringfold._native")]
pub struct ShortestSum {
    communicator: Py<Communicator>,
    trace: Py<PyAny>,
    ring: Py<FlightRing>,
    collectives: Py<Counter>,
    /// The handle of a call that is done.
    done: Py<PyAny>,
    /// Started calls whose results are still to be copied, which such a call must not overtake.
    unsettled: Py<PyDict>,
    torch: TorchChecks,
    bytes_max: usize,
    /// The default deadline, as bits.
    timeout_s: AtomicU64,
    is_off: AtomicBool,
}

#[pymethods]
impl ShortestSum {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "the parts of a group")]
    fn new(
        communicator: Py<Communicator>,
        trace: Py<PyAny>,
        ring: Py<FlightRing>,
        collectives: Py<Counter>,
        done: Py<PyAny>,
        unsettled: Py<PyDict>,
        torch: TorchChecks,
        bytes_max: usize,
    ) -> ShortestSum {
        ShortestSum {
            communicator,
            trace,
            ring,
            collectives,
            done,
            unsettled,
            torch,
            bytes_max,
            timeout_s: AtomicU64::new(0),
            is_off: AtomicBool::new(false),
        }
    }

    #[getter]
    pub fn timeout_s(&self) -> f64 {
        f64::from_bits(self.timeout_s.load(Ordering::Relaxed))
    }

    #[setter]
    fn set_timeout_s(&self, seconds: f64) {
        self.timeout_s.store(seconds.to_bits(), Ordering::Relaxed);
    }

    /// Whether all calls are left to Python.
    #[getter]
    fn is_off(&self) -> bool {
        self.is_off.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_is_off(&self, is_off: bool) {
        self.is_off.store(is_off, Ordering::Relaxed);
    }

    /// Makes the call of `allreduce(tensors, opts)` and returns its handle; `None` for a call that
    /// is left to Python.
    fn all_reduce(
        &self,
        tensors: &Bound<'_, PyAny>,
        opts: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let py = opts.py();
        if opts.get_type_ptr().cast() != self.torch.options.as_ptr() {
            return Ok(None);
        }
        let Ok(tensors) = tensors.cast_exact::<PyList>() else {
            return Ok(None);
        };
        let is_async = opts.getattr(intern!(py, "asyncOp"))?.is_truthy()?;
        if tensors.len() != 1 || !opts.getattr(intern!(py, "reduceOp"))?.eq(&self.torch.sum)? {
            return Ok(None);
        }
        let timeout = opts.getattr(intern!(py, "timeout"))?;
        let timeout_s = match timeout.gt(&self.torch.no_time)? {
            true => timeout
                .call_method0(intern!(py, "total_seconds"))?
                .extract()?,
            false => self.timeout_s(),
        };
        let tensor = tensors.get_item(0)?;
        match is_async {
            true => self.start(&tensor, timeout_s),
            false => {
                let is_made = self.sum(&tensor, timeout_s)?;
                Ok(is_made.then(|| self.done.clone_ref(py)))
            }
        }
    }
}

/// A sum whose record is in the ring.
struct Begun<'a> {
    request: ringfold::Request,
    memory: Usual<'a>,
    id: u64,
    number: u64,
    timeout_s: f64,
    created_ns: u64,
}

impl ShortestSum {
    /// Returns whether this object is the value of `torch.distributed.ReduceOp.SUM`.
    pub fn is_sum(&self, op: &Bound<'_, PyAny>) -> bool {
        self.torch.sum.is(op)
    }

    /// Sums `tensor` in place; returns false if the call is left to Python.
    pub fn sum(&self, tensor: &Bound<'_, PyAny>, timeout_s: f64) -> PyResult<bool> {
        let py = tensor.py();
        let Some(begun) = self.begin(tensor, timeout_s)? else {
            return Ok(false);
        };
        // SAFETY: the caller holds the tensor until the call is complete, and must not use its
        // memory meanwhile.
        match unsafe { self.communicator.get().carry_out(py, &begun.request) } {
            Ok(_) => {
                self.ring.get().complete(begun.id);
                Ok(true)
            }
            Err(error) => self.fail(py, &begun, error),
        }
    }

    /// Starts to sum `tensor` in place; returns the handle, or `None` if the call is left to
    /// Python.
    pub fn start(&self, tensor: &Bound<'_, PyAny>, timeout_s: f64) -> PyResult<Option<Py<PyAny>>> {
        let py = tensor.py();
        if call(py, &self.torch.is_noticed)?.is_truthy()? {
            return Ok(None);
        }
        let Some(begun) = self.begin(tensor, timeout_s)? else {
            return Ok(None);
        };
        let work = Bound::new(py, Work::new(None, Promised::nothing()))?;
        let held = (tensor.clone().unbind(), None);
        // SAFETY: the tensor is held until the call is complete. The caller must not use its memory
        // meanwhile.
        let started = unsafe {
            let communicator = self.communicator.get();
            communicator.launch(py, begun.request.clone(), held, work.get())
        };
        if let Err(error) = started {
            return self.fail(py, &begun, error);
        }
        let has_succeeded = work.get().has_succeeded();
        if has_succeeded {
            self.ring.get().complete(begun.id);
        }
        let parts = (!has_succeeded).then(|| self.record(py, &begun).into_parts());
        static HANDLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let handle = HANDLE.import(py, "ringfold.torch.work", "started_sum")?;
        let handle = handle.call1((work, tensor, &self.communicator, parts))?;
        Ok(Some(handle.unbind()))
    }

    /// Puts the record of a sum of `tensor` into the ring, and returns the call; `None` if the call
    /// is left to Python.
    fn begin<'a>(
        &self,
        tensor: &'a Bound<'_, PyAny>,
        timeout_s: f64,
    ) -> PyResult<Option<Begun<'a>>> {
        let py = tensor.py();
        if self.is_off() || !self.unsettled.bind(py).is_empty() || self.is_observed(py)? {
            return Ok(None);
        }
        let Some(memory) = usual(tensor).filter(|memory| memory.kind == Kind::Torch) else {
            return Ok(None);
        };
        let region = memory.region();
        if region.bytes() >= self.bytes_max {
            return Ok(None);
        }
        let counts = Counts::Even(memory.count() as u64);
        let mut request =
            ringfold::Request::new(Collective::AllReduce, memory.dtype, counts, region, region);
        request.options.timeout = seconds(Some(timeout_s))?;
        let begun = Begun {
            request,
            memory,
            id: self.ring.get().next_id(),
            number: self.collectives.get().next(),
            timeout_s,
            created_ns: now_ns(),
        };
        self.ring.get().begin(self.record(py, &begun));
        Ok(Some(begun))
    }

    fn record(&self, py: Python<'_>, begun: &Begun<'_>) -> Sum {
        Sum {
            trace: self.trace.clone_ref(py),
            id: begun.id,
            number: begun.number,
            dtype: begun.memory.dtype,
            shape: begun.memory.shape.to_vec(),
            timeout_s: begun.timeout_s,
            created_ns: begun.created_ns,
            completed_ns: 0,
        }
    }

    /// Records the error of a sum, and returns the error.
    fn fail<T>(&self, py: Python<'_>, begun: &Begun<'_>, error: PyErr) -> PyResult<T> {
        let issue = py.import(intern!(py, "ringfold.torch.issue"))?;
        let ended = (self.record(py, begun).into_parts(), error.value(py));
        issue.call_method1(intern!(py, "end_sum"), ended)?;
        Err(error)
    }

    /// Returns whether a mode, a transform or the profiler observes the calls of this thread.
    fn is_observed(&self, py: Python<'_>) -> PyResult<bool> {
        let torch = &self.torch;
        Ok(call(py, &torch.count_modes)?.is_truthy()?
            || call(py, &torch.is_profiled)?.is_truthy()?
            || !call(py, &torch.transform_level)?.is_none())
    }
}

/// Calls a function without arguments.
pub fn call<'py>(py: Python<'py>, function: &Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: an object, which is called with no arguments; the result is a new reference or null.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyObject_CallNoArgs(function.as_ptr())) }
}
