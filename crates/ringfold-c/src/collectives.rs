//! Calls that return when they are done on this rank.

use std::ffi::{c_int, c_void};

use crate::arguments::{borrowed, invalid, store};
use crate::communicator::Communicator;
use crate::names::{self, CollectiveName, CollectiveNumber, DTypeNumber, OpNumber};
use crate::request::{Request, region};
use crate::status::{Status, guard};

/// A function of the program that is called about 30 times a second while a call waits. A result
/// other than 0 ends the call, and with it the communicator on all ranks, with `RINGFOLD_ABORTED`.
pub type OnWait = Option<unsafe extern "C" fn(argument: *mut c_void) -> c_int>;

/// Makes the call that `request` describes, and returns when the call is done on this rank. For a
/// receive, stores the sender in `source`, which may be null. `on_wait` may be null, too; it is
/// called with `argument`, under no lock, and may use the communicator.
///
/// # Safety
/// The request's buffers are valid, and not used otherwise, until this function returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_run(
    comm: *const Communicator,
    request: *const Request,
    source: *mut c_int,
    on_wait: OnWait,
    argument: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: the caller's promise.
        let comm = unsafe { borrowed(comm, "comm") }?.core();
        // SAFETY: the caller's promise.
        let call = unsafe { Request::read(request)?.call(comm) }?;
        let mut looks = || match on_wait {
            // SAFETY: the caller's function, with the caller's argument.
            Some(on_wait) if unsafe { on_wait(argument) } != 0 => Err(ringfold::Error::Aborted {
                rank: comm.rank(),
                reason: "interrupted by the program".into(),
            }),
            _ => Ok(()),
        };
        // SAFETY: the caller's promise.
        let sender = unsafe { comm.run(&call, &mut looks) }?;
        match (source.is_null(), sender) {
            // SAFETY: the caller's promise.
            (false, Some(sender)) => unsafe { store(source, sender as c_int, "source") },
            _ => Ok(()),
        }
    })
}

/// Runs a request of one of the functions below.
///
/// # Safety
/// As for `ringfold_run`.
unsafe fn run(comm: *const Communicator, request: Request) -> Status {
    // SAFETY: the caller's promise.
    unsafe {
        ringfold_run(
            comm,
            &request,
            std::ptr::null_mut(),
            None,
            std::ptr::null_mut(),
        )
    }
}

/// Reduces `count` elements of all ranks by `op`; every rank receives the same bits in `output`,
/// which may be `input`.
///
/// # Safety
/// Both buffers have `count` elements, and are not used otherwise until the function returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_all_reduce(
    comm: *const Communicator,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: DTypeNumber,
    op: OpNumber,
) -> Status {
    let collective = CollectiveName::RINGFOLD_ALL_REDUCE as CollectiveNumber;
    // SAFETY: the caller's promise.
    unsafe {
        run(
            comm,
            Request {
                collective,
                dtype,
                op,
                count,
                input,
                output,
                ..Request::EMPTY
            },
        )
    }
}

/// Combines `inputs` arrays of `count` elements each by `op`, in the order of the canonical tree,
/// and stores the result in `output`, which may be one of them. If each rank combines a power of
/// two arrays so, and the ranks then make a reproducible all-reduce, the result has the bits of an
/// all-reduce in which each array is a rank's own. Needs no communicator.
///
/// # Safety
/// `arrays` holds `inputs` pointers; each array and `output` have `count` elements, and are not
/// used otherwise until the function returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_fold(
    arrays: *const *const c_void,
    inputs: usize,
    output: *mut c_void,
    count: usize,
    dtype: DTypeNumber,
    op: OpNumber,
) -> Status {
    guard(|| {
        let (dtype, op) = (names::dtype(dtype)?, names::op(op, 0.0)?);
        let bytes = count.checked_mul(dtype.size_bytes());
        let bytes = bytes.ok_or_else(|| invalid(format!("count {count} is beyond any memory")))?;
        let mut regions = Vec::new();
        for number in 0..inputs {
            // SAFETY: the caller's promise: `inputs` pointers.
            let array = unsafe { *borrowed(arrays.wrapping_add(number), "arrays")? };
            regions.push(region("an array", array.cast_mut().cast(), bytes)?);
        }
        let output = region("output", output.cast(), bytes)?;
        ringfold::fold_regions(dtype, &regions, op, output)
    })
}

/// Copies the root's `count` elements to all ranks.
///
/// # Safety
/// As for `ringfold_all_reduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_broadcast(
    comm: *const Communicator,
    buffer: *mut c_void,
    count: usize,
    dtype: DTypeNumber,
    root: c_int,
) -> Status {
    let collective = CollectiveName::RINGFOLD_BROADCAST as CollectiveNumber;
    let (input, output) = (buffer.cast_const(), buffer);
    // SAFETY: the caller's promise.
    unsafe {
        run(
            comm,
            Request {
                collective,
                dtype,
                root,
                count,
                input,
                output,
                ..Request::EMPTY
            },
        )
    }
}

/// Reduces `count` elements of all ranks by `op`; the root receives the result in `output`, which
/// may be `input`, and may be null on the other ranks.
///
/// # Safety
/// As for `ringfold_all_reduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_reduce(
    comm: *const Communicator,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: DTypeNumber,
    op: OpNumber,
    root: c_int,
) -> Status {
    let collective = CollectiveName::RINGFOLD_REDUCE as CollectiveNumber;
    let request = Request {
        collective,
        dtype,
        op,
        root,
        count,
        input,
        output,
        ..Request::EMPTY
    };
    // SAFETY: the caller's promise.
    unsafe { run(comm, request) }
}

