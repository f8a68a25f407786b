//! Proves the closed order: all ranks' devices and CPUs, symbolically, under the least favourable
//! reading of the driver.
//!
//! Each rank has one queue for all its streams, so that a wait holds back everything behind it. A
//! rank has enqueued a prefix of its operations, by whole calls of the driver, and is stopped there
//! until its queue is empty. Of several stopped ranks, take one that has enqueued the least, `i`
//! operations. What the others
//! have enqueued beyond that stands behind their first `i` and can only help. So it suffices that
//! the queues run empty when all ranks are stopped after `i`, for every `i`: that rank goes on
//! then, and no state is a deadlock. What CPUs do needs no driver call, and is done when it is due.
//!
//! Calls of the host and direct ones may follow each other in any order: each kind has numbers and
//! words of its own, in the same queues. Of a call of the host's bank, CPUs release a slice when
//! all ranks have as many slices as they may need at the same time. Of a direct call, CPUs compare
//! their calls when the first slice has arrived; then they combine a slice when it has arrived on
//! all ranks, release it when all have combined it, and free its slot when all devices have taken
//! it.

use super::{Step, is_batched, slices_in_flight, steps, steps_ahead};
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
    Combined,
    Released,
    Free,
}

/// One rank: its queue so far, and its words.
#[derive(Clone, Default)]
struct Rank {
    done: usize,
    words: [[i64; 5]; BANKS],
    /// Slices of the host's bank before this one have begun.
    admitted: i64,
    /// One-shot kernels have begun up to that of the direct slice before this number.
    begun: i64,
    /// Of what CPUs do, as much as its CPU has entered, and as much as it has ended.
    entered: usize,
    ended: usize,
}

/// What CPUs do one after the other, with the number behind its last slice.
#[derive(Clone, Copy, Debug)]
enum Task {
    /// A call of the host's bank.
    Host(i64),
    /// A direct call, from this number on.
    Direct(i64, i64),
    /// A direct call of a one-shot kernel.
    Meet(i64),
}

impl Rank {
    fn word(&self, bank: Bank, word: Word) -> i64 {
        self.words[bank as usize][word as usize]
    }

    fn set(&mut self, bank: Bank, word: Word, value: i64) {
        self.words[bank as usize][word as usize] = value;
    }
}

/// What all ranks do: their devices' operations, by the calls of the driver that enqueue them, and
/// their CPUs' tasks.
struct Program {
    calls: Vec<Vec<Operation>>,
    tasks: Vec<Task>,
    /// Slices of the host's bank that the host may need at the same time.
    in_flight: i64,
}

impl Program {
    /// What so many calls of the driver have enqueued.
    fn enqueued(&self, calls: usize) -> Vec<Operation> {
        self.calls[..calls].concat()
    }
}

/// What a step needs of others.
#[derive(Clone, Copy, Debug)]
enum Need {
    Nothing,
    /// The kernels of all ranks: nothing is brought, and one kernel does the rest.
    Peers,
}

type Ordered = (Step, Need);

/// How words are enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    /// Words apart, each by a driver call.
    Apart,
    /// Each with the stream's next wait, if there is one.
    Batched,
}

/// The calls of the driver for the steps of one call whose first slice has number `first`.
fn calls_of(
    bank: Bank,
    steps: &[Ordered],
    words: Words,
    [first, depth]: [u32; 2],
) -> Vec<Vec<Operation>> {
    use Operation::{Copy, Meet, Wait, Write};
    let due = |slice: u32| i64::from(first + slice) + 1;
    let last = steps.len() as u32 / 2;
    let mut calls = vec![];
    // What is still to be written, by stream.
    let mut behind: [Option<Operation>; 2] = [None, None];
    for (step, need) in steps {
        if let Need::Peers = need {
            if let Step::Take(slice) = *step {
                let written = Write(bank, Word::Taken, due(slice));
                calls.extend([vec![Meet(due(slice))], vec![written]]);
            }
            continue;
        }
        let (stream, slice, wait, write) = match *step {
            Step::Bring(slice) => {
                let free = due(slice) - i64::from(depth);
                let wait = Wait(bank, Word::Free, free);
                (0, slice, wait, Write(bank, Word::Arrived, due(slice)))
            }
            Step::Take(slice) => {
                let wait = Wait(bank, Word::Released, due(slice));
                (1, slice, wait, Write(bank, Word::Taken, due(slice)))
            }
        };
        calls.push(behind[stream].take().into_iter().chain([wait]).collect());
        calls.push(vec![Copy]);
        match words {
            Words::Batched if slice + 1 < last => behind[stream] = Some(write),
            _ => calls.push(vec![write]),
        }
    }
    calls
}

