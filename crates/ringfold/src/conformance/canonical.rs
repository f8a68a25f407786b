//! Tests that every method that the registry ([`Order`]) calls canonical gives the bits of the
//! canonical tree: collectives × types × operations × 1 to 16 ranks, in published and registered
//! memory and over messages, on one host and on hosts of equal blocks.
//!
//! The values differ so much in magnitude that nearly every other order gives other bits.

use super::tests::{shm, tcp};
use super::{Case, CaseBuffers, EngineWorld, ways};
use crate::element::convert;
use crate::memory::{Owned, Region};
use crate::random::SplitMix64;
use crate::schedule::{Groups, Spec};

#[cfg(doc)]
use crate::schedule::Order;
use crate::transport::local::{Local, rendezvous};
use crate::transport::routes;
use crate::types::{Access, Collective, DType, Op};

const SEED: u64 = 20_261_128;

/// Numbers of elements: one, a slot's head, several slices of odd lengths.
const COUNTS: [usize; 3] = [1, 77, 1301];

const COLLECTIVES: [Collective; 3] = [
    Collective::AllReduce,
    Collective::Reduce,
    Collective::ReduceScatter,
];

/// A type, an operation, and the conversions to the type in which values are combined and back.
struct Kind {
    dtype: DType,
    op: Op,
    widen: fn(&[u8]) -> f64,
    narrow: fn(f64) -> Vec<u8>,
    join: fn(f64, f64) -> f64,
}

fn f32_of(bytes: &[u8]) -> f64 {
    f64::from(f32::from_le_bytes(bytes.try_into().expect("four bytes")))
}

fn to_f32(value: f64) -> Vec<u8> {
    (value as f32).to_le_bytes().to_vec()
}

fn u16_of(bytes: &[u8]) -> u16 {
    u16::from_le_bytes(bytes.try_into().expect("two bytes"))
}

fn bf16_of(bytes: &[u8]) -> f64 {
    f64::from(convert::bf16_to_f32(u16_of(bytes)))
}

fn to_bf16(value: f64) -> Vec<u8> {
    convert::f32_to_bf16(value as f32).to_le_bytes().to_vec()
}

/// The sum as `f32` computes it.
fn sum(a: f64, b: f64) -> f64 {
    f64::from(a as f32 + b as f32)
}

fn product(a: f64, b: f64) -> f64 {
    f64::from(a as f32 * b as f32)
}

const KINDS: [Kind; 8] = [
    Kind {
        dtype: DType::F32,
        op: Op::Sum,
        widen: f32_of,
        narrow: to_f32,
        join: sum,
    },
    Kind {
        dtype: DType::F32,
        op: Op::Prod,
        widen: f32_of,
        narrow: to_f32,
        join: product,
    },
    Kind {
        dtype: DType::F32,
        op: Op::Max,
        widen: f32_of,
        narrow: to_f32,
        join: f64::max,
    },
    Kind {
        dtype: DType::F64,
        op: Op::Sum,
        widen: |bytes| f64::from_le_bytes(bytes.try_into().expect("eight bytes")),
        narrow: |value| value.to_le_bytes().to_vec(),
        join: |a, b| a + b,
    },
    Kind {
        dtype: DType::F16,
        op: Op::Sum,
        widen: |bytes| f64::from(convert::f16_to_f32(u16_of(bytes))),
        narrow: |value| convert::f32_to_f16(value as f32).to_le_bytes().to_vec(),
        join: sum,
    },
    Kind {
        dtype: DType::BF16,
        op: Op::Sum,
        widen: bf16_of,
        narrow: to_bf16,
        join: sum,
    },
    Kind {
        dtype: DType::BF16,
        op: Op::Min,
        widen: bf16_of,
        narrow: to_bf16,
        join: f64::min,
    },
    Kind {
        dtype: DType::F8E5M2,
        op: Op::Sum,
        widen: |bytes| f64::from(convert::e5m2_to_f32(bytes[0])),
        narrow: |value| vec![convert::f32_to_e5m2(value as f32)],
        join: sum,
    },
];

impl Kind {
    /// Returns the stored element `index` of `rank`.
    fn value(&self, rank: usize, index: usize) -> Vec<u8> {
        let place = (rank as u64) << 32 | index as u64;
        let bits = SplitMix64(SEED ^ place).next_u64();
        let fraction = (bits >> 40) as f64 / f64::from(1 << 23) - 1.0;
        let power = match self.op {
            // Products of sixteen stay in range.
            Op::Prod => bits % 3,
            _ => bits % 13,
        };
        (self.narrow)((1.5 + fraction / 2.0) * f64::from(1 << power) / 32.0)
    }

