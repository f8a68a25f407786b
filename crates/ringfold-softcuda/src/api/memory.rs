//! Device memory, pinned memory, and what addresses are.

use std::ffi::{c_int, c_uint};

use crate::call::{Answer, Out, Refusal};
use crate::device::context_of;
use crate::memory::Known;

/// `CU_POINTER_ATTRIBUTE_*`.
const CONTEXT: c_uint = 1;
const MEMORY_TYPE: c_uint = 2;
const DEVICE_POINTER: c_uint = 3;
const HOST_POINTER: c_uint = 4;
const DEVICE_ORDINAL: c_uint = 9;
const RANGE_START: c_uint = 11;
const RANGE_BYTES: c_uint = 12;
/// `CU_MEMORYTYPE_*`.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;
/// The ordinal of memory that is no device's.
const NO_DEVICE: c_int = -2;

calls! {
    cuMemAlloc_v2(driver, address: Out<usize>, bytes: usize) {
        let _api = driver.api();
        let device = driver.current()?;
        address.put(driver.memory.allocate(device, bytes)?)
    }

    cuMemFree_v2(driver, address: usize) {
        driver.current()?;
        match driver.settings.free_waits {
            true => driver.when_idle(|| driver.memory.free(address)),
            false => driver.memory.free(address),
        }
    }

    cuMemHostRegister_v2(driver, start: usize, bytes: usize, flags: c_uint) {
        let _api = driver.api();
        let device = driver.current()?;
        driver.memory.register(device, start, bytes, flags)
    }

    cuMemHostUnregister(driver, start: usize) {
        let _api = driver.api();
        driver.current()?;
        driver.memory.unregister(start)
    }

    cuMemHostGetDevicePointer_v2(driver, device: Out<usize>, host: usize, flags: c_uint) {
        driver.current()?;
        if flags != 0 {
            return Err(Refusal::INVALID_VALUE);
        }
        device.put(driver.memory.device_pointer(host)?)
    }

    cuPointerGetAttribute(driver, value: Out<u8>, attribute: c_uint, address: usize) {
        let known = driver.memory.known(address).ok_or(Refusal::INVALID_VALUE)?;
        describe(value, attribute, Some(known))
    }

    cuPointerGetAttributes(
        driver,
        count: c_uint,
        attributes: Out<c_uint>,
        values: Out<Out<u8>>,
        address: usize,
    ) {
        let known = driver.memory.known(address);
        (0..count as usize).try_for_each(|index| {
            describe(values.at(index).get()?, attributes.at(index).get()?, known)
        })
    }
}

/// Answers one attribute of an address, as the type that it has in the interface; of an unknown
/// address, nothing.
fn describe(value: Out<u8>, attribute: c_uint, known: Option<Known>) -> Answer {
    let number = |of: fn(&Known) -> Option<usize>| known.as_ref().and_then(of).unwrap_or(0);
    let is_device = known.is_some_and(|known| known.is_device_memory);
    match attribute {
        CONTEXT => value
            .cast()
            .put(number(|known| Some(context_of(known.device)))),
        MEMORY_TYPE => value.cast().put(match known {
            None => 0,
            Some(_) if is_device => DEVICE,
            Some(_) => HOST,
        }),
        DEVICE_POINTER => value.cast().put(number(|known| known.device_address)),
        HOST_POINTER => value.cast().put(number(|known| known.host_address)),
        DEVICE_ORDINAL => {
            let device = known.map_or(NO_DEVICE, |known| known.device as c_int);
            value.cast().put(device)
        }
        RANGE_START => value.cast().put(number(|known| Some(known.start))),
        RANGE_BYTES => value.cast().put(number(|known| Some(known.bytes))),
        _ => Err(Refusal::INVALID_VALUE),
    }
}
