//! Which calls one kernel can do, and how it is launched: from what all ranks know alike.

#![forbid(unsafe_code)]

use super::area::{BLOCKS_MAX, RANKS_MAX};
use super::element::{VECTOR_BYTES, is_combined};
use crate::lane::request::DeviceRequest;
use crate::types::Collective;

/// The most threads of a block, and the vectors that each block has before there is another one.
const THREADS_MAX: usize = 512;
const BLOCK_VECTORS: usize = 2 * THREADS_MAX;

/// Threads that run together: at least so many, and a multiple.
const WARP_THREADS: usize = 32;

/// Up to how many ranks and how many bytes there is memory for: where one kernel and slices take as
/// long by a model of a kernel that reads host memory at 35 GB/s. Below, the lane's tuner decides.
const CROSSOVERS: [(usize, usize); 3] = [(2, 400_000), (4, 140_000), (RANKS_MAX, 60_000)];

/// What part of a slot's bytes a row has at most.
const SLOT_SHARE: usize = 2;

/// The most bytes of a call of `world_size` ranks that one kernel can do, whole vectors; 0 if it
/// can do none.
pub fn bytes_max(world_size: usize, slot_bytes: usize) -> usize {
    let mut rows = CROSSOVERS.iter();
    let found = rows.find(|(ranks, _)| world_size > 1 && world_size <= *ranks);
    let bytes = found.map_or(0, |(_, bytes)| (*bytes).min(slot_bytes / SLOT_SHARE));
    bytes / VECTOR_BYTES * VECTOR_BYTES
}

/// Whether one kernel can do `request`, where kernels do up to `bytes_max`: the same on all ranks
/// that ask for the same.
pub fn fits_one_shot(request: &DeviceRequest, bytes_max: usize) -> bool {
    let bytes = request.input.bytes();
    request.collective == Collective::AllReduce
        && request.options.leave_reduction_open()
        && (1..=bytes_max).contains(&bytes)
        && is_combined(request.op, request.dtype)
}

/// The blocks of a launch for so many bytes, and the threads of each.
pub fn grid(bytes: usize) -> [u32; 2] {
    let vectors = bytes.div_ceil(VECTOR_BYTES);
    let blocks = vectors.div_ceil(BLOCK_VECTORS).clamp(1, BLOCKS_MAX);
    let threads = vectors.div_ceil(blocks).next_multiple_of(WARP_THREADS);
    [blocks as u32, threads.min(THREADS_MAX) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_falls_with_the_ranks_and_stays_within_a_slot() {
        assert_eq!(bytes_max(1, 1 << 20), 0);
        assert_eq!(bytes_max(2, 1 << 20), 400_000);
        assert_eq!(bytes_max(3, 1 << 20), 140_000);
        assert_eq!(bytes_max(8, 1 << 20), 60_000);
        assert_eq!(bytes_max(9, 1 << 20), 0);
        assert_eq!(bytes_max(2, 4096), 2048);
    }

    #[test]
    fn a_grid_has_a_thread_for_each_flag_and_no_block_without_vectors() {
        for bytes in [1, 16, 17, 4096, 16_384, 16_385, 60_000, 400_000] {
            let [blocks, threads] = grid(bytes);
            assert!(threads as usize >= RANKS_MAX.max(WARP_THREADS));
            assert!((1..=BLOCKS_MAX as u32).contains(&blocks) && threads <= THREADS_MAX as u32);
            let before_last = (blocks - 1) * threads;
            assert!(
                (before_last as usize) < bytes.div_ceil(VECTOR_BYTES),
                "{bytes}"
            );
        }
        assert_eq!(grid(8), [1, 32]);
        assert_eq!(grid(4096), [1, 256]);
        assert_eq!(grid(400_000), [8, 512]);
    }
}
