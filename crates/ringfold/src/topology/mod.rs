//! What this machine is: host identity.

pub mod host;

pub use host::HostId;
