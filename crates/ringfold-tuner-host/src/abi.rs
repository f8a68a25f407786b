//! NCCL's interface for tuner plugins, versions 2 to 7: the structures that libraries export and
//! receive.
//!
//! A library exports a structure with a name such as `ncclTunerPlugin_v6`; of several versions the
//! newest is used. All functions return a [`Code`], 0 for success. The cost table that functions
//! receive is one array of floats, row after row, in microseconds, with -1 for entries that cannot
//! be chosen. The table's type, a pointer to pointers, is a mistake that all versions keep.
//!
//! Both ends of the interface use these types: the host in this crate, and
//! `crates/ringfold-nccl-tuner`, which NCCL loads. `tests/plugins/tuner.h` declares the same in C,
//! and the tests of both crates call across that boundary.
//!
//! Source: `src/include/plugin/tuner/tuner_v{2,3,4,5,6,7}.h` of NCCL 2.21 to 2.32, from which
//! names, order and numbers are taken.

#![forbid(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::mem::{offset_of, size_of};

use ringfold::internals::tune::names::{NCCL_ALGORITHMS, NCCL_PROTOCOLS};

/// The result of a function: [`SUCCESS`] or the number of an error (`ncclResult_t`).
pub type Code = c_int;
/// The code of success.
pub const SUCCESS: Code = 0;

/// The cost of an entry that cannot be chosen.
pub const IGNORED: f32 = -1.0;
/// The number that version 2 leaves if it chooses no algorithm or no protocol.
pub const UNDEFINED: c_int = -1;

/// A level of a log line (`ncclDebugLogLevel`).
pub mod level {
    use super::c_uint;

    /// Problems.
    pub const WARN: c_uint = 2;
    /// Choices and their reasons.
    pub const INFO: c_uint = 3;
    /// Every step.
    pub const TRACE: c_uint = 5;
}

/// The bit of the subsystem to which a tuner's log lines belong.
pub const TUNING: c_ulong = 0x40;

/// The function that writes a line to the log of the plugin's host; its arguments are those of
/// `printf` from `format` on.
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

/// The function by which versions 2 to 4 begin a communicator.
pub type Init = unsafe extern "C" fn(
    ranks: usize,
    hosts: usize,
    log: Logger,
    context: *mut *mut c_void,
) -> Code;

/// The function by which versions 5 to 7 begin a communicator, with constants: [`CONSTANTS`]
/// doubles, or fewer.
pub type InitWithConstants = unsafe extern "C" fn(
    context: *mut *mut c_void,
    communicator: u64,
    ranks: usize,
    hosts: usize,
    log: Logger,
    domains: *mut Domains,
    constants: *mut f64,
) -> Code;

/// The function by which versions 4 to 7 price the ways of a call.
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

/// The function by which version 3 prices the ways of a call, without knowing whether buffers are
/// registered.
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

/// The function by which version 2 names one way, or none.
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

/// The function by which versions 6 and 7 may change the size of a chunk; may be absent.
pub type ChunkSize = unsafe extern "C" fn(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    algorithm: c_int,
    protocol: c_int,
    channels: c_int,
    chunk_bytes: *mut usize,
) -> Code;

/// The structure that a library exports under the name of a version. The versions differ in the
/// arguments of their functions, and from version 6 on another function may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tuner<Begin, Answer, More = ()> {
    /// The plugin's name in the log.
    pub name: *const c_char,
    /// The function that begins a communicator.
    pub init: Option<Begin>,
    /// The function that prices the ways of a call, or names one.
    pub answer: Option<Answer>,
    /// The function that ends a communicator.
    pub finish: Option<Finish>,
    /// The function that changes the size of a chunk.
    pub chunk_size: More,
}

/// `ncclTunerPlugin_v2`.
pub type TunerV2 = Tuner<Init, Pick>;
/// `ncclTunerPlugin_v3`.
pub type TunerV3 = Tuner<Init, PriceUnregistered>;
/// `ncclTunerPlugin_v4`.
pub type TunerV4 = Tuner<Init, Price>;
/// `ncclTunerPlugin_v5`.
pub type TunerV5 = Tuner<InitWithConstants, Price>;
/// `ncclTunerPlugin_v6` and `_v7`, which differ in the number of constants.
pub type TunerV6 = Tuner<InitWithConstants, Price, Option<ChunkSize>>;

/// The groups of ranks that reach each other by NVLink (`ncclNvlDomainInfo_v5_t`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Domains {
    /// Number of groups of ranks.
    pub count: c_int,
    /// Number of ranks of the smallest group.
    pub ranks_min: c_int,
    /// Number of ranks of the largest group.
    pub ranks_max: c_int,
}

/// Number of doubles in NCCL's constants of version 7 (`ncclTunerConstants_v7_t`), which a plugin
/// may change when a communicator begins. By algorithm and protocol these are the latencies in
/// microseconds of every call, and of a hop over NVLink, PCI and the network; then the bandwidths
/// of a channel in GB/s (LL, ring by LL128, tree by LL128, tree by simple, NVLS tree) by generation
/// of GPU × one, two or four hosts. Versions 5 and 6 have four generations instead of five.
pub const CONSTANTS: usize = 4 * NCCL_ALGORITHMS * NCCL_PROTOCOLS + 5 * 5 * 3;

const POINTER: usize = size_of::<*const c_char>();

const _: () = {
    assert!(size_of::<TunerV2>() == 4 * POINTER && offset_of!(TunerV2, answer) == 2 * POINTER);
    assert!(size_of::<TunerV5>() == 4 * POINTER && offset_of!(TunerV5, finish) == 3 * POINTER);
    assert!(size_of::<TunerV6>() == 5 * POINTER && offset_of!(TunerV6, chunk_size) == 4 * POINTER);
    assert!(size_of::<Domains>() == 3 * size_of::<c_int>());
};
