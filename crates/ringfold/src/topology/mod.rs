//! This machine: its identity, its cores and caches, its network interfaces, and the other jobs on
//! it.
//!
//! This module reads below a root that tests replace. It changes only the calling thread's
//! affinity, on request, and this process' mark.

pub mod binding;
pub mod cores;
pub mod host;
pub mod interface_choice;
pub mod interfaces;
pub mod layout;
pub mod link;
pub mod machine;
pub mod neighbours;

pub use host::HostId;
pub use machine::Machine;
