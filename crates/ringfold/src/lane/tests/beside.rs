//! What is under way at the same time: messages both ways, lanes beside each other, a lane that is
//! dropped.

use std::sync::Mutex;

use super::job::{Job, Rank, WATCHDOG, config, region};
use crate::communicator::{Communicator, Counts, Target};
use crate::device::{DeviceMemory, ProgramStream};
use crate::lane::{DeviceBuffer, DeviceRequest, Lane, LaneConfig};
use crate::sync::lock;
use crate::types::{Collective, DType};
use crate::wait::wait_until;

/// Elements of several slices.
const COUNT: usize = 5000;

fn content(value: usize, count: usize) -> Vec<u8> {
    (value as u32).to_ne_bytes().repeat(count)
}

fn buffer(memory: &DeviceMemory, count: usize) -> DeviceBuffer {
    DeviceBuffer::new(vec![region(memory, 0..4 * count)])
}

fn sum(memory: &DeviceMemory) -> DeviceRequest {
    let counts = Counts::Even(COUNT as u64);
    let (input, output) = (buffer(memory, COUNT), buffer(memory, COUNT));
    DeviceRequest::new(Collective::AllReduce, DType::U32, counts, input, output)
}

/// Messages of these lengths, by tag.
const MESSAGES: [usize; 3] = [COUNT, 1, 9001];

fn exchange(rank: &Rank) {
    let (own, peer) = (rank.lane.rank(), 1 - rank.lane.rank());
    let value = |rank: usize, tag: usize| 10 * rank + tag + 1;
    let message = |collective, tag: usize, input, output| {
        let counts = Counts::Even(MESSAGES[tag] as u64);
        DeviceRequest {
            target: Target::Peer(peer),
            tag: tag as u32,
            ..DeviceRequest::new(collective, DType::U32, counts, input, output)
        }
    };
    let tags = 0..MESSAGES.len();
    let memory = |filler: &dyn Fn(usize) -> usize| {
        let each = tags.clone().map(|tag| (filler(tag), MESSAGES[tag]));
        let each = each.map(|(value, count)| rank.upload(&content(value, count)));
        each.collect::<Vec<_>>()
    };
    let (sent, filled) = (memory(&|tag| value(own, tag)), memory(&|_| 0));
    let send = |tag: usize| {
        let input = buffer(&sent[tag], MESSAGES[tag]);
        message(Collective::Send, tag, input, DeviceBuffer::default())
    };
    let receive = |tag: usize| {
        let output = buffer(&filled[tag], MESSAGES[tag]);
        message(Collective::Recv, tag, DeviceBuffer::default(), output)
    };
    // Neither rank's order is that of the other.
    let requests = match own {
        0 => vec![
            send(0),
            send(1),
            send(2),
            receive(2),
            receive(1),
            receive(0),
        ],
        _ => vec![
            receive(1),
            send(2),
            receive(0),
            send(0),
            receive(2),
            send(1),
        ],
    };
    // SAFETY: the memory lives until the job is over.
    let made = unsafe { rank.lane.enqueue_group(requests, rank.stream()) };
    made.expect("a call").join(rank.stream()).expect("no fault");
    for tag in tags {
        let found = rank.download(&filled[tag], 0..4 * MESSAGES[tag]);
        assert!(
            found == content(value(peer, tag), MESSAGES[tag]),
            "message {tag}"
        );
    }
}

#[test]
fn messages_of_a_group_go_both_ways_at_once() {
    Job::new(2, config()).run(exchange);
    Job::new(2, config()).by_host().run(exchange);
}

/// Slices alone would fit: what is received ends with one of what is sent.
#[test]
fn messages_of_different_lengths_never_combine() {
    const SLICE: usize = 256;
    Job::new(2, config()).run(|rank| {
        let own = rank.lane.rank();
        let count = [3 * SLICE, 2 * SLICE][own];
        let memory = rank.upload(&content(own, count));
        let own_side = buffer(&memory, count);
        let (collective, input, output) = match own {
            0 => (Collective::Send, own_side, DeviceBuffer::default()),
            _ => (Collective::Recv, DeviceBuffer::default(), own_side),
        };
        let counts = Counts::Even(count as u64);
        let request = DeviceRequest {
            target: Target::Peer(1 - own),
            ..DeviceRequest::new(collective, DType::U32, counts, input, output)
        };
        // SAFETY: the memory lives until the job is over.
        let made = unsafe { rank.lane.enqueue(request, rank.stream()) };
        let work = made.expect("a call");
        assert!(wait_until(|| rank.lane.fault().is_some(), WATCHDOG));
        let error = work.join(rank.stream()).expect_err("they differ");
        assert_eq!(error.class(), "Mismatch", "{error}");
    });
}

