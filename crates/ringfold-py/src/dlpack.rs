//! Reads a DLPack capsule: a tensor's memory, lent by another library.
//!
//! The structures are those of DLPack 1.x (`dlpack.h`); a producer that does not know `max_version`
//! returns the older one. The structures are checked before use. A capsule is consumed once: it is
//! renamed, and its deleter is called when the tensor is dropped. Memory of devices that the CPU
//! cannot read is refused, not copied.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi::PyCapsule_SetName;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use ringfold::DType;

use crate::exceptions::{invalid_argument, unsupported};
use crate::layout::{Layout, unknown_dtype};

/// `kDLCPU`, `kDLCUDAHost` and `kDLROCMHost`: memory that the CPU reads.
pub const HOST_DEVICES: [i32; 3] = [1, 3, 11];
/// The major version of the structures below.
pub const MAJOR: u32 = 1;
const FLAG_READ_ONLY: u64 = 1;
/// Flag of a copy that the producer made: writes to the copy would be lost.
const FLAG_COPIED: u64 = 2;
const DIMENSIONS_MAX: i32 = 64;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Device {
    pub kind: i32,
    number: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ElementType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
pub struct Tensor {
    pub data: *mut c_void,
    pub device: Device,
    pub dimensions: i32,
    pub element: ElementType,
    pub shape: *const i64,
    pub strides: *const i64,
    pub byte_offset: u64,
}

#[repr(C)]
struct Unversioned {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

const _: () = assert!(size_of::<Tensor>() == 48 && size_of::<Versioned>() == 80);

/// A tensor that another library lends; dropping the value calls the producer's deleter.
#[derive(Debug)]
pub enum Lent {
    Unversioned(NonNull<c_void>),
    Versioned(NonNull<c_void>),
}

// SAFETY: DLPack requires deleters to be callable from any thread; the memory itself is only
// described here.
unsafe impl Send for Lent {}
// SAFETY: a shared `Lent` offers nothing but its address.
unsafe impl Sync for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        match self {
            Lent::Unversioned(pointer) => {
                let managed = pointer.as_ptr().cast::<Unversioned>();
                // SAFETY: a capsule named `dltensor` holds this structure until its deleter runs,
                // once, here.
                if let Some(deleter) = unsafe { (*managed).deleter } {
                    // SAFETY: the producer's own function on the producer's own structure.
                    unsafe { deleter(managed) }
                }
            }
            Lent::Versioned(pointer) => {
                let managed = pointer.as_ptr().cast::<Versioned>();
                // SAFETY: as above for `dltensor_versioned`; `deleter` is at the same offset in
                // every version.
                if let Some(deleter) = unsafe { (*managed).deleter } {
                    // SAFETY: as above.
                    unsafe { deleter(managed) }
                }
            }
        }
    }
}

/// Borrows the memory of an object that supports DLPack.
pub fn borrow(object: &Bound<'_, PyAny>) -> PyResult<(Layout, Lent)> {
    let (device, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    check_device(device)?;
    let capsule = export(object)?.cast_into::<PyCapsule>()?;
    let lent = consume(&capsule)?;
    let (tensor, flags) = match &lent {
        Lent::Unversioned(pointer) => {
            // SAFETY: the capsule's name vouches for the structure, which lives as long as `lent`.
            let managed = unsafe { pointer.cast::<Unversioned>().as_ref() };
            (&managed.tensor, 0)
        }
        Lent::Versioned(pointer) => {
            // SAFETY: as above; the major version was checked by `consume`.
            let managed = unsafe { pointer.cast::<Versioned>().as_ref() };
            (&managed.tensor, managed.flags)
        }
    };
    let layout = describe(tensor, flags)?;
    Ok((layout, lent))
}

fn export<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let version = PyDict::new(py);
    version.set_item("max_version", (MAJOR, 0))?;
    match object.call_method("__dlpack__", (), Some(&version)) {
        // A producer older than DLPack 1.0 does not know the argument.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__"),
        answer => answer,
    }
}

