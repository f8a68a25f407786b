//! The same functions by HIP's names.

use std::ffi::{c_char, c_int, c_uint};

use super::{copies, devices, events, memory, streams};
use crate::call::{Out, Refusal};

/// `hipDeviceAttributeAsyncEngineCount`, and how many there are.
const ASYNC_ENGINE_COUNT: c_int = 2;
const ENGINES: c_int = 2;

/// Exported functions that are others by another name.
macro_rules! aliases {
    ($($name:ident($($argument:ident: $type:ty),*) = $module:ident::$target:ident;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> c_int {
            $module::$target($($argument),*)
        }
    )*};
}

aliases! {
    hipInit(flags: c_uint) = devices::cuInit;
    hipDrvGetErrorName(code: c_int, name: Out<*const c_char>) = devices::cuGetErrorName;
    hipGetDeviceCount(count: Out<c_int>) = devices::cuDeviceGetCount;
    hipDeviceGet(device: Out<c_int>, ordinal: c_int) = devices::cuDeviceGet;
    hipDeviceGetName(name: Out<c_char>, room: c_int, device: c_int) = devices::cuDeviceGetName;
    hipDeviceGetUuid(uuid: Out<u8>, device: c_int) = devices::cuDeviceGetUuid_v2;
    hipDeviceGetPCIBusId(text: Out<c_char>, room: c_int, device: c_int)
        = devices::cuDeviceGetPCIBusId;
    hipDeviceGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>)
        = devices::cuCtxGetStreamPriorityRange;
    hipStreamCreateWithPriority(stream: Out<usize>, flags: c_uint, priority: c_int)
        = streams::cuStreamCreateWithPriority;
    hipStreamDestroy(stream: usize) = streams::cuStreamDestroy_v2;
    hipStreamQuery(stream: usize) = streams::cuStreamQuery;
    hipStreamIsCapturing(stream: usize, status: Out<c_int>) = streams::cuStreamIsCapturing;
    hipStreamWaitEvent(stream: usize, event: usize, flags: c_uint) = events::cuStreamWaitEvent;
    hipEventCreateWithFlags(event: Out<usize>, flags: c_uint) = events::cuEventCreate;
    hipEventRecord(event: usize, stream: usize) = events::cuEventRecord;
    hipEventQuery(event: usize) = events::cuEventQuery;
    hipEventDestroy(event: usize) = events::cuEventDestroy_v2;
    hipHostRegister(start: usize, bytes: usize, flags: c_uint) = memory::cuMemHostRegister_v2;
    hipHostUnregister(start: usize) = memory::cuMemHostUnregister;
    hipHostGetDevicePointer(device: Out<usize>, host: usize, flags: c_uint)
        = memory::cuMemHostGetDevicePointer_v2;
    hipPointerGetAttribute(value: Out<u8>, attribute: c_uint, address: usize)
        = memory::cuPointerGetAttribute;
    hipMalloc(address: Out<usize>, bytes: usize) = memory::cuMemAlloc_v2;
    hipFree(address: usize) = memory::cuMemFree_v2;
    hipMemcpyDtoHAsync(to: usize, from: usize, bytes: usize, stream: usize)
        = copies::cuMemcpyDtoHAsync_v2;
    hipMemcpyHtoDAsync(to: usize, from: usize, bytes: usize, stream: usize)
        = copies::cuMemcpyHtoDAsync_v2;
}

calls! {
    hipDriverGetVersion(driver, version: Out<c_int>) {
        version.put(driver.settings.hip_version)
    }

    hipDeviceGetAttribute(driver, value: Out<c_int>, attribute: c_int, device: c_int) {
        driver.device(device)?;
        match attribute {
            ASYNC_ENGINE_COUNT => value.put(ENGINES),
            _ => Err(Refusal::INVALID_VALUE),
        }
    }

    hipGetDevice(driver, device: Out<c_int>) {
        device.put(driver.set_device() as c_int)
    }

    hipSetDevice(driver, device: c_int) {
        driver.device(device)?;
        driver.change_set_device(device as usize);
        Ok(())
    }
}
