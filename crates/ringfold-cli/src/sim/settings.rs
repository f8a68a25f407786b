//! The user's settings: every setting is a flag, a key of a scenario file, and can be varied.
//!
//! One structure serves all three. clap reads it from flags and serde from TOML; varied settings
//! (`--sweep`, `--compare`) are read as a flag once more. A setting that was not given stays
//! `None`, so precedence is a matter of order: the default, the file, the flags, the varied value.

use clap::Args;
use ringfold::internals::simulate::{Payload, Ports, Sending, Server, Slow};
use ringfold::{Collective, DType, Method, Op, Weighting};
use serde::{Deserialize, Deserializer};

use super::constants::{Fabric, Measured};
use super::device_settings::DeviceSettings;
use super::disturbances::{Dead, Late, SlowLink, Stall, SwitchText};
use super::parse::{Bytes, Rate, Span, own_list, own_text, read_from_text, text, words};
use super::policy::PolicySettings;
use crate::parse::{Selection, parse_algorithm, parse_collective, parse_count, parse_dtype};

/// Everything that can be set.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The collective, by its name in `ringfold perf` [default: all_reduce]
    #[arg(long, value_name = "NAME", value_parser = parse_collective, help_heading = CALL)]
    #[serde(deserialize_with = "collective")]
    pub collective: Option<Collective>,

    /// How it is carried out, over messages; `auto` is the tuner's choice [default: auto]
    #[arg(short = 'A', long, value_name = "NAME", help_heading = CALL)]
    pub algorithm: Option<Way>,

    /// Number of ranks [default: 4]
    #[arg(long, value_name = "N", help_heading = CALL, value_parser = parse_count)]
    pub ranks: Option<usize>,

    /// The size, as nccl-tests counts it [default: 8M]
    #[arg(
        short = 'b',
        long,
        value_name = "BYTES",
        conflicts_with = "chunk_bytes",
        help_heading = CALL,
    )]
    pub bytes: Option<Bytes>,

    /// The size of one rank's part, instead: bytes divided by ranks
    #[arg(long, value_name = "BYTES", help_heading = CALL)]
    pub chunk_bytes: Option<Bytes>,

    /// The pipeline's unit, or `whole` [default: the tuner's]
    #[arg(long, value_name = "BYTES|whole", help_heading = CALL)]
    pub slice_bytes: Option<Slice>,

    /// Each rank's share of an all_reduce by direct: 1,1,1,0, or `auto`, from the costs of links
    /// and reductions
    #[arg(long, value_name = "LIST|auto", help_heading = CALL)]
    #[serde(deserialize_with = "own_text")]
    pub weights: Option<Weighting>,

    /// Data type [default: float32]
    #[arg(
        short = 'd',
        long,
        alias = "dtype",
        value_name = "TYPE",
        value_parser = parse_one_dtype,
        help_heading = CALL,
    )]
    #[serde(deserialize_with = "dtype")]
    pub datatype: Option<DType>,

    /// Operation [default: sum]
    #[arg(short = 'o', long, value_name = "OP", help_heading = CALL)]
    #[serde(deserialize_with = "own_text")]
    pub op: Option<Op>,

    /// Root rank; for stragglar the late rank [default: 0, for stragglar the first of --late]
    #[arg(short = 'r', long, value_name = "RANK", help_heading = CALL)]
    pub root: Option<usize>,

    /// Whether data is moved and every result compared with its definition, or its bytes only
    /// counted [default: real up to 256 MiB on all ranks together]
    #[arg(long, value_name = "HOW", value_enum, help_heading = CALL)]
    pub payload: Option<PayloadName>,

    /// Put barriers around the call, as `ringfold perf` does; the time is the slowest rank's
    /// [default: false, all ranks begin at once]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true",
        require_equals = true,
        help_heading = CALL,
    )]
    pub barriers: Option<bool>,

    /// What all random numbers follow from [default: 0]
    #[arg(long, value_name = "N", help_heading = CALL)]
    pub seed: Option<u64>,

    /// Deadline of the call in virtual time [default: 60s]
    #[arg(long, value_name = "TIME", help_heading = CALL)]
    pub timeout: Option<Span>,

    #[command(flatten)]
    pub network: NetworkSettings,

    #[command(flatten)]
    pub compute: ComputeSettings,

    #[command(flatten)]
    pub devices: DeviceSettings,

    #[command(flatten)]
    pub straggler: PolicySettings,

    /// Slower reductions: rank=3,step=*,delay=exp(20us),p=0.1 (also uniform(5us,20us)); may be
    /// repeated. A step is the ordinal of that rank's reduction, from 1
    #[arg(long, value_name = "SPEC", help_heading = TROUBLE)]
    #[serde(deserialize_with = "own_list")]
    pub slow: Vec<Slow>,

    /// A rank that makes its call later: rank=1,delay=60us
    #[arg(long, value_name = "SPEC", help_heading = TROUBLE)]
    pub late: Vec<Late>,

    /// A rank that is frozen for a while: rank=1,from=10us,until=2ms
    #[arg(long, value_name = "SPEC", help_heading = TROUBLE)]
    pub stall: Vec<Stall>,

    /// A link with less bandwidth: rank=1,factor=4 is a port, from=1,to=2,factor=4 one way
    #[arg(long, value_name = "SPEC", help_heading = TROUBLE)]
    pub slow_link: Vec<SlowLink>,

    /// A rank that dies: rank=1,at=100us
    #[arg(long, value_name = "SPEC", help_heading = TROUBLE)]
    pub dead: Vec<Dead>,

    /// How long it takes until the survivors of a death learn of it [default: 10ms]
    #[arg(long, value_name = "TIME", help_heading = TROUBLE)]
    pub detect: Option<Span>,
}

