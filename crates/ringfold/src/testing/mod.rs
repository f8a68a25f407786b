//! Injected faults: delays of reductions, on real processes and in virtual time. All other injected
//! faults are compiled for tests only.

pub mod delay_injector;
pub mod delay_spec;
