//! The table of variables: the effect, form, default and parser of each.

use std::time::Duration;

use super::{
    FOREIGN_BINDINGS, Lookup, addresses, check_text, count, ends_process, milliseconds, parse,
    parsed, peer_timeout, positive, process, replaceable, seconds, secret, size, sockets, switch,
    text, within,
};
use crate::config::{Bind, StragglerPolicy, TransportChoice};
use crate::congestion::Congestion;
use crate::control::{RendezvousAddress, Secret};
use crate::error::Result;
use crate::schedule::Weighting;
use crate::topology::interface_choice::InterfaceChoice;
use crate::transport::rdma::RegisterBytes;
use crate::tune::AlgoFilter;
use crate::tune::allowed::{ALGO, PROTO};
use crate::tune::calibration::CalibrationSource;
use crate::tune::channels::CHANNELS_MAX;
use crate::tune::limits::LimitOverrides;
use crate::verbs::DeviceChoice;

/// One variable.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// The variable's name.
    pub name: &'static str,
    /// The form of the value.
    pub kind: &'static str,
    /// The default value.
    pub default: &'static str,
    /// The variable's effect.
    pub about: &'static str,
}

/// Defines each variable: its effect, name, form and default and, if its value is a field of
/// [`Environment`], the field, its type and its parser.
macro_rules! variables {
    ($(
        $(#[doc = $about:literal])+
        $name:literal: $kind:literal, default $default:literal
            $(=> $field:ident: $type:ty = $read:expr)?;
    )+) => {
        /// Every variable that ringfold knows.
        pub const VARIABLES: &[Variable] = &[$(Variable {
            name: $name,
            kind: $kind,
            default: $default,
            about: concat!($($about),+).trim_ascii_start(),
        }),+];

        /// The values of the `RINGFOLD_*` variables; `None` for a variable that is not set.
        #[derive(Clone, Debug, Default)]
        pub struct Environment {
            $($(
                #[doc = concat!("`", $name, "`: ", $kind, ".")]
                pub $field: Option<$type>,
            )?)+
            /// The job's secret.
            pub secret: Option<Secret>,
            /// The algorithms and protocols from which the tuner may choose.
            pub allowed: AlgoFilter,
            /// The network interfaces for data between hosts.
            pub socket_ifname: Option<InterfaceChoice>,
            /// A variable that shows that binding is handled elsewhere.
            pub foreign_binding: Option<&'static str>,
            /// `TORCH_FR_BUFFER_SIZE`: torch's own number of records, if it is a number.
            pub torch_flight_records: Option<usize>,
        }

        impl Environment {
            /// Reads this process' environment.
            pub fn read() -> Result<Environment> {
                check_text()?;
                Environment::from_lookup(&process)
            }

            /// Reads the variables through `lookup`.
            pub fn from_lookup(lookup: Lookup<'_>) -> Result<Environment> {
                let list = |name| lookup(name).unwrap_or_default();
                let mut foreign = FOREIGN_BINDINGS.into_iter();
                Ok(Environment {
                    $($($field: parse(lookup, $name, $read)?,)?)+
                    secret: secret(lookup)?,
                    allowed: AlgoFilter::parse(&list(ALGO), &list(PROTO))?,
                    socket_ifname: InterfaceChoice::find(lookup),
                    foreign_binding: foreign.find(|name| lookup(name).is_some()),
                    torch_flight_records: lookup("TORCH_FR_BUFFER_SIZE")
                        .and_then(|text| text.trim().parse().ok()),
                })
            }
        }
    };
}

variables! {
    /// This process' rank. Set it together with `RINGFOLD_WORLD_SIZE`. Under a Kubernetes Indexed
    /// Job it may be omitted and is then `JOB_COMPLETION_INDEX`.
    "RINGFOLD_RANK": "0, 1, …", default "the launcher's" => rank: usize = count;

    /// The number of ranks. Without it and without a launcher's variables, the process is a job of
    /// one rank.
    "RINGFOLD_WORLD_SIZE": "1, 2, …", default "the launcher's" => world_size: usize = positive;

    /// This process' rank among the ranks of its host.
    "RINGFOLD_LOCAL_RANK": "0, 1, …", default "the launcher's" => local_rank: usize = count;

    /// The number of ranks on this host. If it equals the number of ranks, they connect through a
    /// UNIX socket.
    "RINGFOLD_LOCAL_WORLD_SIZE": "1, 2, …", default "the launcher's"
        => local_world_size: usize = positive;

    /// The address of rank 0: its host and a free port there, the same on all ranks. It is the same
    /// setting as `address` of `ringfold.init` and of `Config`, and `--addr` of `ringfold run`.
    /// Rank 0 listens at all addresses that a host's name has there, and if these are loopback
    /// addresses only, at its interfaces (`RINGFOLD_SOCKET_IFNAME`), too. Several
    /// addresses, separated by commas, are tried in order, and rank 0 listens at all of them. The
    /// default uses the port after `MASTER_PORT`, because `MASTER_PORT` itself belongs to torch's
    /// store. If all ranks are on one host, or a single address is a loopback address, the abstract
    /// UNIX socket `@ringfold-<user id>-<port>` is used instead: both ends check that the other
    /// belongs to the same user, so no secret is needed. With a secret, the name is derived from
    /// both, so no other user can take it beforehand.
    "RINGFOLD_ADDR": "`host:port` or `unix:@name`, or several of them",
        default "`MASTER_ADDR` and `MASTER_PORT` + 1, or what the launcher implies"
        => addresses: Vec<RendezvousAddress> = addresses;

    /// The job's secret, known only to its ranks: every connection begins by proving it. Required
    /// if ranks connect over a network. Use 16 random bytes or more, for example `head -c16
    /// /dev/urandom | base64`; less than 4 are refused. Takes precedence over
    /// `RINGFOLD_SECRET_FILE`.
    "RINGFOLD_SECRET": "text", default "none";

    /// A file with the secret, owned by this user and not readable by other users (mode 0600).
    /// Trailing white space is ignored. At most 4096 bytes.
    "RINGFOLD_SECRET_FILE": "path", default "none";

    /// The default deadline of an operation. It is long, because a rank may be saving a checkpoint
    /// or compiling; the death of a rank is detected at once regardless.
    "RINGFOLD_TIMEOUT_MS": "milliseconds", default "300000" => timeout: Duration = milliseconds;

    /// The deadline for joining. Raise it if ranks start far apart in time.
    "RINGFOLD_CONNECT_TIMEOUT_MS": "milliseconds", default "60000"
        => connect_timeout: Duration = milliseconds;

    /// The longest silence of another host before its ranks count as failed. A disconnected cable
    /// or a host without power is detected after this time. A network outage that is at least a
    /// second shorter than the whole seconds of this time is survived (before Linux 6.15: one of
    /// half that time). Raise it for networks with outages of seconds. Processes that end are
    /// detected at once regardless. Rank 0's value applies to all ranks.
    "RINGFOLD_PEER_TIMEOUT_MS": "milliseconds, 2000 to 120000", default "2300"
        => peer_timeout: Duration = peer_timeout;

    /// The transports to use. `auto`: shared memory between the ranks of one host; between hosts
    /// RDMA if all ranks have a device for it, else TCP. `shm` is an error if there are several
    /// hosts. `tcp` and `rdma` use TCP and RDMA on one host, too; `rdma` is an error if a rank has
    /// no device.
    "RINGFOLD_TRANSPORT": "`auto`, `shm`, `tcp`, `rdma`", default "`auto`"
        => transport: TransportChoice = parsed;

    /// The network interfaces for data between hosts: names and networks, separated by commas, in
    /// order of preference, for example `eth0,10.0.0.0/8`. `=eth0` is the interface of exactly this
    /// name, `eth*` all interfaces whose names begin with `eth`. `eth0` is the interface of this
    /// name or, if there is none, all interfaces whose names begin with it. `^eth0` excludes an
    /// interface; `^` in front of the list (`^docker,lo`) excludes all interfaces in the list. A
    /// name that matches no interface of a host is reported in a warning, and ignored if other
    /// interfaces are left. Loopback is never used between hosts. Interfaces that a list names, and
    /// that connect two hosts by different networks, are used at the same time, as rails. Without
    /// names, interfaces are rails if their rate is known and at least half of the fastest
    /// interface's rate. See `RINGFOLD_SOCKETS`. If this variable is not set, `GLOO_SOCKET_IFNAME`
    /// counts (exact names), and if that is not set, `NCCL_SOCKET_IFNAME` (the beginnings of names;
    /// `=` or `^` in front applies to the whole list). The log (`INFO`, `INIT`) names the variable
    /// that was used.
    "RINGFOLD_SOCKET_IFNAME": "list",
        default "`GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME`, or all interfaces that are up";

    /// The number of TCP sockets of each channel between two ranks. A message of 64 KiB or more is
    /// divided among them, 32 KiB at least for each. `auto`: one, or for each rail as many as its
    /// link needs: 2 from 25 Gbit/s on, 4 from 50, 8 from 100, of the slower end; 8 on Amazon's
    /// NICs and 4 on Google's, where a flow's rate is limited; 16 in all at most, and no more than
    /// take half of the process' descriptors. The same on all ranks.
    "RINGFOLD_SOCKETS": "`auto` or 1 to 64", default "`auto`"
        => sockets: Option<usize> = sockets;

    /// The congestion control of data connections: a name that the kernel permits, such as `cubic`
    /// or `dctcp`, or `default` for the kernel's own. `auto`: the kernel's own, unless that is bbr,
    /// whose pacing halves the rate of short, fast links. Then connections with a round trip below
    /// 5 ms use cubic, or reno if cubic is not permitted. Each rank sets its own.
    "RINGFOLD_TCP_CONGESTION": "`auto`, `default` or a name", default "`auto`"
        => tcp_congestion: Congestion = parsed;

    /// `1`: no RDMA unless `RINGFOLD_TRANSPORT` is `rdma`. The same on all ranks.
    "RINGFOLD_IB_DISABLE": "`0`, `1`", default "`0`" => ib_disable: bool = switch;

    /// The RDMA devices to use: `mlx5` is each whose name begins with it, `=mlx5_0:1,mlx5_1` port 1
    /// of one and all ports of another, `^mlx5_2` all except. The devices used are rails: channels
    /// are distributed over them in turn, and each rank's first device is connected to the other
    /// ranks' first devices.
    "RINGFOLD_IB_HCA": "list", default "all active ports" => ib_hca: DeviceChoice = parsed;

    /// The index of the address in the ports' GID tables. By default, the entry of RoCE v2 with an
    /// IPv4 address, else with a global IPv6 address, else with a link-local address; on
    /// InfiniBand, the first entry.
    "RINGFOLD_IB_GID_INDEX": "0 to 255", default "found" => ib_gid_index: u8 = within(0..=u8::MAX);

    /// The traffic class of RoCE packets, for networks that treat classes differently.
    "RINGFOLD_IB_TC": "0 to 255", default "0" => ib_traffic_class: u8 = within(0..=u8::MAX);

    /// The service level on InfiniBand.
    "RINGFOLD_IB_SL": "0 to 15", default "0" => ib_service_level: u8 = within(0..=15);

    /// The timeout of an unacknowledged packet: it is retransmitted after 4.096 us times 2 to the
    /// power of this value.
    "RINGFOLD_IB_TIMEOUT": "1 to 31", default "18" => ib_timeout: u8 = within(1..=31);

    /// The number of retransmissions of a packet before the peer counts as failed.
    "RINGFOLD_IB_RETRY_CNT": "1 to 7", default "6" => ib_retries: u8 = within(1..=7);

    /// The index of the partition key in the ports' tables.
    "RINGFOLD_IB_PKEY": "0 to 255", default "0" => ib_pkey: u8 = within(0..=u8::MAX);

    /// The minimum length from which the memory of a call is registered with the RDMA device for
    /// that call, piece by piece, instead of copied through memory that is already registered.
    /// `auto` compares the costs of both, which are measured when ranks join; `off` never
    /// registers. Memory that the program has registered is never copied. Each rank sets its own.
    "RINGFOLD_IB_REGISTER_BYTES": "`auto`, `off` or bytes; K, M, G", default "`auto`"
        => ib_register_bytes: RegisterBytes = parsed;

    /// The library of RDMA devices, instead of the installed `libibverbs.so.1`.
    "RINGFOLD_VERBS_LIBRARY": "name or path", default "`libibverbs.so.1`"
        => verbs_library: String = text;

    /// Shared memory per rank. Lower it if a container's memory is limited.
    "RINGFOLD_SHM_BYTES": "bytes; K, M, G", default "8M" => shm_bytes: usize = size;

    /// The algorithms from which the tuner may choose, in the grammar of `NCCL_ALGO`: `ring`;
    /// `ring,tree`; `^push` for all except `push`;
    /// `direct;allreduce:ring,rabenseifner;broadcast:^tree` for a list for all collectives and
    /// separate lists for two of them. Only the first list may omit the collective. Case and
    /// underscores are ignored. A list for all collectives does not affect a collective that has
    /// none of its algorithms. A list for a collective is binding: a call for which no algorithm is
    /// left is refused. Must be the same on all ranks.
    "RINGFOLD_ALGO": "a list, or lists by collective", default "all algorithms";

    /// The protocols from which the tuner may choose, in the same grammar: `ll` (the payload is in
    /// the line that signals its arrival), `simple` (staged and pipelined), `zero_copy` (peers work
    /// in the buffers themselves). The same on all ranks.
    "RINGFOLD_PROTO": "a list, or lists by collective", default "all protocols";

    /// A file of rules, in the format of NCCL's example tuner: which algorithm, protocol and number
    /// of channels a call uses. Rank 0 reads it for all. A malformed line is an error with its line
    /// and column. See docs/guides/tuning.md.
    "RINGFOLD_TUNER_CONFIG": "path", default "none" => tuner_config: String = text;

    /// A shared library with NCCL's tuner interface, which can change the modelled costs. The part
    /// of its name between `libnccl-tuner-` and `.so` suffices; `STATIC_PLUGIN` is the program
    /// itself. If it cannot be loaded, a warning is logged, and the model decides. Must be the same
    /// on all ranks. See docs/guides/nccl-tuner.md.
    "RINGFOLD_TUNER_PLUGIN": "a library's path or name, or `none`", default "none"
        => tuner_plugin: String = text;

    /// Whether the ranks of a host spend up to 10 ms at the start on measuring at which size one
    /// algorithm becomes faster than another, and whether messages are faster if they are read from
    /// the sender's memory. With `0`, limits derived from caches and cores are used, and the model
    /// decides; the algorithms also with more ranks than cores. Rank 0's value applies, but with
    /// `0` on any rank reading is not measured.
    "RINGFOLD_PROBE": "`0`, `1`", default "`1`" => probe: bool = switch;

    /// The file of `ringfold tune calibrate` with the constants of the tuner's cost model; see
    /// docs/guides/tuning.md. With `0`, or without a file, the defaults are used. A file that was
    /// measured on another machine, or is invalid, is ignored with a message. Rank 0's value
    /// applies.
    "RINGFOLD_CALIBRATION": "path, or `0`",
        default "the machine's own in `$XDG_CACHE_HOME/ringfold` or `~/.cache/ringfold`"
        => calibration: CalibrationSource = parsed;

    /// Size limits of the tuner, for experiments: `shared_slice_bytes=64K,stream_bytes_min=never`.
    /// With `read_bytes_min=never`, ranks do not read each other's memory. The log (`INFO`,
    /// `TUNING`) lists all values, and `tune/limits.rs` describes them. Rank 0's
    /// values apply to all ranks; but `never` on any rank applies to all.
    "RINGFOLD_LIMITS": "list of `name=bytes`", default "derived by the tuner"
        => limits: LimitOverrides = parsed;

    /// The maximum number of channels of a collective over messages: independent pipelines, which
    /// are the TCP connections of each pair of ranks, and a limit for rules and plugins. A call
    /// uses one channel per 2 MiB; grouped calls share them. See docs/explanation/channels.md. Must
    /// be the same on all ranks.
    "RINGFOLD_MAX_CHANNELS": "1 to 64", default "1; over RDMA, the number of rails"
        => max_channels: usize = within(1..=CHANNELS_MAX);

    /// The unit of the pipeline: bytes of the vector, or of each block. A message is this unit,
    /// divided by the algorithm's chunks and by the channels. Must be the same on all ranks.
    "RINGFOLD_SLICE_BYTES": "bytes; K, M, G", default "the tuner's choice"
        => slice_bytes: usize = size;

    /// Each rank's share of all-reduces above 32 KiB, which then use the weighted `direct`
    /// algorithm: for a link or core that stays slower than the others. `1,1,1,0`: three ranks own
    /// a third each, the last one nothing. `auto`: measured once, after joining. Must be the same
    /// on all ranks; a list for a different number of ranks is ignored with a warning. See
    /// docs/guides/stragglers.md.
    "RINGFOLD_WEIGHTS": "`auto`, or a whole number per rank", default "equal parts"
        => weights: Weighting = parsed;

    /// Whether `all_reduce` and `reduce_scatter` above 32K bypass a slow rank: by a ring of
    /// messages in which a late sum bypasses the next rank (`next2`) or goes straight to the rank
    /// that owns the result (`tail`, which hides more). Results are exact, but the order of
    /// floating-point additions depends on which rank was late. See docs/guides/stragglers.md. Must
    /// be the same on all ranks.
    "RINGFOLD_STRAGGLER": "`off`, `next2`, `tail`", default "`off`"
        => straggler: StragglerPolicy = parsed;

    /// Whether each `all_reduce`, `reduce` and `reduce_scatter` combines its elements in the order
    /// of a balanced tree over the ranks, and rounds 16- and 8-bit floats once: the same bits for
    /// any size, algorithm, transport and division into hosts. See docs/guides/reproducible.md. If
    /// any rank sets it, it applies to all.
    "RINGFOLD_REPRODUCIBLE": "`0`, `1`", default "`0`" => reproducible: bool = switch;

    /// The rank that is known to be late to every `all_reduce`; required by
    /// `RINGFOLD_ALGO=stragglar`. Must be the same on all ranks, which compare it when they join.
    "RINGFOLD_LATE_RANK": "0, 1, …", default "none" => late_rank: usize = count;

    /// Whether each rank is bound to cores of its own, within its affinity. `auto`: to its share of
    /// them (with one rank per core, one core; with more ranks than cores, equally many ranks on
    /// each); containers of one machine divide the cores that they share. It does not bind if the
    /// ranks cannot share the cores evenly, if more containers of one rank each share cores than
    /// there are, if the ranks' affinities differ or were narrowed, or if a variable such as
    /// `SLURM_CPU_BIND` or `OMP_PLACES` says that binding is handled elsewhere. `core`: to one
    /// core, spread over caches and sockets; an error unless there is a core for each rank.
    /// `ringfold run` and `ringfold perf` bind the processes that they start. In a program started
    /// otherwise, the thread that joins is bound, and threads that it starts later (OpenMP's,
    /// torch's) share its cores: this is why nothing is bound there by default.
    "RINGFOLD_BIND": "`auto`, `none`, `core`",
        default "`none`; `auto` in `ringfold run` and `ringfold perf`"
        => bind: Bind = parsed;

    /// Threads of each communicator that share the copies and reductions of large calls with the
    /// calling thread. By default: the host's cores divided by its ranks, minus one, at most 7, and
    /// no more than the rank's own affinity leaves; none if a rank is bound to one core. Cores on
    /// which processes of other communicators run when this one begins do not count; processes in
    /// another network or process namespace are not visible. A step of a call uses as many helpers
    /// as its size can occupy, and fewer while other communicators of the process use theirs. They
    /// start with the first large call (`helper_bytes_min` in the log) and sleep between calls.
    /// Results are bitwise identical with and without helpers.
    "RINGFOLD_HELPERS": "0 to 63", default "the number of free cores" => helpers: usize = count;

    /// The library of CUDA's driver, instead of the installed one. It is loaded when a device is
    /// first used, and never otherwise.
    "RINGFOLD_CUDA_LIBRARY": "a library's path or name", default "`libcuda.so.1`"
        => cuda_library: String = text;

    /// The library of AMD's HIP, instead of the installed one. If neither this variable nor
    /// `RINGFOLD_CUDA_LIBRARY` is set, CUDA's driver is used if it is installed, and otherwise HIP.
    "RINGFOLD_HIP_LIBRARY": "a library's path or name", default "`libamdhip64.so`"
        => hip_library: String = text;

    /// In the PyTorch backend: whether DistributedDataParallel's gradient buckets are registered
    /// automatically; see docs/guides/torch.md. Must be the same on all ranks.
    "RINGFOLD_TORCH_BUCKETS": "`0`, `1`", default "`1`" => torch_buckets: bool = switch;

    /// In the PyTorch backend: `gloo` makes torch create groups of ringfold for programs that ask
    /// for the backend `gloo`, on all of a group's ranks or on none; see
    /// docs/guides/beside-nccl.md. Set it on all ranks.
    "RINGFOLD_TORCH_REPLACE": "`gloo`", default "none" => torch_replace: String = replaceable;

    /// In the PyTorch backend: what happens when a group fails. `raise`: its calls raise the error.
    /// `exit`: the process ends within a second, even if it only waits for a device, whose streams
    /// report no errors.
    "RINGFOLD_TORCH_ASYNC_ERRORS": "`raise`, `exit`", default "`raise`"
        => torch_ends_process: bool = ends_process;

    /// In the PyTorch backend: after how long a call in progress is reported as stuck, on the
    /// waiting rank, with the ranks that it waits for and their progress. The report is repeated
    /// after twice that time, and so on. `0`: never.
    "RINGFOLD_STALL_SECONDS": "seconds", default "60" => stall: Duration = seconds;

    /// In the PyTorch backend: the number of calls in a process' flight record, over all groups.
    /// See docs/guides/torch-diagnosis.md. `0` disables the record, and with it the reports of
    /// stuck calls.
    "RINGFOLD_FR_BUFFER_SIZE": "0, 1, …", default "`TORCH_FR_BUFFER_SIZE`, or 2000"
        => flight_records: usize = count;

    /// The file name prefix of the flight record, which is written after a fatal error, in
    /// PyTorch's format: `dumps/fr_` becomes `dumps/fr_0` for rank 0, and so on, and the same as
    /// JSON `dumps/fr_json/0.json`. A rank that leaves before others have reached the same call
    /// writes it, too. Use a folder that no other user can write to. If not set, the record is only
    /// written on request.
    "RINGFOLD_FR_DUMP": "path", default "none" => flight_dump: String = text;

    /// For example `USR2`: on this signal, the process writes its flight record, with the prefix in
    /// `RINGFOLD_FR_DUMP`. A handler that the program has installed for the signal is not replaced.
    "RINGFOLD_FR_SIGNAL": "a signal's name", default "none" => flight_signal: String = text;

    /// Whether the flight record has the source location of each call. Takes some microseconds per
    /// call.
    "RINGFOLD_FR_FRAMES": "`0`, `1`", default "`0`" => flight_frames: bool = switch;

    /// Whether processes show the counters of their calls to other processes of this user and to
    /// root: what `ringfold top` and `ringfold metrics` read. See docs/guides/watch-a-job.md.
    "RINGFOLD_BOARD": "`0`, `1`", default "`1`" => board: bool = switch;

    /// The folder in which each process records its calls, for `ringfold trace`: one file per
    /// communicator, readable by this user only. `ringfold run --trace` sets it. Takes about 0.1 us
    /// per call. The folder is created if it does not exist; it should be on a local file system or
    /// in memory, because each call writes to a mapping of the file. If a file cannot be created, a
    /// warning is logged, and nothing is recorded.
    "RINGFOLD_TRACE": "path", default "none" => trace: String = text;

    /// The number of last calls recorded for each communicator, at 64 bytes each, reserved at the
    /// start.
    "RINGFOLD_TRACE_CALLS": "1, 2, …", default "100000" => trace_calls: usize = positive;

    /// The level of the log on standard error, as in NCCL. `VERSION`: one line at the start.
    /// `INFO`: what was chosen, and why. `TRACE`: everything.
    "RINGFOLD_DEBUG": "`NONE`, `VERSION`, `WARN`, `INFO`, `TRACE`", default "`WARN`";

    /// The subsystems of `INFO` and `TRACE` lines: `INIT`, `ENV`, `CONTROL`, `TRANSPORT`, `TUNING`,
    /// separated by commas. A `^` in front means all except these.
    "RINGFOLD_DEBUG_SUBSYS": "list", default "all";

    /// The file for the log, instead of standard error. `%h` is replaced by the host's name, `%p`
    /// by the process id.
    "RINGFOLD_DEBUG_FILE": "path", default "standard error";
}

#[cfg(test)]
mod tests;
