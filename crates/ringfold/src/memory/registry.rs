//! Registered buffers: memory of this rank that its peers have mapped, and theirs that this rank
//! has mapped.
//!
//! A registration is made by all ranks together and has the same number on each. A number is never
//! used twice, so a stale one can only be unknown. What a peer says about its buffers ([`Handle`])
//! is a claim: [`Registry::resolve`] and [`PeerMemory::resolve`] check it against the mapping that
//! was made when the registration was.

use std::sync::{Arc, Weak};

use super::region::Region;
use super::registered::Own;
use super::shared::Shared;
use crate::error::{Error, Result};

/// Where a buffer lies, so that a peer that has mapped the registration finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The registration's number, from 1 up.
    pub registration: u32,
    /// Where in it the buffer begins.
    pub offset: u64,
}

/// Where this rank finds all ranks' parts of a registration.
#[derive(Clone, Debug)]
struct Mapped {
    number: u32,
    /// By rank; empty where the rank's memory cannot be reached.
    regions: Vec<Region>,
}

impl Mapped {
    /// The memory that `handle` names if it is one of this registration, `bytes` long.
    fn part(&self, peer: usize, handle: Handle, bytes: usize) -> Option<Region> {
        let begin = usize::try_from(handle.offset).ok()?;
        let end = begin.checked_add(bytes)?;
        let mapped = *self.regions.get(peer)?;
        (end <= mapped.bytes()).then(|| mapped.part(begin..end))
    }
}

/// The registered memory that this rank has mapped, for its transport: as it was at the last
/// change of the [`Registry`], which keeps it mapped until the next.
#[derive(Clone, Debug, Default)]
pub struct PeerMemory(Vec<Mapped>);

impl PeerMemory {
    /// The same where the peers have other numbers: each is what `ranks` has at its number.
    pub fn renumbered(&self, ranks: &[usize]) -> PeerMemory {
        let renumber = |mapped: &Mapped| Mapped {
            number: mapped.number,
            regions: ranks.iter().map(|rank| mapped.regions[*rank]).collect(),
        };
        PeerMemory(self.0.iter().map(renumber).collect())
    }

    /// The memory of `peer` that `handle` names, `bytes` long.
    pub fn resolve(&self, peer: usize, handle: Handle, bytes: usize) -> Result<Region> {
        let mut all = self.0.iter();
        all.find(|mapped| mapped.number == handle.registration)
            .and_then(|mapped| mapped.part(peer, handle, bytes))
            .ok_or_else(|| unknown(peer, handle, bytes))
    }
}

/// The error of a claim of memory that is not mapped.
#[cold]
fn unknown(peer: usize, handle: Handle, bytes: usize) -> Error {
    let what = format!("registered buffer {handle:?} of {bytes} bytes, which there is not");
    Error::corrupt(peer, what)
}

/// One registration as this rank has it.
#[derive(Debug)]
struct Registration {
    /// This rank's own memory at its own place.
    mapped: Mapped,
    backing: Option<Backing>,
}

/// What keeps a registration's memory mapped.
#[derive(Debug)]
struct Backing {
    /// Its user's, and gone with it.
    own: Weak<Own>,
    /// By rank; kept until the peer has given its memory up, because until then it may name it in a
    /// call.
    peers: Vec<Option<Arc<Shared>>>,
}

impl Registration {
    /// Whether this rank's own part is still there.
    fn is_own_alive(&self) -> bool {
        let backing = self.backing.as_ref();
        backing.is_none_or(|backing| backing.own.strong_count() > 0)
    }

    /// Where `buffer` begins in this rank's own part, if it lies whole in it.
    fn own_offset(&self, rank: usize, buffer: Region) -> Option<usize> {
        if let Some(backing) = &self.backing {
            return backing.own.upgrade()?.offset(buffer);
        }
        let own = self.mapped.regions[rank];
        own.contains(buffer)
            .then(|| buffer.address() as usize - own.address() as usize)
    }

    /// Unmaps what peers have given up; whether anything is left.
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
    registrations: Vec<Registration>,
    /// How many there have been: the same on all ranks, since registering is collective.
    made: u32,
}

impl Registry {
    /// The empty registry of `rank`.
    pub fn new(rank: usize) -> Registry {
        Registry {
            rank,
            ..Registry::default()
        }
    }

