//! Proves the closed order: all ranks' devices and CPUs, symbolically, under the least favourable
//! reading of the driver.
//!
//! Each rank has one queue for all its streams, so that a wait holds back everything behind it. A
//! rank has enqueued a prefix of its operations and is stopped there until its queue is empty. Of
//! several stopped ranks, take one that has enqueued the least, `i` operations. What the others
//! have enqueued beyond that stands behind their first `i` and can only help. So it suffices that
//! the queues run empty when all ranks are stopped after `i`, for every `i`: that rank goes on
//! then, and no state is a deadlock. What CPUs do needs no driver call, and is done when it is due.
//!
//! Calls of the host and direct ones, whose slots wait for the devices of all ranks, may follow
//! each other in any order: each kind has numbers and words of its own, in the same queues.

use super::{Step, steps};
use crate::lane::staging::{BANKS, Bank};
use crate::random::SplitMix64;

/// One operation in a device's queue; words are those of a bank.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Wait(Bank, Word, i64),
    Write(Bank, Word, i64),
    Copy,
    /// A one-shot kernel, as the direct slice before this number: it says that it has begun, and
    /// ends when all ranks' have.
    Meet(i64),
}

#[derive(Clone, Copy, Debug)]
enum Word {
    Arrived,
    Taken,
    Released,
    Free,
}

/// One rank: its queue so far, and its words.
#[derive(Clone, Default)]
struct Rank {
    done: usize,
    words: [[i64; 4]; BANKS],
    /// One-shot kernels have begun up to that of the direct slice before this number.
    begun: i64,
    /// Host calls that its CPU has entered, in all.
    entered: usize,
}

impl Rank {
    fn word(&self, bank: Bank, word: Word) -> i64 {
        self.words[bank as usize][word as usize]
    }

    fn set(&mut self, bank: Bank, word: Word, value: i64) {
        self.words[bank as usize][word as usize] = value;
    }
}

/// What all ranks do: their devices' operations, and the host calls in order, each with its bank
/// and its number there.
struct Program {
    operations: Vec<Operation>,
    host: Vec<(Bank, i64)>,
}

/// What a step needs of others.
#[derive(Clone, Copy, Debug)]
enum Need {
    Nothing,
    /// The kernels of all ranks: nothing is brought, and one kernel does the rest.
    Peers,
}

type Ordered = (Step, Need);

/// The operations of one slice's step, in calls whose first slice has number `first`.
fn operations(bank: Bank, (step, needed): Ordered, first: u32, depth: u32) -> Vec<Operation> {
    use Operation::{Copy, Meet};
    let (wait, write) = (
        |word, value| Operation::Wait(bank, word, value),
        |word, value| Operation::Write(bank, word, value),
    );
    let due = |slice: u32| i64::from(first + slice) + 1;
    match step {
        Step::Bring(_) if matches!(needed, Need::Peers) => vec![],
        Step::Take(slice) if matches!(needed, Need::Peers) => {
            vec![Meet(due(slice)), write(Word::Taken, due(slice))]
        }
        Step::Bring(slice) => vec![
            wait(Word::Free, due(slice) - i64::from(depth)),
            Copy,
            write(Word::Arrived, due(slice)),
        ],
        Step::Take(slice) => vec![
            wait(Word::Released, due(slice)),
            Copy,
            write(Word::Taken, due(slice)),
        ],
    }
}

/// The program of these calls, by their slices; `bank` has the bank of each.
fn program(
    calls: &[u32],
    depth: u32,
    bank: impl Fn(usize) -> Bank,
    order: impl Fn(u32, u32) -> Vec<Ordered>,
) -> Program {
    let mut next = [0; BANKS];
    let mut program = Program {
        operations: Vec::new(),
        host: Vec::new(),
    };
    for (call, slices) in calls.iter().enumerate() {
        let steps = order(*slices, depth);
        let meets = steps.iter().any(|(_, need)| matches!(need, Need::Peers));
        let bank = if meets { Bank::Direct } else { bank(call) };
        // Each number is brought and taken.
        let numbers = steps.len() as u32 / 2;
        let first = &mut next[bank as usize];
        let operations = |step| operations(bank, step, *first, depth);
        program
            .operations
            .extend(steps.into_iter().flat_map(operations));
        let due = (*first..*first + numbers).map(|number| (bank, i64::from(number) + 1));
        program.host.extend(due);
        *first += numbers;
    }
    program
}

