//! What programs may rely on, and what they must not.

mod program;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use program::*;

const STEPPED: (&str, &str) = ("SOFTCUDA_MODE", "stepped");
/// Any byte that is no poison.
const BYTE: u8 = 0x5a;
const WORD: u32 = u32::from_ne_bytes([BYTE; 4]);
const POISON: u32 = u32::MAX;
/// How often a value is looked at that shall not change.
const LOOKS: u32 = 20;
/// Between two such looks.
const LOOK: Duration = Duration::from_millis(5);

#[test]
fn what_the_real_driver_refuses_gets_its_codes() {
    let ended = alone(&[("SOFTCUDA_DEVICES", "2")], || {
        assert_eq!(cuDeviceGetCount(&mut 0), 3);
        ok(cuInit(0));
        assert_eq!(get(cuDeviceGetCount), 2);
        assert_eq!(cuMemAlloc_v2(&mut 0, 64), 201);
        assert_eq!(cuDevicePrimaryCtxRetain(&mut 0, 2), 101);
        enter(0);
        let memory = [0u32; 64];
        let (start, bytes) = (memory.as_ptr() as usize, size_of_val(&memory));
        assert_eq!(cuMemHostRegister_v2(start, 0, FLAGS), 1);
        ok(cuMemHostRegister_v2(start, bytes, FLAGS));
        assert_eq!(cuMemHostRegister_v2(start, bytes, FLAGS), 712);
        assert_eq!(cuMemHostRegister_v2(start + bytes - 4, bytes, FLAGS), 712);
        assert_eq!(cuMemHostUnregister(start + 4), 713);
        let (own, word) = (
            stream(),
            get(|at| cuMemHostGetDevicePointer_v2(at, start, 0)),
        );
        assert_eq!(cuStreamWriteValue32_v2(own, word + 2, 1, 0), 1);
        // The host's address is not the device's.
        assert_eq!(cuStreamWriteValue32_v2(own, start, 1, 0), 1);
        assert_eq!(cuStreamWaitValue32(own, word, 0, 0), 801);
        assert_eq!(cuStreamWriteValue32(own, word, 0, 0), 801);
        enter(1);
        assert_eq!(cuStreamWriteValue32_v2(own, word, 1, 0), 400);
        ok(cuDevicePrimaryCtxRelease_v2(1));
        assert_eq!(cuMemAlloc_v2(&mut 0, 64), 709);
        ok(cuCtxPopCurrent_v2(&mut 0));
        ok(cuMemHostUnregister(start));
        assert_eq!(cuMemHostUnregister(start), 713);
    });
    ended.passed();
}

#[test]
fn calls_and_what_lives_are_counted() {
    let ended = alone(&[], || {
        begin();
        let (stream, event, memory) = (stream(), event(), device_memory(64));
        let pinned = Pinned::new(64);
        for what in [c"pinned", c"streams", c"events", c"contexts", c"memory"] {
            assert_eq!(count(what), 1, "{what:?}");
        }
        let context = get(|context| cuStreamGetCtx(stream, context));
        assert_eq!(get(cuCtxPopCurrent_v2), context);
        ok(cuCtxPushCurrent_v2(context));
        ok(cuStreamDestroy_v2(stream));
        ok(cuEventDestroy_v2(event));
        ok(pinned.unpin());
        ok(cuMemFree_v2(memory));
        ok(cuDevicePrimaryCtxRelease_v2(0));
        for what in [c"pinned", c"streams", c"events", c"contexts", c"memory"] {
            assert_eq!(count(what), 0, "{what:?}");
        }
        assert_eq!(
            (calls(c"cuCtxPushCurrent_v2"), calls(c"cuEventQuery")),
            (2, 0)
        );
        assert_eq!(softcuda_calls(std::ptr::null()), 15);
    });
    ended.passed();
}

#[test]
fn a_reader_that_does_not_wait_sees_poison() {
    let ended = alone(&[STEPPED], || {
        begin();
        let (stream, pinned, memory) = (stream(), Pinned::new(64), device_memory(64));
        ok(cuMemsetD8Async(memory, BYTE, 64, stream));
        ok(cuMemcpyDtoHAsync_v2(pinned.host(), memory, 64, stream));
        let mut seen = BTreeSet::new();
        loop {
            seen.insert((pinned.load(0), pinned.load(15)));
            if softcuda_step() == 0 {
                break;
            }
        }
        assert!(
            seen.contains(&(POISON, POISON)) && seen.contains(&(WORD, POISON)),
            "{seen:x?}"
        );
        assert_eq!((pinned.load(0), pinned.load(15)), (WORD, WORD));
    });
    ended.passed();
}

