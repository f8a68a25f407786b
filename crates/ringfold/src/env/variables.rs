//! The table of variables, and the page that is made of it.

/// One variable.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What its value looks like.
    pub kind: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    /// What it does.
    pub about: &'static str,
}

const fn variable(
    name: &'static str,
    kind: &'static str,
    default: &'static str,
    about: &'static str,
) -> Variable {
    Variable {
        name,
        kind,
        default,
        about,
    }
}

/// Every variable that ringfold knows.
pub const VARIABLES: &[Variable] = &[
    variable(
        "RINGFOLD_RANK",
        "0, 1, …",
        "the launcher's",
        "This process' rank. Goes with `RINGFOLD_WORLD_SIZE`; under a Kubernetes Indexed Job it may be left out and is \
         then `JOB_COMPLETION_INDEX`.",
    ),
    variable(
        "RINGFOLD_WORLD_SIZE",
        "1, 2, …",
        "the launcher's",
        "The number of ranks. Without it and without a launcher's variables the process is a job of one rank.",
    ),
    variable(
        "RINGFOLD_LOCAL_RANK",
        "0, 1, …",
        "the launcher's",
        "This process' number among the ranks of its host.",
    ),
    variable(
        "RINGFOLD_LOCAL_WORLD_SIZE",
        "1, 2, …",
        "the launcher's",
        "The number of ranks on this host. When it equals the number of ranks, they meet at a UNIX socket.",
    ),
    variable(
        "RINGFOLD_ADDR",
        "`host:port` or `unix:@name`, or several of them",
        "`MASTER_ADDR` and `MASTER_PORT` + 1, or what the launcher implies",
        "Where rank 0 is met: an address of rank 0's host and a free port there, the same on all ranks. Several, \
         separated by commas, are tried in this order, and rank 0 listens at all of them. The port after `MASTER_PORT` is \
         used because `MASTER_PORT` itself belongs to torch's store. When all ranks are on one host, or a single address is \
         a loopback address, the abstract UNIX socket `@ringfold-<user id>-<port>` is used instead of it: both ends check \
         that the other one belongs to the same user, so that no secret is needed. With a secret the name follows from \
         both, and nobody else can take it beforehand.",
    ),
    variable(
        "RINGFOLD_SECRET",
        "text",
        "none",
        "What all ranks of the job know and nobody else: every connection begins by proving it. Required as soon as \
         ranks meet over a network; 16 random bytes or more, for example `head -c16 /dev/urandom | base64`. Takes \
         precedence over `RINGFOLD_SECRET_FILE`.",
    ),
    variable(
        "RINGFOLD_SECRET_FILE",
        "path",
        "none",
        "A file with the secret, owned by this user and readable by nobody else (mode 0600). White space at its end does \
         not count.",
    ),
    variable(
        "RINGFOLD_SOCKET_IFNAME",
        "list",
        "all interfaces that are up",
        "Which network interfaces carry data between hosts: exact names and networks, separated by commas, in order of \
         preference, for example `eth0,10.0.0.0/8`. `^eth0` excludes; a list of exclusions alone leaves all the others. \
         Loopback is never used between hosts.",
    ),
    variable(
        "RINGFOLD_TIMEOUT_MS",
        "milliseconds",
        "300000",
        "The deadline of every operation that has none of its own. Long, because a rank may save a checkpoint or compile \
         meanwhile; a rank's death is noticed at once all the same.",
    ),
    variable(
        "RINGFOLD_CONNECT_TIMEOUT_MS",
        "milliseconds",
        "60000",
        "The deadline for bringing the ranks together. Raise it when ranks start far apart in time.",
    ),
    variable(
        "RINGFOLD_PEER_TIMEOUT_MS",
        "milliseconds, 2000 to 120000",
        "2300",
        "How long another host may give no sign of life before its ranks have failed: a lost cable or a host without power is \
         noticed so late, and an outage of the network that is at least a second shorter is survived (before Linux 6.15: one \
         of half this time). Raise it for networks that are away for seconds. Processes that end are noticed at once all the \
         same. Rank 0's holds for all ranks.",
    ),
    variable(
        "RINGFOLD_TRANSPORT",
        "`auto`, `shm`, `tcp`",
        "`auto`",
        "Which transports may be used. `auto`: shared memory between the ranks of one host, TCP between hosts. `shm` is \
         an error when there are several hosts. `tcp` uses TCP on one host too.",
    ),
    variable(
        "RINGFOLD_ALGO",
        "a list, or lists for collectives",
        "all algorithms",
        "Which algorithms the tuner may choose from, in the grammar of `NCCL_ALGO`: `ring`; `ring,tree`; `^push` for all but it; \
         `direct;allreduce:ring,rabenseifner;broadcast:^tree` for a list for all collectives and others for two of them. Only the \
         first list may lack a collective. Capitals and the lines between words do not count. A list for all leaves a \
         collective alone that has none of its algorithms; one for a collective is insisted on, and a call for which nothing \
         is left is refused. The same on all ranks.",
    ),
    variable(
        "RINGFOLD_PROTO",
        "a list, or lists for collectives",
        "all protocols",
        "Which protocols the tuner may choose from, in the same grammar: `ll` (the payload stands in the line that says it has \
         come), `simple` (staged and pipelined), `zero_copy` (peers work in the buffers themselves). The same on all ranks.",
    ),
    variable(
        "RINGFOLD_TUNER_CONFIG",
        "path",
        "none",
        "A file of rules, in the format of NCCL's example tuner: which calls go by which algorithm and protocol, on how many \
         channels. Rank 0 reads it for all. A line that cannot be read is an error with its line and column. See docs/tuning.md.",
    ),
    variable(
        "RINGFOLD_TUNER_PLUGIN",
        "a library's path or name, or `none`",
        "none",
        "A shared library with NCCL's tuner interface, which prices ways anew. What stands between `libnccl-tuner-` and `.so` is \
         enough of a name; `STATIC_PLUGIN` is the program itself. One that cannot be loaded is warned of, and the model decides. The same \
         on all ranks. See docs/nccl-tuner.md.",
    ),
    variable(
        "RINGFOLD_LATE_RANK",
        "0, 1, …",
        "none",
        "The rank that is known to come late to every `all_reduce`: what `RINGFOLD_ALGO=stragglar` must know. The same on \
         all ranks, which compare it when they meet.",
    ),
    variable(
        "RINGFOLD_CHANNELS",
        "1 to 64",
        "the tuner's choice",
        "Independent pipelines of every collective that goes by messages: connections per pair of ranks on TCP. As \
         `RINGFOLD_MIN_CHANNELS` and `RINGFOLD_MAX_CHANNELS` with this number, which come before it. The same on all ranks.",
    ),
    variable(
        "RINGFOLD_MIN_CHANNELS",
        "1 to 64",
        "1",
        "The fewest channels of a collective that goes by messages. The same on all ranks.",
    ),
    variable(
        "RINGFOLD_MAX_CHANNELS",
        "1 to 64",
        "1",
        "The most: so many connections has each pair of ranks on TCP, and rules and plugins cannot ask for more. A call has one for \
         each 2 MiB; calls made together share them. See docs/channels.md. The same on all ranks.",
    ),
    variable(
        "RINGFOLD_CHUNK_BYTES",
        "bytes; K, M, G",
        "the tuner's choice",
        "What one message, or one piece of published memory, carries. The unit of the pipeline is so many bytes for each chunk of the \
         algorithm and each channel. The same on all ranks.",
    ),
    variable(
        "RINGFOLD_SLICE_BYTES",
        "bytes; K, M, G",
        "the tuner's choice",
        "The unit of the pipeline: bytes of the vector, or of each block. Comes before `RINGFOLD_CHUNK_BYTES`. The same on all \
         ranks.",
    ),
    variable(
        "RINGFOLD_WEIGHTS",
        "`auto`, or a whole number for each rank",
        "all ranks own the same",
        "How much each rank owns of all-reduces above 32 KiB, which then go by the weighted `direct` algorithm: for a link or core \
         that stays slower than the others. `1,1,1,0`: three ranks own a third each, the last one nothing. `auto`: measured once, \
         when the ranks are together. The same on all ranks; a list for another number of ranks is warned of and means nothing. See \
         docs/stragglers.md.",
    ),
    variable(
        "RINGFOLD_SHM_BYTES",
        "bytes; K, M, G",
        "8M",
        "Shared memory per rank. Lower it where a container's memory is tight.",
    ),
    variable(
        "RINGFOLD_STRAGGLER",
        "`off`, `next2`, `tail`",
        "`off`",
        "Whether `all_reduce` and `reduce_scatter` above 32K go around a slow rank: by a ring of messages in which a late sum goes \
         past the next rank (`next2`) or straight to where the result is made (`tail`, which hides more). Results are exact, \
         but sums of floats are made in an order that depends on who was late. See docs/stragglers.md. The same on all ranks.",
    ),
    variable(
        "RINGFOLD_LIMITS",
        "list of `name=bytes`",
        "what the tuner derives",
        "Sizes of the tuner, for experiments: `shared_slice_bytes=64K,stream_bytes_min=never`. The log (`INFO`, `TUNING`) \
         says what all of them are, and `tune/limits.rs` what they decide. Those of rank 0 hold for all ranks, so other \
         ranks' values do not matter; but what any rank says `never` of is not done.",
    ),
    variable(
        "RINGFOLD_BIND",
        "`auto`, `none`, `core`",
        "`none`; `auto` in `ringfold run` and `ringfold perf`",
        "Whether each rank is bound to cores of its own, within its affinity. `auto`: to its share of them (one rank per core: \
         one core; as many ranks on each where they outnumber the cores), but not when they cannot share them evenly, when \
         their affinities differ or were narrowed, or when a variable such as `SLURM_CPU_BIND` or `OMP_PLACES` says that somebody else arranges it. `core`: to one core, spread over \
         caches and sockets; an error without a core for each rank. `ringfold run` and `ringfold perf` bind the processes \
         that they start. In a program that was started otherwise the thread that joins is bound, and threads that it makes \
         later (OpenMP's, torch's) share its cores: that is why nothing is bound there unless this is set.",
    ),
    variable(
        "RINGFOLD_HELPERS",
        "0 to 63",
        "what the cores leave",
        "Threads of each communicator that share the copies and reductions of large calls with the calling thread. Unless set: \
         the host's cores divided by its ranks, less one, 7 at most, and no more than the rank's own affinity leaves; none \
         where a rank is bound to one core. Cores on which processes of other communicators run when this one begins do not \
         count; those in another network or process namespace are not seen. A step of a call takes as many of them as gain from its \
         size, and fewer beside other communicators of the process. They start with the first large call (`helper_bytes_min` in the log) and sleep \
         between calls. Results are the same bits with and without.",
    ),
    variable(
        "RINGFOLD_PROBE",
        "`0`, `1`",
        "`1`",
        "Whether the ranks of a host spend up to 10 ms at the start on finding out where one way of carrying out a call \
         becomes faster than another. With `0`, or with more ranks than cores, what is derived from caches and cores holds. \
         Rank 0's value counts.",
    ),
    variable(
        "RINGFOLD_CALIBRATION",
        "path, or `0`",
        "the machine's own in `$XDG_CACHE_HOME/ringfold` or `~/.cache/ringfold`",
        "The file of `ringfold tune calibrate` from which the constants of the tuner's cost model are read; see docs/tuning.md. \
         With `0` the defaults hold, as where there is no file. One that was measured on another machine, or means nothing, is \
         told of and not taken. Rank 0's value counts.",
    ),
    variable(
        "RINGFOLD_TORCH_BUCKETS",
        "`0`, `1`",
        "`1`",
        "In the PyTorch backend: whether DistributedDataParallel's gradient buckets move into registered memory by themselves; \
         see docs/torch.md. The same on all ranks.",
    ),
    variable(
        "RINGFOLD_STALL_SECONDS",
        "seconds",
        "60",
        "In the PyTorch backend: after how long a call that is still under way is reported, on the rank that waits, with the \
         ranks that everybody waits for and where they are. Again after twice that time, and so on. `0`: never.",
    ),
    variable(
        "RINGFOLD_FR_BUFFER_SIZE",
        "0, 1, …",
        "`TORCH_FR_BUFFER_SIZE`, or 2000",
        "In the PyTorch backend: how many of its last calls a process remembers, in all groups. See docs/torch-diagnosis.md. \
         `0` remembers none, and so reports no stalled calls either.",
    ),
    variable(
        "RINGFOLD_FR_DUMP",
        "path",
        "none",
        "How the names of the files begin that this record is written to after a fatal error, in PyTorch's format: \
         `dumps/fr_` becomes `dumps/fr_0` for rank 0, and so on, and the same as JSON `dumps/fr_json/0.json`. A rank that \
         leaves before others have come as far writes it, too. Give a folder that no other user can write to. Unless set \
         nothing is written without being asked for.",
    ),
    variable(
        "RINGFOLD_FR_SIGNAL",
        "a signal's name",
        "none",
        "For example `USR2`: the record is written, to where `RINGFOLD_FR_DUMP` says, when the process gets this signal. A \
         handler that the program has installed for it is left alone.",
    ),
    variable(
        "RINGFOLD_FR_FRAMES",
        "`0`, `1`",
        "`0`",
        "Whether the record has for each call where in the program it was made. Takes some microseconds a call.",
    ),
    variable(
        "RINGFOLD_DEBUG",
        "`NONE`, `VERSION`, `WARN`, `INFO`, `TRACE`",
        "`WARN`",
        "What is logged to standard error, with NCCL's levels. `VERSION`: one line at the start. `INFO`: what was chosen, \
         and why. `TRACE`: everything.",
    ),
    variable(
        "RINGFOLD_DEBUG_SUBSYS",
        "list",
        "all",
        "Which parts `INFO` and `TRACE` lines come from: `INIT`, `ENV`, `CONTROL`, `TRANSPORT`, `TUNING`, \
         separated by commas. A `^` in front means all but these.",
    ),
    variable(
        "RINGFOLD_DEBUG_FILE",
        "path",
        "standard error",
        "Where the log goes instead. `%h` becomes the host's name, `%p` the process id.",
    ),
];

