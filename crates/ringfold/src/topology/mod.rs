//! What this machine is: its identity, its cores and its network interfaces.

pub mod cores;
pub mod host;
pub mod interfaces;

pub use host::HostId;
