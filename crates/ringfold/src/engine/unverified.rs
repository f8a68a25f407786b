//! Calls in which this rank did not hear from all others, until it has looked what they were in.
//!
//! Two ranks that both take themselves for the root of a broadcast, or neither for that of a
//! reduce, end their calls without meeting. Each keeps the other's call in the head of a slot until
//! that is used again. So a rank looks when it waits anyway, when all ranks meet, and at the latest
//! before it uses its own slot of that number again. By then all peers have finished the call that
//! stood there. Of two ranks the one that goes on first finds the other's call in its place.

use std::collections::VecDeque;

use crate::call::Call;
use crate::error::Result;
use crate::transport::Windows;

/// Calls at most: no more than the slots in which they stand.
const CALLS_MAX: usize = 8;

/// The calls, by the generation in which each ended, oldest first.
#[derive(Debug)]
pub struct Unverified(VecDeque<(u64, Call)>);

impl Default for Unverified {
    fn default() -> Unverified {
        Unverified(VecDeque::with_capacity(CALLS_MAX))
    }
}

impl Unverified {
    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `call` has ended in `generation`.
    pub fn note(&mut self, generation: u64, call: Call) {
        if self.0.len() == CALLS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((generation, call));
    }

    /// Looks at the oldest, and forgets it once all peers were in it: for a rank that waits anyway,
    /// so that it does not cost the end of a call.
    pub fn verify_oldest(&mut self, windows: &Windows) -> Result<()> {
        if let Some((generation, call)) = self.0.front()
            && windows.verify(*generation, call)?
        {
            self.0.pop_front();
        }
        Ok(())
    }

    /// Looks at those whose slots are used again from `generation` on, which is free.
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

    /// Looks at all: the ranks meet.
    pub fn verify_all(&mut self, windows: &Windows) -> Result<()> {
        while let Some((generation, call)) = self.0.pop_front() {
            windows.verify(generation, &call)?;
        }
        Ok(())
    }
}
