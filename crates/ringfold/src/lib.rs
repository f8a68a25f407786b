//! ringfold: collective communication for data-parallel training.

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
pub mod reduce;
pub mod schedule;
mod sync;
mod sys;
pub mod topology;
pub mod transport;
pub mod tune;
pub mod types;
pub mod wait;

pub use communicator::{Choice, Communicator, Counts, Request, Work};
pub use config::{Config, TransportChoice};
pub use element::{BF16, Element, F8E4M3, F8E5M2, F16};
pub use error::{Error, Result};
pub use types::{Algorithm, Collective, DType, Op};
