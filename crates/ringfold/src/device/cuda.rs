//! CUDA's driver: its library, opened once, and each of its calls as a function on our types.
//!
//! This file and those below it are the only ones that call the driver. A call that fails becomes
//! an [`Error`] with the function's name and CUDA's name of the code.

mod calls;
mod library;
mod table;

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::io;
use std::ptr;
use std::sync::Mutex;

use library::Library;
use table::Table;

use crate::error::{Error, Result};
use crate::sync::lock;

/// The library that the driver installs.
const LIBRARY: &str = "libcuda.so.1";
/// `CUDA_ERROR_*`: codes for which there is more to say than their name.
const OUT_OF_MEMORY: c_int = 2;
const NOT_INITIALIZED: c_int = 3;
const DEINITIALIZED: c_int = 4;
const NO_DEVICE: c_int = 100;
const NOT_READY: c_int = 600;
const ALREADY_REGISTERED: c_int = 712;
const NOT_SUPPORTED: c_int = 801;
/// The codes after which every call of the process answers the same, until it ends.
const LOST_CONTEXT: [c_int; 5] = [700, 702, 714, 718, 719];

/// The driver of a process.
#[derive(Debug)]
pub struct Driver {
    table: Table,
    /// As CUDA writes versions: 12080 is 12.8.
    version: u32,
}

impl Driver {
    /// The driver in `library`, or in the one that is installed. The first call loads it.
    pub fn open(library: Option<&str>) -> Result<&'static Driver> {
        static OPEN: Mutex<BTreeMap<String, &'static Driver>> = Mutex::new(BTreeMap::new());
        let name = library.unwrap_or(LIBRARY);
        let mut open = lock(&OPEN);
        if let Some(driver) = open.get(name) {
            return Ok(driver);
        }
        // A library is never unloaded, so what describes it need not go either.
        let driver: &Driver = Box::leak(Box::new(Driver::load(name)?));
        open.insert(name.into(), driver);
        Ok(driver)
    }

    fn load(name: &str) -> Result<Driver> {
        let library = Library::open(name).map_err(|why| {
            Error::Unsupported(format!(
                "device tensors need CUDA's driver, and it cannot be loaded: {why}; install \
                 NVIDIA's driver, or name its library in RINGFOLD_CUDA_LIBRARY"
            ))
        })?;
        let table = Table::load(&library).map_err(|symbol| {
            Error::Unsupported(format!(
                "`{name}` does not have {}: device tensors need the driver of CUDA 11.4 or newer",
                symbol.to_string_lossy()
            ))
        })?;
        let mut driver = Driver { table, version: 0 };
        driver.initialize()?;
        driver.version = driver.read_version()?;
        Ok(driver)
    }

    /// Its version, as major and minor number: the newest CUDA that it supports.
    pub fn version(&self) -> (u32, u32) {
        (self.version / 1000, self.version % 1000 / 10)
    }

    /// Whether streams can wait for words and write them. A device may still refuse.
    pub fn has_memory_operations(&self) -> bool {
        self.table.wait_value.is_some() && self.table.write_value.is_some()
    }

    /// The error of a `call` that returned `code`, unless that is success.
    fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(self.failure(call, code))
    }

    /// Whether what `call` asked about is done, by its code.
    fn is_done(&self, call: &str, code: c_int) -> Result<bool> {
        match code {
            NOT_READY => Ok(false),
            code => self.check(call, code).map(|()| true),
        }
    }

    #[cold]
    fn failure(&self, call: &str, code: c_int) -> Error {
        let name = self.name_of(code);
        let advice = match code {
            NOT_INITIALIZED => {
                "; CUDA does not work in a process forked after its first use: spawn it instead"
            }
            DEINITIALIZED => "; the process is ending",
            NO_DEVICE => "; this process sees no GPU (CUDA_VISIBLE_DEVICES)",
            ALREADY_REGISTERED => "; another part of this program has pinned the memory",
            code if LOST_CONTEXT.contains(&code) => {
                "; an earlier operation of this process has failed on the GPU, and its context is \
                 lost: restart the process"
            }
            _ => "",
        };
        let what = format!("{call}: {name}{advice}");
        match code {
            NOT_SUPPORTED | NO_DEVICE => Error::Unsupported(what),
            OUT_OF_MEMORY => Error::System {
                what,
                kind: io::ErrorKind::OutOfMemory,
            },
            _ => Error::System {
                what,
                kind: io::ErrorKind::Other,
            },
        }
    }

    /// CUDA's name of a code.
    fn name_of(&self, code: c_int) -> String {
        let mut name = ptr::null();
        // SAFETY: the driver stores a pointer in `name`.
        let known = unsafe { (self.table.error_name)(code, &mut name) };
        if known != 0 || name.is_null() {
            return format!("CUDA error {code}");
        }
        // SAFETY: the driver's own text, which ends with a zero and is never freed.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_driver_gets_an_error_with_the_way_out() {
        let error = Driver::open(Some("libringfold-no-such-driver.so")).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("libringfold-no-such-driver.so"), "{text}");
        assert!(text.contains("RINGFOLD_CUDA_LIBRARY"), "{text}");
    }

    #[test]
    fn a_library_that_is_no_driver_is_named_with_what_it_lacks() {
        let text = Driver::open(Some("libc.so.6")).unwrap_err().to_string();
        assert!(text.contains("`libc.so.6` does not have cuInit"), "{text}");
    }
}
