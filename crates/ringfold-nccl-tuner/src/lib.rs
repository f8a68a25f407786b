//! A tuner plugin that NCCL loads: an operator's rules apply in NCCL as they do in ringfold.
//!
//! `NCCL_TUNER_PLUGIN=/path/to/libringfold_nccl_tuner.so` makes NCCL 2.21 to 2.32 load the plugin;
//! each release finds the newest version of the interface that it knows among `ncclTunerPlugin_v2`
//! to `_v7`. The module `tuner` selects the rule; this file is the boundary, which turns C's
//! pointers into values and decides nothing.
//!
//! # Invariants
//!
//! * No function ever fails, or panics through C: NCCL ends a communicator or a call after an
//!   error, contrary to its documentation. Errors are logged, and NCCL decides as without a plugin.
//! * At most one entry of a cost table is written: 0, if NCCL can use that way. -1 is never
//!   written, because some releases take it for "never" and some for "best". Channels are written
//!   if a rule sets them, and NCCL's constants never are.
//! * Answers depend on the file and the call only, so that ranks with the same file answer the
//!   same. NCCL does not compare the answers.
//!
//! Source: the interface as [`ringfold_tuner_host::abi`] has it.

#![allow(
    non_upper_case_globals,
    reason = "NCCL finds the structures by these names"
)]

mod journal;
mod tuner;
mod ways;

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use ringfold_tuner_host::abi::{
    self, Code, Domains, Logger, SUCCESS, TunerV2, TunerV3, TunerV4, TunerV5, TunerV6,
};

use journal::Journal;
use tuner::{Answer, NcclCall, Tuner};

/// Maximum number of rows or columns of a cost table. NCCL has 7 and 3; a number above this limit
/// cannot come from NCCL.
const TABLE_SIDE_MAX: c_int = 64;

/// A structure that NCCL finds by its name and only reads.
#[repr(transparent)]
pub struct Exported<T>(T);

// SAFETY: the structure is never written, and its pointers point to constants.
unsafe impl<T> Sync for Exported<T> {}

/// Returns a version's structure: the plugin's name and these functions.
const fn exported<I: Copy, A: Copy, M: Copy>(
    init: I,
    answer: A,
    chunk_size: M,
) -> Exported<abi::Tuner<I, A, M>> {
    Exported(abi::Tuner {
        name: c"ringfold".as_ptr(),
        init: Some(init),
        answer: Some(answer),
        finish: Some(finish),
        chunk_size,
    })
}

/// The plugin for NCCL 2.21.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v2: Exported<TunerV2> = exported(init, pick, ());

/// The plugin for NCCL 2.22 and 2.23.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v3: Exported<TunerV3> = exported(init, price_unregistered, ());

/// The plugin for NCCL 2.24 to 2.27.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v4: Exported<TunerV4> = exported(init, price, ());

/// The plugin for NCCL 2.28 and 2.29.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v5: Exported<TunerV5> = exported(init_with_constants, price, ());

/// The plugin for NCCL 2.30 and 2.31. Chunks keep the size that NCCL chooses.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v6: Exported<TunerV6> = exported(init_with_constants, price, None);

/// The plugin for NCCL 2.32.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v7: Exported<TunerV6> = exported(init_with_constants, price, None);

unsafe extern "C" fn init(
    ranks: usize,
    hosts: usize,
    log: Logger,
    context: *mut *mut c_void,
) -> Code {
    guarded(|| {
        if context.is_null() {
            return;
        }
        let tuner = Tuner::begin(ranks, hosts, Journal(log));
        let tuner = Box::into_raw(Box::new(tuner)).cast();
        // SAFETY: not null, and the interface promises that it is valid for a write.
        unsafe { context.write(tuner) }
    })
}

unsafe extern "C" fn init_with_constants(
    context: *mut *mut c_void,
    _communicator: u64,
    ranks: usize,
    hosts: usize,
    log: Logger,
    _domains: *mut Domains,
    _constants: *mut f64,
) -> Code {
    // SAFETY: the interface promises the same arguments here.
    unsafe { init(ranks, hosts, log, context) }
}

