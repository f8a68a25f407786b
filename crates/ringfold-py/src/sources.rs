//! The ways in which Python objects provide their memory, tried in this order: usual arrays, torch
//! tensors (by duck typing; torch is never imported), the buffer protocol (NumPy, `bytearray`,
//! `array.array`), NumPy arrays of ml_dtypes types (which export no buffer, but a view of them
//! does), DLPack.
//!
//! The buffer protocol comes before DLPack because it is host memory by definition and always
//! indicates read-only memory.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::dlpack;
use crate::exceptions::{invalid_argument, unsupported};
use crate::layout::{Kind, Layout, complex_format, dtype_named, dtype_of_format, unknown_dtype};
use crate::usual::usual;

/// The object that keeps the memory alive.
#[derive(Debug)]
pub enum Owner {
    Object(#[allow(dead_code, reason = "held, not read")] Py<PyAny>),
    Exported(#[allow(dead_code, reason = "held, not read")] PyUntypedBuffer),
    Lent(#[allow(dead_code, reason = "held, not read")] dlpack::Lent),
}

/// Opens the memory of `object`.
pub fn open(object: &Bound<'_, PyAny>) -> PyResult<(Layout, Owner, Kind)> {
    if let Some(usual) = usual(object) {
        let shape = usual.shape.iter().map(|&length| length as usize).collect();
        let layout = Layout::new(usual.address, usual.dtype, shape, None, usual.is_read_only)?;
        return Ok((layout, Owner::Object(object.clone().unbind()), usual.kind));
    }
    if object.hasattr("data_ptr")? && object.hasattr("is_contiguous")? {
        let layout = torch_layout(object)?;
        return Ok((layout, Owner::Object(object.clone().unbind()), Kind::Torch));
    }
    match export(object) {
        Ok((layout, buffer)) => Ok((layout, Owner::Exported(buffer), Kind::Buffer)),
        Err(Refusal::Useless(error)) => Err(error),
        Err(Refusal::NotOffered(refusal)) => {
            if let Some(name) = extension_dtype(object)? {
                return open_extension(object, &name);
            }
            if object.hasattr("__dlpack__")? {
                let (layout, lent) = dlpack::borrow(object)?;
                return Ok((layout, Owner::Lent(lent), Kind::Dlpack));
            }
            let kind = object.get_type().name()?;
            let error = invalid_argument(format!(
                "`{kind}` offers no memory (torch tensor, buffer protocol or DLPack); wrap it in \
                 numpy.asarray"
            ));
            error.set_cause(object.py(), Some(refusal));
            Err(error)
        }
    }
}

fn torch_layout(tensor: &Bound<'_, PyAny>) -> PyResult<Layout> {
    let device: String = tensor.getattr("device")?.getattr("type")?.extract()?;
    if device != "cpu" {
        return Err(unsupported(format!(
            "the tensor is on device `{device}`; copy it to host memory first (`tensor.cpu()`)"
        )));
    }
    let name = tensor.getattr("dtype")?.str()?.to_string();
    let dtype = dtype_named(name.strip_prefix("torch.").unwrap_or(&name))?;
    if tensor.hasattr("is_neg")? && tensor.call_method0("is_neg")?.is_truthy()? {
        return Err(unsupported(
            "the tensor is a lazily negated view; call `resolve_neg()` first",
        ));
    }
    let shape: Vec<usize> = tensor.getattr("shape")?.extract()?;
    let item_bytes = dtype.size_bytes() as isize;
    let strides: Vec<isize> = tensor.call_method0("stride")?.extract()?;
    let strides = strides
        .iter()
        .map(|stride| stride.saturating_mul(item_bytes))
        .collect();
    let address: usize = tensor.call_method0("data_ptr")?.extract()?;
    let address = std::ptr::with_exposed_provenance_mut(address);
    Layout::new(address, dtype, shape, Some(strides), false)
}

/// The reason why an object is not opened by the buffer protocol.
enum Refusal {
    /// The object does not support the protocol; it may support another.
    NotOffered(PyErr),
    /// The object's buffer cannot be used here.
    Useless(PyErr),
}

fn export(object: &Bound<'_, PyAny>) -> Result<(Layout, PyUntypedBuffer), Refusal> {
    match PyUntypedBuffer::get(object) {
        Ok(buffer) => {
            let format = buffer.format().to_string_lossy();
            let layout = buffer_layout(&buffer, &format, buffer.item_size(), buffer.shape());
            layout
                .map_err(Refusal::Useless)
                .map(|layout| (layout, buffer))
        }
        // PyO3 treats the missing shape of an array without axes as an error.
        Err(refusal) => match export_scalar(object) {
            Ok(Some(scalar)) => Ok(scalar),
            Ok(None) => Err(Refusal::NotOffered(refusal)),
            Err(error) => Err(Refusal::Useless(error)),
        },
    }
}

/// Opens an array without axes as its bytes.
fn export_scalar(object: &Bound<'_, PyAny>) -> PyResult<Option<(Layout, PyUntypedBuffer)>> {
    let Ok(view) = PyMemoryView::from(object) else {
        return Ok(None);
    };
    if view.getattr("ndim")?.extract::<usize>()? > 0 {
        return Ok(None);
    }
    let format: String = view.getattr("format")?.extract()?;
    let buffer = PyUntypedBuffer::get(&view.call_method1("cast", ("B",))?)?;
    let layout = buffer_layout(&buffer, &format, buffer.len_bytes(), &[])?;
    Ok(Some((layout, buffer)))
}

fn buffer_layout(
    buffer: &PyUntypedBuffer,
    format: &str,
    item_bytes: usize,
    shape: &[usize],
) -> PyResult<Layout> {
    let dtype =
        dtype_of_format(format, item_bytes).ok_or_else(|| match complex_format(format) {
            Some(name) => unknown_dtype(name),
            None => unsupported(format!(
                "no data type for buffer format `{format}` ({item_bytes} bytes); convert it first"
            )),
        })?;
    let is_pointed_to = |offsets: &[isize]| offsets.iter().any(|&offset| offset >= 0);
    if buffer.suboffsets().is_some_and(is_pointed_to) {
        return Err(unsupported(
            "a buffer behind pointers (suboffsets); copy it first",
        ));
    }
    let strides = (!shape.is_empty()).then(|| buffer.strides().to_vec());
    let address = buffer.buf_ptr().cast();
    Layout::new(address, dtype, shape.to_vec(), strides, buffer.readonly())
}

/// Returns the type's name, if `object` is a NumPy array of a type that NumPy itself does not know.
fn extension_dtype(object: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if !object.hasattr("__array_interface__")? {
        return Ok(None);
    }
    let name: String = object.getattr("dtype")?.getattr("name")?.extract()?;
    Ok((name == "bfloat16" || name.starts_with("float8_")).then_some(name))
}

/// Opens an array of an extension type through a view with an integer type of the same size.
fn open_extension(object: &Bound<'_, PyAny>, name: &str) -> PyResult<(Layout, Owner, Kind)> {
    // ml_dtypes' type of this name has infinities; ringfold's has none.
    if name == "float8_e4m3" {
        return Err(unknown_dtype(name));
    }
    let dtype = dtype_named(name)?;
    let integer = format!("uint{}", 8 * dtype.size_bytes());
    let view = object.call_method1("view", (integer,))?;
    let (mut layout, buffer) = export(&view).map_err(|refusal| match refusal {
        Refusal::NotOffered(error) | Refusal::Useless(error) => error,
    })?;
    layout.dtype = dtype;
    Ok((layout, Owner::Exported(buffer), Kind::Buffer))
}
