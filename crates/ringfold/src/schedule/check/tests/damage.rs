//! Schedules damaged on purpose: each kind of damage is applied at every step, and the checker must
//! always detect it.

use super::*;
use crate::schedule::dependence::dependencies;
use crate::schedule::{Action, Span, Step};

/// Damage at one step of one rank; `None` if this kind does not apply.
type Damage = fn(&Schedule, &[Step], usize) -> Option<Vec<Step>>;

/// Applies the damage everywhere in the schedules of all algorithms; returns how often.
fn refuse_everywhere(damage: Damage, in_place: bool) -> usize {
    let mut count = 0;
    for world_size in [3, 4, 8] {
        for &access in Access::ALL {
            for spec in specs(access, world_size, 1)
                .iter()
                .chain(&specs(access, world_size, 0))
            {
                count += refuse(spec, damage, in_place);
            }
        }
    }
    count
}

fn refuse(spec: &Spec, damage: Damage, in_place: bool) -> usize {
    let mut count = 0;
    let sound = schedules(spec).unwrap();
    for rank in 0..sound.len() {
        let steps = &sound[rank].channels[0];
        for number in 0..steps.len() {
            if sound[rank].is_void(&steps[number].action, in_place) {
                continue;
            }
            let Some(damaged) = damage(&sound[rank], steps, number) else {
                continue;
            };
            let mut schedules = sound.clone();
            schedules[rank].channels[0] = damaged;
            assert!(
                check_sliced(&schedules, in_place, Slices::ONE).is_err(),
                "{spec:?}: the damage at step {number} of rank {rank} was not seen: {:?}",
                schedules[rank].channels[0]
            );
            count += 1;
        }
    }
    count
}

#[test]
fn a_lost_step_is_seen() {
    let lose: Damage = |_, steps, at| {
        let publishes = |step: &Step| matches!(step.action, Action::Publish { .. });
        // If a phase without data is lost, a rank that waits for it only waits for the next one.
        if matches!(steps[at].action, Action::Publish { span, .. } if span.len == 0)
            && steps[at + 1..].iter().any(publishes)
        {
            return None;
        }
        let mut steps = steps.to_vec();
        steps.remove(at);
        Some(steps)
    };
    assert!(refuse_everywhere(lose, false) > 1000);
    assert!(refuse_everywhere(lose, true) > 1000);
}

#[test]
fn a_repeated_message_reduction_or_publication_is_seen() {
    let repeat: Damage = |_, steps, at| {
        // Other local steps give the same result when repeated.
        let adds = match steps[at].action {
            Action::Reduce { with, from, into } => with == into || from == into,
            other => {
                other.is_message()
                    || matches!(other, Action::Publish { .. } | Action::GiveBack { .. })
            }
        };
        let mut steps = steps.to_vec();
        steps.insert(at, steps[at]);
        adds.then_some(steps)
    };
    assert!(refuse_everywhere(repeat, false) > 1000);
}

#[test]
fn a_second_reader_of_what_is_given_back_is_seen() {
    let intrude: Damage = |schedule, steps, at| {
        let Action::TakeBack { peer, into } = steps[at].action else {
            return None;
        };
        let spec = &schedule.spec;
        let third = (0..spec.world_size).find(|&rank| rank != peer && rank != spec.rank)?;
        let action = Action::CopyFrom {
            peer: third,
            first: into.first,
            into,
        };
        let mut steps = steps.to_vec();
        let round = steps[at].round;
        steps.insert(at, Step { round, action });
        Some(steps)
    };
    assert!(refuse_everywhere(intrude, false) > 10);
}

