//! Publishes a communicator's state to other processes in a *board*.
//!
//! A board is memory in which the driving thread keeps counters: calls and bytes of each
//! collective, the call in which this rank waits, the ranks that were late. Other processes read
//! the board at any time without involving the job, even if the job is stuck. On request a board
//! also has a ring of *records* of the last calls, from which a timeline is made.
//!
//! A board without records is a memfd, which readers find among the descriptors of the process
//! (`/proc/PID/fd`). So the kernel decides who may read the board (the same user, and root), and
//! frees it when the process ends in any way: no file is left behind. A board with records is a
//! mapped file in a folder chosen by the user, so that the records survive if the process is
//! killed.
//!
//! # Invariants
//!
//! * One thread at a time writes, with plain stores of numbers; no reader can delay the writer.
//! * A board is a claim of its process. Readers check its content and trust no number
//!   ([`Picture`]).
//!
//! By design, this process never reads its board, and no decision depends on the board.

mod find;
mod identity;
pub mod layout;
mod picture;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::time::ClockId;

use crate::memory::MappedWords;
use crate::memory::mapping::{Mapping, make_sealed};
use crate::sys::file_limit::without_signal;
use crate::sys::unshared::Unshared;
pub use find::{Found, find};
use identity::ns_of;
pub use identity::{Identity, now_ns, program};
pub use layout::{BEGINNING_BYTES, FILE_SUFFIX};
use layout::{MAGIC, MEMFD_NAME, head, now, peer, record};
pub use picture::{Ended, KindOfCall, PeerPicture, Picture, RecordedCall, Shown, Waiting};

/// A communicator's board, as written by the communicator's process.
#[derive(Debug)]
pub struct Board {
    words: MappedWords,
    world_size: usize,
    first_record: usize,
    records: u64,
    recorded: u64,
    /// Keeps the memory's descriptor open, by which readers find the board.
    _descriptor: Unshared,
}

impl Board {
    /// Creates a board without records, which other processes can find.
    pub fn new(identity: &Identity) -> io::Result<Board> {
        let bytes = layout::words(identity.world_size, 0) * 8;
        let file = Unshared::make(|| make_sealed(MEMFD_NAME, bytes))?;
        // Readers skip boards without memory; see `find`.
        without_signal(|| allocate(&file, bytes))?;
        Board::of(file, bytes, identity, 0)
    }

    /// Creates a board with records of the last `records` calls, in a new file in `folder`.
    pub fn recording(identity: &Identity, records: usize, folder: &Path) -> io::Result<Board> {
        let records = records.min(layout::RECORDS_MAX);
        let bytes = layout::words(identity.world_size, records) * 8;
        std::fs::create_dir_all(folder)?;
        // Created before `Unshared::make` holds off forks: a slow file system may take long.
        let file = create(folder)?;
        let file = Unshared::make(|| Ok(file.into()))?;
        without_signal(|| allocate(&file, bytes))?;
        Board::of(file, bytes, identity, records)
    }

