//! StragglAR: an all-reduce for a rank that is known to be late (Devraj et al., "Efficient
//! AllReduce with Stragglers", arXiv 2505.23523, 2025). The root of the spec is the late rank.
//!
//! Before the late rank arrives, the `n - 1` others reduce-scatter a vector of `n - 1` chunks among
//! themselves. After the arrival the late rank needs each of these sums, and all others need the
//! late rank's part of each. No port is idle in that time: in round `t` after the arrival the late
//! rank and one other complete chunk `t`, while the others spread the chunks of earlier rounds,
//! each chunk in as many rounds as doubling takes.
//!
//! # The pairing
//!
//! The paper constructs its schedule for powers of two and searches for the others. Both are closed
//! forms here. Let `2^a` ranks be the elements of the field GF(2^a) and `g` a generator of it; rank
//! 0 *feeds* the others. In round `t` every element `e` is paired with `e + gᵗ`, so the feeder is
//! paired with all others in turn: `gᵗ` is the *hub* of round `t`. The feeder sends chunk `t` to
//! the hub. The chunks that other elements send follow from their position relative to the hub:
//! with `v = e / gᵗ`, the *level* of `e` is the least `j` with `v` in the span of `g⁻¹ … g⁻ʲ`, and
//! `e` sends chunk `t - j`. The reason is that exactly the elements of level `j` hold chunk `t - j`
//! and nothing newer: dividing by `g` maps level `j` to level `j + 1`, and adding 1, which is the
//! pairing for `v`, maps all levels below `a` to level `a`, whose chunk is the oldest still in
//! flight. Each element thus sends its partner a chunk that the partner lacks, and only the hub has
//! nothing to send. A chunk is everywhere `a` rounds after it was fed (`a - 1` for the last, which
//! the feeder passes on).
//!
//! With a power of two ranks the late rank is the feeder, and the hub of round `t` has reduced
//! chunk `t` of the others: the two exchange their parts and both add. The whole takes
//! `n - 2 + a` rounds after the arrival, the minimum.
//!
//! Other numbers of ranks are divided into several such fields. The ranks that are not late form
//! *groups* of `2^a - 1` ranks, the largest first. The late rank feeds the smallest group, a round
//! after it received the others' sum. The hub of a group, which has nothing to send in its own,
//! feeds the next larger group, and the hub of the largest sends the late rank the sum that is due.
//! The schedule takes `n - 1 + Σa` rounds. [`rounds_after_arrival`] counts both cases.

#![forbid(unsafe_code)]

use super::build::{Builder, input, output, scratch};
use super::recursive_doubling;
use super::spec::{Schedule, Spec};

/// Maximum number of ranks: larger worlds gain little, as all others together need not wait for
/// one.
pub const WORLD_SIZE_MAX: u32 = 64;

/// Primitive polynomials over GF(2), by degree; bit `i` is the coefficient of `xⁱ`.
const PRIMITIVE: [u32; 7] = [0b1, 0b11, 0b111, 0b1011, 0b1_0011, 0b10_0101, 0b100_0011];

/// Returns the number of rounds from the first in which the late rank takes part to the last.
pub fn rounds_after_arrival(world_size: u32) -> u32 {
    Grouping::new(world_size).rounds()
}

/// Generates the schedule for two or more ranks; two ranks use recursive doubling.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    if spec.world_size == 2 {
        return recursive_doubling::all_reduce(spec);
    }
    let others = spec.world_size - 1;
    let groups = Grouping::new(spec.world_size);
    let mut build = Builder::vector(spec, others);
    let handed_over = u32::from(!groups.is_one());
    let arrival = others - 1 + handed_over;
    match spec.relative() {
        0 => late(&mut build, spec, &groups, arrival),
        place => {
            let member = PunctualRank {
                spec,
                groups: &groups,
                others,
                label: place - 1,
            };
            member.reduce_scatter(&mut build);
            member.spread(&mut build, arrival);
        }
    }
    build.finish(arrival + groups.rounds())
}

