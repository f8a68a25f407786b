//! The usual arrays, read without Python code: NumPy arrays by the structure that NumPy publishes
//! for C, and torch tensors by DLPack's exchange functions (torch 2.10 and later).
//!
//! An array is *usual* if its class is the framework's own, its memory is the host's, its elements
//! follow each other in C order, aligned, and their type is one of the core's. All other arrays are
//! for [`sources`](crate::sources), which also knows what to say about them.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyDict};
use ringfold::{DType, Region};

use crate::dlpack::{HOST_DEVICES, MAJOR, Tensor, known_dtype, list};
use crate::layout::Kind;

/// The memory of a usual array, valid as long as the array is held and its elements do not move.
#[derive(Clone, Copy, Debug)]
pub struct Usual<'a> {
    pub address: *mut u8,
    pub dtype: DType,
    /// The lengths of the axes, none of which is negative.
    pub shape: &'a [i64],
    pub is_read_only: bool,
    pub kind: Kind,
}

impl Usual<'_> {
    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().map(|&length| length as usize).product()
    }

    /// Returns the bytes of the elements.
    pub fn region(&self) -> Region {
        match self.count() * self.dtype.size_bytes() {
            0 => Region::EMPTY,
            // SAFETY: the framework's word for it; every call holds the array.
            bytes => unsafe { Region::new(self.address, bytes) },
        }
    }

    /// Returns the array if its elements are where an array's elements can be.
    fn checked(self) -> Option<Self> {
        let is_aligned = self.address.addr().is_multiple_of(self.dtype.size_bytes());
        let is_somewhere = !self.address.is_null() || self.count() == 0;
        (is_aligned && is_somewhere).then_some(self)
    }
}

/// Returns the memory of `object` if it is a usual array.
pub fn usual<'a>(object: &'a Bound<'_, PyAny>) -> Option<Usual<'a>> {
    let class = object.get_type_ptr();
    match known(object.py(), class)? {
        Class::Array => array(object),
        Class::Tensor(torch) => tensor(object, torch),
    }
}

/// The classes of usual arrays.
enum Class {
    Array,
    Tensor(&'static Torch),
}

/// NumPy's class of arrays, if it is imported and has the expected structure.
static NUMPY: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
static TORCH: PyOnceLock<Option<Torch>> = PyOnceLock::new();

/// The class that was last found not to be that of usual arrays.
static OTHER: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());

fn known(py: Python<'_>, class: *mut ffi::PyTypeObject) -> Option<Class> {
    let is = |known: &Py<PyAny>| known.as_ptr().cast() == class;
    let is_array = |numpy: &Option<Py<PyAny>>| numpy.as_ref().is_some_and(is);
    if NUMPY.get(py).is_some_and(is_array) {
        return Some(Class::Array);
    }
    if let Some(Some(torch)) = TORCH.get(py)
        && torch.classes.iter().any(is)
    {
        return Some(Class::Tensor(torch));
    }
    // Pairs with nothing: the value is only compared.
    if OTHER.load(Ordering::Relaxed) == class {
        return None;
    }
    let has_learnt = learn(py);
    match has_learnt {
        true => known(py, class),
        false => {
            OTHER.store(class, Ordering::Relaxed);
            None
        }
    }
}

/// Looks for frameworks that were imported meanwhile; returns whether there is a new one.
fn learn(py: Python<'_>) -> bool {
    let modules = py.import("sys").and_then(|sys| sys.getattr("modules"));
    let Ok(modules) = modules.and_then(|modules| Ok(modules.cast_into::<PyDict>()?)) else {
        return false;
    };
    let imported = |name: &str| modules.get_item(name).ok().flatten();
    let mut has_learnt = false;
    if NUMPY.get(py).is_none()
        && let Some(Ok(class)) = imported("numpy").map(|numpy| numpy.getattr("ndarray"))
    {
        let class = is_as_published(&class)
            .unwrap_or(false)
            .then(|| class.unbind());
        has_learnt |= NUMPY.set(py, class).is_ok();
    }
    if TORCH.get(py).is_none()
        && imported("torch.nn").is_some()
        && let Some(torch) = imported("torch")
        && torch.hasattr("autograd").unwrap_or(false)
    {
        has_learnt |= TORCH.set(py, Torch::find(&torch).ok().flatten()).is_ok();
    }
    has_learnt
}

