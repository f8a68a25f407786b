//! NCCL's interface for tuner plugins, versions 2 to 7, as the structures that libraries export and
//! are handed.
//!
//! A library exports a structure named `ncclTunerPlugin_v6`; of several versions the newest is
//! taken. All functions return a [`Code`], 0 for success. The cost table that they are given is one
//! array of floats, row after row, in microseconds, -1 for what cannot be chosen; that its type is
//! a pointer to pointers is a slip that all versions keep.
//!
//! Both ends of the interface use these types: the host in this crate, and
//! `crates/ringfold-nccl-tuner`, which NCCL loads. `tests/plugins/tuner.h` says the same in C, and
//! the tests of both call across.
//!
//! Source: `src/include/plugin/tuner/tuner_v{2,3,4,5,6,7}.h` of NCCL 2.21 to 2.32, from which
//! names, order and numbers are taken.

#![forbid(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::mem::{offset_of, size_of};

use ringfold::internals::tune::names::{NCCL_ALGORITHMS, NCCL_PROTOCOLS};

/// What a function returns: [`SUCCESS`] or the number of what went wrong (`ncclResult_t`).
pub type Code = c_int;
/// All is well.
pub const SUCCESS: Code = 0;
/// The other end called in a way that it must not.
pub const INTERNAL_ERROR: Code = 3;

/// What a cost table holds where an algorithm cannot be chosen.
pub const IGNORED: f32 = -1.0;
/// What version 2 leaves where it has no opinion about the algorithm or the protocol.
pub const UNDEFINED: c_int = -1;

/// A level of a log line (`ncclDebugLogLevel`).
pub mod level {
    use super::c_uint;

    /// Something is wrong.
    pub const WARN: c_uint = 2;
    /// What was chosen and why.
    pub const INFO: c_uint = 3;
    /// Every step.
    pub const TRACE: c_uint = 5;
}

/// The bit of the subsystem to which a tuner's log lines belong.
pub const TUNING: c_ulong = 0x40;

/// Writes a line to the log of the plugin's host; its arguments are those of `printf` from
/// `format` on.
pub type Logger = Option<
    unsafe extern "C" fn(
        level: c_uint,
        subsystems: c_ulong,
        file: *const c_char,
        line: c_int,
        format: *const c_char,
        ...
    ),
>;

/// A function that ends a communicator's context.
pub type Finish = unsafe extern "C" fn(context: *mut c_void) -> Code;

/// How versions 2 to 4 begin a communicator.
pub type Init = unsafe extern "C" fn(
    ranks: usize,
    hosts: usize,
    log: Logger,
    context: *mut *mut c_void,
) -> Code;

/// The initialisation of a communicator in versions 5 to 7. `ROWS` is the number of GPU generations
/// in the constants.
pub type InitWithConstants<const ROWS: usize> = unsafe extern "C" fn(
    context: *mut *mut c_void,
    communicator: u64,
    ranks: usize,
    hosts: usize,
    log: Logger,
    domains: *mut Domains,
    constants: *mut Constants<ROWS>,
) -> Code;

/// How versions 4 to 7 price the ways of a call.
pub type Price = unsafe extern "C" fn(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    group: c_int,
    table: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    is_registered: c_int,
    channels: *mut c_int,
) -> Code;

/// How version 3 does, without knowing whether buffers are registered.
pub type PriceUnregistered = unsafe extern "C" fn(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    group: c_int,
    table: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
) -> Code;

/// How version 2 names one way, or none.
pub type Pick = unsafe extern "C" fn(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    has_collnet: c_int,
    has_nvls: c_int,
    group: c_int,
    algorithm: *mut c_int,
    protocol: *mut c_int,
    channels: *mut c_int,
) -> Code;

/// How versions 6 and 7 may change the size of a chunk; may be absent.
pub type ChunkSize = unsafe extern "C" fn(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    algorithm: c_int,
    protocol: c_int,
    channels: c_int,
    chunk_bytes: *mut usize,
) -> Code;

/// What a library exports under the name of a version. The versions differ in the arguments of
/// their functions, and from 6 on one more may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tuner<Begin, Answer, More = ()> {
    /// What the log calls it.
    pub name: *const c_char,
    /// Begins a communicator.
    pub init: Option<Begin>,
    /// Prices the ways of a call, or names one.
    pub answer: Option<Answer>,
    /// Ends a communicator.
    pub finish: Option<Finish>,
    /// Changes the size of a chunk.
    pub chunk_size: More,
}

