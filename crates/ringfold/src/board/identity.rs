//! What stands at the beginning of a board: whose it is.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

use super::layout::head;
use crate::memory::Words;

/// Whose board it is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// A number that all ranks of the job have.
    pub job: u64,
    /// The communicator's number within the job.
    pub communicator: u64,
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// What moves the data.
    pub transport: &'static str,
    /// What the process runs, as [`program`] has it.
    pub program: String,
}

/// This host's clock since its start, which all its processes share.
pub fn now_ns() -> u64 {
    ns_of(ClockId::Monotonic)
}

/// Another clock.
pub fn ns_of(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Writes all of it except the magic number.
pub fn write(words: &Words, identity: &Identity, records: usize) {
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

/// Which clock this process reads: that of the running kernel, in its time namespace. Zeros where
/// the system hides both, which then count as one.
fn clock() -> [u64; head::CLOCK_WORDS] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let boot = u128::from_str_radix(&digits, 16).unwrap_or_default();
    let namespace = fs::metadata("/proc/self/ns/time").map_or(0, |metadata| metadata.ino());
    [boot as u64, (boot >> 64) as u64, namespace]
}

/// This host's name.
pub fn host() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().into_owned()
}

/// The program and the file or module that it runs, without folders: `python3 train.py`. Other
/// arguments may be private.
pub fn program() -> String {
    // Not `std::env::args`, which a library within another program may not have.
    let line = fs::read("/proc/self/cmdline").unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    let mut words = line.split('\0');
    let name = |word: &str| word.rsplit('/').next().unwrap_or(word).to_owned();
    let program = name(words.next().unwrap_or_default());
    let mut flag = "";
    // What follows -c is a program.
    let runs = words.take_while(|word| *word != "-c").find(|word| {
        let follows_m = std::mem::replace(&mut flag, word) == "-m";
        // Elsewhere -m may have any meaning.
        (follows_m && program.starts_with("python"))
            || (!word.is_empty() && Path::new(word).exists())
    });
    match runs.map(name) {
        Some(runs) => format!("{program} {runs}"),
        None => program,
    }
}
