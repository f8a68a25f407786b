//! Python callbacks that the library's thread runs when a call completes, and their end at
//! interpreter exit.
//!
//! A thread that is inside Python when the interpreter exits is ended there, and not every Rust
//! frame below supports that. So at exit no further callback is started, and a running one gets a
//! moment to return.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How long the exit waits for a callback that has started. One that takes longer mostly sleeps,
/// and is then harmless.
const EXIT_GRACE: Duration = Duration::from_secs(1);

/// How often the exit looks.
const EXIT_PERIOD: Duration = Duration::from_millis(1);

/// The number of running callbacks, below the number of the process that runs them: a forked child
/// has the parent's word and not its threads.
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
    // Both sides write one word and read the other; only a single total order of all four
    // operations prevents that they miss each other.
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
pub fn run_elsewhere(call: Py<PyAny>) {
    let process = std::process::id();
    let entered = |word: u64| {
        let ours = u64::from(process) << 32;
        Some(if word >> 32 << 32 == ours { word } else { ours } + 1)
    };
    // See `exit`. The closure always gives a word.
    let _ = INSIDE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, entered);
    if ENDED.load(Ordering::SeqCst) == process {
        // No thread is left to take it back.
        std::mem::forget(call);
    } else {
        Python::try_attach(|py| run(py, call));
    }
    INSIDE.fetch_sub(1, Ordering::SeqCst);
}

/// Calls `call` here and now; what it raises goes to `sys.unraisablehook`.
pub fn run(py: Python<'_>, call: Py<PyAny>) {
    if let Err(raised) = call.call0(py) {
        raised.write_unraisable(py, Some(call.bind(py)));
    }
    // Dropped here, where its end can run Python code.
}
