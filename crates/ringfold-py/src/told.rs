//! Python calls that the library's thread makes when a call is done, and their end with the interpreter's.
//!
//! A thread that is inside Python when the interpreter ends is ended there by it, and not every Rust frame below can bear
//! that. So at exit no further call is begun, and one that is being made gets a moment to come back.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How long the exit waits for a call that has begun. One that takes longer mostly sleeps, and then does no harm.
const EXIT_GRACE: Duration = Duration::from_secs(1);

/// How often the exit looks.
const EXIT_PERIOD: Duration = Duration::from_millis(1);

/// How many calls are being made, below the number of the process that makes them: a forked child has the parent's word and
/// not its threads.
static INSIDE: AtomicU64 = AtomicU64::new(0);

/// The process that begins no further call, or 0.
static ENDED: AtomicU32 = AtomicU32::new(0);

/// Has the end of the interpreter wait as said above; called once, when the module is made.
pub fn prepare_exit(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let exit = wrap_pyfunction!(exit, module)?;
    module
        .py()
        .import("atexit")?
        .call_method1("register", (exit,))?;
    Ok(())
}

#[pyfunction]
fn exit(py: Python<'_>) {
    let process = std::process::id();
    // Both sides write one word and read the other; only one order of all four keeps them from missing each other.
    ENDED.store(process, Ordering::SeqCst);
    let begin = Instant::now();
    py.detach(|| {
        while is_inside(process) && begin.elapsed() < EXIT_GRACE {
            thread::sleep(EXIT_PERIOD);
        }
    });
}

fn is_inside(process: u32) -> bool {
    let word = INSIDE.load(Ordering::SeqCst);
    word >> 32 == u64::from(process) && word as u32 > 0
}

/// Calls `call` on a thread that is not Python's own.
pub fn tell(call: Py<PyAny>) {
    let process = std::process::id();
    let entered = |word: u64| {
        let ours = u64::from(process) << 32;
        Some(if word >> 32 << 32 == ours { word } else { ours } + 1)
    };
    // See `exit`. The closure always gives a word.
    let _ = INSIDE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, entered);
    if ENDED.load(Ordering::SeqCst) == process {
        // Nobody is left to take it back.
        std::mem::forget(call);
    } else {
        Python::try_attach(|py| here(py, call));
    }
    INSIDE.fetch_sub(1, Ordering::SeqCst);
}

/// Calls `call` here and now; what it raises goes to `sys.unraisablehook`.
pub fn here(py: Python<'_>, call: Py<PyAny>) {
    if let Err(raised) = call.call0(py) {
        raised.write_unraisable(py, Some(call.bind(py)));
    }
    // Dropped here, where its end can run Python code.
}
