//! Gates: what the engine asks of devices that move the data of a call.

use std::fmt;

use crate::error::Result;
use crate::reduce::Parallel;

/// The words and the slots of a call whose data devices move. Slices are numbered within the call.
///
/// The words of peers are claims: a peer that stores too early spoils the sums of all ranks, and
/// nothing else.
pub trait Gate: fmt::Debug + Send + Sync {
    /// Returns the number of slices.
    fn slices(&self) -> u32;

    /// Returns the bytes of the call's input or of its output, whichever is longer; of several
    /// calls whose slices go through this gate, those of the longest.
    fn bytes(&self) -> usize;

    /// Whether this rank's device has published the first slice, if there is one.
    fn has_begun(&self) -> bool;

    /// Whether the device of `rank` has published `slice`.
    fn is_published(&self, rank: usize, slice: u32) -> bool;

    /// Returns the most helper threads that are worthwhile for a slice.
    fn helpers_max(&self) -> usize;

    /// Reduces this rank's share of `slice`, which all ranks have published, by `parallel`, and
    /// says so. False if slots may hold anything by now, because a rank has a fault, which will end
    /// the call.
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
