//! Direct calls: devices read the slots of all ranks.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::job::{BUFFER_BYTES, Job, Rank, WATCHDOG, region};
use crate::communicator::{Counts, Target};
use crate::device::{DeviceMemory, PinnedRegion};
use crate::lane::staging::Bank;
use crate::lane::words::Word;
use crate::lane::{DeviceBuffer, DeviceRequest, DeviceWork, LaneConfig};
use crate::types::{Collective, DType};
use crate::wait::wait_until;

const CONFIG: LaneConfig = LaneConfig {
    slot_bytes: 4096,
    slice_bytes: None,
    depth: 2,
    direct: true,
    one_shot: Some(false),
};
/// Elements that fit a slot.
const COUNT: usize = 1000;
/// One more than there are slots.
const CALLS: usize = 3;
/// The deadline of calls, which none needs, and that of one which is to be late.
const TIMEOUT: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

/// What `rank` gives in its call number `call`.
fn content(rank: usize, call: usize) -> Vec<u8> {
    let value = (1 + rank + 10 * call) as f32;
    value.to_ne_bytes().repeat(COUNT)
}

/// An all_gather, and where its result will be.
fn all_gather(rank: &Rank, call: usize) -> (DeviceWork, Arc<DeviceMemory>) {
    all_gather_within(rank, call, TIMEOUT)
}

fn all_gather_within(
    rank: &Rank,
    call: usize,
    timeout: Duration,
) -> (DeviceWork, Arc<DeviceMemory>) {
    let world_size = rank.lane.world_size();
    let input = rank.upload(&content(rank.lane.rank(), call));
    let output = rank.upload(&vec![0; world_size * COUNT * 4]);
    let buffer = |memory, bytes| DeviceBuffer::new(vec![region(memory, 0..bytes)]);
    let mut request = DeviceRequest::new(
        Collective::AllGather,
        DType::F32,
        Counts::Even(COUNT as u64),
        buffer(&input, COUNT * 4),
        buffer(&output, world_size * COUNT * 4),
    );
    request.options.timeout = Some(timeout);
    // SAFETY: the memory lives until the job is over.
    let made = unsafe { rank.lane.enqueue(request, rank.stream()) };
    (made.expect("no fault"), output)
}

/// Whether the result of `call` is right, or right but where it is bytes of ones.
fn is_right(rank: &Rank, output: &DeviceMemory, call: usize, has_failed: bool) -> bool {
    let world_size = rank.lane.world_size();
    let found = rank.download(output, 0..world_size * COUNT * 4);
    let expected: Vec<u8> = (0..world_size)
        .flat_map(|from| content(from, call))
        .collect();
    let mut elements = found.chunks(4).zip(expected.chunks(4));
    elements.all(|(found, expected)| found == expected || (has_failed && found == [0xff; 4]))
}

/// What the stream to the device waits for until [`open`].
fn gate(rank: &Rank) -> PinnedRegion {
    rank.pin.whole().part(BUFFER_BYTES - 4..BUFFER_BYTES)
}

fn hold(rank: &Rank) {
    let current = rank.device.enter().expect("a context");
    let into = &rank.lane.staging.into;
    current.wait(into, gate(rank), 1).expect("a wait");
}

fn open(rank: &Rank) {
    let current = rank.device.enter().expect("a context");
    let written = current.write(&rank.program, gate(rank), 1);
    written.expect("a write");
}

#[test]
fn a_slot_is_filled_again_when_all_ranks_have_read_it() {
    let is_full = Barrier::new(2);
    Job::new(2, CONFIG).sharing(TIMEOUT).run(|rank| {
        assert!(rank.lane.is_direct());
        if rank.lane.rank() == 1 {
            hold(rank);
        }
        let calls: Vec<_> = (0..CALLS).map(|call| all_gather(rank, call)).collect();
        if rank.lane.rank() == 0 {
            let (last, others) = calls.split_last().expect("calls");
            for (work, _) in others {
                assert!(wait_until(|| work.is_done(), WATCHDOG));
            }
            assert!(!last.0.is_done(), "its slot is still to be read");
            is_full.wait();
        } else {
            is_full.wait();
            open(rank);
        }
        for (call, (work, output)) in calls.iter().enumerate() {
            work.join(rank.stream()).expect("no fault");
            assert!(is_right(rank, output, call, false), "call {call}");
        }
        // No word falls behind, where it would seem to be ahead after half a circle.
        let words = rank.lane.staging.words(Bank::Direct);
        let has_come = |word| words.has_reached(word, CALLS as u32);
        assert!([Word::Arrived, Word::Combined, Word::Released].map(has_come) == [true; 3]);
    });
}

