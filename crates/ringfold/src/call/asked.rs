//! A call as its user asks for it.

#![forbid(unsafe_code)]

use super::Qualifier;
use crate::types::{Collective, DType};

/// The part of a call that its user requests, without the library's choices. Fields as in
/// [`Call`](super::Call).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub(crate) collective: Collective,
    pub(crate) dtype: DType,
    pub(crate) op: u8,
    pub(crate) qualifier: Qualifier,
    pub(crate) count: u64,
    pub(crate) lists: u32,
}

impl Asked {
    /// Returns the collective.
    pub fn collective(&self) -> Collective {
        self.collective
    }
}
