//! Shared libraries that are loaded at run time, and never unloaded: drivers, and plugins.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

/// An opened library, which is never closed.
#[derive(Debug)]
pub struct Library(*mut c_void);

impl Library {
    /// Opens the library `name`, a path or a name for the dynamic linker to search; `None` is the
    /// program itself. A library is loaded once, even if another part of the program has loaded it.
    ///
    /// # Errors
    /// The linker's message.
    pub fn open(name: Option<&str>) -> Result<Library, String> {
        Library::load(name, 0)
    }

    fn load(name: Option<&str>, flags: c_int) -> Result<Library, String> {
        let name = name.map(CString::new).transpose();
        let name = name.map_err(|_| "the name contains a zero byte".to_owned())?;
        let name = name.as_deref().map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: the name is null or ends with a zero. The user asked to run the library's code by
        // installing or naming it.
        let handle = unsafe { libc::dlopen(name, libc::RTLD_NOW | libc::RTLD_LOCAL | flags) };
        if handle.is_null() {
            Err(failure())
        } else {
            Ok(Library(handle))
        }
    }

    /// Returns the first of `names` that another part of the program has loaded, else the first
    /// that can be opened, and its name. If none can be opened, the error is that of the first.
    pub fn first<'a>(names: &[&'a str]) -> Result<(Library, &'a str), String> {
        let with_flags = |flags| {
            names
                .iter()
                .map(move |name| (Library::load(Some(name), flags), *name))
        };
        let loaded =
            with_flags(libc::RTLD_NOLOAD).find_map(|(found, name)| Some((found.ok()?, name)));
        if let Some(loaded) = loaded {
            return Ok(loaded);
        }
        let mut refusal = None;
        for (opened, name) in with_flags(0) {
            match opened {
                Ok(library) => return Ok((library, name)),
                Err(why) => refusal.get_or_insert(why),
            };
        }
        Err(refusal.unwrap_or_default())
    }

    /// Returns the address of `symbol`; `None` if the library does not export it.
    pub fn symbol(&self, symbol: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is from `load`, and never closed; the symbol ends with a zero.
        let address = unsafe { libc::dlsym(self.0, symbol.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    /// Returns the address of `symbol` in its `version`; `None` if the library does not export it.
    pub fn versioned_symbol(&self, symbol: &CStr, version: &CStr) -> Option<*mut c_void> {
        // SAFETY: as in `symbol`; the version ends with a zero, too.
        let address = unsafe { libc::dlvsym(self.0, symbol.as_ptr(), version.as_ptr()) };
        (!address.is_null()).then_some(address)
    }
}

/// Returns why the last call of the dynamic linker on this thread failed.
fn failure() -> String {
    // SAFETY: it has no preconditions.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown error of the dynamic linker".into();
    }
    // SAFETY: text of the linker that ends with a zero and stays until its next call on this
    // thread.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_loaded_has_its_symbols_and_another_a_reason() {
        let program = Library::open(None).unwrap();
        assert!(program.symbol(c"malloc").is_some());
        assert!(program.symbol(c"ringfold_no_such_symbol").is_none());
        let missing = "libringfold-no-such-library.so";
        let why = Library::first(&[missing, "libringfold-nor-this.so"]).unwrap_err();
        assert!(why.contains(missing), "{why}");
        let (_, name) = Library::first(&[missing, "libc.so.6"]).unwrap();
        assert_eq!(name, "libc.so.6");
        assert!(
            Library::open(Some("a\0b"))
                .unwrap_err()
                .contains("zero byte")
        );
    }
}
