//! Running a kernel: a share at a time, so that other queues go on meanwhile.
//!
//! One block runs at a time, so a kernel whose blocks wait for each other hangs here, as it may on
//! a device that is full. Of a block, a thread runs until it comes to a barrier, has run for its
//! turn, or spins: takes a branch back to before what it has loaded in an order of the system. A
//! launch of which all threads spin is blocked, as a stream is that waits for a word.

use std::sync::Arc;

use super::number::{binary, compare, convert, low, product, signed};
use super::{Class, Compute, Kernel, Operand, Special, What};
use crate::memory::Memory;
use crate::report::end;

/// The most instructions of a step.
pub const INSTRUCTIONS_MAX: usize = 20_000;

/// The most instructions that a thread runs before the next one of its block does.
const TURN_INSTRUCTIONS_MAX: usize = 5_000;

/// The most bytes of a vector.
const VECTOR_BYTES: usize = 16;

/// What a step of a launch came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// All threads have ended.
    Ended,
    /// Some are still to run.
    Moved,
    /// All that could run spin.
    Spun,
}

/// A kernel with its arguments, and how far it is.
#[derive(Clone, Debug)]
pub struct Launch {
    kernel: Arc<Kernel>,
    arguments: Vec<u8>,
    blocks: u32,
    block_threads: u32,
    /// The block that runs.
    block: u32,
    /// Its threads, and the registers of all of them.
    threads: Vec<Thread>,
    registers: Vec<u64>,
    /// The thread that runs.
    thread: usize,
    /// How many threads in a row could do nothing but spin.
    spun: usize,
}

/// A thread of the block that runs.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    next: usize,
    /// The last load in an order of the system.
    polled: Option<usize>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Running,
    /// It waits for all threads of its block, behind this instruction.
    AtBarrier(usize),
    Ended,
}

/// How a thread's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Moved,
    Spun,
}

impl Launch {
    /// A launch of `blocks` times `block_threads` threads that has not begun.
    pub fn new(kernel: Arc<Kernel>, arguments: Vec<u8>, blocks: u32, block_threads: u32) -> Launch {
        let mut launch = Launch {
            threads: vec![Thread::default(); block_threads as usize],
            registers: vec![0; kernel.registers * block_threads as usize],
            kernel,
            arguments,
            blocks,
            block_threads,
            block: 0,
            thread: 0,
            spun: 0,
        };
        launch.begin_block();
        launch
    }

    fn begin_block(&mut self) {
        self.threads.fill(Thread::default());
        self.registers.fill(0);
        (self.thread, self.spun) = (0, 0);
    }

    /// Runs at most about so many instructions.
    pub fn advance(&mut self, memory: &Memory, instructions: usize) -> Step {
        let kernel = self.kernel.clone();
        let mut left = instructions;
        while self.block < self.blocks {
            if self.threads[self.thread].state != State::Running && !self.find_running(&kernel) {
                self.block += 1;
                self.begin_block();
                continue;
            }
            match self.turn(&kernel, memory, &mut left) {
                Turn::Moved => self.spun = 0,
                Turn::Spun => self.spun += 1,
            }
            let running = self
                .threads
                .iter()
                .filter(|each| each.state == State::Running);
            if self.spun > 0 && self.spun >= running.count() {
                self.spun = 0;
                self.go_round();
                return Step::Spun;
            }
            if self.threads[self.thread].state == State::Running {
                self.go_round();
            }
            if left == 0 {
                return Step::Moved;
            }
        }
        Step::Ended
    }

    fn go_round(&mut self) {
        self.thread = (self.thread + 1) % self.threads.len();
    }

    /// Goes to a thread that can run, if there is one before the block has ended.
    fn find_running(&mut self, kernel: &Kernel) -> bool {
        if !self.threads.iter().any(|each| each.state == State::Running) {
            self.leave_barrier(kernel);
        }
        for _ in 0..self.threads.len() {
            if self.threads[self.thread].state == State::Running {
                return true;
            }
            self.go_round();
        }
        false
    }

    /// Lets all threads go on, which are at one barrier or have all ended.
    fn leave_barrier(&mut self, kernel: &Kernel) {
        let first = self.threads[0].state;
        if self.threads.iter().any(|each| each.state != first) {
            end("threads of a block are at different barriers, or some have ended".into());
        }
        let State::AtBarrier(at) = first else {
            return;
        };
        if let What::Barrier(Some([target, source])) = kernel.instructions[at].what {
            let of_thread = |thread: usize, register: usize| thread * kernel.registers + register;
            let mut all = 0..self.threads.len();
            let any = all.any(|thread| self.registers[of_thread(thread, source)] != 0);
            for thread in 0..self.threads.len() {
                self.registers[of_thread(thread, target)] = u64::from(any);
            }
        }
        for thread in &mut self.threads {
            thread.state = State::Running;
        }
    }