/// Gathers the `count` elements of each rank on all ranks, in rank order: `output` has room for
/// `count` times the number of ranks. In place if `input` is this rank's block of `output`.
///
/// # Safety
/// As for `ringfold_all_reduce`, with these sizes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_all_gather(
    comm: *const Communicator,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: DTypeNumber,
) -> Status {
    let collective = CollectiveName::RINGFOLD_ALL_GATHER as CollectiveNumber;
    // SAFETY: the caller's promise.
    unsafe {
        run(
            comm,
            Request {
                collective,
                dtype,
                count,
                input,
                output,
                ..Request::EMPTY
            },
        )
    }
}

/// Reduces `count` elements times the number of ranks by `op`; each rank receives its block of
/// `count`. In place if `output` is this rank's block of `input`, whose other blocks are undefined
/// then.
///
/// # Safety
/// As for `ringfold_all_reduce`, with these sizes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_reduce_scatter(
    comm: *const Communicator,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: DTypeNumber,
    op: OpNumber,
) -> Status {
    let collective = CollectiveName::RINGFOLD_REDUCE_SCATTER as CollectiveNumber;
    // SAFETY: the caller's promise.
    unsafe {
        run(
            comm,
            Request {
                collective,
                dtype,
                op,
                count,
                input,
                output,
                ..Request::EMPTY
            },
        )
    }
}

/// Gathers the `count` elements of each rank on the root, in rank order. `output` may be null on
/// the other ranks.
///
/// # Safety
/// As for `ringfold_all_gather`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_gather(
    comm: *const Communicator,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: DTypeNumber,
    root: c_int,
) -> Status {
    let collective = CollectiveName::RINGFOLD_GATHER as CollectiveNumber;
    // SAFETY: the caller's promise.
    unsafe {
        run(
            comm,
            Request {
                collective,
                dtype,
                root,
                count,
                input,
                output,
                ..Request::EMPTY
            },
        )
    }
}

/// Sends each rank its block of `count` elements of the root's `input`, which may be null on the
/// other ranks.
///
/// # Safety
/// As for `ringfold_all_gather`, with input and output exchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_scatter(
    comm: *const Communicator,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: DTypeNumber,
    root: c_int,
) -> Status {
    let collective = CollectiveName::RINGFOLD_SCATTER as CollectiveNumber;
    // SAFETY: the caller's promise.
    unsafe {
        run(
            comm,
            Request {
                collective,
                dtype,
                root,
                count,
                input,
                output,
                ..Request::EMPTY
            },
        )
    }
}

/// Exchanges blocks of `count` elements: block j of rank i's input becomes block i of rank j's
/// output. Not in place.
///
/// # Safety
/// Both buffers have `count` elements times the number of ranks, and are not used otherwise until
/// the function returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_all_to_all(
    comm: *const Communicator,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: DTypeNumber,
) -> Status {
    let collective = CollectiveName::RINGFOLD_ALL_TO_ALL as CollectiveNumber;
    // SAFETY: the caller's promise.
    unsafe {
        run(
            comm,
            Request {
                collective,
                dtype,
                count,
                input,
                output,
                ..Request::EMPTY
            },
        )
    }
}

/// Waits until all ranks have called this function.
///
/// # Safety
/// `comm` is a communicator or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_barrier(comm: *const Communicator) -> Status {
    let collective = CollectiveName::RINGFOLD_BARRIER as CollectiveNumber;
    // SAFETY: there are no buffers.
    unsafe {
        run(
            comm,
            Request {
                collective,
                ..Request::EMPTY
            },
        )
    }
}

/// Sends `count` elements to a peer, whose receive has the same tag, type and count. The peer may
/// be this rank: the message is kept until this rank receives it. If too much is kept, the send
/// fails at its deadline.
///
/// # Safety
/// `input` has `count` elements, and is not changed until the function returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_send(
    comm: *const Communicator,
    input: *const c_void,
    count: usize,
    dtype: DTypeNumber,
    peer: c_int,
    tag: u32,
) -> Status {
    let (collective, root) = (CollectiveName::RINGFOLD_SEND as CollectiveNumber, peer);
    // SAFETY: the caller's promise.
    unsafe {
        run(
            comm,
            Request {
                collective,
                dtype,
                root,
                tag,
                count,
                input,
                ..Request::EMPTY
            },
        )
    }
}

/// Receives `count` elements from a peer, or from `RINGFOLD_ANY_SOURCE`; stores the sender in
/// `source`, which may be null.
///
/// # Safety
/// `output` has room for `count` elements, and is not used otherwise until the function returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_recv(
    comm: *const Communicator,
    output: *mut c_void,
    count: usize,
    dtype: DTypeNumber,
    peer: c_int,
    tag: u32,
    source: *mut c_int,
) -> Status {
    let (collective, root) = (CollectiveName::RINGFOLD_RECV as CollectiveNumber, peer);
    let request = Request {
        collective,
        dtype,
        root,
        tag,
        count,
        output,
        ..Request::EMPTY
    };
    // SAFETY: the caller's promise.
    unsafe { ringfold_run(comm, &request, source, None, std::ptr::null_mut()) }
}
