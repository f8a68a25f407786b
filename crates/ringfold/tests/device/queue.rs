//! A call of a lane with more operations than the driver's queues hold.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ringfold::{Communicator, LaneConfig};

use super::software::{alone, calls, driver};
use super::{Lane, SLICE_BYTES, held, store, until};

/// Number of slices, each with three operations in both of a lane's queues, which hold 1024.
const SLICES: usize = 1000;
/// Number of waits, each with the word of the slice before, that fit in the two queues beside the
/// other operations.
const WAITS: u64 = 300;

#[test]
fn a_call_that_fills_the_queues_holds_its_caller_and_is_carried_out() {
    alone(&[("SOFTCUDA_LATENCY_US", "0")], || {
        let gate = Lane::new().unwrap();
        let communicator = Communicator::threads(1).remove(0);
        let config = LaneConfig {
            slot_bytes: SLICE_BYTES,
            ..LaneConfig::default()
        };
        let lane = ringfold::Lane::new(communicator, driver().unwrap(), 0, config).unwrap();
        let (_memory, request, program) = held(&gate, SLICES);
        let (before, has_returned) = (calls(c"cuStreamBatchMemOp_v2"), AtomicBool::new(false));
        let work = thread::scope(|scope| {
            let caller = scope.spawn(|| {
                // SAFETY: the memory lives until the call is done, and nothing else accesses it.
                let work = unsafe { lane.enqueue(request, program) };
                // Relaxed: the flag publishes no other memory.
                has_returned.store(true, Ordering::Relaxed);
                work
            });
            until(|| Ok(calls(c"cuStreamBatchMemOp_v2") >= before + WAITS)).unwrap();
            assert!(
                !has_returned.load(Ordering::Relaxed),
                "the whole call fits in the queues"
            );
            store(gate.word(0), 1);
            caller.join().unwrap().unwrap()
        });
        work.join(program).unwrap();
        assert!(work.wait_on_host(Duration::from_secs(50)).unwrap());
        gate.finish().unwrap();
        lane.close().unwrap();
    });
}
