//! The layout of an object's memory, as described by its owner, and whether ringfold can use it in
//! place.

use pyo3::prelude::*;
use ringfold::DType;

use crate::exceptions::{invalid_argument, unsupported};

/// Maximum number of dimensions: as many as any framework has (NumPy: 64), so that a count from a
/// foreign structure cannot become an unlimited loop bound.
const DIMENSIONS_MAX: usize = 64;

/// The source of the memory, which decides the kind of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Torch,
    Buffer,
    Dlpack,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Torch => "torch",
            Kind::Buffer => "buffer",
            Kind::Dlpack => "dlpack",
        }
    }
}

/// An address with a type, a shape and strides in bytes.
#[derive(Debug)]
pub struct Layout {
    pub address: *mut u8,
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub strides: Vec<isize>,
    pub read_only: bool,
    count: usize,
}

impl Layout {
    /// Checks and describes memory; `strides` of `None` is C order.
    pub fn new(
        address: *mut u8,
        dtype: DType,
        shape: Vec<usize>,
        strides: Option<Vec<isize>>,
        read_only: bool,
    ) -> PyResult<Layout> {
        let strides = match strides {
            Some(strides) => strides,
            None => contiguous_strides(&shape, dtype.size_bytes())?,
        };
        if shape.len() > DIMENSIONS_MAX || strides.len() != shape.len() {
            return Err(invalid_argument(format!(
                "a buffer of {} dimensions and {} strides; at most {DIMENSIONS_MAX}, one stride \
                 each",
                shape.len(),
                strides.len()
            )));
        }
        let count = element_count(&shape, dtype.size_bytes())?;
        if count > 0 && address.is_null() {
            return Err(invalid_argument("a buffer with elements but no address"));
        }
        Ok(Layout {
            address,
            dtype,
            shape,
            strides,
            read_only,
            count,
        })
    }

    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.count * self.dtype.size_bytes()
    }

    /// Returns whether the elements follow each other in C order.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = self.dtype.size_bytes() as isize;
        let dense = self
            .shape
            .iter()
            .zip(&self.strides)
            .rev()
            .all(|(&length, &stride)| {
                let fits = length == 1 || stride == expected;
                expected = expected.saturating_mul(length as isize);
                fits
            });
        self.count == 0 || dense
    }

    /// Returns whether the address is aligned for the element type.
    pub fn is_aligned(&self) -> bool {
        self.address.addr().is_multiple_of(self.dtype.size_bytes())
    }

    /// Returns the bytes of the elements, one after the other in C order.
    ///
    /// # Safety
    /// Every element of the layout is readable.
    pub unsafe fn gather(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes());
        if self.count > 0 {
            // SAFETY: the caller's promise; there is at least one element.
            unsafe {
                gather(
                    self.address,
                    &self.shape,
                    &self.strides,
                    self.dtype.size_bytes(),
                    &mut bytes,
                )
            };
        }
        bytes
    }
}

/// Appends the elements of one sub-array.
///
/// # Safety
/// Every element that shape and strides reach from `address` is readable.
unsafe fn gather(
    address: *const u8,
    shape: &[usize],
    strides: &[isize],
    item_bytes: usize,
    target: &mut Vec<u8>,
) {
    let ([length, shape @ ..], [stride, strides @ ..]) = (shape, strides) else {
        // SAFETY: the address of one element, readable by the caller's promise.
        target.extend_from_slice(unsafe { std::slice::from_raw_parts(address, item_bytes) });
        return;
    };
    for index in 0..*length {
        let inner = address.wrapping_offset(index as isize * stride);
        // SAFETY: `inner` is the address of element `index` of this dimension.
        unsafe { gather(inner, shape, strides, item_bytes, target) };
    }
}

fn contiguous_strides(shape: &[usize], item_bytes: usize) -> PyResult<Vec<isize>> {
    // A zero length would make outer strides 0; the number of elements is 0 then, and strides do
    // not matter.
    element_count(shape, item_bytes)?;
    let mut strides = vec![item_bytes as isize; shape.len()];
    for inner in (1..shape.len()).rev() {
        strides[inner - 1] = strides[inner].saturating_mul(shape[inner] as isize);
    }
    Ok(strides)
}

/// Returns the number of elements of `shape`, if their bytes fit the address space.
fn element_count(shape: &[usize], item_bytes: usize) -> PyResult<usize> {
    if shape.contains(&0) {
        return Ok(0);
    }
    shape
        .iter()
        .try_fold(item_bytes, |bytes, &length| bytes.checked_mul(length))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .map(|bytes| bytes / item_bytes)
        .ok_or_else(|| invalid_argument("a buffer larger than the address space"))
}

/// Returns the element type that NumPy, ml_dtypes and torch call `name`.
pub fn dtype_named(name: &str) -> PyResult<DType> {
    let known = match name {
        "float8_e4m3fn" => "float8_e4m3",
        other => other,
    };
    known.parse().map_err(|_| unknown_dtype(name))
}

/// Returns the error about a type that collectives do not have, with a remedy that gives right
/// results.
pub fn unknown_dtype(name: &str) -> PyErr {
    unsupported(match name.starts_with("complex") {
        true => format!(
            "no data type `{name}` in collectives; to move, add or average complex numbers, pass \
             their parts, a real view (`torch.view_as_real(x)`, in NumPy `x.view(x.real.dtype)`); \
             products, minima and maxima of parts are not those of the numbers"
        ),
        false => format!(
            "no data type `{name}` in collectives; to move such elements, but never to reduce \
             them, pass a view of their bytes (uint8); to reduce them, convert them first"
        ),
    })
}

/// Returns the name of the type of a buffer-protocol format, if it is a format of complex numbers.
pub fn complex_format(format: &str) -> Option<&'static str> {
    match format.trim_start_matches(['@', '=', '<', '>']) {
        "Zf" => Some("complex64"),
        "Zd" => Some("complex128"),
        "Zg" => Some("complex of long doubles"),
        _ => None,
    }
}

/// Returns the element type of a buffer-protocol format, by its letter and size.
pub fn dtype_of_format(format: &str, item_bytes: usize) -> Option<DType> {
    let native_order = if cfg!(target_endian = "little") {
        ['@', '=', '<']
    } else {
        ['@', '=', '>']
    };
    let letter = format.strip_prefix(native_order).unwrap_or(format);
    let signed = [DType::I8, DType::I16, DType::I32, DType::I64];
    let unsigned = [DType::U8, DType::U16, DType::U32, DType::U64];
    let float = [DType::F16, DType::F32, DType::F64];
    let candidates: &[DType] = match letter {
        "b" | "h" | "i" | "l" | "q" | "n" => &signed,
        "B" | "H" | "I" | "L" | "Q" | "N" => &unsigned,
        "e" | "f" | "d" => &float,
        "?" => &[DType::Bool],
        _ => &[],
    };
    candidates
        .iter()
        .copied()
        .find(|dtype| dtype.size_bytes() == item_bytes)
}