#[test]
fn a_wrong_chunk_is_seen() {
    let shift: Damage = |schedule, steps, at| {
        let spec = &schedule.spec;
        let chunks = |span: &Span| match span.buffer {
            Buffer::Output => schedule.output.chunks(),
            _ => schedule.input.chunks(),
        };
        let movable = |span: &Span| span.len > 0 && span.first + span.len < chunks(span);
        let step = steps[at];
        let mut steps = steps.to_vec();
        // Shifts the written span, or else the read one: shifting both could be right.
        let moved = step.action.writes().or(step.action.reads()[0])?;
        steps[at].action = step.action.with_spans(|span| Span {
            first: span.first + u32::from(span == moved),
            ..span
        });
        let only = step.action.spans().filter(|&span| span == moved).count() == 1;
        (only && movable(&moved) && spec.collective != Collective::Barrier).then_some(steps)
    };
    assert!(refuse_everywhere(shift, false) > 500);
}

#[test]
fn a_message_in_the_wrong_round_is_seen() {
    let delay: Damage = |_, steps, at| {
        let mut steps = steps.to_vec();
        steps[at].round += 1;
        steps[at].action.is_message().then_some(steps)
    };
    assert!(refuse_everywhere(delay, false) > 500);
}

#[test]
fn a_message_to_the_wrong_rank_is_seen() {
    let misdirect: Damage = |schedule, steps, at| {
        let mut steps = steps.to_vec();
        let Action::Send { peer, .. } = &mut steps[at].action else {
            return None;
        };
        *peer = (*peer + 1) % schedule.spec.world_size;
        Some(steps)
    };
    assert!(refuse_everywhere(misdirect, false) > 500);
}

#[test]
fn waiting_for_too_early_a_phase_is_seen() {
    let hurry: Damage = |schedule, steps, at| {
        // Without a reduction, some ranks need only the data that was published first.
        if !schedule.spec.collective.reduces() {
            return None;
        }
        let mut steps = steps.to_vec();
        let Action::Await { phase, .. } = &mut steps[at].action else {
            return None;
        };
        *phase = phase.checked_sub(1)?;
        Some(steps)
    };
    assert!(refuse_everywhere(hurry, false) > 20);
}

#[test]
fn steps_that_depend_on_each_other_cannot_change_places() {
    let swap: Damage = |schedule, steps, at| {
        let before = at.checked_sub(1)?;
        let depends = dependencies(schedule, true)[0][at].contains(&(before as u32));
        // Two steps that add to the same sum may run in either order, unless other ranks must add
        // alike.
        let adds = |at: usize| {
            matches!(
                steps[at].action,
                Action::RecvReduce { .. } | Action::Reduce { .. }
            )
        };
        let mut swapped = steps.to_vec();
        swapped.swap(before, at);
        (depends && steps[before].round == steps[at].round && !(adds(before) && adds(at)))
            .then_some(swapped)
    };
    let count = refuse_everywhere(swap, true);
    assert!(count > 20, "only {count} places");
}

#[test]
fn a_forgotten_dependence_is_seen() {
    let mut count = 0;
    for spec in specs(Access::Messages, 6, 0) {
        if spec.collective == Collective::Barrier {
            continue;
        }
        let sound = schedules(&spec).unwrap();
        for (rank, schedule) in sound.iter().enumerate() {
            let waits = dependencies(schedule, true);
            for (step, list) in waits[0].iter().enumerate() {
                for wait in 0..list.len() {
                    let mut execution = execute::Execution::new(&sound, true, Slices::ONE);
                    execution.forget(rank, step, wait);
                    assert!(
                        execution.run().is_err(),
                        "{spec:?}: rank {rank}, step {step}, wait {wait}"
                    );
                    count += 1;
                }
            }
        }
    }
    assert!(count > 100);
}

