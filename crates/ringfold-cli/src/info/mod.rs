//! `ringfold info`: this machine's properties, the transports that work here, and the reasons why
//! others do not.

mod environment;
mod facilities;
mod machine;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use ringfold::internals::control::Launch;
use ringfold::internals::reduce::Level;
use ringfold::internals::setup::Explicit;
use ringfold::internals::topology::interfaces::Candidates;
use ringfold::internals::topology::link::{self, Link};
use ringfold::internals::topology::neighbours::{Neighbour, neighbours};
use ringfold::internals::topology::{self, cores, interfaces};
use ringfold::internals::tune::Limits;
use ringfold::internals::tune::ParameterTable;
use ringfold::internals::verbs::Verbs;
use serde_json::{Value, json};

use crate::numbers::{bytes_label, plural};
use crate::output;
pub use environment::driver_library;
use environment::environment;
use facilities::Facility;
use machine::{Machine, ROOT};

/// Show this machine's cores, memory, interfaces and transports
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct InfoArguments {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ringfold info
  ringfold info --json
  ringfold run --ranks 2 -- ringfold info  what a rank sees";

/// The content of the output.
struct Info {
    machine: Machine,
    facilities: Vec<Facility>,
    /// Network interfaces, sorted by name.
    interfaces: Result<Vec<interfaces::Interface>, ringfold::Error>,
    launch: Result<Launch, ringfold::Error>,
    /// Processes that belong to a job.
    at_work: Vec<Neighbour>,
}

/// Prints the information and returns the exit status.
pub fn run(arguments: InfoArguments) -> Result<u8> {
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
    output::print(&text)?;
    Ok(0)
}

/// Returns the memory that is available without swapping, if the system reports it.
pub fn memory_available_bytes() -> Option<u64> {
    Machine::read(Path::new(ROOT)).memory_available_bytes
}

/// Returns the ports that RDMA between hosts would use.
fn rdma_ports() -> ringfold::Result<String> {
    let environment = environment();
    let verbs = Verbs::open(environment.verbs_library.as_deref())?;
    let devices = environment.ib_hca.unwrap_or_default();
    let ports = verbs.open_ports(&devices, environment.ib_gid_index, usize::MAX)?;
    let texts: Vec<String> = ports.iter().map(ToString::to_string).collect();
    Ok(texts.join("; "))
}

impl Info {
    /// Returns each transport's name, whether it can be used, and how or why not.
    fn transports(&self) -> [(&'static str, bool, String); 3] {
        let needed = ["memfd", "futex", "unix sockets"];
        let facilities = self.facilities.iter();
        let missing = facilities.filter(|one| needed.contains(&one.name) && !one.usable);
        let missing: Vec<String> = missing
            .map(|facility| format!("{}: {}", facility.name, facility.detail))
            .collect();
        let shm = match missing.is_empty() {
            true => (true, "between ranks of this host and user".into()),
            false => (false, missing.join("; ")),
        };
        let tcp = match interfaces::candidates(environment().socket_ifname.as_ref(), false) {
            Ok(candidates) if candidates.interfaces.is_empty() => {
                (true, "this host only: no address but loopback's".into())
            }
            Ok(candidates) => (true, between_hosts(&candidates)),
            Err(error) => (false, error.to_string()),
        };
        let rdma = match rdma_ports() {
            Ok(ports) => (true, ports),
            Err(error) => (false, error.to_string()),
        };
        [
            ("shm", shm.0, shm.1),
            ("tcp", tcp.0, tcp.1),
            ("rdma", rdma.0, rdma.1),
        ]
    }

    fn text(&self) -> String {
        let system = rustix::system::uname();
        let machine = &self.machine;
        let host = format!(
            "{}, {} {}, {}",
            system.nodename().to_string_lossy(),
            system.sysname().to_string_lossy(),
            system.release().to_string_lossy(),
            system.machine().to_string_lossy(),
        );
        let caches = cores::caches(Path::new(ROOT)).into_iter();
        let caches = caches.filter(|cache| cache.kind != "Instruction");
        let caches = list(caches.map(|cache| {
            let size = bytes_label(cache.bytes as f64);
            let cores = plural(cache.shared_by, "core");
            format!("L{} {size} for {cores}", cache.level)
        }));
        let nodes = cores::nodes(Path::new(ROOT)).into_iter();
        let nodes = list(nodes.map(|node| {
            let cores = plural(node.cores.len(), "core");
            format!("node {} with {cores}", node.number)
        }));
        let size = |bytes: Option<u64>| or_unknown(bytes.map(|bytes| bytes_label(bytes as f64)));
        let memory = size(machine.memory_bytes);
        let available = size(machine.memory_available_bytes);
        let mut text = String::new();
        for (name, value) in [
            ("ringfold", env!("CARGO_PKG_VERSION").into()),
            ("host", host),
            ("cpu", or_unknown(machine.cpu_model.clone())),
            ("cores", self.cores()),
            ("kernels", level_name()),
            ("caches", or_unknown(Some(caches))),
            ("numa", or_unknown(Some(nodes))),
            ("memory", format!("{memory}, {available} available")),
            ("launcher", self.launcher()),
            ("processes", self.processes()),
        ] {
            text += &format!("{name:<11}{value}\n");
        }
        self.lists(&mut text);
        text
    }

    fn lists(&self, text: &mut String) {
        text.push_str("\ninterfaces\n");
        match &self.interfaces {
            Ok(list) => {
                for interface in list {
                    let about = about(&interface.name);
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
        let machine = &self.machine;
        let allowed = machine.cores_allowed.as_ref();
        let online = machine.cores_online.as_ref();
        let quota = cores::quota(Path::new(ROOT));
        let known = [
            Some(format!("{} usable", cores::available())),
            allowed.map(|cores| format!("affinity {cores}")),
            online.map(|cores| format!("online {cores}")),
            quota.map(|quota| format!("control group's quota {quota:.2}")),
        ];
        list(known.into_iter().flatten())
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
                "cores": node.cores.len(),
            })).collect::<Vec<_>>(),
            "interfaces": self.interfaces.as_ref().map_or(Value::Null, |list| {
                list.iter().map(|interface| json!({
                    "name": interface.name,
                    "address": interface.address.to_string(),
                    "prefix": interface.prefix,
                    "is_loopback": interface.is_loopback,
                    "rate_mbps": link(&interface.name).rate_mbps,
                    "sockets": link(&interface.name).sockets,
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

/// Returns the tuner's limits for as many ranks as there are cores.
fn limits() -> Limits {
    let machine = topology::Machine::here();
    let overrides = environment().limits.unwrap_or_default();
    overrides.over(Limits::derive(&machine, machine.cores))
}

fn level_name() -> String {
    let name = |level: &Level| format!("{level:?}").to_lowercase();
    let available = list(Level::available().iter().map(name));
    format!("{} (of {available})", name(&Level::current()))
}

/// Describes the addresses for data between hosts, and the interfaces that carry it at once.
fn between_hosts(candidates: &Candidates) -> String {
    let interfaces = &candidates.interfaces;
    let links: Vec<Link> = interfaces.iter().map(|one| link(&one.name)).collect();
    let rails = interfaces.iter().zip(link::rails(candidates, &links));
    let mut rails: Vec<&str> = rails
        .filter_map(|(interface, is_rail)| is_rail.then_some(interface.name.as_str()))
        .collect();
    rails.dedup();
    let mut text = format!("between hosts from {}", list(candidates.addresses()));
    if rails.len() > 1 {
        text += &format!(
            "; at once by {} where peers share their networks",
            list(rails)
        );
    }
    text
}

/// Returns the known properties of the link behind an interface.
fn link(name: &str) -> Link {
    Link::read(Path::new(ROOT), name)
}

/// Describes an interface: MTU, rate, and sockets for each channel.
fn about(name: &str) -> String {
    let mtu = machine::text(Path::new("/sys/class/net").join(name).join("mtu"));
    let mtu = mtu.map(|mtu| format!("mtu {mtu}"));
    let Link { rate_mbps, sockets } = link(name);
    let rate = rate_mbps.map(|rate| format!("{rate} Mbit/s"));
    let sockets = (sockets > 1).then(|| format!("{sockets} sockets for each channel"));
    list([mtu, rate, sockets].into_iter().flatten())
}

fn line(text: &mut String, name: &str, value: &str) {
    *text += &format!("  {name:<18}{}\n", value.trim_end());
}

/// Joins the words with commas.
fn list(words: impl IntoIterator<Item: ToString>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| word.to_string()).collect();
    words.join(", ")
}

fn yes(usable: bool) -> &'static str {
    if usable { "yes" } else { "no" }
}

fn or_unknown(text: Option<String>) -> String {
    let known = text.filter(|text| !text.is_empty());
    known.unwrap_or_else(|| "unknown".into())
}
