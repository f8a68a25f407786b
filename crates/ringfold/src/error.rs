//! The one error type. Every variant says what failed, with which peer, and how to fix it.

use std::fmt;
use std::io;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use rustix::io::Errno;

use crate::call::Call;
use crate::types::Unknown;

/// What is said of a rank that is gone without a goodbye. A killed process shows in several places
/// at once, and which of them comes first is chance: they all have this text.
pub(crate) const GONE: &str = "its process ended, or lost its connection";

/// What is said of a rank that has left in good order, and was waited for.
pub(crate) const LEFT: &str = "it left (closed its communicator) while it was still needed";

/// What is said of a rank whose connection ended with `error`.
#[cold]
pub(crate) fn gone_by(error: &io::Error) -> String {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::UnexpectedEof
        | Kind::BrokenPipe
        | Kind::ConnectionReset
        | Kind::ConnectionAborted => GONE.into(),
        Kind::TimedOut => "does not answer".into(),
        _ => format!("its connection broke: {error}"),
    }
}

/// A result with ringfold's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where in a call something went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The call that was running; its `sequence` is the number of the call on this communicator.
    pub call: Call,
    /// What the engine was doing, for example "waiting for rank 3, slice 2 of 8".
    pub phase: String,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in {}, {}", self.call, self.phase)
    }
}

/// Everything that can go wrong.
///
/// The class (variant) of a failed collective is the same on all ranks. After `PeerFailed`,
/// `Timeout`, `Mismatch`, `Corrupt` or `Aborted` the communicator is dead: its buffers hold
/// undefined data, every later call returns the same error, and only `close` or `drop` remain. The
/// other variants leave it usable.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// A peer died, or left while it was still needed. Restart the job, or go on without that rank.
    PeerFailed {
        /// The rank that is gone.
        rank: usize,
        /// How it was noticed.
        reason: String,
        /// What was running here, if anything.
        site: Option<Site>,
    },
    /// A deadline passed. `waiting_for` are the ranks that everybody waits for, as far as it could
    /// be found out.
    Timeout {
        /// The ranks that did not come.
        waiting_for: Vec<usize>,
        /// How long was waited.
        after_ms: u64,
        /// What was running here, if anything.
        site: Option<Site>,
    },
    /// Two ranks are in different calls: the program is wrong.
    Mismatch {
        /// The two ranks; the one that noticed stands first.
        ranks: [usize; 2],
        /// The call that each of them is in. Boxed, so that results stay small.
        calls: Box<[String; 2]>,
        /// What was running here, if anything.
        site: Option<Site>,
    },
    /// What a peer sent is not what it can have sent: a damaged message, or an intruder.
    Corrupt {
        /// The sender.
        peer: usize,
        /// What was wrong with it.
        what: String,
        /// What was running here, if anything.
        site: Option<Site>,
    },
    /// Somebody called `abort`.
    Aborted {
        /// The rank that did.
        rank: usize,
        /// What it gave as its reason.
        reason: String,
    },
    /// The communicator was closed on this rank.
    Closed,
    /// The caller's arguments are wrong; the text says which and how.
    InvalidArgument(String),
    /// Something that this build, machine or data type does not offer.
    Unsupported(String),
    /// The ranks could not be brought together: addresses, secret, versions. The text says what was
    /// tried.
    Bootstrap(String),
    /// The system refused something.
    System {
        /// What was being done, and what to do about it if known.
        what: String,
        /// The system's answer.
        kind: io::ErrorKind,
    },
}

impl Error {
    /// `rank` has failed, known by this.
    #[cold]
    pub(crate) fn peer_failed(rank: usize, reason: impl Into<String>) -> Error {
        Error::PeerFailed {
            rank,
            reason: reason.into(),
            site: None,
        }
    }

    /// `peer` sent this.
    #[cold]
    pub(crate) fn corrupt(peer: usize, what: impl Into<String>) -> Error {
        Error::Corrupt {
            peer,
            what: what.into(),
            site: None,
        }
    }

    /// The error with every rank replaced by its entry in `table`.
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

    /// A refusal of the system while doing `what`.
    pub fn system(what: impl Into<String>, error: impl Into<io::Error>) -> Error {
        let error = error.into();
        // One of ours that came by way of a wait.
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

    /// The class of the error as one word, the same on every rank for one failure.
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

    /// The same error with the place it happened at, unless it has one.
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
                    // What runs here is often one of the two.
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

/// The system's refusal, with the way out where it is a limit that somebody set.
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

/// Causes for which a connection is not made.
impl Refused<'_> {
    /// Whether the cause is this process, or its machine, and no peer.
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
                write!(f, "{limit} descriptors: raise that (ulimit -n)")?;
            } else {
                f.write_str("no more descriptors: raise that (ulimit -n)")?;
            }
        }
        if number == Some(Errno::FBIG.raw_os_error()) {
            if let Some(limit) = limit_of(Resource::RLIMIT_FSIZE) {
                write!(f, "; this process may write files of {limit} bytes")?;
            }
            f.write_str("; memory that processes share is a file, too: raise that (ulimit -f)")?;
        }
        Ok(())
    }
}

/// This process' limit of `resource`; `None` if there is none, or if the system does not tell.
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
