//! Lanes whose device has no stream memory operations.

use std::time::Duration;

use super::job::{Job, Rank, region};
use crate::communicator::Counts;
use crate::device::DeviceMemory;
use crate::lane::{DeviceBuffer, DeviceRequest, DeviceWork, LaneConfig};
use crate::types::{Collective, DType};
use crate::wait::wait_until;

const CONFIG: LaneConfig = LaneConfig {
    slot_bytes: 4096,
    slice_bytes: None,
    depth: 2,
    direct: true,
    one_shot: Some(true),
};
/// Elements of more slices than there are slots.
const COUNT: usize = 5000;
const LONG: Duration = Duration::from_secs(50);

fn all_reduce(rank: &Rank, memory: &DeviceMemory) -> DeviceWork {
    let buffer = || DeviceBuffer::new(vec![region(memory, 0..COUNT * 4)]);
    let counts = Counts::Even(COUNT as u64);
    let (input, output) = (buffer(), buffer());
    let request = DeviceRequest::new(Collective::AllReduce, DType::U32, counts, input, output);
    // SAFETY: the memory lives until the job is over.
    let made = unsafe { rank.lane.enqueue(request, rank.stream()) };
    made.expect("no fault")
}

fn content(value: u32) -> Vec<u8> {
    value.to_ne_bytes().repeat(COUNT)
}

#[test]
fn calls_that_are_not_joined_are_carried_out() {
    Job::new(2, CONFIG).by_host().run(|rank| {
        let memory = [1, 2, 3].map(|value| rank.upload(&content(value)));
        let works = [0, 1, 2].map(|index| all_reduce(rank, &memory[index]));
        for work in &works {
            assert!(work.wait_on_host(LONG).expect("no fault"));
        }
        for (memory, value) in memory.iter().zip([2, 4, 6]) {
            assert_eq!(rank.download(memory, 0..COUNT * 4), content(value));
        }
    });
}

/// The last call is joined alone: its stream then comes behind all of it, and the ones before are
/// done, too.
#[test]
fn a_join_waits_for_the_host_and_orders_the_stream() {
    Job::new(2, CONFIG).by_host().run(|rank| {
        let memory = rank.upload(&content(1));
        let works = [(); 4].map(|()| {
            let work = all_reduce(rank, &memory);
            work.join(rank.stream()).expect("no fault");
            assert!(work.can_join(Duration::ZERO));
            work
        });
        assert_eq!(rank.download(&memory, 0..COUNT * 4), content(16));
        assert!(works.iter().all(DeviceWork::is_done));
    });
}

#[test]
fn a_closed_lane_has_done_its_calls() {
    Job::new(2, CONFIG).by_host().run(|rank| {
        let memory = rank.upload(&content(3));
        let work = all_reduce(rank, &memory);
        rank.lane.close().expect("no fault");
        assert!(work.is_done());
        assert_eq!(rank.download(&memory, 0..COUNT * 4), content(6));
    });
}

#[test]
fn after_an_abort_nothing_waits_and_results_are_no_numbers() {
    Job::new(2, CONFIG).by_host().run(|rank| {
        let memory = rank.upload(&content(1));
        if rank.lane.rank() == 1 {
            rank.lane.abort("the test");
            return;
        }
        let buffer = || DeviceBuffer::new(vec![region(&memory, 0..COUNT * 4)]);
        let counts = Counts::Even(COUNT as u64);
        let (input, output) = (buffer(), buffer());
        let request = DeviceRequest::new(Collective::AllReduce, DType::U32, counts, input, output);
        // SAFETY: the memory lives until the job is over. The abort may have come first.
        let Ok(work) = (unsafe { rank.lane.enqueue(request, rank.stream()) }) else {
            return;
        };
        let error = work.join(rank.stream()).expect_err("it is aborted");
        assert_eq!(error.class(), "Aborted", "{error}");
        assert_eq!(rank.download(&memory, 0..COUNT * 4), content(u32::MAX));
        assert!(wait_until(|| work.is_done(), LONG));
    });
}