/// The program of these calls, by their slices; `bank` has the bank of each.
fn program(
    calls: &[u32],
    depth: u32,
    bank: impl Fn(usize) -> Bank,
    order: impl Fn(u32, u32) -> Vec<Ordered>,
    words: Words,
) -> Program {
    let mut next = [0; BANKS];
    let in_flight = match words {
        Words::Apart => depth,
        Words::Batched => depth.saturating_sub(2).max(1),
    };
    let mut program = Program {
        calls: Vec::new(),
        tasks: Vec::new(),
        in_flight: in_flight.into(),
    };
    for (call, slices) in calls.iter().enumerate() {
        let steps = order(*slices, depth);
        let meets = steps.iter().any(|(_, need)| matches!(need, Need::Peers));
        let bank = if meets { Bank::Direct } else { bank(call) };
        // Each number is brought and taken.
        let numbers = steps.len() as u32 / 2;
        let first = &mut next[bank as usize];
        let calls = calls_of(bank, &steps, words, [*first, depth]);
        program.calls.extend(calls);
        let (begin, end) = (i64::from(*first), i64::from(*first + numbers));
        match bank {
            Bank::Host => program.tasks.push(Task::Host(end)),
            Bank::Direct if meets => program.tasks.push(Task::Meet(end)),
            Bank::Direct => program.tasks.push(Task::Direct(begin, end)),
        }
        *first += numbers;
    }
    program
}

/// Whether the ranks that have enqueued least run empty, where each has enqueued this many
/// operations.
fn least_run_empty(prefixes: &[usize], program: &Program, depth: i64) -> bool {
    let mut ranks = vec![Rank::default(); prefixes.len()];
    let queues: Vec<Vec<Operation>> = prefixes
        .iter()
        .map(|calls| program.enqueued(*calls))
        .collect();
    loop {
        let mut has_moved = false;
        let begun = ranks.iter().map(|rank| rank.begun).min().unwrap_or(0);
        for (rank, queue) in ranks.iter_mut().zip(&queues) {
            has_moved |= run_device(rank, queue, begun);
        }
        for rank in 0..ranks.len() {
            has_moved |= run_cpu(&mut ranks, rank, program, depth);
        }
        if !has_moved {
            let least = queues.iter().map(Vec::len).min().unwrap_or(0);
            let mut with_queues = ranks.iter().zip(&queues);
            return with_queues.all(|(rank, queue)| queue.len() > least || rank.done == least);
        }
    }
}

/// Runs the CPU of rank `own` one step further; whether it did anything.
fn run_cpu(ranks: &mut [Rank], own: usize, program: &Program, depth: i64) -> bool {
    let least = |word| ranks.iter().map(|rank| rank.word(Bank::Direct, word)).min();
    let least = |word| least(word).unwrap_or(0);
    let (arrived, combined, taken) = (
        least(Word::Arrived),
        least(Word::Combined),
        least(Word::Taken),
    );
    let ended = ranks[own].ended;
    let is_met = ranks.iter().all(|rank| rank.entered > ended);
    let admitted = ranks.iter().map(|rank| rank.admitted).min().unwrap_or(0);
    let rank = &mut ranks[own];
    let Some(task) = program.tasks.get(ended).copied() else {
        return free_taken(rank, taken);
    };
    if let Task::Host(end) = task {
        return run_host(rank, end, admitted, program.in_flight, depth);
    }
    let of_direct = |word| rank.word(Bank::Direct, word);
    if rank.entered == ended {
        let enters = match task {
            Task::Host(_) => unreachable!("see above"),
            Task::Direct(begin, end) => begin == end || of_direct(Word::Arrived) > begin,
            Task::Meet(due) => rank.begun >= due,
        };
        rank.entered += usize::from(enters);
        return free_taken(rank, taken) || enters;
    }
    // A call ends when all ranks have entered it.
    if !is_met {
        return free_taken(rank, taken);
    }
    match task {
        Task::Host(_) => unreachable!("see above"),
        Task::Meet(due) => {
            rank.set(Bank::Direct, Word::Combined, due);
            rank.set(Bank::Direct, Word::Released, due);
            rank.ended += 1;
        }
        Task::Direct(_, end) => {
            let (own, released) = (of_direct(Word::Combined), of_direct(Word::Released));
            let (combines, releases) = (own < end.min(arrived), released < end.min(combined));
            rank.set(Bank::Direct, Word::Combined, own + i64::from(combines));
            rank.set(Bank::Direct, Word::Released, released + i64::from(releases));
            let is_over = released == end;
            rank.ended += usize::from(is_over);
            return free_taken(rank, taken) || combines || releases || is_over;
        }
    }
    true
}