/// Adds the late rank's steps from its arrival on.
///
/// The late rank's own chunk is being sent while the others' sum of the chunk arrives. If both
/// happen in the same round, the sum waits in scratch memory, and is added while the messages of
/// the next round are in flight.
fn late(build: &mut Builder, spec: &Spec, groups: &Grouping, arrival: u32) {
    let chunks = spec.world_size - 1;
    let rank_of = |label: u32| spec.absolute(label + 1);
    let add = |build: &mut Builder, chunk: u32| {
        build.reduce(input(chunk, 1), scratch(chunk, 1), output(chunk, 1));
    };
    for round in 0..groups.rounds() {
        build.round(arrival + round);
        let exchanges = groups.is_one() && round < chunks;
        let owner = rank_of(groups.largest().hub(round));
        if exchanges {
            build.recv(owner, scratch(round, 1));
            build.send(owner, input(round, 1));
        } else if round < chunks {
            build.recv_reduce(owner, input(round, 1), output(round, 1));
        }
        if groups.is_one() && (1..=chunks).contains(&round) {
            add(build, round - 1);
        }
        let first = groups.smallest();
        if let Some(chunk) = first.fed(round, chunks).filter(|_| !exchanges) {
            build.send(rank_of(first.hub(round)), output(chunk, 1));
        }
    }
}

/// One of the ranks that are not late.
struct PunctualRank<'a> {
    spec: &'a Spec,
    groups: &'a Grouping,
    /// Number of ranks that are not late, which is also the number of chunks.
    others: u32,
    /// This rank's number among the ranks that are not late, counted from the late rank.
    label: u32,
}

impl PunctualRank<'_> {
    fn rank_of(&self, label: u32) -> u32 {
        self.spec.absolute(label % self.others + 1)
    }

    /// Reduces in a ring around all ranks that are not late, after which each holds the sum of its
    /// own chunk. Ranks that are not hubs of the largest group then send their sums to the hubs.
    fn reduce_scatter(&self, build: &mut Builder) {
        let (m, own) = (self.others, self.label);
        let (next, previous) = (self.rank_of(own + 1), self.rank_of(own + m - 1));
        let before = |by: u32| (own + 2 * m - by) % m;
        for round in 0..m - 1 {
            build.round(round);
            let (sent, received) = (before(round + 1), before(round + 2));
            // This rank's sum is being sent while the late rank's part arrives.
            let is_sent_on = received == own && self.groups.is_one();
            let into = if is_sent_on { scratch } else { output };
            build.recv_reduce(previous, input(received, 1), into(received, 1));
            let known = if round == 0 { input } else { output };
            build.send(next, known(sent, 1));
        }
        let hubs = self.groups.largest().size();
        build.round(m - 1);
        if own >= hubs {
            build.send(self.rank_of(own - hubs), output(own, 1));
        } else if own + hubs < m {
            build.recv(self.rank_of(own + hubs), output(own + hubs, 1));
        }
    }

    /// Adds the steps from the late rank's arrival on.
    fn spread(&self, build: &mut Builder, arrival: u32) {
        let late = self.spec.root;
        let (place, group) = self.groups.of(self.label);
        for round in 0..self.groups.rounds() {
            build.round(arrival + round);
            let standing = group.standing(self.label, round);
            if standing.is_hub() && self.groups.is_one() && round < self.others {
                build.recv_reduce(late, scratch(round, 1), output(round, 1));
                build.send(late, scratch(round, 1));
                continue;
            }
            let feeder = match place.checked_sub(1) {
                None => late,
                Some(before) => self.rank_of(self.groups.fields[before].hub(round)),
            };
            let partner = standing.partner.map_or(feeder, |label| self.rank_of(label));
            if let Some(chunk) = group.chunk(round, standing.partner_level, self.others) {
                build.recv(partner, output(chunk, 1));
            }
            if !standing.is_hub() {
                if let Some(chunk) = group.chunk(round, standing.level, self.others) {
                    build.send(partner, output(chunk, 1));
                }
                continue;
            }
            match self.groups.fields.get(place + 1) {
                Some(larger) => {
                    if let Some(chunk) = larger.fed(round, self.others) {
                        build.send(self.rank_of(larger.hub(round)), output(chunk, 1));
                    }
                }
                None if round < self.others => build.send(late, output(round, 1)),
                None => {}
            }
        }
    }
}

