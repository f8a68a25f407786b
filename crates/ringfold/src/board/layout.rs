//! The layout of a board. All numbers are eight bytes, in the machine's order.
//!
//! ```text
//! word    0  what the board is: written once, the magic number last
//!       128  what has changed since: progress, the call waited in, counters by collective
//!       256  four numbers for each rank of the communicator
//!       ...  the records of its calls, if it has any, eight numbers each
//! ```
//!
//! Any other layout has another magic number.

/// The first word of a board; its last byte is the version of the layout.
pub const MAGIC: u64 = u64::from_be_bytes(*b"rfboard\x01");

/// Name of the memfd that holds a board without records.
pub const MEMFD_NAME: &str = "ringfold-board";

/// File-name suffix of a board with records.
pub const FILE_SUFFIX: &str = ".ringfold-calls";

/// Maximum number of ranks of a board; jobs have fewer.
pub const RANKS_MAX: usize = 1 << 17;

/// Maximum number of records of a board: 4 GiB.
pub const RECORDS_MAX: usize = 1 << 26;

/// Bytes before the ranks' numbers. These bytes state the board's length; no board is shorter.
pub const BEGINNING_BYTES: usize = peer::FIRST * 8;

/// Word indices of the board's identity, which is written once.
pub mod head {
    pub const MAGIC: usize = 0;
    pub const PID: usize = 1;
    pub const JOB: usize = 2;
    pub const COMMUNICATOR: usize = 3;
    pub const RANK: usize = 4;
    pub const WORLD_SIZE: usize = 5;
    pub const RECORDS: usize = 6;
    /// Creation time, by this host's clock since its start; `MADE_CALENDAR_NS`: by the calendar.
    pub const MADE_NS: usize = 7;
    pub const MADE_CALENDAR_NS: usize = 8;
    /// Three numbers that identify the clock; processes with equal numbers read the same clock.
    pub const CLOCK: usize = 9;
    pub const CLOCK_WORDS: usize = 3;
    pub const TRANSPORT: usize = 12;
    pub const TRANSPORT_WORDS: usize = 2;
    pub const HOST: usize = 16;
    pub const HOST_WORDS: usize = 16;
    pub const PROGRAM: usize = 32;
    pub const PROGRAM_WORDS: usize = 32;
}

/// Word indices of the current state.
pub mod now {
    const FIRST: usize = 128;
    /// Numbers of collectives begun (`BEGUN`) and done (`FINISHED`).
    pub const BEGUN: usize = FIRST;
    pub const FINISHED: usize = FIRST + 1;
    /// The last call begun: its packed kind (`KIND`) and its `BYTES`.
    pub const KIND: usize = FIRST + 2;
    pub const BYTES: usize = FIRST + 3;
    /// Lateness totals of `COUNTED` calls.
    pub const WAITED_NS: usize = FIRST + 4;
    pub const AWAITED: usize = FIRST + 5;
    pub const COUNTED: usize = FIRST + 6;
    /// Number of records written so far; the board holds the last ones.
    pub const RECORDED: usize = FIRST + 7;
    /// Version of the text that describes the current wait, odd while the text changes. `SINCE_NS`:
    /// start of the wait, 0 if this rank does not wait.
    pub const TEXT_VERSION: usize = FIRST + 8;
    pub const SINCE_NS: usize = FIRST + 9;
    /// Whether the communicator was closed without an error.
    pub const IS_CLOSED: usize = FIRST + 10;
    pub const TEXT: usize = FIRST + 16;
    pub const TEXT_WORDS: usize = 32;
    /// The error that ended the communicator.
    pub const FAULT: usize = FIRST + 48;
    pub const FAULT_WORDS: usize = 40;
    /// Calls and bytes of each collective, by the collective's number.
    pub const COLLECTIVES: usize = FIRST + 96;
    pub const COLLECTIVES_MAX: usize = 16;
}

/// Words of each rank: index of the first rank's words, words per rank, and offsets therein.
pub mod peer {
    pub const FIRST: usize = 256;
    pub const WORDS: usize = 4;
    /// Calls in which the rank was the last; `SHORT` of them were too short for the clock.
    pub const LAST: usize = 0;
    pub const SHORT: usize = 1;
    pub const LATENESS_NS: usize = 2;
    pub const WAITED_NS: usize = 3;
}

/// Word offsets in the record of one call.
pub mod record {
    pub const WORDS: usize = 8;
    /// Times at which the call was submitted (`BEGIN_NS`) and done (`END_NS`); 0 until then.
    pub const BEGIN_NS: usize = 0;
    pub const END_NS: usize = 1;
    pub const SEQUENCE: usize = 2;
    pub const KIND: usize = 3;
    pub const BYTES: usize = 4;
    pub const WAITED_NS: usize = 5;
    /// The late rank plus 1; in the upper half, the root or the other end of a message.
    pub const RANKS: usize = 6;
    /// The late rank's lateness, or a message's tag.
    pub const LATENESS_NS: usize = 7;
}

/// Returns the word index of the first record of a board with `world_size` ranks.
pub const fn first_record(world_size: usize) -> usize {
    (peer::FIRST + world_size * peer::WORDS).next_multiple_of(record::WORDS)
}

/// Returns the number of words of a board.
pub const fn words(world_size: usize, records: usize) -> usize {
    first_record(world_size) + records * record::WORDS
}

const _: () = assert!(now::COLLECTIVES + 2 * now::COLLECTIVES_MAX == peer::FIRST);
const _: () = assert!(now::FAULT + now::FAULT_WORDS <= now::COLLECTIVES);
const _: () = assert!(head::PROGRAM + head::PROGRAM_WORDS <= now::BEGUN);
