//! A Python object's memory, checked and held, which a call reads or fills.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use ringfold::DType;
use ringfold::Region;

use crate::exceptions::invalid_argument;
use crate::layout::{Kind, Layout};
use crate::sources::{self, Owner};

/// Memory that stays valid, and in place, as long as this object lives.
///
/// For reading: an object whose elements are non-contiguous or misaligned is copied once. For
/// writing: such an object is refused, and so is a read-only one.
#[pyclass(frozen, module = "ringfold._native")]
#[derive(Debug)]
pub struct Buffer {
    layout: Layout,
    kind: Kind,
    region: Region,
    memory: BufferMemory,
}

#[derive(Debug)]
enum BufferMemory {
    Lent(#[allow(dead_code, reason = "held, not read")] Owner),
    /// A copy in words, so that it is aligned for every type.
    Copied(#[allow(dead_code, reason = "held, not read")] Vec<u64>),
}

// SAFETY: the layout's address is only used through `region`, whose users hold the buffer; the
// owner is a Python handle, an exported buffer or a lent tensor, each `Send` by itself.
unsafe impl Send for Buffer {}
// SAFETY: nothing in a buffer changes after it was made.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Returns the contiguous bytes, which are valid as long as this buffer.
    pub fn region(&self) -> Region {
        self.region
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }
}

#[pymethods]
impl Buffer {
    #[new]
    #[pyo3(signature = (object, writable=false))]
    fn open(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Buffer> {
        let (layout, owner, kind) = sources::open(object)?;
        let usable = layout.is_contiguous() && layout.is_aligned();
        if writable {
            check_writable(&layout)?;
        }
        let (memory, address) = if usable {
            (BufferMemory::Lent(owner), layout.address)
        } else {
            // SAFETY: `owner` keeps the elements alive and readable.
            let mut words = in_words(unsafe { layout.gather() });
            let address = words.as_mut_ptr().cast();
            (BufferMemory::Copied(words), address)
        };
        // SAFETY: `memory` keeps the bytes alive as long as this buffer, which every call holds;
        // they are writable unless the buffer was opened for reading.
        let region = unsafe { Region::new(address, layout.bytes()) };
        Ok(Buffer {
            layout,
            kind,
            region,
            memory,
        })
    }

    /// The type's name, as `ringfold` spells it.
    #[getter(dtype)]
    fn dtype_name(&self) -> &'static str {
        self.layout.dtype.name()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.layout.shape)
    }

    /// The number of elements.
    #[getter]
    fn count(&self) -> usize {
        self.layout.count()
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.kind.name()
    }

    /// Whether the elements had to be copied to be read.
    #[getter]
    fn copied(&self) -> bool {
        matches!(self.memory, BufferMemory::Copied(_))
    }

    /// Returns a copy of the elements' bytes.
    fn tobytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.region.bytes()];
        self.region.read(&mut bytes);
        bytes
    }
}

fn check_writable(layout: &Layout) -> PyResult<()> {
    if layout.read_only {
        return Err(invalid_argument(
            "the output is read-only; pass a writable array",
        ));
    }
    if !layout.is_contiguous() {
        return Err(invalid_argument(format!(
            "the output of shape {:?} is not C-contiguous; pass a contiguous array and copy from \
             it",
            layout.shape
        )));
    }
    if !layout.is_aligned() {
        return Err(invalid_argument(format!(
            "the output is not aligned to its element type {}; pass an aligned array",
            layout.dtype
        )));
    }
    Ok(())
}

fn in_words(mut bytes: Vec<u8>) -> Vec<u64> {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}
