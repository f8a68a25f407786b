//! Hosts simulated by network namespaces: a bridge in a separate namespace, with a link to each
//! host.
//!
//! The machine's own network is not touched. Dropping the lab deletes the namespaces with
//! everything in them; the next test deletes those that a killed test has left. Host `h` has the
//! address `10.77.0.(h + 1)` on `eth0`. Creating a lab requires privileges that an ordinary user
//! lacks; without them the tests are skipped, and recorded as such.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::fd::AsFd;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::job::{Job, Plan};
use crate::script::Script;
use crate::skipped::skipped;

/// The port of the rendezvous: the namespace is new, so every port is free.
const PORT: u16 = 29400;

/// An address for which no host on the cable answers.
pub const UNREACHABLE: &str = "10.78.0.1/32";

/// Folder of named namespaces.
const NAMESPACES: &str = "/run/netns";

/// Prefix of the names of all labs; the process and a number follow.
const PREFIX: &str = "ringfold-lab-";

pub struct Lab {
    switch: String,
    hosts: Vec<String>,
}

impl Lab {
    /// Creates a lab of `hosts`, or returns `None` and records the test as skipped.
    pub fn new(hosts: usize) -> Option<Lab> {
        match Lab::build(hosts) {
            Ok(lab) => Some(lab),
            Err(reason) => {
                skipped(&format!("no network namespaces here: {}", reason.trim()));
                None
            }
        }
    }

    fn build(hosts: usize) -> Result<Lab, String> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        remove_abandoned();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let stem = format!("{PREFIX}{}-{number}", std::process::id());
        let mut lab = Lab {
            switch: format!("{stem}-switch"),
            hosts: Vec::new(),
        };
        ip(&["netns", "add", &lab.switch])?;
        lab.switch(&["link", "add", "bridge", "type", "bridge"])?;
        lab.switch(&["link", "set", "bridge", "up"])?;
        for host in 0..hosts {
            let name = format!("{stem}-{host}");
            ip(&["netns", "add", &name])?;
            lab.hosts.push(name.clone());
            let port = port(host);
            lab.switch(&[
                "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &name,
            ])?;
            lab.switch(&["link", "set", &port, "master", "bridge", "up"])?;
            ip(&[
                "-n",
                &name,
                "address",
                "add",
                &format!("{}/24", address(host)),
                "dev",
                "eth0",
            ])?;
            ip(&["-n", &name, "link", "set", "eth0", "up"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
        }
        Ok(lab)
    }

    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Returns a job whose rank 0 is on host 0, with a secret.
    pub fn plan(&self, world_size: usize, transport: &'static str, script: Script) -> Plan {
        Plan {
            address: Some(rendezvous()),
            secret: Some("a secret for these tests alone".into()),
            ..Plan::new(world_size, transport, script)
        }
    }

    /// Starts the ranks of `plan`, on one host after the other.
    pub fn start(&self, plan: &Plan) -> Job {
        self.start_with(plan, plan.world_size, &plan.script)
    }

    /// Starts the ranks of `plan`; `odd` follows another script.
    pub fn start_with(&self, plan: &Plan, odd: usize, script: &Script) -> Job {
        let mut job = plan.empty();
        for rank in 0..plan.world_size {
            self.add(
                &mut job,
                rank,
                if rank == odd { script } else { &plan.script },
            );
        }
        job
    }

    /// Starts one rank.
    pub fn add(&self, job: &mut Job, rank: usize, script: &Script) {
        let program = std::env::current_exe().expect("this binary has a name");
        let mut command = self.command(rank % self.hosts(), &program);
        job.start(rank, script, &mut command);
    }

    /// Returns a command that runs `program` on a host.
    pub fn command(&self, host: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.hosts[host]])
            .arg(program);
        command
    }

    /// Starts a thread on a host.
    pub fn spawn<R: Send + 'static>(
        &self,
        host: usize,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> JoinHandle<R> {
        let path = format!("{NAMESPACES}/{}", self.hosts[host]);
        let namespace = std::fs::File::open(path).expect("the lab's namespace");
        std::thread::spawn(move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).expect("the lab's maker may enter");
            work()
        })
    }

    /// Adds an address to host 0, on `side0`, to which the others have a route that leads nowhere.
    pub fn add_unreachable_address(&self) -> Result<(), String> {
        let first = &self.hosts[0];
        ip(&[
            "-n", first, "link", "add", "side0", "type", "veth", "peer", "name", "side1",
        ])?;
        ip(&["-n", first, "link", "set", "side0", "up"])?;
        ip(&["-n", first, "address", "add", UNREACHABLE, "dev", "side0"])?;
        for host in &self.hosts[1..] {
            ip(&["-n", host, "route", "add", UNREACHABLE, "dev", "eth0"])?;
        }
        Ok(())
    }

    /// Connects every host by a second cable, `eth1`, to a second switch, with the address
    /// `10.79.0.(h + 1)`.
    pub fn add_rails(&self) -> Result<(), String> {
        self.switch(&["link", "add", "second", "type", "bridge"])?;
        self.switch(&["link", "set", "second", "up"])?;
        for (host, name) in self.hosts.iter().enumerate() {
            let port = second_port(host);
            self.switch(&[
                "link", "add", &port, "type", "veth", "peer", "name", "eth1", "netns", name,
            ])?;
            self.switch(&["link", "set", &port, "master", "second", "up"])?;
            let address = format!("{}/24", second_address(host));
            self.on(host, &["address", "add", &address, "dev", "eth1"])?;
            self.on(host, &["link", "set", "eth1", "up"])?;
        }
        Ok(())
    }

    /// Runs `ip` with these arguments on a host.
    pub fn on(&self, host: usize, arguments: &[&str]) -> Result<(), String> {
        let mut all = vec!["-n", &self.hosts[host]];
        all.extend(arguments);
        ip(&all)
    }

    /// Makes all first cables carry packets of `mtu` bytes, one at a time.
    pub fn set_mtu(&self, mtu: &str) -> Result<(), String> {
        for host in 0..self.hosts() {
            self.switch(&["link", "set", &port(host), "mtu", mtu])?;
            self.on(host, &["link", "set", "eth0", "mtu", mtu])?;
            self.on(host, &["link", "set", "eth0", "gso_max_segs", "1"])?;
        }
        self.switch(&["link", "set", "bridge", "mtu", mtu])
    }

    /// Returns a counter of a host's interface, such as `tx_bytes` or `tx_packets`.
    pub fn counter(&self, host: usize, interface: &str, name: &str) -> u64 {
        let path = format!("/sys/class/net/{interface}/statistics/{name}");
        // `ip netns exec` mounts a `/sys` with the namespace's own interfaces.
        let output = self.command(host, Path::new("cat")).arg(path).output();
        let text = output.expect("a counter").stdout;
        let text = String::from_utf8_lossy(&text);
        text.trim().parse().expect("a number")
    }

    /// Pulls a host's second cable.
    pub fn cut_rail(&self, host: usize) {
        self.switch(&["link", "set", &second_port(host), "down"])
            .expect("the port exists");
    }

    /// Pulls a host's cable.
    pub fn cut(&self, host: usize) {
        self.switch(&["link", "set", &port(host), "down"])
            .expect("the port exists");
    }

    /// Plugs a host's cable in again.
    pub fn mend(&self, host: usize) {
        self.switch(&["link", "set", &port(host), "up"])
            .expect("the port exists");
    }

    /// Limits every cable, in each direction, to `rate` as tc writes it (`1gbit`).
    pub fn shape(&self, rate: &str) -> Result<(), String> {
        let has_second = self.switch(&["link", "show", "second"]).is_ok();
        let limit = [
            "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms",
        ];
        for (host, name) in self.hosts.iter().enumerate() {
            let mut ends = vec![(name, "eth0".to_string()), (&self.switch, port(host))];
            if has_second {
                ends.extend([
                    (name, "eth1".to_string()),
                    (&self.switch, second_port(host)),
                ]);
            }
            for (namespace, device) in ends {
                let mut arguments = vec!["-n", namespace, "qdisc", "replace", "dev", &device];
                arguments.extend(limit);
                succeed("tc", &arguments)?;
            }
        }
        Ok(())
    }

    /// Fails if a process is left on a host.
    pub fn assert_empty(&self) {
        for name in &self.hosts {
            let left = pids(name);
            assert!(left.is_empty(), "processes are left on {name}: {left:?}");
        }
    }

    fn switch(&self, arguments: &[&str]) -> Result<(), String> {
        let mut all = vec!["-n", &self.switch];
        all.extend(arguments);
        ip(&all)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in self.hosts.iter().chain([&self.switch]) {
            // The namespace's cables and addresses are deleted with it.
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

/// Returns whether a change of a lab could be made; if not, records the test as skipped.
pub fn is_made(change: Result<(), String>) -> bool {
    change.map_err(|refusal| skipped(&refusal)).is_ok()
}

/// Returns the switch's port of a host's cable.
fn port(host: usize) -> String {
    format!("port{host}")
}

/// Returns the second switch's port of a host's second cable.
fn second_port(host: usize) -> String {
    format!("second{host}")
}

/// Returns a host's address on its second cable.
pub fn second_address(host: usize) -> String {
    format!("10.79.0.{}", host + 1)
}

/// Returns a host's address on its first cable.
pub fn address(host: usize) -> String {
    format!("10.77.0.{}", host + 1)
}

/// Returns the address of rank 0, on host 0.
pub fn rendezvous() -> String {
    format!("{}:{PORT}", address(0))
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    succeed("ip", arguments)
}

fn succeed(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            Err(format!("{program} {}: {complaint}", arguments.join(" ")))
        }
        Err(error) => Err(format!("{program}: {error}")),
    }
}

