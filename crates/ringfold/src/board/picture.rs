//! Reads a board of another process.
//!
//! A board's bytes are a claim: any process can make a board, and a file may be truncated. Sizes
//! are checked before anything else is read, entries with unknown numbers are left out, and texts
//! are made harmless for a terminal.

use super::layout::{self, MAGIC, RANKS_MAX, RECORDS_MAX, head, now, peer, record};
use crate::call::{PREPARED, Way};
use crate::spelling::harmless;
use crate::types::{Access, Algorithm, Assignment, Collective, DType, Method, Protocol};

/// The number that stands for the absence of a root, or of a message's other end.
const NO_RANK: u32 = u32::MAX;

/// Number of records read at once.
const PIECE_RECORDS: usize = 1 << 12;

/// A snapshot of a board.
#[derive(Clone, Debug)]
pub struct Picture {
    /// The process ID, as the process itself sees it.
    pub pid: u32,
    /// The job's number, the same on all its ranks.
    pub job: u64,
    /// The communicator's number within the job; the communicator of all ranks is 0.
    pub communicator: u64,
    /// The rank that owns the board.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// Maximum number of records.
    pub records: usize,
    /// Creation time of the board, in nanoseconds of the board's clock.
    pub made_ns: u64,
    /// Creation time of the board, in nanoseconds since 1970.
    pub made_calendar_ns: u64,
    /// The board's clock; boards with equal numbers read the same clock.
    pub clock: [u64; head::CLOCK_WORDS],
    /// The host's name.
    pub host: String,
    /// The program that the process runs.
    pub program: String,
    /// The transport's name: `shm`, `tcp`, `rdma`, `shm+tcp`, `shm+rdma`, `self`.
    pub transport: String,
    /// Number of collectives begun.
    pub begun: u64,
    /// Number of collectives done.
    pub finished: u64,
    /// The last call begun, and its bytes; `None` before the first call.
    pub last: Option<(KindOfCall, u64)>,
    /// Time spent waiting for other ranks, in completed calls.
    pub waited_ns: u64,
    /// Number of calls in which this rank was the last.
    pub times_last: u64,
    /// The current wait of this rank.
    pub waiting: Option<Waiting>,
    /// Whether, and how, the communicator has ended.
    pub ended: Ended,
    /// Calls and bytes of each collective.
    pub collectives: Vec<(Collective, u64, u64)>,
    /// This rank's view of each rank's lateness.
    pub peers: Vec<PeerPicture>,
    /// Number of records written; the board holds the last ones.
    pub recorded: u64,
}

/// A rank's current wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The call, and the ranks that this rank waits for; empty if the text was changing.
    pub text: String,
    /// Start of the wait, by the board's clock.
    pub since_ns: u64,
}

/// The end of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The communicator has not ended, or its process was killed.
    No,
    /// The communicator was closed without an error.
    Closed,
    /// The error that ended the communicator.
    Failed(String),
}

/// A rank's view of another rank's lateness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerPicture {
    /// Number of calls in which the other rank was the last.
    pub last: u64,
    /// Number of these calls that were too short to be timed.
    pub short: u64,
    /// Total lateness in these calls.
    pub lateness_ns: u64,
    /// Time blocked on the other rank.
    pub waited_ns: u64,
}

/// A call's collective, and how the call is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindOfCall {
    /// The collective.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DType,
    /// The algorithm.
    pub method: Method,
    /// The protocol by which the bytes travel.
    pub protocol: Protocol,
    /// Whether the call is the library's own, to register memory.
    pub registers: bool,
}

/// A call, as a board shows it.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// The packed [`KindOfCall`].
    pub kind: u64,
    /// Bytes of the input or of the output, whichever is longer.
    pub bytes: u64,
    /// The call's number among the communicator's collectives, or a message's number among this
    /// rank's messages.
    pub sequence: u64,
    /// The root, or the other end of a message.
    pub root: u32,
    /// The tag of a message.
    pub tag: u32,
}

/// The record of one call.
#[derive(Clone, Debug)]
pub struct RecordedCall {
    /// The collective, and how the call was carried out.
    pub kind: KindOfCall,
    /// Time at which the call was submitted, by the board's clock.
    pub begin_ns: u64,
    /// Time at which the call was done; `None` if the call never ended.
    pub end_ns: Option<u64>,
    /// The call's number, the same on all ranks; a message's number among this rank's messages.
    pub sequence: u64,
    /// Bytes of the input or of the output, whichever is longer.
    pub bytes: u64,
    /// Time that this rank waited in the call.
    pub waited_ns: u64,
    /// The late rank, and its lateness.
    pub late: Option<(usize, u64)>,
    /// The root, or the other end of a message.
    pub root: Option<usize>,
    /// The tag of a message.
    pub tag: u32,
}

