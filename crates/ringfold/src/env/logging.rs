//! The log: lines like `[node1:4711 rank 3] INFO TRANSPORT text`, by NCCL's levels and subsystems.
//!
//! The subsystem of a line is the module below `ringfold` that writes the line. Warnings are not
//! filtered by subsystem.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use log::{Level, LevelFilter, Metadata, Record};

use super::{Lookup, process};
use crate::error::{Error, Result};
use crate::sync::lock;
use crate::sys::file_limit::without_signal;
use crate::sys::fork::made_once;

/// The value of [`RANK`] until a rank is noted.
const UNKNOWN: usize = usize::MAX;

/// The rank in log lines: that of this process' first communicator.
static RANK: AtomicUsize = AtomicUsize::new(UNKNOWN);

/// Sets the rank in log lines, unless a rank is set already.
pub fn note_rank(rank: usize) {
    // Relaxed: the number publishes no other data.
    let _ = RANK.compare_exchange(UNKNOWN, rank, Ordering::Relaxed, Ordering::Relaxed);
}

/// Returns the level of lines that would be the same on all ranks, so that rank 0's suffice.
pub fn level_for_all(rank: usize) -> Level {
    match rank {
        0 => Level::Info,
        _ => Level::Debug,
    }
}

/// The filter and the destination of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    level: LevelFilter,
    /// Whether the first line shows the version.
    says_version: bool,
    /// Subsystems in upper case; empty for all.
    subsystems: Vec<String>,
    /// Whether `subsystems` are excluded rather than included.
    is_exclusion: bool,
    path: Option<String>,
}

impl Logging {
    /// Reads the settings through `lookup`.
    pub fn from_lookup(lookup: Lookup<'_>) -> Result<Logging> {
        let text = lookup("RINGFOLD_DEBUG").unwrap_or_else(|| "WARN".into());
        let level = match text.trim().to_ascii_uppercase().as_str() {
            "NONE" | "VERSION" => LevelFilter::Off,
            "WARN" => LevelFilter::Warn,
            "INFO" => LevelFilter::Info,
            "TRACE" => LevelFilter::Trace,
            _ => {
                return Err(Error::InvalidArgument(format!(
                    "RINGFOLD_DEBUG=`{text}`: must be one of NONE, VERSION, WARN, INFO, TRACE"
                )));
            }
        };
        let list = lookup("RINGFOLD_DEBUG_SUBSYS").unwrap_or_default();
        let (is_exclusion, list) = match list.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, list.as_str()),
        };
        let names = list.split(',').map(|name| name.trim().to_ascii_uppercase());
        let subsystems: Vec<String> = names.filter(|name| !name.is_empty()).collect();
        let is_all = subsystems.iter().any(|name| name == "ALL");
        Ok(Logging {
            level,
            says_version: text.trim().eq_ignore_ascii_case("VERSION") || level >= Level::Info,
            is_exclusion: is_exclusion && !is_all,
            subsystems: if is_all { Vec::new() } else { subsystems },
            path: lookup("RINGFOLD_DEBUG_FILE"),
        })
    }

    /// Whether a line of this level from `target` is written.
    fn admits(&self, level: Level, target: &str) -> bool {
        if level > self.level {
            return false;
        }
        if level <= Level::Warn || self.subsystems.is_empty() {
            return true;
        }
        self.subsystems.contains(&subsystem(target)) != self.is_exclusion
    }
}

/// Returns the module below `ringfold`, in upper case.
fn subsystem(target: &str) -> String {
    let mut parts = target.split("::").skip_while(|part| *part == "ringfold");
    parts.next().unwrap_or("RINGFOLD").to_ascii_uppercase()
}

struct Logger {
    logging: Logging,
    host: String,
    /// The log's file; `None` for standard error.
    file: Option<Mutex<File>>,
}

impl Logger {
    fn open(logging: Logging) -> Result<Logger> {
        let uname = rustix::system::uname();
        let host = uname.nodename().to_string_lossy().into_owned();
        let file = match &logging.path {
            None => None,
            Some(pattern) => {
                let pid = std::process::id().to_string();
                let path = pattern.replace("%h", &host).replace("%p", &pid);
                let file = File::options()
                    .append(true)
                    .create(true)
                    // Private, like the record of calls: the log shows the program's activity.
                    .mode(0o600)
                    .open(&path);
                let file = file.map_err(|error| {
                    Error::system(format!("cannot open RINGFOLD_DEBUG_FILE `{path}`"), error)
                })?;
                Some(Mutex::new(file))
            }
        };
        Ok(Logger {
            logging,
            host,
            file,
        })
    }

    /// Writes one line in one call, so that lines of several processes do not mix.
    fn write(&self, text: &str) {
        let rank = match RANK.load(Ordering::Relaxed) {
            UNKNOWN => String::new(),
            rank => format!(" rank {rank}"),
        };
        let line = format!("[{}:{}{rank}] {text}\n", self.host, std::process::id());
        // A failure to write the log cannot be reported anywhere.
        let _ = without_signal(|| match &self.file {
            Some(file) => lock(file).write_all(line.as_bytes()),
            None => io::stderr().write_all(line.as_bytes()),
        });
    }
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.logging.admits(metadata.level(), metadata.target())
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let subsystem = subsystem(record.target());
            self.write(&format!("{} {subsystem} {}", record.level(), record.args()));
        }
    }

    fn flush(&self) {}
}

/// Starts logging according to the environment. Has no effect if the program has a logger of its
/// own, or if called again.
pub fn init_logging() -> Result<()> {
    static LOGGER: OnceLock<Logger> = OnceLock::new();
    if LOGGER.get().is_some() {
        return Ok(());
    }
    let logger = Logger::open(Logging::from_lookup(&process)?)?;
    let logger = made_once(&LOGGER, || logger);
    if let Some(rank) = process("RINGFOLD_RANK").and_then(|text| text.parse().ok()) {
        note_rank(rank);
    }
    if log::set_logger(logger).is_ok() {
        log::set_max_level(logger.logging.level);
        if logger.logging.says_version {
            logger.write(concat!("VERSION ringfold ", env!("CARGO_PKG_VERSION")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logging(level: &str, subsystems: &str) -> Logging {
        Logging::from_lookup(&|name| match name {
            "RINGFOLD_DEBUG" => Some(level.into()),
            "RINGFOLD_DEBUG_SUBSYS" => Some(subsystems.into()),
            _ => None,
        })
        .unwrap()
    }

    #[test]
    fn levels_are_ordered() {
        let info = logging("info", "");
        assert!(info.admits(Level::Warn, "ringfold::tune"));
        assert!(info.admits(Level::Info, "ringfold::tune"));
        assert!(!info.admits(Level::Debug, "ringfold::tune"));
        assert!(!logging("VERSION", "").admits(Level::Warn, "ringfold::tune"));
    }

    #[test]
    fn subsystems_are_let_in_or_left_out() {
        let only = logging("INFO", "control,Tune");
        assert!(only.admits(Level::Info, "ringfold::control::server"));
        assert!(!only.admits(Level::Info, "ringfold::transport"));
        let others = logging("INFO", "^CONTROL,TUNE");
        assert!(!others.admits(Level::Info, "ringfold::control"));
        assert!(others.admits(Level::Info, "ringfold::transport"));
        assert!(others.admits(Level::Warn, "ringfold::control"));
    }

    #[test]
    fn an_unknown_level_is_an_error() {
        let lookup = |name: &str| (name == "RINGFOLD_DEBUG").then(|| "LOUD".to_string());
        assert!(Logging::from_lookup(&lookup).is_err());
    }
}