/// Slices alone would fit: those of the shorter call are the first ones of the longer call.
#[test]
fn blocks_of_different_lengths_never_combine() {
    const SLICE: usize = 512;
    Job::new(2, config()).run(|rank| {
        let count = [2 * SLICE, 3 * SLICE][rank.lane.rank()];
        let [given, filled] = [2 * count, count].map(|count| rank.upload(&content(1, count)));
        let counts = Counts::Even(count as u64);
        let (input, output) = (buffer(&given, 2 * count), buffer(&filled, count));
        let collective = Collective::ReduceScatter;
        let request = DeviceRequest::new(collective, DType::U32, counts, input, output);
        // SAFETY: the memory lives until the job is over.
        let made = unsafe { rank.lane.enqueue(request, rank.stream()) };
        let work = made.expect("a call");
        assert!(wait_until(|| rank.lane.fault().is_some(), WATCHDOG));
        let error = work.join(rank.stream()).expect_err("they differ");
        assert_eq!(error.class(), "Mismatch", "{error}");
        assert!(wait_until(|| work.is_done(), WATCHDOG));
        assert!(
            rank.download(&filled, 0..4 * count) == vec![0xff; 4 * count],
            "numbers"
        );
    });
}

/// Lanes of a job beside its own.
struct More(Vec<Mutex<Vec<Communicator>>>);

impl More {
    /// `count` lanes of two ranks.
    fn of(count: usize) -> More {
        let mut of_rank = [vec![], vec![]];
        for _ in 0..count {
            let pair = Communicator::threads(2);
            for (communicators, own) in of_rank.iter_mut().zip(pair) {
                communicators.push(own);
            }
        }
        More(of_rank.into_iter().map(Mutex::new).collect())
    }

    /// Those of `rank`.
    fn lanes(&self, rank: &Rank, config: LaneConfig) -> Vec<Lane> {
        let communicators = std::mem::take(&mut *lock(&self.0[rank.lane.rank()]));
        let ordinal = rank.device.ordinal();
        let lane = |own| Lane::new(own, rank.driver, ordinal, config);
        communicators
            .into_iter()
            .map(|own| lane(own).expect("a lane"))
            .collect()
    }
}

#[test]
fn lanes_of_a_device_serve_several_threads() {
    const LANES: usize = 3;
    const CALLS: usize = 6;
    let config = config();
    let more = More::of(LANES);
    Job::new(2, config).run(|rank| {
        let lanes = more.lanes(rank, config);
        let memory: Vec<_> = (0..LANES)
            .map(|lane| rank.upload(&content(lane + 1, COUNT)))
            .collect();
        std::thread::scope(|scope| {
            for (lane, memory) in lanes.iter().zip(&memory) {
                scope.spawn(move || {
                    let current = rank.device.enter().expect("a context");
                    let own = current.stream().expect("a stream");
                    drop(current);
                    // SAFETY: the stream lives until the calls in it are done.
                    let stream = unsafe { ProgramStream::from_handle(own.handle()) };
                    for _ in 0..CALLS {
                        // SAFETY: the memory lives until the job is over.
                        let made = unsafe { lane.enqueue(sum(memory), stream) };
                        let work = made.expect("a call");
                        work.join(stream).expect("no fault");
                        assert!(work.wait_on_host(WATCHDOG).expect("no fault"));
                    }
                });
            }
        });
        for (lane, memory) in memory.iter().enumerate() {
            let expected = content((lane + 1) << CALLS, COUNT);
            assert!(
                rank.download(memory, 0..4 * COUNT) == expected,
                "lane {lane}"
            );
        }
        for lane in lanes {
            lane.close().expect("no fault");
        }
    });
}

#[test]
fn a_lane_that_is_dropped_with_calls_under_way_ends_on_all_ranks() {
    for is_by_host in [false, true] {
        let (job, more) = (Job::new(2, config()), More::of(1));
        let job = if is_by_host { job.by_host() } else { job };
        job.run(|rank| {
            let lane = more.lanes(rank, config()).remove(0);
            let memory = rank.upload(&content(1, COUNT));
            // SAFETY: the memory lives until the job is over.
            let enqueue = || unsafe { lane.enqueue(sum(&memory), rank.stream()) };
            if rank.lane.rank() == 0 {
                let work = enqueue().expect("a call");
                drop(lane);
                // The other rank never makes the call.
                assert!(wait_until(|| work.is_done(), WATCHDOG));
                let error = work.join(rank.stream()).expect_err("it has ended");
                assert_eq!(error.class(), "Aborted", "{error}");
                let found = rank.download(&memory, 0..4 * COUNT);
                assert!(found == [0xff; 4 * COUNT], "numbers");
                return;
            }
            assert!(wait_until(|| lane.fault().is_some(), WATCHDOG));
            let error = enqueue().expect_err("it has ended");
            assert_eq!(error.class(), "Aborted", "{error}");
            let text = error.to_string();
            assert!(
                text.contains("rank 0") && text.contains("dropped"),
                "{text}"
            );
        });
    }
}
