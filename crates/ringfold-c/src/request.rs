//! Conversion of a call from C's description to the library's.

use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::{ptr, slice};

use ringfold::{
    Collective, Communicator, Counts, Error, Op, Region, Request as Call, Result, Target,
};

use crate::arguments::{borrowed, invalid, seconds, text};
use crate::names::{CollectiveNumber, DTypeNumber, OpNumber, collective, dtype, op};

/// The `root` of a receive from any sender.
pub const RINGFOLD_ANY_SOURCE: c_int = -1;

/// A call. Set `size` to `sizeof(ringfold_request_t)`, and all unused fields to 0: C's designated
/// initialisers do so for the fields that are not named.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// `sizeof(ringfold_request_t)`.
    pub size: usize,
    /// The collective: `RINGFOLD_ALL_REDUCE` and so on.
    pub collective: CollectiveNumber,
    /// The elements' type: `RINGFOLD_FLOAT32` and so on. A barrier has none.
    pub dtype: DTypeNumber,
    /// The reduction: `RINGFOLD_SUM` and so on. Ignored by collectives that do not reduce.
    pub op: OpNumber,
    /// The root; for `RINGFOLD_SEND` and `RINGFOLD_RECV` the peer, or `RINGFOLD_ANY_SOURCE`.
    pub root: c_int,
    /// For messages: the number by which a receive selects its message.
    pub tag: u32,
    /// The factor of this rank's input in a `RINGFOLD_PREMUL_SUM`.
    pub factor: f64,
    /// The number of elements: of the buffer, or of one rank's block if each rank has one.
    pub count: usize,
    /// Instead of `count`, a count for each rank, for `RINGFOLD_ALL_GATHER`, `RINGFOLD_GATHER`,
    /// `RINGFOLD_REDUCE_SCATTER` and `RINGFOLD_SCATTER`: the same list on all ranks. For
    /// `RINGFOLD_ALL_TO_ALL`, the elements that this rank sends to each rank.
    pub counts: *const usize,
    /// For `RINGFOLD_ALL_TO_ALL` with `counts`: the elements that this rank receives from each
    /// rank.
    pub output_counts: *const usize,
    /// The input; may be null on ranks that send nothing.
    pub input: *const c_void,
    /// The output; may be null on ranks that receive nothing. `input` again, or the rank's block of
    /// it, means in place.
    pub output: *mut c_void,
    /// The deadline in seconds; 0 means the communicator's.
    pub timeout_s: f64,
    /// The algorithm; null means the tuner's choice.
    pub algorithm: *const c_char,
    /// Not 0: the elements are combined in the order of the canonical tree, as with the setting
    /// `reproducible`. The same on all ranks.
    pub reproducible: c_int,
}

impl Request {
    /// A request with every field 0 except the size.
    pub const EMPTY: Request = Request {
        size: size_of::<Request>(),
        collective: 0,
        dtype: 0,
        op: 0,
        root: 0,
        tag: 0,
        factor: 0.0,
        count: 0,
        counts: ptr::null(),
        output_counts: ptr::null(),
        input: ptr::null(),
        output: ptr::null_mut(),
        timeout_s: 0.0,
        algorithm: ptr::null(),
        reproducible: 0,
    };

    /// Reads the request at an address, which is shorter if the program has an older header.
    ///
    /// # Safety
    /// `request` is null, or points to as many bytes as its `size` says. Bytes beyond this
    /// structure are not read.
    pub unsafe fn read(request: *const Request) -> Result<Request> {
        // SAFETY: the caller's promise; the first field is always there.
        let size = unsafe { borrowed(request.cast::<usize>(), "request") }?;
        let known = size_of::<Request>();
        if *size < size_of::<usize>() || *size > known {
            return Err(invalid(format!(
                "the request's size is {size}; set it to sizeof(ringfold_request_t), which is at \
                 most {known} with this library"
            )));
        }
        let mut read = Request::EMPTY;
        // SAFETY: source and destination have `size` bytes. Every bit pattern is a request.
        unsafe { ptr::copy_nonoverlapping(request.cast::<u8>(), (&raw mut read).cast(), *size) };
        Ok(read)
    }

    /// Returns the call of `communicator` that the request describes.
    ///
    /// # Safety
    /// Counts have an entry for each rank, or are null; the algorithm is a text, or null. Valid
    /// buffers are required only when the call is run.
    pub unsafe fn call(&self, communicator: &Communicator) -> Result<Call> {
        let ranks = communicator.world_size();
        let collective = collective(self.collective)?;
        let is_barrier = collective == Collective::Barrier;
        let dtype = dtype(if is_barrier { 1 } else { self.dtype })?;
        // SAFETY: the caller's promise.
        let counts = unsafe { self.counts(ranks) }?;
        let mut call = Call::new(collective, dtype, counts, Region::EMPTY, Region::EMPTY);
        if collective.reduces() {
            call.op = op(self.op, self.factor)?;
            self.check_factor(call.op)?;
        }
        call.target = match (self.root, usize::try_from(self.root)) {
            (RINGFOLD_ANY_SOURCE, _) if collective == Collective::Recv => Target::AnySource,
            (_, Ok(root)) => Target::of(collective, root),
            (root, Err(_)) => return Err(invalid(format!("rank {root} does not exist"))),
        };
        call.tag = self.tag;
        if self.timeout_s != 0.0 {
            call.options.timeout = Some(seconds(self.timeout_s, "timeout_s")?);
        }
        if !self.algorithm.is_null() {
            // SAFETY: the caller's promise.
            let name = unsafe { text(self.algorithm, "algorithm") }?;
            call.options.algorithm = Some(name.parse().map_err(Error::from)?);
        }
        call.options.reproducible = self.reproducible != 0;
        let (input, output) = call.buffer_bytes(communicator.rank(), ranks)?;
        call.input = region("input", self.input.cast_mut().cast(), input)?;
        call.output = region("output", self.output.cast(), output)?;
        Ok(call)
    }

    /// Refuses a factor of 0, which was not set.
    fn check_factor(&self, op: Op) -> Result<()> {
        match op {
            Op::PremulSum(0.0) => Err(invalid("the factor of RINGFOLD_PREMUL_SUM is not set")),
            _ => Ok(()),
        }
    }

    /// # Safety
    /// As for `call`.
    unsafe fn counts(&self, ranks: usize) -> Result<Counts> {
        let list = |counts: *const usize| {
            // SAFETY: the caller's promise: a count for each rank.
            let counts = unsafe { slice::from_raw_parts(counts, ranks) };
            counts.iter().map(|count| *count as u64).collect()
        };
        match (self.counts.is_null(), self.output_counts.is_null()) {
            (true, true) => Ok(Counts::Even(self.count as u64)),
            (false, true) => Ok(Counts::PerRank(list(self.counts))),
            (false, false) => Ok(Counts::Pairwise {
                input: list(self.counts),
                output: list(self.output_counts),
            }),
            (true, false) => Err(invalid("output_counts are set, but counts are not")),
        }
    }
}

/// Returns a buffer of which `bytes` bytes are used.
pub fn region(name: &str, start: *mut u8, bytes: usize) -> Result<Region> {
    if bytes == 0 {
        return Ok(Region::EMPTY);
    }
    if start.is_null() {
        return Err(invalid(format!(
            "{name} is NULL, but this rank needs {bytes} bytes of it"
        )));
    }
    // SAFETY: used in calls only, whose callers promise the memory.
    Ok(unsafe { Region::new(start, bytes) })
}
