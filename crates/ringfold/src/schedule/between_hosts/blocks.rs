//! Blocks that belong to ranks.

#![forbid(unsafe_code)]

use super::place::TwoLevelPosition;
use super::steps::reduce_columns;
use crate::schedule::action::Span;
use crate::schedule::build::{Builder, input, output, scratch};
use crate::schedule::spec::{Schedule, Spec};

/// Combines each block within the host at its column's leader, and between the hosts at the
/// column's leader on the host of the block's rank, which sends the block to that rank.
pub(in crate::schedule) fn reduce_scatter(spec: &Spec) -> Schedule {
    let place = TwoLevelPosition::new(spec);
    let (others, first) = (place.host_count() - 1, place.local_rounds());
    let own_rank = spec.rank;
    let mut build = Builder::blocks(spec, spec.world_size, 1);
    let input_of = |column| place.blocks(column).map(|block| input(block, 1));
    reduce_columns(&mut build, &place, input_of, |chunk, left| {
        destination(spec, chunk.first, others == 0 && left == 0)
    });
    let rounds = match spec.is_reproducible {
        true => others.min(1),
        false => others,
    };
    if let Some(own) = place.column().filter(|_| others > 0) {
        match spec.is_reproducible {
            true => exchange_in_order(&mut build, spec, &place, own),
            false => pass_around(&mut build, spec, &place, own),
        }
    }
    build.round(first + rounds);
    match place.column() {
        Some(own) => {
            let of_host = place.belong(place.host, own);
            let others = of_host.filter(|block| *block != own_rank);
            others.for_each(|block| build.send(block, scratch(block, 1)));
        }
        None if spec.is_wide => {
            build.recv(place.leader(), scratch(own_rank, 1));
            build.copy(scratch(own_rank, 1), output(0, 1));
        }
        None => build.recv(place.leader(), output(0, 1)),
    }
    build.finish(first + rounds + 1)
}

/// Returns the destination of a combined block.
fn destination(spec: &Spec, block: u32, is_last: bool) -> Span {
    match block == spec.rank && is_last {
        true => output(0, 1),
        false => scratch(block, 1),
    }
}

/// Combines the blocks of column `own` from counterpart to counterpart, around the hosts.
fn pass_around(build: &mut Builder, spec: &Spec, place: &TwoLevelPosition, own: u32) {
    let (hosts, first) = (place.host_count(), place.local_rounds());
    let known = match place.members().len() {
        1 => input,
        _ => scratch,
    };
    let (previous, next) = (place.counterpart(own, hosts - 1), place.counterpart(own, 1));
    let mut sent_from: fn(u32, u32) -> Span = known;
    for round in 0..hosts - 1 {
        build.round(first + round);
        for block in place.belong(place.host_before(round + 2), own) {
            let into = destination(spec, block, round == hosts - 2);
            build.recv_reduce(previous, known(block, 1), into);
        }
        for block in place.belong(place.host_before(round + 1), own) {
            build.send(next, sent_from(block, 1));
        }
        sent_from = scratch;
    }
}

/// Combines the blocks of column `own` for this host from all counterparts at once, in the order of
/// the canonical tree.
fn exchange_in_order(build: &mut Builder, spec: &Spec, place: &TwoLevelPosition, own: u32) {
    build.round(place.local_rounds());
    let is_alone = place.members().len() == 1;
    if is_alone && spec.is_wide {
        let blocks = place.blocks(own);
        blocks.for_each(|block| build.copy(input(block, 1), scratch(block, 1)));
    }
    let known = match is_alone && !spec.is_wide {
        true => input,
        false => scratch,
    };
    let mut peers = place.counterparts(own);
    peers.retain(|peer| *peer != spec.rank);
    peers.sort_unstable();
    let of_host = place.belong(place.host, own);
    let chunks: Vec<_> = of_host.map(|block| known(block, 1)).collect();
    let send = |build: &mut Builder| {
        for by in 1..place.host_count() {
            let blocks = place.belong(place.host_after(by), own);
            blocks.for_each(|block| build.send(place.counterpart(own, by), known(block, 1)));
        }
    };
    let into = |chunk: Span| destination(spec, chunk.first, true);
    build.fold_among(&peers, &chunks, send, into);
}

