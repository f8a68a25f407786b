//! Each error of a program that the driver finds, made on purpose.

mod program;

use program::*;

const STEPPED: (&str, &str) = ("SOFTCUDA_MODE", "stepped");
const AT_ONCE: (&str, &str) = ("SOFTCUDA_FREE", "at-once");
const BYTES: usize = 4096;

/// A copy to the host that waits for word 0 of the second value.
fn copy_behind_a_wait() -> (usize, Pinned, usize) {
    begin();
    let (stream, pinned, memory) = (stream(), Pinned::new(BYTES), device_memory(BYTES - 4));
    ok(cuStreamWaitValue32_v2(stream, pinned.device(0), 1, 0));
    ok(cuMemcpyDtoHAsync_v2(
        pinned.host() + 4,
        memory,
        BYTES - 4,
        stream,
    ));
    (stream, pinned, memory)
}

#[test]
fn the_host_cannot_touch_device_memory() {
    let ended = alone(&[], || {
        begin();
        let memory = device_memory(BYTES) as *mut u8;
        // SAFETY: mapped without access, so this faults, as the test wants.
        unsafe { memory.write_volatile(1) }
    });
    ended.ended_by(SIGSEGV, "");
}

#[test]
fn a_copy_of_memory_that_is_not_pinned_is_found() {
    let ended = alone(&[], || {
        begin();
        let (stream, memory) = (stream(), device_memory(64));
        let mut host = [0u8; 64];
        cuMemcpyDtoHAsync_v2(host.as_mut_ptr() as usize, memory, 64, stream);
    });
    ended.ended_by(SIGABRT, "is not registered: the real driver may block");
}

#[test]
fn a_copy_past_the_end_of_device_memory_is_found() {
    let ended = alone(&[], || {
        begin();
        let (stream, pinned, memory) = (stream(), Pinned::new(BYTES), device_memory(100));
        cuMemcpyHtoDAsync_v2(memory, pinned.host(), 101, stream);
    });
    ended.ended_by(SIGABRT, "is no device memory");
}

#[test]
fn a_copy_of_freed_memory_is_found_when_it_is_enqueued() {
    let ended = alone(&[], || {
        begin();
        let (stream, pinned, memory) = (stream(), Pinned::new(BYTES), device_memory(BYTES));
        ok(cuMemFree_v2(memory));
        cuMemcpyHtoDAsync_v2(memory, pinned.host(), BYTES, stream);
    });
    ended.ended_by(SIGABRT, "is freed");
}

#[test]
fn a_copy_of_memory_that_is_freed_before_it_runs_is_found() {
    let ended = alone(&[STEPPED, AT_ONCE], || {
        let (_, pinned, memory) = copy_behind_a_wait();
        run_all();
        ok(cuMemFree_v2(memory));
        pinned.store(0, 1);
        run_all();
    });
    ended.ended_by(SIGABRT, "an operation runs, but device memory");
}

#[test]
fn memory_freed_under_a_copy_is_found() {
    let ended = alone(&[STEPPED, AT_ONCE], || {
        let (_, pinned, memory) = copy_behind_a_wait();
        pinned.store(0, 1);
        // The wait ends, and the copy begins: only now does its target change.
        while pinned.load(1) == 0 {
            assert_ne!(softcuda_step(), 0);
        }
        cuMemFree_v2(memory);
    });
    ended.ended_by(SIGABRT, "is freed under a copy");
}

#[test]
fn memory_unpinned_under_a_copy_is_found() {
    let ended = alone(&[STEPPED], || {
        let (_, pinned, _) = copy_behind_a_wait();
        pinned.store(0, 1);
        while pinned.load(1) == 0 {
            assert_ne!(softcuda_step(), 0);
        }
        pinned.unpin();
    });
    ended.ended_by(SIGABRT, "is unregistered under a copy");
}

