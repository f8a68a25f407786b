//! The decision on how to carry out a call. A decision is the same on all ranks, and passed
//! unchanged from the choice to the wire.

#![forbid(unsafe_code)]

use super::Call;
use crate::types::{Access, Algorithm, Assignment, DType, Method, Protocol};

/// Unit of slice sizes, so that no two slices share a cache line.
const SLICE_UNIT_BYTES: usize = 64;

/// The decision on how to carry out a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The order in which ranks exchange and combine data.
    pub algorithm: Algorithm,
    /// How a rank reaches its peers' data.
    pub access: Access,
    /// Which rank does which part.
    pub assignment: Assignment,
    /// Whether the payload travels in the line that announces it (`ll`).
    pub is_inline: bool,
    /// Bytes of a slice, the pipeline's unit, of the vector or of each block. A multiple of 64.
    pub slice_bytes: usize,
    /// Number of independent pipelines.
    pub channels: usize,
    /// The assignment of `direct` in all ranks' registered buffers, if this method is tried first.
    /// The rest of the way is the fallback if not all buffers are registered.
    pub registered: Option<Assignment>,
    /// Whether messages within a host are read from the sender's memory.
    pub reads: bool,
    /// Whether out-of-place results use non-temporal stores.
    pub non_temporal_stores: bool,
    /// Whether the communicator's ownership weights decide how much each rank owns.
    pub is_weighted: bool,
    /// Whether elements are combined in the order of the canonical tree also where another order
    /// is faster.
    pub is_reproducible: bool,
}

impl Way {
    /// Returns the way of a call whose data devices move through slots.
    pub const fn by_slots(slice_bytes: usize) -> Way {
        Way {
            algorithm: Algorithm::Direct,
            access: Access::Slots,
            assignment: Assignment::Owner,
            is_inline: false,
            slice_bytes,
            channels: 1,
            registered: None,
            reads: false,
            non_temporal_stores: false,
            is_weighted: false,
            is_reproducible: false,
        }
    }

    /// Returns this way of a call whose data a device moves in parts through slots of its rank:
    /// no rank reaches the memory of another, and none of it is there before the call begins.
    pub fn in_parts(&self) -> Way {
        let way = match self.access {
            Access::Registered => self.unregistered(),
            _ => *self,
        };
        Way {
            is_inline: false,
            registered: None,
            reads: false,
            non_temporal_stores: false,
            ..way
        }
    }

    /// Returns the method.
    pub const fn method(&self) -> Method {
        Method::new(self.algorithm, self.access, self.assignment)
    }

    /// Returns the protocol.
    pub const fn protocol(&self) -> Protocol {
        Protocol::new(self.access, self.is_inline)
    }

    /// Returns the number of elements in one slice of the vector, or of each block.
    pub fn slice_elements(&self, dtype: DType) -> u64 {
        (self.slice_bytes() / dtype.size_bytes()) as u64
    }

    /// Returns the bytes of a slice: whole cache lines, which no other slice shares.
    #[inline]
    pub fn slice_bytes(&self) -> usize {
        self.slice_bytes.max(SLICE_UNIT_BYTES) / SLICE_UNIT_BYTES * SLICE_UNIT_BYTES
    }

    /// Returns the cut, as sent to the peers: that of [`Call::cut`], with the slice's digest
    /// inverted if the call is reproducible.
    #[inline]
    pub fn cut(&self) -> u16 {
        let cut = Call::cut(self.channels, self.slice_bytes() as u64);
        match self.is_reproducible {
            true => cut ^ Call::SLICE_MASK,
            false => cut,
        }
    }

    /// Returns the fallback of a way requested by name, for buffers that are not all registered.
    pub fn unregistered(&self) -> Way {
        Way {
            access: Access::Staged,
            assignment: Assignment::Owner,
            is_inline: false,
            ..*self
        }
    }

    /// Returns the way that is tried first, if there is one; this way is the fallback.
    pub fn tried(&self) -> Option<Way> {
        self.registered.map(|assignment| Way {
            algorithm: Algorithm::Direct,
            access: Access::Registered,
            assignment,
            is_inline: false,
            registered: None,
            ..*self
        })
    }
}