/// The text of `docs/env.md`, which ends with the table `launchers`.
pub fn document(launchers: &str) -> String {
    let mut text = String::from(
        "# Environment variables\n\n\
         Arguments come before `RINGFOLD_*`, and these before the launcher's variables: torchrun, Slurm, Open MPI, \
         PMI (MPICH, Intel MPI), MVAPICH, Kubernetes, in this order. An empty value counts as none. A `RINGFOLD_*` name \
         that is not listed here is warned of.\n\n\
         This page is generated from `crates/ringfold/src/env/variables.rs`; a test compares them.\n",
    );
    for variable in VARIABLES {
        text.push_str(&format!(
            "\n## `{}`\n\n{}; default: {}.\n\n{}\n",
            variable.name, variable.kind, variable.default, variable.about
        ));
    }
    text.push_str(
        "\n## Launchers\n\nWho a process is, in order of precedence; a launcher that sets only half of it is an error. Without \
         an address, rank 0 is met at `MASTER_ADDR` and `MASTER_PORT` + 1, in a Slurm step at its first host and a port \
         above 61439 that the job's number chooses, and on one host at a UNIX socket named after the launcher's job.\n\n",
    );
    text.push_str(launchers);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::launch::launchers;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/env.md");

    #[test]
    fn the_page_says_what_the_table_says() {
        let page = std::fs::read_to_string(PAGE).unwrap();
        assert_eq!(
            page,
            document(&launchers()),
            "docs/env.md is old; `cargo test -p ringfold --lib env:: -- --ignored` writes it anew"
        );
    }

    #[test]
    #[ignore = "writes docs/env.md"]
    fn write_the_page() {
        std::fs::write(PAGE, document(&launchers())).unwrap();
    }
}
