//! Computes a call's input and its expected output, element by element, from the definition of the
//! collective.
//!
//! Values are small integers, so every sum of up to a few dozen ranks is exact in every type and in
//! any order.

use super::{Case, CaseBuffers};
use crate::call::Call;
use crate::communicator::Counts;
use crate::element::{BF16, F8E4M3, F8E5M2, F16};
use crate::memory::Owned;
use crate::types::{Algorithm, Collective, DType, Op};

/// Returns the value of element `index` of `rank`'s input.
fn value(rank: usize, index: usize, op: Op, dtype: DType) -> i64 {
    let mixed = (rank * 7 + index * 13 + index / 17) as i64;
    match (dtype, op) {
        (DType::Bool, _) => mixed % 3 % 2,
        // Few factors other than 1, so that products stay exact.
        (_, Op::Prod) => 1 + (mixed % 5 == 0) as i64,
        (_, Op::Band | Op::Bor | Op::Bxor) => mixed % 64,
        _ => mixed % 5,
    }
}

fn encode(value: i64, dtype: DType) -> Vec<u8> {
    let float = value as f32;
    match dtype {
        DType::I8 | DType::U8 => vec![value as u8],
        DType::Bool => vec![(value != 0) as u8],
        DType::I16 | DType::U16 => (value as u16).to_le_bytes().into(),
        DType::I32 | DType::U32 => (value as u32).to_le_bytes().into(),
        DType::I64 | DType::U64 => value.to_le_bytes().into(),
        DType::F16 => F16::from_f32(float).0.to_le_bytes().into(),
        DType::BF16 => BF16::from_f32(float).0.to_le_bytes().into(),
        DType::F32 => float.to_le_bytes().into(),
        DType::F64 => (value as f64).to_le_bytes().into(),
        DType::F8E4M3 => vec![F8E4M3::from_f32(float).0],
        DType::F8E5M2 => vec![F8E5M2::from_f32(float).0],
    }
}

fn combine(
    op: Op,
    dtype: DType,
    world_size: usize,
    values: impl Iterator<Item = (usize, i64)>,
) -> i64 {
    let scaled = values.map(|(rank, value)| match op {
        Op::PremulSum(_) => value * premul_factor(rank) as i64,
        _ => value,
    });
    let total = scaled.reduce(|a, b| match op {
        Op::Sum | Op::Avg | Op::PremulSum(_) => a.wrapping_add(b),
        Op::Prod => a.wrapping_mul(b),
        Op::Min => a.min(b),
        Op::Max => a.max(b),
        Op::Band => a & b,
        Op::Bor => a | b,
        Op::Bxor => a ^ b,
    });
    let total = total.unwrap_or(0);
    match op {
        Op::Avg => total / world_size as i64,
        Op::Bxor | Op::Prod | Op::Min | Op::Max | Op::Band | Op::Bor if dtype == DType::Bool => {
            total & 1
        }
        _ => total,
    }
}

/// Returns the factor of a rank's `PremulSum`, which is the same on every rank in this suite.
fn premul_factor(_rank: usize) -> u32 {
    2
}

/// Returns the root that this rank passes; for messages, the peer.
pub fn root(case: &Case, rank: usize, world_size: usize) -> usize {
    match case.collective {
        Collective::Send => 1 - rank.min(1),
        _ => case.root.min(world_size - 1),
    }
}

/// Returns the element range of block `block`.
fn block(counts: &[u64], block: usize) -> std::ops::Range<usize> {
    let start: u64 = counts[..block].iter().sum();
    start as usize..(start + counts[block]) as usize
}

/// Returns the number of elements that `from` sends to `to` in an uneven `all_to_all`.
pub fn pairwise(from: usize, to: usize) -> u64 {
    ((from * 3 + to * 5) % 7 * 41) as u64
}

