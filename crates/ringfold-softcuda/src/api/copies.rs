//! Copies and fills.

use std::ffi::c_uchar;

use crate::call::{Answer, Refusal};
use crate::driver::Driver;
use crate::memory::{copy, fill};
use crate::operation::{Operation, Route};
use crate::report::end;

calls! {
    cuMemcpyDtoHAsync_v2(driver, to: usize, from: usize, bytes: usize, stream: usize) {
        issue(driver, from, to, bytes, Route::Down, stream)
    }

    cuMemcpyHtoDAsync_v2(driver, to: usize, from: usize, bytes: usize, stream: usize) {
        issue(driver, from, to, bytes, Route::Up, stream)
    }

    cuMemcpyDtoDAsync_v2(driver, to: usize, from: usize, bytes: usize, stream: usize) {
        if from < to + bytes && to < from + bytes {
            end(format!("a copy from {from:#x} to {to:#x} overlaps itself"));
        }
        issue(driver, from, to, bytes, Route::Within, stream)
    }

    // The blocking copies take any host memory, as the real ones do, and wait for no stream but the
    // default one.
    cuMemcpyDtoH_v2(driver, to: usize, from: usize, bytes: usize) {
        default_is_idle(driver)?;
        let place = driver.memory.device(from, bytes);
        copy(place.unwrap_or_else(|why| end(format!("a copy, but {why}"))), to, bytes);
        Ok(())
    }

    cuMemcpyHtoD_v2(driver, to: usize, from: usize, bytes: usize) {
        default_is_idle(driver)?;
        let place = driver.memory.device(to, bytes);
        copy(from, place.unwrap_or_else(|why| end(format!("a copy, but {why}"))), bytes);
        Ok(())
    }

    cuMemsetD8_v2(driver, at: usize, byte: c_uchar, bytes: usize) {
        default_is_idle(driver)?;
        let place = driver.memory.device(at, bytes);
        fill(place.unwrap_or_else(|why| end(format!("a fill, but {why}"))), byte, bytes);
        Ok(())
    }

    cuMemsetD8Async(driver, at: usize, byte: c_uchar, bytes: usize, stream: usize) {
        if let Err(why) = driver.memory.addressed(at, bytes) {
            end(format!("a fill, but {why}"));
        }
        driver.enqueue(stream, Operation::Fill { at, byte, bytes })
    }
}

/// Enqueues a copy, whose memory must be there now and when it runs.
fn issue(
    driver: &'static Driver,
    from: usize,
    to: usize,
    bytes: usize,
    route: Route,
    stream: usize,
) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    let (host, devices): (Option<usize>, &[usize]) = match route {
        Route::Down => (Some(to), &[from]),
        Route::Up => (Some(from), &[to]),
        Route::Within => (None, &[from, to]),
    };
    for device in devices {
        if let Err(why) = driver.memory.device(*device, bytes) {
            end(format!("an asynchronous copy, but {why}"));
        }
    }
    if let Some(Err(why)) = host.map(|host| driver.memory.host(host, bytes)) {
        end(format!(
            "an asynchronous copy, but {why}: the real driver may block in the call"
        ));
    }
    driver.enqueue(stream, Operation::copy(from, to, bytes, route))
}

/// Waits for the default stream of the current context.
fn default_is_idle(driver: &'static Driver) -> Answer {
    driver.current()?;
    let stream = driver.stream(0).map_err(|_| Refusal::INVALID_CONTEXT)?;
    driver.until(|| stream.is_idle());
    Ok(())
}
