//! What this machine is: host identity.

pub mod cores;
pub mod host;

pub use host::HostId;
