//! AMD's HIP in place of CUDA: the same functions with other names.
//!
//! The functions that are used here have the same arguments, and codes the same numbers, with these
//! exceptions. A thread has a current device instead of a stack of contexts: HIP has functions for
//! contexts, but what a pop uncovers is not made current again. Attributes of devices have other
//! numbers. HIP's streams can wait for words only in memory that the device allocates, so they
//! count as unable to.

use std::ffi::{CStr, c_int};

/// Whose driver it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Platform {
    /// NVIDIA's.
    Cuda,
    /// AMD's.
    Hip,
}

/// The libraries that NVIDIA's driver and AMD's ROCm install, the newest first.
const CUDA_LIBRARIES: &[&str] = &["libcuda.so.1"];
const HIP_LIBRARIES: &[&str] = &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"];

/// Names in `cuda.h` and in `hip_runtime_api.h`.
const NAMES: &[(&CStr, &CStr)] = &[
    (c"cuInit", c"hipInit"),
    (c"cuDriverGetVersion", c"hipDriverGetVersion"),
    (c"cuGetErrorName", c"hipDrvGetErrorName"),
    (c"cuDeviceGetCount", c"hipGetDeviceCount"),
    (c"cuDeviceGet", c"hipDeviceGet"),
    (c"cuDeviceGetName", c"hipDeviceGetName"),
    (c"cuDeviceGetAttribute", c"hipDeviceGetAttribute"),
    (c"cuDeviceGetUuid_v2", c"hipDeviceGetUuid"),
    (c"cuDeviceGetPCIBusId", c"hipDeviceGetPCIBusId"),
    (
        c"cuCtxGetStreamPriorityRange",
        c"hipDeviceGetStreamPriorityRange",
    ),
    (
        c"cuStreamCreateWithPriority",
        c"hipStreamCreateWithPriority",
    ),
    (c"cuStreamDestroy_v2", c"hipStreamDestroy"),
    (c"cuStreamQuery", c"hipStreamQuery"),
    (c"cuStreamWaitEvent", c"hipStreamWaitEvent"),
    (c"cuStreamIsCapturing", c"hipStreamIsCapturing"),
    (c"cuEventCreate", c"hipEventCreateWithFlags"),
    (c"cuEventRecord", c"hipEventRecord"),
    (c"cuEventQuery", c"hipEventQuery"),
    (c"cuEventDestroy_v2", c"hipEventDestroy"),
    (c"cuMemHostRegister_v2", c"hipHostRegister"),
    (c"cuMemHostUnregister", c"hipHostUnregister"),
    (c"cuMemHostGetDevicePointer_v2", c"hipHostGetDevicePointer"),
    (c"cuPointerGetAttribute", c"hipPointerGetAttribute"),
    (c"cuMemAlloc_v2", c"hipMalloc"),
    (c"cuMemFree_v2", c"hipFree"),
    (c"cuMemcpyDtoHAsync_v2", c"hipMemcpyDtoHAsync"),
    (c"cuMemcpyHtoDAsync_v2", c"hipMemcpyHtoDAsync"),
    (c"hipGetDevice", c"hipGetDevice"),
    (c"hipSetDevice", c"hipSetDevice"),
];

impl Platform {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Platform::Cuda => "CUDA",
            Platform::Hip => "HIP",
        }
    }

    /// The name here of a function that CUDA calls `name`; nothing if there is none.
    pub fn symbol(self, name: &'static CStr) -> Option<&'static CStr> {
        match self {
            Platform::Cuda => Some(name),
            Platform::Hip => {
                let mut names = NAMES.iter();
                names.find(|(cuda, _)| *cuda == name).map(|(_, hip)| *hip)
            }
        }
    }

    /// The same for messages: a function without a name here has CUDA's.
    pub(super) fn call(self, name: &str) -> &str {
        let of = |text: &'static CStr| text.to_str().unwrap_or_default();
        let mut names = NAMES.iter();
        match self {
            Platform::Cuda => name,
            Platform::Hip => names
                .find(|(cuda, _)| of(cuda) == name)
                .map_or(name, |(_, hip)| of(hip)),
        }
    }

    /// The libraries that are looked for where none is named.
    pub(super) fn libraries(self) -> &'static [&'static str] {
        match self {
            Platform::Cuda => CUDA_LIBRARIES,
            Platform::Hip => HIP_LIBRARIES,
        }
    }

    /// The variable that names another library.
    pub(super) fn library_variable(self) -> &'static str {
        match self {
            Platform::Cuda => "RINGFOLD_CUDA_LIBRARY",
            Platform::Hip => "RINGFOLD_HIP_LIBRARY",
        }
    }

    /// What must be installed, at least.
    pub(super) fn oldest(self) -> &'static str {
        match self {
            Platform::Cuda => "the driver of CUDA 11.4",
            Platform::Hip => "ROCm 6.0",
        }
    }

    /// Major and minor number of a version as the driver writes it: 12080 is CUDA 12.8, 60342134 is
    /// HIP 6.3.
    pub(super) fn version(self, version: u32) -> (u32, u32) {
        match self {
            Platform::Cuda => (version / 1000, version % 1000 / 10),
            Platform::Hip => (version / 10_000_000, version / 100_000 % 100),
        }
    }

    /// The number of the attribute that counts a device's copy engines.
    pub(in crate::device) fn copy_engines_attribute(self) -> c_int {
        match self {
            Platform::Cuda => 40,
            Platform::Hip => 2,
        }
    }

    /// That of the attribute that says whether host memory can be pinned; none where it always can.
    pub(in crate::device) fn pins_memory_attribute(self) -> Option<c_int> {
        match self {
            Platform::Cuda => Some(99),
            Platform::Hip => None,
        }
    }
}
