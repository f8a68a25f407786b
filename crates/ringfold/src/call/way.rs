//! How a call is carried out: what was decided, the same on all ranks, and passed unchanged from
//! the choice to the wire.

#![forbid(unsafe_code)]

use super::Call;
use crate::types::{Access, Algorithm, Assignment, DType, Method, Protocol};

/// Slices are a multiple of this, so that no two of them share a cache line.
const SLICE_UNIT_BYTES: usize = 64;

/// How a call is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The order in which ranks exchange and combine.
    pub algorithm: Algorithm,
    /// How a rank reaches its peers' data.
    pub access: Access,
    /// Which rank does which part.
    pub assignment: Assignment,
    /// Whether the payload stands in the line that says it has come (`ll`).
    pub is_inline: bool,
    /// The pipeline's unit: bytes of the vector, or of each block. A multiple of 64.
    pub slice_bytes: usize,
    /// Independent pipelines.
    pub channels: usize,
    /// What is tried first: `direct` in all ranks' registered buffers, with this assignment. Where
    /// they turn out not to be all registered, the rest of the way is the fallback. `None` to not
    /// ask.
    pub registered: Option<Assignment>,
    /// Whether results that lie apart from their inputs are stored past the caches.
    pub non_temporal_stores: bool,
    /// Whether the communicator's ownership weights say who owns how much.
    pub is_weighted: bool,
}

impl Way {
    /// Its name.
    pub const fn method(&self) -> Method {
        Method::new(self.algorithm, self.access, self.assignment)
    }

    /// How its bytes travel.
    pub const fn protocol(&self) -> Protocol {
        Protocol::new(self.access, self.is_inline)
    }

    /// Elements of one slice of the vector, or of each block.
    pub fn slice_elements(&self, dtype: DType) -> u64 {
        (self.slice_bytes() / dtype.size_bytes()) as u64
    }

    /// Bytes of a slice: of lines that no other slice has.
    #[inline]
    pub fn slice_bytes(&self) -> usize {
        self.slice_bytes.max(SLICE_UNIT_BYTES) / SLICE_UNIT_BYTES * SLICE_UNIT_BYTES
    }

    /// The cut as sent to the peers, see [`Call::cut`].
    #[inline]
    pub fn cut(&self) -> u16 {
        Call::cut(self.channels, self.slice_bytes() as u64)
    }

    /// The way where not all buffers turn out to be registered, of one that was asked for by name.
    pub fn unregistered(&self) -> Way {
        Way {
            access: Access::Staged,
            assignment: Assignment::Owner,
            is_inline: false,
            ..*self
        }
    }

    /// The way that is tried first, if there is one; the fallback is this one.
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