#[test]
fn waits_compare_on_a_circle() {
    let ended = alone(&[STEPPED], || {
        begin();
        let (stream, pinned) = (stream(), Pinned::new(8));
        pinned.store(0, u32::MAX - 1);
        ok(cuStreamWaitValue32_v2(stream, pinned.device(0), 1, 0));
        ok(cuStreamWriteValue32_v2(stream, pinned.device(1), 7, 0));
        for value in [u32::MAX - 1, u32::MAX, 0] {
            pinned.store(0, value);
            run_all();
            assert_eq!((pinned.load(1), cuStreamQuery(stream)), (0, 600), "{value}");
        }
        pinned.store(0, 2);
        run_all();
        assert_eq!((pinned.load(1), cuStreamQuery(stream)), (7, 0));
    });
    ended.passed();
}

#[test]
fn a_batch_is_its_operations_in_order() {
    let ended = alone(&[STEPPED], || {
        begin();
        let (stream, pinned) = (stream(), Pinned::new(12));
        // A wait is operation 1, a store 2.
        let operation = |kind, word, value| [kind, pinned.device(word) as u64, value, 0, 0, 0];
        let batch = [operation(2, 0, 5), operation(1, 1, 3), operation(2, 2, 9)];
        let enqueue = |operations: &[[u64; 6]], flags| {
            cuStreamBatchMemOp_v2(stream, operations.len() as u32, operations.as_ptr(), flags)
        };
        ok(enqueue(&batch, 0));
        run_all();
        assert_eq!([0, 1, 2].map(|word| pinned.load(word)), [5, 0, 0]);
        pinned.store(1, 4);
        run_all();
        assert_eq!(pinned.load(2), 9);
        // None of a batch is enqueued if one of it cannot be.
        pinned.store(0, 0);
        assert_eq!(enqueue(&[batch[0], operation(7, 1, 1)], 0), 1);
        assert_eq!(enqueue(&batch, 1), 1);
        run_all();
        assert_eq!(pinned.load(0), 0);
    });
    ended.passed();
}

#[test]
fn a_wait_is_for_the_record_before_it() {
    let ended = alone(&[STEPPED], || {
        begin();
        let (first, second, third) = (stream(), stream(), stream());
        let (pinned, event) = (Pinned::new(8), event());
        ok(cuStreamWaitEvent(second, event, 0));
        ok(cuStreamSynchronize(second));
        ok(cuStreamWaitValue32_v2(first, pinned.device(0), 1, 0));
        ok(cuEventRecord(event, first));
        ok(cuStreamWaitEvent(second, event, 0));
        ok(cuStreamWriteValue32_v2(second, pinned.device(1), 1, 0));
        // A later record elsewhere is done, but is not what the second stream waits for.
        ok(cuEventRecord(event, third));
        ok(cuEventDestroy_v2(event));
        run_all();
        assert_eq!(pinned.load(1), 0);
        pinned.store(0, 1);
        run_all();
        assert_eq!(pinned.load(1), 1);
    });
    ended.passed();
}

/// A kernel: adds 1 to the word of device memory at this address.
extern "C" fn increment(address: usize) {
    let place = softcuda_place(address, size_of::<u32>());
    // SAFETY: the driver's mapping of a word, which only the operations of one stream use.
    unsafe { *(place as *mut u32) += 1 }
}

#[test]
fn a_kernel_runs_when_its_stream_comes_to_it() {
    let ended = alone(&[STEPPED], || {
        begin();
        let (stream, memory, pinned) = (stream(), device_memory(64), Pinned::new(8));
        ok(cuMemsetD8Async(memory, BYTE, 64, stream));
        ok(cuStreamWaitValue32_v2(stream, pinned.device(0), 1, 0));
        ok(softcuda_launch(stream, Some(increment), memory));
        ok(cuMemcpyDtoHAsync_v2(pinned.host() + 4, memory, 4, stream));
        run_all();
        let held = get(|word| cuMemcpyDtoH_v2(word as *const u32 as usize, memory, 4));
        assert_eq!((held, pinned.load(1)), (WORD, 0));
        pinned.store(0, 1);
        run_all();
        assert_eq!(pinned.load(1), WORD + 1);
        assert_eq!(softcuda_launch(stream, None, 0), 1);
    });
    ended.passed();
}

