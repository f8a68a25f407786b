//! RDMA devices, through libibverbs.
//!
//! The library is opened when a device is first searched for. A machine without the library, a
//! device or permission is normal: [`Verbs::open`] and [`Verbs::devices`] report it, and another
//! transport is used.
//!
//! `layout` and `table` are the interface to the library: its structures and functions. Only this
//! module calls the library.
//!
//! *Source.* The manual pages of rdma-core, `ibv_*(3)`.

mod choice;
mod device;
mod domain;
mod layout;
#[cfg(test)]
mod layout_tests;
mod pair;
mod queue;
mod table;

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

pub use choice::{DeviceChoice, OpenedPort};
pub use device::{LinkLayer, Port, PortState, RdmaDevice};
pub use domain::{Domain, MemoryAccess, MemoryRegion};
pub use layout::Gid;
pub use pair::{Depths, LinkOptions, Piece, QueuePair, RemoteAddress, Route};
pub use queue::{CompletionQueue, WorkCompletion, WorkOutcome};

use crate::error::{Error, Result};
use crate::sys::fork::with_locked;
use crate::sys::library::Library;
use layout::Text;
use table::VerbsFunctions;

/// The library's file name for programs; the name without a number is for builds.
const LIBRARY: &str = "libibverbs.so.1";

/// The variable that names another library.
pub const LIBRARY_VARIABLE: &str = "RINGFOLD_VERBS_LIBRARY";

/// An opened libibverbs.
#[derive(Debug)]
pub struct Verbs {
    table: VerbsFunctions,
}

impl Verbs {
    /// Opens the library that is `named`, or the installed one. The first call loads it; it stays
    /// loaded.
    ///
    /// # Errors
    /// `Unsupported` if there is no library, or one that lacks a function.
    pub fn open(named: Option<&str>) -> Result<&'static Verbs> {
        type Open = BTreeMap<Option<String>, &'static Verbs>;
        static OPEN: Mutex<Open> = Mutex::new(BTreeMap::new());
        let key = named.map(str::to_owned);
        if let Some(verbs) = with_locked(&OPEN, |open| open.get(&key).copied()) {
            return Ok(verbs);
        }
        let name = named.unwrap_or(LIBRARY);
        let library = Library::open(Some(name)).map_err(|why| {
            Error::Unsupported(format!(
                "cannot load `{name}`, which RDMA needs: {why}; install rdma-core (libibverbs1, \
                 ibverbs-providers), or name the library in {LIBRARY_VARIABLE}"
            ))
        })?;
        let table = VerbsFunctions::load(&library, named.is_none()).map_err(|missing| {
            Error::Unsupported(format!(
                "`{name}` does not have {missing}: the library is too old for RDMA"
            ))
        })?;
        // The library is never unloaded, so its table may leak.
        let verbs: &Verbs = Box::leak(Box::new(Verbs { table }));
        Ok(with_locked(&OPEN, |open| *open.entry(key).or_insert(verbs)))
    }

    /// Returns the error of a call that returned `code`, unless `code` is 0. Some calls return
    /// `errno`, some set it and return -1.
    fn check(&self, call: &str, code: c_int) -> Result<()> {
        match code {
            0 => Ok(()),
            -1 => Err(self.failure(call)),
            code => Err(failed(call, io::Error::from_raw_os_error(code))),
        }
    }

    /// Returns the error of a call that has just set `errno`.
    #[cold]
    fn failure(&self, call: &str) -> Error {
        failed(call, io::Error::last_os_error())
    }
}

/// Returns the error of a call that failed for this reason.
fn failed(call: &str, why: io::Error) -> Error {
    let advice = match why.kind() {
        io::ErrorKind::OutOfMemory => {
            "; raise the limit of locked memory (`ulimit -l unlimited`, or --ulimit memlock=-1 for \
             a container)"
        }
        io::ErrorKind::PermissionDenied => "; a container needs --device=/dev/infiniband",
        _ => "",
    };
    Error::system(format!("ibv_{call}{advice}"), why)
}

/// Makes a descriptor of the library non-blocking.
fn unblock(descriptor: BorrowedFd<'_>) -> Result<()> {
    fcntl_getfl(descriptor)
        .and_then(|flags| fcntl_setfl(descriptor, flags | OFlags::NONBLOCK))
        .map_err(|error| Error::system("cannot make a device's descriptor non-blocking", error))
}

/// Copies a text of the library.
///
/// # Safety
/// `text` is null or a C string that stays valid during the call.
unsafe fn text(text: Text) -> String {
    if text.is_null() {
        return "unknown".into();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_library_gets_an_error_with_the_way_out() {
        let error = Verbs::open(Some("libringfold-no-such-verbs.so")).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
        let text = error.to_string();
        for part in [
            "libringfold-no-such-verbs.so",
            "rdma-core",
            LIBRARY_VARIABLE,
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_library_that_is_another_is_named_with_what_it_lacks() {
        let text = Verbs::open(Some("libc.so.6")).unwrap_err().to_string();
        assert!(
            text.contains("`libc.so.6` does not have ibv_get_device_list"),
            "{text}"
        );
    }

    #[test]
    fn locked_memory_that_is_used_up_is_said_with_the_limit() {
        let why = io::Error::from_raw_os_error(libc::ENOMEM);
        let text = failed("reg_mr", why).to_string();
        assert!(
            text.contains("ibv_reg_mr") && text.contains("ulimit -l"),
            "{text}"
        );
    }
}
