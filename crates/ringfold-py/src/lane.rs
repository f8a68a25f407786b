//! The lane of the Python module. Device memory and streams are numbers here: the framework that
//! made them keeps them alive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ringfold::env::Environment;
use ringfold::{Cancel, DeviceBuffer, DeviceRegion, Driver, Error, LaneConfig, ProgramStream};
use ringfold::{Region, Result, WaitPath};

use crate::communicator::{Communicator, Progress, progress};
use crate::connection::Connection;
use crate::exceptions::{exception, invalid_argument};
use crate::layout::dtype_named;
use crate::request::{self, CountsArgument, MemorySpan};
use crate::signals::{Parting, SIGNAL_PERIOD, Signals, interruptible, seconds};
use crate::work::{INTERRUPTED, interrupted};

/// A call on device memory; its input and output are lists of places, one after the other.
#[pyclass(frozen, module = "ringfold._native")]
#[derive(Debug)]
pub struct DeviceRequest {
    /// The call without its memory.
    request: ringfold::Request,
    input: Vec<MemorySpan>,
    output: Vec<MemorySpan>,
}

impl DeviceRequest {
    /// Returns the core's form of the request, on `device`.
    fn core(&self, device: usize) -> ringfold::DeviceRequest {
        let buffer = |places: &[MemorySpan]| {
            let region = |&(address, bytes): &MemorySpan| {
                // SAFETY: the Python caller keeps the memory until the call is done, and orders its
                // other uses.
                unsafe { DeviceRegion::new(device, address, bytes) }
            };
            DeviceBuffer::new(places.iter().map(region).collect())
        };
        self.request
            .with_memory(buffer(&self.input), buffer(&self.output))
    }
}

#[pymethods]
impl DeviceRequest {
    #[new]
    #[pyo3(signature = (
        collective, dtype, counts, input, output, *, op="sum", factor=1.0, root=0, tag=0,
        algorithm=None, timeout=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        collective: &str,
        dtype: &str,
        counts: CountsArgument,
        input: Vec<MemorySpan>,
        output: Vec<MemorySpan>,
        op: &str,
        factor: f64,
        root: Option<i64>,
        tag: i64,
        algorithm: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<DeviceRequest> {
        let dtype = dtype_named(dtype)?;
        let none = (Region::EMPTY, Region::EMPTY);
        let request = request::core(
            collective, dtype, counts, none, op, factor, root, tag, algorithm, timeout,
        )?;
        input.iter().chain(&output).try_for_each(check)?;
        Ok(DeviceRequest {
            request,
            input,
            output,
        })
    }
}

/// Refuses a place that cannot be memory.
fn check(&(address, bytes): &MemorySpan) -> PyResult<()> {
    if bytes > 0 && (address == 0 || address.checked_add(bytes).is_none()) {
        return Err(invalid_argument(format!(
            "invalid address {address:#x} for {bytes} bytes of device memory"
        )));
    }
    Ok(())
}

/// The device side of a communicator.
#[pyclass(frozen, weakref, module = "ringfold._native")]
pub struct Lane {
    core: Arc<Connection<ringfold::Lane>>,
}

#[pymethods]
impl Lane {
    /// Opens a lane of the ranks of `communicator`, over a communicator of its own, to device
    /// `ordinal`; every rank calls this method.
    #[staticmethod]
    #[pyo3(signature = (
        communicator, ordinal, *, slot_bytes=None, slice_bytes=None, depth=None, direct=true,
        one_shot=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn open(
        py: Python<'_>,
        communicator: &Bound<'_, Communicator>,
        ordinal: usize,
        slot_bytes: Option<usize>,
        slice_bytes: Option<usize>,
        depth: Option<u32>,
        direct: bool,
        one_shot: Option<bool>,
    ) -> PyResult<Lane> {
        let parent = communicator.get().core()?;
        let usual = LaneConfig::default();
        let config = LaneConfig {
            slot_bytes: slot_bytes.unwrap_or(usual.slot_bytes),
            slice_bytes,
            depth: depth.unwrap_or(usual.depth),
            direct,
            one_shot,
        };
        let cancel = Cancel::new();
        let (ranks, given_up) = (Arc::clone(&parent), cancel.clone());
        let open = move || open(&ranks, ordinal, config, &given_up);
        let interrupt = || {
            py.detach(|| cancel.cancel(INTERRUPTED));
            interrupted(py, &parent);
        };
        let core = interruptible(py, Parting::Patient, open, interrupt)?;
        Ok(Lane {
            core: Arc::new(Connection::new(core)),
        })
    }

    #[getter]
    fn rank(&self) -> usize {
        self.core.rank()
    }

    #[getter]
    fn world_size(&self) -> usize {
        self.core.world_size()
    }

    /// The ordinal of the device.
    #[getter]
    fn device(&self) -> usize {
        self.core.device().ordinal()
    }

    /// Whether joining a call blocks until the host has done its part.
    #[getter]
    fn waits_on_host(&self) -> bool {
        self.core.wait_path() == WaitPath::Host
    }

    /// The raw handle of the stream that stores results.
    #[getter]
    fn result_stream(&self) -> usize {
        self.core.result_stream()
    }

