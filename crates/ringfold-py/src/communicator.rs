//! The communicator of the Python module: one method for calls that block, one for calls that do
//! not.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use ringfold::internals::tune::Rules;
use ringfold::{Begun, Cancel, Config, Error, PeerStats, Result, Secret, Standing};

use crate::attach::attached;
use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::exceptions::exception;
use crate::memory::{Memory, Registration};
use crate::rendezvous::RendezvousListener;
use crate::request::{Request, named};
use crate::signals::{Parting, Signals, interruptible, seconds};
use crate::work::{Held, INTERRUPTED, Outstanding, Work, interrupted};

/// The fields of Python's `Stats`: calls, calls without a wait, and seconds waited; and for each
/// peer the calls in which it was last, its lateness in seconds, the maximum lateness, the seconds
/// waited for it, and the histogram.
type StatsParts = (u64, u64, f64, Vec<PeerParts>);
type PeerParts = (u64, f64, f64, f64, Vec<u64>);

/// The progress of a rank: collectives completed, collectives begun, and the call in which the rank
/// waits.
pub type Progress = (u64, u64, String);

/// Returns the progress of all ranks, as `ask` finds it within `timeout` seconds.
pub fn progress(
    py: Python<'_>,
    timeout: f64,
    ask: impl FnOnce(Duration) -> Result<Vec<Option<Standing>>> + Send + 'static,
) -> PyResult<Vec<Option<Progress>>> {
    let patience = seconds(Some(timeout))?.unwrap_or_default();
    let standings = interruptible(py, Parting::AtOnce, move || ask(patience), || ())?;
    let parts = |standing: Standing| (standing.finished, standing.begun, standing.call);
    let standings = standings.into_iter();
    Ok(standings.map(|standing| standing.map(parts)).collect())
}

/// A group of ranks.
#[pyclass(frozen, weakref, module = "ringfold._native")]
#[derive(Debug)]
pub struct Communicator {
    outstanding: Outstanding,
    core: Arc<Connection<ringfold::Communicator>>,
}

impl Communicator {
    fn new(core: ringfold::Communicator) -> Communicator {
        Communicator {
            outstanding: Outstanding::new(),
            core: Arc::new(Connection::new(core)),
        }
    }

    /// Returns the communicator, from which further objects are made; an error in a forked child.
    pub fn core(&self) -> PyResult<Arc<Connection<ringfold::Communicator>>> {
        self.core.check()?;
        Ok(Arc::clone(&self.core))
    }

    /// Makes a call and returns when the call is complete on this rank. Returns the sender of a
    /// receive.
    ///
    /// # Safety
    /// The call's memory is valid until this method returns, and not used otherwise.
    pub unsafe fn carry_out(
        &self,
        py: Python<'_>,
        call: &ringfold::Request,
    ) -> PyResult<Option<usize>> {
        self.core.check()?;
        self.outstanding.release_done();
        let core = &**self.core;
        let mut signals = Signals::default();
        // Most small calls end here. To release the GIL takes as long as such a call.
        // SAFETY: the caller's promise; a call under way is ended below.
        let outcome = match unsafe { core.begin(call) } {
            Ok(Begun::Done(source)) => return Ok(source),
            Ok(Begun::UnderWay(rest)) => {
                py.detach(|| core.see_through(rest, &mut || signals.look()))
            }
            Err(error) => Err(error),
        };
        signals.finish(py, outcome)?.map_err(exception)
    }

    /// Starts a call, whose handle is `work`.
    ///
    /// # Safety
    /// The call's memory is valid as long as `held`, and not used otherwise until the call is done.
    pub unsafe fn launch(
        &self,
        py: Python<'_>,
        call: ringfold::Request,
        held: Held,
        work: &Work,
    ) -> PyResult<()> {
        self.core.check()?;
        self.outstanding.release_done();
        let core = &**self.core;
        let started = match call.collective.is_message() {
            // A message that meets a broken connection waits for the verdict on its peer.
            // SAFETY: the caller's promise; the `Call` holds the memory until the work is done.
            true => py.detach(|| unsafe { core.start(call) }),
            // Most small calls end here. To release the GIL takes as long as such a call.
            // SAFETY: as above.
            false => unsafe { core.start(call) },
        };
        work.start(self.outstanding.keep(started.map_err(exception)?, held));
        Ok(())
    }
}

