//! The buffers of calls: the only place of the command that handles raw memory.

use std::any::Any;
use std::sync::Arc;

use anyhow::{Context, Result};
use ringfold::{Communicator, Region, Registered, Request};

/// Alignment of buffers: a page, as a training framework's allocator aligns large tensors.
const PAGE_BYTES: usize = 4096;

#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// Memory of this process that lives as long as the value and is only used through regions.
pub struct Memory {
    /// The pages, or [`Registered`] memory: held, not read.
    _owner: Box<dyn Any>,
    region: Region,
}

impl Memory {
    /// Allocates `bytes` bytes, aligned to a page.
    pub fn new(bytes: usize) -> Result<Memory> {
        let count = bytes.div_ceil(PAGE_BYTES);
        let mut pages = Vec::new();
        pages
            .try_reserve_exact(count)
            .with_context(|| too_large(bytes))?;
        // Written, not just mapped, so that no page fault occurs in a timed call.
        pages.resize(count, Page([1; PAGE_BYTES]));
        let start = pages.as_mut_ptr().cast();
        // SAFETY: the pages are valid for `count * PAGE_BYTES >= bytes` bytes, are never resized or
        // accessed otherwise before they are dropped, and `region` borrows `self`, which owns them.
        let region = unsafe { Region::new(start, bytes) };
        let _owner = Box::new(pages);
        Ok(Memory { _owner, region })
    }

    /// Allocates `bytes` bytes that all ranks register together.
    pub fn registered(communicator: &Communicator, bytes: usize) -> Result<Memory> {
        let registered = communicator
            .alloc(bytes)
            .with_context(|| too_large(bytes))?;
        let region = registered.region();
        let _owner = Box::new(registered);
        Ok(Memory { _owner, region })
    }

    /// Wraps registered memory that has another owner, too.
    pub fn shared(registered: Arc<Registered>) -> Memory {
        let region = registered.region();
        let _owner = Box::new(registered);
        Memory { _owner, region }
    }

    /// Returns the first `bytes` bytes.
    pub fn region(&self, bytes: usize) -> Region {
        self.region.part(0..bytes)
    }
}

pub fn too_large(bytes: usize) -> String {
    format!("cannot allocate {bytes} bytes; choose a smaller `--maxbytes`")
}

/// Carries out `request`, whose regions are parts of `_owners`.
pub fn carry_out(
    communicator: &Communicator,
    request: &Request,
    _owners: &[&Memory],
) -> ringfold::Result<()> {
    // SAFETY: the owners are borrowed until the call returns, and this program uses their regions
    // from one thread.
    unsafe { communicator.run(request, &mut || Ok(())) }.map(|_| ())
}
