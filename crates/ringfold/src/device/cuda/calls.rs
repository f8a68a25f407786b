//! The driver's calls, each with the fact that makes it sound.
//!
//! Handles come from the driver and belong to an owner that outlives the call ([`Stream`],
//! [`Event`], [`Device`]), or the program vouches for them ([`ProgramStream::from_handle`]). The
//! context is current, because `Current` makes these calls.
//!
//! [`Stream`]: crate::device::Stream
//! [`Event`]: crate::device::Event
//! [`Device`]: crate::device::Device
//! [`ProgramStream::from_handle`]: crate::device::ProgramStream::from_handle

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;

use super::Driver;
use super::selection::{Outer, Selection};
use super::table::BatchedValue;
use crate::error::{Error, Result};
use crate::region::Region;

/// `CU_STREAM_NON_BLOCKING`: it does not synchronize with the default stream.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;
/// `CU_MEMHOSTREGISTER_PORTABLE` and `CU_MEMHOSTREGISTER_DEVICEMAP`: for all contexts, and with an
/// address for the device.
const REGISTER_FLAGS: c_uint = 1 | 2;
/// `CU_STREAM_WAIT_VALUE_GEQ`: at or past the value, on the circle of 32-bit numbers.
const AT_LEAST: c_uint = 0;
/// Of `CU_STREAM_WRITE_VALUE_*`: what the stream did before is visible before the value is.
const FENCED: c_uint = 0;
/// `CU_STREAM_MEM_OP_WAIT_VALUE_32` and `CU_STREAM_MEM_OP_WRITE_VALUE_32`.
const WAIT_VALUE: c_uint = 1;
const WRITE_VALUE: c_uint = 2;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const NOT_CAPTURING: c_int = 0;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE` and `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const MEMORY_TYPE: c_int = 2;
const DEVICE_ORDINAL: c_int = 9;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE_MEMORY: c_uint = 2;
/// `CUDA_ERROR_INVALID_VALUE`: of an address, that the driver does not know it.
const INVALID_VALUE: c_int = 1;
/// Room for a text of the driver.
const TEXT_BYTES: usize = 256;

/// Every call that follows is made on values that live until it returns. Its name for errors, the
/// function, its arguments; or, with `-> value`, the type of the value that it stores first.
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        $method:ident($($name:ident: $type:ty),*) $(-> $answer:ty)? =
            $call:literal $field:ident($($argument:expr),*);
    )+) => {$(
        $(#[$doc])*
        pub(in crate::device) fn $method(
            &self $(, $name: $type)*
        ) -> Result<calls!(@type $($answer)?)> {
            calls!(@body self, $call, $field, ($($answer)?), ($($argument),*))
        }
    )+};
    (@type) => { () };
    (@type $answer:ty) => { $answer };
    (@body $driver:ident, $call:literal, $field:ident, (), ($($argument:expr),*)) => {{
        // SAFETY: handles live, see the module; addresses are those of regions, whose makers vouch
        // for them until the work is done.
        let code = unsafe { ($driver.table.$field)($($argument),*) };
        $driver.check($call, code)
    }};
    (@body $driver:ident, $call:literal, $field:ident, ($answer:ty), ($($argument:expr),*)) => {{
        let mut answer = <$answer>::default();
        // SAFETY: as above; the driver stores a value of this type in `answer`.
        let code = unsafe { ($driver.table.$field)(&mut answer, $($argument),*) };
        $driver.check($call, code).map(|()| answer)
    }};
}

