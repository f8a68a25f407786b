//! The outcomes of a job and of its processes.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The outcome of a job.
#[derive(Clone, Copy, Debug)]
pub struct JobOutcome {
    /// The first rank that failed, and its exit status.
    pub failure: Option<(usize, ExitStatus)>,
    /// Whether the launcher itself received SIGINT, SIGTERM or SIGHUP.
    pub interrupted: bool,
}

impl JobOutcome {
    /// Returns the job's exit status: that of the first rank that failed, or 128 + n if signal n
    /// ended that rank; 0 if no rank failed.
    pub fn status(&self) -> u8 {
        self.failure.map_or(0, |(_, status)| exit_code(status))
    }
}

/// Describes how a process ended; the text continues a sentence that begins with the process.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(number)) => format!("was ended by {}", signal_name(number)),
        (None, None) => "ended".into(),
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    // The system keeps eight bits of a status, and there are fewer than 128 signals.
    code as u8
}

fn signal_name(number: i32) -> String {
    match signal_hook::low_level::signal_name(number) {
        Some(name) => name.into(),
        None => format!("signal {number}"),
    }
}
