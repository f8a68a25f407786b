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
    /// How its bytes travel: [`Protocol::ZeroCopy`] in registered buffers, and nowhere else.
    pub protocol: Protocol,
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

    /// Elements of one slice of the vector, or of each block.
    pub fn slice_elements(&self, dtype: DType) -> u64 {
        let bytes = self.slice_bytes.max(SLICE_UNIT_BYTES) / SLICE_UNIT_BYTES * SLICE_UNIT_BYTES;
        (bytes / dtype.size_bytes()).max(1) as u64
    }

    /// The cut as sent to the peers, see [`Call::cut`].
    pub fn cut(&self, dtype: DType) -> u16 {
        let slice_bytes = self.slice_elements(dtype) * dtype.size_bytes() as u64;
        Call::cut(self.channels, slice_bytes)
    }

    /// The way where not all buffers turn out to be registered, of one that was asked for by name.
    pub fn unregistered(&self) -> Way {
        Way {
            access: Access::Staged,
            assignment: Assignment::Owner,
            protocol: Protocol::Simple,
            ..*self
        }
    }

    /// The way that is tried first, if there is one; the fallback is this one.
    pub fn tried(&self) -> Option<Way> {
        self.registered.map(|assignment| Way {
            algorithm: Algorithm::Direct,
            access: Access::Registered,
            assignment,
            protocol: Protocol::ZeroCopy,
            registered: None,
            ..*self
        })
    }
}