    /// Returns element `index` of the result among `ranks`, from the definition.
    fn combined(&self, ranks: usize, index: usize) -> Vec<u8> {
        let values: Vec<f64> = (0..ranks)
            .map(|rank| (self.widen)(&self.value(rank, index)))
            .collect();
        (self.narrow)(tree(&values, self.join))
    }
}

/// The canonical tree, as its definition says.
fn tree(values: &[f64], join: fn(f64, f64) -> f64) -> f64 {
    if let [only] = values {
        return *only;
    }
    let (first, rest) = values.split_at(values.len().next_power_of_two() / 2);
    join(tree(first, join), tree(rest, join))
}

/// The inputs of all ranks, and the combination of all their elements, from the definition.
struct Values {
    inputs: Vec<Vec<u8>>,
    combined: Vec<u8>,
}

impl Values {
    fn new(kind: &Kind, ranks: usize, count: usize) -> Values {
        let of_rank = |rank| (0..count).flat_map(move |index| kind.value(rank, index));
        Values {
            inputs: (0..ranks).map(|rank| of_rank(rank).collect()).collect(),
            combined: (0..count)
                .flat_map(|index| kind.combined(ranks, index))
                .collect(),
        }
    }

    /// Returns the memory of `rank`'s call, with one element more at the start, and its result.
    fn buffers(&self, case: &Case, rank: usize) -> CaseBuffers {
        let (input, size) = (&self.inputs[rank], case.dtype.size_bytes());
        let each = input.len() / self.inputs.len();
        let due = match case.collective {
            Collective::ReduceScatter => rank * each..(rank + 1) * each,
            Collective::Reduce if rank != case.root => 0..0,
            _ => 0..input.len(),
        };
        let expected = self.combined[due].to_vec();
        let at = |bytes: usize| size..size + bytes;
        let memory = vec![
            Owned::zeroed(size + input.len()),
            Owned::zeroed(size + expected.len()),
        ];
        memory[0].region().part(at(input.len())).write(input);
        CaseBuffers {
            input: at(input.len()),
            output: at(expected.len()),
            memory,
            expected,
        }
    }
}

/// Makes calls of `counts` by every canonical way of `world`, whose ranks are on `hosts`. Returns
/// their number.
fn check(
    mut world: EngineWorld,
    hosts: &Groups,
    counts: &[usize],
    is_wanted: impl Fn(Access) -> bool,
) -> usize {
    let ranks = world.world_size();
    let mut made = 0;
    for (collective, kind) in COLLECTIVES
        .into_iter()
        .flat_map(|collective| KINDS.iter().map(move |kind| (collective, kind)))
    {
        let given = |count: &usize| match collective {
            Collective::ReduceScatter => count * ranks,
            _ => *count,
        };
        let values: Vec<_> = counts
            .iter()
            .map(|count| Values::new(kind, ranks, given(count)))
            .collect();
        for (algorithm, access) in ways(collective, ranks) {
            let spec = Spec {
                hosts: hosts.clone(),
                is_reproducible: true,
                ..Spec::new(collective, algorithm, access, ranks as u32)
            };
            if !world.serves((algorithm, access))
                || !is_wanted(access)
                || !spec.order().is_canonical(kind.op, kind.dtype)
            {
                continue;
            }
            for (number, (count, values)) in counts.iter().zip(&values).enumerate() {
                let case = Case {
                    dtype: kind.dtype,
                    op: kind.op,
                    root: (made + 1) % ranks,
                    channels: match (collective, access) {
                        (Collective::AllReduce, Access::Messages) => 1 + number % 2,
                        _ => 1,
                    },
                    is_reproducible: true,
                    ..Case::new(collective, algorithm, access, *count as u64)
                };
                make(&mut world, &case, values);
                made += 1;
            }
        }
    }
    made
}