    /// Whether there has ever been a registration: then calls may be worth asking about. The same
    /// on all ranks at the same call.
    pub fn is_used(&self) -> bool {
        self.made > 0
    }

    /// Adds what `mapped` says where each rank's memory lies; gives the registration's number.
    /// The caller keeps the memory mapped until `remove`.
    #[cfg(test)]
    pub fn add(&mut self, mapped: Vec<Region>) -> u32 {
        self.push(mapped, None)
    }

    /// Adds this rank's `own` memory and its peers', by rank, with none at this rank's place and at
    /// those of ranks that share no memory with it; gives the registration's number. Its own part
    /// is known as long as `own` lives elsewhere, a peer's until that peer has given it up.
    pub(crate) fn add_shared(&mut self, own: &Arc<Own>, peers: Vec<Option<Shared>>) -> u32 {
        self.sweep();
        let region = |shared: &Option<Shared>| shared.as_ref().map_or(Region::EMPTY, Shared::data);
        let mut mapped: Vec<Region> = peers.iter().map(region).collect();
        let peers = peers.into_iter().map(|peer| peer.map(Arc::new)).collect();
        mapped[self.rank] = own.file();
        let own = Arc::downgrade(own);
        self.push(mapped, Some(Backing { own, peers }))
    }

    /// Unmaps what peers have released.
    fn sweep(&mut self) {
        self.registrations.retain_mut(Registration::sweep);
    }

    /// Counts a registration of memory that this rank shares with no peer.
    pub(crate) fn count_private(&mut self) {
        self.sweep();
        self.made += 1;
    }

    fn push(&mut self, regions: Vec<Region>, backing: Option<Backing>) -> u32 {
        self.made += 1;
        let number = self.made;
        self.registrations.push(Registration {
            mapped: Mapped { number, regions },
            backing,
        });
        number
    }

    /// The peers' parts of the registration in which this rank's `buffer` lies whole, by rank:
    /// those that are mapped. Each stays mapped as long as it is held.
    pub(crate) fn peers_of(&self, buffer: Region) -> Vec<Option<Arc<Shared>>> {
        let is_in = |each: &&Registration| each.own_offset(self.rank, buffer).is_some();
        let known = self.registrations.iter().find(is_in);
        let backing = known.and_then(|registration| registration.backing.as_ref());
        backing.map_or_else(Vec::new, |backing| backing.peers.clone())
    }

    /// What is mapped now.
    pub(crate) fn peer_memory(&self) -> PeerMemory {
        let mapped = |registration: &Registration| registration.mapped.clone();
        PeerMemory(self.registrations.iter().map(mapped).collect())
    }

    /// Takes a registration out; later handles with its number are unknown.
    #[cfg(test)]
    pub fn remove(&mut self, number: u32) {
        self.registrations
            .retain(|registration| registration.mapped.number != number);
    }

    /// The handle of `buffer`, if it lies whole in one of this rank's registrations that still
    /// stands. Of memory that was there before it was registered, the kernel is asked if it still
    /// is what it was.
    pub fn find(&self, buffer: Region) -> Option<Handle> {
        self.registrations.iter().find_map(|registration| {
            let offset = registration.own_offset(self.rank, buffer)?;
            Some(Handle {
                registration: registration.mapped.number,
                offset: offset as u64,
            })
        })
    }

    /// Brings the registered memory up to date with `buffer`; `find` has
    /// given `handle` for it.
    pub fn sync_to_file(&self, buffer: Region, handle: Handle) {
        if let Some(own) = self.own(handle.registration) {
            own.sync_to_file(buffer);
        }
    }

    /// Brings `buffer`, if it is registered, up to date with the registered memory.
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

    /// The memory of `peer` that `handle` names, `bytes` long, as all ranks share it. `peer` may be
    /// this rank, to which it may lie elsewhere than its buffer does.
    pub fn resolve(&self, peer: usize, handle: Handle, bytes: usize) -> Result<Region> {
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
        let file = || Shared::create(4096).expect("a page");
        let mut registry = Registry::new(0);
        let own = Arc::new(Own::new(file().0, None));
        let (theirs, fd) = file();
        let theirs = Own::new(theirs, None);
        let opened = Shared::open(fd, 1, 4096).expect("the same file");
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
            let handle = Handle {
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
