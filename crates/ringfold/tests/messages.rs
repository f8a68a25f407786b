//! Messages between ranks that are processes: any number at once, messages beside collectives, and
//! ranks that close, die or are late.

mod scenes;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use ringfold::Region;
use ringfold::internals::engine::COLLECTIVES_MAX;
use ringfold::{Collective, Communicator, Counts, DType, Error, Op, Request, Target, Work};
use scenes::{Scene, play};

const SCENES: [(&str, Scene); 8] = [
    ("many", many),
    ("ahead", ahead),
    ("beside_a_collective", beside_a_collective),
    ("closing", closing),
    ("death", death),
    ("departure", departure),
    ("lateness", lateness),
    ("in_order", in_order),
];

/// The system's allocator, with a count of each thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does all the work; the count is not part of its promises.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of bytes that is far more than a stream holds on any transport.
const LARGE: usize = 8 << 20;

#[test]
#[ignore = "started as a rank by the other tests"]
fn a_rank() {
    scenes::act(&SCENES);
}

fn play_all(scene: &str, ranks: usize) {
    play(scene, ranks, "shm");
    play(scene, ranks, "tcp");
}

#[test]
fn any_number_of_messages_find_their_receives() {
    play_all("many", 2);
}

#[test]
fn a_rank_may_be_any_number_of_calls_ahead() {
    play_all("ahead", 2);
}

#[test]
fn messages_do_not_wait_for_a_collective() {
    play_all("beside_a_collective", 3);
}

#[test]
fn who_closes_waits_for_its_sends() {
    play_all("closing", 2);
}

#[test]
fn a_death_ends_a_receive_from_any_source() {
    play_all("death", 3);
}

#[test]
fn a_departure_ends_a_receive_only_where_nobody_is_left() {
    play_all("departure", 3);
}

#[test]
fn a_late_message_is_missed_by_its_receiver() {
    play_all("lateness", 3);
}

#[test]
fn messages_that_are_received_in_order_allocate_nothing() {
    play_all("in_order", 3);
}

/// A buffer with the message of one call.
struct Message {
    data: Vec<u32>,
}

impl Message {
    fn new(count: usize, value: u32) -> Message {
        Message {
            data: vec![value; count],
        }
    }

    fn request(&mut self, collective: Collective, target: Target, tag: u32) -> Request {
        let bytes = size_of_val(&self.data[..]);
        // SAFETY: the callers keep the message until the call is done, and use it for one call.
        let region = unsafe { Region::new(self.data.as_mut_ptr().cast(), bytes) };
        let counts = Counts::Even(self.data.len() as u64);
        let (input, output) = match collective {
            Collective::Send => (region, Region::EMPTY),
            _ => (Region::EMPTY, region),
        };
        let mut request = Request::new(collective, DType::U32, counts, input, output);
        (request.target, request.tag) = (target, tag);
        request
    }

    fn send(&mut self, comm: &Communicator, peer: usize, tag: u32) -> Work {
        let request = self.request(Collective::Send, Target::Peer(peer), tag);
        // SAFETY: as in `request`.
        unsafe { comm.start(request) }.expect("a send")
    }

    fn recv(&mut self, comm: &Communicator, from: Target, tag: u32) -> Work {
        let request = self.request(Collective::Recv, from, tag);
        // SAFETY: as in `request`.
        unsafe { comm.start(request) }.expect("a receive")
    }

    fn is_all(&self, value: u32) -> bool {
        self.data.iter().all(|found| *found == value)
    }
}

/// Number of calls or messages, larger than the number of collectives that an engine holds.
const MANY: u32 = COLLECTIVES_MAX as u32 + 100;

