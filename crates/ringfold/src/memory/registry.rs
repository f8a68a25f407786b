//! Registered buffers: memory of this rank that its peers have mapped, and theirs that this rank
//! has mapped.
//!
//! A registration is made by all ranks together and has the same number on each. A number is never
//! used twice, so a stale one can only be unknown. What a peer says about its buffers ([`Handle`])
//! is a claim: [`Registry::resolve`] checks it against the mapping that was made when the
//! registration was.

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

/// One registration as this rank has it.
#[derive(Debug)]
struct Registration {
    number: u32,
    /// By rank; this rank's own memory at its own place.
    mapped: Vec<Region>,
    backing: Option<Backing>,
}

/// What keeps a registration's memory mapped.
#[derive(Debug)]
struct Backing {
    /// Its user's, and gone with it.
    own: Weak<Own>,
    /// By rank; kept until the peer has given its memory up, because until then it may name it in a
    /// call.
    peers: Vec<Option<Shared>>,
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
        let own = self.mapped[rank];
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
                self.mapped[peer] = Region::EMPTY;
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

    /// Adds this rank's `own` memory and its peers', by rank, with none at this rank's place; gives
    /// the registration's number. Its own part is known as long as `own` lives elsewhere, a peer's
    /// until that peer has given it up.
    pub(crate) fn add_shared(&mut self, own: &Arc<Own>, peers: Vec<Option<Shared>>) -> u32 {
        self.sweep();
        let region = |shared: &Option<Shared>| shared.as_ref().map_or(own.file(), Shared::data);
        let mapped = peers.iter().map(region).collect();
        let own = Arc::downgrade(own);
        self.push(mapped, Some(Backing { own, peers }))
    }

    /// Unmaps what peers have released.
    fn sweep(&mut self) {
        self.registrations.retain_mut(Registration::sweep);
    }

    /// Unmaps all peers' memory: no call will run any more.
    pub(crate) fn clear(&mut self) {
        self.registrations.clear();
    }

    fn push(&mut self, mapped: Vec<Region>, backing: Option<Backing>) -> u32 {
        self.made += 1;
        self.registrations.push(Registration {
            number: self.made,
            mapped,
            backing,
        });
        self.made
    }

    /// Takes a registration out; later handles with its number are unknown.
    #[cfg(test)]
    pub fn remove(&mut self, number: u32) {
        self.registrations
            .retain(|registration| registration.number != number);
    }

    /// The handle of `buffer`, if it lies whole in one of this rank's registrations that still
    /// stands. Of memory that was there before it was registered, the kernel is asked if it still
    /// is what it was.
    pub fn find(&self, buffer: Region) -> Option<Handle> {
        self.registrations.iter().find_map(|registration| {
            let offset = registration.own_offset(self.rank, buffer)?;
            Some(Handle {
                registration: registration.number,
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
            .find(|registration| registration.number == number)?;
        known.backing.as_ref()?.own.upgrade()
    }

    /// The memory of `peer` that `handle` names, `bytes` long, as all ranks share it. `peer` may be
    /// this rank, to which it may lie elsewhere than its buffer does.
    pub fn resolve(&self, peer: usize, handle: Handle, bytes: usize) -> Result<Region> {
        let known = self.registrations.iter().find(|registration| {
            registration.number == handle.registration
                && (peer != self.rank || registration.is_own_alive())
        });
        known
            .and_then(|registration| {
                let mapped = registration.mapped[peer];
                let begin = usize::try_from(handle.offset).ok()?;
                let end = begin.checked_add(bytes)?;
                (end <= mapped.bytes()).then(|| mapped.part(begin..end))
            })
            .ok_or_else(|| {
                let what =
                    format!("registered buffer {handle:?} of {bytes} bytes, which there is not");
                Error::corrupt(peer, what)
            })
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