impl KindOfCall {
    /// Packs the kind of a call into a number.
    #[inline]
    pub fn pack(collective: Collective, dtype: DType, way: &Way, registers: bool) -> u64 {
        // The highest bit marks a call; 0 means none.
        1 << 63
            | collective as u64
            | (way.algorithm as u64) << 8
            | (way.access as u64) << 16
            | (way.assignment as u64) << 24
            | (way.is_inline as u64) << 25
            | (registers as u64) << 26
            | (dtype as u64) << 32
    }

    fn unpack(word: u64) -> Option<KindOfCall> {
        let byte = |at: u32| (word >> at) as u8;
        let access = Access::from_wire(byte(16))?;
        let assignment = Assignment::from_wire(byte(24) & 1)?;
        let method = Method::new(Algorithm::from_wire(byte(8))?, access, assignment);
        (word >> 63 == 1).then_some(())?;
        Some(KindOfCall {
            collective: Collective::from_wire(byte(0))?,
            dtype: DType::from_wire(byte(32))?,
            method,
            protocol: Protocol::new(access, byte(24) & 2 != 0),
            registers: byte(24) & 4 != 0,
        })
    }

    /// Whether the call is a message between two ranks.
    pub fn is_message(&self) -> bool {
        matches!(self.collective, Collective::Send | Collective::Recv)
    }
}

impl Shown {
    /// Encodes a rank, or its absence, as the root of a call.
    pub fn root(rank: Option<usize>) -> u32 {
        rank.and_then(|rank| u32::try_from(rank).ok())
            .unwrap_or(NO_RANK)
    }
}

impl Picture {
    /// Returns the bytes of a board up to its records, as the board's beginning states them.
    pub fn bytes(beginning: &[u8]) -> Result<usize, String> {
        let (world_size, _) = sizes(beginning)?;
        Ok(layout::first_record(world_size) * 8)
    }

    /// Reads a board; its records may be missing.
    pub fn read(board: &[u8]) -> Result<Picture, String> {
        let (world_size, records) = sizes(board)?;
        if board.len() < layout::first_record(world_size) * 8 {
            return Err(format!(
                "truncated: a board of {world_size} ranks is longer"
            ));
        }
        let word = |index| word(board, index);
        let rank = word(head::RANK) as usize;
        if rank >= world_size {
            return Err(format!("invalid rank {rank} among {world_size} ranks"));
        }
        let peers: Vec<PeerPicture> = (0..world_size).map(|rank| peer_of(board, rank)).collect();
        let short: u64 = sum(peers.iter().map(|peer| peer.short));
        let awaited = word(now::AWAITED).saturating_add(short);
        let fault = text(board, now::FAULT, now::FAULT_WORDS);
        Ok(Picture {
            pid: word(head::PID) as u32,
            job: word(head::JOB),
            communicator: word(head::COMMUNICATOR),
            rank,
            world_size,
            records,
            made_ns: word(head::MADE_NS),
            made_calendar_ns: word(head::MADE_CALENDAR_NS),
            clock: std::array::from_fn(|index| word(head::CLOCK + index)),
            host: text(board, head::HOST, head::HOST_WORDS),
            program: text(board, head::PROGRAM, head::PROGRAM_WORDS),
            transport: text(board, head::TRANSPORT, head::TRANSPORT_WORDS),
            begun: word(now::BEGUN).saturating_sub(PREPARED),
            finished: word(now::FINISHED).saturating_sub(PREPARED),
            last: KindOfCall::unpack(word(now::KIND)).map(|kind| (kind, word(now::BYTES))),
            waited_ns: word(now::WAITED_NS),
            times_last: word(now::COUNTED).saturating_sub(awaited),
            waiting: waiting(board),
            ended: match (fault.is_empty(), word(now::IS_CLOSED)) {
                (false, _) => Ended::Failed(fault),
                (true, 0) => Ended::No,
                (true, _) => Ended::Closed,
            },
            collectives: collectives(board),
            peers,
            recorded: word(now::RECORDED),
        })
    }

    /// Returns the bytes of the whole board, with its records.
    pub fn whole_bytes(&self) -> usize {
        layout::words(self.world_size, self.records) * 8
    }

