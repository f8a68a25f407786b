//! The staging memory of a lane, what its device copies into and from, and the two streams that do.
//!
//! ```text
//! words, a page | slot 0 … slot K-1 | result 0 … result K-1 | direct slot 0 … direct slot K-1
//!     | sum 0 … sum K-1 | where one-shot kernels meet
//! ```
//!
//! It is registered with the lane's communicator, so host calls of one host's ranks work in it
//! without copies, and pinned by the device, so its copies run beside the program. A slot belongs
//! to the device from the time its number is free until it has arrived, then to the host call, or
//! to the devices of all ranks. Slots come in two banks ([`Bank`]), the second only where these
//! devices reach it.
//!
//! Pinned pages must stay where they are: the memory is unpinned before it is given back, and where
//! a device may still copy it is kept until the process ends.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use super::one_shot::area::Area;
use super::words::{WORDS_BYTES, Word, Words};
use crate::communicator::Communicator;
use crate::device::{Attributes, Current, Pin, PinnedRegion, Stream};
use crate::error::Result;
use crate::memory::{Region, Registered, SharedMemory};
use crate::sync::lock;
use crate::topology::cores::{self, Node};

/// Where slots begin: multiples of a page.
pub const ALIGN_BYTES: usize = 4096;

const _: () = assert!(BANKS * WORDS_BYTES <= ALIGN_BYTES);

/// The memory node of `device`, if the machine has others: for the staging memory, and for the
/// threads that work in it.
pub fn memory_node(device: &Attributes) -> Option<Node> {
    node_of(device, cores::nodes(Path::new("/")))
}

fn node_of(device: &Attributes, nodes: Vec<Node>) -> Option<Node> {
    let has_others = nodes.len() > 1;
    let mut nodes = nodes.into_iter();
    nodes.find(|node| has_others && Some(node.number) == device.numa_node)
}

/// Slots with words and numbers of their own. A call uses those of one bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bank {
    /// The host moves data, from slots to results.
    Host,
    /// Devices read the slots of all ranks. All ranks make these calls, so the number of a slice is
    /// the same on all.
    Direct,
}

/// The most bytes that a rank combines by itself, in a place of its own.
pub const OWN_SUM_BYTES_MAX: usize = 128 << 10;

/// How many banks there are.
pub const BANKS: usize = 2;

/// How staging memory is divided; the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub slot_bytes: usize,
    /// Slots of a bank.
    pub depth: u32,
    /// Whether there are direct slots.
    pub has_direct: bool,
    /// Where one-shot kernels meet, if they do.
    pub one_shot: Option<Area>,
}

impl Layout {
    /// The bytes of all of it, whole pages; nothing if there are not so many addresses.
    pub fn bytes(self) -> Option<usize> {
        let slots = self
            .slot_bytes
            .checked_mul(self.depth as usize)?
            .checked_mul(2 + usize::from(self.has_direct))?;
        let one_shot = self.one_shot.map_or(0, Area::bytes);
        let sums = usize::from(self.has_direct) * self.depth as usize * self.sum_bytes();
        let beside = ALIGN_BYTES + sums + one_shot;
        slots.checked_add(beside)
    }

    /// The bytes of a place of sums.
    fn sum_bytes(self) -> usize {
        OWN_SUM_BYTES_MAX.min(self.slot_bytes)
    }
}

/// One rank's staging memory, where this process and its device find it.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    whole: PinnedRegion,
    layout: Layout,
}

impl Place {
    /// The words of `bank`.
    pub fn words(self, bank: Bank) -> Words {
        Words::new(self.bank_words(bank).region())
    }

    /// Where the device finds `word` of `bank`.
    pub fn word(self, bank: Bank, word: Word) -> PinnedRegion {
        self.bank_words(bank).part(word.place())
    }

    fn bank_words(self, bank: Bank) -> PinnedRegion {
        let begin = bank as usize * WORDS_BYTES;
        self.whole.part(begin..begin + WORDS_BYTES)
    }

    /// The slot of slice `number` of `bank`.
    pub fn slot(self, bank: Bank, number: u32) -> PinnedRegion {
        let depth = self.layout.depth;
        let first = match bank {
            Bank::Host => 0,
            Bank::Direct => 2 * depth,
        };
        self.part(first + number % depth)
    }

    /// The place of the result of slice `number` of the host's bank.
    pub fn result(self, number: u32) -> PinnedRegion {
        self.part(self.layout.depth + number % self.layout.depth)
    }

    /// The place of what this rank alone combines of slice `number` of the direct bank.
    pub fn sum(self, number: u32) -> PinnedRegion {
        let (depth, bytes) = (self.layout.depth, self.layout.sum_bytes());
        let first = ALIGN_BYTES + 3 * depth as usize * self.layout.slot_bytes;
        let begin = first + (number % depth) as usize * bytes;
        self.whole.part(begin..begin + bytes)
    }

