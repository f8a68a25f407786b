//! The links of a GPU: one in each direction, with a rate and a latency, in modelled time.
//!
//! A copy reserves its pieces one after the other; a piece begins when the link is free and the
//! copy wants it, and takes its bytes over the rate, which is lower while the other direction is
//! busy. The state is when each direction is free, in two words, which processes on the same GPU
//! share. A reservation is one exchange of a word, so a process that is killed leaves nothing
//! locked.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::report::end;
use crate::settings::{Mode, Settings};

/// The state of one GPU's links: when each direction is free.
type Words = [AtomicU64; 2];

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device to the host.
    Down,
    /// From the host to the device.
    Up,
}

/// Both links of a GPU.
#[derive(Debug)]
pub struct Link {
    /// When each direction is free, in nanoseconds.
    free_ns: &'static Words,
    bytes_per_ns: f64,
    duplex: f64,
    /// What a copy takes in its stream beside its bytes.
    pub latency_ns: u64,
    /// What a copy takes of the link beside its bytes.
    pub gap_ns: u64,
    /// Whether copies take modelled time.
    pub is_timed: bool,
}

impl Link {
    /// The links of the device `name`.
    pub fn new(settings: &Settings, name: &str) -> Link {
        let free_ns = match &settings.links {
            Some(folder) => shared(folder, name),
            None => Box::leak(Box::default()),
        };
        Link {
            free_ns,
            bytes_per_ns: settings.bytes_per_ns,
            duplex: settings.duplex,
            latency_ns: settings.latency_ns,
            gap_ns: settings.gap_ns,
            is_timed: settings.mode == Mode::Threads,
        }
    }

    /// Reserves the next `bytes` of a copy that wants them moved from `wanted_ns` on, with a gap of
    /// `gap_ns` before them; when they are.
    pub fn reserve(&self, direction: Direction, bytes: usize, wanted_ns: u64, gap_ns: u64) -> u64 {
        let (own, other) = match direction {
            Direction::Down => (0, 1),
            Direction::Up => (1, 0),
        };
        let own = &self.free_ns[own];
        loop {
            // Relaxed: a word is the model's, and orders nothing.
            let free = own.load(Ordering::Relaxed);
            let begin = free.max(wanted_ns);
            let is_duplex = self.free_ns[other].load(Ordering::Relaxed) > begin;
            let factor = if is_duplex { self.duplex } else { 1.0 };
            let due = begin + gap_ns + (bytes as f64 / (self.bytes_per_ns * factor)).round() as u64;
            let reserved = own.compare_exchange(free, due, Ordering::Relaxed, Ordering::Relaxed);
            if reserved.is_ok() {
                return due;
            }
        }
    }
}

/// The words in the file `name` of `folder`.
fn shared(folder: &Path, name: &str) -> &'static Words {
    let path = folder.join(name);
    let failed = |error: std::io::Error| format!("the link `{}`: {error}", path.display());
    if let Err(error) = fs::create_dir_all(folder) {
        end(failed(error));
    }
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options
        .open(&path)
        .unwrap_or_else(|error| end(failed(error)));
    let bytes = size_of::<Words>();
    if let Err(error) = file.set_len(bytes as u64) {
        end(failed(error));
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let mapped = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0) };
    let mapped = mapped.unwrap_or_else(|error| end(failed(error.into())));
    // SAFETY: the mapping has this size and the alignment of a page, and is never unmapped; every
    // process accesses it as atomics.
    unsafe { &*mapped.cast::<Words>() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 25 bytes in a nanosecond (GB/s), and 20 while both directions are busy.
    fn link() -> Link {
        Link {
            free_ns: Box::leak(Box::default()),
            bytes_per_ns: 25.0,
            duplex: 0.8,
            latency_ns: 0,
            gap_ns: 0,
            is_timed: true,
        }
    }

    #[test]
    fn gaps_are_the_links() {
        let link = link();
        assert_eq!(link.reserve(Direction::Down, 2500, 1000, 30), 1130);
        assert_eq!(link.reserve(Direction::Down, 2500, 1000, 30), 1260);
    }

    #[test]
    fn pieces_of_one_direction_follow_each_other() {
        let link = link();
        assert_eq!(link.reserve(Direction::Down, 2500, 1000, 0), 1100);
        assert_eq!(link.reserve(Direction::Down, 2500, 1000, 0), 1200);
        assert_eq!(link.reserve(Direction::Down, 2500, 5000, 0), 5100);
    }

    #[test]
    fn both_directions_together_are_slower() {
        let link = link();
        assert_eq!(link.reserve(Direction::Down, 25_000, 1000, 0), 2000);
        assert_eq!(link.reserve(Direction::Up, 2000, 1000, 0), 1100);
        assert_eq!(link.reserve(Direction::Up, 2500, 2000, 0), 2100);
    }

    #[test]
    fn processes_that_name_one_device_share_its_links() {
        let folder = std::env::temp_dir().join(format!("softcuda-{}", std::process::id()));
        let (first, second) = (shared(&folder, "gpu"), shared(&folder, "gpu"));
        let other = shared(&folder, "other");
        first[1].store(7, Ordering::Relaxed);
        assert_eq!(second[1].load(Ordering::Relaxed), 7);
        assert_eq!(other[1].load(Ordering::Relaxed), 0);
        fs::remove_dir_all(folder).unwrap();
    }
}
