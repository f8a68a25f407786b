//! Gates: the engine's interface to devices that move the data of a call.
//!
//! A device *brings* a part of the data into a slot, and *takes* a part of the result from one; in
//! between, the part is the engine's. Parts are numbered within the call. The traits are as narrow
//! as their executors: [`Steps`](super::steps::Steps) run a schedule on slots of this rank alone,
//! [`Gated`](super::gated::Gated) reduces in slots that the devices of all ranks reach.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::geometry::DeviceParts;
use crate::error::Result;
use crate::memory::Region;
use crate::reduce::{Factor, Parallel};

/// The devices of a call.
#[derive(Clone, Debug)]
pub enum Gate {
    /// A device fills and reads slots of its own rank.
    Own(Arc<dyn OwnSlots>),
    /// Devices fill slots of their own ranks, and read those of all ranks.
    Shared(Arc<dyn SharedSlots>),
}

impl Gate {
    /// Returns the bytes of the call's input or of its output, whichever is longer.
    pub fn bytes(&self) -> usize {
        match self {
            Gate::Own(slots) => slots.bytes(),
            Gate::Shared(slots) => slots.bytes(),
        }
    }
}

/// The slots of this rank in one call, with the words by which its device and the engine follow
/// each other.
pub trait OwnSlots: fmt::Debug + Send + Sync {
    /// Returns the number of parts on this rank.
    fn parts(&self) -> u32;

    /// Returns the elements of a part of the vector, or of each block: the same on all ranks.
    fn part_elements(&self) -> u64;

    /// Returns the maximum number of parts in flight, equal on all ranks. With one, parts do not
    /// overlap; with more, a late part delays the one before.
    fn parts_in_flight(&self) -> u32;

    /// Returns the bytes of the call's input or of its output, whichever is longer.
    fn bytes(&self) -> usize;

    /// Whether `part` stands in its slot, and the place of its result is free.
    fn is_ready(&self, part: u32) -> Result<bool>;

    /// Returns the slot of `part` and the place of its result, in which the blocks stand one behind
    /// the other.
    fn memory(&self, part: u32) -> [Region; 2];

    /// Lets the device take the result of `part`, and fill its slot again.
    fn release(&self, part: u32) -> Result<()>;
}

/// The words and the slots of all ranks in one call, for which a part is a *slice*.
///
/// The words of peers are claims: a peer that stores too early spoils the sums of all ranks, and
/// nothing else.
pub trait SharedSlots: fmt::Debug + Send + Sync {
    /// Returns the number of slices.
    fn slices(&self) -> u32;

    /// Returns the bytes of the call's input or of its output, whichever is longer.
    fn bytes(&self) -> usize;

    /// Whether this rank's device has published the first slice, if there is one.
    fn has_begun(&self) -> bool;

    /// Whether the device of `rank` has published `slice`.
    fn is_published(&self, rank: usize, slice: u32) -> bool;

    /// Returns the most helper threads that are worthwhile for a slice.
    fn helpers_max(&self) -> usize;

    /// Reduces this rank's share of `slice`, which all ranks have published, by `parallel`, and
    /// publishes its completion. Returns false after a fault of any rank, which will end the call:
    /// the content of slots is then undefined.
    fn reduce(&self, slice: u32, parallel: &mut Parallel) -> Result<bool>;

    /// Whether `rank` has reduced its share of `slice`.
    fn is_reduced(&self, rank: usize, slice: u32) -> bool;

    /// Lets this rank's device take `slice`, which all ranks have reduced.
    fn release(&self, slice: u32);

    /// Lets this rank's device fill the slots again that all devices have taken.
    fn reuse(&self);

    /// Returns the ranks whose devices have not taken the earlier slice in the slot of `slice`.
    fn readers(&self, slice: u32) -> Vec<usize>;
}

/// The devices of a call under way.
#[derive(Clone, Debug)]
pub enum OpenGate {
    /// A device fills and reads slots of its own rank.
    Own(OwnParts),
    /// Devices fill slots of their own ranks, and read those of all ranks.
    Shared(Arc<dyn SharedSlots>),
}

/// The slots of this rank in a call under way, and how the call is cut for them.
#[derive(Clone, Debug)]
pub struct OwnParts {
    /// The slots.
    pub slots: Arc<dyn OwnSlots>,
    /// How the call is cut.
    pub cut: DeviceParts,
    /// The factor by which every element that the device brings is scaled at first.
    pub factor: Option<Factor>,
}

impl OwnParts {
    /// Returns the part that `slice` of the engine belongs to.
    pub fn part_of(&self, slice: u32) -> u32 {
        slice / self.cut.slices
    }

    /// Whether the slices of a part end before those of the next begin.
    pub fn drains(&self) -> bool {
        self.slots.parts_in_flight() == 1
    }

    /// Returns the slices of `part`.
    pub fn slices_of(&self, part: u32) -> Range<u32> {
        let first = part * self.cut.slices;
        first..first.saturating_add(self.cut.slices)
    }
}
