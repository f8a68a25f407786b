//! The settings of a communicator: how ranks join, and how the communicator behaves.

use std::time::Duration;

use crate::control::{Cancel, Secret};
use crate::schedule::Weighting;
pub use crate::topology::binding::Bind;
use crate::tune::Rules;
use crate::types::{Method, Protocol, named};

named! {
    /// The transports that a communicator may use.
    #[derive(Default)]
    #[non_exhaustive]
    TransportChoice, "transport" {
        /// Shared memory between ranks of one host; between hosts, RDMA if all ranks have a device
        /// for it, else TCP.
        #[default]
        Auto, "auto";
        /// Shared memory only; an error if ranks are on several hosts.
        Shm, "shm";
        /// TCP between all ranks, also on one host.
        Tcp, "tcp";
        /// RDMA between all ranks, also on one host; an error if a rank has no device.
        Rdma, "rdma";
    }
}

named! {
    /// Whether the rings of large `all_reduce` and `reduce_scatter` calls bypass a slow rank; see
    /// [`late_ring`](crate::engine::late_ring).
    #[derive(Default)]
    #[non_exhaustive]
    StragglerPolicy, "straggler policy" {
        /// The ring waits for the slow rank.
        #[default]
        Off, "off";
        /// The slow rank's sum skips the next rank, and goes to the rank after that.
        Next2, "next2";
        /// The slow rank's sum goes to the result's owner, and no rank in between waits for it.
        Tail, "tail";
    }
}

/// The settings for joining a job. A field that is `None` comes from the environment: `RINGFOLD_*`,
/// then the launcher's variables.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// This process' rank.
    pub rank: Option<usize>,
    /// The number of ranks.
    pub world_size: Option<usize>,
    /// Address of rank 0: `host:port`, or `unix:@name` on one host. Several addresses, separated by
    /// commas, are tried in order, each for a few seconds at most, until one answers.
    pub address: Option<String>,
    /// The job's secret; a text converts `into` one.
    pub secret: Option<Secret>,
    /// The deadline of every operation that has none of its own.
    pub timeout: Option<Duration>,
    /// The deadline for joining.
    pub connect_timeout: Option<Duration>,
    /// A handle with which another thread can cancel the joining.
    pub cancel: Option<Cancel>,
    /// Longest silence of another host before its ranks count as failed: 2 to 120 s, 2.3 s by
    /// default. Rank 0's value applies to all ranks.
    pub peer_timeout: Option<Duration>,
    /// The transports that may be used.
    pub transport: Option<TransportChoice>,
    /// The algorithm of every collective that supports it, instead of the tuner's choice.
    pub algorithm: Option<Method>,
    /// The rank that is known to arrive late, for `stragglar`. A communicator that `split` makes
    /// without this rank knows no late rank.
    pub late_rank: Option<usize>,
    /// The protocol of every call that supports it, instead of the tuner's choice.
    pub protocol: Option<Protocol>,
    /// Maximum number of channels (independent pipelines) of a collective over messages: on TCP,
    /// connections per pair of ranks. By default 1, or over RDMA the number of rails. Must be the
    /// same on all ranks.
    pub max_channels: Option<usize>,
    /// The network interfaces for data between hosts, in the grammar of `RINGFOLD_SOCKET_IFNAME`.
    /// Several named interfaces are rails, which are used at once.
    pub socket_ifname: Option<String>,
    /// Number of TCP sockets of each channel between two ranks, 1 to 64, over which long messages
    /// are spread: by default as many as the links need. Must be the same on all ranks.
    pub sockets: Option<usize>,
    /// The pipeline's unit in bytes, instead of the tuner's choice. Must be the same on all ranks.
    pub slice_bytes: Option<usize>,
    /// Rules for the algorithm, protocol and channels of calls, instead of
    /// `RINGFOLD_TUNER_CONFIG`'s file. Rank 0's rules apply to all ranks.
    pub tuner_rules: Option<Rules>,
    /// A shared library with NCCL's tuner ABI that changes the modelled costs, given by path or
    /// name; `none` for none. Must be the same on all ranks.
    pub tuner_plugin: Option<String>,
    /// Each rank's share of large all-reduces, for ranks that stay slower than others: measured
    /// after joining, or given. Must be the same on all ranks. See
    /// [`Communicator::set_weights`](crate::Communicator::set_weights). Communicators made by
    /// `split` have no weights.
    pub weights: Option<Weighting>,
    /// Number of threads that share the copies and reductions of large calls with the calling
    /// thread, 0 to 63: by default this rank's share of the cores that no rank needs. The threads
    /// start with the first call that is large enough, and sleep between calls.
    pub helpers: Option<usize>,
    /// Whether rings bypass slow ranks, [`StragglerPolicy::Off`] by default. With a bypass, the
    /// order of additions depends on which rank was late: the same on all ranks, but different from
    /// run to run. Must be set alike on all ranks.
    pub straggler: Option<StragglerPolicy>,
    /// Whether each `all_reduce`, `reduce` and `reduce_scatter` combines its elements in the order
    /// of the canonical tree: the tree of one rank is its value; the tree of `n` ranks is the tree
    /// of the first `p` combined with the tree of the rest, where `p` is the largest power of two
    /// below `n`. 16- and 8-bit floats are accumulated in `F32` and rounded once. So an element of
    /// a result does not depend on the size of the call, its place in the buffer, the algorithm,
    /// the transport, the hosts or the CPU. If the ranks of a smaller world each give the tree of
    /// an aligned block of a power of two values, the result is that of one value for each rank
    /// ([`fold`](crate::fold)). False by default. If any rank sets this, it applies to all; it is
    /// refused together with `straggler`.
    pub reproducible: Option<bool>,
    /// Whether the calling thread is bound to cores, [`Bind::None`] by default. Threads that the
    /// calling thread creates later, such as a pool of OpenMP or torch, stay on the same cores; so
    /// request a binding only for a program that you know.
    pub bind: Option<Bind>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_not_shown() {
        let config = Config {
            rank: Some(3),
            secret: Some("known to us alone".into()),
            ..Config::default()
        };
        let text = format!("{config:?} {config:#?}");
        assert!(
            text.contains("rank: Some(3)") && !text.contains("known"),
            "{text}"
        );
    }
}