/// Returns the secret from a text. The error has no part of the secret, unlike Python's own.
fn secret_of(secret: &Bound<'_, PyAny>) -> PyResult<Secret> {
    if !secret.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("the argument `secret` must be a str"));
    }
    secret.extract::<String>().map(Secret::from).map_err(|_| {
        exception(Error::InvalidArgument(
            "the argument `secret` is not valid Unicode".into(),
        ))
    })
}

#[pymethods]
impl Communicator {
    /// Joins a job; a setting of `None` comes from the environment. Rank 0 may pass its listener
    /// instead of an address.
    #[staticmethod]
    #[pyo3(signature = (
        *, rank=None, world_size=None, address=None, secret=None, timeout=None,
        connect_timeout=None, peer_timeout=None, transport=None, algorithm=None, straggler=None,
        reproducible=None, protocol=None, max_channels=None, tuner_config=None, tuner_plugin=None,
        socket_ifname=None, sockets=None, listener=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn connect(
        py: Python<'_>,
        rank: Option<usize>,
        world_size: Option<usize>,
        address: Option<String>,
        secret: Option<Bound<'_, PyAny>>,
        timeout: Option<f64>,
        connect_timeout: Option<f64>,
        peer_timeout: Option<f64>,
        transport: Option<&str>,
        algorithm: Option<&str>,
        straggler: Option<&str>,
        reproducible: Option<bool>,
        protocol: Option<&str>,
        max_channels: Option<usize>,
        tuner_config: Option<PathBuf>,
        tuner_plugin: Option<String>,
        socket_ifname: Option<String>,
        sockets: Option<usize>,
        listener: Option<Py<RendezvousListener>>,
    ) -> PyResult<Communicator> {
        let rules = tuner_config.map(Rules::read);
        let cancel = Cancel::new();
        let config = Config {
            rank,
            world_size,
            address,
            secret: secret.as_ref().map(secret_of).transpose()?,
            timeout: seconds(timeout)?,
            connect_timeout: seconds(connect_timeout)?,
            peer_timeout: seconds(peer_timeout)?,
            transport: named(transport)?,
            algorithm: named(algorithm)?,
            straggler: named(straggler)?,
            reproducible,
            protocol: named(protocol)?,
            max_channels,
            tuner_rules: rules.transpose().map_err(exception)?,
            tuner_plugin,
            socket_ifname,
            sockets,
            cancel: Some(cancel.clone()),
            ..Config::default()
        };
        let listener = listener.map(|listener| listener.get().take()).transpose()?;
        let connect = move || match listener {
            Some(listener) => ringfold::Communicator::connect_at(config, listener),
            None => ringfold::Communicator::connect(config),
        };
        let interrupt = || py.detach(|| cancel.cancel(INTERRUPTED));
        interruptible(py, Parting::Patient, connect, interrupt).map(Communicator::new)
    }

    /// The job's number and this rank's number in it, while communicators can be made beside this
    /// one.
    #[getter]
    fn job(&self) -> Option<(u64, usize)> {
        self.core.place_in_job()
    }

    /// Makes a communicator of these ranks of the job, in this order; only these ranks call this
    /// method. `number` is the same on all of them, and used once.
    #[pyo3(signature = (ranks, number, timeout, connect_timeout, reproducible=None))]
    fn connect_beside(
        &self,
        py: Python<'_>,
        ranks: Vec<usize>,
        number: u64,
        timeout: f64,
        connect_timeout: f64,
        reproducible: Option<bool>,
    ) -> PyResult<Communicator> {
        self.core.check()?;
        let cancel = Cancel::new();
        let config = Config {
            timeout: seconds(Some(timeout))?,
            connect_timeout: seconds(Some(connect_timeout))?,
            reproducible,
            cancel: Some(cancel.clone()),
            ..Config::default()
        };
        let core = Arc::clone(&self.core);
        let connect = move || core.connect_beside(&ranks, number, &config);
        let interrupt = || py.detach(|| cancel.cancel(INTERRUPTED));
        interruptible(py, Parting::Patient, connect, interrupt).map(Communicator::new)
    }

    #[getter]
    pub fn rank(&self) -> usize {
        self.core.rank()
    }

    #[getter]
    pub fn world_size(&self) -> usize {
        self.core.world_size()
    }

    #[getter]
    fn local_rank(&self) -> usize {
        self.core.local_rank()
    }

    #[getter]
    fn local_size(&self) -> usize {
        self.core.local_size()
    }

