//! What a call asks for.

#![forbid(unsafe_code)]

use super::Qualifier;
use crate::types::{Collective, DType};

/// What a rank says of its call beside how it is carried out. Fields as in [`Call`](super::Call).
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
    /// What is called.
    pub fn collective(&self) -> Collective {
        self.collective
    }
}