/// The groups of the ranks that are not late.
struct Grouping {
    /// The groups in the order in which chunks pass through them: the smallest first. Labels are
    /// counted from the largest.
    fields: Vec<FieldGroup>,
    rounds: u32,
}

impl Grouping {
    fn new(world_size: u32) -> Grouping {
        let others = world_size - 1;
        let mut fields = Vec::new();
        let mut first = 0;
        while first < others {
            let degree = (others - first + 1).ilog2();
            fields.push(FieldGroup::new(degree, first));
            first += (1 << degree) - 1;
        }
        fields.reverse();
        // A chunk must arrive a round before it is fed, unless it is exchanged.
        let mut delay = u32::from(fields.len() > 1);
        for field in &mut fields {
            field.delay = delay;
            delay += field.degree;
        }
        Grouping {
            rounds: (others + delay).saturating_sub(1),
            fields,
        }
    }

    fn is_one(&self) -> bool {
        self.fields.len() == 1
    }

    fn smallest(&self) -> &FieldGroup {
        &self.fields[0]
    }

    fn largest(&self) -> &FieldGroup {
        &self.fields[self.fields.len() - 1]
    }

    /// Returns the group of a label, and its number in the order of feeding.
    fn of(&self, label: u32) -> (usize, &FieldGroup) {
        let place = self.fields.iter().position(|field| field.first <= label);
        let place = place.expect("the largest group begins with label 0");
        (place, &self.fields[place])
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }
}

/// One group: the field's elements except 0, which is the group's feeder.
struct FieldGroup {
    degree: u32,
    /// The label of `g⁰`; that of `gˣ` is `x` more.
    first: u32,
    /// The round in which chunk 0 is fed.
    delay: u32,
    powers: Vec<u32>,
    /// The exponent of each element; that of 0 is unused.
    exponents: Vec<u32>,
}

/// The position of a rank in a round.
struct RoundPosition {
    level: u32,
    /// The label of the rank's partner; `None` for the hub, whose partner is the feeder.
    partner: Option<u32>,
    partner_level: u32,
}

impl RoundPosition {
    fn is_hub(&self) -> bool {
        self.partner.is_none()
    }
}

impl FieldGroup {
    fn new(degree: u32, first: u32) -> FieldGroup {
        let size = (1 << degree) - 1;
        let mut powers = vec![1];
        let mut exponents = vec![0; size as usize + 1];
        for exponent in 1..size {
            let shifted = powers[exponent as usize - 1] << 1;
            let reduced = shifted ^ (PRIMITIVE[degree as usize] * (shifted >> degree));
            powers.push(reduced);
            exponents[reduced as usize] = exponent;
        }
        FieldGroup {
            degree,
            first,
            delay: 0,
            powers,
            exponents,
        }
    }

    /// Returns the number of ranks.
    fn size(&self) -> u32 {
        (1 << self.degree) - 1
    }

    /// Returns the label of the round's hub.
    fn hub(&self, round: u32) -> u32 {
        self.first + round % self.size()
    }

    /// Returns the chunk that is fed in a round, if any.
    fn fed(&self, round: u32, chunks: u32) -> Option<u32> {
        self.chunk(round, 0, chunks)
    }

