//! The proof that the schedules of all ranks together keep the guarantees of the collective.
//!
//! [`check`] executes the schedules symbolically: a chunk holds the set of its contributions and
//! the expression that reduced them. The proof applies the engine's rules in their least favourable
//! reading:
//!
//! * A send completes only when its receive was posted (rendezvous: no credit).
//! * A step is issued after all earlier steps, once the steps it depends on (by [`dependencies`])
//!   are complete. A step counts as in flight until a later step has waited for it, because a rank
//!   need not notice a completion earlier. A chunk being read must not be written, and a chunk
//!   being written must not be accessed; both are tracked independently of the analysis.
//! * A chunk that any rank may reduce is reduced only when the last rank has made its offer,
//!   because the others may have no core. A chunk that any rank may serve is accessed from the
//!   first offer on, and complete with the last.
//! * Data published by a peer may be read after awaiting a phase that includes it, and is published
//!   once in a slice.
//! * Memory exposed by a peer may be accessed after its exposure was awaited, by no other rank at
//!   the same time unless both read, and no longer once the peer was notified. Vector clocks track
//!   this rule.
//!
//! Under these rules no value depends on the order in which ranks proceed, so one execution
//! represents all. Slices use different memory but share the order of issue; therefore
//! [`check_sliced`] also executes several slices overlapped.
//!
//! The checker shares no code with the engine, so an error in one shows in the other.

#![forbid(unsafe_code)]

mod execute;
mod exposed;
mod form;
mod offers;
mod past;
mod proof;
mod rank;
mod value;

use super::action::Buffer;
use super::order::Order;
use super::spec::{BufferCut, Schedule, Spec};
use crate::error::{Error, Result};
use crate::types::Collective;
pub use proof::{Proof, Slices, Violation, WorkCounts};
use value::SymbolicValue;

#[cfg(doc)]
use super::dependence::dependencies;

/// Proves the schedules of all ranks. `spec.rank` matters only for `Send` and `Recv`, which two
/// ranks execute.
pub fn check(spec: &Spec, in_place: bool) -> Result<Proof> {
    check_sliced(&schedules(spec)?, in_place, Slices::ONE).map_err(Error::from)
}

/// The largest world whose ranks' schedules are generated all at once: the proof's memory grows
/// with the square of its size.
pub const WORLD_SIZE_MAX: u32 = 512;

/// Generates the schedules of all ranks; ranks without a part in `Send` or `Recv` have no steps.
pub fn schedules(spec: &Spec) -> Result<Vec<Schedule>> {
    if spec.world_size > WORLD_SIZE_MAX {
        return Err(Error::InvalidArgument(format!(
            "cannot check {} ranks at once; use {WORLD_SIZE_MAX} or fewer",
            spec.world_size
        )));
    }
    let other_end = match spec.collective {
        Collective::Send => Some(Collective::Recv),
        Collective::Recv => Some(Collective::Send),
        _ => None,
    };
    let schedule = |rank| match other_end {
        Some(collective) if rank == spec.root && rank != spec.rank => Schedule::new(Spec {
            collective,
            rank,
            root: spec.rank,
            ..spec.clone()
        }),
        // A rank that takes no part.
        Some(_) if rank != spec.rank => Ok(Schedule {
            spec: Spec {
                collective: Collective::Send,
                rank,
                ..spec.clone()
            },
            channels: vec![Vec::new()],
            ..Schedule::new(spec.clone())?
        }),
        _ => Schedule::new(spec.of_rank(rank)),
    };
    (0..spec.world_size).map(schedule).collect()
}

/// Proves the given schedules, one for each rank in order, run over slices.
pub fn check_sliced(
    schedules: &[Schedule],
    in_place: bool,
    slices: Slices,
) -> Result<Proof, Violation> {
    for (rank, schedule) in schedules.iter().enumerate() {
        check_form(schedule, &schedules[0], rank)?;
    }
    let mut execution = execute::Execution::new(schedules, in_place, slices);
    execution.run()?;
    for slice in 0..slices.count {
        check_results(schedules, &execution, slice)?;
    }
    Ok(Proof {
        rounds: schedules[0].rounds,
        hops: execution.hops(),
        ranks: schedules.iter().map(WorkCounts::of).collect(),
    })
}