/// Sends many messages, each with its own tag. Some receives are posted before the rank's sends,
/// the others after the sends, in the opposite order.
fn many(comm: Communicator) {
    let peer = 1 - comm.rank();
    let mut sent = Vec::new();
    let mut received = Vec::new();
    let receive = |received: &mut Vec<_>, number| {
        let mut message = Message::new(10, 0);
        let work = message.recv(&comm, Target::Peer(peer), number);
        received.push((message, work, number));
    };
    (0..MANY).for_each(|number| receive(&mut received, number));
    for number in 0..MANY + 1000 {
        let mut message = Message::new(10, number);
        let work = message.send(&comm, peer, number);
        sent.push((message, work));
    }
    (MANY..MANY + 1000)
        .rev()
        .for_each(|number| receive(&mut received, number));
    for (message, work, number) in &received {
        work.wait().expect("a message");
        assert!(message.is_all(*number));
    }
    for (_, work) in &sent {
        work.wait().expect("a send");
    }
}

/// Starts many collectives on rank 0, one by one and as a group, before rank 1 starts any: rank 1
/// waits for a message that rank 0 sends last.
fn ahead(comm: Communicator) {
    let rank = comm.rank() as u32;
    if rank == 1 {
        comm.recv(&mut [0u32], 0, 1).expect("a message");
    }
    let request = |sum: &mut Message| {
        let mut request = sum.request(Collective::AllReduce, Target::None, 0);
        request.input = request.output;
        request
    };
    let value = |number| number + rank * 100_000;
    let mut sums: Vec<_> = (0..2 * MANY)
        .map(|number| Message::new(3, value(number)))
        .collect();
    let (single, grouped) = sums.split_at_mut(MANY as usize);
    let mut works = Vec::new();
    for sum in single {
        // SAFETY: the sums are kept until the calls are done, and used for one call each.
        works.push(unsafe { comm.start(request(sum)) }.expect("a sum"));
    }
    let group = grouped.iter_mut().map(request).collect();
    // SAFETY: as above.
    works.extend(unsafe { comm.start_group(group) }.expect("a group of sums"));
    if rank == 0 {
        comm.send(&[1u32], 1, 1).expect("a message");
    }
    // A blocking call is in order with the others, too.
    let mut last = [value(7); 3];
    comm.all_reduce(&mut last, Op::Sum).expect("a sum");
    assert_eq!(last, [2 * 7 + 100_000; 3]);
    for work in works {
        work.wait().expect("a sum");
    }
    for (number, sum) in (0..).zip(&sums) {
        assert!(sum.is_all(2 * number + 100_000), "call {number}");
    }
}

/// Makes a collective wait for rank 2, which waits for messages from the ranks that wait in the
/// collective.
fn beside_a_collective(comm: Communicator) {
    for count in [1, 100_000] {
        beside_a_sum(&comm, count);
    }
}

fn beside_a_sum(comm: &Communicator, count: usize) {
    let rank = comm.rank();
    let reduce = |value: i32| {
        let mut data = vec![value; count];
        comm.all_reduce(&mut data, Op::Sum).expect("a sum");
        assert!(data.iter().all(|sum| *sum == 3));
    };
    if rank < 2 {
        let mut large = Message::new(LARGE / 4, 5);
        std::thread::scope(|scope| {
            let stuck = scope.spawn(|| reduce(1));
            if rank == 0 {
                let work = large.send(comm, 1, 3);
                comm.send(&[8u32], 2, 4).expect("a send");
                work.wait().expect("a large send");
            } else {
                comm.recv(&mut large.data, 0, 3).expect("a large message");
                comm.send(&[9u32], 2, 4).expect("a send");
            }
            stuck.join().expect("a sum");
        });
        return;
    }
    let mut heard = [[0u32; 1]; 2];
    let sources = heard
        .each_mut()
        .map(|data| comm.recv_any(data, 4).expect("a message"));
    for (source, [value]) in sources.into_iter().zip(heard) {
        assert_eq!(value, source as u32 + 8);
    }
    reduce(1);
}