    fn of(file: Unshared, bytes: usize, identity: &Identity, records: usize) -> io::Result<Board> {
        let board = Board {
            words: MappedWords::new(Mapping::unshared(&file, bytes, 0)?),
            world_size: identity.world_size,
            first_record: layout::first_record(identity.world_size),
            records: records as u64,
            recorded: 0,
            _descriptor: file,
        };
        identity::write(&board.words, identity, records);
        // Pairs with nothing: readers copy the file, and reject a copy without the magic number.
        board
            .words
            .word(head::MAGIC)
            .store(MAGIC, Ordering::Release);
        Ok(board)
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Whether calls are recorded.
    #[inline]
    pub fn is_recording(&self) -> bool {
        self.records > 0
    }

    /// Publishes the last call begun, and the number of collectives begun.
    #[inline]
    pub fn show_begun(&self, call: &Shown, begun: u64) {
        self.words.set(now::KIND, call.kind);
        self.words.set(now::BYTES, call.bytes);
        self.words.set(now::BEGUN, begun);
    }

    /// Publishes the number of collectives begun, for a call like the last one.
    #[inline]
    pub fn show_next(&self, begun: u64) {
        self.words.set(now::BEGUN, begun);
    }

    /// Counts a completed call of `collective`.
    #[inline]
    pub fn count(&self, collective: u8, bytes: u64) {
        let at = now::COLLECTIVES + 2 * (collective as usize % now::COLLECTIVES_MAX);
        self.words.add(at, 1);
        self.words.add(at + 1, bytes);
    }

    /// Publishes the number of completed collectives.
    #[inline]
    pub fn show_finished(&self, finished: u64) {
        self.words.set(now::FINISHED, finished);
    }

    /// Publishes this rank's total wait, and in how many of the `counted` calls this rank waited
    /// for a peer's first sign.
    pub fn show_waits(&self, waited_ns: u64, awaited: u64, counted: u64) {
        self.words.set(now::WAITED_NS, waited_ns);
        self.words.set(now::AWAITED, awaited);
        self.words.set(now::COUNTED, counted);
    }

    /// Publishes this rank's view of the lateness of `rank`.
    pub fn show_peer(&self, rank: usize, known: &PeerPicture) {
        if rank < self.world_size {
            let first = peer::FIRST + rank * peer::WORDS;
            self.words.set(first + peer::LAST, known.last);
            self.words.set(first + peer::SHORT, known.short);
            self.words.set(first + peer::LATENESS_NS, known.lateness_ns);
            self.words.set(first + peer::WAITED_NS, known.waited_ns);
        }
    }

    /// Publishes a text that describes this rank's wait; the wait starts now if there was none.
    pub fn show_waiting(&self, text: &str) {
        let version = self.words.word(now::TEXT_VERSION);
        let before = version.load(Ordering::Relaxed);
        version.store(before | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.words.set_text(now::TEXT, now::TEXT_WORDS, text);
        if self.words.word(now::SINCE_NS).load(Ordering::Relaxed) == 0 {
            self.words.set(now::SINCE_NS, now_ns());
        }
        version.store((before | 1).wrapping_add(1), Ordering::Release);
    }

    /// Clears this rank's wait.
    pub fn clear_waiting(&self) {
        self.words.set(now::SINCE_NS, 0);
        self.words.set(now::TEXT, 0);
    }

    /// Publishes the error that ended the communicator.
    pub fn show_fault(&self, text: &str) {
        self.words.set_text(now::FAULT, now::FAULT_WORDS, text);
    }

    /// Records a submitted call; returns the record's number.
    pub fn record(&mut self, call: &Shown) -> u64 {
        let number = self.recorded;
        let Some(at) = self.place(number) else {
            return number;
        };
        let ranks = u64::from(call.root) << 32;
        self.words.set(at + record::END_NS, 0);
        self.words.set(at + record::BEGIN_NS, now_ns());
        self.words.set(at + record::SEQUENCE, call.sequence);
        self.words.set(at + record::KIND, call.kind);
        self.words.set(at + record::BYTES, call.bytes);
        self.words.set(at + record::WAITED_NS, 0);
        self.words.set(at + record::RANKS, ranks);
        self.words.set(at + record::LATENESS_NS, call.tag.into());
        self.recorded += 1;
        let recorded = self.words.word(now::RECORDED);
        recorded.store(self.recorded, Ordering::Release);
        number
    }

    /// Records the end of the call of record `number`, and the source of a receive.
    pub fn record_end(&self, number: u64, source: Option<usize>) {
        let Some(at) = self.place(number) else { return };
        if source.is_some() {
            let ranks = u64::from(Shown::root(source)) << 32;
            self.words.set(at + record::RANKS, ranks);
        }
        self.words.set(at + record::END_NS, now_ns());
    }

    /// Records this rank's wait in the call of record `number`, and the late rank with its
    /// lateness.
    pub fn record_waits(&self, number: u64, waited_ns: u64, late: Option<(usize, u64)>) {
        let Some(at) = self.place(number) else { return };
        self.words.set(at + record::WAITED_NS, waited_ns);
        if let Some((rank, lateness_ns)) = late {
            // The upper half holds the root.
            self.words.add(at + record::RANKS, rank as u64 + 1);
            self.words.set(at + record::LATENESS_NS, lateness_ns);
        }
    }

    /// Returns the word index of a record, unless a later record has overwritten it.
    fn place(&self, number: u64) -> Option<usize> {
        let is_there = self.records > 0 && self.recorded.saturating_sub(number) <= self.records;
        is_there.then(|| self.first_record + (number % self.records) as usize * record::WORDS)
    }

    /// Publishes that the communicator was closed without an error.
    pub fn close(&self) {
        self.words.set(now::IS_CLOSED, 1);
    }
}

/// Creates a file that only its owner can read.
fn create(folder: &Path) -> io::Result<File> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let host = identity::host();
    let host: String = host
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '-'
            }
        })
        .collect();
    let made_ns = ns_of(ClockId::Realtime);
    // A mere counter: it publishes nothing.
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    let name = format!("{host}-{pid}-{number}-{made_ns:x}{FILE_SUFFIX}");
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(folder.join(name))
}

/// Fills a new file with `bytes` zeros and allocates its blocks, so that writing to its mapping
/// cannot fail for lack of space. If the file's owner truncates it while it is mapped, the process
/// dies, as with any mapped file.
fn allocate(file: impl AsFd, bytes: usize) -> io::Result<()> {
    match fallocate(&file, FallocateFlags::empty(), 0, bytes as u64) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let zeros = vec![0; 1 << 16];
            let mut left = bytes;
            while left > 0 {
                left -= rustix::io::write(&file, &zeros[..left.min(zeros.len())])?;
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