/// The network between the ranks.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkSettings {
    /// What joins hosts: `rdma` has messages of more than 4 KiB wait for a grant, and its constants
    /// are those that --constants has of it, or assumed ones [default: sockets]
    #[arg(long, value_name = "NETWORK", value_enum, help_heading = NETWORK)]
    pub fabric: Option<FabricName>,

    /// Whether data is in registered memory, which RDMA moves without a processor [default: false,
    /// it is copied at both ends]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true",
        require_equals = true,
        help_heading = NETWORK,
    )]
    pub registered: Option<bool>,

    /// What was measured of links, if --constants has it: settings take precedence.
    #[arg(skip)]
    #[serde(skip)]
    pub measured: Option<Measured>,

    /// How long after its receive was posted a message of more than 4 KiB may depart [default: at
    /// once, with --fabric rdma 2us]
    #[arg(long, value_name = "TIME", help_heading = NETWORK)]
    pub grant: Option<Span>,

    /// Latency of a message [default: 5us]
    #[arg(long, value_name = "TIME", help_heading = NETWORK)]
    pub alpha: Option<Span>,

    /// Bandwidth of each rank's port: 100Gbit/s, 12.5GB/s or `unlimited` [default: 100Gbit/s]
    #[arg(long, value_name = "RATE", help_heading = NETWORK)]
    pub bandwidth: Option<Rate>,

    /// LogGP's o: what a message costs the processor at each end [default: 0]
    #[arg(long, value_name = "TIME", help_heading = NETWORK)]
    pub overhead: Option<Span>,

    /// The same where ranks outnumber cores [default: --overhead]
    #[arg(long, value_name = "TIME", help_heading = NETWORK)]
    pub crowded_overhead: Option<Span>,

    /// What a message of more than one packet (1448 bytes) costs the processor at each end beyond
    /// that [default: 0]
    #[arg(long, value_name = "TIME", help_heading = NETWORK)]
    pub packets_overhead: Option<Span>,

    /// How fast a processor moves a message's bytes at each end: the kernel's copies and packets
    /// [default: unlimited]
    #[arg(long, value_name = "RATE", help_heading = NETWORK)]
    pub work_rate: Option<Rate>,

    /// LogGP's g: how long a port rests after a message [default: 0]
    #[arg(long, value_name = "TIME", help_heading = NETWORK)]
    pub gap: Option<Span>,

    /// Whether a port sends and receives at once [default: full]
    #[arg(long, value_name = "DUPLEX", value_enum, help_heading = NETWORK)]
    pub ports: Option<PortsName>,

    /// Whether a message waits for its receive [default: eager]
    #[arg(long, value_name = "HOW", value_enum, help_heading = NETWORK)]
    pub sending: Option<SendingName>,

    /// Ranks on each host, in rank order [default: 1]
    #[arg(long, value_name = "N", help_heading = NETWORK)]
    pub ranks_per_host: Option<usize>,

    /// Latency between ranks of one host [default: as between hosts]
    #[arg(long, value_name = "TIME", help_heading = NETWORK)]
    pub local_alpha: Option<Span>,

    /// Bandwidth between ranks of one host [default: as between hosts]
    #[arg(long, value_name = "RATE", help_heading = NETWORK)]
    pub local_bandwidth: Option<Rate>,

    /// What a message within a host costs the processor at each end [default: as between hosts]
    #[arg(long, value_name = "TIME", help_heading = NETWORK)]
    pub local_overhead: Option<Span>,

    /// The same where ranks outnumber cores [default: --local-overhead]
    #[arg(long, value_name = "TIME", help_heading = NETWORK)]
    pub local_crowded_overhead: Option<Span>,

    /// How fast a processor moves the bytes of a message within a host, at each end [default: as
    /// between hosts]
    #[arg(long, value_name = "RATE", help_heading = NETWORK)]
    pub local_work_rate: Option<Rate>,

    /// What a stream between hosts holds before its receiver takes it: a socket's buffers
    /// [default: everything]
    #[arg(long, value_name = "BYTES", help_heading = NETWORK)]
    pub window_bytes: Option<Bytes>,

    /// What a stream within a host holds: a ring's cells [default: as between hosts]
    #[arg(long, value_name = "BYTES", help_heading = NETWORK)]
    pub local_window_bytes: Option<Bytes>,

    /// Pieces in which a message goes from stage to stage [default: whole messages]
    #[arg(long, value_name = "BYTES", help_heading = NETWORK)]
    pub segment_bytes: Option<Bytes>,

    /// Hosts that are namespaces or containers of one machine, and share its cores and memory
    /// [default: 1]
    #[arg(long, value_name = "N", help_heading = NETWORK)]
    pub hosts_per_machine: Option<usize>,

    /// Bandwidth of each machine's memory, which its ranks share [default: unlimited]
    #[arg(long, value_name = "RATE", help_heading = NETWORK)]
    pub memory_bandwidth: Option<Rate>,

    /// A shared link inside the network: name=spine,bandwidth=200Gbit/s,ranks=0-3; may be repeated
    #[arg(long, value_name = "SPEC", help_heading = NETWORK)]
    pub switch: Vec<SwitchText>,
}

