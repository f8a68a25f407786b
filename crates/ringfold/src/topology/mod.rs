//! What this machine is: its identity, its cores and caches, and its network interfaces.

pub mod binding;
pub mod cores;
pub mod host;
pub mod interfaces;
pub mod layout;
pub mod machine;

pub use host::HostId;
pub use machine::Machine;
