//! Events.

use std::ffi::c_uint;
use std::sync::Arc;

use crate::call::{Answer, Out, Refusal};
use crate::driver::{Driver, lock};
use crate::event::Event;
use crate::operation::Operation;
use crate::report::end;

calls! {
    cuEventCreate(driver, event: Out<usize>, _flags: c_uint) {
        let _api = driver.api();
        let (made, handle) = (Event::new(driver.current()?), driver.handle());
        lock(&driver.events).insert(handle, Arc::new(made));
        event.put(handle)
    }

    cuEventDestroy_v2(driver, event: usize) {
        event_at(driver, event);
        lock(&driver.events).remove(&event);
        Ok(())
    }

    cuEventRecord(driver, event: usize, stream: usize) {
        let event = event_at(driver, event);
        if driver.stream(stream)?.device != event.device {
            return Err(Refusal::INVALID_HANDLE);
        }
        driver.enqueue(stream, Operation::Record(event.record()))
    }

    cuEventQuery(driver, event: usize) {
        ready(event_at(driver, event).is_done())
    }

    cuEventSynchronize(driver, event: usize) {
        let event = event_at(driver, event);
        driver.until(|| event.is_done());
        Ok(())
    }

    cuStreamWaitEvent(driver, stream: usize, event: usize, _flags: c_uint) {
        match event_at(driver, event).latest() {
            Some(mark) => driver.enqueue(stream, Operation::Await(mark)),
            None => Ok(()),
        }
    }
}

fn ready(is_ready: bool) -> Answer {
    if is_ready {
        Ok(())
    } else {
        Err(Refusal::NOT_READY)
    }
}

fn event_at(driver: &Driver, handle: usize) -> Arc<Event> {
    let known = lock(&driver.events).get(&handle).cloned();
    known.unwrap_or_else(|| end(format!("event {handle:#x} was destroyed or never made")))
}
