//! Steps common to several collectives: a column's exchange within the hosts and between them.

#![forbid(unsafe_code)]

use super::place::TwoLevelPosition;
use crate::schedule::Groups;
use crate::schedule::action::{Action, Buffer, Span, Step, leaves};
use crate::schedule::build::{Builder, output};
use crate::schedule::spec::{Schedule, Spec};

/// Adds the round in which each leader combines its column within the host. `chunks` returns a
/// column's chunks of the input, and `into` the destination of a chunk, given the number of members
/// whose chunks are still to be combined with it.
///
/// In the order of the canonical tree, members of hosts of equal size, a power of two, halve the
/// columns between them ([`halve_columns`]); on other hosts, and if partial results have another
/// type, all copies of a chunk are kept until the last has arrived. Otherwise each is combined on
/// arrival, in the order of the members.
pub(super) fn reduce_columns<I: Iterator<Item = Span>>(
    build: &mut Builder,
    place: &TwoLevelPosition,
    chunks: impl Fn(u32) -> I,
    into: impl Fn(Span, usize) -> Span,
) {
    let mut others: Vec<_> = place.others().into_iter().map(|(_, other)| other).collect();
    let own: Vec<Span> = place.column().into_iter().flat_map(&chunks).collect();
    let send = |build: &mut Builder| {
        for (column, leader) in place.other_leaders().into_iter().rev() {
            chunks(column).for_each(|chunk| build.send(leader, chunk));
        }
    };
    if build.spec().is_reproducible && !others.is_empty() {
        if place.has_paired_members() && !build.spec().is_wide {
            return halve_columns(build, place, chunks, into);
        }
        others.sort_unstable();
        return build.fold_among(&others, &own, send, |chunk| into(chunk, 0));
    }
    let mut send = Some(send);
    for (number, from) in others.iter().enumerate() {
        let left = others.len() - 1 - number;
        for chunk in &own {
            let known = match number {
                0 => *chunk,
                _ => into(*chunk, left + 1),
            };
            build.recv_reduce(*from, known, into(*chunk, left));
        }
        // Before the first wait; otherwise no rank would ever receive.
        if let Some(send) = send.take() {
            send(build);
        }
    }
}

/// Combines the columns in pairs of members at doubling distance. Each step halves the columns of a
/// member: it keeps those whose numbers end in the same bits as its own. As many bytes and messages
/// as if each member sent each leader its column.
fn halve_columns<I: Iterator<Item = Span>>(
    build: &mut Builder,
    place: &TwoLevelPosition,
    chunks: impl Fn(u32) -> I,
    into: impl Fn(Span, usize) -> Span,
) {
    let members = place.members();
    let depth = members.len().ilog2();
    for bit in 0..depth {
        let other = place.member ^ (1 << bit);
        let peer = members[other as usize];
        let left = (depth - 1 - bit) as usize;
        let columns = |of: u32| {
            let distance = 2 << bit;
            (of % distance..place.columns).step_by(distance as usize)
        };
        let known = |chunk: Span| match bit {
            0 => chunk,
            _ => into(chunk, left + 1),
        };
        for chunk in columns(place.member).flat_map(&chunks) {
            build.recv_reduce(peer, known(chunk), into(chunk, left));
        }
        for chunk in columns(other).flat_map(&chunks) {
            build.send(peer, known(chunk));
        }
    }
}

/// Adds the round in which the leaders send their columns to each member of the host, except a
/// member that already has them all.
pub(super) fn gather_columns(
    build: &mut Builder,
    place: &TwoLevelPosition,
    column: impl Fn(u32) -> Span,
    has_all: impl Fn(u32) -> bool,
) {
    let is_filled = has_all(place.members()[place.member as usize]);
    for (number, leader) in place.other_leaders().into_iter().filter(|_| !is_filled) {
        let column = column(number);
        build.recv(leader, output(column.first, column.len));
    }
    if let Some(own) = place.column() {
        let members = place.others().into_iter().rev();
        for (_, member) in members.filter(|(_, member)| !has_all(*member)) {
            build.send(member, column(own));
        }
    }
}

/// Returns the schedule by which the leaders of a column exchange it, as if each host were one
/// rank; `None` on one host.
pub(super) fn exchange(
    spec: &Spec,
    place: &TwoLevelPosition,
    between: fn(&Spec) -> Schedule,
) -> Option<Schedule> {
    let inner = Spec {
        rank: place.host,
        root: spec.hosts.of(spec.root),
        world_size: place.host_count(),
        hosts: Groups::ONE,
        ..spec.clone()
    };
    (inner.world_size > 1).then(|| between(&inner))
}

/// Adds the messages and reductions of `exchange` from `first_round` on, for the column that this
/// rank leads, with each span mapped by `moved`. Copies are left to the caller, who knows all
/// columns.
pub(super) fn exchange_column(
    build: &mut Builder,
    place: &TwoLevelPosition,
    exchange: &Schedule,
    first_round: u32,
    moved: impl Fn(Span) -> Span,
) {
    let Some(column) = place.column() else { return };
    let peers = place.counterparts(column);
    let leaves_taken = build.leaves_taken();
    let moved = |span: Span| match span.buffer {
        Buffer::Leaves => leaves(leaves_taken + span.first, span.len),
        _ => moved(span),
    };
    let is_copy = |step: &&Step| matches!(step.action, Action::Copy { .. });
    for step in exchange.channels[0].iter().filter(|step| !is_copy(step)) {
        build.round(first_round + step.round);
        build.push(step.action.with_spans(moved).among(&peers));
    }
}
