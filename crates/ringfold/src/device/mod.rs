//! Accelerators: their memory, streams and events, through the driver's own functions.
//!
//! A [`Driver`] is an opened library, a [`Device`] a GPU with its primary context, which it shares
//! with the program (torch uses the same one). All calls are made through [`Current`]: the context
//! is current on the calling thread as long as that lives, so several calls share one push.
//!
//! ```text
//!   program's stream ──fork──►  out:  wait(free)      bring(device → pinned)  write(arrived)
//!                               into: wait(released)  take(pinned → device)   write(taken)
//!   program's stream ◄──join──────┘
//! ```
//!
//! GPUs and CPUs meet in words of pinned memory: [`write`](Current::write) and
//! [`wait`](Current::wait) are operations of a stream, and the host loads and stores the same words
//! as atomics. Nothing here blocks, except that a call of the driver may, for a reason that is not
//! the caller's: a full queue, or `cuMemFree` on another thread. So a wait in a stream must never
//! depend on a call that this process has still to make.
//!
//! *Invariants.* Device memory is a [`DeviceRegion`], never a `Region`: host code cannot touch it.
//! Host memory that a GPU accesses is a [`PinnedRegion`], which only [`Pin`] makes. What a GPU may
//! still use is not given back: a stream with work in it, and pinned memory while a stream of its
//! device has work, are kept until the process ends, with a warning.
//!
//! A machine without a driver is an ordinary state: [`Driver::open`] then returns
//! `Error::Unsupported`, and nothing is loaded before that is called.

mod attributes;
mod cuda;
mod current;
mod gpu;
mod kernel;
mod memory;
mod pinned;
mod region;
mod stream;

pub use attributes::Attributes;
pub use cuda::{Driver, Platform};
pub use current::Current;
pub use gpu::Device;
pub use kernel::Kernel;
pub use memory::DeviceMemory;
pub use pinned::{Pin, PinnedRegion};
pub use region::{DeviceRegion, ProgramStream};
pub use stream::{Event, Stream};
