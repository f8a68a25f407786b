//! How a rank joins and how its communicator behaves.

use std::fmt;
use std::time::Duration;

use crate::control::Cancel;
use crate::schedule::Weighting;
pub use crate::topology::binding::Bind;
use crate::tune::Rules;
use crate::types::{Method, Protocol, named};

named! {
    /// Which transports a communicator may use.
    #[derive(Default)]
    TransportChoice, "transport" {
        /// Shared memory to ranks of this host; to the others RDMA where all have a device for it,
        /// else TCP.
        #[default]
        Auto, "auto";
        /// Shared memory only; an error if ranks are on several hosts.
        Shm, "shm";
        /// TCP to every rank, this host's too.
        Tcp, "tcp";
        /// RDMA to every rank, this host's too; an error where a rank has no device for it.
        Rdma, "rdma";
    }
}

named! {
    /// Whether the rings of large `all_reduce` and `reduce_scatter` calls go around a slow rank;
    /// see [`late_ring`](crate::engine::late_ring).
    #[derive(Default)]
    StragglerPolicy, "straggler policy" {
        /// They wait for it.
        #[default]
        Off, "off";
        /// Its sum goes past the next rank, to the one after that.
        Next2, "next2";
        /// Its sum goes straight to where the result is made, and no rank between waits for it.
        Tail, "tail";
    }
}

named! {
    /// What combines the elements of an all-reduce on device memory. Whatever it says, the CPUs
    /// combine for a call that names its algorithm or is made in a group, and with `PremulSum`, of
    /// which each rank has its own factor.
    #[derive(Default)]
    Reducer, "reducer" {
        /// What should be faster by the cost model, for each size: the devices where the CPUs are
        /// too slow and the driver compiles kernels, otherwise the CPUs. `RINGFOLD_DEVICE_REDUCER`
        /// decides instead, if it is set.
        #[default]
        Auto, "auto";
        /// The CPUs.
        Host, "host";
        /// The devices. An error where the driver does not compile kernels, or streams do not wait
        /// for words.
        Device, "device";
    }
}