fn pids(namespace: &str) -> Vec<String> {
    let output = Command::new("ip")
        .args(["netns", "pids", namespace])
        .output();
    let text = output.map_or(String::new(), |output| {
        String::from_utf8_lossy(&output.stdout).into()
    });
    text.split_whitespace().map(str::to_string).collect()
}

/// Deletes the namespaces of processes that no longer exist.
fn remove_abandoned() {
    for entry in std::fs::read_dir(NAMESPACES)
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next());
        let is_abandoned = owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists());
        if is_abandoned {
            let _ = ip(&["netns", "delete", &name]);
        }
    }
}

#[test]
fn a_lab_that_cannot_be_made_is_recorded_as_a_skip() {
    let file = std::env::temp_dir().join(format!("ringfold-skips-{}", std::process::id()));
    let test = "netlab::an_interface_that_is_not_there_is_an_error_that_names_those_that_are";
    let output = Command::new(std::env::current_exe().expect("this binary has a name"))
        .args(["--exact", test])
        .env("TEST_SKIPS", &file)
        .env("PATH", "/nowhere")
        .output()
        .expect("this binary starts");
    assert!(output.status.success(), "{output:?}");
    let skips = std::fs::read_to_string(&file).expect("the record of skips");
    let due = format!("faults::{test}: no network namespaces here: ip: ");
    assert!(skips.starts_with(&due), "{skips}");
    std::fs::remove_file(&file).expect("it was there");
}