/// Makes a call of all ranks and compares the results.
fn make(world: &mut EngineWorld, case: &Case, values: &Values) {
    let ranks = world.world_size();
    let buffers: Vec<_> = (0..ranks).map(|rank| values.buffers(case, rank)).collect();
    let mut registrations = Vec::new();
    if case.access == Access::Registered {
        for (rank, buffers) in buffers.iter().enumerate() {
            let memory: Vec<Region> = buffers.memory.iter().map(Owned::region).collect();
            registrations.extend(
                memory
                    .into_iter()
                    .map(|memory| world.register(rank, memory)),
            );
        }
    }
    world
        .run_on(&vec![case.clone(); ranks], &buffers)
        .unwrap_or_else(|error| panic!("{ranks} ranks, {case:?}: {error}"));
    registrations
        .into_iter()
        .for_each(|number| world.unregister(number));
}

/// Checks ranks of one host, in published and in registered memory.
fn check_in_shared_memory(ranks: usize, counts: &[usize]) -> usize {
    let (staged, registered) = (
        EngineWorld::new(shm(ranks), SEED),
        EngineWorld::new(shm(ranks), SEED),
    );
    let is_staged = |access| access == Access::Staged;
    let published = check(staged, &Groups::ONE, counts, is_staged);
    published.min(check(registered.registered(), &Groups::ONE, counts, |_| {
        true
    }))
}

/// Checks messages between ranks on these hosts, within a host through rings.
fn check_on_hosts(of_ranks: &[usize], counts: &[usize]) -> usize {
    let hosts = Groups::new(of_ranks);
    let world = EngineWorld::new(routes::tests::ranks_on(of_ranks), SEED).on_hosts(&hosts);
    check(world, &hosts, counts, by_messages)
}

fn by_messages(access: Access) -> bool {
    access == Access::Messages
}

#[test]
fn results_in_shared_memory_are_the_canonical_tree() {
    for ranks in [1, 2, 3, 4, 5, 6, 7, 8, 11, 16] {
        assert!(check_in_shared_memory(ranks, &COUNTS) > 100);
    }
}

#[test]
fn results_by_messages_are_the_canonical_tree() {
    for ranks in 1..=16usize {
        let sizes: &[usize] = match ranks {
            6 | 8 | 11 | 16 => &[1, 2, 4],
            _ => &[1],
        };
        for size in sizes {
            let of_ranks: Vec<usize> = (0..ranks).map(|rank| rank / size).collect();
            let hosts = Groups::new(&of_ranks);
            let world = EngineWorld::new::<Local>(rendezvous(ranks), SEED).on_hosts(&hosts);
            let made = check(world, &hosts, &COUNTS, by_messages);
            assert!(made > 100, "{ranks} ranks");
        }
    }
    for ranks in [3, 4, 7] {
        let world = EngineWorld::new(tcp(ranks), SEED);
        assert!(check(world, &Groups::ONE, &COUNTS, by_messages) > 100);
    }
    assert!(check_on_hosts(&[0, 0, 1, 1], &COUNTS) > 100);
    assert!(check_on_hosts(&[0, 0, 1, 1, 2, 2, 3], &COUNTS) > 100);
    assert!(check_on_hosts(&[0, 0, 0, 0, 1, 1], &COUNTS) > 100);
}

#[test]
#[ignore = "deep: takes minutes"]
fn results_of_a_million_elements_are_the_canonical_tree() {
    const MILLION: [usize; 1] = [1_000_003];
    for ranks in [2, 5, 8] {
        assert!(check_in_shared_memory(ranks, &MILLION) > 30);
    }
    let world = EngineWorld::new(tcp(4), SEED);
    assert!(check(world, &Groups::ONE, &MILLION, by_messages) > 30);
    assert!(check_on_hosts(&[0, 0, 1, 1], &MILLION) > 30);
    assert!(check_on_hosts(&[0, 0, 1, 1, 2], &MILLION) > 30);
    assert!(check_on_hosts(&[0, 0, 0, 0, 1, 1, 1, 1], &MILLION) > 30);
}

#[test]
fn blocks_of_values_are_the_values_of_ranks() {
    let kind = &KINDS[0];
    let values: Vec<f64> = (0..16)
        .map(|rank| (kind.widen)(&kind.value(rank, 5)))
        .collect();
    for size in [1, 2, 4, 8, 16] {
        for count in (size..=16).step_by(size) {
            let blocks: Vec<f64> = values[..count]
                .chunks(size)
                .map(|block| tree(block, kind.join))
                .collect();
            assert_eq!(tree(&blocks, kind.join), tree(&values[..count], kind.join));
        }
    }
}
