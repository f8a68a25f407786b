//! Hosts, columns and leaders, from the perspective of one rank.

#![forbid(unsafe_code)]

use crate::schedule::action::RankRange;
use crate::schedule::spec::Spec;

/// The position of a rank in the two levels.
pub(super) struct TwoLevelPosition {
    /// The ranks of each host.
    pub hosts: Vec<Vec<u32>>,
    /// This rank's host.
    pub host: u32,
    /// This rank's index among its host's members.
    pub member: u32,
    pub columns: u32,
}

impl TwoLevelPosition {
    /// Returns the place with as many columns as possible.
    pub fn new(spec: &Spec) -> TwoLevelPosition {
        let hosts = spec.hosts.members(spec.world_size);
        let smallest = hosts.iter().map(Vec::len).min().unwrap_or(1);
        TwoLevelPosition::with_columns(spec, hosts, smallest as u32)
    }

    /// Returns the place with one column, whose leader on the root's host is the root.
    pub fn of_leaders(spec: &Spec) -> TwoLevelPosition {
        let mut hosts = spec.hosts.members(spec.world_size);
        let of_root = &mut hosts[spec.hosts.of(spec.root) as usize];
        of_root.sort_by_key(|member| *member != spec.root);
        TwoLevelPosition::with_columns(spec, hosts, 1)
    }

    fn with_columns(spec: &Spec, hosts: Vec<Vec<u32>>, columns: u32) -> TwoLevelPosition {
        let host = spec.hosts.of(spec.rank);
        let mut members = hosts[host as usize].iter();
        let member = members.position(|member| *member == spec.rank);
        TwoLevelPosition {
            member: member.expect("a rank is on its host") as u32,
            columns,
            host,
            hosts,
        }
    }

