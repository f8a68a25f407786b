//! Giving up joining, from another thread than the one that joins.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::sync::lock;

/// What a cancellation calls when other ranks must learn of it.
type Tell = Box<dyn FnOnce(&str) + Send>;

/// Ends a joining that is under way, from any thread: [`Config::cancel`](crate::Config::cancel).
/// Clones are the same.
///
/// The thread that joins sees it within a few dozen milliseconds, withdraws, and gets
/// `Error::Aborted`. As long as not all ranks have come the others go on waiting, so this rank may
/// join again; after that they get the same error.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    reason: Option<String>,
    tell: Option<Tell>,
}

impl Cancel {
    /// A new one.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Gives up. Only the first reason counts. When other ranks must learn of it, it waits until
    /// they have been, for a few seconds at most.
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

    /// Why it was given up, if it was.
    pub fn reason(&self) -> Option<String> {
        lock(&self.0).reason.clone()
    }

    /// Has `tell` called by the cancellation, at once if there has been one, as long as the value
    /// returned lives.
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

/// While this lives, a cancellation is passed on.
pub(crate) struct Forwarding<'a>(&'a Cancel);

impl Drop for Forwarding<'_> {
    fn drop(&mut self) {
        lock(&self.0.0).tell = None;
    }
}
