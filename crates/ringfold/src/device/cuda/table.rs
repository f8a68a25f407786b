//! The driver's functions that are used, by the names that CUDA's library exports; HIP's are in
//! [`Platform`].
//!
//! The suffix belongs to the name: a function without it is the version of an old header, with
//! other arguments or another meaning. Stream memory operations without `_v2` are switched off
//! unless a parameter of the kernel module allows them. Names with `_ptsz` would mean another
//! default stream than torch's.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::platform::Platform;
use crate::sys::library::Library;

/// A table of function pointers: the field, the symbol, the arguments. All functions return a code.
/// Those that are `optional` may be missing.
macro_rules! functions {
    (
        $(#[$doc:meta])*
        $table:ident
        required { $($field:ident = $symbol:literal ($($argument:ty),*);)+ }
        optional { $($maybe:ident = $maybe_symbol:literal ($($maybe_argument:ty),*);)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $table {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> c_int,)+
            $(pub $maybe: Option<unsafe extern "C" fn($($maybe_argument),*) -> c_int>,)*
        }

        impl $table {
            /// Looks all of them up; the symbol that is missing, if one is.
            pub fn load(library: &Library, platform: Platform) -> Result<$table, &'static CStr> {
                let find = |name| library.symbol(platform.symbol(name)?);
                Ok($table {
                    $($field: {
                        let name = platform.symbol($symbol).unwrap_or($symbol);
                        let symbol = find($symbol).ok_or(name)?;
                        // SAFETY: the library exports under this name the function that `cuda.h`
                        // declares with these arguments.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> c_int,
                            >(symbol)
                        }
                    },)+
                    $($maybe: find($maybe_symbol).map(|symbol| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($maybe_argument),*) -> c_int,
                            >(symbol)
                        }
                    }),)*
                })
            }
        }
    };
}

/// `CUdevice`: an ordinal.
type Ordinal = c_int;
/// `CUdeviceptr`.
type Address = usize;
/// `CUcontext`, `CUstream`, `CUevent`, `CUmodule` and `CUfunction`: opaque pointers, which are only
/// handed back.
type Handle = usize;

/// `CUstreamBatchMemOpParams` of a word: a union of structures that begin alike.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchedValue {
    pub operation: c_uint,
    pub address: u64,
    pub value: u32,
    pub value_end: u32,
    pub flags: c_uint,
    pub rest: [u64; 2],
}

const _: () = assert!(size_of::<BatchedValue>() == 48);

functions! {
    /// The functions that all platforms have.
    Table
    required {
        initialize = c"cuInit"(c_uint);
        version = c"cuDriverGetVersion"(*mut c_int);
        error_name = c"cuGetErrorName"(c_int, *mut *const c_char);
        device_count = c"cuDeviceGetCount"(*mut c_int);
        device = c"cuDeviceGet"(*mut Ordinal, c_int);
        device_name = c"cuDeviceGetName"(*mut c_char, c_int, Ordinal);
        device_attribute = c"cuDeviceGetAttribute"(*mut c_int, c_int, Ordinal);
        device_uuid = c"cuDeviceGetUuid_v2"(*mut [u8; 16], Ordinal);
        device_bus_id = c"cuDeviceGetPCIBusId"(*mut c_char, c_int, Ordinal);
        priority_range = c"cuCtxGetStreamPriorityRange"(*mut c_int, *mut c_int);
        stream_create = c"cuStreamCreateWithPriority"(*mut Handle, c_uint, c_int);
        stream_destroy = c"cuStreamDestroy_v2"(Handle);
        stream_query = c"cuStreamQuery"(Handle);
        stream_wait_event = c"cuStreamWaitEvent"(Handle, Handle, c_uint);
        stream_is_capturing = c"cuStreamIsCapturing"(Handle, *mut c_int);
        event_create = c"cuEventCreate"(*mut Handle, c_uint);
        event_record = c"cuEventRecord"(Handle, Handle);
        event_query = c"cuEventQuery"(Handle);
        event_destroy = c"cuEventDestroy_v2"(Handle);
        host_register = c"cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
        host_unregister = c"cuMemHostUnregister"(*mut c_void);
        host_device_pointer = c"cuMemHostGetDevicePointer_v2"(*mut Address, *mut c_void, c_uint);
        pointer_attribute = c"cuPointerGetAttribute"(*mut c_void, c_int, Address);
        allocate = c"cuMemAlloc_v2"(*mut Address, usize);
        free = c"cuMemFree_v2"(Address);
        copy_to_host = c"cuMemcpyDtoHAsync_v2"(*mut c_void, Address, usize, Handle);
        copy_to_device = c"cuMemcpyHtoDAsync_v2"(Address, *const c_void, usize, Handle);
    }
    optional {
        wait_value = c"cuStreamWaitValue32_v2"(Handle, Address, u32, c_uint);
        write_value = c"cuStreamWriteValue32_v2"(Handle, Address, u32, c_uint);
        batch_values = c"cuStreamBatchMemOp_v2"(Handle, c_uint, *mut BatchedValue, c_uint);
        copy_within = c"cuMemcpyDtoDAsync_v2"(Address, Address, usize, Handle);
        module_load = c"cuModuleLoadData"(*mut Handle, *const c_char);
        module_unload = c"cuModuleUnload"(Handle);
        module_function = c"cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
        launch = c"cuLaunchKernel"(
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
            *const *const u64, *const c_void
        );
    }
}

functions! {
    /// Those that select a device for a thread, of CUDA.
    Contexts
    required {
        retain = c"cuDevicePrimaryCtxRetain"(*mut Handle, Ordinal);
        release = c"cuDevicePrimaryCtxRelease_v2"(Ordinal);
        push = c"cuCtxPushCurrent_v2"(Handle);
        pop = c"cuCtxPopCurrent_v2"(*mut Handle);
    }
    optional {}
}

functions! {
    /// The same, of HIP.
    DeviceOfThread
    required {
        get = c"hipGetDevice"(*mut c_int);
        set = c"hipSetDevice"(c_int);
    }
    optional {}
}
