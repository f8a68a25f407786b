//! CUDA's driver, or HIP in its place: its library, opened once, and each of its calls as a
//! function on our types.
//!
//! This file and those below it are the only ones that call the driver. A call that fails becomes
//! an [`Error`] with the function's name and the driver's name of the code.

mod calls;
mod platform;
mod selection;
mod table;

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::io;
use std::ptr;
use std::sync::Mutex;

use selection::Selection;
use table::Table;

pub use platform::Platform;
pub(in crate::device) use selection::Outer;

use crate::error::{Error, Result};
use crate::sys::fork::with_locked;
use crate::sys::library::Library;

/// `CUDA_ERROR_*` and `hipError*`: codes for which there is more to say than their name.
const OUT_OF_MEMORY: c_int = 2;
const NOT_INITIALIZED: c_int = 3;
const DEINITIALIZED: c_int = 4;
const NO_DEVICE: c_int = 100;
const NOT_READY: c_int = 600;
const ALREADY_REGISTERED: c_int = 712;
const NOT_SUPPORTED: c_int = 801;
/// Before HIP 6, kinds of memory had other numbers.
const OLDEST_HIP: u32 = 6;
/// The codes after which every call of the process answers the same, until it ends.
const LOST_CONTEXT: [c_int; 5] = [700, 702, 714, 718, 719];

/// The driver of a process.
#[derive(Debug)]
pub struct Driver {
    platform: Platform,
    table: Table,
    selection: Selection,
    /// As the driver writes versions.
    version: u32,
}

impl Driver {
    /// CUDA's driver in `library`, or in the one that is installed. The first call loads it.
    pub fn open(library: Option<&str>) -> Result<&'static Driver> {
        Driver::of(Platform::Cuda, library)
    }

    /// The driver of `platform` in `library`, or in the one that is installed. The first call loads
    /// it.
    pub fn of(platform: Platform, library: Option<&str>) -> Result<&'static Driver> {
        type Open = BTreeMap<(Platform, Option<String>), &'static Driver>;
        static OPEN: Mutex<Open> = Mutex::new(BTreeMap::new());
        let key = (platform, library.map(str::to_owned));
        if let Some(driver) = with_locked(&OPEN, |open| open.get(&key).copied()) {
            return Ok(driver);
        }
        // A library is never unloaded, so what describes it need not go either.
        let driver: &Driver = Box::leak(Box::new(Driver::load(platform, library)?));
        Ok(with_locked(&OPEN, |open| {
            *open.entry(key).or_insert(driver)
        }))
    }

    /// The driver of this machine: of the platform whose library is named, else CUDA's, else HIP's.
    ///
    /// # Errors
    /// That of CUDA's driver, if there is none.
    pub fn find(cuda: Option<&str>, hip: Option<&str>) -> Result<&'static Driver> {
        if cuda.is_none() && hip.is_some() {
            return Driver::of(Platform::Hip, hip);
        }
        let found = Driver::open(cuda);
        match &found {
            Err(Error::Unsupported(_)) if cuda.is_none() => {
                Driver::of(Platform::Hip, None).or(found)
            }
            _ => found,
        }
    }

    fn load(platform: Platform, named: Option<&str>) -> Result<Driver> {
        let names = named.as_slice();
        let names = if names.is_empty() {
            platform.libraries()
        } else {
            names
        };
        let (library, name) = Library::first(names).map_err(|why| {
            Error::Unsupported(format!(
                "device tensors need {}'s driver, and it cannot be loaded: {why}; install it, or \
                 name its library in {}",
                platform.name(),
                platform.library_variable()
            ))
        })?;
        let too_old = |lacks: String| {
            Error::Unsupported(format!(
                "`{name}` {lacks}: device tensors need {} or newer",
                platform.oldest()
            ))
        };
        let missing =
            |symbol: &CStr| too_old(format!("does not have {}", symbol.to_string_lossy()));
        let mut driver = Driver {
            platform,
            table: Table::load(&library, platform).map_err(missing)?,
            selection: Selection::load(&library, platform).map_err(missing)?,
            version: 0,
        };
        driver.initialize()?;
        driver.version = driver.read_version()?;
        if platform == Platform::Hip && driver.version().0 < OLDEST_HIP {
            let (major, minor) = driver.version();
            return Err(too_old(format!("is HIP {major}.{minor}")));
        }
        Ok(driver)
    }

    /// Whose driver it is.
    pub fn platform(&self) -> Platform {
        self.platform
    }

    /// Its version, as major and minor number: for CUDA's, the newest CUDA that it supports.
    pub fn version(&self) -> (u32, u32) {
        self.platform.version(self.version)
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
                "; a driver does not work in a process forked after its first use: spawn it instead"
            }
            DEINITIALIZED => "; the process is ending",
            NO_DEVICE => "; this process sees no GPU (CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES)",
            ALREADY_REGISTERED => "; another part of this program has pinned the memory",
            code if LOST_CONTEXT.contains(&code) => {
                "; an earlier operation of this process has failed on the GPU, and its context is \
                 lost: restart the process"
            }
            _ => "",
        };
        let what = format!("{}: {name}{advice}", self.platform.call(call));
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

    /// The driver's name of a code.
    fn name_of(&self, code: c_int) -> String {
        let mut name = ptr::null();
        // SAFETY: the driver stores a pointer in `name`.
        let known = unsafe { (self.table.error_name)(code, &mut name) };
        if known != 0 || name.is_null() {
            return format!("{} error {code}", self.platform.name());
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