    #[getter]
    fn hosts(&self) -> usize {
        self.core.hosts()
    }

    /// The transport: `shm`, `tcp`, `rdma`, `shm+tcp`, `shm+rdma`, or `self` in a job of one rank.
    #[getter]
    fn transport(&self) -> &'static str {
        self.core.transport()
    }

    /// Raises an exception if the core refuses `request`.
    fn check(&self, request: &Bound<'_, Request>) -> PyResult<()> {
        self.core.check()?;
        self.core
            .check_request(request.get().core())
            .map_err(exception)
    }

    /// Makes a call and returns when the call is complete on this rank. The result is `array`, in
    /// the framework of `like` unless that is `None`; with the sender, if any rank may be the
    /// sender.
    #[pyo3(signature = (request, array=None, like=None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, Request>,
        array: Option<Py<PyAny>>,
        like: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let request = request.get();
        // SAFETY: `request` holds its memory until the call is complete. The Python caller must not
        // use the memory meanwhile, as with every library that works on arrays without the GIL.
        let source = unsafe { self.carry_out(py, request.core()) }?;
        request.promise(array, like).result(py, source)
    }

    /// Starts a call, and returns its handle: `work`, or a new one, which has no result and does
    /// not keep the communicator open.
    #[pyo3(signature = (request, work=None))]
    fn start<'py>(
        &self,
        request: &Bound<'py, Request>,
        work: Option<Bound<'py, Work>>,
    ) -> PyResult<Bound<'py, Work>> {
        let work = match work {
            Some(work) => work,
            None => Bound::new(request.py(), request.get().handle(None, None, None))?,
        };
        let (call, held) = (request.get().core(), request.clone().into_any().unbind());
        // SAFETY: as in `run`.
        unsafe { self.launch(request.py(), call.clone(), (held, None), work.get()) }?;
        Ok(work)
    }

    /// Starts calls that are made together, each with its handle.
    fn start_group(
        &self,
        py: Python<'_>,
        calls: Vec<(Bound<'_, Request>, Bound<'_, Work>)>,
    ) -> PyResult<()> {
        self.core.check()?;
        self.outstanding.release_done();
        let core = &**self.core;
        let requests = calls.iter().map(|(request, _)| request.get().core());
        let requests: Vec<_> = requests.cloned().collect();
        let started = py.detach(|| {
            // SAFETY: the `Call` below of each request holds the request, and `outstanding` holds
            // the `Call`, until the work is done.
            unsafe { core.start_group(requests) }
        });
        for (started, (request, work)) in started.map_err(exception)?.into_iter().zip(calls) {
            let held = (request.into_any().unbind(), None);
            work.get().start(self.outstanding.keep(started, held));
        }
        Ok(())
    }

    /// Allocates registered memory; every rank calls this method.
    fn alloc(&self, py: Python<'_>, bytes: usize) -> PyResult<Memory> {
        self.core.check()?;
        let core = Arc::clone(&self.core);
        let alloc = move || core.alloc(bytes);
        interruptible(py, Parting::Patient, alloc, || interrupted(py, &self.core)).map(Memory::new)
    }

    /// Registers the memory of `buffer`; every rank calls this method.
    fn register(&self, py: Python<'_>, buffer: Py<Buffer>) -> PyResult<Registration> {
        self.core.check()?;
        let core = Arc::clone(&self.core);
        // The buffer moves to the thread and returns with the registration, so that neither
        // outlives it.
        let register = move || {
            // SAFETY: the buffer is held as long as the registration. The Python caller must not
            // use the memory during this call, nor while the registration ends.
            let registered = unsafe { core.register_region(buffer.get().region()) };
            registered.map(|registration| (registration, buffer))
        };
        let registered = interruptible(py, Parting::WhenDone, register, || {
            interrupted(py, &self.core)
        })?;
        Ok(Registration::new(registered.0, registered.1))
    }

    /// Makes communicators of the ranks with equal `color`; a rank with `None` gets none.
    #[pyo3(signature = (color, key=0))]
    fn split(
        &self,
        py: Python<'_>,
        color: Option<u32>,
        key: i64,
    ) -> PyResult<Option<Communicator>> {
        self.core.check()?;
        let core = Arc::clone(&self.core);
        let cancel = Cancel::new();
        let given_up = cancel.clone();
        let split = move || core.split_unless(color, key, &given_up);
        let interrupt = || {
            py.detach(|| cancel.cancel(INTERRUPTED));
            interrupted(py, &self.core);
        };
        let part = interruptible(py, Parting::Patient, split, interrupt)?;
        Ok(part.map(Communicator::new))
    }

    /// Returns the progress of all ranks: collectives completed, collectives begun, and the call in
    /// which each rank waits. `None` for ranks that do not answer within `timeout` seconds.
    fn standing(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<Option<Progress>>> {
        self.core.check()?;
        let core = Arc::clone(&self.core);
        progress(py, timeout, move |patience| core.standing(patience))
    }

    /// Returns the lateness statistics so far.
    fn stats(&self, py: Python<'_>) -> PyResult<StatsParts> {
        self.core.check()?;
        let stats = py.detach(|| self.core.stats());
        let peer = |peer: &PeerStats| {
            let [late, most, waited] =
                [peer.lateness, peer.most, peer.waited].map(|time| time.as_secs_f64());
            (peer.last, late, most, waited, peer.histogram.to_vec())
        };
        let peers = stats.peers.iter().map(peer).collect();
        let waited = stats.waited.as_secs_f64();
        Ok((stats.calls, stats.times_last, waited, peers))
    }

    /// Resets the lateness statistics to zero.
    fn reset_stats(&self, py: Python<'_>) -> PyResult<()> {
        self.core.check()?;
        py.detach(|| self.core.reset_stats());
        Ok(())
    }

    /// The ownership weights of the ranks in large all-reduces.
    #[getter]
    fn weights(&self) -> Option<Vec<u32>> {
        self.core.weights()
    }

    /// Sets the ownership weights; every rank calls this method.
    fn set_weights(&self, weights: Option<Vec<u32>>) -> PyResult<()> {
        self.core.check()?;
        self.core.set_weights(weights.as_deref()).map_err(exception)
    }

    /// Measures and sets the ownership weights; every rank calls this method.
    fn rebalance(&self, py: Python<'_>) -> PyResult<Option<Vec<u32>>> {
        self.core.check()?;
        let core = Arc::clone(&self.core);
        let rebalance = move || core.rebalance();
        interruptible(py, Parting::Patient, rebalance, || {
            interrupted(py, &self.core)
        })
    }

    /// Returns the error that has ended the communicator, if any.
    fn fault(&self) -> PyResult<Option<PyErr>> {
        self.core.check()?;
        Ok(self.core.fault().map(exception))
    }

    /// Ends the communicator on all ranks.
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        self.core.check()?;
        py.detach(|| self.core.abort(reason));
        Ok(())
    }

    /// Waits for the started calls that are not known to be done. The calls' handles report the
    /// errors.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        if !self.core.is_ours() {
            return Ok(());
        }
        for call in self.outstanding.all() {
            let _ = call.wait(py, None)?;
        }
        Ok(())
    }

    /// Waits for outstanding calls and closes the communicator. With `grace`, the wait for calls of
    /// other threads, after the started calls, takes at most `grace` seconds; then these calls are
    /// aborted.
    #[pyo3(signature = (grace=None))]
    fn close(&self, py: Python<'_>, grace: Option<f64>) -> PyResult<()> {
        if !self.core.is_ours() {
            return Ok(());
        }
        let grace = seconds(grace)?;
        if grace.is_some() {
            self.finish(py)?;
        }
        let begin = Instant::now();
        let mut signals = Signals::default();
        let mut look = || match grace {
            Some(grace) if begin.elapsed() > grace => Err(Error::Unsupported(
                "the interpreter ends while a thread is in a call".into(),
            )),
            _ => signals.look(),
        };
        let outcome = py.detach(|| self.core.close_with(&mut look));
        self.outstanding.release_done();
        // A call's handle reports the call's own failure.
        let _ = signals.finish(py, outcome)?;
        Ok(())
    }
}

impl Drop for Communicator {
    /// Waits for calls in progress, whose memory is released with them; a signal handler that
    /// raises ends them.
    fn drop(&mut self) {
        let calls = self.outstanding.all();
        if calls.is_empty() || !self.core.is_ours() {
            return;
        }
        // Without an interpreter there are no signal handlers: each call then waits for its own
        // end.
        attached(|py| {
            for call in &calls {
                if let Err(raised) = call.wait(py, None) {
                    raised.write_unraisable(py, None);
                }
            }
        });
    }
}
