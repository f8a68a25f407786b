//! What is injected to see how calls bear it: delays of reductions, on real processes and in
//! virtual time. Everything else of this kind is compiled for tests only.

pub mod delay_injector;
pub mod delay_spec;
