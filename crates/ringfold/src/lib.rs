//! ringfold: collective communication for data-parallel training.
//!
//! Several processes, called *ranks*, each hold a part of the data and need a result made of all
//! parts: the sum of all gradients, every rank's block, the root's parameters. A [`Communicator`]
//! is the group; its methods are the collectives.
//!
//! ```
//! use ringfold::{Communicator, Op};
//!
//! // Four ranks that are threads of one process.
//! std::thread::scope(|scope| {
//!     for comm in Communicator::threads(4) {
//!         scope.spawn(move || {
//!             let mut gradient = vec![comm.rank() as f32; 1000];
//!             comm.all_reduce(&mut gradient, Op::Sum).expect("all four ranks take part");
//!             assert_eq!(gradient[0], 0.0 + 1.0 + 2.0 + 3.0);
//!         });
//!     }
//! });
//! ```
//!
//! # A job
//!
//! In a job, each rank is a process, which joins by [`Communicator::init`]. Rank, number of ranks
//! and the address of rank 0 come from the launcher: `ringfold run`, torchrun, mpirun, srun or
//! Kubernetes. [`Communicator::connect`] takes these values, deadlines and other settings from a
//! [`Config`] instead.
//!
//! ```no_run
//! use ringfold::{Communicator, Op, Result};
//!
//! fn main() -> Result<()> {
//!     let comm = Communicator::init()?;
//!     let mut gradient = vec![comm.rank() as f32; 1000];
//!     comm.all_reduce(&mut gradient, Op::Avg)?;
//!     comm.close()
//! }
//! ```
//!
//! ```sh
//! cargo add --path CLONE/crates/ringfold
//! cargo build && ringfold run --ranks 4 -- target/debug/PROGRAM
//! ```
//!
//! | transport | between | chosen |
//! |---|---|---|
//! | `shm` | ranks of one host | if they can share memory |
//! | `rdma` | ranks of different hosts | if every rank has a device, InfiniBand or RoCE |
//! | `tcp` | any ranks | otherwise |
//!
//! [`Config::transport`] or `RINGFOLD_TRANSPORT` demands one of them.
//!
//! | calls of a [`Communicator`] | |
//! |---|---|
//! | `all_reduce`, `reduce`, `reduce_scatter` | combine elements by an [`Op`] |
//! | `broadcast`, `all_gather`, `gather`, `scatter`, `all_to_all` | move blocks |
//! | `send`, `recv`, `recv_any`, `sendrecv` | move messages between two ranks |
//! | `barrier` | returns when all ranks have called it |
//! | `alloc`, `register` | memory in which ranks of one host reduce in place |
//! | `split` | communicators of some of the ranks |
//! | `scope` | calls that are under way beside each other, and beside the program |
//! | `with` | calls with a deadline or an algorithm of their own: [`CallOptions`] |
//! | `run`, `start` | any call as a [`Request`], also with uneven counts: for bindings |
//!
//! # Guarantees
//!
//! * A call that returns `Ok` has written the correct result to this rank's output, bitwise the
//!   same on all ranks.
//! * No call waits forever. A call completes, or fails by its deadline with an [`Error`] that names
//!   the ranks at fault. A fatal error ([`Error::is_fatal`]) has the same class on all ranks.
//! * Ranks that are in different calls get an error ([`Error::Mismatch`]); their data is never
//!   combined.
//! * A communicator's threads, sockets, descriptors and shared memory are released with it.
//!
//! # Where to look
//!
//! [`Communicator`] for the calls, [`Config`] for how to join ([`RendezvousListener`] if ranks can
//! pass on an address), [`Error`] for what can go wrong, [`env::VARIABLES`] for the environment.
//! ARCHITECTURE.md in the repository explains the structure of the library.

// Comments link to private items, for those who work on this crate.
#![allow(rustdoc::private_intra_doc_links)]

// The tests of modules include files of the tests between processes.
#[cfg(test)]
extern crate self as ringfold;

mod board;
mod call;
mod communicator;
mod config;
#[cfg(test)]
mod conformance;
mod congestion;
mod control;
mod device;
mod element;
mod engine;
pub mod env;
mod error;
mod files;
#[doc(hidden)]
pub mod internals;
mod lane;
mod memory;
mod random;
mod reduce;
mod region;
mod schedule;
mod setup;
mod silence;
mod simulate;
#[cfg(test)]
#[path = "../tests/skipped/mod.rs"]
mod skipped;
mod spelling;
mod sync;
mod sys;
mod testing;
mod threads;
mod topology;
mod transport;
mod tune;
mod types;
mod units;
mod verbs;
mod wait;

pub use call::Way;
#[doc(hidden)]
pub use communicator::{Begun, BegunCall, fold_regions};
pub use communicator::{
    CallOptions, Calls, Communicator, Counts, RegisteredMut, Registration, Request, Scope,
    ScopedWork, Target, Work, fold,
};
pub use config::{Bind, Config, StragglerPolicy, TransportChoice};
pub use control::{Cancel, RendezvousListener, Secret, Standing};
pub use device::{DeviceRegion, Driver, Platform, ProgramStream};
pub use element::{BF16, Element, F8E4M3, F8E5M2, F16};
pub use engine::lateness::{LATENESS_CLASSES, PeerStats, Stats};
pub use error::{Error, Result, Site};
pub use lane::{Carried, DeviceBuffer, DeviceRequest, DeviceWork, Lane, LaneConfig, WaitPath};
pub use memory::{Region, Registered};
pub use schedule::Weighting;
pub use tune::{Explanation, Reason, Rules};
pub use types::{Access, Algorithm, Assignment, Collective, DType, Method, Op, Protocol, Unknown};

/// The README's example, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