/// How to join a job. What is `None` comes from the environment: `RINGFOLD_*`, then the launcher's
/// variables.
#[derive(Clone, Default)]
pub struct Config {
    /// This process' rank.
    pub rank: Option<usize>,
    /// The number of ranks.
    pub world_size: Option<usize>,
    /// Where rank 0 is met: `host:port`, or `unix:@name` on one host. Several, separated by commas,
    /// are tried in order, each for a few seconds at most, until one answers.
    pub address: Option<String>,
    /// The job's secret.
    pub secret: Option<String>,
    /// The deadline of every operation that has none of its own.
    pub timeout: Option<Duration>,
    /// The deadline for bringing the ranks together.
    pub connect_timeout: Option<Duration>,
    /// By which another thread can end the joining.
    pub cancel: Option<Cancel>,
    /// How long another host may give no sign of life before its ranks have failed: 2.3 s unless
    /// set, 2 to 120 s. Rank 0's holds for all ranks.
    pub peer_timeout: Option<Duration>,
    /// Which transports may be used.
    pub transport: Option<TransportChoice>,
    /// The algorithm of every collective that has it, instead of the tuner's choice.
    pub algorithm: Option<Method>,
    /// The rank that is known to come late, for `stragglar`; a communicator made by `split` without
    /// it does not know one.
    pub late_rank: Option<usize>,
    /// The protocol of every call that can go by it, instead of the tuner's choice.
    pub protocol: Option<Protocol>,
    /// Independent pipelines of every collective that goes by messages: both bounds, where they are
    /// not set.
    pub channels: Option<usize>,
    /// The fewest of them, 1 unless set. The same on all ranks.
    pub min_channels: Option<usize>,
    /// The most of them: connections per pair of ranks on TCP. Unless set, 1, or over RDMA the
    /// number of rails. The same on all ranks.
    pub max_channels: Option<usize>,
    /// The network interfaces for data between hosts, in the grammar of `RINGFOLD_SOCKET_IFNAME`:
    /// the names of several are rails, which are used at once.
    pub socket_ifname: Option<String>,
    /// TCP sockets of each channel between two ranks, 1 to 64, over which long messages are spread:
    /// what their links need unless set. The same on all ranks.
    pub sockets: Option<usize>,
    /// Threads that help the calling one to move data by several sockets, 15 at most, 0 for none:
    /// some unless set, if the link is fast and the rank has cores to spare. They start with the
    /// first message that is large enough, and sleep between calls.
    pub socket_threads: Option<usize>,
    /// What one message, or one piece of published memory, carries, instead of the tuner's choice.
    /// The same on all ranks.
    pub chunk_bytes: Option<usize>,
    /// The pipeline's unit in bytes, instead of what follows from `chunk_bytes`. The same on all
    /// ranks.
    pub slice_bytes: Option<usize>,
    /// Which calls go which way, instead of `RINGFOLD_TUNER_CONFIG`'s file. Rank 0's hold for all
    /// ranks.
    pub tuner_rules: Option<Rules>,
    /// A shared library in NCCL's tuner ABI that prices ways anew, by path or name; `none` for
    /// none. The same on all ranks.
    pub tuner_plugin: Option<String>,
    /// How much each rank owns of large all-reduces, for ranks that stay slower than others:
    /// measured when all are together, or given. The same on all ranks. See
    /// [`Communicator::set_weights`](crate::Communicator::set_weights). Parts made by `split` have
    /// none.
    pub weights: Option<Weighting>,
    /// Threads that share the copies and reductions of large calls with the calling one, 63 at
    /// most: as many as cores outnumber ranks unless set, 0 for none. They start with the first
    /// call that is large enough, and sleep between calls.
    pub helpers: Option<usize>,
    /// Whether rings bypass slow ranks, [`StragglerPolicy::Off`] unless set: sums are then made in
    /// an order that depends on which rank was late, the same on all ranks and another from run to
    /// run. The same on all ranks.
    pub straggler: Option<StragglerPolicy>,
    /// Insists on results that are the same bits in every run, which they are unless `straggler`
    /// says otherwise: both together are refused.
    pub deterministic: Option<bool>,
    /// Whether the calling thread is bound to a core, [`Bind::None`] unless set. Threads that it
    /// makes later, a pool of OpenMP's or torch's too, stay on the same cores; therefore only who
    /// knows the program should ask for it.
    pub bind: Option<Bind>,
}

/// The secret is not shown.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every field by its name: a new one does not compile until it is shown or hidden here.
        let Config {
            rank,
            world_size,
            address,
            secret,
            timeout,
            connect_timeout,
            cancel,
            peer_timeout,
            transport,
            algorithm,
            late_rank,
            protocol,
            channels,
            min_channels,
            max_channels,
            socket_ifname,
            sockets,
            socket_threads,
            chunk_bytes,
            slice_bytes,
            tuner_rules,
            tuner_plugin,
            weights,
            helpers,
            straggler,
            deterministic,
            bind,
        } = self;
        let secret = secret.as_ref().map(|_| "…");
        f.debug_struct("Config")
            .field("rank", rank)
            .field("world_size", world_size)
            .field("address", address)
            .field("secret", &secret)
            .field("timeout", timeout)
            .field("connect_timeout", connect_timeout)
            .field("cancel", cancel)
            .field("peer_timeout", peer_timeout)
            .field("transport", transport)
            .field("algorithm", algorithm)
            .field("late_rank", late_rank)
            .field("protocol", protocol)
            .field("channels", channels)
            .field("min_channels", min_channels)
            .field("max_channels", max_channels)
            .field("socket_ifname", socket_ifname)
            .field("sockets", sockets)
            .field("socket_threads", socket_threads)
            .field("chunk_bytes", chunk_bytes)
            .field("slice_bytes", slice_bytes)
            .field("tuner_rules", tuner_rules)
            .field("tuner_plugin", tuner_plugin)
            .field("weights", weights)
            .field("helpers", helpers)
            .field("straggler", straggler)
            .field("deterministic", deterministic)
            .field("bind", bind)
            .finish()
    }
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