/// Runs the CPU of a rank one step further in a call of the host's bank up to slice `end`, in which
/// nothing else is done; whether it did anything. On all ranks slices have begun up to `admitted`.
fn run_host(rank: &mut Rank, end: i64, admitted: i64, in_flight: i64, depth: i64) -> bool {
    let of_host = |word| rank.word(Bank::Host, word);
    // A slice begins when it has arrived, and its result's place is free.
    let (next, released) = (rank.admitted + 1, of_host(Word::Released));
    let has_come = of_host(Word::Arrived) >= next && of_host(Word::Taken) >= next - depth;
    let begins = next <= end && has_come;
    let releases = released < end && admitted >= end.min(released + in_flight);
    let is_over = released >= end;
    rank.admitted += i64::from(begins);
    rank.set(Bank::Host, Word::Released, released + i64::from(releases));
    rank.set(Bank::Host, Word::Free, released + i64::from(releases));
    rank.ended += usize::from(is_over);
    rank.entered = rank.entered.max(rank.ended);
    begins || releases || is_over
}

/// Has a CPU let direct slots be filled again that all devices have taken; whether there are such.
fn free_taken(rank: &mut Rank, taken: i64) -> bool {
    let is_new = rank.word(Bank::Direct, Word::Free) < taken;
    rank.set(Bank::Direct, Word::Free, taken);
    is_new
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
    words: Words,
) -> Option<usize> {
    let program = program(calls, depth, bank, order, words);
    let stuck = |prefix: &usize| {
        let prefixes = vec![*prefix; world_size];
        !least_run_empty(&prefixes, &program, depth.into())
    };
    (0..=program.calls.len()).find(stuck)
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

/// How words are enqueued among so many slots.
fn words(depth: u32) -> Words {
    match is_batched(depth) {
        true => Words::Batched,
        false => Words::Apart,
    }
}

/// With few slots, a word that is written with the next wait is waited for before that.
#[test]
fn batched_words_are_open_with_few_slots() {
    let all = |depth, order: Order| {
        let open = |bank| open_prefix(2, &[9], depth, bank, order, Words::Batched);
        MIXES[..2].iter().any(|bank| open(*bank).is_some())
    };
    for depth in 1..=2 {
        assert!(all(depth, one_less_ahead), "{depth} slots");
    }
    for depth in 3..=8 {
        assert!(!all(depth, one_less_ahead), "{depth} slots");
        // As many slices ahead as there are slots.
        assert!(all(depth, all_ahead), "{depth} slots");
    }
}

fn all_ahead(slices: u32, depth: u32) -> Vec<Ordered> {
    steps_ahead(slices, depth)
        .map(|step| (step, Need::Nothing))
        .collect()
}

fn one_less_ahead(slices: u32, depth: u32) -> Vec<Ordered> {
    steps_ahead(slices, depth.max(2) - 1)
        .map(|step| (step, Need::Nothing))
        .collect()
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
                let open = open_prefix(world_size, calls, depth, bank, order, words(depth));
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
        for depth in 1..=5 {
            let program = program(calls, depth, bank, order, words(depth));
            let mut any = || random.index(program.calls.len() + 1);
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

/// The host needs one slice more than `slices_in_flight` before it releases the first.
#[test]
fn an_order_is_open_if_the_host_needs_more_than_is_enqueued() {
    for depth in 1..=8 {
        let mut program = program(&[9], depth, MIXES[0], closed, words(depth));
        assert_eq!(program.in_flight, slices_in_flight(depth).into());
        let is_open = |program: &Program| {
            let mut prefixes = 0..=program.calls.len();
            prefixes.any(|calls| !least_run_empty(&[calls; 2], program, depth.into()))
        };
        assert!(!is_open(&program), "{depth} slots");
        program.in_flight += 1;
        assert!(is_open(&program), "{depth} slots, one slice more");
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
        open_prefix(2, &[4], 4, MIXES[0], apart, Words::Apart),
        None,
        "the slots suffice"
    );
    // Slot 0 is free again after its host call. That of slice 4 + 1 needs a result's place, which
    // nothing takes.
    assert!(open_prefix(2, &[6], 2, MIXES[0], apart, Words::Apart).is_some());
}

/// A result is taken before its slice is brought.
#[test]
fn an_order_that_takes_before_it_brings_is_open() {
    let swapped = |slices, _| {
        let pair =
            |slice| [Step::Take(slice), Step::Bring(slice)].map(|step| (step, Need::Nothing));
        (0..slices).flat_map(pair).collect()
    };
    assert_eq!(
        open_prefix(3, &[2], 2, MIXES[0], swapped, Words::Apart),
        Some(1)
    );
}