/// `PyArrayObject_fields`, the same in all versions of NumPy: macros of its interface for C read
/// the fields.
#[repr(C)]
struct Array {
    head: [usize; 2],
    data: *mut u8,
    dimensions: c_int,
    shape: *const i64,
    strides: *const i64,
    base: *mut ffi::PyObject,
    element: *const Element,
    flags: c_int,
}

/// The first fields of `PyArray_Descr`, the same in all versions of NumPy.
#[repr(C)]
struct Element {
    head: [usize; 2],
    class: *mut ffi::PyTypeObject,
    kind: u8,
    letter: u8,
    byte_order: u8,
    flags: u8,
    number: c_int,
}

const _: () = assert!(size_of::<Array>() == 72 && size_of::<usize>() == 8);

const IN_C_ORDER: c_int = 0x1;
const ALIGNED: c_int = 0x100;
const WRITABLE: c_int = 0x400;

/// Returns whether `class`, of arrays of NumPy, has the structure above.
fn is_as_published(class: &Bound<'_, PyAny>) -> PyResult<bool> {
    let bytes: usize = class.getattr("__basicsize__")?.extract()?;
    let shape = [2i64, 3];
    let example = class.call1((shape.as_slice(), "float32"))?;
    let element = example.getattr("dtype")?;
    if bytes < size_of::<Array>() || !example.get_type().is(class) {
        return Ok(false);
    }
    let interface = example.getattr("__array_interface__")?;
    let (address, _): (usize, bool) = interface.get_item("data")?.extract()?;
    // SAFETY: an object of at least this size; only its first pointer is followed by NumPy's own.
    let found = unsafe { &*example.as_ptr().cast::<Array>() };
    if found.element.cast() != element.as_ptr() {
        return Ok(false);
    }
    Ok(array(&example).is_some_and(|found| {
        found.address.addr() == address && found.dtype == DType::F32 && found.shape == shape
    }))
}

fn array<'a>(object: &'a Bound<'_, PyAny>) -> Option<Usual<'a>> {
    // SAFETY: an array, whose structure was compared with the one above when its class was learnt.
    let array = unsafe { &*object.as_ptr().cast::<Array>() };
    // SAFETY: an array holds its element type.
    let element = unsafe { &*array.element };
    if array.flags & (IN_C_ORDER | ALIGNED) != IN_C_ORDER | ALIGNED
        || !matches!(element.byte_order, b'=' | b'|')
    {
        return None;
    }
    let usual = Usual {
        address: array.data,
        dtype: numbered(element.number)?,
        shape: list(array.shape, array.dimensions as usize).unwrap_or_default(),
        is_read_only: array.flags & WRITABLE == 0,
        kind: Kind::Buffer,
    };
    usual.checked()
}

/// Returns the element type with this number in NumPy (`NPY_TYPES`).
fn numbered(number: c_int) -> Option<DType> {
    Some(match number {
        0 => DType::Bool,
        1 => DType::I8,
        2 => DType::U8,
        3 => DType::I16,
        4 => DType::U16,
        5 => DType::I32,
        6 => DType::U32,
        7 | 9 => DType::I64,
        8 | 10 => DType::U64,
        11 => DType::F32,
        12 => DType::F64,
        23 => DType::F16,
        _ => return None,
    })
}

/// torch's classes and functions.
struct Torch {
    /// `torch.Tensor` and `torch.nn.Parameter`.
    classes: [Py<PyAny>; 2],
    is_neg: Py<PyAny>,
    describe: Describe,
}

