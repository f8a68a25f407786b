//! The memory of the suite's calls: their input, and the output that [`definitions`] expects.
//!
//! [`definitions`]: super::definitions

pub use super::definitions::pairwise;

use super::definitions::{Call, encoded};
use super::{Case, CaseBuffers};
use crate::communicator::Counts;
use crate::memory::Owned;
use crate::types::Collective;

/// Returns the root that this rank passes; for messages, the peer.
pub fn root(case: &Case, rank: usize, world_size: usize) -> usize {
    match case.collective {
        Collective::Send => 1 - rank.min(1),
        _ => case.root.min(world_size - 1),
    }
}

/// Returns the call of one rank. A message is from rank 0 to rank 1, and concerns no other rank.
pub fn call(case: &Case, rank: usize, world_size: usize) -> Call {
    let counts = match &case.counts {
        Counts::Even(count) => vec![*count as usize; world_size],
        Counts::PerRank(counts) => counts.iter().map(|count| *count as usize).collect(),
        // Any uneven ones: the definition has the count of each pair.
        Counts::Pairwise { .. } => (0..world_size).collect(),
    };
    let collective = match (case.collective, rank) {
        (Collective::Send, 1) => Collective::Recv,
        (Collective::Send, 2..) => Collective::Barrier,
        (collective, _) => collective,
    };
    Call {
        collective,
        dtype: case.dtype,
        op: case.op,
        root: root(case, rank, world_size),
        counts,
    }
}

/// Returns the memory of `rank`'s call, one piece if the call is in place, with its input filled in
/// and its expected output.
pub fn buffers(case: &Case, rank: usize, world_size: usize) -> CaseBuffers {
    let due = call(case, rank, world_size).due(rank);
    let [input, expected] = [&due.input, &due.output].map(|values| encoded(values, case.dtype));
    let is_one_piece = case.in_place && !input.is_empty() && !expected.is_empty();
    let [input_start, output_start] = match is_one_piece {
        true => due.starts.map(|start| start * case.dtype.size_bytes()),
        false => [0, 0],
    };
    let input_at = input_start..input_start + input.len();
    let output_at = output_start..output_start + expected.len();
    let memory = match is_one_piece {
        true => vec![Owned::zeroed(input_at.end.max(output_at.end))],
        false => vec![Owned::zeroed(input.len()), Owned::zeroed(expected.len())],
    };
    memory[0].region().part(input_at.clone()).write(&input);
    CaseBuffers {
        memory,
        input: input_at,
        output: output_at,
        expected,
    }
}
