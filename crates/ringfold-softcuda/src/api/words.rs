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

    cuStreamBatchMemOp_v2(
        driver,
        stream: usize,
        count: c_uint,
        parameters: *const Parameters,
        flags: c_uint
    ) {
        if flags != 0 || count > BATCH_MAX || (count > 0 && parameters.is_null()) {
            return Err(Refusal::INVALID_VALUE);
        }
        // SAFETY: the caller passes as many, as `cuda.h` declares it.
        let all = unsafe { std::slice::from_raw_parts(parameters, count as usize) };
        let operations = all.iter().map(|each| each.operation(driver));
        let operations: Vec<Operation> = operations.collect::<Result<_, _>>()?;
        operations.into_iter().try_for_each(|operation| driver.enqueue(stream, operation))
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

/// The most operations of a batch.
const BATCH_MAX: c_uint = 256;

const WAIT_VALUE: c_uint = 1;
const WRITE_VALUE: c_uint = 2;

/// `CUstreamBatchMemOpParams` of a word.
#[repr(C)]
pub struct Parameters {
    operation: c_uint,
    address: u64,
    value: u64,
    flags: c_uint,
    rest: [u64; 2],
}

impl Parameters {
    fn operation(&self, driver: &Driver) -> Result<Operation, Refusal> {
        let (word, value) = (self.address as usize, self.value as u32);
        check(driver, word)?;
        match (self.operation, Compare::from_flags(self.flags)) {
            (WAIT_VALUE, Some(compare)) => Ok(Operation::Wait {
                word,
                value,
                compare,
            }),
            (WRITE_VALUE, _) if self.flags == 0 => Ok(Operation::Write { word, value }),
            _ => Err(Refusal::INVALID_VALUE),
        }
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
