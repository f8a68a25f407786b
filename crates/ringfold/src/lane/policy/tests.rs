//! Decisions, as ranks send and use them.

use super::*;
use crate::memory::Region;
use crate::types::DType;

const SLOT_BYTES: u64 = 1 << 20;
const ONE_SHOT_BYTES: u64 = 140_000;

fn request(collective: Collective, count: u64) -> Request {
    let counts = Counts::Even(count);
    Request::new(collective, DType::F32, counts, Region::EMPTY, Region::EMPTY)
}

/// The policy for four ranks whose host takes so long for each byte of a call.
fn policy(us_per_byte: f64, is_direct: bool, reducer: Reducer) -> Policy {
    policy_of(DeviceConstants::default(), us_per_byte, is_direct, reducer)
}

/// The same for devices with these constants.
fn policy_of(
    constants: DeviceConstants,
    us_per_byte: f64,
    is_direct: bool,
    reducer: Reducer,
) -> Policy {
    let host_us = |_, bytes| 1.0 + us_per_byte * bytes as f64;
    let setting = Setting {
        shape: Shape {
            ranks: 4,
            ranks_per_device: 1,
            depth: 4,
        },
        constants,
        slot_bytes: SLOT_BYTES,
        slice_bytes: None,
        is_direct,
        one_shot_bytes: if is_direct { ONE_SHOT_BYTES } else { 0 },
        host_us: &host_us,
    };
    Policy::decide(&setting, reducer)
}

#[test]
fn a_policy_survives_its_words() {
    let policy = policy(1e-4, false, Reducer::Auto);
    let words = policy.words();
    assert_eq!(words.len(), Policy::WORDS);
    let read = Policy::from_words(&words, SLOT_BYTES, 4).expect("a policy");
    assert_eq!(read.choices, policy.choices);
    let refused = |words: &[u64], slot_bytes| {
        let read = Policy::from_words(words, slot_bytes, 4);
        assert!(
            matches!(read, Err(Error::Corrupt { peer: 0, .. })),
            "{read:?}"
        );
    };
    refused(&words[1..], SLOT_BYTES);
    refused(&words, SLOT_BYTES / 2);
    for (index, value) in [(0, 4), (1, 0), (2, SLOT_BYTES + 1), (6, 8)] {
        let mut spoiled = words.clone();
        spoiled[index] = value;
        refused(&spoiled, SLOT_BYTES);
    }
}

#[test]
fn devices_combine_large_calls_where_cores_are_slow() {
    let folds = |us_per_byte, reducer| {
        let policy = policy(us_per_byte, true, reducer);
        let folds = |count| policy.is_folded(&request(Collective::AllReduce, count));
        [1 << 10, 16 << 20].map(folds)
    };
    // 50 GB/s, and 0.5.
    assert_eq!(folds(2e-5, Reducer::Auto), [false, false]);
    assert_eq!(folds(2e-3, Reducer::Auto), [false, true]);
    assert_eq!(folds(2e-3, Reducer::Host), [false, false]);
    assert_eq!(folds(2e-5, Reducer::Device), [true, true]);
    // What the host moves is not faster where it is slow.
    let moved = policy(2e-3, false, Reducer::Auto);
    assert!(!moved.folds());
}

#[test]
fn one_kernel_does_small_calls_where_ranks_meet_and_nothing_is_faster() {
    let by_one_kernel = |policy: &Policy, collective, bytes: u64| {
        policy.is_one_shot(&request(collective, bytes / 4))
    };
    let largest = |policy: &Policy| {
        let sizes = (2..=40).map(|log2| 1 << log2);
        let is_last = |bytes: &u64| by_one_kernel(policy, Collective::AllReduce, *bytes);
        sizes.filter(is_last).max().unwrap_or(0)
    };
    // The class of the largest call that fits; calls beyond that do not, and are cut.
    for reducer in [Reducer::Auto, Reducer::Device] {
        let policy = policy(2e-5, true, reducer);
        assert_eq!(largest(&policy), ONE_SHOT_BYTES.next_power_of_two());
        assert!(!by_one_kernel(&policy, Collective::AllGather, 1024));
    }
    for (is_direct, reducer) in [(true, Reducer::Host), (false, Reducer::Device)] {
        assert!(!policy(2e-5, is_direct, reducer).has_one_shot());
    }
    // A kernel that reads slowly, and one that begins late.
    let usual = DeviceConstants::default();
    let slow = DeviceConstants {
        device_read_gbps: 2.0,
        ..usual
    };
    let late = DeviceConstants {
        device_launch_us: 500.0,
        ..usual
    };
    let with = |constants, reducer| policy_of(constants, 2e-5, true, reducer);
    let few = largest(&with(slow, Reducer::Auto));
    assert!((8192..65536).contains(&few), "{few}");
    assert!(!with(late, Reducer::Auto).has_one_shot());
    assert!(!with(late, Reducer::Device).has_one_shot());
    let mut none = policy(2e-5, true, Reducer::Auto);
    none.without_one_shot();
    assert!(!none.has_one_shot());
}

#[test]
fn small_calls_have_shorter_slices() {
    let policy = policy(2e-5, false, Reducer::Host);
    let slice = |collective, count| {
        let request = request(collective, count);
        policy.slice_bytes(&request, Carried::Host)
    };
    let reduced = |bytes: u64| slice(Collective::AllReduce, bytes / 4);
    assert_eq!(reduced(64 << 20), 1 << 20);
    assert!((128 << 10..1 << 20).contains(&reduced(2 << 20)));
    assert_eq!(reduced(64 << 10), 64 << 10);
    assert_eq!(reduced(0), 64);
    assert_eq!(slice(Collective::Send, 1 << 10), 1 << 20);
}

#[test]
fn slices_are_equal_and_whole_lines_of_each_block() {
    let even =
        |request: &Request, carried| even_slice_bytes(request, 3, carried, [1 << 16, 1 << 20]);
    // 200 000 bytes are four slices of 50 000, up to a line.
    assert_eq!(
        even(&request(Collective::AllReduce, 50_000), Carried::Host),
        50_048
    );
    // Three blocks of 40 000 bytes are two slices of 20 000 bytes of each.
    assert_eq!(
        even(&request(Collective::AllGather, 10_000), Carried::Host),
        3 * 20_032
    );
    // Three parts of 66 667 bytes are four slices.
    assert_eq!(
        even(&request(Collective::AllReduce, 50_000), Carried::Folded),
        3 * 16_704
    );
    assert_eq!(
        even(&request(Collective::AllReduce, 1), Carried::Folded),
        3 * 64
    );
    // A slot has only the rank's own block.
    let own = even(&request(Collective::AllGather, 10_000), Carried::Direct);
    assert_eq!(own, 40_000);
    let most = [1 << 16, 1 << 16];
    let huge = request(Collective::AllGather, u64::MAX / 2);
    assert_eq!(even_slice_bytes(&huge, 3, Carried::Host, most), 1 << 16);
}
