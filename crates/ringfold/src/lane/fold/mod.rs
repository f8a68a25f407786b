//! Reductions on the device.
//!
//! The host then only moves data: no core combines anything. What travels up is more than where
//! the host combines (2 (N-1)/N of the data instead of all of it), so it pays where cores are few
//! or slow. [`shares`] cuts a call, [`call`] says what its halves move,
//! [`text`] has the kernels, and a [`Folder`] what a device needs for them.
//!
//! The rows of a slice are written by its scatter half in the stream *in*, and by the copy of the
//! rank's own block and the kernel in *out*, behind an event; its gather half is taken behind
//! another. After a fault the kernel's result is bytes of ones, as that of the host is: the rows
//! may hold anything then. So a fault is said before anything is released.

pub mod call;
pub mod shares;
pub mod text;

#[cfg(test)]
pub mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::CString;

use super::staging::Staging;
use crate::device::{Current, DeviceMemory, Event, Kernel, Stream};
use crate::error::{Error, Result};
use crate::types::{DType, Op};
use call::{Fold, Rows};
use text::{NAME, PARAMETERS, VECTOR_BYTES};

/// The most blocks of a launch, and the threads of each: enough to keep any device's memory busy.
const BLOCKS_MAX: usize = 128;
const THREADS: usize = 256;

/// What a device combines with.
#[derive(Debug)]
pub struct Folder {
    kernels: BTreeMap<(DType, u8), Kernel>,
    memory: DeviceMemory,
    marks: Vec<Marks>,
}

/// What the streams wait for, of each other, for one set of rows.
#[derive(Debug)]
struct Marks {
    /// The scatter half is taken.
    scattered: Event,
    /// The rows are combined, and the rank's own block is stored.
    folded: Event,
}

/// Whether devices combine this at all.
pub fn is_folded(op: Op, dtype: DType) -> bool {
    text::text(op, dtype).is_some()
}

impl Folder {
    /// One for the slots of `staging`. An error where the driver does not compile kernels.
    pub fn new(current: &Current<'_>, staging: &Staging) -> Result<Folder> {
        let depth = staging.depth();
        let marks = |_| {
            Ok(Marks {
                scattered: current.event()?,
                folded: current.event()?,
            })
        };
        let mut folder = Folder {
            kernels: BTreeMap::new(),
            memory: current.allocate(depth as usize * staging.slot_bytes())?,
            marks: (0..depth).map(marks).collect::<Result<_>>()?,
        };
        // Whether the driver compiles at all is known before the first call.
        folder.prepare(current, Op::Sum, DType::F32)?;
        Ok(folder)
    }

    /// The memory that it combines in.
    pub fn rows(&self) -> Rows {
        Rows {
            // SAFETY: what is enqueued with it is done before the folder goes, or the memory is
            // kept; one call follows the other in both streams.
            region: unsafe { self.memory.region() },
            sets: self.marks.len() as u32,
        }
    }

    /// Has the kernel of `op` and `dtype`, which may have to be compiled.
    pub fn prepare(&mut self, current: &Current<'_>, op: Op, dtype: DType) -> Result<()> {
        if let Entry::Vacant(place) = self.kernels.entry((dtype, op.wire())) {
            place.insert(compile(current, op, dtype)?);
        }
        Ok(())
    }

    /// Enqueues what combines the rows of a slice, behind its scatter half.
    pub fn fold(&self, current: &Current<'_>, staging: &Staging, fold: &Fold) -> Result<()> {
        let (out, marks) = (&staging.out, &self.marks[fold.set]);
        current.follow(out, &marks.scattered)?;
        for (piece, row) in &fold.input {
            current.copy(out, *piece, *row)?;
        }
        if fold.own.bytes() > 0 {
            self.launch(current, staging, fold)?;
        }
        for (row, piece) in &fold.output {
            current.copy(out, *row, *piece)?;
        }
        current.record(&marks.folded, out)
    }

    fn launch(&self, current: &Current<'_>, staging: &Staging, fold: &Fold) -> Result<()> {
        let kernel = &self.kernels[&(fold.dtype, fold.op.wire())];
        let vectors = fold.own.bytes().div_ceil(VECTOR_BYTES);
        let blocks = vectors.div_ceil(THREADS).min(BLOCKS_MAX);
        let factor = 1.0 / fold.count as f64;
        let arguments: [u64; PARAMETERS.len()] = [
            fold.own.address() as u64,
            fold.rows.address() as u64,
            fold.row_bytes as u64,
            fold.count as u64,
            vectors as u64,
            staging.fault().device_address() as u64,
            factor.to_bits(),
        ];
        let grid = [blocks as u32, THREADS as u32];
        // SAFETY: the kernel reads the rows and the word, which is pinned, and writes one row: all
        // of it is this rank's until the streams have gone past.
        unsafe { current.launch(&staging.out, kernel, grid, &arguments) }
    }

    /// Has `into` wait until the rows of this set are combined.
    pub fn follow(&self, current: &Current<'_>, into: &Stream, set: usize) -> Result<()> {
        current.follow(into, &self.marks[set].folded)
    }

    /// Marks that the scatter half of this set is taken.
    pub fn mark(&self, current: &Current<'_>, into: &Stream, set: usize) -> Result<()> {
        current.record(&self.marks[set].scattered, into)
    }
}

fn compile(current: &Current<'_>, op: Op, dtype: DType) -> Result<Kernel> {
    let text = text::text(op, dtype).and_then(|text| CString::new(text).ok());
    let text = text.ok_or_else(|| {
        let text = format!("`{}` of {dtype} on devices", op.name());
        Error::Unsupported(text)
    })?;
    current.kernel(&text, NAME, PARAMETERS.len())
}
