//! Where a board has what. All numbers are eight bytes, in the machine's order.
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

/// What the kernel calls the memory of boards.
pub const MEMFD_NAME: &str = "ringfold-board";

/// How the names of boards with records end.
pub const FILE_SUFFIX: &str = ".ringfold-calls";

/// Ranks that a board has numbers for, at most: more than jobs have.
pub const RANKS_MAX: usize = 1 << 17;

/// Calls that a board can have records of, at most: 4 GiB of them.
pub const RECORDS_MAX: usize = 1 << 26;

/// The bytes that say how long a board is, and are those of the shortest.
pub const BEGINNING_BYTES: usize = peer::FIRST * 8;

/// What the board is.
pub mod head {
    pub const MAGIC: usize = 0;
    pub const PID: usize = 1;
    pub const JOB: usize = 2;
    pub const COMMUNICATOR: usize = 3;
    pub const RANK: usize = 4;
    pub const WORLD_SIZE: usize = 5;
    pub const RECORDS: usize = 6;
    /// When it was made, by this host's clock since its start, and by the calendar.
    pub const MADE_NS: usize = 7;
    pub const MADE_CALENDAR_NS: usize = 8;
    /// Processes with the same three numbers read the same clock.
    pub const CLOCK: usize = 9;
    pub const CLOCK_WORDS: usize = 3;
    pub const TRANSPORT: usize = 12;
    pub const TRANSPORT_WORDS: usize = 2;
    pub const HOST: usize = 16;
    pub const HOST_WORDS: usize = 16;
    pub const PROGRAM: usize = 32;
    pub const PROGRAM_WORDS: usize = 32;
}

/// What has changed since.
pub mod now {
    const FIRST: usize = 128;
    /// The collectives begun and done.
    pub const BEGUN: usize = FIRST;
    pub const FINISHED: usize = FIRST + 1;
    /// The last call that was begun.
    pub const KIND: usize = FIRST + 2;
    pub const BYTES: usize = FIRST + 3;
    /// Statistics of lateness, of `COUNTED` calls.
    pub const WAITED_NS: usize = FIRST + 4;
    pub const AWAITED: usize = FIRST + 5;
    pub const COUNTED: usize = FIRST + 6;
    /// Records written so far, of which the last are there.
    pub const RECORDED: usize = FIRST + 7;
    /// What is waited in: odd while the text changes; and since when, 0 where nothing is.
    pub const TEXT_VERSION: usize = FIRST + 8;
    pub const SINCE_NS: usize = FIRST + 9;
    /// Whether it was left in good order.
    pub const IS_CLOSED: usize = FIRST + 10;
    pub const TEXT: usize = FIRST + 16;
    pub const TEXT_WORDS: usize = 32;
    /// The error that has ended the communicator.
    pub const FAULT: usize = FIRST + 48;
    pub const FAULT_WORDS: usize = 40;
    /// Calls and bytes of each collective, by its number.
    pub const COLLECTIVES: usize = FIRST + 96;
    pub const COLLECTIVES_MAX: usize = 16;
}

/// The numbers of one rank.
pub mod peer {
    pub const FIRST: usize = 256;
    pub const WORDS: usize = 4;
    /// Calls in which it was the last, of which so many were too short for the clock.
    pub const LAST: usize = 0;
    pub const SHORT: usize = 1;
    pub const LATENESS_NS: usize = 2;
    pub const WAITED_NS: usize = 3;
}

/// The record of one call.
pub mod record {
    pub const WORDS: usize = 8;
    /// When it was submitted, and done; 0 while it is not.
    pub const BEGIN_NS: usize = 0;
    pub const END_NS: usize = 1;
    pub const SEQUENCE: usize = 2;
    pub const KIND: usize = 3;
    pub const BYTES: usize = 4;
    pub const WAITED_NS: usize = 5;
    /// The rank that was late, plus 1; above it the root or the other end of a message.
    pub const RANKS: usize = 6;
    /// How late; of messages, the tag.
    pub const LATENESS_NS: usize = 7;
}

/// The place of the first record among so many ranks.
pub const fn first_record(world_size: usize) -> usize {
    (peer::FIRST + world_size * peer::WORDS).next_multiple_of(record::WORDS)
}

/// The words of a board.
pub const fn words(world_size: usize, records: usize) -> usize {
    first_record(world_size) + records * record::WORDS
}

const _: () = assert!(now::COLLECTIVES + 2 * now::COLLECTIVES_MAX == peer::FIRST);
const _: () = assert!(now::FAULT + now::FAULT_WORDS <= now::COLLECTIVES);
const _: () = assert!(head::PROGRAM + head::PROGRAM_WORDS <= now::BEGUN);
