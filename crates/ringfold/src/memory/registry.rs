//! Registered buffers: this rank's memory that its peers have mapped, and the peers' memory that
//! this rank has mapped.
//!
//! All ranks make a registration together, with the same number on each rank. A number is never
//! reused, so a stale number can only be unknown. A peer's message about its buffers
//! ([`BufferHandle`]) is a claim: [`Registry::resolve`] and [`PeerMemory::resolve`] check it
//! against the mapping made at registration.

use std::sync::{Arc, Weak};

use super::registered::Own;
use super::shared::SharedMemory;
use crate::error::{Error, Result};
use crate::region::Region;

/// The location of a buffer, for peers that have mapped its registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferHandle {
    /// The registration's number, from 1 up.
    pub registration: u32,
    /// Offset of the buffer in the registration.
    pub offset: u64,
}

impl BufferHandle {
    /// The number of no registration, which stands for all memory of the owner's process; the
    /// offset is an address.
    pub const ORDINARY: u32 = u32::MAX;

    /// Returns the location of ordinary memory.
    pub fn ordinary(memory: Region) -> BufferHandle {
        BufferHandle {
            registration: BufferHandle::ORDINARY,
            offset: memory.address() as u64,
        }
    }
}

/// All ranks' parts of a registration, as mapped by this rank.
#[derive(Clone, Debug)]
struct Mapped {
    number: u32,
    /// The parts by rank, each empty if the rank's memory is not accessible.
    regions: Vec<Region>,
}

impl Mapped {
    /// Returns the `bytes` bytes at `handle`'s offset in the part of `peer`, if they lie inside it.
    fn part(&self, peer: usize, handle: BufferHandle, bytes: usize) -> Option<Region> {
        let begin = usize::try_from(handle.offset).ok()?;
        let end = begin.checked_add(bytes)?;
        let mapped = *self.regions.get(peer)?;
        (end <= mapped.bytes()).then(|| mapped.part(begin..end))
    }
}

/// The registered memory that this rank has mapped, for its transport: a snapshot of the
/// [`Registry`] at its last change. The registry keeps the memory mapped until the next change.
#[derive(Clone, Debug, Default)]
pub struct PeerMemory(Vec<Mapped>);

impl PeerMemory {
    /// Renumbers the peers: the new peer `i` is `ranks[i]` here.
    pub fn renumbered(&self, ranks: &[usize]) -> PeerMemory {
        let renumber = |mapped: &Mapped| Mapped {
            number: mapped.number,
            regions: ranks.iter().map(|rank| mapped.regions[*rank]).collect(),
        };
        PeerMemory(self.0.iter().map(renumber).collect())
    }

    /// Returns the memory of `peer` that `handle` names, `bytes` long.
    pub fn resolve(&self, peer: usize, handle: BufferHandle, bytes: usize) -> Result<Region> {
        let mut all = self.0.iter();
        all.find(|mapped| mapped.number == handle.registration)
            .and_then(|mapped| mapped.part(peer, handle, bytes))
            .ok_or_else(|| unknown(peer, handle, bytes))
    }
}

/// Returns the error of a claim of memory that is not mapped.
#[cold]
fn unknown(peer: usize, handle: BufferHandle, bytes: usize) -> Error {
    let what = format!("unknown registered buffer {handle:?} of {bytes} bytes");
    Error::corrupt(peer, what)
}

/// A registration as seen by this rank.
#[derive(Debug)]
struct MappedRegistration {
    /// The parts of all ranks, this rank's own included.
    mapped: Mapped,
    backing: Option<Backing>,
}

/// The owners of a registration's mappings.
#[derive(Debug)]
struct Backing {
    /// This rank's own part, which its user owns.
    own: Weak<Own>,
    /// The peers' parts by rank. Each is kept until the peer releases the memory, which the peer
    /// may name in a call until then.
    peers: Vec<Option<Arc<SharedMemory>>>,
}

impl MappedRegistration {
    /// Whether this rank's own part still exists.
    fn is_own_alive(&self) -> bool {
        let backing = self.backing.as_ref();
        backing.is_none_or(|backing| backing.own.strong_count() > 0)
    }