/// Whether the ranks that have enqueued least run empty, where each has enqueued this many
/// operations.
fn least_run_empty(prefixes: &[usize], program: &Program, depth: i64) -> bool {
    let mut ranks = vec![Rank::default(); prefixes.len()];
    let mut complete: usize = 0;
    loop {
        let mut has_moved = false;
        let begun = ranks.iter().map(|rank| rank.begun).min().unwrap_or(0);
        for (rank, prefix) in ranks.iter_mut().zip(prefixes) {
            has_moved |= run_device(rank, &program.operations[..*prefix], begun);
            // The CPU enters a host call when it has left the one before, the slice has arrived,
            // and the result's place is free, if it has one; or when the kernel has begun.
            let Some((bank, due)) = program.host.get(complete).copied() else {
                continue;
            };
            let has_place = bank == Bank::Direct || rank.word(bank, Word::Taken) >= due - depth;
            let meets = |each: &Operation| matches!(each, Operation::Meet(at) if *at == due);
            let is_met = bank == Bank::Direct && program.operations.iter().any(meets);
            let is_due = match is_met {
                true => rank.begun >= due,
                false => rank.word(bank, Word::Arrived) >= due && has_place,
            };
            let enters = rank.entered == complete && is_due;
            rank.entered += usize::from(enters);
            has_moved |= enters;
        }
        // A host call ends when all ranks have entered it.
        if complete < program.host.len() && ranks.iter().all(|rank| rank.entered > complete) {
            let (bank, due) = program.host[complete];
            complete += 1;
            for rank in &mut ranks {
                rank.set(bank, Word::Released, due);
                if bank == Bank::Host {
                    rank.set(bank, Word::Free, due);
                }
            }
        }
        has_moved |= give_back(&mut ranks, complete);
        if !has_moved {
            let least = prefixes.iter().min().copied().unwrap_or(0);
            let mut with_prefix = ranks.iter().zip(prefixes);
            return with_prefix.all(|(rank, prefix)| *prefix > least || rank.done == least);
        }
    }
}

/// Has the CPUs that are in no host call let direct slots be filled again that the devices of all
/// ranks have taken; whether there are such.
fn give_back(ranks: &mut [Rank], complete: usize) -> bool {
    let taken = |rank: &Rank| rank.word(Bank::Direct, Word::Taken);
    let least = ranks.iter().map(taken).min().unwrap_or(0);
    let mut has_moved = false;
    for rank in ranks.iter_mut().filter(|rank| rank.entered == complete) {
        has_moved |= rank.word(Bank::Direct, Word::Free) < least;
        rank.set(Bank::Direct, Word::Free, least);
    }
    has_moved
}

/// Runs a device as far as it gets; whether it did anything. The kernels of all ranks have `begun`
/// up to that of the direct slice before this number.
fn run_device(rank: &mut Rank, queue: &[Operation], begun: i64) -> bool {
    let before = (rank.done, rank.begun);
    while let Some(operation) = queue.get(rank.done) {
        match *operation {
            Operation::Wait(bank, word, due) if rank.word(bank, word) < due => break,
            Operation::Write(bank, word, value) => rank.set(bank, word, value),
            Operation::Meet(number) => {
                rank.begun = number;
                if begun < number {
                    break;
                }
            }
            Operation::Wait(..) | Operation::Copy => {}
        }
        rank.done += 1;
    }
    (rank.done, rank.begun) != before
}

/// The first prefix that leaves some device waiting when all of `world_size` ranks stop there.
fn open_prefix(
    world_size: usize,
    calls: &[u32],
    depth: u32,
    bank: impl Fn(usize) -> Bank,
    order: impl Fn(u32, u32) -> Vec<Ordered>,
) -> Option<usize> {
    let program = program(calls, depth, bank, order);
    let stuck = |prefix: &usize| {
        let prefixes = vec![*prefix; world_size];
        !least_run_empty(&prefixes, &program, depth.into())
    };
    (0..=program.operations.len()).find(stuck)
}

