//! `ringfold info`: what this machine is, what each transport can do on it, and why not.

mod facilities;
mod machine;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use ringfold::env::Environment;
use ringfold::internals::control::Launch;
use ringfold::internals::reduce::Level;
use ringfold::internals::setup::Explicit;
use ringfold::internals::topology::neighbours::{Neighbour, neighbours};
use ringfold::internals::topology::{self, cores, interfaces};
use ringfold::internals::tune::Limits;
use ringfold::internals::tune::parameters::Table;
use serde_json::{Value, json};

use crate::numbers::bytes_label;
use facilities::Facility;
use machine::Machine;

/// Say what this machine offers: cores, caches, memory, interfaces, and what each transport can do
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Write it as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ringfold info
  ringfold info --json
  ringfold run --ranks 2 -- ringfold info  what a rank sees";

/// Where `proc` and `sys` are.
const ROOT: &str = "/";

/// Everything that is said.
struct Info {
    machine: Machine,
    facilities: Vec<Facility>,
    /// By name.
    interfaces: Result<Vec<interfaces::Interface>, ringfold::Error>,
    launch: Result<Launch, ringfold::Error>,
    /// Processes that are in a job.
    at_work: Vec<Neighbour>,
}

/// Prints and returns the exit status.
pub fn run(arguments: Arguments) -> Result<u8> {
    let machine = Machine::read(Path::new(ROOT));
    let info = Info {
        facilities: facilities::probe(&machine),
        machine,
        interfaces: interfaces::interfaces().map(|mut list| {
            list.sort_by(|a, b| a.name.cmp(&b.name));
            list
        }),
        launch: Launch::detect(&Explicit::default()),
        at_work: neighbours(Path::new(ROOT)),
    };
    let text = match arguments.json {
        true => format!("{:#}\n", info.json()),
        false => info.text(),
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write to standard output")?;
    Ok(0)
}

/// Memory that can be had without swapping, if the system says.
pub fn memory_available_bytes() -> Option<u64> {
    Machine::read(Path::new(ROOT)).memory_available_bytes
}

impl Info {
    /// Each transport: its name, whether it can be used, and how or why not.
    fn transports(&self) -> [(&'static str, bool, String); 2] {
        let missing: Vec<String> = ["memfd", "futex", "unix sockets"]
            .iter()
            .filter_map(|name| {
                self.facilities
                    .iter()
                    .find(|f| f.name == *name && !f.usable)
            })
            .map(|facility| format!("{}: {}", facility.name, facility.detail))
            .collect();
        let shm = match missing.is_empty() {
            true => ("shm", true, "between ranks of this host and user".into()),
            false => ("shm", false, missing.join("; ")),
        };
        let tcp = match interfaces::candidates(chosen_interfaces().as_deref(), false) {
            Ok(addresses) if addresses.is_empty() => {
                let why = "this host only: no address but loopback's";
                ("tcp", true, why.to_owned())
            }
            Ok(addresses) => {
                let list: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                (
                    "tcp",
                    true,
                    format!("between hosts from {}", list.join(", ")),
                )
            }
            Err(error) => ("tcp", false, error.to_string()),
        };
        [shm, tcp]
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let system = rustix::system::uname();
        let machine = &self.machine;
        let unknown = || "unknown".to_owned();
        entry(&mut text, "ringfold", env!("CARGO_PKG_VERSION"));
        entry(
            &mut text,
            "host",
            &format!(
                "{}, {} {}, {}",
                system.nodename().to_string_lossy(),
                system.sysname().to_string_lossy(),
                system.release().to_string_lossy(),
                system.machine().to_string_lossy(),
            ),
        );
        entry(
            &mut text,
            "cpu",
            &machine.cpu_model.clone().unwrap_or_else(unknown),
        );
        entry(&mut text, "cores", &self.cores());
        entry(&mut text, "kernels", &level_name());
        let caches = cores::caches(Path::new(ROOT));
        let caches: Vec<String> = caches
            .iter()
            .filter(|cache| cache.kind != "Instruction")
            .map(|cache| {
                let size = bytes_label(cache.bytes as f64);
                format!(
                    "L{} {size} for {}",
                    cache.level,
                    count(cache.shared_by, "core")
                )
            })
            .collect();
        entry(&mut text, "caches", &or_unknown(&caches.join(", ")));
        let nodes = cores::nodes(Path::new(ROOT));
        let nodes: Vec<String> = nodes
            .iter()
            .map(|node| format!("node {} with {}", node.number, count(node.cores, "core")))
            .collect();
        entry(&mut text, "numa", &or_unknown(&nodes.join(", ")));
        let size =
            |bytes: Option<u64>| bytes.map_or_else(unknown, |bytes| bytes_label(bytes as f64));
        let memory = (
            size(machine.memory_bytes),
            size(machine.memory_available_bytes),
        );
        entry(
            &mut text,
            "memory",
            &format!("{}, {} available", memory.0, memory.1),
        );
        entry(&mut text, "launcher", &self.launcher());
        entry(&mut text, "processes", &self.processes());
        self.lists(&mut text);
        text
    }

    fn lists(&self, text: &mut String) {
        text.push_str("\ninterfaces\n");
        match &self.interfaces {
            Ok(list) => {
                for interface in list {
                    let about = link(&interface.name);
                    let address = format!("{}/{}", interface.address, interface.prefix);
                    line(text, &interface.name, &format!("{address:<24}{about}"));
                }
            }
            Err(error) => line(text, "unknown", &error.to_string()),
        }
        text.push_str("\nsystem\n");
        for Facility {
            name,
            usable,
            detail,
        } in &self.facilities
        {
            line(text, name, &format!("{:<5}{detail}", yes(*usable)));
        }
        text.push_str("\nlimits of the tuner here, in bytes, for a rank on each core\n");
        let limits = limits();
        for limit in Limits::PARAMETERS {
            line(
                text,
                limit.name,
                &format!(" {:<10}{}", limit.text(&limits), limit.about),
            );
        }
        text.push_str("\ntransports\n");
        for (name, usable, detail) in self.transports() {
            line(text, name, &format!("{:<5}{detail}", yes(usable)));
        }
    }

    fn cores(&self) -> String {
        let mut text = format!("{} usable", cores::available());
        let machine = &self.machine;
        if let Some(allowed) = &machine.cores_allowed {
            let _ = write!(text, ", affinity {allowed}");
        }
        if let Some(online) = &machine.cores_online {
            let _ = write!(text, ", online {online}");
        }
        if let Some(quota) = cores::quota(Path::new(ROOT)) {
            let _ = write!(text, ", control group's quota {quota:.2}");
        }
        text
    }

    fn processes(&self) -> String {
        if self.at_work.is_empty() {
            return "none".into();
        }
        let running = self.at_work.iter().filter(|one| one.is_running).count();
        let cores = self.at_work.iter().flat_map(|one| &one.cores).copied();
        let cores: Vec<usize> = cores.collect::<BTreeSet<_>>().into_iter().collect();
        format!(
            "{} in a job, {running} of them running now, on cores {}",
            self.at_work.len(),
            cores::format_list(&cores)
        )
    }

    fn launcher(&self) -> String {
        match &self.launch {
            Ok(launch) if launch.origin == crate::launch::itself::NO_LAUNCHER => "none".into(),
            Ok(launch) => {
                format!(
                    "{}: rank {} of {}",
                    launch.origin, launch.rank, launch.world_size
                )
            }
            Err(error) => error.to_string(),
        }
    }

    fn json(&self) -> Value {
        let system = rustix::system::uname();
        let transports = self.transports();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "hostname": system.nodename().to_string_lossy(),
            "kernel": system.release().to_string_lossy(),
            "architecture": system.machine().to_string_lossy(),
            "machine": self.machine,
            "cores_usable": cores::available(),
            "cores_quota": cores::quota(Path::new(ROOT)),
            "processes_in_jobs": self.at_work.iter().map(|one| json!({
                "pid": one.pid,
                "cores": one.cores,
                "is_running": one.is_running,
            })).collect::<Vec<_>>(),
            "kernels": level_name(),
            "caches": cores::caches(Path::new(ROOT)).iter().map(|cache| json!({
                "level": cache.level,
                "kind": cache.kind,
                "bytes": cache.bytes,
                "shared_by": cache.shared_by,
            })).collect::<Vec<_>>(),
            "numa_nodes": cores::nodes(Path::new(ROOT)).iter().map(|node| json!({
                "number": node.number,
                "cores": node.cores,
            })).collect::<Vec<_>>(),
            "interfaces": self.interfaces.as_ref().map_or(Value::Null, |list| {
                list.iter().map(|interface| json!({
                    "name": interface.name,
                    "address": interface.address.to_string(),
                    "prefix": interface.prefix,
                    "is_loopback": interface.is_loopback,
                })).collect()
            }),
            "facilities": self.facilities,
            "transports": transports.map(|(name, usable, detail)| json!({
                "name": name,
                "usable": usable,
                "detail": detail,
            })),
            "limits": Limits::PARAMETERS.iter().map(|limit| {
                (limit.name.to_owned(), limit.text(&limits()).into())
            }).collect::<serde_json::Map<_, _>>(),
            "launcher": self.launch.as_ref().map_or(Value::Null, |launch| json!({
                "origin": launch.origin,
                "rank": launch.rank,
                "world_size": launch.world_size,
            })),
        })
    }
}