unsafe extern "C" fn price(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    group: c_int,
    table: *mut *mut f32,
    rows: c_int,
    columns: c_int,
    is_registered: c_int,
    channels: *mut c_int,
) -> Code {
    guarded(|| {
        let sides = 1..=TABLE_SIDE_MAX;
        if table.is_null() || !sides.contains(&rows) || !sides.contains(&columns) {
            return;
        }
        // SAFETY: `init` made the context, which lives until `finish`.
        let Some(tuner) = (unsafe { tuner(context) }) else {
            return;
        };
        let question = NcclCall {
            function,
            bytes: bytes as u64,
            group,
            is_registered: is_registered != 0,
        };
        let (rows, columns) = (rows as usize, columns as usize);
        // SAFETY: the interface promises one array of `rows * columns` floats, which only
        // this call uses meanwhile.
        let costs = unsafe { slice::from_raw_parts_mut(table.cast::<f32>(), rows * columns) };
        let can_go =
            |row, column| row < rows && column < columns && costs[row * columns + column] >= 0.0;
        let Some(answer) = tuner.answer(question, can_go) else {
            return;
        };
        costs[answer.row * columns + answer.column] = 0.0;
        // SAFETY: the interface promises that it is null or valid for a write.
        unsafe { write_channels(channels, &answer) };
    })
}

unsafe extern "C" fn price_unregistered(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    group: c_int,
    table: *mut *mut f32,
    rows: c_int,
    columns: c_int,
    channels: *mut c_int,
) -> Code {
    // SAFETY: the interface promises the same arguments here; buffers count as not registered.
    unsafe {
        price(
            context, function, bytes, group, table, rows, columns, 0, channels,
        )
    }
}

unsafe extern "C" fn pick(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    has_collnet: c_int,
    has_nvls: c_int,
    group: c_int,
    algorithm: *mut c_int,
    protocol: *mut c_int,
    channels: *mut c_int,
) -> Code {
    guarded(|| {
        if algorithm.is_null() || protocol.is_null() {
            return;
        }
        // SAFETY: `init` made the context, which lives until `finish`.
        let Some(tuner) = (unsafe { tuner(context) }) else {
            return;
        };
        let question = NcclCall {
            function,
            bytes: bytes as u64,
            group,
            is_registered: false,
        };
        let can_go = |row, column| {
            ways::exists(function, row, column)
                && (has_collnet != 0 || !ways::needs_collnet(row))
                && (has_nvls != 0 || !ways::needs_nvls(row))
        };
        let Some(answer) = tuner.answer(question, can_go) else {
            return;
        };
        // SAFETY: not null, and the interface promises that it is valid for a write.
        unsafe { algorithm.write(answer.row as c_int) };
        // SAFETY: as above.
        unsafe { protocol.write(answer.column as c_int) };
        // SAFETY: the interface promises that it is null or valid for a write.
        unsafe { write_channels(channels, &answer) };
    })
}

unsafe extern "C" fn finish(context: *mut c_void) -> Code {
    guarded(|| {
        if !context.is_null() {
            // SAFETY: `init` made the context from a box, and the interface promises not to use it
            // again.
            drop(unsafe { Box::from_raw(context.cast::<Tuner>()) });
        }
    })
}

/// Calls `work`, and always returns success: a panic must not unwind through C, and an error would
/// end the call.
fn guarded(work: impl FnOnce()) -> Code {
    // A panic loses at worst a log line.
    let _ = catch_unwind(AssertUnwindSafe(work));
    SUCCESS
}

/// Returns the tuner of a context.
///
/// # Safety
///
/// `context` is null, or `init` wrote it and `finish` has not freed it yet.
unsafe fn tuner<'a>(context: *mut c_void) -> Option<&'a Tuner> {
    // SAFETY: the caller's promise.
    unsafe { context.cast::<Tuner>().cast_const().as_ref() }
}

/// Sets the number of channels, if a rule has one.
///
/// # Safety
///
/// `channels` is null or valid for a write.
unsafe fn write_channels(channels: *mut c_int, answer: &Answer) {
    if let Some(count) = answer.channels.filter(|_| !channels.is_null()) {
        // SAFETY: the caller's promise.
        unsafe { channels.write(count) }
    }
}
