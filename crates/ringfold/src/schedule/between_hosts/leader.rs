//! One leader per host, for small data: few hops, and few messages between hosts.
//!
//! The root leads its host. Leaders exchange the blocks of whole hosts; the blocks of consecutive
//! ranks are adjacent and form one message.

#![forbid(unsafe_code)]

use std::iter;

use super::place::TwoLevelPosition;
use super::steps::reduce_columns;
use super::vectors::{all_reduce_by, broadcast_by, reduce_by};
use crate::schedule::action::Span;
use crate::schedule::build::{Builder, input, output, scratch};
use crate::schedule::spec::{Schedule, Spec};
use crate::schedule::{recursive_doubling, tree};

/// All-reduces among the leaders by recursive doubling.
pub(in crate::schedule) fn all_reduce(spec: &Spec) -> Schedule {
    all_reduce_by(
        spec,
        &TwoLevelPosition::of_leaders(spec),
        recursive_doubling::all_reduce,
    )
}

/// Broadcasts down a tree of the hosts, then to their members.
pub(in crate::schedule) fn broadcast(spec: &Spec) -> Schedule {
    broadcast_by(spec, &TwoLevelPosition::of_leaders(spec), tree::broadcast)
}

/// Reduces within the hosts, then up a tree of the hosts.
pub(in crate::schedule) fn reduce(spec: &Spec) -> Schedule {
    reduce_by(spec, &TwoLevelPosition::of_leaders(spec), tree::reduce)
}

/// Returns the distance and the number of hosts' blocks in a message, by round, for an all-gather
/// among any number of hosts (Bruck et al., 1997). Each round doubles every host's blocks; in the
/// last, a message may hold fewer.
fn doubling(hosts: u32) -> impl DoubleEndedIterator<Item = (u32, u32)> {
    let depth = hosts.next_power_of_two().trailing_zeros();
    let distances = (0..depth).map(|bit| 1 << bit);
    distances.map(move |distance| (distance, distance.min(hosts - distance)))
}

/// Gathers the blocks of each host at its leader, then those of ever more hosts, and sends all to
/// the members.
pub(in crate::schedule) fn all_gather(spec: &Spec) -> Schedule {
    let place = TwoLevelPosition::of_leaders(spec);
    let mut build = Builder::blocks(spec, 1, spec.world_size).in_one_slice();
    let whole = output(0, spec.world_size);
    let rounds = place.local_rounds() + doubling(place.host_count()).count() as u32;
    if place.column().is_none() {
        build.send(place.leader(), input(0, 1));
        build.round(rounds);
        build.recv(place.leader(), whole);
        return build.finish(rounds + 1);
    }
    for (_, member) in place.others() {
        build.recv(member, output(member, 1));
    }
    build.copy(input(0, 1), output(spec.rank, 1));
    for (round, (distance, count)) in (place.local_rounds()..).zip(doubling(place.host_count())) {
        build.round(round);
        let come_from = place.host_after(distance);
        for run in place.runs(come_from, count) {
            build.recv(place.counterpart(0, distance), run.of(output));
        }
        for run in place.runs(place.host, count) {
            let to = place.counterpart(0, place.host_count() - distance);
            build.send(to, run.of(output));
        }
    }
    if place.local_rounds() == 0 {
        return build.finish(rounds);
    }
    build.round(rounds);
    for (_, member) in place.others() {
        build.send(member, whole);
    }
    build.finish(rounds + 1)
}

/// Combines each host's data at its leader, then exchanges data for ever fewer hosts between the
/// leaders, and sends the members their blocks.
pub(in crate::schedule) fn reduce_scatter(spec: &Spec) -> Schedule {
    let place = TwoLevelPosition::of_leaders(spec);
    let (n, own) = (spec.world_size, spec.rank);
    let mut build = Builder::blocks(spec, n, 1).in_one_slice();
    let rounds = place.local_rounds() + doubling(place.host_count()).count() as u32;
    let whole = |_| iter::once(input(0, n));
    reduce_columns(&mut build, &place, whole, |_, _| scratch(0, n));
    if place.column().is_none() {
        build.round(rounds);
        build.recv(place.leader(), output(0, 1));
        return build.finish(rounds + 1);
    }
    if place.members().len() == 1 {
        build.copy(input(0, n), scratch(0, n));
    }
    let levels = doubling(place.host_count()).rev();
    for (round, (distance, count)) in (place.local_rounds()..).zip(levels) {
        build.round(round);
        for run in place.runs(place.host, count) {
            let from = place.counterpart(0, place.host_count() - distance);
            build.recv_reduce(from, run.of(scratch), run.of(scratch));
        }
        for run in place.runs(place.host_after(distance), count) {
            build.send(place.counterpart(0, distance), run.of(scratch));
        }
    }
    build.copy(scratch(own, 1), output(0, 1));
    if place.local_rounds() == 0 {
        return build.finish(rounds);
    }
    build.round(rounds);
    for (_, member) in place.others() {
        build.send(member, scratch(member, 1));
    }
    build.finish(rounds + 1)
}

