//! A board as another process reads it.
//!
//! Its bytes are a claim: any process can make some, and a file may be cut off. Sizes are checked
//! before anything is read, unknown numbers become words that say so, and texts are made harmless
//! for a terminal.

use super::layout::{self, MAGIC, RANKS_MAX, RECORDS_MAX, head, now, peer, record};
use crate::call::{PREPARED, Way};
use crate::spelling::harmless;
use crate::types::{Access, Algorithm, Assignment, Collective, DType, Method, Protocol};

/// What stands for a root, or another end, that there is not.
const NO_RANK: u32 = u32::MAX;

/// Records that are read at once.
const PIECE_RECORDS: usize = 1 << 12;

/// A board at one moment.
#[derive(Clone, Debug)]
pub struct Picture {
    /// The process, by its own number of itself.
    pub pid: u32,
    /// The same on all ranks of a job.
    pub job: u64,
    /// The communicator's number within the job; 0 is the one that all ranks are in.
    pub communicator: u64,
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// Calls that there is room for records of.
    pub records: usize,
    /// When the board was made, by its clock and by the calendar.
    pub made_ns: u64,
    /// The same since 1970.
    pub made_calendar_ns: u64,
    /// Boards with equal numbers read the same clock.
    pub clock: [u64; head::CLOCK_WORDS],
    /// The host's name.
    pub host: String,
    /// The program's.
    pub program: String,
    /// `shm`, `tcp`, `shm+tcp`, `self`.
    pub transport: String,
    /// Collectives that were begun.
    pub begun: u64,
    /// Collectives that are done.
    pub finished: u64,
    /// The last call that was begun; nothing before the first.
    pub last: Option<(KindOfCall, u64)>,
    /// Time spent waiting for other ranks, in calls that are done.
    pub waited_ns: u64,
    /// Calls in which this rank was the last.
    pub times_last: u64,
    /// What it waits in now.
    pub waiting: Option<Waiting>,
    /// Whether it was left in good order, or by which error it has ended.
    pub ended: Ended,
    /// Calls and bytes of each collective.
    pub collectives: Vec<(Collective, u64, u64)>,
    /// What this rank knows of each rank's lateness.
    pub peers: Vec<PeerPicture>,
    /// Records that were written; the last ones are there.
    pub recorded: u64,
}

/// What a rank waits in, in words, and since when by its clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The call, and for whom.
    pub text: String,
    /// Since when.
    pub since_ns: u64,
}

/// How a communicator has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It has not, or its process was killed.
    No,
    /// In good order.
    Closed,
    /// By this error.
    Failed(String),
}

/// What a rank knows of another one's lateness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerPicture {
    /// Calls in which it was the last.
    pub last: u64,
    /// Those among them that were too short to be timed.
    pub short: u64,
    /// By how much, together.
    pub lateness_ns: u64,
    /// Time blocked on it.
    pub waited_ns: u64,
}

/// What is called, and how it is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindOfCall {
    /// The collective.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DType,
    /// The algorithm.
    pub method: Method,
    /// How the bytes travel.
    pub protocol: Protocol,
    /// Whether the library calls it to register memory.
    pub registers: bool,
}

/// One call, as a board shows it.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// What is called and how, packed; see [`KindOfCall`].
    pub kind: u64,
    /// What it is about: the longer of input and output.
    pub bytes: u64,
    /// Its number among the communicator's collectives; of messages, as the sender or the receiver
    /// counts.
    pub sequence: u64,
    /// The root, or the other end of a message.
    pub root: u32,
    /// The tag of a message.
    pub tag: u32,
}

/// The record of one call.
#[derive(Clone, Debug)]
pub struct RecordedCall {
    /// What and how.
    pub kind: KindOfCall,
    /// When it was submitted, by its board's clock.
    pub begin_ns: u64,
    /// When it was done; nothing if it never was.
    pub end_ns: Option<u64>,
    /// Its number, the same on all ranks; of messages the number among the sends to the peer, or
    /// the receives from it.
    pub sequence: u64,
    /// What it is about.
    pub bytes: u64,
    /// How long this rank waited in it.
    pub waited_ns: u64,
    /// The rank that was late, and by how much.
    pub late: Option<(usize, u64)>,
    /// The root, or the other end of a message.
    pub root: Option<usize>,
    /// The tag of a message.
    pub tag: u32,
}

impl KindOfCall {
    /// Packs what and how into a number.
    #[inline]
    pub fn pack(collective: Collective, dtype: DType, way: &Way, registers: bool) -> u64 {
        // The bit above all says that there is a call.
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

    /// Whether it is a message between two ranks.
    pub fn is_message(&self) -> bool {
        matches!(self.collective, Collective::Send | Collective::Recv)
    }
}

impl Shown {
    /// The number that stands for a root that there is not.
    pub fn root(rank: Option<usize>) -> u32 {
        rank.and_then(|rank| u32::try_from(rank).ok())
            .unwrap_or(NO_RANK)
    }
}

impl Picture {
    /// The bytes of a board up to its records, by what its beginning says.
    pub fn bytes(beginning: &[u8]) -> Result<usize, String> {
        let (world_size, _) = sizes(beginning)?;
        Ok(layout::first_record(world_size) * 8)
    }

    /// What a board says. Its records may be missing.
    pub fn read(board: &[u8]) -> Result<Picture, String> {
        let (world_size, records) = sizes(board)?;
        if board.len() < layout::first_record(world_size) * 8 {
            return Err(format!(
                "it is cut off: a board of {world_size} ranks is longer"
            ));
        }
        let word = |index| word(board, index);
        let rank = word(head::RANK) as usize;
        if rank >= world_size {
            return Err(format!("it is of rank {rank} among {world_size} ranks"));
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

    /// The bytes of the whole board, with its records.
    pub fn whole_bytes(&self) -> usize {
        layout::words(self.world_size, self.records) * 8
    }

    /// The records of a board, in the order in which the calls were submitted, and how many of them
    /// cannot be read. `read` reads bytes of the board from a place on: piece by piece, because a
    /// board may claim more records than there is memory.
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

/// The number of ranks and of records of what claims to be a board.
fn sizes(board: &[u8]) -> Result<(usize, usize), String> {
    if board.len() < layout::peer::FIRST * 8 {
        return Err("it is too short for a board".into());
    }
    match word(board, head::MAGIC) {
        MAGIC => {}
        magic if (magic ^ MAGIC) & !0xff == 0 => {
            let version = magic & 0xff;
            return Err(format!(
                "it is of version {version} of the layout, this program reads version {}; use the \
                 `ringfold` of the job's installation",
                MAGIC & 0xff
            ));
        }
        _ => return Err("it is not a board of ringfold, or was not finished".into()),
    }
    let bounded = |what: &str, index: usize, most: usize| {
        let number = usize::try_from(word(board, index)).unwrap_or(usize::MAX);
        match number > most {
            true => Err(format!("it claims {number} {what}, more than {most}")),
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

/// A text, of which only what a terminal shows as it stands is kept.
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

/// What is waited in; a text that changes at this moment is left out.
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
