//! What is injected to see how calls bear it: faults in messages, and delays of reductions.
//!
//! The simulator and `ringfold perf` offer these as settings; everything else of this kind is
//! compiled for tests only.

pub mod delay_injector;
pub mod delay_spec;
pub mod fault_injector;
