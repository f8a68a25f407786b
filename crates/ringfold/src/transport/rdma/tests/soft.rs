//! Functions of the software devices beside verbs.

use std::path::PathBuf;

use crate::sys::library::Library;

/// Returns the path of the devices' library, which cargo has built beside the tests.
pub fn path() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    test.with_file_name("libringfold_softverbs.so")
}

/// Returns the seed of all delays, which `SOFTVERBS_SEED` sets.
pub fn seed() -> u64 {
    let library = Library::open(path().to_str()).expect("the library");
    let symbol = library.symbol(c"softverbs_seed").expect("a function");
    // SAFETY: the function has no arguments and returns a number of 64 bits.
    let seed = unsafe { std::mem::transmute::<*mut _, extern "C" fn() -> u64>(symbol) };
    seed()
}
