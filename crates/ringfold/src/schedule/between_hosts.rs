//! Two levels over messages: within a host first, then between hosts.
//!
//! The ranks are in groups of any sizes, the hosts. As many *columns* as the smallest host has
//! ranks divide the data; member `c` of each host leads column `c` for it, and the leaders of a
//! column are *counterparts*. Members of a host give each leader what it needs of them; the
//! counterparts exchange it between the hosts, each column by a ring of its own; and each leader
//! gives the result to its host. So a host's cable carries what one rank a host would send, however
//! many its ranks are, and all leaders work at the same time.
//!
//! `leader` is the same with one column, and pairs at distances that are powers of two in place of
//! the ring: for what is small.
//!
//! Source: the multi-leader hierarchies of Bayatpour et al., *Scalable reduction collectives with
//! data partitioning-based multi-leader design*, 2017; with one leader, Graham et al., *Cheetah: a
//! framework for scalable hierarchical collective operations*, 2011.

#![forbid(unsafe_code)]

use std::iter;

use super::action::{Buffer, Span};
use super::build::{Builder, input, output, scratch};
use super::spec::{Schedule, Spec};
use super::{recursive_doubling, ring};
use crate::types::{Access, Collective};

/// Where a rank is in the two levels.
struct Place {
    /// The ranks of each host.
    hosts: Vec<Vec<u32>>,
    /// This rank's host.
    host: u32,
    /// Its number there.
    member: u32,
    columns: u32,
}

impl Place {
    /// With as many columns as there can be, `columns_max` at most.
    fn new(spec: &Spec, columns_max: u32) -> Place {
        let hosts = spec.hosts.members(spec.world_size);
        let host = spec.hosts.of(spec.rank);
        let members = &hosts[host as usize];
        let smallest = hosts.iter().map(Vec::len).min().unwrap_or(1) as u32;
        Place {
            member: members.partition_point(|member| *member < spec.rank) as u32,
            columns: smallest.min(columns_max),
            host,
            hosts,
        }
    }

