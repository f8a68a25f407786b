//! Reading payloads from the sender's memory: one copy of a message instead of two, without
//! registration.
//!
//! A rank publishes the location of a random token in its memory. A peer that can read the token by
//! the kernel's `process_vm_readv` can read payloads, too. Security modules, sandboxes and
//! namespaces of processes may prevent this, so all ranks try when they join (`setup/warm_up.rs`).
//! The idea is that of the KNEM module (Goglin, Moreaud: KNEM, a generic and scalable
//! kernel-assisted intra-node MPI communication framework, JPDC 73, 2013), which the kernel has
//! adopted as "cross-memory attach".
//!
//! # Invariants
//!
//! * The token is read again behind every piece of a payload, in the same system call. A piece
//!   counts only if the token is the published one: then the process that lent the memory was still
//!   running its program, and no other process has got its number.
//! * An address from a peer is used only in the peer's process.

use std::hash::{BuildHasher, RandomState};

use super::segment::Segment;
use crate::error::{Error, Result};
use crate::memory::{Owned, Region};
use crate::sync::Ordering;
use crate::sys::peer_memory;

/// Maximum length of one piece: some 100 µs of work, after which a withdrawal is seen.
const PIECE_BYTES: usize = 1 << 20;

/// The length of a token, which is a line of its own.
const TOKEN_BYTES: usize = 16;

/// Words that describe a rank's process: its number, and the address and value of its token.
const PROCESS_WORDS: usize = 4;

/// This rank's token. Peers that still read after it was freed get no data.
#[derive(Debug)]
pub struct Token(#[cfg_attr(not(test), allow(dead_code, reason = "read by peers"))] pub Owned);

impl Token {
    /// Creates the token of the rank with this number on the segment, and publishes its location.
    pub fn publish(segment: &Segment, rank: usize) -> Token {
        let token = Owned::zeroed(TOKEN_BYTES);
        let value = [(); 2].map(|()| RandomState::new().hash_one(rank));
        token.region().write(&value[0].to_ne_bytes());
        token.region().part(8..16).write(&value[1].to_ne_bytes());
        let address = token.region().address() as u64;
        let process = u64::from(std::process::id());
        let words: [u64; PROCESS_WORDS] = [process, address, value[0], value[1]];
        for (index, word) in words.into_iter().enumerate() {
            // Pairs with the load in `published`.
            let place = segment.process_word(rank, index);
            place.store(word, Ordering::Release);
        }
        Token(token)
    }
}

/// A peer's process, as the peer has published it: claims.
#[derive(Clone, Copy, Debug)]
struct PeerProcess {
    pid: i32,
    address: u64,
    token: [u64; 2],
}

impl PeerProcess {
    /// Returns the process of `rank`, if it has published one.
    fn published(segment: &Segment, rank: usize) -> Option<PeerProcess> {
        let word = |index| {
            // Pairs with the store in `publish`.
            segment.process_word(rank, index).load(Ordering::Acquire)
        };
        let [process, address, first, second]: [u64; PROCESS_WORDS] = std::array::from_fn(word);
        let pid = i32::try_from(process).ok().filter(|pid| *pid > 0)?;
        Some(PeerProcess {
            pid,
            address,
            token: [first, second],
        })
    }
}

/// Whether the kernel reads `memory` of this process for other ones, as far as its first and its
/// last byte tell.
pub fn is_readable(memory: Region) -> bool {
    let Some(last) = memory.bytes().checked_sub(1) else {
        return true;
    };
    let mut seen = [0; 2];
    // SAFETY: borrowed exclusively, and used only by the call below.
    let seen = unsafe { Region::new(seen.as_mut_ptr(), seen.len()) };
    let first = memory.address() as u64;
    let ends = [
        (first, seen.part(0..1)),
        (first + last as u64, seen.part(1..2)),
    ];
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    matches!(peer_memory::read(own, ends), Ok(2))
}

/// The processes of the peers whose memory this rank reads.
#[derive(Debug)]
pub struct Reader {
    /// The processes by rank.
    peers: Vec<Option<PeerProcess>>,
    /// Where a peer's token goes.
    token: Owned,
}

impl Reader {
    /// Returns a reader of the other ranks' memory; `Err` with the first rank whose memory this
    /// rank cannot read. All ranks have published their tokens.
    pub fn open(segment: &Segment, rank: usize) -> std::result::Result<Reader, usize> {
        let ranks = segment.shape().ranks;
        let process = |peer: usize| match peer == rank {
            true => None,
            false => PeerProcess::published(segment, peer),
        };
        let reader = Reader {
            peers: (0..ranks).map(process).collect(),
            token: Owned::zeroed(TOKEN_BYTES),
        };
        let mut others = (0..ranks).filter(|peer| *peer != rank);
        match others.find(|peer| !reader.is_running(*peer)) {
            Some(peer) => Err(peer),
            None => Ok(reader),
        }
    }

    /// Fills `into` from the memory at `address` of rank `from`; false if that rank has withdrawn
    /// its memory, or has ended.
    pub fn take(&self, segment: &Segment, from: usize, address: u64, into: Region) -> Result<bool> {
        let bytes = into.bytes();
        for begin in (0..bytes).step_by(PIECE_BYTES) {
            let piece = into.part(begin..bytes.min(begin + PIECE_BYTES));
            let is_valid = self.read(from, address.wrapping_add(begin as u64), piece)?;
            if !is_valid || segment.has_withdrawn(from) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the bytes at `address` of `peer`; false if the peer has ended.
    fn read(&self, peer: usize, address: u64, into: Region) -> Result<bool> {
        let Some(process) = self.peers[peer] else {
            return Err(Error::corrupt(peer, "unexpected loan of ordinary memory"));
        };
        let parts = [(address, into), (process.address, self.token.region())];
        let read = peer_memory::read(process.pid, parts);
        if matches!(read, Ok(bytes) if bytes == into.bytes() + TOKEN_BYTES) {
            return Ok(self.has_read(process.token));
        }
        if !self.is_running(peer) {
            return Ok(false);
        }
        let bytes = into.bytes();
        let what = format!(
            "cannot read {bytes} bytes of the memory of rank {peer}; set \
             RINGFOLD_LIMITS=read_bytes_min=never"
        );
        let short = || std::io::Error::from_raw_os_error(libc::EFAULT);
        Err(Error::system(what, read.err().unwrap_or_else(short)))
    }

    /// Whether the process of `peer` runs and its memory can be read.
    fn is_running(&self, peer: usize) -> bool {
        let Some(process) = self.peers[peer] else {
            return false;
        };
        let parts = [(process.address, self.token.region())];
        let read = peer_memory::read(process.pid, parts);
        matches!(read, Ok(TOKEN_BYTES)) && self.has_read(process.token)
    }

    /// Whether the token that was read last is `token`.
    fn has_read(&self, token: [u64; 2]) -> bool {
        [0, 1].map(|word| self.token.region().word(word)) == token
    }
}
