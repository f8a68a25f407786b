//! What becomes of lanes when something fails.

use super::job::{Job, Rank};
use crate::communicator::Counts;
use crate::lane::{DeviceBuffer, DeviceRequest, LaneConfig};
use crate::types::{Collective, DType};

const CONFIG: LaneConfig = LaneConfig {
    slot_bytes: 4096,
    depth: 2,
};

/// Elements of several slices.
const COUNT: usize = 5000;

fn all_reduce(rank: &Rank, memory: &crate::device::DeviceMemory, count: usize) -> DeviceRequest {
    let _ = rank;
    let buffer = || DeviceBuffer::new(vec![super::job::region(memory, 0..count * 4)]);
    let counts = Counts::Even(count as u64);
    DeviceRequest::new(
        Collective::AllReduce,
        DType::F32,
        counts,
        buffer(),
        buffer(),
    )
}

#[test]
fn after_an_abort_streams_go_on_and_results_are_no_numbers() {
    Job::new(2, CONFIG).run(|rank| {
        let memory = rank.upload(&[0; COUNT * 4]);
        if rank.lane.rank() == 1 {
            rank.lane.abort("the test");
            return;
        }
        let request = all_reduce(rank, &memory, COUNT);
        // SAFETY: the memory lives until the stream has gone past the call.
        let made = unsafe { rank.lane.enqueue(request, rank.stream()) };
        // The abort may have come first.
        if let Ok(work) = made {
            let _ = work.join(rank.stream());
            let found = rank.download(&memory, 0..COUNT * 4);
            assert!(found.chunks(4).all(|bytes| bytes == [0xff; 4]), "numbers");
            assert!(work.is_done());
        }
        let request = all_reduce(rank, &memory, COUNT);
        // SAFETY: as above.
        let later = unsafe { rank.lane.enqueue(request, rank.stream()) };
        let error = later.expect_err("it has ended");
        assert_eq!(error.class(), "Aborted", "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
    });
}

#[test]
fn ranks_in_different_calls_get_a_mismatch() {
    Job::new(2, CONFIG).run(|rank| {
        let memory = rank.upload(&[0; COUNT * 4]);
        let count = COUNT - rank.lane.rank();
        // SAFETY: the memory lives until the stream has gone past the call.
        let made = unsafe {
            rank.lane
                .enqueue(all_reduce(rank, &memory, count), rank.stream())
        };
        let work = made.expect("nothing is known yet");
        let _ = work.join(rank.stream());
        rank.wait();
        // SAFETY: as above.
        let later = unsafe {
            rank.lane
                .enqueue(all_reduce(rank, &memory, count), rank.stream())
        };
        let error = later.expect_err("it has ended");
        assert_eq!(error.class(), "Mismatch", "{error}");
    });
}