/// Returns the memory of `rank`'s call, with its input filled in and its expected output.
pub fn buffers(case: &Case, rank: usize, world_size: usize) -> CaseBuffers {
    let (dtype, op) = (case.dtype, case.op);
    let root = root(case, rank, world_size);
    let per_rank: Vec<u64> = match &case.counts {
        Counts::Even(count) => vec![*count; world_size],
        Counts::PerRank(counts) => counts.clone(),
        Counts::Pairwise { input, .. } => input.clone(),
    };
    let total: usize = per_rank.iter().sum::<u64>() as usize;
    let count = per_rank[0] as usize;
    let given = |rank: usize, indices: std::ops::Range<usize>| {
        indices
            .map(move |index| value(rank, index, op, dtype))
            .collect::<Vec<_>>()
    };
    let reduced = |indices: std::ops::Range<usize>| {
        let all =
            |index: usize| (0..world_size).map(move |rank| (rank, value(rank, index, op, dtype)));
        indices
            .map(|index| combine(op, dtype, world_size, all(index)))
            .collect::<Vec<_>>()
    };
    let is_root = rank == root;
    let own = block(&per_rank, rank);
    let all = || {
        let given = |from: usize| given(from, 0..per_rank[from] as usize);
        (0..world_size).flat_map(given).collect::<Vec<_>>()
    };
    let at_root = |values: Vec<i64>| if is_root { values } else { Vec::new() };
    let (input, output): (Vec<i64>, Vec<i64>) = match case.collective {
        Collective::AllReduce => (given(rank, 0..count), reduced(0..count)),
        Collective::Reduce => (given(rank, 0..count), at_root(reduced(0..count))),
        Collective::Broadcast => (at_root(given(rank, 0..count)), given(root, 0..count)),
        Collective::AllGather => (given(rank, 0..own.len()), all()),
        Collective::Gather => (given(rank, 0..own.len()), at_root(all())),
        Collective::ReduceScatter => (given(rank, 0..total), reduced(own.clone())),
        Collective::Scatter => (at_root(given(rank, 0..total)), given(root, own.clone())),
        Collective::AllToAll => all_to_all(case, rank, world_size, &given),
        Collective::SendRecv => (
            given(rank, 0..count),
            given((rank + world_size - 1) % world_size, 0..count),
        ),
        Collective::Send => match rank {
            0 => (given(0, 0..count), Vec::new()),
            1 => (Vec::new(), given(0, 0..count)),
            _ => (Vec::new(), Vec::new()),
        },
        Collective::Barrier | Collective::Recv => (Vec::new(), Vec::new()),
    };
    place(case, &input, &output, own)
}

fn all_to_all(
    case: &Case,
    rank: usize,
    world_size: usize,
    given: &impl Fn(usize, std::ops::Range<usize>) -> Vec<i64>,
) -> (Vec<i64>, Vec<i64>) {
    let from_to = |from: usize, to: usize| match &case.counts {
        Counts::Even(count) => *count,
        _ => pairwise(from, to),
    };
    let counts_of = |from: usize| {
        (0..world_size)
            .map(|to| from_to(from, to))
            .collect::<Vec<_>>()
    };
    let mine = counts_of(rank).iter().sum::<u64>() as usize;
    let got = (0..world_size)
        .flat_map(|from| given(from, block(&counts_of(from), rank)))
        .collect();
    (given(rank, 0..mine), got)
}

/// Allocates memory for input and output, one piece if the call is in place, and writes the input.
fn place(case: &Case, input: &[i64], output: &[i64], own: std::ops::Range<usize>) -> CaseBuffers {
    let size = case.dtype.size_bytes();
    let bytes = |values: &[i64]| {
        values
            .iter()
            .flat_map(|value| encode(*value, case.dtype))
            .collect::<Vec<u8>>()
    };
    let (input, expected) = (bytes(input), bytes(output));
    let own = own.start * size..own.end * size;
    if !case.in_place || input.is_empty() || expected.is_empty() {
        let memory = vec![Owned::zeroed(input.len()), Owned::zeroed(expected.len())];
        memory[0].region().write(&input);
        return CaseBuffers {
            memory,
            input: 0..input.len(),
            output: 0..expected.len(),
            expected,
        };
    }
    let whole = input.len().max(expected.len());
    let memory = vec![Owned::zeroed(whole)];
    let (input_at, output_at) = match case.collective {
        Collective::AllGather | Collective::Gather => (own, 0..whole),
        Collective::ReduceScatter | Collective::Scatter => (0..whole, own),
        _ => (0..whole, 0..whole),
    };
    memory[0].region().part(input_at.clone()).write(&input);
    CaseBuffers {
        memory,
        input: input_at,
        output: output_at,
        expected,
    }
}

/// Returns a placeholder call for errors that belong to no call.
pub fn no_call() -> Call {
    Call {
        collective: Collective::Barrier,
        dtype: DType::U8,
        op: 0,
        algorithm: Algorithm::Direct,
        access: crate::Access::Messages,
        assignment: crate::Assignment::Owner,
        is_inline: false,
        qualifier: crate::call::Qualifier::None,
        count: 0,
        lists: 0,
        sequence: 0,
        cut: 0,
    }
}
