//! The one error type. Every variant names the failure, the peer and the remedy.

use std::fmt;
use std::io;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use rustix::io::Errno;

use crate::call::Call;
use crate::types::Unknown;

/// The reason reported for a rank that ended without a goodbye. A killed process is noticed in
/// several places at once, in any order, so all of them use this text.
pub(crate) const GONE: &str = "its process ended, or lost its connection";

/// The reason reported for a rank that closed its communicator while others waited for it.
pub(crate) const LEFT: &str = "it left (closed its communicator) while it was still needed";

/// Returns the reason to report for a rank whose connection ended with `error`.
#[cold]
pub(crate) fn gone_by(error: &io::Error) -> String {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::UnexpectedEof
        | Kind::BrokenPipe
        | Kind::ConnectionReset
        | Kind::ConnectionAborted => GONE.into(),
        Kind::TimedOut => "it does not answer".into(),
        _ => format!("its connection broke: {error}"),
    }
}

/// A result with ringfold's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The place in a call at which an error happened. Displays as "in CALL, PHASE".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Site {
    /// The call that was running; its `sequence` is the number of the call on this communicator.
    #[doc(hidden)]
    pub call: Call,
    /// The engine's activity, for example "waiting for rank 3, slice 2 of 8".
    pub phase: String,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in {}, {}", self.call, self.phase)
    }
}

/// Any error of ringfold.
///
/// The class (variant) of a failed collective is the same on all ranks. After `PeerFailed`,
/// `Timeout`, `Mismatch`, `Corrupt` or `Aborted` the communicator is dead: its buffers hold
/// undefined data, every later call returns the same error, and only `close` or `drop` remain. The
/// other variants leave the communicator usable.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// A peer died, or left while still needed. Restart the job, or continue without that rank.
    PeerFailed {
        /// The failed rank.
        rank: usize,
        /// The sign by which the failure was noticed.
        reason: String,
        /// The call that was running on this rank, if any.
        site: Option<Site>,
    },
    /// A deadline passed. `waiting_for` lists the ranks that all others wait for, as far as known.
    Timeout {
        /// The ranks that did not arrive.
        waiting_for: Vec<usize>,
        /// Time waited, in milliseconds.
        after_ms: u64,
        /// The call that was running on this rank, if any.
        site: Option<Site>,
    },
    /// Two ranks are in different calls: the program is wrong.
    Mismatch {
        /// The two ranks, first the one that noticed the mismatch.
        ranks: [usize; 2],
        /// The call of each of the two ranks. Boxed, so that results stay small.
        calls: Box<[String; 2]>,
        /// The call that was running on this rank, if any.
        site: Option<Site>,
    },
    /// A peer sent data that no correct peer sends: a damaged message, or an intruder.
    Corrupt {
        /// The sender.
        peer: usize,
        /// The defect of the data.
        what: String,
        /// The call that was running on this rank, if any.
        site: Option<Site>,
    },
    /// A rank called `abort`.
    Aborted {
        /// The rank that called `abort`.
        rank: usize,
        /// The reason given by that rank.
        reason: String,
    },
    /// The communicator was closed on this rank.
    Closed,
    /// An argument of the caller is invalid; the text says which and why.
    InvalidArgument(String),
    /// A feature that this build, machine or data type does not support.
    Unsupported(String),
    /// The ranks could not join: addresses, secret, versions. The text lists the attempts.
    Bootstrap(String),
    /// A system call failed.
    System {
        /// The failed operation, its cause and, if known, the remedy.
        what: String,
        /// The kind of the system's error.
        kind: io::ErrorKind,
    },
}

impl Error {
    /// Returns the error that `rank` failed for `reason`.
    #[cold]
    pub(crate) fn peer_failed(rank: usize, reason: impl Into<String>) -> Error {
        Error::PeerFailed {
            rank,
            reason: reason.into(),
            site: None,
        }
    }

    /// Returns the error that `peer` sent corrupt data.
    #[cold]
    pub(crate) fn corrupt(peer: usize, what: impl Into<String>) -> Error {
        Error::Corrupt {
            peer,
            what: what.into(),
            site: None,
        }
    }

    /// Returns the error with every rank replaced by its entry in `table`.
    pub(crate) fn renumbered(mut self, table: &[usize]) -> Error {
        let renumber = |rank: &mut usize| *rank = table.get(*rank).copied().unwrap_or(*rank);
        match &mut self {
            Error::PeerFailed { rank, .. } | Error::Aborted { rank, .. } => renumber(rank),
            Error::Mismatch { ranks, .. } => ranks.iter_mut().for_each(renumber),
            Error::Corrupt { peer, .. } => renumber(peer),
            Error::Timeout { waiting_for, .. } => waiting_for.iter_mut().for_each(renumber),
            _ => {}
        }
        self
    }