/// Checks each schedule alone, and its agreement with rank 0's.
fn check_form(schedule: &Schedule, first: &Schedule, rank: usize) -> Result<(), Violation> {
    let wrong = |what: &str| Err(Violation::of_all(format!("rank {rank}: {what}")));
    if schedule.spec.rank as usize != rank {
        return wrong("the schedule is another rank's");
    }
    let alike = |schedule: &Schedule| {
        let Schedule {
            rounds,
            input,
            output,
            needs_one_slice,
            ..
        } = *schedule;
        (
            rounds,
            input,
            output,
            needs_one_slice,
            schedule.channels.len(),
        )
    };
    if alike(schedule) != alike(first) {
        return wrong("rounds, cuts, slices or channels differ from those of rank 0");
    }
    let mut steps = schedule.channels.iter().flatten();
    let is_alone = schedule.channels.len() == 1 && !steps.any(|step| step.action.is_message());
    if schedule.exposes() && !is_alone {
        return wrong("memory is exposed on several channels, or beside messages");
    }
    for (channel, steps) in schedule.channels.iter().enumerate() {
        if schedule.spec.is_wide && !form::folds_one_type(steps) {
            return wrong("copies of another type than the value that they are combined with");
        }
        let mut round = 0;
        for (number, step) in steps.iter().enumerate() {
            let form = form::form(schedule, &step.action);
            let what = if step.round < round {
                Some("the round is lower than the previous step's")
            } else if step.round >= schedule.rounds {
                Some("the round is beyond the last")
            } else {
                form
            };
            if let Some(what) = what {
                return Err(Violation {
                    at: Some((rank as u32, channel as u32, number as u32)),
                    what: what.into(),
                });
            }
            round = step.round;
        }
    }
    Ok(())
}

/// Compares each rank's result to the guarantee of the collective.
fn check_results(
    schedules: &[Schedule],
    execution: &execute::Execution<'_>,
    slice: u32,
) -> Result<(), Violation> {
    let n = schedules.len() as u32;
    if schedules[0].spec.collective == Collective::Barrier {
        return execution.check_barrier();
    }
    let mut expressions: Vec<Option<u64>> = vec![None; schedules[0].output.chunks() as usize];
    for schedule in schedules {
        let rank = schedule.spec.rank;
        if !schedule.has(Buffer::Output) {
            continue;
        }
        for chunk in 0..schedule.output.chunks() {
            let value = execution.value(rank, slice, (Buffer::Output, chunk));
            let wrong = |what: &str| {
                let text = format!("rank {rank} ends with output chunk {chunk} {what}");
                Err(Violation::of_all(text))
            };
            let (source, of) = promised(schedule, chunk);
            let sum = match source {
                Some(source) => SymbolicValue::input(source, of).sum,
                None => SymbolicValue::everybody(n, of),
            };
            match value {
                None => return wrong("unwritten"),
                Some(value) if value.sum != sum => {
                    return wrong(&difference(value, sum, n, of));
                }
                Some(value)
                    if source.is_none()
                        && schedule.spec.order() != Order::Other
                        && value.expression != SymbolicValue::canonical(n, of).expression =>
                {
                    return wrong("combined in another order than that of the canonical tree");
                }
                Some(value) if schedule.spec.collective == Collective::AllReduce => {
                    let expected = *expressions[chunk as usize].get_or_insert(value.expression);
                    if value.expression != expected {
                        return wrong("combined in another order than rank 0's");
                    }
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

/// Returns the rank whose input chunk an output chunk must hold (`None`: all ranks', reduced), and
/// the number of the input chunk.
fn promised(schedule: &Schedule, chunk: u32) -> (Option<u32>, u32) {
    let Spec {
        collective,
        rank,
        root,
        ..
    } = schedule.spec;
    let parts = |cut: BufferCut| match cut {
        BufferCut::Vector(_) => 1,
        BufferCut::Blocks(n) => n,
    };
    match collective {
        Collective::AllReduce | Collective::Reduce => (None, chunk),
        Collective::ReduceScatter => (None, rank * parts(schedule.output) + chunk),
        Collective::Broadcast | Collective::Recv => (Some(root), chunk),
        Collective::SendRecv => (Some(schedule.spec.before(1)), chunk),
        Collective::AllGather | Collective::Gather => {
            let each = parts(schedule.input);
            (Some(chunk / each), chunk % each)
        }
        Collective::Scatter => (Some(root), rank * parts(schedule.output) + chunk),
        Collective::AllToAll => (Some(chunk), rank),
        Collective::Send | Collective::Barrier => (Some(rank), chunk),
    }
}

/// Describes how the content of a chunk differs from the expected one.
fn difference(value: SymbolicValue, expected: u128, world_size: u32, chunk: u32) -> String {
    let off = |rank: &u32, too_much: bool| {
        let one = SymbolicValue::input(*rank, chunk).sum;
        if too_much {
            value.sum == expected.wrapping_add(one)
        } else {
            value.sum.wrapping_add(one) == expected
        }
    };
    let find = |too_much| (0..world_size).find(|rank| off(rank, too_much));
    if let Some(rank) = find(false) {
        format!("lacking the contribution of rank {rank}")
    } else if let Some(rank) = find(true) {
        format!("with an extra contribution of rank {rank}")
    } else {
        format!("not holding chunk {chunk} as required")
    }
}

#[cfg(test)]
mod tests;
