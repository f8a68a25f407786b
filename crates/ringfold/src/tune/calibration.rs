//! The measurements of `ringfold tune calibrate` on this machine, as a file: constants of the cost
//! model, and factors by which each way differs from its formula for a number of ranks over a
//! transport.
//!
//! The file is in the user's cache folder under a name that is a digest of the machine (CPU, cores,
//! caches, memory, kernel) and of ringfold's version, and repeats these as text. A file from
//! another machine is not used. The file is written atomically. When a communicator is made, rank 0
//! reads the file and sends its contents to all ranks. An invalid file is reported, and the
//! defaults apply.
//!
//! The format is TOML with a few known keys, one per line.

#![forbid(unsafe_code)]

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::constants::Constants;
use super::corrections::Corrections;
use super::devices::DeviceConstants;
use super::links::LinkCosts;
use super::parameters;
use super::rdma::RdmaCosts;
use crate::error::{Error, Result};
use crate::files;
use crate::sys::file_limit::without_signal;
use crate::topology::Machine;

/// Maximum size of a calibration file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of correction tables in a file.
const TABLES_MAX: usize = 64;

/// The calibration file that `RINGFOLD_CALIBRATION` selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CalibrationSource {
    /// The machine's file in the user's cache folder, if it exists.
    #[default]
    Cache,
    /// The file at this path.
    File(PathBuf),
    /// No file: the defaults apply.
    Nothing,
}

/// The ranks and the transport of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CalibrationContext {
    /// Whether the ranks communicate through shared memory, not over sockets.
    pub is_shared: bool,
    /// The number of ranks.
    pub ranks: usize,
}

impl CalibrationContext {
    /// Returns the transport's name.
    pub fn transport(self) -> &'static str {
        match self.is_shared {
            true => "shm",
            false => "tcp",
        }
    }
}

/// The measurements of one machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// Times of the cost model; `load` and `cache_bytes` are derived for each communicator.
    pub constants: Constants,
    /// Factors between measured times and formulas, for each measured context.
    pub corrections: Vec<(CalibrationContext, Corrections)>,
    /// Costs of messages within and between hosts, if a job of several hosts has measured them.
    pub links: Option<LinkCosts>,
    /// Costs of messages between hosts over RDMA, if a job over such devices has measured them. A
    /// measurement of one kind of network leaves the costs of the other unchanged.
    pub rdma: Option<RdmaCosts>,
    /// Constants of the machine's devices (GPUs), if measured.
    pub devices: Option<DeviceConstants>,
}

impl Calibration {
    /// Returns the constants for `context`, with `sharers` ranks in total on the cores of
    /// `machine`.
    pub fn constants(
        &self,
        context: CalibrationContext,
        machine: &Machine,
        sharers: usize,
    ) -> Constants {
        let known = self.corrections.iter().find(|(known, _)| *known == context);
        Constants {
            corrections: known
                .map(|(_, factors)| factors.clone())
                .unwrap_or_default(),
            ..self.constants.clone().on(machine, sharers)
        }
    }

    /// Returns the calibration of a job of several hosts, with the message costs measured in such a
    /// job, if any.
    pub fn of_several_hosts(self) -> Calibration {
        match &self.links {
            None => self,
            // Corrections are relative to the replaced constants.
            Some(links) => Calibration {
                constants: links.over(self.constants),
                corrections: Vec::new(),
                links: None,
                ..self
            },
        }
    }

    /// Returns the calibration of a job over RDMA, with the measured or default costs of RDMA.
    pub fn over_rdma(self) -> Calibration {
        let costs = self.rdma.clone().unwrap_or_default();
        Calibration {
            constants: costs.over(self.constants),
            // Corrections are relative to the replaced constants.
            corrections: Vec::new(),
            ..self
        }
    }

    /// Whether the rate of links between hosts was measured, over RDMA or over sockets.
    pub fn knows_rate(&self, is_rdma: bool) -> bool {
        let rdma = self.rdma.as_ref();
        match is_rdma {
            true => rdma.is_some_and(|costs| costs.rdma_us_per_byte > 0.0),
            false => self.links.is_some(),
        }
    }

    /// Reads a file that was written for any machine.
    ///
    /// # Errors
    /// As [`read`](Calibration::read), except that every machine is accepted.
    pub fn read_any(path: &Path) -> Result<Calibration> {
        Calibration::read_for(path, None)
    }