    /// Returns the offset of `buffer` in this rank's own part, if all of `buffer` lies in it.
    fn own_offset(&self, rank: usize, buffer: Region) -> Option<usize> {
        if let Some(backing) = &self.backing {
            return backing.own.upgrade()?.offset(buffer);
        }
        let own = self.mapped.regions[rank];
        own.contains(buffer)
            .then(|| buffer.address() as usize - own.address() as usize)
    }

    /// Unmaps parts that peers have released. Returns whether anything is left.
    fn sweep(&mut self) -> bool {
        let is_own_alive = self.is_own_alive();
        let Some(backing) = &mut self.backing else {
            return true;
        };
        for (peer, shared) in backing.peers.iter_mut().enumerate() {
            if shared.take_if(|shared| shared.is_released()).is_some() {
                self.mapped.regions[peer] = Region::EMPTY;
            }
        }
        is_own_alive || backing.peers.iter().any(Option::is_some)
    }
}

/// The registered buffers of one communicator.
#[derive(Debug, Default)]
pub struct Registry {
    rank: usize,
    registrations: Vec<MappedRegistration>,
    /// Number of registrations so far: the same on all ranks, because registering is collective.
    made: u32,
}

impl Registry {
    /// Makes the empty registry of `rank`.
    pub fn new(rank: usize) -> Registry {
        Registry {
            rank,
            ..Registry::default()
        }
    }

    /// Whether there has ever been a registration: only then do calls look for registered buffers.
    /// All ranks have the same answer at the same call.
    pub fn is_used(&self) -> bool {
        self.made > 0
    }

    /// Adds a registration with each rank's memory in `mapped`, and returns its number. The caller
    /// keeps the memory mapped until `remove`.
    #[cfg(test)]
    pub fn add(&mut self, mapped: Vec<Region>) -> u32 {
        self.push(mapped, None)
    }

    /// Adds this rank's `own` memory and its peers' memory, by rank, and returns the registration's
    /// number. `peers` has none for this rank, and for ranks that share no memory with it. The own
    /// part is known as long as `own` lives elsewhere, a peer's until that peer has released it.
    pub(crate) fn add_shared(&mut self, own: &Arc<Own>, peers: Vec<Option<SharedMemory>>) -> u32 {
        self.sweep();
        let region = |shared: &Option<SharedMemory>| {
            shared.as_ref().map_or(Region::EMPTY, SharedMemory::data)
        };
        let mut mapped: Vec<Region> = peers.iter().map(region).collect();
        let peers = peers.into_iter().map(|peer| peer.map(Arc::new)).collect();
        mapped[self.rank] = own.file();
        let own = Arc::downgrade(own);
        self.push(mapped, Some(Backing { own, peers }))
    }

    /// Unmaps memory that peers have released.
    fn sweep(&mut self) {
        self.registrations.retain_mut(MappedRegistration::sweep);
    }

    /// Counts a registration of memory that this rank shares with no peer.
    pub(crate) fn count_private(&mut self) {
        self.sweep();
        self.made += 1;
    }

    fn push(&mut self, regions: Vec<Region>, backing: Option<Backing>) -> u32 {
        self.made += 1;
        let number = self.made;
        self.registrations.push(MappedRegistration {
            mapped: Mapped { number, regions },
            backing,
        });
        number
    }

    /// Returns the peers' mapped parts, by rank, of the registration that contains all of this
    /// rank's `buffer`. Each part stays mapped as long as it is held.
    pub(crate) fn peers_of(&self, buffer: Region) -> Vec<Option<Arc<SharedMemory>>> {
        let is_in = |each: &&MappedRegistration| each.own_offset(self.rank, buffer).is_some();
        let known = self.registrations.iter().find(is_in);
        let backing = known.and_then(|registration| registration.backing.as_ref());
        backing.map_or_else(Vec::new, |backing| backing.peers.clone())
    }

    /// Returns a snapshot of the mapped memory.
    pub(crate) fn peer_memory(&self) -> PeerMemory {
        let mapped = |registration: &MappedRegistration| registration.mapped.clone();
        PeerMemory(self.registrations.iter().map(mapped).collect())
    }

    /// Removes a registration; later handles with its number are unknown.
    #[cfg(test)]
    pub fn remove(&mut self, number: u32) {
        self.registrations
            .retain(|registration| registration.mapped.number != number);
    }

