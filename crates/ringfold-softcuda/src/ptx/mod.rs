//! Kernels: the part of PTX that tests need, read from the text that a driver gets, and run block
//! after block, the threads of a block in turn from barrier to barrier.
//!
//! What is not known here ends the process with the statement, so a kernel that a test runs has
//! nothing in it that was skipped. Types are checked only where they decide what an instruction
//! does; `ptxas` checks the rest. An addition or multiplication of floats must say how it rounds:
//! without that, a compiler may fuse them.
//!
//! Semantics: NVIDIA, *Parallel Thread Execution ISA*, version 8.

mod number;
mod parse;
mod run;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use parse::module;
pub use run::{INSTRUCTIONS_MAX, Launch, Step};

/// The kernels of a text, by name.
#[derive(Debug, Default)]
pub struct Module {
    pub kernels: BTreeMap<String, Arc<Kernel>>,
}

/// An entry function.
#[derive(Debug, Default)]
pub struct Kernel {
    /// The bytes of each parameter, in order; each is aligned to its size.
    pub parameters: Vec<usize>,
    registers: usize,
    instructions: Vec<Instruction>,
}

/// One instruction.
#[derive(Debug)]
struct Instruction {
    /// The predicate without which it does nothing, and whether that is negated.
    guard: Option<(usize, bool)>,
    what: What,
}

/// How the bits of a register are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Bits,
    Unsigned,
    Signed,
    Float,
    Predicate,
}

/// A type: `s32`, `f64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Type {
    class: Class,
    bits: u32,
}

/// What is read.
#[derive(Clone, Copy, Debug)]
enum Operand {
    Register(usize),
    Constant(u64),
    Special(Special),
}

/// Where a thread is: in its block, and its block in the grid.
#[derive(Clone, Copy, Debug)]
enum Special {
    Thread,
    BlockThreads,
    Block,
    Blocks,
}

/// What two operands become.
#[derive(Clone, Copy, Debug)]
enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Min,
    Max,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

/// How two operands are compared.
#[derive(Clone, Copy, Debug)]
enum Compare {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// One of them is not a number.
    Unordered,
}

/// What an instruction does.
#[derive(Debug)]
enum What {
    LoadParameter {
        into: usize,
        offset: usize,
        bytes: usize,
    },
    /// Each element of a vector has so many bytes.
    Load {
        into: Vec<usize>,
        base: usize,
        offset: i64,
        bytes: usize,
        is_atomic: bool,
    },
    Store {
        from: Vec<Operand>,
        base: usize,
        offset: i64,
        bytes: usize,
        is_atomic: bool,
    },
    /// Sets a register by others.
    Compute {
        into: usize,
        what: Compute,
    },
    Branch(usize),
    Fence,
    /// Waits for all threads of the block. A predicate then says whether another one holds on any
    /// of them.
    Barrier(Option<[usize; 2]>),
    Return,
}

/// What a register is set to.
#[derive(Debug)]
enum Compute {
    Move {
        from: Operand,
        bits: u32,
    },
    Binary {
        what: Binary,
        kind: Type,
        operands: [Operand; 2],
    },
    /// All bits of a product.
    Product {
        kind: Type,
        operands: [Operand; 2],
    },
    /// A field: of the value, where it begins, its bits.
    Extract {
        kind: Type,
        operands: [Operand; 3],
    },
    /// A field put in: the field, into what, where it begins, its bits.
    Insert {
        operands: [Operand; 4],
    },
    Compare {
        how: Compare,
        kind: Type,
        operands: [Operand; 2],
    },
    Select {
        bits: u32,
        operands: [Operand; 2],
        by: usize,
    },
    Convert {
        to: Type,
        from: Type,
        operand: Operand,
    },
}
