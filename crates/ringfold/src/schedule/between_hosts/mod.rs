//! Two levels over messages: within a host first, then between hosts.
//!
//! The ranks are in groups of any sizes, the hosts. As many *columns* as the smallest host has
//! ranks divide the data; member `c` of each host leads column `c` for it, and the leaders of a
//! column are *counterparts*. Members of a host give each leader what it needs of them; the
//! counterparts exchange it between the hosts, each column for itself; and each leader gives the
//! result to its host. So a host's cable carries what one rank a host would send, however many its
//! ranks are, and all leaders work at the same time.
//!
//! | method | columns | counterparts |
//! |---|---|---|
//! | `hierarchical` | as many as there can be | in rings and chains: for much data |
//! | `multi_leader` | as many as there can be | in pairs at doubling distance |
//! | `leader` | one | in pairs at doubling distance, in trees: for little data |
//!
//! Source: the multi-leader hierarchies of Bayatpour et al., *Scalable reduction collectives with
//! data partitioning-based multi-leader design*, 2017; with one leader, Graham et al., *Cheetah: a
//! framework for scalable hierarchical collective operations*, 2011.

#![forbid(unsafe_code)]

pub(super) mod blocks;
pub(super) mod leader;
pub(super) mod vectors;

mod place;
mod steps;

#[cfg(test)]
mod tests;
