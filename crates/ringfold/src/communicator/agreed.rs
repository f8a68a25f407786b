//! The ownership weights of a communicator, which all ranks change at the same point in their order
//! of calls.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Result;
use crate::schedule::Weights;
use crate::sync::lock;

/// The weights of a communicator.
#[derive(Debug, Default)]
pub(crate) struct AgreedWeights {
    /// Whether there are weights; a call without weights reads nothing else.
    is_weighted: AtomicBool,
    state: Mutex<WeightEpoch>,
}

#[derive(Debug, Default)]
struct WeightEpoch {
    epoch: u16,
    weights: Option<Weights>,
}

impl AgreedWeights {
    /// Returns the current weights.
    pub fn weights(&self) -> Option<Weights> {
        // Pairs with the store in `set`. A program that sets weights while another thread calls
        // must order the two anyway.
        if !self.is_weighted.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.state).weights.clone()
    }

    /// Whether there are weights.
    #[inline]
    pub fn are_there(&self) -> bool {
        // Pairs with the store in `set`.
        self.is_weighted.load(Ordering::Acquire)
    }

    /// Sets the weights, and begins the next epoch.
    pub fn set(&self, each: Option<&[u32]>) -> Result<()> {
        let mut state = lock(&self.state);
        let epoch = state.epoch.wrapping_add(1);
        let weights = each.map(|each| Weights::new(each, epoch)).transpose()?;
        // Pairs with the load in `weights`.
        self.is_weighted.store(weights.is_some(), Ordering::Release);
        *state = WeightEpoch { epoch, weights };
        Ok(())
    }
}
