//! Communicators: joining a job, properties, splits, and the end.

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use ringfold::{Communicator as Core, Error, RendezvousListener};

use crate::arguments::{borrowed, check_place, invalid, store, text};
use crate::config::Config;
use crate::status::{Status, free, guard};

/// The `color` in `ringfold_split` of a rank that is in no part.
pub const RINGFOLD_NO_COLOR: c_int = -1;

/// A group of ranks that communicate. All functions may be called from any thread; calls of several
/// threads are executed in the order in which they are made, which must be the same on all ranks.
pub struct Communicator {
    core: Core,
    transport: CString,
}

impl Communicator {
    fn new(core: Core) -> Communicator {
        let transport = CString::new(core.transport()).unwrap_or_default();
        Communicator { core, transport }
    }

    /// Returns the library's communicator.
    pub fn core(&self) -> &Core {
        &self.core
    }
}

/// A listener of rank 0, whose address the other ranks do not know yet.
pub struct Listener {
    address: CString,
    core: Option<RendezvousListener>,
}

/// Joins the job that the environment describes (`RINGFOLD_*`, torchrun, mpirun, srun and others).
/// A process without such an environment is a job of one rank. Waits until all ranks have joined,
/// or the deadline for joining has passed.
///
/// # Safety
/// `comm` is a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_init(comm: *mut *mut Communicator) -> Status {
    // SAFETY: the caller's promise.
    unsafe { ringfold_connect(ptr::null(), ptr::null_mut(), comm) }
}

/// Joins the job that `config` describes; settings that `config` lacks come from the environment,
/// or all of them if `config` is null. Rank 0 may pass a listener, which is used up, also by a
/// failure; other ranks pass null.
///
/// # Safety
/// `config` and `listener` are handles or null; `comm` is a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_connect(
    config: *const Config,
    listener: *mut Listener,
    comm: *mut *mut Communicator,
) -> Status {
    ringfold_tuner_host::register();
    guard(|| {
        check_place(comm, "comm")?;
        // SAFETY: the caller's promise.
        let config = match unsafe { config.as_ref() } {
            Some(config) => config.core()?,
            None => ringfold::Config::default(),
        };
        // SAFETY: the caller's promise.
        let core = match unsafe { listener.as_mut() } {
            None => Core::connect(config),
            Some(listener) => match listener.core.take() {
                Some(listener) => Core::connect_at(config, listener),
                None => Err(invalid(
                    "the listener has been used already; open another one",
                )),
            },
        }?;
        let made = Box::into_raw(Box::new(Communicator::new(core)));
        // SAFETY: checked above.
        unsafe { store(comm, made, "comm") }
    })
}

/// Opens a listener on free ports of this host's addresses, for rank 0 of a job whose ranks pass on
/// its address themselves. `toward` is a host name, an address or null; this host's address on the
/// route to `toward` is listed first.
///
/// # Safety
/// `toward` is a text or null; `listener` is a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_listener_open(
    toward: *const c_char,
    listener: *mut *mut Listener,
) -> Status {
    guard(|| {
        check_place(listener, "listener")?;
        let toward = match toward.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { text(toward, "toward") }?),
        };
        let core = RendezvousListener::open(toward)?;
        let address = CString::new(core.address()).unwrap_or_default();
        let core = Some(core);
        let made = Box::into_raw(Box::new(Listener { address, core }));
        // SAFETY: checked above.
        unsafe { store(listener, made, "listener") }
    })
}

/// Returns the address for the other ranks' `ringfold_config_set(config, "address", ...)`; null if
/// `listener` is null. Valid until the listener is freed.
///
/// # Safety
/// `listener` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_listener_address(listener: *const Listener) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { listener.as_ref() }.map_or(ptr::null(), |listener| listener.address.as_ptr())
}

/// Frees a listener; null is ignored.
///
/// # Safety
/// `listener` is a handle, which is not used afterwards, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_listener_free(listener: *mut Listener) {
    // SAFETY: the caller's promise.
    unsafe { free(listener) };
}

/// Returns a number of a communicator; -1 if `comm` is null.
///
/// # Safety
/// `comm` is a handle or null.
unsafe fn number(comm: *const Communicator, number: impl FnOnce(&Core) -> usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { comm.as_ref() }.map_or(-1, |comm| number(&comm.core) as c_int)
}