    /// Parses the text of a file that was written for `machine`, in the form of [`describe`], or
    /// for any machine. The error text names the cause, and the line if a line is malformed.
    fn parse(text: &str, machine: Option<&str>) -> std::result::Result<Calibration, String> {
        let mut reader = PartialCalibration::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                reader
                    .take(line)
                    .map_err(|why| format!("line {}: {why}", index + 1))?;
            }
        }
        let measured = reader.machine.ok_or("no entry `machine`")?;
        if let Some(machine) = machine
            && measured != machine
        {
            return Err(format!(
                "measured on `{measured}`, but this machine is `{machine}`"
            ));
        }
        let corrections = |table: PartialCorrections| {
            let (is_shared, ranks) = (table.is_shared?, table.ranks?);
            Some((CalibrationContext { is_shared, ranks }, table.factors?))
        };
        let corrections: Option<Vec<_>> = reader.tables.into_iter().map(corrections).collect();
        Ok(Calibration {
            constants: reader.constants.ok_or("no entry `constants`")?,
            links: reader.links,
            rdma: reader.rdma,
            devices: reader.devices,
            corrections: corrections.ok_or("corrections need transport, ranks and factors")?,
        })
    }

    /// Reads a file that was written for `machine`.
    ///
    /// # Errors
    /// `System` if the file cannot be read, `InvalidArgument` if its content is invalid or was
    /// written for another machine.
    pub fn read(path: &Path, machine: &str) -> Result<Calibration> {
        Calibration::read_for(path, Some(machine))
    }

    fn read_for(path: &Path, machine: Option<&str>) -> Result<Calibration> {
        let failed = |error| {
            Error::system(
                format!("cannot read the calibration `{}`", path.display()),
                error,
            )
        };
        let (file, _) = files::open(path).map_err(failed)?;
        let content = files::content(&file, FILE_BYTES_MAX).map_err(failed)?;
        let text = String::from_utf8(content)
            .map_err(|_| failed(std::io::ErrorKind::InvalidData.into()))?;
        Calibration::parse(&text, machine).map_err(|why| {
            Error::InvalidArgument(format!(
                "calibration `{}`: {why}; run `ringfold tune calibrate`",
                path.display()
            ))
        })
    }

    /// Writes the file for `machine` atomically, and creates missing folders.
    ///
    /// # Errors
    /// `System`, with the failed operation.
    pub fn write(&self, path: &Path, machine: &str) -> Result<()> {
        let failed = |error| {
            Error::system(
                format!("cannot write the calibration `{}`", path.display()),
                error,
            )
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(name);
        let write = || {
            let mut file = fs::File::create(&beside)?;
            file.write_all(self.text(machine).as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, path)
        };
        without_signal(write).map_err(|error| {
            // A partial file is unusable.
            let _ = fs::remove_file(&beside);
            failed(error)
        })
    }

    /// Returns the text of the file.
    pub fn text(&self, machine: &str) -> String {
        let mut text = format!(
            "# Written by `ringfold tune calibrate`.\nmachine = \"{machine}\"\n\
             constants = \"{}\"\n",
            self.constants
        );
        if let Some(links) = &self.links {
            text += &format!("links = \"{links}\"\n");
        }
        if let Some(rdma) = &self.rdma {
            text += &format!("rdma = \"{rdma}\"\n");
        }
        if let Some(devices) = &self.devices {
            text += &format!("devices = \"{devices}\"\n");
        }
        for (context, factors) in &self.corrections {
            text += &format!(
                "\n[[corrections]]\ntransport = \"{}\"\nranks = {}\nfactors = \"{factors:.4}\"\n",
                context.transport(),
                context.ranks,
            );
        }
        text
    }
}

/// A partly parsed file.
#[derive(Default)]
struct PartialCalibration {
    machine: Option<String>,
    constants: Option<Constants>,
    links: Option<LinkCosts>,
    rdma: Option<RdmaCosts>,
    devices: Option<DeviceConstants>,
    tables: Vec<PartialCorrections>,
}

/// A partly parsed table of corrections.
#[derive(Default)]
struct PartialCorrections {
    is_shared: Option<bool>,
    ranks: Option<usize>,
    factors: Option<Corrections>,
}