    /// Returns the records of a board, in the order of submission, and the number of unreadable
    /// ones. `read` reads bytes of the board from an offset, piece by piece, because a board may
    /// claim more records than there is memory.
    pub fn calls(
        &self,
        mut read: impl FnMut(usize, &mut [u8]) -> Result<(), String>,
    ) -> Result<(Vec<RecordedCall>, usize), String> {
        const RECORD_BYTES: usize = record::WORDS * 8;
        let (capacity, recorded) = (self.records as u64, self.recorded);
        let first = layout::first_record(self.world_size) * 8;
        let numbers = recorded.saturating_sub(capacity)..recorded;
        let mut piece = vec![0; PIECE_RECORDS * RECORD_BYTES];
        let mut calls = Vec::new();
        let mut number = numbers.start;
        while number < numbers.end {
            let slot = (number % capacity) as usize;
            let left = (numbers.end - number).min(capacity - slot as u64);
            let count = (left as usize).min(PIECE_RECORDS);
            let records = &mut piece[..count * RECORD_BYTES];
            read(first + slot * RECORD_BYTES, records)?;
            let known = records.chunks_exact(RECORD_BYTES);
            calls.extend(known.filter_map(|record| self.call(record, 0)));
            number += count as u64;
        }
        let unread = (numbers.end - numbers.start) as usize - calls.len();
        Ok((calls, unread))
    }

    fn call(&self, board: &[u8], at: usize) -> Option<RecordedCall> {
        let word = |index| word(board, at + index);
        let kind = KindOfCall::unpack(word(record::KIND))?;
        let rank = |number: u64| {
            usize::try_from(number)
                .ok()
                .filter(|r| *r < self.world_size)
        };
        let ranks = word(record::RANKS);
        let late = rank((ranks & 0xffff_ffff).wrapping_sub(1));
        let last = word(record::LATENESS_NS);
        let (begin_ns, end_ns) = (word(record::BEGIN_NS), word(record::END_NS));
        Some(RecordedCall {
            kind,
            begin_ns,
            end_ns: Some(end_ns).filter(|end| *end >= begin_ns),
            sequence: match kind.is_message() {
                true => word(record::SEQUENCE),
                false => word(record::SEQUENCE).saturating_sub(PREPARED),
            },
            bytes: word(record::BYTES),
            waited_ns: word(record::WAITED_NS),
            late: late.filter(|_| !kind.is_message()).map(|rank| (rank, last)),
            root: rank(ranks >> 32),
            tag: if kind.is_message() { last as u32 } else { 0 },
        })
    }
}

/// Returns the numbers of ranks and of records that a board claims.
fn sizes(board: &[u8]) -> Result<(usize, usize), String> {
    if board.len() < layout::peer::FIRST * 8 {
        return Err("too short for a board".into());
    }
    match word(board, head::MAGIC) {
        MAGIC => {}
        magic if (magic ^ MAGIC) & !0xff == 0 => {
            let version = magic & 0xff;
            return Err(format!(
                "layout version {version}, but this program reads version {}; use the `ringfold` \
                 of the job's installation",
                MAGIC & 0xff
            ));
        }
        _ => return Err("not a board of ringfold, or an incomplete one".into()),
    }
    let bounded = |what: &str, index: usize, most: usize| {
        let number = usize::try_from(word(board, index)).unwrap_or(usize::MAX);
        match number > most {
            true => Err(format!("{number} {what} exceed the limit of {most}")),
            false => Ok(number),
        }
    };
    let world_size = bounded("ranks", head::WORLD_SIZE, RANKS_MAX)?;
    Ok((world_size, bounded("records", head::RECORDS, RECORDS_MAX)?))
}

fn word(board: &[u8], index: usize) -> u64 {
    let bytes = &board[index * 8..index * 8 + 8];
    u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
}

/// Returns a text, with `?` for each character that could control a terminal or move text.
fn text(board: &[u8], first: usize, words: usize) -> String {
    let bytes = &board[first * 8..(first + words) * 8];
    let end = bytes.iter().position(|byte| *byte == 0);
    let text = String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]);
    let text = text.trim_end_matches('\u{fffd}');
    text.chars().map(harmless).collect()
}

fn peer_of(board: &[u8], rank: usize) -> PeerPicture {
    let word = |index| word(board, peer::FIRST + rank * peer::WORDS + index);
    PeerPicture {
        last: word(peer::LAST),
        short: word(peer::SHORT),
        lateness_ns: word(peer::LATENESS_NS),
        waited_ns: word(peer::WAITED_NS),
    }
}

/// Returns the current wait; the text is left out if it is changing.
fn waiting(board: &[u8]) -> Option<Waiting> {
    let since_ns = word(board, now::SINCE_NS);
    if since_ns == 0 {
        return None;
    }
    let is_changing = word(board, now::TEXT_VERSION) & 1 == 1;
    let text = match is_changing {
        true => String::new(),
        false => text(board, now::TEXT, now::TEXT_WORDS),
    };
    Some(Waiting { text, since_ns })
}

fn collectives(board: &[u8]) -> Vec<(Collective, u64, u64)> {
    let numbers = 0..now::COLLECTIVES_MAX;
    let known = numbers.filter_map(|number| {
        let at = now::COLLECTIVES + 2 * number;
        let collective = Collective::from_wire(number as u8)?;
        Some((collective, word(board, at), word(board, at + 1)))
    });
    known.filter(|(_, calls, _)| *calls > 0).collect()
}

fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}