impl Driver {
    calls! {
        initialize() = "cuInit" initialize(0);
        driver_version() -> c_int = "cuDriverGetVersion" version();
        count() -> c_int = "cuDeviceGetCount" device_count();
        device_at(ordinal: c_int) -> c_int = "cuDeviceGet" device(ordinal);
        attribute(attribute: c_int, device: c_int) -> c_int =
            "cuDeviceGetAttribute" device_attribute(attribute, device);
        uuid(device: c_int) -> [u8; 16] = "cuDeviceGetUuid_v2" device_uuid(device);
        create_stream(priority: c_int) -> usize =
            "cuStreamCreateWithPriority" stream_create(NON_BLOCKING, priority);
        destroy_stream(stream: usize) = "cuStreamDestroy_v2" stream_destroy(stream);
        wait_event(stream: usize, event: usize) =
            "cuStreamWaitEvent" stream_wait_event(stream, event, 0);
        create_event() -> usize = "cuEventCreate" event_create(DISABLE_TIMING);
        record_event(event: usize, stream: usize) = "cuEventRecord" event_record(event, stream);
        destroy_event(event: usize) = "cuEventDestroy_v2" event_destroy(event);
        register(memory: Region) = "cuMemHostRegister_v2"
            host_register(memory.address().cast(), memory.bytes(), REGISTER_FLAGS);
        unregister(memory: Region) =
            "cuMemHostUnregister" host_unregister(memory.address().cast());
        device_pointer(memory: Region) -> usize =
            "cuMemHostGetDevicePointer_v2" host_device_pointer(memory.address().cast(), 0);
        allocate(bytes: usize) -> usize = "cuMemAlloc_v2" allocate(bytes);
        free(address: usize) = "cuMemFree_v2" free(address);
        copy_to_host(into: Region, from: usize, stream: usize) = "cuMemcpyDtoHAsync_v2"
            copy_to_host(into.address().cast(), from, into.bytes(), stream);
        copy_to_device(into: usize, from: Region, stream: usize) = "cuMemcpyHtoDAsync_v2"
            copy_to_device(into, from.address().cast(), from.bytes(), stream);
    }

    /// The version as the driver writes it.
    pub(super) fn read_version(&self) -> Result<u32> {
        self.driver_version().map(|version| version.max(0) as u32)
    }

    /// How many devices this process sees.
    pub fn devices(&self) -> Result<usize> {
        self.count().map(|count| count.max(0) as usize)
    }

