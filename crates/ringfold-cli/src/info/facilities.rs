//! The facilities of the system that a process may use, tried out if a harmless try exists.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::AtomicU32;

use anyhow::{Context, Result};
use ringfold::internals::device::{Attributes, Driver, Platform};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::Resource;
use rustix::thread::futex;
use serde::Serialize;

use super::environment::{driver_library, environment};
use super::machine::{self, Machine};

/// One facility of the system.
#[derive(Debug, Serialize)]
pub struct Facility {
    pub name: &'static str,
    pub usable: bool,
    /// The facility's use or state, or the reason why it is not usable.
    pub detail: String,
}

impl Facility {
    fn new(name: &'static str, tried: Result<String>) -> Facility {
        Facility {
            name,
            usable: tried.is_ok(),
            detail: tried.unwrap_or_else(|error| format!("{error:#}")),
        }
    }
}

/// Tries all facilities.
pub fn probe(machine: &Machine) -> Vec<Facility> {
    vec![
        Facility::new("memfd", memfd()),
        Facility::new("futex", shared_futex()),
        Facility::new("unix sockets", unix_sockets()),
        Facility::new("tcp", tcp()),
        Facility::new("congestion", congestion()),
        Facility::new("io_uring", io_uring()),
        Facility::new("cuda", devices(Platform::Cuda)),
        Facility::new("hip", devices(Platform::Hip)),
        Facility::new("huge pages", huge_pages(machine)),
        Facility::new("locked memory", limit(Resource::Memlock, "bytes")),
        Facility::new("open files", limit(Resource::Nofile, "descriptors")),
    ]
}

/// Tries anonymous shared memory, with the seals that peers rely on.
fn memfd() -> Result<String> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("ringfold-probe", flags).context("memfd_create")?;
    rustix::fs::ftruncate(&file, 4096).context("ftruncate")?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).context("F_ADD_SEALS")?;
    Ok("sealed shared memory".into())
}

fn shared_futex() -> Result<String> {
    let word = AtomicU32::new(0);
    // Without the private flag: a futex that other processes see.
    futex::wake(&word, futex::Flags::empty(), 1).context("futex")?;
    Ok("waiting across processes".into())
}

fn unix_sockets() -> Result<String> {
    let name = format!("ringfold-probe-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).context("abstract name")?;
    let listener = UnixListener::bind_addr(&address).context("bind")?;
    UnixStream::connect_addr(&address).context("connect")?;
    listener.accept().context("accept")?;
    Ok("rendezvous and passing of descriptors on one host".into())
}

fn tcp() -> Result<String> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("bind on 127.0.0.1")?;
    match TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
        Ok(_) => Ok("IPv4 and IPv6".into()),
        Err(_) => Ok("IPv4 only".into()),
    }
}

/// Returns the congestion control of data connections between hosts.
fn congestion() -> Result<String> {
    let named = |file: &str| machine::text(Path::new("/proc/sys/net/ipv4").join(file));
    let default = named("tcp_congestion_control");
    let default = default.as_deref().unwrap_or("unknown");
    let asked = environment().tcp_congestion.unwrap_or_default();
    match asked.decide()?.first() {
        Some(name) => Ok(format!(
            "{name} for data; the kernel's default is {default}"
        )),
        None => Ok(format!("{default}, the kernel's default")),
    }
}

/// Describes the driver, whether its streams wait for the host, and the devices that are visible.
fn devices(platform: Platform) -> Result<String> {
    let driver = Driver::of(platform, driver_library(platform).as_deref())?;
    let (major, minor) = driver.version();
    let mut text = match platform {
        Platform::Cuda => format!("driver of CUDA {major}.{minor}"),
        Platform::Hip => format!("HIP {major}.{minor}"),
    };
    text += match driver.has_memory_operations() {
        true => ", streams wait for the host",
        false => ", without stream memory operations: joining a call blocks",
    };
    for ordinal in 0..driver.devices()? {
        let device = Attributes::read(driver, ordinal, Path::new(machine::ROOT))?;
        text += &format!("; {ordinal}: {} at {}", device.name, device.bus_id);
        if let Some(node) = device.numa_node {
            text += &format!(", node {node}");
        }
    }
    Ok(text)
}

fn io_uring() -> Result<String> {
    if seccomp_filters() {
        anyhow::bail!(
            "not tried: this process runs under a seccomp filter, which usually forbids it"
        );
    }
    match machine::text("/proc/sys/kernel/io_uring_disabled".into()).as_deref() {
        Some("0") => Ok("allowed; not used".into()),
        Some("1") => anyhow::bail!("for members of kernel.io_uring_group only"),
        Some("2") => anyhow::bail!("switched off by kernel.io_uring_disabled"),
        _ => anyhow::bail!("not tried: this kernel does not report whether io_uring is allowed"),
    }
}

fn seccomp_filters() -> bool {
    machine::text("/proc/self/status".into())
        .and_then(|status| machine::field(&status, "Seccomp").map(|mode| mode == "2"))
        .unwrap_or(false)
}

fn huge_pages(machine: &Machine) -> Result<String> {
    let transparent = machine.transparent_huge_pages.as_deref();
    let reserved = machine.reserved_huge_pages.unwrap_or(0);
    if matches!(transparent, None | Some("never")) && reserved == 0 {
        anyhow::bail!("transparent huge pages are off, and none are reserved (vm.nr_hugepages)");
    }
    Ok(format!(
        "transparent: {}; reserved: {reserved}",
        transparent.unwrap_or("unknown")
    ))
}

fn limit(resource: Resource, unit: &str) -> Result<String> {
    match rustix::process::getrlimit(resource).current {
        Some(limit) => Ok(format!("at most {limit} {unit}")),
        None => Ok("no limit".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tests_themselves_need_is_found() {
        let facilities = probe(&Machine::read("/".as_ref()));
        for name in ["memfd", "futex", "unix sockets", "tcp"] {
            let facility = facilities.iter().find(|f| f.name == name).unwrap();
            assert!(facility.usable, "{name}: {}", facility.detail);
        }
    }

    #[test]
    fn a_machine_without_huge_pages_says_so() {
        let machine = Machine::read("/no/such/root".as_ref());
        assert!(huge_pages(&machine).is_err());
    }
}
