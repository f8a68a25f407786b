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

/// The policy for four ranks whose host takes 50 GB/s.
fn policy(is_direct: bool) -> Policy {
    policy_of(DeviceConstants::default(), is_direct, false)
}

/// The same for devices with these constants.
fn policy_of(constants: DeviceConstants, is_direct: bool, is_one_shot_asked: bool) -> Policy {
    let host_us = |_, bytes| 1.0 + 2e-5 * bytes as f64;
    let slots_us = |_, bytes| 1.0 + 4e-5 * bytes as f64;
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
        threads: 1,
        one_shot_bytes: if is_direct { ONE_SHOT_BYTES } else { 0 },
        is_one_shot_asked,
        host_us: &host_us,
        slots_us: &slots_us,
    };
    Policy::decide(&setting)
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
    let usual = policy(true);
    assert_eq!(largest(&usual), ONE_SHOT_BYTES.next_power_of_two());
    assert!(!by_one_kernel(&usual, Collective::AllGather, 1024));
    assert!(!policy(false).has_one_shot());
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
    let few = largest(&policy_of(slow, true, false));
    assert!((8192..65536).contains(&few), "{few}");
    assert!(!policy_of(late, true, false).has_one_shot());
    // All that fit, if that is asked for.
    let asked = policy_of(late, true, true);
    assert_eq!(largest(&asked), ONE_SHOT_BYTES.next_power_of_two());
}

#[test]
fn small_calls_have_shorter_slices() {
    let policy = policy(false);
    let slice = |collective, count| {
        let request = request(collective, count);
        policy.slice_bytes(&request, Carried::Host)
    };
    let reduced = |bytes: u64| slice(Collective::AllReduce, bytes / 4);
    assert_eq!(reduced(64 << 20), 1 << 20);
    assert!((256 << 10..1 << 20).contains(&reduced(1 << 20)));
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
    // A slot has only the rank's own block.
    let own = even(&request(Collective::AllGather, 10_000), Carried::Direct);
    assert_eq!(own, 40_000);
    let most = [1 << 16, 1 << 16];
    let huge = request(Collective::AllGather, u64::MAX / 2);
    assert_eq!(even_slice_bytes(&huge, 3, Carried::Host, most), 1 << 16);
}

#[test]
fn as_many_threads_combine_as_the_link_needs_and_ranks_have() {
    let helpers_max = |us_per_byte: f64, threads| {
        let slots_us = |_, bytes| us_per_byte * bytes as f64;
        let setting = Setting {
            shape: Shape {
                ranks: 4,
                ranks_per_device: 1,
                depth: 4,
            },
            constants: DeviceConstants::default(),
            slot_bytes: SLOT_BYTES,
            slice_bytes: None,
            is_direct: true,
            threads,
            one_shot_bytes: 0,
            is_one_shot_asked: false,
            host_us: &|_, _| 1.0,
            slots_us: &slots_us,
        };
        Policy::decide(&setting).helpers_max()
    };
    // The link takes 40 ps for a byte.
    for (us_per_byte, threads, due) in [(1e-5, 8, 0), (7e-5, 8, 1), (7e-5, 1, 0), (1e-3, 8, 7)] {
        assert_eq!(
            helpers_max(us_per_byte, threads),
            due,
            "{us_per_byte} {threads}"
        );
    }
}
