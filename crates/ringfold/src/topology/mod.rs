//! This machine: its identity, its cores and caches, its network interfaces, and the other jobs on
//! it.

pub mod binding;
pub mod cores;
pub mod host;
pub mod interfaces;
pub mod layout;
pub mod link;
pub mod machine;
pub mod neighbours;

pub use host::HostId;
pub use machine::Machine;
