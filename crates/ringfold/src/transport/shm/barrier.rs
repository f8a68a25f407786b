//! A fence that one thread executes for all others, in any process, so that these need no fences of
//! their own.
//!
//! Linux: membarrier, which interrupts the cores on which threads of registered processes run. The
//! call costs microseconds, and is for a thread that is about to sleep anyway. Under loom there is
//! no such fence: loom checks the ordinary ones.

#[cfg(not(loom))]
mod membarrier {
    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, compiler_fence};

    use rustix::io::Errno;
    use rustix::thread::{MembarrierCommand, membarrier};

    use crate::sys::fork::made_once;

    /// Whether this process is registered for others' fences. The first call registers it.
    pub fn is_registered() -> bool {
        static REGISTERED: OnceLock<Result<(), Errno>> = OnceLock::new();
        let register = || membarrier(MembarrierCommand::RegisterGlobalExpedited);
        let registered = made_once(&REGISTERED, register);
        // Logged here, because `made_once` holds forks off.
        if let Err(error) = registered {
            log::debug!(
                target: "ringfold::transport",
                "membarrier is not available; each doorbell ring executes a fence: {error}"
            );
        }
        registered.is_ok()
    }

    /// Makes all running threads of registered processes execute a full fence.
    pub fn fence_all_threads() {
        // Cannot fail in a registered process; otherwise the longest block still bounds a sleep.
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