/// The processors.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ComputeSettings {
    /// What every reduction takes, whatever its length [default: 0]
    #[arg(long, value_name = "TIME", help_heading = COMPUTE)]
    pub reduce_time: Option<Span>,

    /// The rate of reductions: 20GB/s or `unlimited` [default: 20GB/s, or unlimited with
    /// --reduce-time]
    #[arg(long, value_name = "RATE", help_heading = COMPUTE)]
    pub reduce_rate: Option<Rate>,

    /// How fast data is copied within a rank [default: unlimited]
    #[arg(long, value_name = "RATE", help_heading = COMPUTE)]
    pub copy_rate: Option<Rate>,

    /// What the caches of a machine hold; three times the size on each of its ranks is held there
    /// [default: everything]
    #[arg(long, value_name = "BYTES", help_heading = COMPUTE)]
    pub cache_bytes: Option<Bytes>,

    /// Rate whose time is added to every byte that a processor reads from memory, not from a cache
    /// [default: unlimited]
    #[arg(long, value_name = "RATE", help_heading = COMPUTE)]
    pub miss_rate: Option<Rate>,

    /// Whether a rank does its reductions one after the other or side by side [default: serial]
    #[arg(long, value_name = "HOW", value_enum, help_heading = COMPUTE)]
    pub server: Option<ServerName>,

    /// How long a rank that waits keeps its core, polling, before it sleeps [default: 0]
    #[arg(long, value_name = "TIME", help_heading = COMPUTE)]
    pub spin: Option<Span>,

    /// Wake-up time of a rank that slept, if a core was idle [default: 0]
    #[arg(long, value_name = "TIME", help_heading = COMPUTE)]
    pub wake: Option<Span>,

    /// Wake-up time of a rank that slept, after a context switch on its core [default: 0]
    #[arg(long, value_name = "TIME", help_heading = COMPUTE)]
    pub switch_time: Option<Span>,

    /// Cores that the ranks of a host share, or those of all hosts of a machine [default: enough]
    #[arg(long, value_name = "N", help_heading = COMPUTE)]
    pub cores_per_host: Option<usize>,
}

/// Headings of the help.
const CALL: &str = "The call";
const NETWORK: &str = "The network";
const COMPUTE: &str = "The processors";
const TROUBLE: &str = "What goes wrong";

/// An algorithm, or the tuner's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Auto,
    By(Method),
}

/// The pipeline's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice {
    Whole,
    Bytes(u64),
}

words! {
    /// A word for [`Payload`].
    PayloadName for Payload:
    /// Moved, and results compared
    Real => Payload::Real,
    /// Counted
    Hollow => Payload::Hollow,
}

