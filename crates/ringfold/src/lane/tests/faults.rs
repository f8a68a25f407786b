//! What becomes of lanes when something fails.

use std::sync::Arc;
use std::time::Instant;

use super::job::{Job, Rank, WATCHDOG, config};
use crate::communicator::Counts;
use crate::lane::call::{LaneCall, Terms};
use crate::lane::staging::Bank;
use crate::lane::words::Word;
use crate::lane::{DeviceBuffer, DeviceRequest, LaneConfig};
use crate::sync::lock;
use crate::types::{Collective, DType, Op};
use crate::wait::wait_until;

/// Elements of several slices.
const COUNT: usize = 5000;

/// Has two ranks do `work`, once without and once with memory that they share.
fn on_all_kinds(config: LaneConfig, work: impl Fn(&Rank) + Sync) {
    Job::new(2, config).run(&work);
    Job::new(2, config).sharing(WATCHDOG).run(&work);
}

fn all_reduce(memory: &crate::device::DeviceMemory, count: usize) -> DeviceRequest {
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
    on_all_kinds(config(), |rank| {
        let memory = rank.upload(&[0; COUNT * 4]);
        if rank.lane.rank() == 1 {
            rank.lane.abort("the test");
            return;
        }
        let request = all_reduce(&memory, COUNT);
        // SAFETY: the memory lives until the stream has gone past the call.
        let made = unsafe { rank.lane.enqueue(request, rank.stream()) };
        // The abort may have come first.
        if let Ok(work) = made {
            let _ = work.join(rank.stream());
            let found = rank.download(&memory, 0..COUNT * 4);
            assert!(found.chunks(4).all(|bytes| bytes == [0xff; 4]), "numbers");
            // The stream does not wait for the copies of its input now.
            assert!(wait_until(|| work.is_done(), WATCHDOG));
        }
        let request = all_reduce(&memory, COUNT);
        // SAFETY: as above.
        let later = unsafe { rank.lane.enqueue(request, rank.stream()) };
        let error = later.expect_err("it has ended");
        assert_eq!(error.class(), "Aborted", "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
    });
}

#[test]
fn after_an_abort_a_call_is_done_when_its_input_is_read_no_more() {
    let config = config();
    Job::new(1, config).run(|rank| {
        let lane = &rank.lane;
        // As many slices as there are slots: none waits until another has been brought.
        let count = config.slot_bytes * config.depth as usize / 4;
        let memory = rank.upload(&vec![0; count * 4]);
        let gate = rank.pin.whole().part(0..4);
        let current = rank.device.enter().expect("a context");
        current.wait(&lane.staging.out, gate, 1).expect("a wait");
        drop(current);
        let request = all_reduce(&memory, count);
        // SAFETY: the memory lives until the work is done.
        let work = unsafe { lane.enqueue(request, rank.stream()) }.expect("a call");
        lane.abort("the test");
        let is_taken = || {
            lane.staging
                .words(work.calls[0].bank)
                .has_reached(Word::Taken, work.calls[0].end())
        };
        assert!(wait_until(is_taken, WATCHDOG), "the stream does not go on");
        assert!(!work.is_done(), "its input is still to be read");
        let current = rank.device.enter().expect("a context");
        current.write(&rank.program, gate, 1).expect("a write");
        drop(current);
        assert!(wait_until(|| work.is_done(), WATCHDOG));
    });
}

/// However many slices a call has, its device is held by none of them longer than by the first.
#[test]
fn after_an_abort_all_slices_of_a_call_are_released_at_once() {
    // What they take in a stream is less than its queue holds.
    const SLICES: u32 = 300;
    const SLICE_BYTES: usize = 1024;
    let config = LaneConfig {
        slice_bytes: Some(SLICE_BYTES),
        ..config()
    };
    Job::new(1, config).run(|rank| {
        let lane = &rank.lane;
        let bytes = SLICES as usize * SLICE_BYTES;
        let memory = rank.upload(&vec![0; bytes]);
        let gate = rank.pin.whole().part(0..4);
        let current = rank.device.enter().expect("a context");
        current.wait(&lane.staging.out, gate, 1).expect("a wait");
        drop(current);
        let request = all_reduce(&memory, bytes / 4);
        // SAFETY: the memory lives until the work is done.
        let work = unsafe { lane.enqueue(request, rank.stream()) }.expect("a call");
        let (call, words) = (&work.calls[0], lane.staging.words(Bank::Host));
        assert_eq!(call.slices, SLICES);
        lane.abort("the test");
        let is_released = |slices| words.has_reached(Word::Released, call.number(slices));
        assert!(wait_until(|| is_released(1), WATCHDOG));
        assert!(
            is_released(SLICES),
            "some slices are released before others"
        );
        let current = rank.device.enter().expect("a context");
        current.write(&rank.program, gate, 1).expect("a write");
        drop(current);
        assert!(wait_until(|| work.is_done(), WATCHDOG));
        let found = rank.download(&memory, 0..bytes);
        assert!(found.iter().all(|byte| *byte == 0xff), "numbers");
    });
}

#[test]
fn ranks_in_different_calls_get_a_mismatch() {
    on_all_kinds(config(), |rank| {
        let memory = rank.upload(&[0; COUNT * 4]);
        let count = COUNT - rank.lane.rank();
        // SAFETY: the memory lives until the stream has gone past the call.
        let made = unsafe { rank.lane.enqueue(all_reduce(&memory, count), rank.stream()) };
        let work = made.expect("nothing is known yet");
        let _ = work.join(rank.stream());
        rank.wait();
        // SAFETY: as above.
        let later = unsafe { rank.lane.enqueue(all_reduce(&memory, count), rank.stream()) };
        let error = later.expect_err("it has ended");
        assert_eq!(error.class(), "Mismatch", "{error}");
    });
}

#[test]
fn ranks_combine_nothing_of_different_operations() {
    on_all_kinds(config(), |rank| {
        let memory = rank.upload(&[0; COUNT * 4]);
        let request = || DeviceRequest {
            op: [Op::Sum, Op::Max][rank.lane.rank()],
            ..all_reduce(&memory, COUNT)
        };
        // SAFETY: the memory lives until the stream has gone past the call.
        let work = unsafe { rank.lane.enqueue(request(), rank.stream()) };
        let _ = work.expect("nothing is known yet").join(rank.stream());
        rank.wait();
        // SAFETY: as above.
        let later = unsafe { rank.lane.enqueue(request(), rank.stream()) };
        let error = later.expect_err("it has ended");
        assert_eq!(error.class(), "Mismatch", "{error}");
        assert!(error.to_string().contains("operations"), "{error}");
    });
}

#[test]
fn a_panic_of_the_thread_releases_what_it_has_been_given() {
    let config = config();
    Job::new(2, config).run(|rank| {
        let lane = &rank.lane;
        let memory = rank.upload(&[0; COUNT * 4]);
        if lane.rank() == 0 {
            // Cut for larger slots than there are.
            let slot_bytes = 2 * config.slot_bytes;
            let marks = lock(&lane.issuer).begin(rank.stream()).expect("events");
            let marks = marks.expect("no graph");
            let terms = Terms {
                helpers_max: 0,
                rank: 0,
                world_size: 2,
                slot_bytes,
                next: [0; 2],
                is_direct: false,
                overlaps: true,
            };
            let request = all_reduce(&memory, COUNT);
            let call = LaneCall::collective(request, terms, marks, slot_bytes);
            let call = call.expect("a call");
            let slices = call.slices;
            // As if its device had done its part.
            let current = rank.device.enter().expect("a context");
            for word in [Word::Arrived, Word::Taken] {
                let word = lane.staging.word(Bank::Host, word);
                current.write(&rank.program, word, slices).expect("a write");
            }
            drop(current);
            lane.worker.give(&[Arc::new(call)]).expect("an open lane");
            lane.worker.finish();
            let words = lane.staging.words(Bank::Host);
            assert!(words.has_reached(Word::Released, slices));
        }
        let deadline = Instant::now() + WATCHDOG;
        while lane.fault().is_none() {
            assert!(Instant::now() < deadline, "no fault");
            std::thread::yield_now();
        }
        let error = lane.fault().expect("a fault").to_string();
        assert!(
            error.contains("rank 0") && error.contains("panic"),
            "{error}"
        );
    });
}