/// Type of `DLPackDLTensorFromPyObjectNoSync`: describes a tensor, which the caller holds.
type Describe = unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int;

/// `DLPackExchangeAPI` of DLPack 1.3.
#[repr(C)]
struct Exchange {
    major: u32,
    minor: u32,
    previous: *const c_void,
    functions: [*const c_void; 3],
    describe: Option<Describe>,
}

const EXCHANGE: &CStr = c"dlpack_exchange_api";

impl Torch {
    /// Returns torch's classes and functions; `None` if this torch does not describe tensors in a
    /// way that is known here.
    fn find(torch: &Bound<'_, PyAny>) -> PyResult<Option<Torch>> {
        let class = torch.getattr("Tensor")?;
        let parameter = torch.getattr("nn")?.getattr("Parameter")?;
        let capsule = class.getattr("__dlpack_c_exchange_api__")?;
        let pointer = capsule
            .cast_into::<PyCapsule>()?
            .pointer_checked(Some(EXCHANGE))?;
        // SAFETY: the structure of this name, which begins with its version and lives forever.
        let exchange = unsafe { pointer.cast::<Exchange>().as_ref() };
        let is_neg = class.getattr("is_neg")?.unbind();
        let classes = [class.unbind(), parameter.unbind()];
        let describe = exchange.describe.filter(|_| exchange.major == MAJOR);
        Ok(describe.map(|describe| Torch {
            classes,
            is_neg,
            describe,
        }))
    }
}

fn tensor<'a>(object: &'a Bound<'_, PyAny>, torch: &Torch) -> Option<Usual<'a>> {
    let mut described = MaybeUninit::<Tensor>::uninit();
    // SAFETY: a tensor and a place for its description, as the function's type demands.
    if unsafe { (torch.describe)(object.as_ptr().cast(), described.as_mut_ptr()) } != 0 {
        drop(PyErr::take(object.py()));
        return None;
    }
    // SAFETY: the function has succeeded.
    let described = unsafe { described.assume_init() };
    let dimensions = described.dimensions as usize;
    let shape = list(described.shape, dimensions).unwrap_or_default();
    let is_in_order = match list(described.strides, dimensions) {
        Some(strides) => is_in_c_order(shape, strides),
        None => true,
    };
    if !HOST_DEVICES.contains(&described.device.kind) || !is_in_order {
        return None;
    }
    // SAFETY: two objects, and the end of the list of arguments.
    let is_neg = unsafe {
        let end = null_mut::<ffi::PyObject>();
        let method = torch.is_neg.as_ptr();
        let answer = ffi::PyObject_CallFunctionObjArgs(method, object.as_ptr(), end);
        Bound::from_owned_ptr_or_err(object.py(), answer)
    };
    if is_neg.and_then(|answer| answer.is_truthy()).unwrap_or(true) {
        return None;
    }
    let address = described.data.cast::<u8>();
    let usual = Usual {
        address: address.wrapping_add(described.byte_offset as usize),
        dtype: known_dtype(described.element)?,
        shape,
        is_read_only: false,
        kind: Kind::Torch,
    };
    usual.checked()
}

/// Returns whether strides, in elements, are those of C order.
fn is_in_c_order(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1i64;
    let axes = shape.iter().zip(strides).rev();
    let mut axes = axes.map(|(&length, &stride)| {
        let fits = length == 1 || stride == expected;
        expected = expected.saturating_mul(length);
        fits
    });
    axes.all(|fits| fits) || shape.contains(&0)
}

/// Returns a new array of NumPy like `array`, without its elements.
pub fn empty_like<'py>(array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = array.py();
    let empty = EMPTY.import(py, "numpy", "empty")?;
    let shape = array.getattr(intern!(py, "shape"))?;
    empty.call1((shape, array.getattr(intern!(py, "dtype"))?))
}