/// Gathers the blocks of each host at its leader, which sends them to the root.
pub(in crate::schedule) fn gather(spec: &Spec) -> Schedule {
    let place = TwoLevelPosition::of_leaders(spec);
    let (first, rounds) = (place.local_rounds(), exchange_rounds(&place));
    let known = spec.result();
    let mut build = Builder::blocks(spec, 1, spec.world_size).in_one_slice();
    if place.column().is_none() {
        build.send(place.leader(), input(0, 1));
        return build.finish(rounds);
    }
    for (_, member) in place.others() {
        build.recv(member, known(member, 1));
    }
    build.copy(input(0, 1), known(spec.rank, 1));
    for (peer, run) in place.runs_with_root(spec) {
        build.round(first);
        match spec.is_root() {
            true => build.recv(peer, run.of(output)),
            false => build.send(peer, run.of(scratch)),
        }
    }
    build.finish(rounds)
}

/// Sends each host's blocks from the root to the leader, which sends them to the members.
pub(in crate::schedule) fn scatter(spec: &Spec) -> Schedule {
    let place = TwoLevelPosition::of_leaders(spec);
    let rounds = exchange_rounds(&place);
    let known = if spec.is_root() { input } else { scratch };
    let mut build = Builder::blocks(spec, spec.world_size, 1).in_one_slice();
    for (peer, run) in place.runs_with_root(spec) {
        match spec.is_root() {
            true => build.send(peer, run.of(input)),
            false => build.recv(peer, run.of(scratch)),
        }
    }
    if place.column().is_some() {
        build.copy(known(spec.rank, 1), output(0, 1));
    }
    build.round(rounds - 1);
    match place.column() {
        None => build.recv(place.leader(), output(0, 1)),
        Some(_) => {
            for (_, member) in place.others() {
                build.send(member, known(member, 1));
            }
        }
    }
    build.finish(rounds)
}

/// Returns the number of rounds: one within the hosts and one between them, each only if needed.
fn exchange_rounds(place: &TwoLevelPosition) -> u32 {
    place.local_rounds() + u32::from(place.host_count() > 1)
}

/// Notifies each host's leader, then the other leaders, then each host's members.
///
/// The chunks hold no elements and only make a send wait for earlier receives: each member's
/// message has its own chunk, and a leader's first message to another leader names all of them.
pub(in crate::schedule) fn barrier(spec: &Spec) -> Schedule {
    let place = TwoLevelPosition::of_leaders(spec);
    let hosts = place.host_count();
    let depth = hosts.next_power_of_two().trailing_zeros();
    // The length of the message that notifies for a whole host.
    let whole = |host: u32| (place.hosts[host as usize].len() as u32 - 1).max(1);
    let wide = (place.largest() - 1).max(1);
    let (leader, members) = place.members().split_first().expect("this rank");
    let mut build = Builder::vector(spec, 2 * wide + depth);
    let released = match depth {
        0 => whole(place.host),
        _ => 1,
    };
    if place.column().is_none() {
        build.send(*leader, input(0, 1));
        build.round(1 + depth);
        build.recv(*leader, scratch(0, released));
        return build.finish(2 + depth);
    }
    for (number, member) in members.iter().enumerate() {
        build.recv(*member, scratch(number as u32, 1));
    }
    let mut known = match members {
        [] => input(0, 1),
        _ => scratch(0, whole(place.host)),
    };
    for bit in 0..depth {
        build.round(1 + bit);
        let by = 1 << bit;
        let came = match bit {
            0 => scratch(wide, whole(place.host_before(1))),
            _ => scratch(2 * wide + bit, 1),
        };
        build.recv(place.counterpart(0, hosts - by), came);
        build.send(place.counterpart(0, by), known);
        known = Span { len: 1, ..came };
    }
    build.round(1 + depth);
    members.iter().for_each(|member| build.send(*member, known));
    build.finish(2 + depth)
}