/// Returns this process' rank in the communicator; -1 if `comm` is null.
///
/// # Safety
/// `comm` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_rank(comm: *const Communicator) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { number(comm, Core::rank) }
}

/// Returns the number of ranks; -1 if `comm` is null.
///
/// # Safety
/// `comm` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_world_size(comm: *const Communicator) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { number(comm, Core::world_size) }
}

/// Returns this rank's number among the ranks of its host; -1 if `comm` is null.
///
/// # Safety
/// `comm` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_local_rank(comm: *const Communicator) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { number(comm, Core::local_rank) }
}

/// Returns the number of ranks on this host; -1 if `comm` is null.
///
/// # Safety
/// `comm` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_local_size(comm: *const Communicator) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { number(comm, Core::local_size) }
}

/// Returns the number of hosts; -1 if `comm` is null.
///
/// # Safety
/// `comm` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_hosts(comm: *const Communicator) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { number(comm, Core::hosts) }
}

/// Returns the transport: "shm", "tcp", "rdma", "shm+tcp", "shm+rdma", or "self" in a job of one
/// rank; null if `comm` is null. Valid until the communicator is freed.
///
/// # Safety
/// `comm` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_transport(comm: *const Communicator) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { comm.as_ref() }.map_or(ptr::null(), |comm| comm.transport.as_ptr())
}

/// Makes communicators of the ranks with equal `color`, ordered by `key`, then by rank here. All
/// ranks call this function; a rank whose color is `RINGFOLD_NO_COLOR` gets null.
///
/// # Safety
/// `comm` is a handle or null; `part` is a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_split(
    comm: *const Communicator,
    color: c_int,
    key: i64,
    part: *mut *mut Communicator,
) -> Status {
    guard(|| {
        check_place(part, "part")?;
        // SAFETY: the caller's promise.
        let comm = unsafe { borrowed(comm, "comm") }?.core();
        let color = match (color, u32::try_from(color)) {
            (RINGFOLD_NO_COLOR, _) => None,
            (_, Ok(color)) => Some(color),
            (color, Err(_)) => {
                return Err(invalid(format!("invalid color {color}; use 0 or more")));
            }
        };
        let made = comm.split(color, key)?;
        let boxed = |core| Box::into_raw(Box::new(Communicator::new(core)));
        // SAFETY: checked above.
        unsafe { store(part, made.map_or(ptr::null_mut(), boxed), "part") }
    })
}

/// Returns the status of the error that has ended the communicator, or `RINGFOLD_OK`. The error's
/// text and ranks are available as those of a failed call. Never blocks; works while another thread
/// is in a call.
///
/// # Safety
/// `comm` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_fault(comm: *const Communicator) -> Status {
    guard(|| {
        // SAFETY: the caller's promise.
        let comm = unsafe { borrowed(comm, "comm") }?.core();
        comm.fault().map_or(Ok(()), Err)
    })
}

/// Ends the communicator on all ranks: calls that wait in it fail with `RINGFOLD_ABORTED`, and name
/// this rank and `reason`. Not for signal handlers.
///
/// # Safety
/// `comm` is a handle or null; `reason` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_abort(
    comm: *const Communicator,
    reason: *const c_char,
) -> Status {
    guard(|| {
        // SAFETY: the caller's promise.
        let comm = unsafe { borrowed(comm, "comm") }?.core();
        if comm.is_forked() {
            let text = "a forked child cannot abort its parent's communicator";
            return Err(Error::Unsupported(text.into()));
        }
        // SAFETY: the caller's promise.
        comm.abort(unsafe { text(reason, "reason") }?);
        Ok(())
    })
}

/// Closes the communicator: waits for this rank's calls, and says goodbye to the peers. Later calls
/// fail with `RINGFOLD_CLOSED`. Not collective; repeated calls do no harm.
///
/// # Safety
/// `comm` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_close(comm: *const Communicator) -> Status {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { borrowed(comm, "comm") }?.core().close()
    })
}

/// Frees a communicator; null is ignored. A communicator that was not closed is closed as by
/// `ringfold_close`, but without waiting: if calls are in progress, it is aborted on all ranks.
///
/// # Safety
/// `comm` is a handle, which is not used afterwards, or null. No other thread is in a call of the
/// communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_free(comm: *mut Communicator) {
    // SAFETY: the caller's promise.
    unsafe { free(comm) };
}