    /// Returns the handle of `buffer`, if an existing registration of this rank contains all of it.
    /// For a buffer that existed before its registration, asks the kernel whether its mapping is
    /// still the same.
    pub fn find(&self, buffer: Region) -> Option<BufferHandle> {
        self.registrations.iter().find_map(|registration| {
            let offset = registration.own_offset(self.rank, buffer)?;
            Some(BufferHandle {
                registration: registration.mapped.number,
                offset: offset as u64,
            })
        })
    }

    /// Updates the registered memory from `buffer`, for which `find` returned `handle`.
    pub fn sync_to_file(&self, buffer: Region, handle: BufferHandle) {
        if let Some(own) = self.own(handle.registration) {
            own.sync_to_file(buffer);
        }
    }

    /// Updates `buffer` from the registered memory, if `buffer` is registered.
    pub fn sync_from_file(&self, buffer: Region) {
        let backings = self
            .registrations
            .iter()
            .filter_map(|registration| registration.backing.as_ref());
        for own in backings.filter_map(|backing| backing.own.upgrade()) {
            own.sync_from_file(buffer);
        }
    }

    fn own(&self, number: u32) -> Option<Arc<Own>> {
        let known = self
            .registrations
            .iter()
            .find(|registration| registration.mapped.number == number)?;
        known.backing.as_ref()?.own.upgrade()
    }

    /// Returns the memory of `peer` that `handle` names, `bytes` long, as shared by all ranks. If
    /// `peer` is this rank, the address may differ from the buffer's.
    pub fn resolve(&self, peer: usize, handle: BufferHandle, bytes: usize) -> Result<Region> {
        let known = self.registrations.iter().find(|registration| {
            registration.mapped.number == handle.registration
                && (peer != self.rank || registration.is_own_alive())
        });
        known
            .and_then(|registration| registration.mapped.part(peer, handle, bytes))
            .ok_or_else(|| unknown(peer, handle, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Owned;

    #[test]
    fn a_buffer_is_found_by_its_owner_and_by_its_peers() {
        let memory = [Owned::zeroed(256), Owned::zeroed(256)];
        let mut registry = Registry::new(0);
        assert!(!registry.is_used());
        let number = registry.add(memory.iter().map(Owned::region).collect());
        let buffer = memory[0].region().part(64..128);
        let handle = registry.find(buffer).expect("registered");
        assert_eq!((handle.registration, handle.offset), (number, 64));
        let theirs = registry.resolve(1, handle, 64).expect("mapped");
        assert!(theirs.is_same(memory[1].region().part(64..128)));
        registry.remove(number);
        assert_eq!(registry.find(buffer), None);
        assert!(registry.resolve(1, handle, 64).is_err());
        assert_eq!(registry.add(vec![Region::EMPTY; 2]), number + 1);
    }

    #[test]
    fn what_its_owner_gave_up_is_unknown_and_unmapped_by_the_next_registration() {
        let file = || SharedMemory::create(4096).expect("a page");
        let mut registry = Registry::new(0);
        let own = Arc::new(Own::new(file().0, None));
        let (theirs, fd) = file();
        let theirs = Own::new(theirs, None);
        let opened = SharedMemory::open(fd, 1, 4096).expect("the same file");
        let number = registry.add_shared(&own, vec![None, Some(opened)]);
        let place = own.file().part(64..128);
        let handle = registry.find(place).expect("registered");
        registry.resolve(1, handle, 64).expect("mapped");
        drop(own);
        assert_eq!(registry.find(place), None);
        // The peer may still name its own part.
        registry.resolve(1, handle, 64).expect("still mapped");
        drop(theirs);
        assert_eq!(
            registry.add_shared(&Arc::new(Own::new(file().0, None)), vec![None]),
            number + 1
        );
        assert!(registry.resolve(1, handle, 64).is_err());
        assert_eq!(registry.registrations.len(), 1);
    }

    #[test]
    fn a_claim_beyond_the_mapping_is_an_error() {
        let memory = Owned::zeroed(256);
        let mut registry = Registry::new(0);
        let registration = registry.add(vec![memory.region(); 2]);
        for (offset, bytes) in [(200, 100), (u64::MAX, 1), (257, 0)] {
            let handle = BufferHandle {
                registration,
                offset,
            };
            assert!(matches!(
                registry.resolve(1, handle, bytes),
                Err(Error::Corrupt { peer: 1, .. })
            ));
        }
    }
}
