//! The private memory of peers on this host, read through the kernel (`process_vm_readv`, cross-memory attach).
//!
//! Each rank has a *beacon*: some random bytes whose place and content it tells the others. Whoever can read a peer's
//! beacon may read its memory, and reads the process that it means: the same number may be another process where process
//! namespaces differ, or once the peer has died. A rank wipes its beacon before it gives its memory back to whoever lent it
//! in a call that failed. So what a peer read before it found the beacon intact, it read in time.
//!
//! Peers' memory is never written, because nothing would keep a frozen peer from going on with that when its owner has
//! long used the memory for something else.
//!
//! Addresses of peers are claims. The kernel checks them in the peer's address space; lengths are those of this rank's own
//! call.

use std::io;
use std::sync::atomic::{Ordering, fence};

use super::{Owned, Region};
use crate::error::{Error, Result};
use crate::sys;

/// Bytes of a beacon: nobody hits them by chance.
pub const BEACON_BYTES: usize = 16;

/// What a rank tells its peers, so that they can read its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// The process, by its number in its own namespace.
    pub pid: u32,
    /// Where the beacon lies.
    pub address: u64,
    /// What it says.
    pub beacon: [u8; BEACON_BYTES],
}

/// Bytes by which peers recognise this rank's memory, at their place for as long as this lives.
#[derive(Debug)]
pub struct Beacon {
    memory: Owned,
    content: [u8; BEACON_BYTES],
}

impl Beacon {
    /// A beacon that says `content`, which should be random.
    pub fn new(content: [u8; BEACON_BYTES]) -> Beacon {
        let memory = Owned::zeroed(BEACON_BYTES);
        memory.region().write(&content);
        Beacon { memory, content }
    }

    /// What peers must be told.
    pub fn whereabouts(&self) -> Whereabouts {
        Whereabouts {
            pid: std::process::id(),
            address: self.memory.region().address() as u64,
            beacon: self.content,
        }
    }

    fn wipe(&self) {
        self.memory.region().write(&[0; BEACON_BYTES]);
        // Before whatever is written to memory that a peer may still read; with the fence in `Foreign::is_intact`.
        fence(Ordering::SeqCst);
    }
}

impl Drop for Beacon {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// The memory of all ranks of a host, as this one reads it.
#[derive(Debug)]
pub struct Foreign {
    beacon: Beacon,
    /// By rank, this one among them.
    ranks: Vec<Whereabouts>,
}

impl Foreign {
    /// The memory of ranks that are at these places, this rank's `beacon` among them.
    pub fn new(beacon: Beacon, ranks: Vec<Whereabouts>) -> Foreign {
        Foreign { beacon, ranks }
    }

    /// Why some rank's memory cannot be read, if that is so: tried on all beacons.
    pub fn refusal(&self) -> Option<String> {
        (0..self.ranks.len()).find_map(|rank| match self.read_beacon(rank) {
            Ok(true) => None,
            Ok(false) => Some(format!(
                "process {} is not rank {rank}",
                self.ranks[rank].pid
            )),
            Err(error) => Some(format!("rank {rank}: {error}")),
        })
    }

    /// Whether the kernel gives this memory of this rank's own: that of a device it does not.
    pub fn is_readable(&self, own: Region) -> bool {
        let (pid, mut byte) = (std::process::id(), [0]);
        let mut gives = |offset: usize| {
            let address = own.address() as u64 + offset as u64;
            sys::read_process(pid, address, sys::Room::Bytes(&mut byte)).is_ok_and(|read| read == 1)
        };
        own.is_empty() || (gives(0) && gives(own.bytes() - 1))
    }

    /// Fills `into` with what lies at `address` in the memory of `rank`. It is only good if the beacon is intact afterwards.
    pub fn read(&self, rank: usize, address: u64, into: Region) -> Result<()> {
        let mut done = 0;
        while done < into.bytes() {
            let rest = sys::Room::Region(into.part(done..into.bytes()));
            let from = address.wrapping_add(done as u64);
            match sys::read_process(self.ranks[rank].pid, from, rest) {
                Ok(0) => return Err(not_there(rank, address, into.bytes())),
                Ok(read) => done += read,
                Err(error) => return Err(failure(rank, address, into.bytes(), error)),
            }
        }
        Ok(())
    }

