//! Registered buffers: memory of this rank that its peers have mapped, and theirs that this rank has mapped.
//!
//! A registration is made by all ranks together and has the same number on each. A number is never used twice, so a stale
//! one can only be unknown. What a peer says about its buffers ([`Handle`]) is a claim: [`Registry::resolve`] checks it
//! against the mapping that was made when the registration was.

use super::Region;
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

    /// Whether there has ever been a registration: then calls may be worth asking about. The same on all ranks at the same
    /// call.
    pub fn is_used(&self) -> bool {
        self.made > 0
    }

    /// Adds what `mapped` says where each rank's memory lies; gives the registration's number. The memory stays mapped
    /// until `remove`.
    pub fn add(&mut self, mapped: Vec<Region>) -> u32 {
        self.made += 1;
        self.registrations.push(Registration {
            number: self.made,
            mapped,
        });
        self.made
    }

    /// Takes a registration out; later handles with its number are unknown.
    pub fn remove(&mut self, number: u32) {
        self.registrations
            .retain(|registration| registration.number != number);
    }

    /// The handle of `buffer`, if it lies whole in one of this rank's registrations.
    pub fn find(&self, buffer: Region) -> Option<Handle> {
        self.registrations.iter().find_map(|registration| {
            let own = registration.mapped[self.rank];
            let offset = (buffer.address() as usize).checked_sub(own.address() as usize)?;
            let end = offset.checked_add(buffer.bytes())?;
            (end <= own.bytes()).then_some(Handle {
                registration: registration.number,
                offset: offset as u64,
            })
        })
    }

    /// The memory of `peer` that `handle` names, `bytes` long.
    pub fn resolve(&self, peer: usize, handle: Handle, bytes: usize) -> Result<Region> {
        let known = self
            .registrations
            .iter()
            .find(|registration| registration.number == handle.registration);
        known
            .and_then(|registration| {
                let mapped = registration.mapped[peer];
                let begin = usize::try_from(handle.offset).ok()?;
                let end = begin.checked_add(bytes)?;
                (end <= mapped.bytes()).then(|| mapped.part(begin..end))
            })
            .ok_or_else(|| Error::Corrupt {
                peer,
                what: format!("registered buffer {handle:?} of {bytes} bytes, which there is not"),
                site: None,
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
