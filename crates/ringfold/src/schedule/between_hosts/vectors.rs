//! Vectors in as many columns as possible, for large data.

#![forbid(unsafe_code)]

use std::iter;

use super::place::TwoLevelPosition;
use super::steps::{exchange, exchange_column, gather_columns, reduce_columns};
use crate::schedule::action::{Buffer, Span};
use crate::schedule::build::{Builder, input, output, scratch};
use crate::schedule::spec::{Schedule, Spec};
use crate::schedule::{direct, recursive_doubling, ring};

/// Generates a reduce-scatter within the hosts, an all-reduce of each column between them, and an
/// all-gather within the hosts.
pub(super) fn all_reduce_by(
    spec: &Spec,
    place: &TwoLevelPosition,
    between: fn(&Spec) -> Schedule,
) -> Schedule {
    let exchange = exchange(spec, place, between);
    let (parts, rounds) = match &exchange {
        Some(exchange) => (exchange.input.chunks(), exchange.rounds),
        None => (1, 0),
    };
    let span = |buffer: fn(u32, u32) -> Span, column: u32| buffer(column * parts, parts);
    let local_rounds = place.local_rounds();

    let mut build = Builder::vector(spec, place.columns * parts);
    let input_of = |column| iter::once(span(input, column));
    // The reduced column of a host.
    let reduced = if spec.is_wide { scratch } else { output };
    reduce_columns(&mut build, place, input_of, |chunk, _| {
        reduced(chunk.first, chunk.len)
    });
    if let (Some(column), Some(exchange)) = (place.column(), exchange) {
        let is_alone = place.members().len() == 1;
        if is_alone && spec.is_wide {
            build.copy(span(input, column), span(scratch, column));
        }
        let moved = |span: Span| {
            let first = span.first + column * parts;
            match span.buffer {
                Buffer::Input if !is_alone || spec.is_wide => reduced(first, span.len),
                _ => Span { first, ..span },
            }
        };
        exchange_column(&mut build, place, &exchange, local_rounds, moved);
    }
    if local_rounds > 0 {
        build.round(local_rounds + rounds);
        gather_columns(&mut build, place, |column| span(output, column), |_| false);
    }
    build.finish(2 * local_rounds + rounds)
}

/// Exchanges each column in a ring of its counterparts; in the order of the canonical tree, each
/// counterpart combines its part of the column directly from all others.
pub(in crate::schedule) fn all_reduce(spec: &Spec) -> Schedule {
    let between = match spec.is_reproducible {
        true => direct::all_reduce,
        false => |inner: &Spec| ring::ALL_REDUCE.whole(inner),
    };
    all_reduce_by(spec, &TwoLevelPosition::new(spec), between)
}

/// Exchanges each column among its counterparts by recursive doubling.
pub(in crate::schedule) fn all_reduce_in_pairs(spec: &Spec) -> Schedule {
    all_reduce_by(
        spec,
        &TwoLevelPosition::new(spec),
        recursive_doubling::all_reduce,
    )
}

/// Sends the columns from the root to the leaders of its host, then among the counterparts of each
/// column by `between`, and in each host to all members.
pub(super) fn broadcast_by(
    spec: &Spec,
    place: &TwoLevelPosition,
    between: fn(&Spec) -> Schedule,
) -> Schedule {
    let columns = place.columns;
    let known = if spec.is_root() { input } else { output };
    let first = place.rounds_with_root(spec);
    let exchange = exchange(spec, place, between);
    let rounds = exchange.as_ref().map_or(0, |exchange| exchange.rounds);
    let mut build = Builder::vector(spec, columns);
    if spec.is_root() {
        for (column, leader) in place.leaders().filter(|(_, leader)| *leader != spec.root) {
            build.send(leader, input(column, 1));
        }
    } else if let (true, Some(column)) = (place.is_with_root(spec), place.column()) {
        build.recv(spec.root, output(column, 1));
    }
    if let (Some(column), Some(exchange)) = (place.column(), exchange) {
        exchange_column(&mut build, place, &exchange, first, |_| known(column, 1));
    }
    if spec.is_root() {
        build.copy(input(0, columns), output(0, columns));
    }
    if place.local_rounds() > 0 {
        build.round(first + rounds);
        let column = |column| known(column, 1);
        gather_columns(&mut build, place, column, |rank| rank == spec.root);
    }
    build.finish(first + rounds + place.local_rounds())
}

/// Broadcasts each column along a chain of its counterparts.
pub(in crate::schedule) fn broadcast(spec: &Spec) -> Schedule {
    broadcast_by(spec, &TwoLevelPosition::new(spec), ring::broadcast)
}

/// Reduces each column within the hosts, then among its counterparts by `between`. The leaders of
/// the root's host send the results to the root.
pub(super) fn reduce_by(
    spec: &Spec,
    place: &TwoLevelPosition,
    between: fn(&Spec) -> Schedule,
) -> Schedule {
    let result = spec.result();
    let exchange = exchange(spec, place, between);
    let rounds = exchange.as_ref().map_or(0, |exchange| exchange.rounds);
    let (first, last) = (place.local_rounds(), place.local_rounds() + rounds);
    let mut build = Builder::vector(spec, place.columns);
    let input_of = |column| iter::once(input(column, 1));
    reduce_columns(&mut build, place, input_of, |chunk, _| {
        result(chunk.first, 1)
    });
    if let (Some(column), Some(exchange)) = (place.column(), exchange) {
        let is_alone = place.members().len() == 1;
        let moved = |span: Span| match span.buffer {
            Buffer::Input if is_alone => input(column, 1),
            _ => result(column, 1),
        };
        exchange_column(&mut build, place, &exchange, first, moved);
    }
    if spec.is_root() {
        for (column, leader) in place.leaders().filter(|(_, leader)| *leader != spec.root) {
            build.round(last);
            build.recv(leader, output(column, 1));
        }
    } else if let (true, Some(column)) = (place.is_with_root(spec), place.column()) {
        build.round(last);
        build.send(spec.root, result(column, 1));
    }
    build.finish(last + place.rounds_with_root(spec))
}

/// Reduces each column along a chain of its counterparts.
pub(in crate::schedule) fn reduce(spec: &Spec) -> Schedule {
    reduce_by(spec, &TwoLevelPosition::new(spec), ring::reduce)
}
