//! The environment. Only this module reads variables.
//!
//! The table in `variables` defines each `RINGFOLD_*` name: its effect, form, default and parser.
//! [`VARIABLES`], [`Environment`] and `docs/reference/env.md` are made from the table. An
//! environment is built from a lookup function, so that tests need no process of their own.
//! `setup::launch` looks up the launchers' variables through the same function.

mod logging;
mod variables;

use std::env::VarError;
use std::fmt::Display;
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use logging::init_logging;
#[doc(hidden)]
pub use logging::{Logging, level_for_all, note_rank};
#[doc(hidden)]
pub use variables::Environment;
pub use variables::{VARIABLES, Variable};

use crate::control::{RendezvousAddress, Secret, address};
use crate::error::{Error, Result};
use crate::files;
use crate::silence::Silence;
use crate::transport::tcp::SOCKETS_MAX;
use crate::units::{bytes, near};

/// The default deadline of an operation: long, because a rank may be saving a checkpoint or
/// compiling. The death of a rank is detected at once regardless.
pub const TIMEOUT: Duration = Duration::from_secs(300);
/// The default deadline for joining.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of bytes of a secret's file.
const SECRET_BYTES_MAX: u64 = 4096;

/// The variables by which launchers and thread libraries place ranks or threads: Slurm, Open MPI 5
/// and 4, Intel MPI, MVAPICH, OpenMP (all, GNU's, Intel's).
const FOREIGN_BINDINGS: [&str; 9] = [
    "SLURM_CPU_BIND",
    "PRTE_MCA_hwloc_default_binding_policy",
    "OMPI_MCA_hwloc_base_binding_policy",
    "I_MPI_PIN",
    "MV2_ENABLE_AFFINITY",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
];

/// A function that looks up a variable, and returns `None` if the variable is not set or empty.
#[doc(hidden)]
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Returns this process' variable `name`; an empty variable counts as not set.
#[doc(hidden)]
pub fn process(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Parses the variable `name` with `read`, and adds the variable's name to an error.
fn parse<T>(
    lookup: Lookup<'_>,
    name: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>> {
    let Some(text) = lookup(name) else {
        return Ok(None);
    };
    read(&text)
        .map(Some)
        .map_err(|why| Error::InvalidArgument(format!("{name}=`{text}`: {why}")))
}

/// Returns a text unchanged.
fn text(text: &str) -> Result<String, String> {
    Ok(text.into())
}

/// Parses a text with the type's `FromStr`.
fn parsed<T: FromStr<Err: ToString>>(text: &str) -> Result<T, String> {
    text.trim()
        .parse()
        .map_err(|error: T::Err| error.to_string())
}

/// Parses a count, 0 or more.
fn count(text: &str) -> Result<usize, String> {
    let number = text.trim().parse();
    number.map_err(|_| "must be a whole number, 0 or more".into())
}

fn switch(text: &str) -> Result<bool, String> {
    match text.trim() {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("must be 0 or 1".into()),
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(0) | Err(_) => Err("must be a whole number, 1 or more".into()),
        Ok(number) => Ok(number),
    }
}

fn sockets(text: &str) -> Result<Option<usize>, String> {
    if text.trim() == "auto" {
        return Ok(None);
    }
    let number = within(1..=SOCKETS_MAX)(text).map(Some);
    number.map_err(|why| format!("{why}, or `auto`"))
}

/// Returns a parser of whole numbers within `range`.
fn within<T: FromStr + PartialOrd + Display>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> {
    move |text| {
        let number = text.trim().parse().ok();
        let number = number.filter(|number| range.contains(number));
        let wrong = || {
            format!(
                "must be a whole number, {} to {}",
                range.start(),
                range.end()
            )
        };
        number.ok_or_else(wrong)
    }
}

fn size(text: &str) -> Result<usize, String> {
    bytes(text.trim())
}

fn addresses(text: &str) -> Result<Vec<RendezvousAddress>, String> {
    address::addresses(text).map_err(|error| error.to_string())
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let number = positive(text).map_err(|why| format!("{why}, in milliseconds"))?;
    Ok(Duration::from_millis(number as u64))
}

/// Parses a time in seconds, 0 or more.
fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.trim().parse().ok();
    number
        .and_then(|number| Duration::try_from_secs_f64(number).ok())
        .ok_or_else(|| "must be seconds, 0 or more".into())
}

/// Parses what a failure does to the process: whether the failure ends it.
fn ends_process(text: &str) -> Result<bool, String> {
    match text.trim() {
        "raise" => Ok(false),
        "exit" => Ok(true),
        _ => Err("must be raise or exit".into()),
    }
}

/// Parses the name of a backend that ringfold can replace.
fn replaceable(text: &str) -> Result<String, String> {
    match text.trim() {
        "gloo" => Ok("gloo".into()),
        _ => Err("must be gloo, the only backend that ringfold replaces".into()),
    }
}

fn peer_timeout(text: &str) -> Result<Duration, String> {
    let silence = Silence::new(milliseconds(text)?).map_err(|error| error.to_string())?;
    Ok(silence.limit())
}

/// Returns the job's secret in this process' environment, for callers that need only the secret.
#[doc(hidden)]
pub fn job_secret() -> Result<Option<Secret>> {
    check_text()?;
    secret(&process)
}

/// Refuses ringfold's variables that are not valid UTF-8, which would count as not set. The error
/// does not show the value, which may be the secret.
fn check_text() -> Result<()> {
    let wrong = VARIABLES
        .iter()
        .find(|one| matches!(std::env::var(one.name), Err(VarError::NotUnicode(_))));
    wrong.map_or(Ok(()), |variable| {
        Err(Error::InvalidArgument(format!(
            "the value of {} is not valid UTF-8; set another value",
            variable.name
        )))
    })
}

/// Reads the secret from its variable or from the file.
fn secret(lookup: Lookup<'_>) -> Result<Option<Secret>> {
    match (lookup("RINGFOLD_SECRET"), lookup("RINGFOLD_SECRET_FILE")) {
        (Some(text), _) => Secret::given(text.as_bytes(), "RINGFOLD_SECRET").map(Some),
        (None, Some(path)) => secret_file(&path).map(Some),
        (None, None) => Ok(None),
    }
}

/// Reads a secret from a file, which must be private to its owner.
fn secret_file(path: &str) -> Result<Secret> {
    let failed = |error| Error::system(format!("cannot read RINGFOLD_SECRET_FILE `{path}`"), error);
    // The metadata is that of the open file: no other file can take its place before the read. A
    // value that names no file may be the secret itself, and is not shown.
    let (file, metadata) = files::open(path).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::IsADirectory => failed(error),
        _ => Error::system(
            "cannot open the file of RINGFOLD_SECRET_FILE, which takes a path; RINGFOLD_SECRET \
             takes the secret itself",
            error,
        ),
    })?;
    if metadata.mode() & 0o077 != 0 || metadata.uid() != rustix::process::getuid().as_raw() {
        return Err(Error::InvalidArgument(format!(
            "RINGFOLD_SECRET_FILE `{path}` can be read by others or belongs to another user; \
             `chmod 600` it"
        )));
    }
    let content = files::content(&file, SECRET_BYTES_MAX + 1).map_err(failed)?;
    let secret = match content.len() as u64 > SECRET_BYTES_MAX {
        true => Err(Error::InvalidArgument(format!(
            "RINGFOLD_SECRET_FILE `{path}` has more than {SECRET_BYTES_MAX} bytes; 16 random \
             bytes are enough"
        ))),
        false => Secret::given(
            content.trim_ascii_end(),
            &format!("RINGFOLD_SECRET_FILE `{path}`"),
        ),
    };
    drop(Secret::new(content));
    secret
}

