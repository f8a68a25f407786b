//! Two-level algorithms over messages: within a host first, then between hosts.
//!
//! The ranks form groups of any sizes, the hosts. The data is divided into *columns*, at most as
//! many as the smallest host has ranks. Member `c` of each host leads column `c` for its host, and
//! the leaders of a column are *counterparts*. Members of a host send each leader its column's
//! data; the counterparts of each column exchange it between the hosts; and each leader sends the
//! result to its host. A host's cable thus carries as much as if each host had one rank, and all
//! leaders work at the same time.
//!
//! | method | columns | counterparts |
//! |---|---|---|
//! | `hierarchical` | as many as possible | in rings and chains: for large data |
//! | `multi_leader` | as many as possible | in pairs at doubling distance |
//! | `leader` | one | in pairs at doubling distance, in trees: for small data |
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