/// The order in which words of three streams change, with some copies in between.
fn trace(seed: u64) -> String {
    let seed = seed.to_string();
    let ended = alone(&[STEPPED, ("SOFTCUDA_SEED", &seed)], || {
        begin();
        let (words, target) = (Pinned::new(16), Pinned::new(64));
        let (memory, streams) = (device_memory(64), [stream(), stream(), stream()]);
        // All wait for word 3, so that nothing runs while work is enqueued.
        for (index, stream) in streams.into_iter().enumerate() {
            ok(cuStreamWaitValue32_v2(stream, words.device(3), 1, 0));
            for round in 1..=4 {
                ok(cuMemcpyDtoHAsync_v2(target.host(), memory, 64, stream));
                ok(cuStreamWriteValue32_v2(
                    stream,
                    words.device(index),
                    round,
                    0,
                ));
            }
        }
        words.store(3, 1);
        while softcuda_step() != 0 {
            print!("{}{}{} ", words.load(0), words.load(1), words.load(2));
        }
        println!("is the trace");
    });
    let text = ended.passed();
    assert!(text.contains(&format!("SOFTCUDA_SEED={seed}")), "{text}");
    let line = text.lines().find(|line| line.ends_with(" is the trace"));
    line.expect("a trace")
        .rsplit("... ")
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn a_seed_determines_the_order_of_operations() {
    let traces: BTreeSet<String> = (1..=5).map(trace).collect();
    assert!(traces.len() > 1, "{traces:?}");
    assert_eq!(trace(3), trace(3));
}

#[test]
fn streams_of_one_queue_hold_each_other_back() {
    for queues in ["1", "2"] {
        let ended = alone(&[STEPPED, ("SOFTCUDA_QUEUES", queues)], || {
            begin();
            let (first, second, pinned) = (stream(), stream(), Pinned::new(8));
            let early = u32::from(std::env::var("SOFTCUDA_QUEUES").is_ok_and(|it| it == "2"));
            ok(cuStreamWaitValue32_v2(first, pinned.device(0), 1, 0));
            ok(cuStreamWriteValue32_v2(second, pinned.device(1), 1, 0));
            run_all();
            assert_eq!(pinned.load(1), early);
            pinned.store(0, 1);
            run_all();
            assert_eq!(pinned.load(1), 1);
            ok(cuStreamDestroy_v2(first));
            ok(cuStreamDestroy_v2(second));
        });
        ended.passed();
    }
}

#[test]
fn memory_is_freed_when_the_device_is_idle_and_calls_wait_for_that() {
    let ended = alone(&[], || {
        begin();
        let (blocked, other, event) = (stream(), stream(), event());
        let (pinned, memory) = (Pinned::new(4), device_memory(64));
        ok(cuStreamWaitValue32_v2(blocked, pinned.device(0), 1, 0));
        let freed = Arc::new(AtomicBool::new(false));
        let records = Arc::new(AtomicU32::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                enter(0);
                ok(cuMemFree_v2(memory));
                freed.store(true, Ordering::Release);
            });
            scope.spawn(|| {
                enter(0);
                while !freed.load(Ordering::Acquire) {
                    ok(cuEventRecord(event, other));
                    records.fetch_add(1, Ordering::Relaxed);
                }
            });
            // The second thread stops, because the first one waits with the lock held.
            let (mut last, mut same) = (0, 0);
            while same < LOOKS {
                thread::sleep(LOOK);
                let now = records.load(Ordering::Relaxed);
                let is_stopped = now == last && calls(c"cuMemFree_v2") == 1;
                same = if is_stopped { same + 1 } else { 0 };
                last = now;
            }
            assert!(!freed.load(Ordering::Acquire));
            pinned.store(0, 1);
        });
        assert!(freed.load(Ordering::Acquire));
    });
    ended.passed();
}

#[test]
fn a_full_queue_blocks_its_caller() {
    let ended = alone(&[("SOFTCUDA_QUEUE_OPERATIONS", "4")], || {
        begin();
        let (blocked, event, pinned) = (stream(), event(), Pinned::new(4));
        ok(cuStreamWaitValue32_v2(blocked, pinned.device(0), 1, 0));
        let records = AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                enter(0);
                for _ in 0..20 {
                    ok(cuEventRecord(event, blocked));
                    records.fetch_add(1, Ordering::Relaxed);
                }
            });
            while calls(c"cuEventRecord") < 4 {
                thread::sleep(LOOK);
            }
            thread::sleep(LOOK * LOOKS);
            // Four wait, and the one at the front may have left the queue.
            assert!(records.load(Ordering::Relaxed) <= 5);
            pinned.store(0, 1);
        });
        ok(cuStreamSynchronize(blocked));
    });
    ended.passed();
}