    /// Has the thread run, for as many instructions as are `left` and a turn has.
    fn turn(&mut self, kernel: &Kernel, memory: &Memory, left: &mut usize) -> Turn {
        for _ in 0..TURN_INSTRUCTIONS_MAX.min(*left) {
            *left -= 1;
            let at = self.threads[self.thread].next;
            let Some(instruction) = kernel.instructions.get(at) else {
                end("a kernel runs beyond its last instruction".into());
            };
            self.threads[self.thread].next += 1;
            let is_held =
                |(guard, is_negated): (usize, bool)| (self.register(guard) != 0) == is_negated;
            if instruction.guard.is_some_and(is_held) {
                continue;
            }
            let polled = self.threads[self.thread].polled;
            match instruction.what {
                What::Branch(target) if polled.is_some_and(|polled| polled >= target) => {
                    self.threads[self.thread].next = target;
                    self.threads[self.thread].polled = None;
                    return Turn::Spun;
                }
                What::Load {
                    is_atomic: true, ..
                } => self.threads[self.thread].polled = Some(at),
                What::Barrier(_) => {
                    self.threads[self.thread].state = State::AtBarrier(at);
                    return Turn::Moved;
                }
                _ => {}
            }
            let done = self.run(&instruction.what, memory);
            done.unwrap_or_else(|| end(format!("there is no instruction {instruction:?}")));
            if self.threads[self.thread].state == State::Ended {
                break;
            }
        }
        Turn::Moved
    }

    fn register(&self, register: usize) -> u64 {
        self.registers[self.thread * self.kernel.registers + register]
    }

    fn set(&mut self, register: usize, value: u64) {
        let place = self.thread * self.kernel.registers + register;
        self.registers[place] = value;
    }

    /// Does one instruction; nothing if its types have none.
    fn run(&mut self, what: &What, memory: &Memory) -> Option<()> {
        match what {
            What::LoadParameter {
                into,
                offset,
                bytes,
            } => {
                let value = number(&self.arguments[*offset..offset + bytes]);
                self.set(*into, value);
            }
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
                    self.set(*register, number(bytes));
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
            What::Compute { into, what } => {
                let result = self.result(what)?;
                self.set(*into, result);
            }
            What::Branch(target) => self.threads[self.thread].next = *target,
            // Words are atomics of the system, and barriers are where threads take turns.
            What::Fence | What::Barrier(_) => {}
            What::Return => self.threads[self.thread].state = State::Ended,
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
                low([no, yes][usize::from(self.register(*by) != 0)], *bits)
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
        match *operand {
            Operand::Register(register) => self.register(register),
            Operand::Constant(value) => value,
            Operand::Special(Special::Thread) => self.thread as u64,
            Operand::Special(Special::BlockThreads) => u64::from(self.block_threads),
            Operand::Special(Special::Block) => u64::from(self.block),
            Operand::Special(Special::Blocks) => u64::from(self.blocks),
        }
    }

    /// An address, which a device wants to be a multiple of what it accesses there.
    fn address(&self, base: usize, offset: i64, bytes: usize) -> usize {
        let address = self.register(base).wrapping_add_signed(offset) as usize;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::module;

    const BYTES: usize = 4096;

    /// A launch of the one kernel of `text`, which gets the address of some memory.
    fn launch(text: &str, blocks: u32, block_threads: u32) -> (Launch, Memory, usize) {
        let memory = Memory::default();
        let at = memory.allocate(0, BYTES).expect("memory");
        let kernel = module(text).kernels.remove("test").expect("a kernel");
        let launch = Launch::new(kernel, at.to_le_bytes().to_vec(), blocks, block_threads);
        (launch, memory, at)
    }

    fn word(memory: &Memory, at: usize) -> u32 {
        let mut bytes = [0; 4];
        memory.load(at, &mut bytes, true).expect("a word");
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn at_a_barrier_threads_see_what_the_others_have_stored() {
        // Each thread stores its number, and then loads that of the thread before it.
        let text = ".visible .entry test(.param .u64 at)\n{\n.reg .b64 %at, %own, %other;\n\
                    .reg .b32 %thread, %threads, %seen, %result;\n.reg .pred %p, %any;\n\
                    ld.param.u64 %at, [at];\nmov.u32 %thread, %tid.x;\nmov.u32 %threads, %ntid.x;\n\
                    mul.wide.u32 %own, %thread, 4;\nadd.u64 %own, %at, %own;\n\
                    st.global.u32 [%own+4], %thread;\nbar.sync 0;\nld.global.u32 %seen, [%own];\n\
                    setp.eq.u32 %p, %seen, 6;\nbar.red.or.pred %any, 0, %p;\n\
                    selp.b32 %result, 1, 0, %any;\nst.global.u32 [%own+1024], %result;\n\
                    ret;\n}\n";
        for (threads, expected) in [(8, 1), (7, 0)] {
            for instructions in [1, 3, INSTRUCTIONS_MAX] {
                let (mut launch, memory, at) = launch(text, 1, threads);
                while launch.advance(&memory, instructions) != Step::Ended {}
                for thread in 0..threads as usize {
                    assert_eq!(word(&memory, at + 1024 + 4 * thread), expected, "{threads}");
                }
            }
        }
    }

    #[test]
    fn a_launch_whose_threads_spin_is_blocked_until_it_sees_the_word() {
        let text = ".visible .entry test(.param .u64 at)\n{\n.reg .b64 %at, %seen;\n\
                    .reg .pred %p;\nld.param.u64 %at, [at];\nWAIT:\n\
                    ld.acquire.sys.global.u64 %seen, [%at];\nsetp.ne.u64 %p, %seen, 5;\n\
                    @%p bra WAIT;\nbar.sync 0;\n\
                    st.release.sys.global.u64 [%at+8], %seen;\nret;\n}\n";
        let (mut launch, memory, at) = launch(text, 2, 4);
        for _ in 0..10 {
            assert_eq!(launch.advance(&memory, INSTRUCTIONS_MAX), Step::Spun);
        }
        memory.store(at, &5u64.to_le_bytes(), true).expect("a word");
        assert_eq!(launch.advance(&memory, INSTRUCTIONS_MAX), Step::Ended);
        assert_eq!(word(&memory, at + 8), 5);
    }
}