    /// Where one-shot kernels meet: nothing unless they do.
    pub fn one_shot(self) -> PinnedRegion {
        let end = self.whole.bytes();
        let bytes = self.layout.one_shot.map_or(0, Area::bytes);
        self.whole.part(end - bytes..end)
    }

    fn part(self, index: u32) -> PinnedRegion {
        let begin = ALIGN_BYTES + index as usize * self.layout.slot_bytes;
        self.whole.part(begin..begin + self.layout.slot_bytes)
    }
}

/// The memory, pinned, and the streams that use it.
#[derive(Debug)]
pub struct Staging {
    /// From the device. The streams go first: memory is unpinned when they are idle.
    pub out: Stream,
    /// To the device.
    pub into: Stream,
    own: Place,
    /// Used only if all ranks reach all others.
    peers: OnceLock<Peers>,
    /// This rank's memory, until [`Staging::unpin`].
    pin: Mutex<Option<Pin>>,
    /// Where the words are, also when nothing is pinned any more.
    memory: Arc<Registered>,
}

impl Staging {
    /// `memory`, as long as `layout` says, pinned for a device that does nothing else.
    pub fn new(memory: Registered, current: &Current<'_>, layout: Layout) -> Result<Staging> {
        let memory = Arc::new(memory);
        let pin = current.pin(memory.region(), memory.clone())?;
        let whole = pin.whole();
        Ok(Staging {
            out: current.stream()?,
            into: current.stream()?,
            own: Place { whole, layout },
            peers: OnceLock::new(),
            pin: Mutex::new(Some(pin)),
            memory,
        })
    }

    /// Keeps the memory of `peers` pinned until [`unpin`](Staging::unpin), and has
    /// [`of_rank`](Staging::of_rank) find that of all ranks if all have each other's. Once.
    pub fn keep(&self, peers: Peers, all_reach_all: bool) {
        let peers = Peers {
            are_reached: all_reach_all,
            ..peers
        };
        // A second time would be the same.
        let _ = self.peers.set(peers);
    }

    fn reached(&self) -> Option<&Peers> {
        self.peers.get().filter(|peers| peers.are_reached)
    }

    /// Unpins the memory, which the device uses no more. The words can be read on. May be repeated.
    ///
    /// # Errors
    /// The first reason why some of it stays pinned.
    pub fn unpin(&self) -> Result<()> {
        let own = lock(&self.pin).take();
        let peers = self.peers.get().map(|peers| lock(&peers.pins).split_off(0));
        let pins = own.into_iter().chain(peers.into_iter().flatten());
        pins.map(Pin::release).fold(Ok(()), Result::and)
    }

    /// Bytes of a slot, and of a result.
    pub fn slot_bytes(&self) -> usize {
        self.own.layout.slot_bytes
    }

    /// How many slots a bank has.
    pub fn depth(&self) -> u32 {
        self.own.layout.depth
    }

    /// The words of `bank`.
    pub fn words(&self, bank: Bank) -> Words {
        self.own.words(bank)
    }

    /// Where the device finds `word` of `bank`.
    pub fn word(&self, bank: Bank, word: Word) -> PinnedRegion {
        self.own.word(bank, word)
    }

    /// Where a kernel finds whether slices are released that nothing completes.
    pub fn fault(&self) -> PinnedRegion {
        self.own.word(Bank::Host, Word::Fault)
    }

    /// Says that slices are released that nothing completes, on this rank and to all ranks that
    /// read its slots: from here on these may hold anything.
    ///
    /// The pages stay as long as a peer has them mapped. A one-shot kernel that began before it
    /// could see this may have found all flags, and reads rows that it takes for good: they are, as
    /// long as they are there.
    pub fn say_fault(&self) {
        self.memory.leave_to_peers();
        let others = self.reached().into_iter();
        let others = others.flat_map(|peers| peers.all.iter().flatten());
        for place in others.map(|peer| peer.place).chain([self.own]) {
            place.words(Bank::Host).store(Word::Fault, 1);
        }
    }

    /// The slot of slice `number` of `bank`.
    pub fn slot(&self, bank: Bank, number: u32) -> PinnedRegion {
        self.own.slot(bank, number)
    }

    /// The place of the result of slice `number` of the host's bank.
    pub fn result(&self, number: u32) -> PinnedRegion {
        self.own.result(number)
    }

    /// The places of results and of own sums that slices `number` have.
    pub fn results(&self, number: u32) -> impl Iterator<Item = Region> {
        let sum = self.own.layout.has_direct.then(|| self.sum(number));
        [self.result(number)]
            .into_iter()
            .chain(sum)
            .map(PinnedRegion::region)
    }