    /// Enqueues calls that are made together behind the work of the stream with handle `stream`,
    /// and returns at once.
    fn enqueue(
        &self,
        py: Python<'_>,
        requests: Vec<Bound<'_, DeviceRequest>>,
        stream: usize,
    ) -> PyResult<DeviceWork> {
        self.core.check()?;
        let (core, device) = (&**self.core, self.device());
        let calls = requests.iter().map(|request| request.get().core(device));
        let calls: Vec<_> = calls.collect();
        let stream = program_stream(stream);
        // A driver whose queues are full blocks its callers, so the GIL is not held.
        let enqueued = py.detach(|| {
            // SAFETY: the Python caller keeps the memory until the work is done, and orders its
            // other uses.
            unsafe { core.enqueue_group(calls, stream) }
        });
        Ok(DeviceWork {
            work: Connection::new(enqueued.map_err(exception)?),
            lane: Arc::clone(&self.core),
        })
    }

    /// Returns the error that has ended the lane, if any.
    fn fault(&self) -> PyResult<Option<PyErr>> {
        self.core.check()?;
        Ok(self.core.fault().map(exception))
    }

    /// Returns the progress of all ranks, like that of a communicator, in slices of calls.
    fn standing(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<Option<Progress>>> {
        self.core.check()?;
        let core = Arc::clone(&self.core);
        progress(py, timeout, move |patience| core.standing(patience))
    }

    /// Ends the lane on all ranks; streams continue.
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        self.core.check()?;
        py.detach(|| self.core.abort(reason));
        Ok(())
    }

    /// Waits until all calls are done, also on the device, and closes the lane. May be repeated. If
    /// a signal handler raises, the lane is aborted on all ranks.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.core.is_ours() {
            return Ok(());
        }
        let core = Arc::clone(&self.core);
        let close = move || core.close();
        let interrupt = || py.detach(|| self.core.abort(INTERRUPTED));
        interruptible(py, Parting::Patient, close, interrupt)
    }
}

/// Opens a lane of all ranks of `parent`. A rank without a driver takes part in the split, but not
/// in its result, so that the other ranks detect the failure, too.
fn open(
    parent: &ringfold::Communicator,
    ordinal: usize,
    config: LaneConfig,
    cancel: &Cancel,
) -> Result<ringfold::Lane> {
    let driver = Environment::read().and_then(|environment| {
        let Environment {
            cuda_library,
            hip_library,
            ..
        } = environment;
        Driver::find(cuda_library.as_deref(), hip_library.as_deref())
    });
    let part = parent.split_unless(driver.is_ok().then_some(0), 0, cancel)?;
    let driver = driver?;
    match part {
        Some(part) if part.world_size() == parent.world_size() => {
            ringfold::Lane::new(part, driver, ordinal, config)
        }
        _ => Err(Error::System {
            what:
                "a rank of this job has no device driver, so no rank has a lane; see that rank's \
                   error"
                    .into(),
            kind: std::io::ErrorKind::Other,
        }),
    }
}

/// Returns the caller's stream with this handle.
fn program_stream(handle: usize) -> ProgramStream {
    // SAFETY: the Python caller's guarantee.
    unsafe { ProgramStream::from_handle(handle) }
}

/// Calls on device memory that were made together.
#[pyclass(frozen, module = "ringfold._native")]
pub struct DeviceWork {
    work: Connection<ringfold::DeviceWork>,
    lane: Arc<Connection<ringfold::Lane>>,
}

#[pymethods]
impl DeviceWork {
    /// Makes the stream with handle `stream` wait until the calls are done. Raises the error that
    /// has ended the lane. Blocks if the lane waits on the host; if a signal handler raises then,
    /// the lane is aborted on all ranks.
    fn join(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        self.lane.check()?;
        let stream = program_stream(stream);
        let mut signals = Signals::default();
        let outcome = py.detach(|| {
            while !self.work.can_join(SIGNAL_PERIOD) {
                self.look(&mut || signals.look())?;
            }
            self.work.join(stream)
        });
        signals.finish(py, outcome)?.map_err(exception)
    }

    /// Returns whether the device has completed the calls: their memory may then be used for
    /// something else.
    fn done(&self) -> PyResult<bool> {
        self.lane.check()?;
        Ok(self.work.is_done())
    }

    /// Blocks until the device has completed the calls, at most `timeout` seconds; returns whether
    /// it has. Raises the error that has ended the lane. If a signal handler raises, the lane is
    /// aborted on all ranks.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.lane.check()?;
        let span = seconds(timeout)?.unwrap_or(Duration::MAX);
        let mut signals = Signals::default();
        let outcome = py.detach(|| self.wait_with(span, &mut || signals.look()));
        signals.finish(py, outcome)?.map_err(exception)
    }
}

impl DeviceWork {
    fn wait_with(&self, span: Duration, look: &mut dyn FnMut() -> Result<()>) -> Result<bool> {
        let begin = Instant::now();
        loop {
            let left = span.saturating_sub(begin.elapsed());
            if self.work.wait_on_host(left.min(SIGNAL_PERIOD))? {
                return Ok(true);
            }
            if left <= SIGNAL_PERIOD {
                return Ok(false);
            }
            self.look(look)?;
        }
    }

    /// Aborts the lane if a signal handler has raised.
    fn look(&self, look: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let looked = look();
        if looked.is_err() {
            self.lane.abort(INTERRUPTED);
        }
        looked
    }
}
