//! Streams.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;

use crate::call::{Out, Refusal};
use crate::device::context_of;

calls! {
    cuStreamCreateWithPriority(driver, stream: Out<usize>, flags: c_uint, priority: c_int) {
        stream.put(driver.create_stream(flags, priority)?)
    }

    cuStreamDestroy_v2(driver, stream: usize) {
        driver.destroy_stream(stream)
    }

    cuStreamQuery(driver, stream: usize) {
        match driver.stream(stream)?.is_idle() {
            true => Ok(()),
            false => Err(Refusal::NOT_READY),
        }
    }

    cuStreamSynchronize(driver, stream: usize) {
        let stream = driver.stream(stream)?;
        driver.until(|| stream.is_idle());
        Ok(())
    }

    cuStreamGetCtx(driver, stream: usize, context: Out<usize>) {
        context.put(context_of(driver.stream(stream)?.device))
    }

    cuStreamGetPriority(driver, stream: usize, priority: Out<c_int>) {
        priority.put(driver.stream(stream)?.priority)
    }

    cuStreamIsCapturing(driver, stream: usize, status: Out<c_int>) {
        // Relaxed: a test sets it, and orders its own calls.
        status.put(driver.stream(stream)?.capture.load(Ordering::Relaxed))
    }
}
