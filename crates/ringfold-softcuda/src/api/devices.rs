//! The driver, its devices and contexts.

use std::ffi::{c_char, c_int, c_uint};

use crate::call::{Out, Refusal, name_of};
use crate::device::context_of;

/// `CU_DEVICE_ATTRIBUTE_*`.
const PCI_BUS_ID: c_int = 33;
const PCI_DEVICE_ID: c_int = 34;
const ASYNC_ENGINE_COUNT: c_int = 40;
const UNIFIED_ADDRESSING: c_int = 41;
const PCI_DOMAIN_ID: c_int = 50;
const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;
const HOST_REGISTER_SUPPORTED: c_int = 99;
/// Stream priorities: the least, and the greatest.
const PRIORITIES: (c_int, c_int) = (0, -5);
/// How many bytes a UUID has.
const UUID_BYTES: usize = 16;

calls! {
    cuInit(driver, flags: c_uint) {
        if flags != 0 {
            return Err(Refusal::INVALID_VALUE);
        }
        driver.calls.initialize();
        Ok(())
    }

    cuDriverGetVersion(driver, version: Out<c_int>) {
        version.put(driver.settings.version)
    }

    cuGetErrorName(_driver, code: c_int, name: Out<*const c_char>) {
        let known = name_of(code);
        name.put(known.map_or(std::ptr::null(), |name| name.as_ptr()))?;
        known.map(|_| ()).ok_or(Refusal::INVALID_VALUE)
    }

    cuDeviceGetCount(driver, count: Out<c_int>) {
        count.put(driver.devices.len() as c_int)
    }

    cuDeviceGet(driver, device: Out<c_int>, ordinal: c_int) {
        driver.device(ordinal)?;
        device.put(ordinal)
    }

    cuDeviceGetName(driver, name: Out<c_char>, room: c_int, device: c_int) {
        driver.device(device)?;
        name.put_text("softcuda", room)
    }

    cuDeviceGetAttribute(driver, value: Out<c_int>, attribute: c_int, device: c_int) {
        driver.device(device)?;
        value.put(match attribute {
            PCI_BUS_ID => device,
            ASYNC_ENGINE_COUNT => 2,
            PCI_DOMAIN_ID => 0xffff,
            UNIFIED_ADDRESSING | HOST_REGISTER_SUPPORTED => 1,
            COMPUTE_CAPABILITY_MAJOR => 9,
            PCI_DEVICE_ID | COMPUTE_CAPABILITY_MINOR => 0,
            _ => 0,
        })
    }

    cuDeviceGetUuid_v2(driver, uuid: Out<u8>, device: c_int) {
        let bytes = driver.device(device)?.uuid;
        uuid.cast::<[u8; UUID_BYTES]>().put(bytes)
    }

    cuDeviceGetPCIBusId(driver, text: Out<c_char>, room: c_int, device: c_int) {
        text.put_text(&driver.device(device)?.bus_id, room)
    }

    cuDevicePrimaryCtxRetain(driver, context: Out<usize>, device: c_int) {
        driver.device(device)?.retain();
        context.put(context_of(device as usize))
    }

    cuDevicePrimaryCtxRelease_v2(driver, device: c_int) {
        driver.device(device)?.release()
    }

    cuCtxPushCurrent_v2(driver, context: usize) {
        driver.push(context)
    }

    cuCtxPopCurrent_v2(driver, context: Out<usize>) {
        context.put(driver.pop()?)
    }

    cuCtxGetCurrent(driver, context: Out<usize>) {
        context.put(driver.top())
    }

    cuCtxGetDevice(driver, device: Out<c_int>) {
        device.put(driver.current()? as c_int)
    }

    cuCtxGetStreamPriorityRange(driver, least: Out<c_int>, greatest: Out<c_int>) {
        driver.current()?;
        least.put(PRIORITIES.0)?;
        greatest.put(PRIORITIES.1)
    }
}
