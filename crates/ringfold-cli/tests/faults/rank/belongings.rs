//! Resources of a rank at its beginning and its end.

use std::ffi::{CStr, CString};
use std::time::{Duration, Instant};

use crate::job::LIBRARY;

/// The resources that a communicator could leave behind in its process.
pub struct Belongings {
    pub descriptors: i64,
    pub threads: i64,
    /// Number of mappings of shared memory.
    pub maps: usize,
}

impl Belongings {
    /// Counts once there are no more threads than `before`, or after ten seconds: the kernel lists
    /// a thread for a moment after it was joined.
    pub fn count_when_ended(before: &Belongings) -> Belongings {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let after = Belongings::count();
            if after.threads <= before.threads || Instant::now() > deadline {
                return after;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn count() -> Belongings {
        let entries = |path| std::fs::read_dir(path).map_or(0, |entries| entries.count() as i64);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        Belongings {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            maps: maps.lines().filter(|line| line.contains("memfd:")).count(),
        }
    }
}

/// Returns how many objects of the software RDMA devices are left, and how many of the devices'
/// intended faults have not occurred.
pub fn devices_left() -> (u64, u64) {
    let Ok(path) = std::env::var(LIBRARY) else {
        return (0, 0);
    };
    let path = CString::new(path).expect("a path has no zero");
    // SAFETY: a library of these tests; the name ends with a zero.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    let symbol = |name: &CStr| {
        // SAFETY: a library that stays open, and a name that ends with a zero.
        let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!symbol.is_null(), "the library has {name:?}");
        symbol
    };
    // SAFETY: the library's function has this signature.
    let count: extern "C" fn(i32) -> u64 =
        unsafe { std::mem::transmute(symbol(c"softverbs_count")) };
    // SAFETY: as above.
    let due: extern "C" fn() -> u64 = unsafe { std::mem::transmute(symbol(c"softverbs_due")) };
    ((0..6).map(|kind| count(kind)).sum(), due())
}
