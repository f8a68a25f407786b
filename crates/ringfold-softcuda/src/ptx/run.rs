//! Running a kernel: thread after thread, a share at a time, so that other queues go on meanwhile.

use std::sync::Arc;

use super::number::{binary, compare, convert, low, product, signed};
use super::{Class, Compute, Kernel, Operand, Special, What};
use crate::memory::Memory;
use crate::report::end;

/// The most instructions of a step.
const INSTRUCTIONS_MAX: usize = 20_000;

/// The most bytes of a vector.
const VECTOR_BYTES: usize = 16;

/// A kernel with its arguments, and how far it is.
#[derive(Clone, Debug)]
pub struct Launch {
    kernel: Arc<Kernel>,
    arguments: Vec<u8>,
    blocks: u32,
    block_threads: u32,
    /// Of the thread that runs, in the grid.
    thread: u64,
    next: usize,
    registers: Vec<u64>,
}

impl Launch {
    /// A launch of `blocks` times `block_threads` threads that has not begun.
    pub fn new(kernel: Arc<Kernel>, arguments: Vec<u8>, blocks: u32, block_threads: u32) -> Launch {
        Launch {
            registers: vec![0; kernel.registers],
            kernel,
            arguments,
            blocks,
            block_threads,
            thread: 0,
            next: 0,
        }
    }

    /// Runs some instructions; whether all threads have ended.
    pub fn advance(&mut self, memory: &Memory) -> bool {
        let threads = u64::from(self.blocks) * u64::from(self.block_threads);
        let kernel = self.kernel.clone();
        for _ in 0..INSTRUCTIONS_MAX {
            if self.thread == threads {
                return true;
            }
            let Some(instruction) = kernel.instructions.get(self.next) else {
                end("a kernel runs beyond its last instruction".into());
            };
            self.next += 1;
            let is_held =
                |(guard, is_negated): (usize, bool)| (self.registers[guard] != 0) == is_negated;
            if instruction.guard.is_some_and(is_held) {
                continue;
            }
            let done = self.run(&instruction.what, memory);
            done.unwrap_or_else(|| end(format!("there is no instruction {instruction:?}")));
        }
        false
    }

    /// Does one instruction; nothing if its types have none.
    fn run(&mut self, what: &What, memory: &Memory) -> Option<()> {
        match what {
            What::LoadParameter {
                into,
                offset,
                bytes,
            } => self.registers[*into] = number(&self.arguments[*offset..offset + bytes]),
            What::Load {
                into,
                base,
                offset,
                bytes,
                is_atomic,
            } => {
                let address = self.address(*base, *offset, bytes * into.len());
                let mut loaded = [0; VECTOR_BYTES];
                let loaded = &mut loaded[..bytes * into.len()];
                found(memory.load(address, loaded, *is_atomic));
                for (register, bytes) in into.iter().zip(loaded.chunks(*bytes)) {
                    self.registers[*register] = number(bytes);
                }
            }
            What::Store {
                from,
                base,
                offset,
                bytes,
                is_atomic,
            } => {
                let address = self.address(*base, *offset, bytes * from.len());
                let mut stored = [0; VECTOR_BYTES];
                for (operand, place) in from.iter().zip(stored.chunks_mut(*bytes)) {
                    place.copy_from_slice(&self.value(operand).to_le_bytes()[..*bytes]);
                }
                let stored = &stored[..bytes * from.len()];
                found(memory.store(address, stored, *is_atomic));
            }
            What::Compute { into, what } => self.registers[*into] = self.result(what)?,
            What::Branch(target) => self.next = *target,
            // Threads run one after the other, and words are atomics of the system.
            What::Fence => {}
            What::Return => {
                self.thread += 1;
                self.next = 0;
                self.registers.fill(0);
            }
        }
        Some(())
    }

    /// What a computation gives; nothing if its types have none.
    fn result(&self, what: &Compute) -> Option<u64> {
        Some(match what {
            Compute::Move { from, bits } => low(self.value(from), *bits),
            Compute::Binary {
                what,
                kind,
                operands,
            } => {
                let [a, b] = self.values(operands);
                binary(*what, *kind, a, b)?
            }
            Compute::Product { kind, operands } => {
                let [a, b] = self.values(operands);
                product(*kind, a, b)?
            }
            Compute::Compare {
                how,
                kind,
                operands,
            } => {
                let [a, b] = self.values(operands);
                u64::from(compare(*how, *kind, a, b)?)
            }
            Compute::Select { bits, operands, by } => {
                let [yes, no] = self.values(operands);
                low([no, yes][usize::from(self.registers[*by] != 0)], *bits)
            }
            Compute::Convert { to, from, operand } => convert(*to, *from, self.value(operand))?,
            Compute::Extract { kind, operands } => {
                let [value, begin, bits] = self.values(operands).map(|value| value as u32);
                let extracted = u64::from((value >> begin) & field(begin, bits)?);
                match kind.class {
                    Class::Signed => low(signed(extracted, bits).cast_unsigned(), kind.bits),
                    _ => extracted,
                }
            }
            Compute::Insert { operands } => {
                let [value, old, begin, bits] = self.values(operands).map(|value| value as u32);
                let field = field(begin, bits)?;
                u64::from(old & !(field << begin) | (value & field) << begin)
            }
        })
    }

    fn values<const COUNT: usize>(&self, operands: &[Operand; COUNT]) -> [u64; COUNT] {
        operands.map(|operand| self.value(&operand))
    }

    fn value(&self, operand: &Operand) -> u64 {
        let block_threads = u64::from(self.block_threads);
        match *operand {
            Operand::Register(register) => self.registers[register],
            Operand::Constant(value) => value,
            Operand::Special(Special::Thread) => self.thread % block_threads,
            Operand::Special(Special::BlockThreads) => block_threads,
            Operand::Special(Special::Block) => self.thread / block_threads,
            Operand::Special(Special::Blocks) => u64::from(self.blocks),
        }
    }

    /// An address, which a device wants to be a multiple of what it accesses there.
    fn address(&self, base: usize, offset: i64, bytes: usize) -> usize {
        let address = self.registers[base].wrapping_add_signed(offset) as usize;
        if !address.is_multiple_of(bytes) {
            end(format!(
                "a kernel accesses {bytes} bytes at {address:#x}, which is not aligned"
            ));
        }
        address
    }
}

/// The mask of a field that lies within a word.
fn field(begin: u32, bits: u32) -> Option<u32> {
    let is_inside = bits > 0 && begin < 32 && begin + bits <= 32;
    is_inside.then(|| u32::MAX >> (32 - bits))
}

fn number(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(whole)
}

fn found<T>(found: Result<T, String>) -> T {
    found.unwrap_or_else(|why| end(format!("a kernel runs, but {why}")))
}
