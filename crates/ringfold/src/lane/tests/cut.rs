//! Cuts by themselves.

use crate::communicator::Counts;
use crate::device::DeviceRegion;
use crate::lane::cut::{Cut, Part};
use crate::lane::staging::Bank;
use crate::lane::{DeviceBuffer, DeviceRequest};
use crate::types::{Collective, DType};

/// Device memory that nothing is enqueued with.
fn device(address: usize, bytes: usize) -> DeviceBuffer {
    // SAFETY: no work is enqueued with it.
    DeviceBuffer::new(vec![unsafe { DeviceRegion::new(0, address, bytes) }])
}

fn request(collective: Collective, counts: Counts, bytes: [usize; 2]) -> DeviceRequest {
    let (input, output) = (device(1 << 20, bytes[0]), device(1 << 30, bytes[1]));
    DeviceRequest::new(collective, DType::F32, counts, input, output)
}

#[test]
fn a_slice_of_blocks_is_the_same_part_of_each() {
    // Two ranks' blocks of 3 and 5 elements, in slots of 16 bytes: two elements of each.
    let counts = Counts::PerRank(vec![3, 5]);
    let request = request(Collective::AllGather, counts, [12, 32]);
    let cut = Cut::new(&request, 0, 2, 16, Bank::Host).expect("a cut");
    assert_eq!(cut.slices(), 3);
    let part = |of_buffer, at| Part { of_buffer, at };
    assert_eq!(cut.brought(0), [part(0..8, 0)]);
    assert_eq!(cut.brought(1), [part(8..12, 0)]);
    assert_eq!(cut.brought(2), []);
    assert_eq!(cut.taken(0), [part(0..8, 0), part(12..20, 8)]);
    // The end of the first block and the middle of the second stand apart in the output.
    assert_eq!(cut.taken(1), [part(8..12, 0), part(20..28, 4)]);
    assert_eq!(cut.taken(2), [part(28..32, 0)]);
}

#[test]
fn blocks_that_stand_together_are_one_piece() {
    let request = request(Collective::AllGather, Counts::Even(4), [16, 48]);
    let cut = Cut::new(&request, 1, 3, 64, Bank::Host).expect("a cut");
    assert_eq!(
        cut.taken(0),
        [Part {
            of_buffer: 0..48,
            at: 0
        }]
    );
}

#[test]
fn wrong_requests_are_refused_with_what_is_wrong() {
    let cases = [
        (
            request(Collective::AllReduce, Counts::Even(4), [12, 16]),
            "16 bytes of input",
        ),
        (
            request(Collective::AllReduce, Counts::Even(4), [16, 20]),
            "16 bytes of output",
        ),
        (
            request(Collective::AllGather, Counts::PerRank(vec![1]), [4, 4]),
            "1 counts for 2",
        ),
        (
            request(Collective::Barrier, Counts::Even(0), [0, 0]),
            "synchronize the stream",
        ),
    ];
    for (request, text) in cases {
        let error = Cut::new(&request, 0, 2, 4096, Bank::Host)
            .expect_err("wrong")
            .to_string();
        assert!(error.contains(text), "{error}");
    }
    let request = request(Collective::AllToAll, Counts::Even(1), [64, 64]);
    let error = Cut::new(&request, 0, 16, 32, Bank::Host)
        .expect_err("too small")
        .to_string();
    assert!(error.contains("16 ranks"), "{error}");
}

#[test]
fn buffers_overlap_in_place_or_not_at_all() {
    let overlap = |collective, input, output, own| {
        let counts = Counts::Even(4);
        let request = DeviceRequest::new(collective, DType::F32, counts, input, output);
        request.check_overlap(own)
    };
    let memory = |at: usize, bytes| device(4096 + at, bytes);
    let reduce = Collective::AllReduce;
    assert!(overlap(reduce, memory(0, 16), memory(0, 16), None).is_ok());
    assert!(overlap(reduce, memory(0, 16), memory(16, 16), None).is_ok());
    assert!(overlap(reduce, memory(0, 16), memory(4, 16), None).is_err());
    // The input is the rank's own block of the output, or another one.
    let gather = Collective::AllGather;
    assert!(overlap(gather, memory(16, 16), memory(0, 32), Some(16..32)).is_ok());
    assert!(overlap(gather, memory(0, 16), memory(0, 32), Some(16..32)).is_err());
    // The same bytes in other pieces are in place, in another order they are not.
    let pieces = |order: [usize; 2]| {
        let piece = |at: usize| {
            // SAFETY: no work is enqueued with it.
            unsafe { DeviceRegion::new(0, 4096 + at * 8, 8) }
        };
        DeviceBuffer::new(order.map(piece).to_vec())
    };
    assert!(overlap(reduce, pieces([0, 1]), memory(0, 16), None).is_ok());
    assert!(overlap(reduce, pieces([1, 0]), memory(0, 16), None).is_err());
}