/// Takes the tensor out of its capsule.
fn consume(capsule: &Bound<'_, PyCapsule>) -> PyResult<Lent> {
    let versioned = capsule.is_valid_checked(Some(c"dltensor_versioned"));
    let (name, used): (&CStr, &CStr) = if versioned {
        (c"dltensor_versioned", c"used_dltensor_versioned")
    } else {
        (c"dltensor", c"used_dltensor")
    };
    let pointer = capsule.pointer_checked(Some(name))?;
    if versioned {
        // SAFETY: the version is the first field of every version of the structure.
        let major = unsafe { pointer.cast::<Versioned>().as_ref().major };
        if major != MAJOR {
            return Err(unsupported(format!(
                "DLPack {major}; this build reads version {MAJOR}"
            )));
        }
    }
    // SAFETY: a live capsule and a static name. The new name stops the capsule from deleting the
    // tensor, which is ours now.
    if unsafe { PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
        return Err(PyErr::fetch(capsule.py()));
    }
    Ok(if versioned {
        Lent::Versioned(pointer)
    } else {
        Lent::Unversioned(pointer)
    })
}

fn describe(tensor: &Tensor, flags: u64) -> PyResult<Layout> {
    check_device(tensor.device.kind)?;
    let dtype = dtype_of(tensor.element)?;
    if !(0..=DIMENSIONS_MAX).contains(&tensor.dimensions) {
        return Err(invalid_argument(format!(
            "a DLPack tensor of {} dimensions; at most {DIMENSIONS_MAX}",
            tensor.dimensions
        )));
    }
    let dimensions = tensor.dimensions as usize;
    let shape = list(tensor.shape, dimensions)
        .unwrap_or_default()
        .iter()
        .map(|&length| usize::try_from(length))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| invalid_argument("a DLPack tensor with a negative length"))?;
    let item_bytes = dtype.size_bytes() as i64;
    let strides = match list(tensor.strides, dimensions) {
        None => None,
        Some(strides) => Some(
            strides
                .iter()
                .map(|stride| stride.checked_mul(item_bytes).map(|bytes| bytes as isize))
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| invalid_argument("a DLPack tensor with an invalid stride"))?,
        ),
    };
    let offset = usize::try_from(tensor.byte_offset)
        .map_err(|_| invalid_argument("a DLPack tensor with an invalid offset"))?;
    let address = tensor.data.cast::<u8>().wrapping_add(offset);
    let read_only = flags & (FLAG_READ_ONLY | FLAG_COPIED) != 0;
    Layout::new(address, dtype, shape, strides, read_only)
}

/// Returns `length` numbers of the producer; `None` if there are none.
pub fn list<'a>(start: *const i64, length: usize) -> Option<&'a [i64]> {
    if start.is_null() {
        return None;
    }
    // SAFETY: DLPack provides `dimensions` numbers at a non-null `shape` or `strides`, alive with
    // the tensor.
    Some(unsafe { std::slice::from_raw_parts(start, length) })
}

fn check_device(kind: i32) -> PyResult<()> {
    if HOST_DEVICES.contains(&kind) {
        return Ok(());
    }
    Err(unsupported(format!(
        "the array is on a device (DLPack device type {kind}); copy it to host memory first"
    )))
}

fn dtype_of(element: ElementType) -> PyResult<DType> {
    let ElementType { code, bits, lanes } = element;
    known_dtype(element).ok_or_else(|| match code {
        5 => unknown_dtype(&format!("complex{bits}")),
        _ => unsupported(format!(
            "unsupported data type (DLPack code {code}, {bits} bits, {lanes} lanes)"
        )),
    })
}

/// Returns the core's type of these elements, if there is one.
pub fn known_dtype(element: ElementType) -> Option<DType> {
    let ElementType { code, bits, lanes } = element;
    Some(match (code, bits) {
        _ if lanes != 1 => return None,
        (0, 8) => DType::I8,
        (0, 16) => DType::I16,
        (0, 32) => DType::I32,
        (0, 64) => DType::I64,
        (1, 8) => DType::U8,
        (1, 16) => DType::U16,
        (1, 32) => DType::U32,
        (1, 64) => DType::U64,
        (2, 16) => DType::F16,
        (2, 32) => DType::F32,
        (2, 64) => DType::F64,
        (4, 16) => DType::BF16,
        (6, 8) => DType::Bool,
        (10, 8) => DType::F8E4M3,
        (12, 8) => DType::F8E5M2,
        _ => return None,
    })
}