#[test]
fn a_word_unpinned_under_a_wait_is_found() {
    let ended = alone(&[STEPPED], || {
        begin();
        let (stream, pinned) = (stream(), Pinned::new(4));
        ok(cuStreamWaitValue32_v2(stream, pinned.device(0), 1, 0));
        run_all();
        ok(pinned.unpin());
        run_all();
    });
    ended.ended_by(SIGABRT, "an operation runs, but host memory");
}

/// A kernel that uses a word of device memory.
extern "C" fn look(address: usize) {
    softcuda_place(address, size_of::<u32>());
}

#[test]
fn a_kernel_that_uses_freed_memory_is_found() {
    let ended = alone(&[STEPPED, AT_ONCE], || {
        let (stream, pinned, _) = copy_behind_a_wait();
        let other = device_memory(BYTES);
        ok(softcuda_launch(stream, Some(look), other));
        ok(cuMemFree_v2(other));
        pinned.store(0, 1);
        run_all();
    });
    ended.ended_by(SIGABRT, "a kernel runs, but device memory");
}

#[test]
fn memory_freed_twice_is_found() {
    let ended = alone(&[], || {
        begin();
        let memory = device_memory(BYTES);
        ok(cuMemFree_v2(memory));
        cuMemFree_v2(memory);
    });
    ended.ended_by(SIGABRT, "is freed twice");
}

#[test]
fn a_busy_stream_that_is_destroyed_is_found() {
    let ended = alone(&[STEPPED], || {
        let (stream, ..) = copy_behind_a_wait();
        cuStreamDestroy_v2(stream);
    });
    ended.ended_by(SIGABRT, "is destroyed with work in it");
}

#[test]
fn a_destroyed_stream_that_is_used_is_found() {
    let ended = alone(&[], || {
        begin();
        let stream = stream();
        ok(cuStreamDestroy_v2(stream));
        cuStreamQuery(stream);
    });
    ended.ended_by(SIGABRT, "was destroyed or never made");
}

#[test]
fn a_destroyed_event_that_is_used_is_found() {
    let ended = alone(&[], || {
        begin();
        let event = event();
        ok(cuEventDestroy_v2(event));
        cuEventQuery(event);
    });
    ended.ended_by(SIGABRT, "was destroyed or never made");
}

#[test]
fn a_stream_that_synchronizes_with_the_default_stream_is_found() {
    let ended = alone(&[], || {
        begin();
        let mut stream = 0;
        cuStreamCreateWithPriority(&mut stream, 0, 0);
    });
    ended.ended_by(SIGABRT, "synchronizes with the default stream");
}

#[test]
fn work_for_a_captured_stream_is_found() {
    let ended = alone(&[], || {
        begin();
        let (stream, event) = (stream(), event());
        ok(cuEventRecord(event, stream));
        softcuda_capture(stream, 1);
        assert_eq!(get(|status| cuStreamIsCapturing(stream, status)), 1);
        cuEventRecord(event, stream);
    });
    ended.ended_by(SIGABRT, "which is captured");
}

#[test]
fn a_wait_that_lasts_is_reported_with_its_word() {
    let settings = [("SOFTCUDA_REPORT_MS", "1"), ("SOFTCUDA_ABORT_MS", "50")];
    let ended = alone(&settings, || {
        begin();
        let (stream, pinned) = (stream(), Pinned::new(8));
        pinned.store(1, 6);
        ok(cuStreamWaitValue32_v2(stream, pinned.device(1), 7, 0));
        ok(cuStreamWriteValue32_v2(stream, pinned.device(0), 1, 0));
        cuStreamSynchronize(stream);
    });
    let text = ended.text();
    for part in [
        "AtLeast 7",
        "1 operations behind it",
        "is 6\n",
        "a wait lasts 50 ms",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    ended.ended_by(SIGABRT, "blocked for");
}

#[test]
fn a_wrong_setting_is_named() {
    let ended = alone(&[("SOFTCUDA_MODE", "fast")], || {
        cuInit(0);
    });
    ended.ended_by(SIGABRT, "SOFTCUDA_MODE=fast is none of its modes");
}
