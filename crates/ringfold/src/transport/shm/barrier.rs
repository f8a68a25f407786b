//! A fence that one thread has all others pass, whatever process they belong to, so that they need
//! not make their own.
//!
//! Linux: membarrier, which interrupts the cores on which threads of registered processes run. It
//! costs microseconds, and is for a thread that is about to sleep anyway. Under loom there is none:
//! the ordinary fences are what is checked.

#[cfg(not(loom))]
mod membarrier {
    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, compiler_fence};

    use rustix::io::Errno;
    use rustix::thread::{MembarrierCommand, membarrier};

    use crate::sys::fork::made_once;

    /// Whether threads of this process pass others' fences. The first call registers it.
    pub fn is_registered() -> bool {
        static REGISTERED: OnceLock<Result<(), Errno>> = OnceLock::new();
        let register = || membarrier(MembarrierCommand::RegisterGlobalExpedited);
        let registered = made_once(&REGISTERED, register);
        // Not while forks are held off.
        if let Err(error) = registered {
            log::debug!(
                target: "ringfold::transport",
                "every ring of a doorbell is fenced: membarrier: {error}"
            );
        }
        registered.is_ok()
    }

    /// Has all running threads of registered processes pass a full fence.
    pub fn fence_all_threads() {
        // Registered, so it cannot fail; and if it did, a sleep is bounded by the longest block.
        let _ = membarrier(MembarrierCommand::GlobalExpedited);
    }

    /// Keeps the compiler from moving loads before earlier stores.
    pub fn fence_compiler() {
        // Pairs with `fence_all_threads` in the thread that looks from the other side.
        compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(loom)]
mod membarrier {
    pub fn is_registered() -> bool {
        false
    }

    pub fn fence_all_threads() {}

    pub fn fence_compiler() {}
}

pub use membarrier::{fence_all_threads, fence_compiler, is_registered};
