//! The thread that tells those who asked when a call is done.
//!
//! Calls end under the driver's lock, and what a user wants done then may wait for anything: another call, an interpreter's
//! lock. So whoever ends a call only passes on what is to be called, and a thread that holds nothing calls it. A process has
//! one such thread; its communicators share it, and it ends when the last of them is gone that used it.
//!
//! A forked child has the parent's books but not its thread, so they are kept with the process' number.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use crate::error::{Error, Result};

/// What is called when a call is done.
pub type Told = Box<dyn FnOnce() + Send>;

/// The process that has the thread, and the thread as long as somebody uses it. Locked by those who ask to be told, never by
/// those who end calls.
static SHARED: Mutex<(u32, Weak<Notifier>)> = Mutex::new((0, Weak::new()));

/// The way to the thread, which ends with the last of these.
#[derive(Debug)]
pub struct Notifier {
    calls: Sender<Told>,
}

impl Notifier {
    /// This process' notifier.
    pub fn shared() -> Result<Arc<Notifier>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if shared.0 == process
            && let Some(notifier) = shared.1.upgrade()
        {
            return Ok(notifier);
        }
        let notifier = Arc::new(Notifier::start()?);
        *shared = (process, Arc::downgrade(&notifier));
        Ok(notifier)
    }

    fn start() -> Result<Notifier> {
        let (calls, due) = channel::<Told>();
        thread::Builder::new()
            .name("ringfold-done".into())
            .spawn(move || {
                for told in due {
                    // A panic is the user's: it has been printed, and the others are told all the same.
                    let _ = catch_unwind(AssertUnwindSafe(told));
                }
            })
            .map_err(|error| Error::system("cannot start a thread", error))?;
        Ok(Notifier { calls })
    }

    /// Has the thread call `told`; waits for nothing.
    pub fn tell(&self, told: Told) {
        // The thread ends after its last notifier, and this is one.
        let _ = self.calls.send(told);
    }
}