/// Warns once of unknown `RINGFOLD_*` names in this process' environment. Called by one rank of
/// each host.
#[doc(hidden)]
pub fn warn_of_unknown() {
    static HAS_WARNED: AtomicBool = AtomicBool::new(false);
    // Relaxed: the flag publishes no other data.
    if HAS_WARNED.swap(true, Ordering::Relaxed) {
        return;
    }
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for text in names.filter_map(|name| unknown(&name)) {
        log::warn!(target: "ringfold::env", "{text}");
    }
}

/// Returns the warning about an unknown name with our prefix.
fn unknown(name: &str) -> Option<String> {
    const PREFIX: &str = "RINGFOLD_";
    let own = name.strip_prefix(PREFIX)?;
    let known = || {
        VARIABLES
            .iter()
            .filter_map(|variable| variable.name.strip_prefix(PREFIX))
    };
    if known().any(|other| other == own) {
        return None;
    }
    let hint = match near(own, known()) {
        Some(near) => format!("did you mean {PREFIX}{near}?"),
        None => "docs/reference/env.md lists all variables".into(),
    };
    Some(format!("unknown variable {name}; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Bind, TransportChoice};
    use crate::tune::AlgoFilter;
    use std::os::unix::fs::PermissionsExt;

    fn read(pairs: &[(&str, &str)]) -> Result<Environment> {
        Environment::from_lookup(&|name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn an_empty_environment_says_nothing() {
        let environment = read(&[]).unwrap();
        assert!(environment.rank.is_none() && environment.secret.is_none());
    }

    #[test]
    fn values_are_parsed() {
        let environment = read(&[
            ("RINGFOLD_RANK", "3"),
            ("RINGFOLD_TIMEOUT_MS", "1500"),
            ("RINGFOLD_TRANSPORT", "tcp"),
            ("RINGFOLD_ALGO", "ring"),
            ("RINGFOLD_SLICE_BYTES", "64K"),
            ("RINGFOLD_ADDR", "node1:7"),
        ])
        .unwrap();
        assert_eq!(environment.rank, Some(3));
        assert_eq!(environment.timeout, Some(Duration::from_millis(1500)));
        assert_eq!(environment.transport, Some(TransportChoice::Tcp));
        assert_eq!(environment.allowed, AlgoFilter::parse("ring", "").unwrap());
        assert_eq!(environment.slice_bytes, Some(65536));
        assert_eq!(environment.addresses.unwrap(), ["node1:7".parse().unwrap()]);
    }

    #[test]
    fn a_bad_value_names_its_variable() {
        for name in [
            "RINGFOLD_RANK",
            "RINGFOLD_SHM_BYTES",
            "RINGFOLD_SOCKETS",
            "RINGFOLD_MAX_CHANNELS",
            "RINGFOLD_SLICE_BYTES",
            "RINGFOLD_ALGO",
            "RINGFOLD_PROTO",
            "RINGFOLD_LIMITS",
            "RINGFOLD_PROBE",
            "RINGFOLD_WEIGHTS",
            "RINGFOLD_STALL_SECONDS",
            "RINGFOLD_TORCH_ASYNC_ERRORS",
            "RINGFOLD_TORCH_REPLACE",
        ] {
            let error = read(&[(name, "-x")]).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn counts_that_are_found_out_have_a_word_for_it() {
        let read = |name, value| read(&[(name, value)]);
        let automatic = read("RINGFOLD_SOCKETS", "auto").unwrap();
        assert_eq!(automatic.sockets, Some(None));
        let four = read("RINGFOLD_SOCKETS", " 4").unwrap();
        assert_eq!(four.sockets, Some(Some(4)));
        for (name, value) in [("RINGFOLD_SOCKETS", "0"), ("RINGFOLD_SOCKETS", "65")] {
            assert!(read(name, value).is_err(), "{name}={value}");
        }
    }

    #[test]
    fn the_settings_of_torch_are_parsed() {
        let environment = read(&[
            ("TORCH_FR_BUFFER_SIZE", "7"),
            ("RINGFOLD_TORCH_ASYNC_ERRORS", "exit"),
            ("RINGFOLD_STALL_SECONDS", "0.5"),
        ])
        .unwrap();
        assert_eq!(environment.torch_flight_records, Some(7));
        assert_eq!(environment.flight_records, None);
        assert_eq!(environment.torch_ends_process, Some(true));
        assert_eq!(environment.stall, Some(Duration::from_millis(500)));
        for text in ["-1", "nan", "soon"] {
            assert!(read(&[("RINGFOLD_STALL_SECONDS", text)]).is_err(), "{text}");
        }
    }

    #[test]
    fn a_misspelt_binding_is_told_its_neighbour() {
        let error = read(&[("RINGFOLD_BIND", "cores")]).unwrap_err().to_string();
        assert!(error.contains("did you mean core?"), "{error}");
        let environment = read(&[("RINGFOLD_BIND", "auto"), ("OMP_PLACES", "cores")]).unwrap();
        assert_eq!(environment.bind, Some(Bind::Auto));
        assert_eq!(environment.foreign_binding, Some("OMP_PLACES"));
    }

    #[test]
    fn a_secret_file_must_be_private() {
        let path = std::env::temp_dir().join(format!("ringfold-secret-{}", std::process::id()));
        std::fs::write(&path, "hush\n").unwrap();
        let text = path.to_str().unwrap();
        let set_mode =
            |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o640);
        let open = read(&[("RINGFOLD_SECRET_FILE", text)]);
        set_mode(0o600);
        let private = read(&[("RINGFOLD_SECRET_FILE", text)]);
        std::fs::remove_file(&path).unwrap();
        assert!(open.unwrap_err().to_string().contains("chmod 600"));
        assert_eq!(private.unwrap().secret, Some(Secret::new("hush")));
    }

    #[test]
    fn a_secret_file_that_is_too_long_is_refused_and_not_cut() {
        let path = std::env::temp_dir().join(format!("ringfold-long-{}", std::process::id()));
        let text = path.to_str().unwrap();
        let read_bytes = |count: u64| {
            std::fs::write(&path, vec![b'x'; count as usize]).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            read(&[("RINGFOLD_SECRET_FILE", text)])
        };
        let longest = read_bytes(SECRET_BYTES_MAX);
        let longer = read_bytes(SECRET_BYTES_MAX + 1);
        std::fs::remove_file(&path).unwrap();
        let whole = Secret::new(vec![b'x'; SECRET_BYTES_MAX as usize]);
        assert_eq!(longest.unwrap().secret, Some(whole));
        let error = longer.unwrap_err().to_string();
        assert!(error.contains("more than 4096 bytes"), "{error}");
    }

    #[test]
    fn a_secret_is_never_printed() {
        let environment = read(&[("RINGFOLD_SECRET", "hush")]).unwrap();
        assert!(!format!("{environment:?}").contains("hush"));
    }

    #[test]
    fn a_misspelt_name_is_told_its_neighbour() {
        let hint = |name| unknown(name).expect("an unknown name");
        assert!(hint("RINGFOLD_ADDRESS").ends_with("did you mean RINGFOLD_ADDR?"));
        assert!(hint("RINGFOLD_SOCKET").ends_with("did you mean RINGFOLD_SOCKETS?"));
        assert!(hint("RINGFOLD_TIMEOUT").ends_with("did you mean RINGFOLD_TIMEOUT_MS?"));
        assert!(!hint("RINGFOLD_TYPO").contains("did you mean"));
        assert_eq!((unknown("RINGFOLD_ADDR"), unknown("PATH")), (None, None));
    }
}
