//! Which way a call goes: the policy.

pub mod choose;
pub mod cost;
pub mod limits;
pub mod probe;
pub mod weights;

pub use limits::Limits;
