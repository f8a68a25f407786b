//! The settings, read from `SOFTCUDA_*` variables once.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use crate::call::Failure;
use crate::report::end;

/// Who runs the operations of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A thread for each queue.
    Threads,
    /// One thread, which picks a queue at random for each step.
    Seeded,
    /// The calls of the program.
    Stepped,
}

/// What the variables say; the crate's documentation describes them.
#[derive(Debug)]
pub struct Settings {
    pub mode: Mode,
    pub seed: u64,
    /// The devices' names; without a name given, that of this process alone.
    pub devices: Vec<String>,
    pub links: Option<PathBuf>,
    /// Bytes in a nanosecond; infinite without a limit.
    pub bytes_per_ns: f64,
    pub latency_ns: u64,
    pub gap_ns: u64,
    pub duplex: f64,
    pub poison: bool,
    /// Queues that the streams of a device share; 0: each has its own.
    pub queues: usize,
    pub queue_operations_max: usize,
    pub free_waits: bool,
    pub memory_operations: bool,
    pub version: i32,
    /// What HIP's interface answers.
    pub hip_version: i32,
    pub fail: Option<Failure>,
    pub report_ms: u64,
    pub abort_ms: u64,
}

impl Settings {
    /// Reads this process' environment; ends the process if a value is wrong.
    pub fn read() -> Settings {
        let mode = match text("MODE").as_deref() {
            None | Some("threads") => Mode::Threads,
            Some("seeded") => Mode::Seeded,
            Some("stepped") => Mode::Stepped,
            Some(other) => end(format!("SOFTCUDA_MODE={other} is none of its modes")),
        };
        let free_waits = match text("FREE").as_deref() {
            None | Some("wait") => true,
            Some("at-once") => false,
            Some(other) => end(format!("SOFTCUDA_FREE={other} is not `wait` or `at-once`")),
        };
        Settings {
            mode,
            seed: number("SEED", 1),
            devices: devices(text("DEVICES").as_deref().unwrap_or("1")),
            links: text("LINKS").map(PathBuf::from),
            bytes_per_ns: number("GBPS", f64::INFINITY),
            latency_ns: (number("LATENCY_US", 10.0) * 1e3) as u64,
            gap_ns: (number("GAP_US", 0.0) * 1e3) as u64,
            duplex: number("DUPLEX", 1.0),
            poison: number("POISON", 1) != 0,
            queues: number("QUEUES", 0),
            queue_operations_max: number("QUEUE_OPERATIONS", 1024),
            free_waits,
            memory_operations: number("MEMOPS", 1) != 0,
            version: number("VERSION", 13000),
            hip_version: number("HIP_VERSION", 60_300_000),
            fail: text("FAIL").map(|text| {
                let failure = Failure::parse(&text);
                failure.unwrap_or_else(|| end(format!("SOFTCUDA_FAIL={text}: not name:n:code")))
            }),
            report_ms: number("REPORT_MS", 5000),
            abort_ms: number("ABORT_MS", 0),
        }
    }
}

fn text(name: &str) -> Option<String> {
    let value = std::env::var(format!("SOFTCUDA_{name}")).ok();
    value.filter(|value| !value.is_empty())
}

fn number<T: FromStr<Err: Display>>(name: &str, default: T) -> T {
    let Some(text) = text(name) else {
        return default;
    };
    let read = text.parse();
    read.unwrap_or_else(|error| end(format!("SOFTCUDA_{name}={text}: {error}")))
}

/// A count gives devices that no other process has.
fn devices(text: &str) -> Vec<String> {
    match text.parse::<usize>() {
        Ok(count) => {
            let process = std::process::id();
            (0..count)
                .map(|device| format!("{process}-{device}"))
                .collect()
        }
        Err(_) => text.split(',').map(str::to_owned).collect(),
    }
}
