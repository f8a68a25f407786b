//! The settings of a lane, which are the same on all ranks.

#![forbid(unsafe_code)]

/// The size of slots where nothing else is said, and how many there are.
const SLOT_BYTES: usize = 2 << 20;
const DEPTH: u32 = 4;

/// How a lane's staging memory is divided; the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneConfig {
    /// The bytes of a slot, which holds a slice; rounded up to whole pages.
    pub slot_bytes: usize,
    /// The most bytes of a slice in a slot, at most those of a slot. `None`: what should be fastest
    /// by the cost model.
    pub slice_bytes: Option<usize>,
    /// Slices that may be under way at the same time, a power of two. The staging memory has two
    /// slots for each.
    pub depth: u32,
    /// Whether devices read the slots of all ranks, where CPUs combine in place. Takes effect where
    /// all ranks are on one host and share memory, streams wait for words, and drivers compile
    /// kernels. A rank has one more set of slots then, and pins the staging memory of all ranks.
    pub direct: bool,
    /// Whether one kernel of each device does small all-reduces. `None`: those that should be
    /// faster by the cost model, if a calibration has measured rank 0's device; `Some(true)`: all
    /// that fit. Takes effect where `direct` does and each rank has a device of its own, unless the
    /// communicator is reproducible.
    pub one_shot: Option<bool>,
}

impl Default for LaneConfig {
    fn default() -> LaneConfig {
        LaneConfig {
            slot_bytes: SLOT_BYTES,
            slice_bytes: None,
            depth: DEPTH,
            direct: true,
            one_shot: None,
        }
    }
}
