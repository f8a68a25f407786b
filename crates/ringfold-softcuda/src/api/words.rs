//! Stream memory operations.

use std::ffi::c_uint;

use crate::call::{Answer, Refusal};
use crate::driver::Driver;
use crate::operation::{Compare, Operation};

calls! {
    cuStreamWaitValue32_v2(driver, stream: usize, word: usize, value: u32, flags: c_uint) {
        let compare = Compare::from_flags(flags).ok_or(Refusal::INVALID_VALUE)?;
        check(driver, word)?;
        driver.enqueue(stream, Operation::Wait { word, value, compare })
    }

    cuStreamWriteValue32_v2(driver, stream: usize, word: usize, value: u32, flags: c_uint) {
        if flags != 0 {
            return Err(Refusal::INVALID_VALUE);
        }
        check(driver, word)?;
        driver.enqueue(stream, Operation::Write { word, value })
    }

    // Without a suffix they are version 1, which answers this unless a parameter of the kernel
    // module says otherwise.
    cuStreamWaitValue32(_driver, _stream: usize, _word: usize, _value: u32, _flags: c_uint) {
        Err(Refusal::NOT_SUPPORTED)
    }

    cuStreamWriteValue32(_driver, _stream: usize, _word: usize, _value: u32, _flags: c_uint) {
        Err(Refusal::NOT_SUPPORTED)
    }
}

/// Whether there is a word at `address`, and operations on it are supported.
fn check(driver: &Driver, address: usize) -> Answer {
    if !driver.settings.memory_operations {
        return Err(Refusal::NOT_SUPPORTED);
    }
    let place = driver.memory.addressed(address, size_of::<u32>());
    let aligned = place.is_ok_and(|place| place.is_multiple_of(align_of::<u32>()));
    aligned.then_some(()).ok_or(Refusal::INVALID_VALUE)
}
