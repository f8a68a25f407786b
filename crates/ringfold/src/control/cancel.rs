//! Cancellation of a join from another thread.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::sync::lock;

/// Callback that notifies the other ranks of a cancellation.
type Tell = Box<dyn FnOnce(&str) + Send>;

/// A handle that cancels a join in progress from any thread:
/// [`Config::cancel`](crate::Config::cancel). Clones share one state.
///
/// The joining thread notices a cancellation within a few dozen milliseconds, withdraws, and
/// returns `Error::Aborted`. Until all ranks have joined, the others keep waiting, so this rank may
/// join again; afterwards they fail with the same error.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Mutex<CancelState>>);

#[derive(Default)]
struct CancelState {
    reason: Option<String>,
    tell: Option<Tell>,
}

impl Cancel {
    /// Creates a handle that is not cancelled.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Cancels the join. Only the first reason counts. If other ranks must be notified, blocks
    /// until they are, for a few seconds at most.
    pub fn cancel(&self, reason: &str) {
        let tell = {
            let mut state = lock(&self.0);
            if state.reason.is_some() {
                return;
            }
            state.reason = Some(reason.into());
            state.tell.take()
        };
        if let Some(tell) = tell {
            tell(reason);
        }
    }

    /// Returns the reason of the cancellation, if any.
    pub fn reason(&self) -> Option<String> {
        lock(&self.0).reason.clone()
    }

    /// Registers `tell` to be called on cancellation, at once if already cancelled, as long as the
    /// returned value lives.
    pub(crate) fn on_cancel(&self, tell: impl FnOnce(&str) + Send + 'static) -> Forwarding<'_> {
        let reason = {
            let mut state = lock(&self.0);
            if state.reason.is_none() {
                state.tell = Some(Box::new(tell));
                return Forwarding(self);
            }
            state.reason.clone()
        };
        tell(&reason.unwrap_or_default());
        Forwarding(self)
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.reason()).finish()
    }
}

/// Guard that forwards a cancellation while it lives.
pub(crate) struct Forwarding<'a>(&'a Cancel);

impl Drop for Forwarding<'_> {
    fn drop(&mut self) {
        lock(&self.0.0).tell = None;
    }
}
