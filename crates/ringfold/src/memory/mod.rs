//! Memory accessed by raw address: users' buffers, staging, and memory shared with other processes.
//!
//! A [`Region`] is a pointer and a length with bounds-checked, copying access. A region never
//! becomes a reference, because the bytes may be written by another process, by a peer thread or
//! through the user's aliasing buffer at any time. The maker of a region promises that the memory
//! outlives its use; everything downstream (engine, transports) is then safe code.
//!
//! `pool` reuses scratch memory and `mapping` maps files. For registered memory, `shared` is the
//! file, `remapped` moves existing memory there, `registered` is the user's handle, `registry`
//! serves the engine, and `child_view` is a forked child's view.

mod child_view;
mod fork_guard;
mod hold;
pub(crate) mod mapping;
mod owned;
mod pool;
mod registered;
mod registry;
mod remapped;
mod shared;
mod words;

pub use crate::region::Region;
pub(crate) use fork_guard::{ForkGuard, GuardStage};
pub use hold::Hold;
pub use owned::Owned;
pub use pool::{Block, Pool};
pub use registered::Registered;
pub(crate) use registered::{Own, private_memory};
pub use registry::{BufferHandle, PeerMemory, Registry};
pub(crate) use remapped::Remapped;
pub(crate) use shared::SharedMemory;
pub(crate) use words::MappedWords;