/// `ncclTunerPlugin_v2`.
pub type TunerV2 = Tuner<Init, Pick>;
/// `ncclTunerPlugin_v3`.
pub type TunerV3 = Tuner<Init, PriceUnregistered>;
/// `ncclTunerPlugin_v4`.
pub type TunerV4 = Tuner<Init, Price>;
/// `ncclTunerPlugin_v5`, with four rows of constants.
pub type TunerV5 = Tuner<InitWithConstants<4>, Price>;
/// `ncclTunerPlugin_v6`.
pub type TunerV6 = Tuner<InitWithConstants<4>, Price, Option<ChunkSize>>;
/// `ncclTunerPlugin_v7`, with five rows of constants.
pub type TunerV7 = Tuner<InitWithConstants<5>, Price, Option<ChunkSize>>;

/// Which ranks reach each other by NVLink (`ncclNvlDomainInfo_v5_t`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Domains {
    /// How many groups of ranks there are.
    pub count: c_int,
    /// Ranks of the smallest.
    pub ranks_min: c_int,
    /// Ranks of the largest.
    pub ranks_max: c_int,
}

/// For each algorithm and protocol a number.
pub type ByWay = [[f64; NCCL_PROTOCOLS]; NCCL_ALGORITHMS];

/// The constants of NCCL's model (`ncclTunerConstants_v5_t`, `_v7_t`), which a plugin may change
/// when it begins: latencies in microseconds, bandwidths of a channel in GB/s by generation of GPU
/// × one, two or four hosts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Constants<const ROWS: usize> {
    /// What every call costs.
    pub base_latencies: ByWay,
    /// What a hop costs over NVLink, PCI and the network.
    pub link_latencies: [ByWay; 3],
    /// LL, of the whole.
    pub ll_bandwidths: [[f64; 3]; ROWS],
    /// Ring, LL128.
    pub ring_ll128_bandwidths: [[f64; 3]; ROWS],
    /// Tree, LL128.
    pub tree_ll128_bandwidths: [[f64; 3]; ROWS],
    /// Tree, simple.
    pub tree_bandwidths: [[f64; 3]; ROWS],
    /// NVLS tree.
    pub nvls_tree_bandwidths: [[f64; 3]; ROWS],
}

const POINTER: usize = size_of::<*const c_char>();
const DOUBLE: usize = size_of::<f64>();
const WAYS: usize = NCCL_ALGORITHMS * NCCL_PROTOCOLS;

const _: () = {
    assert!(size_of::<TunerV2>() == 4 * POINTER && offset_of!(TunerV2, answer) == 2 * POINTER);
    assert!(size_of::<TunerV5>() == 4 * POINTER && offset_of!(TunerV5, finish) == 3 * POINTER);
    assert!(size_of::<TunerV7>() == 5 * POINTER && offset_of!(TunerV7, chunk_size) == 4 * POINTER);
    assert!(size_of::<Domains>() == 3 * size_of::<c_int>());
    assert!(size_of::<Constants<4>>() == (4 * WAYS + 5 * 4 * 3) * DOUBLE);
    assert!(size_of::<Constants<5>>() == (4 * WAYS + 5 * 5 * 3) * DOUBLE);
    assert!(offset_of!(Constants<4>, ll_bandwidths) == 4 * WAYS * DOUBLE);
};

impl<const ROWS: usize> Constants<ROWS> {
    /// Numbers that mean nothing: every hop costs as much, and every link carries 1 GB/s, so that
    /// a division by one of them gives a number.
    pub const NEUTRAL: Constants<ROWS> = Constants {
        base_latencies: [[1.0; NCCL_PROTOCOLS]; NCCL_ALGORITHMS],
        link_latencies: [[[1.0; NCCL_PROTOCOLS]; NCCL_ALGORITHMS]; 3],
        ll_bandwidths: [[1.0; 3]; ROWS],
        ring_ll128_bandwidths: [[1.0; 3]; ROWS],
        tree_ll128_bandwidths: [[1.0; 3]; ROWS],
        tree_bandwidths: [[1.0; 3]; ROWS],
        nvls_tree_bandwidths: [[1.0; 3]; ROWS],
    };
}