words! {
    /// A word for [`Fabric`].
    FabricName for Fabric:
    /// TCP
    Sockets => Fabric::Sockets,
    /// InfiniBand, RoCE
    Rdma => Fabric::Rdma,
}

words! {
    /// A word for [`Ports`].
    PortsName for Ports:
    /// Both directions at once
    Full => Ports::Full,
    /// One direction at a time
    Half => Ports::Half,
    /// Any number of messages at once
    Unlimited => Ports::Unlimited,
}

words! {
    /// A word for [`Sending`].
    SendingName for Sending:
    /// Messages set off when they are sent
    Eager => Sending::Eager,
    /// Messages set off when their receiver is ready, too
    Rendezvous => Sending::Rendezvous,
}

words! {
    /// A word for [`Server`].
    ServerName for Server:
    /// As many reductions as there are
    Parallel => Server::Parallel,
    /// One reduction at a time
    Serial => Server::Serial,
}

read_from_text!(Slice, Way);

impl std::str::FromStr for Slice {
    type Err = String;
    fn from_str(text: &str) -> Result<Slice, String> {
        match text {
            "whole" => Ok(Slice::Whole),
            _ => match text.parse::<Bytes>()? {
                Bytes(0) => Err("a slice has at least 1 byte; write `whole` for no slices".into()),
                Bytes(bytes) => Ok(Slice::Bytes(bytes)),
            },
        }
    }
}

impl std::str::FromStr for Way {
    type Err = ringfold::Error;
    fn from_str(text: &str) -> ringfold::Result<Way> {
        match text {
            "auto" => Ok(Way::Auto),
            _ => parse_algorithm(text).map(Way::By),
        }
    }
}

fn parse_one_dtype(text: &str) -> Result<DType, ringfold::Error> {
    match parse_dtype(text)? {
        Selection::One(dtype) => Ok(dtype),
        Selection::All => Err(ringfold::Error::InvalidArgument(
            "one data type at a time; `--compare datatype=float16,float32` takes several".into(),
        )),
    }
}

fn collective<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Collective>, D::Error> {
    text(from, parse_collective).map(Some)
}

fn dtype<'de, D: Deserializer<'de>>(from: D) -> Result<Option<DType>, D::Error> {
    text(from, parse_one_dtype).map(Some)
}

/// Lays what was set in one structure over another.
macro_rules! overlay {
    ($under:expr, $over:expr, $($one:ident),*; $($list:ident),*) => {
        $(if $over.$one.is_some() { $under.$one.clone_from(&$over.$one); })*
        $(if !$over.$list.is_empty() { $under.$list.clone_from(&$over.$list); })*
    };
}

impl Settings {
    /// Lets `over` override every setting that it has. A size replaces a chunk's size and vice
    /// versa, and an overhead the one that a message has where ranks outnumber cores; disturbances
    /// of a kind replace all of that kind.
    pub fn overlay(&mut self, over: &Settings) {
        if over.bytes.is_some() {
            self.chunk_bytes = None;
        }
        if over.chunk_bytes.is_some() {
            self.bytes = None;
        }
        if over.network.overhead.is_some() {
            self.network.crowded_overhead = None;
        }
        if over.network.local_overhead.is_some() {
            self.network.local_crowded_overhead = None;
        }
        overlay!(self, over, collective, algorithm, ranks, bytes, chunk_bytes, slice_bytes,
            weights, datatype, op, root, payload, barriers, seed, timeout, detect;
            slow, late, stall, slow_link, dead);
        overlay!(self.network, over.network, fabric, registered, measured, grant, alpha, bandwidth,
            overhead, crowded_overhead, packets_overhead, work_rate, gap, ports, sending,
            ranks_per_host, local_alpha, local_bandwidth, local_overhead, local_crowded_overhead,
            local_work_rate, window_bytes, local_window_bytes, segment_bytes, hosts_per_machine,
            memory_bandwidth; switch);
        overlay!(self.straggler, over.straggler, policy, alpha_threshold, signals, timers, floor;);
        overlay!(self.devices, over.devices, device, measured, device_in, device_duplex,
            device_copy, device_signal, device_enqueue, device_reduce, device_launch, device_flag,
            device_read, reducer, one_shot, slot_bytes, slots, direct, ranks_per_device;);
        overlay!(self.compute, over.compute, reduce_time, reduce_rate, copy_rate, cache_bytes,
            miss_rate, server, spin, wake, switch_time, cores_per_host;);
    }
}