    pub fn host_count(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// Returns the ranks of this rank's host.
    pub fn members(&self) -> &[u32] {
        &self.hosts[self.host as usize]
    }

    /// Returns the number of ranks of the largest host.
    pub fn largest(&self) -> u32 {
        let sizes = self.hosts.iter().map(Vec::len);
        sizes.max().unwrap_or(1) as u32
    }

    /// Whether each host has as many members as there are columns, a power of two.
    pub fn has_paired_members(&self) -> bool {
        let are_equal = self.largest() == self.columns;
        let mut sizes = self.hosts.iter().map(|members| members.len() as u32);
        are_equal && self.columns.is_power_of_two() && sizes.all(|size| size == self.columns)
    }

    /// Returns the rounds of an exchange within the hosts: 1, or 0 if each host has one rank.
    pub fn local_rounds(&self) -> u32 {
        u32::from(self.largest() > 1)
    }

    /// Returns the column that this rank leads.
    pub fn column(&self) -> Option<u32> {
        (self.member < self.columns).then_some(self.member)
    }

    /// Returns the leaders of a column, by host.
    pub fn counterparts(&self, column: u32) -> Vec<u32> {
        let leaders = self.hosts.iter().map(|members| members[column as usize]);
        leaders.collect()
    }

    /// Returns the leader of a column on the host `by` places after this one.
    pub fn counterpart(&self, column: u32, by: u32) -> u32 {
        self.hosts[self.host_after(by) as usize][column as usize]
    }

    /// Returns the columns and their leaders on this host.
    pub fn leaders(&self) -> impl Iterator<Item = (u32, u32)> {
        (0..self.columns).zip(self.members().iter().copied())
    }

    /// Returns the leader of the column to which this rank's block belongs.
    pub fn leader(&self) -> u32 {
        self.members()[(self.member % self.columns) as usize]
    }

    /// Returns the host `by` places before this one, around the ring.
    pub fn host_before(&self, by: u32) -> u32 {
        (self.host + 2 * self.host_count() - by) % self.host_count()
    }

    /// Whether this rank is on the root's host.
    pub fn is_with_root(&self, spec: &Spec) -> bool {
        self.host == spec.hosts.of(spec.root)
    }

    /// Returns the rounds of an exchange between the root and the leaders of its host: 1, or 0 if
    /// the root is the only leader.
    pub fn rounds_with_root(&self, spec: &Spec) -> u32 {
        let members = &self.hosts[spec.hosts.of(spec.root) as usize];
        u32::from(members[..self.columns as usize] != [spec.root])
    }

    /// Returns the host `by` places after this one.
    pub fn host_after(&self, by: u32) -> u32 {
        (self.host + by) % self.host_count()
    }

    /// Returns this rank's messages, and their peers, in which the root and the leaders of other
    /// hosts exchange those hosts' blocks.
    pub fn runs_with_root(&self, spec: &Spec) -> Vec<(u32, RankRange)> {
        let of_host = |host: u32, peer: u32| {
            let runs = self.runs(host, 1).into_iter();
            runs.map(move |run| (peer, run))
        };
        if self.column().is_none() {
            Vec::new()
        } else if spec.is_root() {
            let others = (1..self.host_count()).map(|by| self.host_after(by));
            others
                .flat_map(|host| of_host(host, self.hosts[host as usize][0]))
                .collect()
        } else {
            of_host(self.host, spec.root).collect()
        }
    }

    /// Returns the ranks of the other hosts, nearest host before this one first, each with its
    /// agent: the member of this host that acts for it. The members take turns.
    pub fn agents(&self) -> impl Iterator<Item = (u32, u32)> {
        let hosts = (1..self.host_count()).map(|by| self.host_before(by));
        let sources = hosts.flat_map(|host| self.hosts[host as usize].iter().copied());
        sources.zip(self.members().iter().copied().cycle())
    }

    /// Returns the other hosts, nearest host after this one first, each with this rank's agent
    /// there, as [`agents`](TwoLevelPosition::agents) on that host defines it.
    pub fn agents_elsewhere(&self) -> impl Iterator<Item = (u32, u32)> {
        let mut turn = self.member as usize;
        (1..self.host_count()).map(move |by| {
            let host = self.host_after(by);
            let members = &self.hosts[host as usize];
            let agent = members[turn % members.len()];
            turn += members.len();
            (host, agent)
        })
    }

    /// Returns the ranks of `count` hosts from `first` on, around the ring, in runs of consecutive
    /// ranks.
    pub fn runs(&self, first: u32, count: u32) -> Vec<RankRange> {
        let hosts = (first..first + count).map(|host| host % self.host_count());
        let mut ranks: Vec<_> = hosts.flat_map(|host| &self.hosts[host as usize]).collect();
        ranks.sort_unstable();
        let runs = ranks.chunk_by(|one, next| **one + 1 == **next);
        runs.map(|run| RankRange {
            first: *run[0],
            count: run.len() as u32,
        })
        .collect()
    }

    /// Returns the other members of this host with their indices, the one before this rank first.
    pub fn others(&self) -> Vec<(u32, u32)> {
        let members = self.members();
        let size = members.len() as u32;
        let numbers = (1..size).map(|by| (self.member + size - by) % size);
        numbers
            .map(|number| (number, members[number as usize]))
            .collect()
    }

    /// Returns the [`others`](TwoLevelPosition::others) that lead columns.
    pub fn other_leaders(&self) -> Vec<(u32, u32)> {
        let mut others = self.others();
        others.retain(|(number, _)| *number < self.columns);
        others
    }

    /// Returns the ranks of a host whose blocks belong to a column.
    pub fn belong(&self, host: u32, column: u32) -> impl Iterator<Item = u32> {
        let members = &self.hosts[host as usize];
        let members = members.iter().skip(column as usize);
        members.step_by(self.columns as usize).copied()
    }

    /// Returns all blocks of a column.
    pub fn blocks(&self, column: u32) -> impl Iterator<Item = u32> {
        (0..self.host_count()).flat_map(move |host| self.belong(host, column))
    }
}