    /// The highest priority that streams can have: the lowest number.
    pub(in crate::device) fn highest_priority(&self) -> Result<c_int> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the driver stores two numbers.
        let code = unsafe { (self.table.priority_range)(&mut least, &mut greatest) };
        self.check("cuCtxGetStreamPriorityRange", code)?;
        Ok(greatest)
    }

    /// The device's name.
    pub(in crate::device) fn name(&self, device: c_int) -> Result<String> {
        let mut text = [0; TEXT_BYTES];
        let room = TEXT_BYTES as c_int;
        // SAFETY: the driver stores a text of at most `room` bytes, its final zero included.
        let code = unsafe { (self.table.device_name)(text.as_mut_ptr(), room, device) };
        self.check("cuDeviceGetName", code).map(|()| read(&text))
    }

    /// Where the device is on the bus: `domain:bus:device.function`.
    pub(in crate::device) fn bus_id(&self, device: c_int) -> Result<String> {
        let mut text = [0; TEXT_BYTES];
        let room = TEXT_BYTES as c_int;
        // SAFETY: as in `name`.
        let code = unsafe { (self.table.device_bus_id)(text.as_mut_ptr(), room, device) };
        self.check("cuDeviceGetPCIBusId", code)
            .map(|()| read(&text))
    }

    /// Whether a stream's work is done.
    pub(in crate::device) fn is_idle(&self, stream: usize) -> Result<bool> {
        // SAFETY: the stream lives, see the module.
        let code = unsafe { (self.table.stream_query)(stream) };
        self.is_done("cuStreamQuery", code)
    }

    /// Whether the work before an event's latest record is done.
    pub(in crate::device) fn is_reached(&self, event: usize) -> Result<bool> {
        // SAFETY: the event lives, see the module.
        let code = unsafe { (self.table.event_query)(event) };
        self.is_done("cuEventQuery", code)
    }

    /// Whether work for a stream becomes part of a graph instead of running.
    pub(in crate::device) fn is_capturing(&self, stream: usize) -> Result<bool> {
        let mut status = NOT_CAPTURING;
        // SAFETY: the stream lives, see the module; the driver stores a number.
        let code = unsafe { (self.table.stream_is_capturing)(stream, &mut status) };
        self.check("cuStreamIsCapturing", code)
            .map(|()| status != NOT_CAPTURING)
    }

    /// Has a stream wait until the word at a device's address is at or past `value`.
    pub(in crate::device) fn wait_value(
        &self,
        stream: usize,
        word: usize,
        value: u32,
    ) -> Result<()> {
        let wait = self.table.wait_value.ok_or_else(no_memory_operations)?;
        // SAFETY: the stream lives; the address is that of a word in pinned memory.
        let code = unsafe { wait(stream, word, value, AT_LEAST) };
        self.check("cuStreamWaitValue32_v2", code)
    }

    /// Has a stream store `value` in the word at a device's address, after all before is visible.
    pub(in crate::device) fn write_value(
        &self,
        stream: usize,
        word: usize,
        value: u32,
    ) -> Result<()> {
        let write = self.table.write_value.ok_or_else(no_memory_operations)?;
        // SAFETY: as in `wait_value`.
        let code = unsafe { write(stream, word, value, FENCED) };
        self.check("cuStreamWriteValue32_v2", code)
    }

    /// Has a stream store a value as `write_value` does, and then wait as `wait_value` does, for
    /// words and values: by one call if the driver has such a call.
    pub(in crate::device) fn write_and_wait(
        &self,
        stream: usize,
        written: (usize, u32),
        awaited: (usize, u32),
    ) -> Result<()> {
        let Some(batch) = self.table.batch_values else {
            self.write_value(stream, written.0, written.1)?;
            return self.wait_value(stream, awaited.0, awaited.1);
        };
        let value = |operation, (address, value), flags| BatchedValue {
            operation,
            address: address as u64,
            value,
            flags,
            ..BatchedValue::default()
        };
        let mut values = [
            value(WRITE_VALUE, written, FENCED),
            value(WAIT_VALUE, awaited, AT_LEAST),
        ];
        // SAFETY: as in `wait_value`; as many values as are counted, which the driver copies.
        let code = unsafe { batch(stream, values.len() as c_uint, values.as_mut_ptr(), 0) };
        self.check("cuStreamBatchMemOp_v2", code)
    }

    /// Copies between memory of one device.
    pub(in crate::device) fn copy_within(
        &self,
        into: usize,
        from: usize,
        bytes: usize,
        stream: usize,
    ) -> Result<()> {
        let copy = self.table.copy_within.ok_or_else(no_kernels)?;
        // SAFETY: the stream lives; addresses are those of regions, see the module.
        let code = unsafe { copy(into, from, bytes, stream) };
        self.check("cuMemcpyDtoDAsync_v2", code)
    }

    /// Compiles a text of kernels.
    pub(in crate::device) fn load_module(&self, text: &CStr) -> Result<usize> {
        let load = self.table.module_load.ok_or_else(no_kernels)?;
        let mut module = 0;
        // SAFETY: a text that ends with a zero; the driver stores a handle.
        let code = unsafe { load(&mut module, text.as_ptr()) };
        self.check("cuModuleLoadData", code).map(|()| module)
    }

    /// Gives a module back, of which nothing runs.
    pub(in crate::device) fn unload_module(&self, module: usize) -> Result<()> {
        let unload = self.table.module_unload.ok_or_else(no_kernels)?;
        // SAFETY: the module lives until then.
        let code = unsafe { unload(module) };
        self.check("cuModuleUnload", code)
    }

    /// The kernel of this name.
    pub(in crate::device) fn function(&self, module: usize, name: &CStr) -> Result<usize> {
        let find = self.table.module_function.ok_or_else(no_kernels)?;
        let mut function = 0;
        // SAFETY: the module lives; a text that ends with a zero; the driver stores a handle.
        let code = unsafe { find(&mut function, module, name.as_ptr()) };
        self.check("cuModuleGetFunction", code).map(|()| function)
    }

    /// Enqueues a kernel whose parameters are these numbers, in `grid` blocks and threads of each.
    pub(in crate::device) fn launch(
        &self,
        function: usize,
        grid: [u32; 2],
        arguments: &[u64],
        stream: usize,
    ) -> Result<()> {
        let launch = self.table.launch.ok_or_else(no_kernels)?;
        let pointers: Vec<*const u64> = arguments.iter().map(ptr::from_ref).collect();
        let ([blocks, threads], none) = (grid, ptr::null());
        let list = pointers.as_ptr();
        // SAFETY: the kernel and the stream live; the driver copies the arguments, as many as the
        // kernel has (see `Kernel`); what the kernel accesses is that of regions, see the module.
        let code = unsafe { launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, list, none) };
        self.check("cuLaunchKernel", code)
    }

    /// The device whose memory is at `address`; nothing for host memory.
    pub fn device_of(&self, address: usize) -> Result<Option<usize>> {
        let mut kind: c_uint = 0;
        // SAFETY: this attribute is stored as an unsigned number.
        let code =
            unsafe { (self.table.pointer_attribute)((&raw mut kind).cast(), MEMORY_TYPE, address) };
        if code == INVALID_VALUE || (code == 0 && kind != DEVICE_MEMORY) {
            return Ok(None);
        }
        self.check("cuPointerGetAttribute", code)?;
        let mut ordinal: c_int = 0;
        // SAFETY: this attribute is stored as a number.
        let code = unsafe {
            (self.table.pointer_attribute)((&raw mut ordinal).cast(), DEVICE_ORDINAL, address)
        };
        self.check("cuPointerGetAttribute", code)?;
        Ok(usize::try_from(ordinal).ok())
    }
}

