//! Functions of the Python module that need no communicator: this process' rank, the address of
//! rank 0, and which processes share a host.

use std::sync::Mutex;

use pyo3::prelude::*;
use ringfold::internals::control::{Launch, RendezvousAddress};
use ringfold::internals::setup::Explicit;
use ringfold::internals::sync::lock;
use ringfold::internals::topology::HostId;

use crate::exceptions::{exception, invalid_argument};

/// Listeners at which the other ranks reach rank 0; valid for one `Communicator.connect`.
#[pyclass(frozen, module = "ringfold._native")]
#[derive(Debug)]
pub struct RendezvousListener {
    address: String,
    open: Mutex<Option<ringfold::RendezvousListener>>,
}

impl RendezvousListener {
    /// Takes the listeners, which are then used up.
    pub fn take(&self) -> PyResult<ringfold::RendezvousListener> {
        let open = lock(&self.open).take();
        open.ok_or_else(|| {
            invalid_argument("the listener has been used already; open one for every communicator")
        })
    }
}

#[pymethods]
impl RendezvousListener {
    /// Opens listeners on free ports of this host's addresses; the address on the route to `toward`
    /// is first.
    #[staticmethod]
    #[pyo3(signature = (toward=None))]
    fn open(py: Python<'_>, toward: Option<&str>) -> PyResult<RendezvousListener> {
        let listener = py
            .detach(|| ringfold::RendezvousListener::open(toward))
            .map_err(exception)?;
        Ok(RendezvousListener {
            address: listener.address(),
            open: Mutex::new(Some(listener)),
        })
    }

    /// The address for the other ranks: candidates, separated by commas.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }
}

/// Returns a text that is equal in two processes exactly if they would share memory.
#[pyfunction]
pub fn host_id() -> PyResult<String> {
    let id = HostId::here().map_err(exception)?;
    Ok(id
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// Returns a key for `purpose` that only the ranks of this job can make; `None` if the environment
/// has no secret.
#[pyfunction]
pub fn derived_key(purpose: &str, context: &[u8]) -> PyResult<Option<Vec<u8>>> {
    let secret = ringfold::env::job_secret().map_err(exception)?;
    Ok(secret.map(|secret| secret.derive(purpose, context).to_vec()))
}

/// The process' rank and the number of ranks, the same two on its host if the launcher provides
/// them, and the launcher.
type LaunchPlace = (usize, usize, Option<usize>, Option<usize>, &'static str);

/// Returns this process' identity according to the environment, and the hosts on which rank 0 may
/// be; no hosts if all ranks are on one.
#[pyfunction]
pub fn launch() -> PyResult<(LaunchPlace, Vec<String>)> {
    ringfold::env::init_logging().map_err(exception)?;
    let launch = Launch::detect(&Explicit::default()).map_err(exception)?;
    launch.warn();
    let place = (
        launch.rank,
        launch.world_size,
        launch.local_rank,
        launch.local_world_size,
        launch.origin,
    );
    let hosts = launch
        .addresses
        .into_iter()
        .filter_map(|address| match address {
            RendezvousAddress::Tcp { host, .. } => Some(host),
            RendezvousAddress::Unix { .. } => None,
        });
    Ok((place, hosts.collect()))
}