    /// The place of what this rank alone combines of slice `number` of the direct bank.
    pub fn sum(&self, number: u32) -> PinnedRegion {
        self.own.sum(number)
    }

    /// Where this rank's one-shot kernels meet those of others.
    pub fn one_shot(&self) -> PinnedRegion {
        self.own.one_shot()
    }

    /// Whether all ranks reach the slots of all: the same on all ranks.
    pub fn is_direct(&self) -> bool {
        self.reached().is_some()
    }

    /// The ranks whose devices have not taken all direct slices below `due`, of this rank and of
    /// all others. What they say is a claim: who says that too early reads what it should not.
    pub fn readers(&self, due: u32) -> impl Iterator<Item = usize> + '_ {
        let peers = self.reached().into_iter();
        let all = peers.flat_map(|peers| peers.all.iter().enumerate());
        all.filter_map(move |(rank, peer)| {
            let place = peer.as_ref().map_or(self.own, |peer| peer.place);
            let has_taken = place.words(Bank::Direct).has_reached(Word::Taken, due);
            // A lane that is gone reads nothing, and its words go with it.
            let is_gone = || peer.as_ref().is_some_and(|peer| peer.memory.is_released());
            (!has_taken && !is_gone()).then_some(rank)
        })
    }

    /// The staging memory of `rank`, which may be this one; nothing unless all ranks reach that of
    /// all. The same on all ranks.
    pub fn of_rank(&self, rank: usize) -> Option<Place> {
        let peers = self.reached()?;
        let peer = peers.all[rank].as_ref();
        Some(peer.map_or(self.own, |peer| peer.place))
    }
}

/// The staging memory of this rank's peers, pinned for its device.
#[derive(Debug)]
pub struct Peers {
    /// By rank; none at this rank's place.
    all: Vec<Option<Peer>>,
    /// Whether all ranks have those of all.
    are_reached: bool,
    /// Until [`Staging::unpin`].
    pins: Mutex<Vec<Pin>>,
}

#[derive(Debug)]
struct Peer {
    place: Place,
    /// Where its words are, also when nothing is pinned any more.
    memory: Arc<SharedMemory>,
}

impl Peers {
    /// What `communicator` has registered together with the memory of `own`; nothing unless there
    /// are other ranks and all have their part mapped here, which is as long. It stays mapped: what
    /// its owner gives up, a device may still read.
    pub fn new(
        communicator: &Communicator,
        own: &Staging,
        current: &Current<'_>,
    ) -> Result<Option<Peers>> {
        let (memory, layout) = (&own.memory, own.own.layout);
        let shared = communicator.peers_of(memory);
        let mapped = shared.iter().flatten().count();
        let mut others = shared.iter().flatten();
        let are_whole = others.all(|peer| peer.data().bytes() >= memory.bytes());
        if mapped == 0 || mapped + 1 != communicator.world_size() || !are_whole {
            return Ok(None);
        }
        let mut pins = Vec::with_capacity(mapped);
        let mut pin = |memory: Arc<SharedMemory>| -> Result<Peer> {
            let region = memory.data().part(0..own.memory.bytes());
            pins.push(current.pin(region, memory.clone())?);
            let whole = pins[pins.len() - 1].whole();
            let place = Place { whole, layout };
            Ok(Peer { place, memory })
        };
        let all = shared.into_iter();
        let all = all.map(|peer| peer.map(&mut pin).transpose());
        Ok(Some(Peers {
            all: all.collect::<Result<_>>()?,
            are_reached: false,
            pins: Mutex::new(pins),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_memory_is_on_the_device_s_node_where_there_are_others() {
        let device = |numa_node| Attributes {
            ordinal: 0,
            name: "a device".into(),
            uuid: [0; 16],
            bus_id: "0000:1A:00.0".into(),
            numa_node,
            copy_engines: 2,
            pins_memory: true,
            has_memory_operations: true,
        };
        let two = || -> Vec<Node> {
            let node = |number| Node {
                number,
                cores: vec![number],
            };
            [0, 1].map(node).into()
        };
        let node_of = |device: &Attributes, nodes| node_of(device, nodes).map(|node| node.number);
        assert_eq!(node_of(&device(Some(1)), two()), Some(1));
        assert_eq!(node_of(&device(Some(0)), two()), Some(0));
        assert_eq!(node_of(&device(None), two()), None);
        assert_eq!(node_of(&device(Some(2)), two()), None, "no such node");
        assert_eq!(node_of(&device(Some(0)), two()[..1].to_vec()), None);
        assert_eq!(node_of(&device(Some(0)), vec![]), None);
    }
}
