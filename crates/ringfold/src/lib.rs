//! ringfold: collective communication for data-parallel training.
//!
//! Several processes, called *ranks*, each hold a part of the data and need a result made of all parts: the sum of all
//! gradients, everybody's block, the root's parameters. A [`Communicator`] is the group; its methods are the collectives.
//!
//! ```
//! use ringfold::{Communicator, Op};
//!
//! // Four ranks that are threads. In a job every process calls `Communicator::init()` instead.
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
//! # What is promised
//!
//! * A call that returns `Ok` has left the right result in this rank's output, and the same bits on all ranks.
//! * No call waits for ever. It ends by its deadline or earlier with an [`Error`] that names the ranks at fault, and after a
//!   fatal error the same class of error comes on all ranks ([`Error::is_fatal`]).
//! * Ranks that are in different calls are told so ([`Error::Mismatch`]); their data is never combined.
//! * With the communicator go its threads, sockets, descriptors and shared memory.
//!
//! # Where to look
//!
//! [`Communicator`] for the calls, [`Config`] for how to join ([`RendezvousListener`] where ranks can pass on an address), [`Error`] for what can go wrong, [`env::VARIABLES`] for the
//! environment. The modules below it are public for the command, the bindings and those who want to look inside:
//! [`schedule`] says what each rank does in a collective, [`tune`] chooses, [`engine`] runs it over a [`transport`], and
//! [`control`] brings the ranks together and spreads the word of failures. ARCHITECTURE.md in the repository is the map.

pub mod call;
pub mod communicator;
pub mod config;
#[cfg(test)]
mod conformance;
pub mod control;
pub mod element;
pub mod engine;
pub mod env;
pub mod error;
pub mod memory;
pub mod random;
pub mod reduce;
pub mod schedule;
pub mod setup;
pub mod silence;
pub mod simulate;
#[cfg(test)]
#[path = "../tests/skipped/mod.rs"]
mod skipped;
mod sync;
mod sys;
pub(crate) mod testing;
pub mod threads;
pub mod topology;
pub mod transport;
pub mod tune;
pub mod types;
pub mod units;
pub mod wait;

pub use call::Way;
pub use communicator::{Communicator, Counts, RegisteredMut, Registration, Request, Work};
pub use config::{Bind, Config, TransportChoice};
pub use control::{Cancel, RendezvousListener, Standing};
pub use element::{BF16, Element, F8E4M3, F8E5M2, F16};
pub use engine::lateness::{LATENESS_CLASSES, PeerStats, Stats};
pub use error::{Error, Result};
pub use memory::Registered;
pub use schedule::Weighting;
pub use types::{Access, Algorithm, Assignment, Collective, DType, Method, Op, Protocol};

/// The README's example, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