    /// Returns the system's `error` in the operation `what`.
    pub fn system(what: impl Into<String>, error: impl Into<io::Error>) -> Error {
        let error = error.into();
        // An error of ours that a wait passed on as an `io::Error`.
        if let Some(ours) = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<Error>())
        {
            return ours.clone();
        }
        Error::System {
            what: format!("{}: {}", what.into(), Refused(&error)),
            kind: error.kind(),
        }
    }

    /// Returns the class of the error as one word, the same on every rank for one failure.
    pub fn class(&self) -> &'static str {
        match self {
            Error::PeerFailed { .. } => "PeerFailed",
            Error::Timeout { .. } => "Timeout",
            Error::Mismatch { .. } => "Mismatch",
            Error::Corrupt { .. } => "Corrupt",
            Error::Aborted { .. } => "Aborted",
            Error::Closed => "Closed",
            Error::InvalidArgument(_) => "InvalidArgument",
            Error::Unsupported(_) => "Unsupported",
            Error::Bootstrap(_) => "Bootstrap",
            Error::System { .. } => "System",
        }
    }

    /// Whether the communicator is dead after this error.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            Error::PeerFailed { .. }
                | Error::Timeout { .. }
                | Error::Mismatch { .. }
                | Error::Corrupt { .. }
                | Error::Aborted { .. }
        )
    }

    /// Adds the site of the error, unless the error has one.
    pub fn at(mut self, here: Site) -> Error {
        match &mut self {
            Error::PeerFailed { site, .. }
            | Error::Timeout { site, .. }
            | Error::Mismatch { site, .. }
            | Error::Corrupt { site, .. } => {
                site.get_or_insert(here);
            }
            _ => {}
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let site = match self {
            Error::PeerFailed { rank, reason, site } => {
                write!(f, "rank {rank} failed: {reason}")?;
                site
            }
            Error::Timeout {
                waiting_for,
                after_ms,
                site,
            } => {
                write!(
                    f,
                    "the timeout of {after_ms} ms passed while waiting for {}",
                    Ranks(waiting_for)
                )?;
                site
            }
            Error::Mismatch { ranks, calls, site } => {
                let ([one, other], [ones, others]) = (ranks, &**calls);
                write!(
                    f,
                    "ranks {one} and {other} are in different calls: rank {one} in {ones}, rank \
                     {other} in {others}"
                )?;
                if let Some(site) = site {
                    // This rank's call is often one of the two.
                    let here = site.call.to_string();
                    return match calls.iter().any(|call| call.starts_with(&here)) {
                        true => write!(f, " (on this rank: {})", site.phase),
                        false => write!(f, " ({site})"),
                    };
                }
                site
            }
            Error::Corrupt { peer, what, site } => {
                write!(f, "corrupt data from rank {peer}: {what}")?;
                site
            }
            Error::Aborted { rank, reason } => {
                return write!(f, "aborted by rank {rank}: {reason}");
            }
            Error::Closed => return f.write_str("the communicator is closed"),
            Error::InvalidArgument(text) | Error::Unsupported(text) | Error::Bootstrap(text) => {
                return f.write_str(text);
            }
            Error::System { what, .. } => return f.write_str(what),
        };
        match site {
            Some(site) => write!(f, " ({site})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<Unknown> for Error {
    fn from(unknown: Unknown) -> Error {
        Error::InvalidArgument(unknown.to_string())
    }
}

/// A system error, displayed with the remedy if a configured limit is the cause.
pub(crate) struct Refused<'a>(pub(crate) &'a io::Error);

impl Refused<'_> {
    /// Whether this process, or the machine, has no descriptors left.
    pub(crate) fn lacks_descriptors(&self) -> bool {
        let number = self.0.raw_os_error();
        [Errno::MFILE, Errno::NFILE]
            .iter()
            .any(|errno| number == Some(errno.raw_os_error()))
    }
}

/// Causes of failed connections.
impl Refused<'_> {
    /// Whether the cause is in this process or its machine, not in a peer.
    pub(crate) fn is_lasting(&self) -> bool {
        let ours = [Errno::NOSYS, Errno::PERM, Errno::NOMEM, Errno::NOBUFS];
        let number = self.0.raw_os_error();
        let is_one = |errno: &Errno| number == Some(errno.raw_os_error());
        self.lacks_descriptors() || ours.iter().any(is_one)
    }
}

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        let number = self.0.raw_os_error();
        if number == Some(Errno::NFILE.raw_os_error()) {
            f.write_str("; the machine has no descriptors left: raise fs.file-max")?;
        }
        if number == Some(Errno::MFILE.raw_os_error()) {
            f.write_str("; this process may have ")?;
            if let Some(limit) = limit_of(Resource::RLIMIT_NOFILE) {
                write!(f, "{limit} descriptors: raise the limit (ulimit -n)")?;
            } else {
                f.write_str("no more descriptors: raise the limit (ulimit -n)")?;
            }
        }
        if number == Some(Errno::FBIG.raw_os_error()) {
            if let Some(limit) = limit_of(Resource::RLIMIT_FSIZE) {
                write!(f, "; this process may write files of {limit} bytes")?;
            }
            f.write_str("; shared memory counts as a file: raise the limit (ulimit -f)")?;
        }
        Ok(())
    }
}

/// Returns this process' limit of `resource`; `None` if unlimited or unknown.
pub(crate) fn limit_of(resource: Resource) -> Option<u64> {
    let (current, _) = getrlimit(resource).ok()?;
    (current != RLIM_INFINITY).then_some(current)
}

/// Ranks as an English list.
pub(crate) struct Ranks<'a>(pub(crate) &'a [usize]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list: Vec<_> = self.0.iter().map(usize::to_string).collect();
        match list.len() {
            0 => f.write_str("its peers"),
            1 => write!(f, "rank {}", list[0]),
            _ => write!(f, "ranks {}", list.join(", ")),
        }
    }
}