#[test]
fn addresses_and_handles_never_return() {
    let ended = alone(&[], || {
        begin();
        let mut seen = BTreeSet::new();
        for _ in 0..100 {
            let (memory, stream, event) = (device_memory(4096), stream(), event());
            assert!(seen.insert(memory) && seen.insert(stream) && seen.insert(event));
            ok(cuMemFree_v2(memory));
            ok(cuStreamDestroy_v2(stream));
            ok(cuEventDestroy_v2(event));
        }
    });
    ended.passed();
}

#[test]
fn copies_take_the_link_s_time() {
    const BYTES: usize = 1 << 20;
    let settings = [("SOFTCUDA_GBPS", "0.1"), ("SOFTCUDA_LATENCY_US", "1000")];
    let ended = alone(&settings, || {
        begin();
        let (pinned, memory) = (Pinned::new(2 * BYTES), device_memory(BYTES));
        let (down, also, start) = (stream(), stream(), Instant::now());
        ok(cuMemcpyDtoHAsync_v2(pinned.host(), memory, BYTES, down));
        ok(cuMemcpyDtoHAsync_v2(
            pinned.host() + BYTES,
            memory,
            BYTES,
            also,
        ));
        ok(cuStreamSynchronize(down));
        ok(cuStreamSynchronize(also));
        // Both go down the same link: 2 MiB at 0.1 GB/s.
        assert!(start.elapsed() >= Duration::from_nanos(2 * BYTES as u64 * 10));
    });
    ended.passed();
}

#[test]
fn processes_that_name_a_device_have_the_same_one() {
    let folder = std::env::temp_dir().join(format!("softcuda-links-{}", std::process::id()));
    let links = folder.display().to_string();
    let uuid = |names: &str| {
        let ended = alone(
            &[("SOFTCUDA_DEVICES", names), ("SOFTCUDA_LINKS", &links)],
            || {
                begin();
                let (stream, pinned, memory) = (stream(), Pinned::new(64), device_memory(64));
                ok(cuMemcpyHtoDAsync_v2(memory, pinned.host(), 64, stream));
                ok(cuStreamSynchronize(stream));
                println!(
                    "uuid {:x?}",
                    get::<[u8; 16]>(|uuid| cuDeviceGetUuid_v2(uuid, 0))
                );
            },
        );
        let text = ended.passed();
        text.split("uuid ")
            .nth(1)
            .and_then(|text| text.lines().next())
            .map(str::to_owned)
    };
    let (first, again, other) = (uuid("a"), uuid("a,b"), uuid("b,a"));
    // The state of the upward link, which is the second word.
    let state = std::fs::read(folder.join("a"));
    std::fs::remove_dir_all(&folder).expect("the folder of links");
    assert!(first.is_some() && first == again && first != other);
    assert!(state.is_ok_and(|words| words[8..].iter().any(|byte| *byte != 0)));
}

#[test]
fn calls_fail_on_order() {
    let ended = alone(&[("SOFTCUDA_FAIL", "cuMemAlloc_v2:2:2")], || {
        begin();
        device_memory(64);
        assert_eq!(cuMemAlloc_v2(&mut 0, 64), 2);
        device_memory(64);
        softcuda_fail(c"*".as_ptr(), 2, 999);
        device_memory(64);
        assert_eq!(cuEventCreate(&mut 0, 2), 999);
        assert_eq!(count(c"events"), 0);
        softcuda_fail(c"*".as_ptr(), 1, 999);
        softcuda_fail(c"*".as_ptr(), 0, 0);
        let event = event();
        softcuda_fail(c"*".as_ptr(), 1, 999);
        assert_eq!(cuEventQuery(event), 0);
        assert_eq!(cuEventCreate(&mut 0, 2), 999);
    });
    ended.passed();
}

#[test]
fn a_sticky_failure_stays() {
    let ended = alone(&[("SOFTCUDA_FAIL", "cuEventCreate:1:700:sticky")], || {
        begin();
        assert_eq!(cuEventCreate(&mut 0, 2), 700);
        assert_eq!(cuMemAlloc_v2(&mut 0, 64), 700);
    });
    ended.passed();
}