    /// Whether `rank` is still in the call, so that all that was read of its memory until now is good.
    pub fn is_intact(&self, rank: usize) -> Result<bool> {
        // After everything that was read; with the fence in `Beacon::wipe`.
        fence(Ordering::SeqCst);
        let place = self.ranks[rank].address;
        self.read_beacon(rank)
            .map_err(|error| failure(rank, place, BEACON_BYTES, error))
    }

    /// This rank's memory is not what it was in the call any more.
    pub fn withdraw(&self) {
        self.beacon.wipe();
    }

    fn read_beacon(&self, rank: usize) -> io::Result<bool> {
        let Whereabouts {
            pid,
            address,
            beacon,
        } = self.ranks[rank];
        let mut found = [0; BEACON_BYTES];
        let read = sys::read_process(pid, address, sys::Room::Bytes(&mut found))?;
        Ok(read == BEACON_BYTES && found == beacon)
    }
}

fn failure(peer: usize, address: u64, bytes: usize, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ESRCH) => Error::PeerFailed {
            rank: peer,
            reason: "its process is gone".into(),
            site: None,
        },
        Some(libc::EFAULT) => not_there(peer, address, bytes),
        _ => Error::system(format!("cannot read the memory of rank {peer}"), error),
    }
}

fn not_there(peer: usize, address: u64, bytes: usize) -> Error {
    Error::Corrupt {
        peer,
        what: format!("a buffer of {bytes} bytes at {address:#x}, which it has not"),
        site: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ranks of one process.
    fn pair() -> [Foreign; 2] {
        let beacons = [3, 4].map(|byte| Beacon::new([byte; BEACON_BYTES]));
        let ranks: Vec<_> = beacons.iter().map(Beacon::whereabouts).collect();
        beacons.map(|beacon| Foreign::new(beacon, ranks.clone()))
    }

    #[test]
    fn a_peers_memory_is_read_until_it_is_withdrawn() {
        let [one, other] = pair();
        assert_eq!(one.refusal(), None);
        let (theirs, mine) = (Owned::zeroed(5000), Owned::zeroed(5000));
        theirs.region().write(&[7; 5000]);
        let address = theirs.region().address() as u64;
        one.read(1, address, mine.region()).expect("readable");
        assert!(one.is_intact(1).expect("readable"));
        let mut bytes = [0; 5000];
        mine.region().read(&mut bytes);
        assert_eq!(bytes, [7; 5000]);
        other.withdraw();
        assert!(!one.is_intact(1).expect("readable"));
    }

    #[test]
    fn a_claim_of_what_is_not_there_names_its_rank() {
        let [one, _other] = pair();
        let mine = Owned::zeroed(64);
        for address in [0, 64, u64::MAX - 10] {
            let error = one.read(1, address, mine.region()).unwrap_err();
            assert!(matches!(error, Error::Corrupt { peer: 1, .. }), "{error}");
        }
    }

    #[test]
    fn another_process_is_not_taken_for_the_peer() {
        let [one, other] = pair();
        let mut strangers = one.ranks.clone();
        strangers[1].beacon[0] ^= 1;
        let refusal = Foreign::new(Beacon::new([5; BEACON_BYTES]), strangers).refusal();
        assert!(refusal.is_some_and(|why| why.contains("is not rank 1")));
        drop(other);
    }

    #[test]
    fn own_memory_that_is_not_there_is_not_readable() {
        let [one, _other] = pair();
        let memory = Owned::zeroed(10_000);
        assert!(one.is_readable(memory.region()));
        assert!(one.is_readable(Region::EMPTY));
        // SAFETY: it is only asked about.
        let nothing = unsafe { Region::new(std::ptr::without_provenance_mut(64), 128) };
        assert!(!one.is_readable(nothing));
    }
}