    /// Returns the chunk sent at a level in a round, if any. After all chunks were fed, only the
    /// last one is left to send.
    fn chunk(&self, round: u32, level: u32, chunks: u32) -> Option<u32> {
        let fed = round
            .checked_sub(self.delay)
            .filter(|fed| *fed < chunks + self.degree - 1)?;
        Some(fed.checked_sub(level)?.min(chunks - 1))
    }

    fn standing(&self, label: u32, round: u32) -> RoundPosition {
        let size = self.size();
        // The exponent relative to the hub.
        let exponent = (label - self.first + size - round % size) % size;
        let other = self.powers[exponent as usize] ^ 1;
        let partner_exponent = self.exponents[other as usize];
        let partner = (other != 0).then(|| self.first + (partner_exponent + round) % size);
        RoundPosition {
            level: self.level(exponent),
            partner,
            partner_level: partner.map_or(0, |_| self.level(partner_exponent)),
        }
    }

    /// Returns the level of the element with this exponent. Multiplied by `g^degree`, `g⁻ʲ` is bit
    /// `degree - j` of the polynomial.
    fn level(&self, exponent: u32) -> u32 {
        let scaled = self.powers[((exponent + self.degree) % self.size()) as usize];
        self.degree - scaled.trailing_zeros()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::check::{Slices, check, check_sliced, schedules};
    use crate::schedule::{Access, Action, Schedule};
    use crate::types::{Algorithm, Collective};

    fn spec(world_size: u32, late: u32) -> Spec {
        Spec {
            root: late,
            ..Spec::new(
                Collective::AllReduce,
                Algorithm::Stragglar,
                Access::Messages,
                world_size,
            )
        }
    }

    #[test]
    fn sums_are_exact_for_every_late_rank() {
        for world_size in 1..=WORLD_SIZE_MAX {
            let all: Vec<u32> = if world_size <= 17 {
                (0..world_size).collect()
            } else {
                vec![world_size * 5 / 7]
            };
            for late in all {
                for in_place in [false, true] {
                    if let Err(error) = check(&spec(world_size, late), in_place) {
                        panic!("{world_size} ranks, {late} late, in place {in_place}: {error}");
                    }
                }
            }
        }
    }

    #[test]
    fn overlapped_slices_do_not_wait_for_each_other_in_a_circle() {
        for world_size in [2, 3, 6, 8, 11, 16] {
            let all = schedules(&spec(world_size, 1)).unwrap();
            for distance in [1, 3] {
                check_sliced(&all, true, Slices { count: 4, distance }).unwrap();
            }
        }
    }

    #[test]
    fn after_the_arrival_it_takes_no_more_rounds_than_chunks_and_doubling_need() {
        for world_size in 3..=WORLD_SIZE_MAX {
            let late = world_size / 2;
            let schedule = Schedule::new(Spec {
                rank: late,
                ..spec(world_size, late)
            })
            .unwrap();
            let after = schedule.rounds - schedule.channels[0][0].round;
            assert_eq!(after, rounds_after_arrival(world_size));
            let least = world_size - 2 + world_size.next_power_of_two().ilog2();
            if world_size.is_power_of_two() {
                assert_eq!(after, least);
            } else {
                assert!(
                    (least..=least + 11).contains(&after),
                    "{world_size}: {after}"
                );
            }
        }
        assert_eq!([6, 12, 24, 48].map(rounds_after_arrival), [9, 17, 31, 57]);
    }

    #[test]
    fn no_rank_has_two_messages_of_a_kind_in_a_round() {
        for world_size in 2..=WORLD_SIZE_MAX {
            for schedule in schedules(&spec(world_size, 0)).unwrap() {
                let mut seen = std::collections::HashSet::new();
                for step in &schedule.channels[0] {
                    let is_send = match step.action {
                        Action::Send { .. } => true,
                        Action::Recv { .. } | Action::RecvReduce { .. } => false,
                        _ => continue,
                    };
                    assert!(seen.insert((is_send, step.round)), "{:?}", schedule.spec);
                }
            }
        }
    }
}
