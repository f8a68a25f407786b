//! Calls in which this rank did not hear from all others, until the others' calls are verified.
//!
//! Two ranks that both act as root of a broadcast, or neither as that of a reduce, end their calls
//! without meeting. Each rank's call stays in the head of its slot until the slot is reused. So a
//! rank verifies when it waits anyway, when all ranks meet, and at the latest before it reuses its
//! own slot of that number. By then all peers have finished the call in that slot. Of two ranks,
//! the one that continues first finds the other's call still in its slot.

use std::collections::VecDeque;

use crate::call::Call;
use crate::error::Result;
use crate::transport::Windows;

/// Maximum number of calls: no more than the slots that hold them.
const CALLS_MAX: usize = 8;

/// The unverified calls, with the generation in which each ended, oldest first.
#[derive(Debug)]
pub struct Unverified(VecDeque<(u64, Call)>);

impl Default for Unverified {
    fn default() -> Unverified {
        Unverified(VecDeque::with_capacity(CALLS_MAX))
    }
}

impl Unverified {
    /// Whether no call is unverified.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records that `call` has ended in `generation`.
    pub fn note(&mut self, generation: u64, call: Call) {
        if self.0.len() == CALLS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((generation, call));
    }

    /// Verifies the oldest call, and removes it once all peers were in it. Intended for a rank that
    /// waits anyway, so that the end of a call is not delayed.
    pub fn verify_oldest(&mut self, windows: &Windows) -> Result<()> {
        if let Some((generation, call)) = self.0.front()
            && windows.verify(*generation, call)?
        {
            self.0.pop_front();
        }
        Ok(())
    }

    /// Verifies the calls whose slots are reused from `generation` on, which is free.
    #[inline(always)]
    pub fn verify_before(&mut self, windows: &Windows, generation: u64) -> Result<()> {
        match self.is_empty() {
            true => Ok(()),
            false => self.verify_slot(windows, generation),
        }
    }

    fn verify_slot(&mut self, windows: &Windows, generation: u64) -> Result<()> {
        let slots = windows.slots() as u64;
        while let Some((ended, call)) = self.0.front()
            && ended + slots <= generation
        {
            windows.verify(*ended, call)?;
            self.0.pop_front();
        }
        Ok(())
    }

    /// Verifies all calls, when the ranks meet.
    pub fn verify_all(&mut self, windows: &Windows) -> Result<()> {
        while let Some((generation, call)) = self.0.pop_front() {
            windows.verify(generation, &call)?;
        }
        Ok(())
    }
}