#[test]
fn a_rank_whose_device_does_not_read_is_a_timeout_that_names_it() {
    let are_made = Barrier::new(2);
    Job::new(2, CONFIG).sharing(TIMEOUT).run(|rank| {
        let lane = &rank.lane;
        if lane.rank() == 1 {
            hold(rank);
        }
        // The last waits for a slot that rank 1's device does not read.
        let is_last = |call| lane.rank() == 0 && call == CALLS - 1;
        let made = |call| {
            let timeout = if is_last(call) { SHORT } else { TIMEOUT };
            all_gather_within(rank, call, timeout)
        };
        let calls: Vec<_> = (0..CALLS).map(made).collect();
        are_made.wait();
        assert!(wait_until(|| lane.fault().is_some(), WATCHDOG));
        let error = lane.fault().expect("a fault");
        assert_eq!(error.class(), "Timeout", "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
        // Until now its stream has read nothing, and slots are filled again.
        if lane.rank() == 1 {
            open(rank);
        }
        for (call, (work, output)) in calls.iter().enumerate() {
            let _ = work.join(rank.stream());
            assert!(is_right(rank, output, call, true), "call {call}");
            assert!(wait_until(|| work.is_done(), WATCHDOG));
        }
    });
}

#[test]
fn a_lane_is_closed_when_all_ranks_have_read_its_slots() {
    let is_closing = Barrier::new(2);
    Job::new(2, CONFIG).sharing(TIMEOUT).run(|rank| {
        if rank.lane.rank() == 1 {
            hold(rank);
            let (work, output) = all_gather(rank, 0);
            is_closing.wait();
            open(rank);
            work.join(rank.stream()).expect("no fault");
            assert!(is_right(rank, &output, 0, false));
        } else {
            let (work, _) = all_gather(rank, 0);
            assert!(wait_until(|| work.is_done(), WATCHDOG));
            is_closing.wait();
            rank.lane.close().expect("no fault");
            assert_eq!(rank.lane.staging.readers(1).count(), 0);
        }
    });
}

/// Its words go with it, and it reads nothing more.
#[test]
fn a_lane_does_not_wait_for_one_that_is_gone() {
    let is_gone = Barrier::new(2);
    Job::new(2, CONFIG)
        .sharing(TIMEOUT)
        .run_owned(|rank, arrival| {
            let (work, _) = all_gather(&rank, 0);
            assert!(wait_until(|| work.is_done(), WATCHDOG));
            drop(work);
            if rank.lane.rank() == 0 {
                rank.end_lane_first(arrival, || {
                    is_gone.wait();
                });
            } else {
                is_gone.wait();
                assert_eq!(rank.lane.staging.readers(1).count(), 0);
                rank.lane.close().expect("no fault");
                rank.end(arrival);
            }
        });
}

/// The numbers of slices in which the host moves data differ between ranks after a message; those
/// of direct ones do not.
#[test]
fn ranks_without_a_part_in_a_message_find_the_same_slots() {
    Job::new(3, CONFIG).sharing(TIMEOUT).run(|rank| {
        let memory = rank.upload(&content(rank.lane.rank(), 0));
        let message = |collective, peer| {
            let buffer = || DeviceBuffer::new(vec![region(&memory, 0..COUNT * 4)]);
            let (input, output) = match collective {
                Collective::Send => (buffer(), DeviceBuffer::default()),
                _ => (DeviceBuffer::default(), buffer()),
            };
            let counts = Counts::Even(COUNT as u64);
            DeviceRequest {
                target: Target::Peer(peer),
                ..DeviceRequest::new(collective, DType::F32, counts, input, output)
            }
        };
        let request = match rank.lane.rank() {
            0 => Some(message(Collective::Send, 1)),
            1 => Some(message(Collective::Recv, 0)),
            _ => None,
        };
        for call in 0..CALLS {
            if let Some(request) = &request {
                // SAFETY: the memory lives until the job is over.
                let made = unsafe { rank.lane.enqueue(request.clone(), rank.stream()) };
                made.expect("no fault");
            }
            let (work, output) = all_gather(rank, call);
            assert_eq!(work.calls[0].bank, Bank::Direct);
            work.join(rank.stream()).expect("no fault");
            assert!(is_right(rank, &output, call, false), "call {call}");
        }
        if rank.lane.rank() == 1 {
            assert_eq!(rank.download(&memory, 0..COUNT * 4), content(0, 0));
        }
    });
}

/// Of sums that ranks share, whichever has come how far.
#[test]
fn an_abort_at_any_slice_leaves_right_elements_and_ones() {
    const RANKS: usize = 3;
    const SLICES: u32 = 8;
    const ELEMENTS: usize = SLICES as usize * 4096 / 4;
    for combined in 0..=2 * SLICES {
        let victim = combined as usize % RANKS;
        Job::new(RANKS, CONFIG).sharing(TIMEOUT).run(|rank| {
            let lane = &rank.lane;
            let calls = [0, 1].map(|call| {
                let value = (1 + lane.rank() + 10 * call) as f32;
                let input = rank.upload(&value.to_ne_bytes().repeat(ELEMENTS));
                let output = rank.upload(&vec![0; ELEMENTS * 4]);
                let buffer = |memory| DeviceBuffer::new(vec![region(memory, 0..ELEMENTS * 4)]);
                let counts = Counts::Even(ELEMENTS as u64);
                let (dtype, all_reduce) = (DType::F32, Collective::AllReduce);
                let [from, into] = [buffer(&input), buffer(&output)];
                let request = DeviceRequest::new(all_reduce, dtype, counts, from, into);
                // SAFETY: the memory lives until the job is over.
                let made = unsafe { lane.enqueue(request, rank.stream()) };
                (made, output)
            });
            if lane.rank() == victim {
                let words = lane.staging.words(Bank::Direct);
                let has_come = || words.has_reached(Word::Combined, combined);
                assert!(wait_until(has_come, WATCHDOG));
                lane.abort("the test");
            }
            for (call, (made, output)) in calls.iter().enumerate() {
                // The abort may have come before the call.
                let Ok(work) = made else { continue };
                let _ = work.join(rank.stream());
                let found = rank.download(output, 0..ELEMENTS * 4);
                let due = (6 + 30 * call) as f32;
                let is_right = |bytes: &[u8]| bytes == due.to_ne_bytes() || bytes == [0xff; 4];
                assert!(
                    found.chunks(4).all(is_right),
                    "call {call}, {combined} combined"
                );
                assert!(wait_until(|| work.is_done(), WATCHDOG));
            }
        });
    }
}