impl PartialCalibration {
    fn take(&mut self, line: &str) -> std::result::Result<(), String> {
        if line == "[[corrections]]" {
            self.tables.push(PartialCorrections::default());
            return match self.tables.len() {
                0..=TABLES_MAX => Ok(()),
                _ => Err(format!("more than {TABLES_MAX} tables")),
            };
        }
        let (key, value) = line.split_once('=').ok_or("not `key = value`")?;
        let (key, value) = (key.trim(), value.trim());
        let text = value
            .strip_prefix('"')
            .and_then(|text| text.strip_suffix('"'));
        let quoted = || text.ok_or_else(|| format!("{key} must be a text in quotes"));
        match (key, self.tables.last_mut()) {
            ("machine", None) => self.machine = Some(quoted()?.to_owned()),
            ("constants", None) => {
                let constants = Constants::parse(quoted()?);
                self.constants = Some(constants.map_err(|why| format!("constants: {why}"))?);
            }
            ("links", None) => {
                let links = LinkCosts::decode(quoted()?);
                self.links = Some(links.ok_or("invalid costs of links")?);
            }
            ("rdma", None) => {
                let rdma = RdmaCosts::decode(quoted()?);
                self.rdma = Some(rdma.map_err(|why| format!("costs of RDMA: {why}"))?);
            }
            ("devices", None) => {
                let devices = DeviceConstants::decode(quoted()?);
                self.devices = Some(devices.ok_or("invalid constants of devices")?);
            }
            ("transport", Some(table)) => {
                table.is_shared = Some(match quoted()? {
                    "shm" => true,
                    "tcp" => false,
                    other => return Err(format!("unknown transport `{other}`; use shm or tcp")),
                });
            }
            ("ranks", Some(table)) => {
                let ranks = value.parse().ok().filter(|ranks| *ranks > 0);
                table.ranks = Some(ranks.ok_or("ranks must be 1 or more")?);
            }
            ("factors", Some(table)) => table.factors = Some(factors(quoted()?)?),
            _ => return Err(format!("unexpected entry `{key}`")),
        }
        Ok(())
    }
}

fn factors(text: &str) -> std::result::Result<Corrections, String> {
    let mut corrections = Corrections::default();
    if !text.is_empty() {
        parameters::read::<Constants>(text, |name, value| corrections.add(name, value))?;
    }
    Ok(corrections)
}

/// Describes the machine under `root` and ringfold's version as text.
pub fn describe(root: &Path) -> String {
    let machine = Machine::read(root, 1);
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let value_of = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or("unknown".into(), |(_, value)| plain(value))
    };
    let cpuinfo = read("proc/cpuinfo");
    let cpu = value_of(&cpuinfo, "model name");
    // All cores of the machine: ranks are bound, so the cores that a process may use differ.
    let is_core = |line: &&str| line.starts_with("processor");
    let cores = cpuinfo.lines().filter(is_core).count();
    // Rounded up to GiB below, because the kernel's share of the memory varies.
    let memory = value_of(&read("proc/meminfo"), "MemTotal");
    let kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
    format!(
        "{cpu}; {cores} cores; caches of {}, {} and {} KiB; {} GiB; Linux {}; ringfold {}",
        machine.l1.bytes >> 10,
        machine.l2.bytes >> 10,
        machine.last.bytes >> 10,
        kib.div_ceil(1 << 20),
        plain(&read("proc/sys/kernel/osrelease")),
        env!("CARGO_PKG_VERSION"),
    )
}

/// Trims a text, and removes the characters that a quoted text cannot contain.
fn plain(text: &str) -> String {
    let is_plain = |c: &char| !c.is_control() && !matches!(c, '"' | '\\');
    text.trim().chars().filter(is_plain).collect()
}

/// Returns the path of a machine's calibration in `$XDG_CACHE_HOME/ringfold` or
/// `~/.cache/ringfold`; `None` if the environment names neither folder.
pub fn path(lookup: &dyn Fn(&str) -> Option<String>, machine: &str) -> Option<PathBuf> {
    let cache = lookup("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache
        .filter(|path| path.is_absolute())
        .or_else(|| Some(PathBuf::from(lookup("HOME")?).join(".cache")))?;
    let digest = Sha256::digest(machine.as_bytes());
    let name: String = digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Some(cache.join("ringfold").join(format!("{name}.toml")))
}

/// Returns the calibration that `source` selects for the machine under `root`, if it exists. An
/// invalid file is reported and not used.
pub fn find(
    source: &CalibrationSource,
    lookup: &dyn Fn(&str) -> Option<String>,
    root: &Path,
) -> Option<Calibration> {
    if *source == CalibrationSource::Nothing {
        return None;
    }
    let machine = describe(root);
    let path = match source {
        CalibrationSource::File(path) => path.clone(),
        _ => path(lookup, &machine).filter(|path| path.exists())?,
    };
    match Calibration::read(&path, &machine) {
        Ok(calibration) => {
            log::info!(target: "ringfold::tuning", "calibration: {}", path.display());
            Some(calibration)
        }
        Err(error) => {
            log::warn!(target: "ringfold::tuning", "{error}; using the defaults");
            None
        }
    }
}

/// Parses the value of `RINGFOLD_CALIBRATION`.
impl std::str::FromStr for CalibrationSource {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<CalibrationSource, String> {
        Ok(match text {
            "0" => CalibrationSource::Nothing,
            path => CalibrationSource::File(path.into()),
        })
    }
}

impl fmt::Display for CalibrationContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ranks over {}", self.ranks, self.transport())
    }
}

#[cfg(test)]
mod tests;