#[test]
fn receiving_into_what_is_being_sent_is_a_deadlock() {
    let spec = Spec::new(
        Collective::AllReduce,
        Algorithm::RecursiveDoubling,
        Access::Messages,
        2,
    );
    let whole = |buffer| Span {
        buffer,
        first: 0,
        len: 1,
    };
    for receive_first in [true, false] {
        let mut schedules = schedules(&spec).unwrap();
        for schedule in &mut schedules {
            let peer = 1 - schedule.spec.rank;
            let receive = Action::RecvReduce {
                peer,
                with: whole(Buffer::Input),
                into: whole(Buffer::Output),
            };
            let send = Action::Send {
                peer,
                span: whole(Buffer::Input),
            };
            let actions = if receive_first {
                [receive, send]
            } else {
                [send, receive]
            };
            schedule.scratch = false;
            schedule.channels = vec![actions.map(|action| Step { round: 0, action }).to_vec()];
        }
        let apart = check_sliced(&schedules, false, Slices::ONE);
        assert!(
            apart.is_ok(),
            "in different memory this is right: {apart:?}"
        );
        let violation = check_sliced(&schedules, true, Slices::ONE).unwrap_err();
        assert!(violation.what.starts_with("deadlock"), "{violation}");
    }
}

/// Ranks 1 and 2 take each other's places in all schedules, so their values are combined in each
/// other's places of the tree.
#[test]
fn two_values_that_change_places_in_the_tree_are_seen() {
    let mut seen = 0;
    for world_size in 3..=16 {
        let hosts = [1, 2, 4].map(|size| {
            let of_ranks: Vec<u32> = (0..world_size).map(|rank| rank / size).collect();
            Groups::new(&of_ranks)
        });
        let all = specs(Access::Messages, world_size, 0).into_iter();
        let vectors =
            |spec: &Spec| matches!(spec.collective, Collective::AllReduce | Collective::Reduce);
        for spec in all.filter(vectors).flat_map(|spec| {
            hosts.clone().map(|hosts| Spec {
                hosts,
                is_reproducible: true,
                ..spec.clone()
            })
        }) {
            if spec.order() == Order::Other {
                continue;
            }
            let mut places: Vec<u32> = (0..world_size).collect();
            places.swap(1, 2);
            let mut schedules = schedules(&spec).unwrap();
            schedules.swap(1, 2);
            for (rank, schedule) in (0..).zip(&mut schedules) {
                schedule.spec.rank = rank;
                for step in schedule.channels.iter_mut().flatten() {
                    step.action = step.action.among(&places);
                }
            }
            let violation = check_sliced(&schedules, false, Slices::ONE).unwrap_err();
            assert!(
                violation.what.contains("canonical tree"),
                "{spec:?}: {violation}"
            );
            seen += 1;
        }
    }
    assert!(seen > 200, "{seen}");
}

/// Each written span moves between `Scratch`, which is wide, and `Output`.
#[test]
fn elements_of_another_type_are_seen() {
    let hosts = Groups::new(&[0, 0, 1, 1, 2]);
    let mut seen = 0;
    for collective in [Collective::AllReduce, Collective::ReduceScatter] {
        let spec = Spec {
            hosts: hosts.clone(),
            is_reproducible: true,
            is_wide: true,
            ..Spec::new(collective, Algorithm::Hierarchical, Access::Messages, 5)
        };
        let damage: Damage = |_, steps, at| {
            let moved = steps[at].action.writes().filter(|span| span.len == 1)?;
            let buffer = match moved.buffer {
                Buffer::Scratch => Buffer::Output,
                Buffer::Output => Buffer::Scratch,
                _ => return None,
            };
            let mut steps = steps.to_vec();
            let other = |span: Span| match span == moved {
                true => Span { buffer, ..span },
                false => span,
            };
            steps[at].action = steps[at].action.with_spans(other);
            Some(steps)
        };
        seen += refuse(&spec, damage, false);
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn channels_that_share_a_chunk_are_seen() {
    let spec = &specs(Access::Messages, 4, 0)[1];
    let mut schedules = schedules(spec).unwrap();
    for schedule in &mut schedules {
        let steps = schedule.channels[0].clone();
        schedule.channels.push(steps);
    }
    let violation = check_sliced(&schedules, false, Slices::ONE).unwrap_err();
    assert!(violation.what.contains("another channel"), "{violation}");
}
