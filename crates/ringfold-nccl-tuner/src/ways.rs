//! The ways that NCCL has: the algorithms that carry out each function, and their protocols.
//!
//! The list is for warnings about rules that never apply, and for version 2 of the interface, which
//! shows no costs. From version 3 on, NCCL's own table tells which ways are usable.
//!
//! Source: `ncclTopoTuneModel` in `src/graph/tuning.cc` of NCCL 2.30.

use std::ffi::c_int;

use ringfold::internals::tune::Rule;
use ringfold::internals::tune::names::{COLLECTIVES, Name};

const BROADCAST: c_int = 0;
const REDUCE: c_int = 1;
const ALL_GATHER: c_int = 2;
const REDUCE_SCATTER: c_int = 3;
const ALL_REDUCE: c_int = 4;

const TREE: usize = 0;
const RING: usize = 1;
const COLLNET_DIRECT: usize = 2;
const COLLNET_CHAIN: usize = 3;
const NVLS: usize = 4;
const NVLS_TREE: usize = 5;
const PAT: usize = 6;

const PROTOCOLS: usize = 3;
const SIMPLE: usize = 2;

/// Returns whether NCCL implements a function by an algorithm and a protocol.
pub fn exists(function: c_int, row: usize, column: usize) -> bool {
    let has_algorithm = match function {
        BROADCAST | REDUCE => row == RING,
        ALL_GATHER | REDUCE_SCATTER => matches!(row, RING | PAT | NVLS | COLLNET_DIRECT),
        ALL_REDUCE => row <= NVLS_TREE,
        _ => false,
    };
    let has_protocol = match row {
        TREE | RING => column < PROTOCOLS,
        _ => column == SIMPLE,
    };
    has_algorithm && has_protocol
}

/// Returns whether an algorithm needs switches that reduce.
pub fn needs_collnet(row: usize) -> bool {
    matches!(row, COLLNET_DIRECT | COLLNET_CHAIN)
}

/// Returns whether an algorithm needs NVLink's switches.
pub fn needs_nvls(row: usize) -> bool {
    matches!(row, NVLS | NVLS_TREE)
}

/// Returns the row and the column that a rule names, if NCCL has that way for the rule's
/// collective.
pub fn of(rule: &Rule) -> Option<(usize, usize)> {
    let function = Name::of(&COLLECTIVES, rule.collective)?.nccl?;
    let (row, column) = rule.nccl_way()?;
    exists(function.into(), row, column).then_some((row, column))
}
