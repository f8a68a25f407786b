//! The exit status of the command, and the errors that have a status of their own.

use std::fmt;
use std::io::ErrorKind;

use rustix::io::Errno;

use crate::output::complain;

/// Exit status that shells report for a process ended by SIGPIPE.
const OUTPUT_CLOSED: u8 = 128 + 13;

/// Marks a system error that prevented a rank's program from starting.
#[derive(Debug)]
pub struct CannotStart(pub String);

impl fmt::Display for CannotStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An error of the command line as a whole.
#[derive(Debug)]
struct Usage(anyhow::Error);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for Usage {}

/// Marks an error of the command line, for the exit status.
pub fn usage(error: anyhow::Error) -> anyhow::Error {
    Usage(error).into()
}

/// Reports an error and returns its exit status.
pub fn fail(error: &anyhow::Error) -> u8 {
    if is_closed_output(error) {
        return OUTPUT_CLOSED;
    }
    complain(&format!("{error:#}"));
    status_of(error)
}

/// Whether the reader has closed our output, as `head` does: no failure worth a message.
fn is_closed_output(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == ErrorKind::BrokenPipe)
}

/// Returns the exit status of a command that ended with `error`. For a program that could not be
/// started, the status is that of shells and `env`: 127 if the program does not exist, 126 if it
/// cannot be run. For a wrong command line the status is 2, for any other error 1.
fn status_of(error: &anyhow::Error) -> u8 {
    let unstarted = error.downcast_ref::<CannotStart>();
    match unstarted.and_then(|_| error.downcast_ref::<std::io::Error>()) {
        Some(refusal) if refusal.kind() == ErrorKind::NotFound => 127,
        Some(refusal)
            if matches!(
                refusal.kind(),
                ErrorKind::PermissionDenied | ErrorKind::IsADirectory
            ) || refusal.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) =>
        {
            126
        }
        _ if error.is::<Usage>() => 2,
        _ => 1,
    }
}