/// Exchanges blocks among the members of a host; counterparts pass their blocks around the hosts,
/// and each forwards received blocks to its host.
pub(in crate::schedule) fn all_gather(spec: &Spec) -> Schedule {
    let place = TwoLevelPosition::new(spec);
    let (hosts, first) = (place.host_count(), place.local_rounds());
    let mut build = Builder::blocks(spec, 1, spec.world_size);
    for (_, member) in place.others() {
        build.recv(member, output(member, 1));
    }
    for (_, member) in place.others().into_iter().rev() {
        build.send(member, input(0, 1));
    }
    build.copy(input(0, 1), output(spec.rank, 1));
    let known = |block: u32| match block == spec.rank {
        true => input(0, 1),
        false => output(block, 1),
    };
    // Each round receives the blocks of another host; the next round forwards them to the members.
    for round in 0..hosts {
        build.round(first + round);
        let come = place.column().filter(|_| round + 1 < hosts);
        let exchanged = come.map(|own| (own, place.counterpart(own, hosts - 1)));
        if let Some((own, previous)) = exchanged {
            for block in place.belong(place.host_before(round + 1), own) {
                build.recv(previous, output(block, 1));
            }
        }
        let host = place.host_before(round);
        for (number, leader) in place.other_leaders().into_iter().filter(|_| round > 0) {
            for block in place.belong(host, number) {
                build.recv(leader, output(block, 1));
            }
        }
        let Some(own) = place.column() else { continue };
        for block in place.belong(host, own).filter(|_| round + 1 < hosts) {
            build.send(place.counterpart(own, 1), known(block));
        }
        for (_, member) in place.others().into_iter().rev().filter(|_| round > 0) {
            let blocks = place.belong(host, own);
            blocks.for_each(|block| build.send(member, output(block, 1)));
        }
    }
    build.finish(first + hosts)
}

/// Sends a rank's data for all ranks of another host to one of them, the agent, in one message for
/// each run of consecutive ranks. The agent keeps the data in scratch and forwards it to the rest.
pub(in crate::schedule) fn all_to_all(spec: &Spec) -> Schedule {
    let place = TwoLevelPosition::new(spec);
    let (own, size) = (spec.rank, place.members().len() as u32);
    let acts_for = || place.agents().filter(|(_, agent)| *agent == own);
    let passed_on = || (0..).step_by(size as usize).zip(acts_for());
    let n = spec.world_size;
    let mut build = Builder::blocks(spec, n, n).in_one_slice();
    for (mut first, (source, _)) in passed_on() {
        for run in place.runs(place.host, 1) {
            build.recv(source, scratch(first, run.count));
            first += run.count;
        }
    }
    for (_, member) in place.others() {
        build.recv(member, output(member, 1));
    }
    for (host, agent) in place.agents_elsewhere() {
        for run in place.runs(host, 1) {
            build.send(agent, run.of(input));
        }
    }
    for (_, member) in place.others().into_iter().rev() {
        build.send(member, input(member, 1));
    }
    build.copy(input(own, 1), output(own, 1));
    if place.host_count() == 1 {
        return build.finish(1);
    }
    build.round(1);
    for (source, agent) in place.agents().filter(|(_, agent)| *agent != own) {
        build.recv(agent, output(source, 1));
    }
    for (first, (source, _)) in passed_on() {
        for (block, member) in (first..).zip(place.members().iter().copied()) {
            if member == own {
                build.copy(scratch(block, 1), output(source, 1));
            } else {
                build.send(member, scratch(block, 1));
            }
        }
    }
    build.finish(2)
}