fn closed(slices: u32, depth: u32) -> Vec<Ordered> {
    let steps = steps(slices, depth);
    steps.map(|step| (step, Need::Nothing)).collect()
}

/// Calls of one slice are done by one kernel, and others cut.
fn with_kernels(slices: u32, depth: u32) -> Vec<Ordered> {
    match slices {
        1 => [Step::Bring(0), Step::Take(0)]
            .map(|step| (step, Need::Peers))
            .into(),
        _ => closed(slices, depth),
    }
}

/// The orders that are used.
const ORDERS: [Order; 2] = [closed, with_kernels];

/// Which calls are direct: none, all, or every second.
const MIXES: [fn(usize) -> Bank; 3] = [
    |_| Bank::Host,
    |_| Bank::Direct,
    |call| [Bank::Host, Bank::Direct][call % BANKS],
];

const CALLS: [&[u32]; 6] = [&[1], &[2, 1], &[9], &[1, 1, 1, 1, 1], &[7, 3, 5], &[0, 4]];

type Order = fn(u32, u32) -> Vec<Ordered>;

/// All calls, in all orders and mixes.
fn kinds() -> impl Iterator<Item = (&'static [u32], Order, fn(usize) -> Bank)> {
    CALLS.into_iter().flat_map(|calls| {
        let orders = ORDERS.into_iter();
        orders.flat_map(move |order| MIXES.map(|bank| (calls, order, bank)))
    })
}

#[test]
fn the_order_is_closed_for_up_to_64_ranks() {
    for world_size in [1, 2, 3, 4, 7, 8, 16, 33, 64] {
        for depth in 1..=5 {
            for (calls, order, bank) in kinds() {
                let open = open_prefix(world_size, calls, depth, bank, order);
                assert_eq!(
                    open, None,
                    "{world_size} ranks, depth {depth}, calls {calls:?}"
                );
            }
        }
    }
}

/// What the proof above rests on: that ranks which have enqueued more do no harm.
#[test]
fn the_rank_that_is_least_far_always_goes_on() {
    let seed = 41;
    let mut random = SplitMix64::stream(seed, 0);
    for (calls, order, bank) in kinds() {
        for depth in 1..=3 {
            let program = program(calls, depth, bank, order);
            let mut any = || random.index(program.operations.len() + 1);
            for world_size in [2, 3, 4, 8, 64] {
                for _ in 0..40 {
                    let prefixes: Vec<usize> = (0..world_size).map(|_| any()).collect();
                    let goes_on = least_run_empty(&prefixes, &program, depth.into());
                    assert!(
                        goes_on,
                        "seed {seed}, calls {calls:?}, stopped at {prefixes:?}"
                    );
                }
            }
        }
    }
}

/// All slices are brought before the first is taken: the slots run out, and what gives them back is
/// not enqueued yet.
#[test]
fn an_order_that_brings_everything_first_is_open() {
    let apart = |slices, _| {
        let brought = (0..slices).map(Step::Bring);
        let all = brought.chain((0..slices).map(Step::Take));
        all.map(|step| (step, Need::Nothing)).collect()
    };
    assert_eq!(
        open_prefix(2, &[4], 4, MIXES[0], apart),
        None,
        "the slots suffice"
    );
    // Slot 0 is free again after its host call. That of slice 4 + 1 needs a result's place, which
    // nothing takes.
    assert!(open_prefix(2, &[6], 2, MIXES[0], apart).is_some());
}

/// A result is taken before its slice is brought.
#[test]
fn an_order_that_takes_before_it_brings_is_open() {
    let swapped = |slices, _| {
        let pair =
            |slice| [Step::Take(slice), Step::Bring(slice)].map(|step| (step, Need::Nothing));
        (0..slices).flat_map(pair).collect()
    };
    assert_eq!(open_prefix(3, &[2], 2, MIXES[0], swapped), Some(1));
}
