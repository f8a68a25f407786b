//! The order in which a rank enqueues what its device does for a call.
//!
//! A device call is cut into slices. Each is *brought* from device memory into a slot of the
//! staging memory, handled by the CPUs, and *taken* from there into device memory:
//!
//! ```text
//! stream out   wait free  ≥ n+1-K · copy to slot n%K          · write arrived n+1
//! CPU                               arrived ≥ n+1, taken ≥ n+1-K → the schedule → released, free
//! stream in    wait released ≥ n+1 · copy from result n%K     · write taken n+1
//! ```
//!
//! In the host's schedule, a slice may wait for later ones: [`slices_in_flight`] in all.
//!
//! A *direct* slice is handled in the slots of all ranks: each rank r combines its share there, and
//! the device copies from any of them.
//!
//! ```text
//! out r   wait free r ≥ n+1-K · copy to own slot n%K · write arrived r n+1
//! CPU r                         all arrived ≥ n+1 → combine the own share → combined r
//!                               all combined ≥ n+1 → released r · all taken ≥ n+1 → free r
//! in r    wait released r ≥ n+1 · copy from slots n%K · write taken r n+1
//! ```
//!
//! With slots enough ([`is_batched`]), the word behind a copy is written by the driver's call that
//! waits for the next slice of the same stream: four calls a slice in all.
//!
//! Slices are numbered over all calls of a lane, for either kind by itself, and words only grow, so
//! nothing is ever reset. K is the depth.
//!
//! A small all-reduce that [one kernel](super::one_shot) does is one slice: the kernel in *in*,
//! which waits for the kernels of its peers and then writes taken n+1. Nothing waits for its slot
//! or its result.
//!
//! # Closed order
//!
//! A thread may be stopped between any two driver calls until its device is idle: by a full queue,
//! by `CUDA_LAUNCH_BLOCKING`, or by another thread that frees memory, for which the driver waits
//! until the device is idle and holds the lock that enqueuing needs. Streams may also share one
//! hardware queue, in which a wait holds back all that was enqueued later. So whatever has been
//! enqueued must be able to finish without anything that is still to be enqueued, on this rank:
//! every wait comes after all that satisfies it. `check` proves it of this order.

#[cfg(test)]
mod check;

use std::iter;

pub use crate::tune::devices::pipeline::{is_batched, slices_in_flight};

/// What is enqueued as one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// In *out*: the wait for the slot, the copies into it, and the word that says so.
    Bring(u32),
    /// In *in*: the wait for the result, the copies from it, and the word that says so.
    Take(u32),
}

/// The steps of a call of `slices` slices, in the order in which they are enqueued: as many slices
/// are brought ahead as there are slots, and then one is taken. One less if words are batched: the
/// word of a taken slice is written with the next one, and no wait may come before that.
pub fn steps(slices: u32, depth: u32) -> impl Iterator<Item = Step> {
    steps_ahead(slices, depth - u32::from(is_batched(depth)))
}

/// The same with at most so many slices brought ahead.
fn steps_ahead(slices: u32, most_ahead: u32) -> impl Iterator<Item = Step> {
    (0..slices).flat_map(move |slice| {
        let ahead = |slice: u32| slices.min(slice.saturating_add(most_ahead));
        let begin = if slice == 0 { 0 } else { ahead(slice - 1) };
        let brought = (begin..ahead(slice)).map(Step::Bring);
        brought.chain(iter::once(Step::Take(slice)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slice_is_brought_and_then_taken_once() {
        for depth in 1..6 {
            for slices in 0..12 {
                let steps: Vec<Step> = steps(slices, depth).collect();
                assert_eq!(steps.len(), 2 * slices as usize);
                for slice in 0..slices {
                    let at = |step| steps.iter().position(|each| *each == step);
                    assert!(at(Step::Bring(slice)) < at(Step::Take(slice)));
                }
            }
        }
    }
}
