//! Starts threads, which the system can refuse: by a limit of the user, of the container or of the
//! whole machine.
//!
//! The number of threads of a process is bounded. For each job that it has joined: a monitor, and
//! in rank 0's process a server. For all callbacks: one, and more only while callbacks wait for
//! each other, 64 at most. For each communicator: a worker if calls are started, and the helpers of
//! large calls, by default up to 7 for copies and up to 3 for sockets. For each lane: one. While
//! ranks join: up to 16 that connect, and one for each name that is looked up.

use std::io;
use std::num::NonZeroU64;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use crate::error::{Error, Result};

/// Timer slack of threads that need exact sleeps.
const TIMER_SLACK_NS: u64 = 1000;

/// Starts the thread `name`.
pub fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let builder = Builder::new().name(name.into());
    builder.spawn(work).map_err(|error| refused(name, error))
}

/// Starts the thread `name`, which ends before `scope` does.
pub fn start_within<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    let builder = Builder::new().name(name.into());
    let started = builder.spawn_scoped(scope, work);
    started.map_err(|error| refused(name, error))
}

/// Makes the calling thread's short sleeps exact: the kernel may otherwise prolong each sleep by
/// 50 µs, to wake up less often. A kernel that cannot do so is not an error.
pub fn sleep_exactly() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
}

/// Returns the error of a thread that cannot be started, with the limit that was reached.
fn refused(name: &str, error: io::Error) -> Error {
    let limit = match error.kind() {
        io::ErrorKind::WouldBlock => {
            "; the limit of processes and threads of the user (ulimit -u) or the container \
             (pids.max of the control group) is reached: raise the limit, or start fewer"
        }
        io::ErrorKind::OutOfMemory => "; there is no memory for its stack",
        _ => "",
    };
    Error::System {
        what: format!("cannot start the thread `{name}`: {error}{limit}"),
        kind: error.kind(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_thread_is_named_with_the_limit_that_refuses_it() {
        let refusal = io::Error::from_raw_os_error(11);
        let text = refused("ringfold-server", refusal).to_string();
        for part in ["ringfold-server", "ulimit -u", "pids.max"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