/// What the tuner derives for as many ranks as there are cores.
fn limits() -> Limits {
    let machine = topology::Machine::here();
    let overrides = environment().limits.unwrap_or_default();
    overrides.over(Limits::derive(&machine, machine.cores))
}

/// The interfaces that the environment asks for.
fn chosen_interfaces() -> Option<String> {
    environment().socket_ifname
}

/// What the variables say; nothing, if one of them is wrong.
fn environment() -> Environment {
    Environment::from_lookup(&ringfold::env::process).unwrap_or_default()
}

fn level_name() -> String {
    let available: Vec<String> = Level::available()
        .iter()
        .map(|level| format!("{level:?}").to_lowercase())
        .collect();
    let current = format!("{:?}", Level::current()).to_lowercase();
    format!("{current} (of {})", available.join(", "))
}

/// What `/sys` says of an interface.
fn link(name: &str) -> String {
    let read = |file: &str| machine::text(Path::new("/sys/class/net").join(name).join(file));
    let mut words = Vec::new();
    if let Some(mtu) = read("mtu") {
        words.push(format!("mtu {mtu}"));
    }
    // Virtual links have no speed, or -1.
    if let Some(speed) = read("speed").and_then(|speed| speed.parse::<u32>().ok()) {
        words.push(format!("{speed} Mbit/s"));
    }
    words.join(", ")
}

fn entry(text: &mut String, name: &str, value: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{name:<11}{value}");
}

fn line(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "  {name:<18}{}", value.trim_end());
}

fn count(number: usize, unit: &str) -> String {
    format!("{number} {unit}{}", if number == 1 { "" } else { "s" })
}

fn yes(usable: bool) -> &'static str {
    if usable { "yes" } else { "no" }
}

fn or_unknown(text: &str) -> String {
    if text.is_empty() {
        "unknown".into()
    } else {
        text.into()
    }
}