    fn host_count(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// The ranks of this rank's host.
    fn members(&self) -> &[u32] {
        &self.hosts[self.host as usize]
    }

    /// The ranks of the largest host.
    fn largest(&self) -> u32 {
        let sizes = self.hosts.iter().map(Vec::len);
        sizes.max().unwrap_or(1) as u32
    }

    /// The rounds of an exchange within the hosts: one, or none where all ranks are alone.
    fn local_rounds(&self) -> u32 {
        u32::from(self.largest() > 1)
    }

    /// The column that this rank leads.
    fn column(&self) -> Option<u32> {
        (self.member < self.columns).then_some(self.member)
    }

    /// The leaders of a column, by host.
    fn counterparts(&self, column: u32) -> Vec<u32> {
        let leaders = self.hosts.iter().map(|members| members[column as usize]);
        leaders.collect()
    }

    /// The leader of a column on the host `by` places after this one.
    fn counterpart(&self, column: u32, by: u32) -> u32 {
        let host = (self.host + by) % self.host_count();
        self.hosts[host as usize][column as usize]
    }

    /// The columns and their leaders on this host.
    fn leaders(&self) -> impl Iterator<Item = (u32, u32)> {
        (0..self.columns).zip(self.members().iter().copied())
    }

    /// The leader of the column to which this rank's block belongs.
    fn leader(&self) -> u32 {
        self.members()[(self.member % self.columns) as usize]
    }

    /// The host `by` places before this one, around the ring.
    fn host_before(&self, by: u32) -> u32 {
        (self.host + 2 * self.host_count() - by) % self.host_count()
    }

    /// How many places after `host` this one is.
    fn hops_from(&self, host: u32) -> u32 {
        self.host_before(host)
    }

    /// The other members of this host with their numbers, the one before this rank first.
    fn others(&self) -> Vec<(u32, u32)> {
        let members = self.members();
        let size = members.len() as u32;
        let numbers = (1..size).map(|by| (self.member + size - by) % size);
        numbers
            .map(|number| (number, members[number as usize]))
            .collect()
    }

    /// Those of them that lead columns.
    fn other_leaders(&self) -> Vec<(u32, u32)> {
        let mut others = self.others();
        others.retain(|(number, _)| *number < self.columns);
        others
    }

    /// The ranks of a host whose blocks belong to a column.
    fn belong(&self, host: u32, column: u32) -> impl Iterator<Item = u32> {
        let members = &self.hosts[host as usize];
        let members = members.iter().skip(column as usize);
        members.step_by(self.columns as usize).copied()
    }

    /// All blocks of a column.
    fn blocks(&self, column: u32) -> impl Iterator<Item = u32> {
        (0..self.host_count()).flat_map(move |host| self.belong(host, column))
    }
}

/// Has each leader combine the chunks of its column within the host: `chunks` are a column's in the
/// input, and `into` is where a chunk goes when so many members' are still to be combined with it.
/// One round.
///
/// Each receive of a chunk waits for the one before; the sends are issued before the first wait,
/// otherwise no rank would ever receive.
fn reduce_columns<I: Iterator<Item = Span>>(
    build: &mut Builder,
    place: &Place,
    chunks: impl Fn(u32) -> I,
    into: impl Fn(Span, usize) -> Span,
) {
    let others = place.others();
    for (number, (_, from)) in others.iter().enumerate() {
        let left = others.len() - 1 - number;
        for chunk in place.column().into_iter().flat_map(&chunks) {
            let known = match number {
                0 => chunk,
                _ => into(chunk, left + 1),
            };
            build.recv_reduce(*from, known, into(chunk, left));
        }
        if number == 0 {
            for (column, leader) in place.other_leaders().into_iter().rev() {
                chunks(column).for_each(|chunk| build.send(leader, chunk));
            }
        }
    }
}

/// Gives each member of the host the columns that its leaders have, except one that has them
/// already. One round.
fn gather_columns(
    build: &mut Builder,
    place: &Place,
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

/// Reduce-scatter within the hosts, an all-reduce of each column between them, all-gather within
/// the hosts.
fn all_reduce_by(spec: &Spec, columns_max: u32, between: fn(&Spec) -> Schedule) -> Schedule {
    let place = Place::new(spec, columns_max);
    let counterparts = place.host_count();
    let (collective, access) = (Collective::AllReduce, Access::Messages);
    let inner = Spec::new(collective, spec.algorithm, access, counterparts).of_rank(place.host);
    let exchange = (counterparts > 1).then(|| between(&inner));
    let parts = exchange
        .as_ref()
        .map_or(1, |exchange| exchange.input.chunks());
    let rounds = exchange.as_ref().map_or(0, |exchange| exchange.rounds);
    let span = |buffer: fn(u32, u32) -> Span, column: u32| buffer(column * parts, parts);
    let local_rounds = place.local_rounds();

    let mut build = Builder::vector(spec, place.columns * parts);
    let input_of = |column| iter::once(span(input, column));
    reduce_columns(&mut build, &place, input_of, |chunk, _| {
        output(chunk.first, chunk.len)
    });
    if let (Some(column), Some(exchange)) = (place.column(), exchange) {
        let peers = place.counterparts(column);
        // What was reduced already is in the output.
        let is_alone = place.members().len() == 1;
        let moved = |span: Span| Span {
            buffer: match span.buffer {
                Buffer::Input if !is_alone => Buffer::Output,
                buffer => buffer,
            },
            first: span.first + column * parts,
            ..span
        };
        for step in &exchange.channels[0] {
            build.round(local_rounds + step.round);
            build.push(step.action.with_spans(moved).among(&peers));
        }
    }
    if local_rounds > 0 {
        build.round(local_rounds + rounds);
        gather_columns(&mut build, &place, |column| span(output, column), |_| false);
    }
    build.finish(2 * local_rounds + rounds)
}

/// A ring of the counterparts of each column.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    all_reduce_by(spec, u32::MAX, |inner| ring::ALL_REDUCE.whole(inner))
}

/// One column, which its leaders reduce by recursive doubling.
pub(super) fn all_reduce_by_leaders(spec: &Spec) -> Schedule {
    all_reduce_by(spec, 1, recursive_doubling::all_reduce)
}

/// The columns go from the root to the leaders of its host, then from host to host, and in each to
/// all members.
pub(super) fn broadcast(spec: &Spec) -> Schedule {
    let place = Place::new(spec, u32::MAX);
    let (hosts, columns) = (place.host_count(), place.columns);
    let hop = place.hops_from(spec.hosts.of(spec.root));
    let mut build = Builder::vector(spec, columns);
    let known = if spec.is_root() { input } else { output };
    if spec.is_root() {
        for (column, leader) in place.leaders().filter(|(_, leader)| *leader != spec.root) {
            build.send(leader, input(column, 1));
        }
        build.copy(input(0, columns), output(0, columns));
    } else if let (0, Some(column)) = (hop, place.column()) {
        build.recv(spec.root, output(column, 1));
    }
    if let Some(column) = place.column() {
        if hop > 0 {
            build.round(hop);
            build.recv(place.counterpart(column, hosts - 1), output(column, 1));
        }
        if hop + 1 < hosts {
            build.round(hop + 1);
            build.send(place.counterpart(column, 1), known(column, 1));
        }
    }
    if place.local_rounds() > 0 {
        build.round(hosts);
        let column = |column| known(column, 1);
        gather_columns(&mut build, &place, column, |rank| rank == spec.root);
    }
    build.finish(hosts + place.local_rounds())
}

/// Each column is reduced within the hosts, then from host to host towards the root's, whose
/// leaders give it to the root.
pub(super) fn reduce(spec: &Spec) -> Schedule {
    let place = Place::new(spec, u32::MAX);
    let (hosts, first) = (place.host_count(), place.local_rounds());
    let hop = place.hops_from(spec.hosts.of(spec.root));
    let result = spec.result();
    let mut build = Builder::vector(spec, place.columns);
    let input_of = |column| iter::once(input(column, 1));
    reduce_columns(&mut build, &place, input_of, |chunk, _| {
        result(chunk.first, 1)
    });
    if let Some(column) = place.column() {
        let mut known = match place.members().len() {
            1 => input,
            _ => result,
        };
        if hop + 1 < hosts {
            build.round(first + hosts - 2 - hop);
            let from = place.counterpart(column, 1);
            build.recv_reduce(from, known(column, 1), result(column, 1));
            known = result;
        }
        build.round(first + hosts - 1 - hop);
        if hop > 0 {
            build.send(place.counterpart(column, hosts - 1), known(column, 1));
        } else if !spec.is_root() {
            build.send(spec.root, known(column, 1));
        }
    }
    if spec.is_root() {
        build.round(first + hosts - 1);
        for (column, leader) in place.leaders().filter(|(_, leader)| *leader != spec.root) {
            build.recv(leader, output(column, 1));
        }
    }
    build.finish(first + hosts)
}

/// The leader of a block's column combines it within the host; counterparts pass it on, each time
/// combined with their own, to its rank's host, where its leader gives it to its rank.
pub(super) fn reduce_scatter(spec: &Spec) -> Schedule {
    let place = Place::new(spec, u32::MAX);
    let (hosts, first) = (place.host_count(), place.local_rounds());
    let own_rank = spec.rank;
    let last_of_ring = first + hosts - 1;
    let mut build = Builder::blocks(spec, spec.world_size, 1);
    // Where a combined block goes.
    let into = |block: u32, is_last: bool| match block == own_rank && is_last {
        true => output(0, 1),
        false => scratch(block, 1),
    };
    let input_of = |column| place.blocks(column).map(|block| input(block, 1));
    reduce_columns(&mut build, &place, input_of, |chunk, left| {
        into(chunk.first, hosts == 1 && left == 0)
    });
    let known = match place.members().len() {
        1 => input,
        _ => scratch,
    };
    if let Some(own) = place.column() {
        let (previous, next) = (place.counterpart(own, hosts - 1), place.counterpart(own, 1));
        let mut sent_from: fn(u32, u32) -> Span = known;
        for round in 0..hosts - 1 {
            build.round(first + round);
            for block in place.belong(place.host_before(round + 2), own) {
                let is_last = round == hosts - 2;
                build.recv_reduce(previous, known(block, 1), into(block, is_last));
            }
            for block in place.belong(place.host_before(round + 1), own) {
                build.send(next, sent_from(block, 1));
            }
            sent_from = scratch;
        }
    }
    build.round(last_of_ring);
    match place.column() {
        Some(own) => {
            for block in place
                .belong(place.host, own)
                .filter(|block| *block != own_rank)
            {
                build.send(block, scratch(block, 1));
            }
        }
        None => build.recv(place.leader(), output(0, 1)),
    }
    build.finish(last_of_ring + 1)
}

/// Members of a host exchange their blocks; counterparts pass theirs around the hosts, and each
/// gives its host what has come.
pub(super) fn all_gather(spec: &Spec) -> Schedule {
    let place = Place::new(spec, u32::MAX);
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
    // In each round the blocks of another host come, and go to the members in the next.
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

/// All members notify the leader of their host, the leaders each other, and the leader its host.
///
/// The chunks hold no elements. They are there so that a send waits for what must come before it:
/// what members send has a chunk each, and a leader's first message to another has all of these.
pub(super) fn barrier(spec: &Spec) -> Schedule {
    let place = Place::new(spec, 1);
    let hosts = place.host_count();
    let depth = hosts.next_power_of_two().trailing_zeros();
    // The length of the message that tells of a whole host.
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