/// Checks that a message that was sent before closing arrives, however large.
fn closing(comm: Communicator) {
    let mut large = Message::new(LARGE / 4, 6);
    if comm.rank() == 0 {
        let work = large.send(&comm, 1, 1);
        comm.close().expect("all is sent");
        assert!(work.is_done());
        return;
    }
    std::thread::sleep(Duration::from_millis(50));
    large.data.fill(0);
    comm.recv(&mut large.data, 0, 1)
        .expect("what was sent before");
    assert!(large.is_all(6));
    let error = comm.recv(&mut [0u32], 0, 1).unwrap_err();
    assert!(
        matches!(error, Error::PeerFailed { rank: 0, .. }),
        "{error}"
    );
}

fn death(comm: Communicator) {
    comm.barrier().expect("all are here");
    if comm.rank() == 2 {
        comm.send(&[1u32], 1, 1).expect("a send");
        std::process::exit(0);
    }
    if comm.rank() == 1 {
        comm.recv(&mut [0u32], 2, 1).expect("what was sent before");
    }
    let error = comm.recv_any(&mut [0u32], 5).unwrap_err();
    assert!(
        matches!(error, Error::PeerFailed { rank: 2, .. }),
        "{error}"
    );
}

fn departure(comm: Communicator) {
    comm.barrier().expect("all are here");
    match comm.rank() {
        1 => {
            // Sends after rank 2 has left.
            comm.recv(&mut [0u32], 2, 1).expect("a message");
            std::thread::sleep(Duration::from_millis(200));
            comm.send(&[4u32], 0, 1).expect("a send");
        }
        2 => comm.send(&[4u32], 1, 1).expect("a send"),
        _ => {
            let mut data = [0u32];
            let source = comm
                .recv_any(&mut data, 1)
                .expect("a message from a remaining rank");
            assert_eq!((source, data), (1, [4]));
            let error = comm.recv_any(&mut data, 1).unwrap_err();
            assert!(
                matches!(error, Error::PeerFailed { rank: 1 | 2, .. }),
                "{error}"
            );
            return;
        }
    }
    comm.close().expect("an orderly close");
}

fn lateness(comm: Communicator) {
    comm.barrier().expect("all are here");
    let mut message = Message::new(1, 0);
    if comm.rank() == 0 {
        let mut request = message.request(Collective::Recv, Target::AnySource, 1);
        request.options.timeout = Some(Duration::from_millis(100));
        // SAFETY: as in `request`.
        let error = unsafe { comm.run(&request, &mut || Ok(())) }.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Timeout { .. }), "{text}");
        assert!(
            text.contains("recv of 1 uint32 tag 1") && text.contains("any of ranks 1, 2"),
            "{text}"
        );
        return;
    }
    // Stays alive and makes other calls until rank 0 has timed out.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        if comm.send(&[1u32], 3 - comm.rank(), 2).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no rank timed out");
}

/// Checks that messages, also from any source, allocate nothing once the first have passed.
fn in_order(comm: Communicator) {
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let mut small = [0u32; 2];
    let mut large = vec![0u32; 100_000];
    // A wait that is long enough to be reported to other ranks allocates for the report, so the lap
    // with the fewest allocations counts.
    let mut fewest = u64::MAX;
    for lap in 0..200 {
        let before = ALLOCATIONS.get();
        if rank > 0 {
            small[0] = lap;
            comm.send(&small, 0, 1).expect("a send");
            comm.send(&large, 0, 2).expect("a large send");
            comm.recv(&mut small, 0, 3).expect("an answer");
        } else {
            for _ in 1..ranks {
                let source = comm.recv_any(&mut small, 1).expect("a message");
                assert_eq!(small[0], lap);
                comm.recv(&mut large, source, 2).expect("a large message");
            }
            for peer in 1..ranks {
                comm.send(&small, peer, 3).expect("an answer");
            }
        }
        fewest = fewest.min(ALLOCATIONS.get() - before);
    }
    assert_eq!(fewest, 0, "rank {rank} allocated in every lap");
}