impl Driver {
    /// The primary context of a device, which stays until it is released.
    pub(in crate::device) fn retain(&self, device: c_int) -> Result<usize> {
        match &self.selection {
            Selection::Contexts(contexts) => {
                let mut context = 0;
                // SAFETY: the driver stores a handle.
                let code = unsafe { (contexts.retain)(&mut context, device) };
                self.check("cuDevicePrimaryCtxRetain", code)
                    .map(|()| context)
            }
            Selection::Device(_) => Ok(device as usize),
        }
    }

    /// Gives back what `retain` has given.
    pub(in crate::device) fn release(&self, device: c_int) -> Result<()> {
        match &self.selection {
            Selection::Contexts(contexts) => {
                // SAFETY: it was retained.
                let code = unsafe { (contexts.release)(device) };
                self.check("cuDevicePrimaryCtxRelease_v2", code)
            }
            Selection::Device(_) => Ok(()),
        }
    }

    /// Has this thread's calls be about `context`, until `leave`.
    pub(in crate::device) fn enter(&self, context: usize) -> Result<Outer> {
        match &self.selection {
            Selection::Contexts(contexts) => {
                // SAFETY: the context is retained.
                let code = unsafe { (contexts.push)(context) };
                self.check("cuCtxPushCurrent_v2", code)
                    .map(|()| Outer(None))
            }
            Selection::Device(device) => {
                let mut outer = 0;
                // SAFETY: the driver stores a number.
                let code = unsafe { (device.get)(&mut outer) };
                self.check("hipGetDevice", code)?;
                // SAFETY: it takes a number.
                let code = unsafe { (device.set)(context as c_int) };
                self.check("hipSetDevice", code)
                    .map(|()| Outer(Some(outer)))
            }
        }
    }

    /// Has this thread's calls be about what they were about before `enter`.
    pub(in crate::device) fn leave(&self, outer: &Outer) -> Result<()> {
        match (&self.selection, outer) {
            (Selection::Contexts(contexts), _) => {
                let mut context = 0;
                // SAFETY: the driver stores a handle.
                let code = unsafe { (contexts.pop)(&mut context) };
                self.check("cuCtxPopCurrent_v2", code)
            }
            (Selection::Device(device), Outer(Some(outer))) => {
                // SAFETY: it takes a number.
                let code = unsafe { (device.set)(*outer) };
                self.check("hipSetDevice", code)
            }
            (Selection::Device(_), Outer(None)) => Ok(()),
        }
    }
}

fn no_kernels() -> Error {
    Error::Unsupported("this driver does not compile kernels from text".into())
}

fn no_memory_operations() -> Error {
    Error::Unsupported(
        "streams cannot wait for words with this driver: that needs CUDA 11.7 or newer, and is not
         done with HIP"
            .into(),
    )
}

/// A text of the driver, up to its zero.
fn read(text: &[c_char; TEXT_BYTES]) -> String {
    let bytes = text.map(|byte| byte as u8);
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    text.to_string_lossy().into_owned()
}
