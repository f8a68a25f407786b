//! The beginning of a board, which identifies its communicator and its process.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

use super::layout::head;
use crate::memory::MappedWords;

/// The identity of a communicator, as its board shows it.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The job's number, the same on all its ranks.
    pub job: u64,
    /// The communicator's number within the job.
    pub communicator: u64,
    /// The rank that owns the board.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// The transport's name.
    pub transport: &'static str,
    /// The program that the process runs; see [`program`].
    pub program: String,
}

/// Returns the nanoseconds since this host's start; all its processes share this clock.
pub fn now_ns() -> u64 {
    ns_of(ClockId::Monotonic)
}

/// Returns a clock's time in nanoseconds.
pub fn ns_of(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Writes the beginning of a board except the magic number.
pub fn write(words: &MappedWords, identity: &Identity, records: usize) {
    words.set(head::PID, std::process::id().into());
    words.set(head::JOB, identity.job);
    words.set(head::COMMUNICATOR, identity.communicator);
    words.set(head::RANK, identity.rank as u64);
    words.set(head::WORLD_SIZE, identity.world_size as u64);
    words.set(head::RECORDS, records as u64);
    words.set(head::MADE_NS, now_ns());
    words.set(head::MADE_CALENDAR_NS, ns_of(ClockId::Realtime));
    for (index, number) in clock().into_iter().enumerate() {
        words.set(head::CLOCK + index, number);
    }
    words.set_text(head::TRANSPORT, head::TRANSPORT_WORDS, identity.transport);
    words.set_text(head::HOST, head::HOST_WORDS, &host());
    words.set_text(head::PROGRAM, head::PROGRAM_WORDS, &identity.program);
}

/// Identifies this process's clock by the running kernel and the time namespace. If the system
/// hides both, all numbers are 0, which counts as one clock.
fn clock() -> [u64; head::CLOCK_WORDS] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let boot = u128::from_str_radix(&digits, 16).unwrap_or_default();
    let namespace = fs::metadata("/proc/self/ns/time").map_or(0, |metadata| metadata.ino());
    [boot as u64, (boot >> 64) as u64, namespace]
}

/// Returns this host's name.
pub fn host() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().into_owned()
}

/// Returns the program and the file or module that it runs, without folders: `python3 train.py`.
/// Omits other arguments, which may be private.
pub fn program() -> String {
    // `std::env::args` may be empty in a library within another program.
    let line = fs::read("/proc/self/cmdline").unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    let mut words = line.split('\0');
    let name = |word: &str| word.rsplit('/').next().unwrap_or(word).to_owned();
    let program = name(words.next().unwrap_or_default());
    let mut flag = "";
    // The argument after -c is program text, not a file.
    let runs = words.take_while(|word| *word != "-c").find(|word| {
        let follows_m = std::mem::replace(&mut flag, word) == "-m";
        // Other programs may use -m for anything.
        (follows_m && program.starts_with("python"))
            || (!word.is_empty() && Path::new(word).exists())
    });
    match runs.map(name) {
        Some(runs) => format!("{program} {runs}"),
        None => program,
    }
}
