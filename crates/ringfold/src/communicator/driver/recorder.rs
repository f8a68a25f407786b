//! Writes a communicator's board (see `board`), on which other processes see the calls of the
//! driving thread.
//!
//! A tiny call costs a few stores to cache lines that only this rank writes. If the board has no
//! records of single calls, the recorder reads no clock.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::board::{Board, KindOfCall, PeerPicture, Shown};
use crate::engine::lateness::Lateness;
use crate::engine::{ANY_SOURCE, Job, JobId};
use crate::error::Error;
use crate::types::Collective;

/// Number of calls between two updates of the waits on the board, if all waits were too short to be
/// timed. Small enough that a reader sees such waits soon.
const CALLS_BETWEEN_SHORT_WAITS: u64 = 1024;

/// Number of ranks whose lateness one update shows. The following updates show the other ranks.
const PEERS_AT_ONCE: usize = 64;

/// Number of the collective for the library's own calls, which are not counted.
const UNCOUNTED: u8 = u8::MAX;

/// The writer of a board, with the calls in progress.
pub struct Recorder {
    board: Board,
    /// Calls in progress, by job number.
    under_way: Vec<CallUnderWay>,
    /// Number of messages so far.
    messages: u64,
    /// Number of the record of the collective that ended last, if its waits are not known yet.
    unsettled: Option<u64>,
    /// Total time waited, up to the last timed wait that was shown.
    waited: Duration,
    /// The rank whose lateness is shown next.
    next_peer: usize,
    /// The tiny call that was shown last, if no other call was shown since.
    last_tiny: LastTiny,
}

/// The tiny call on the board. If the next tiny call is of the same kind, only the number of calls
/// changes on the board.
#[derive(Clone, Copy)]
struct LastTiny {
    number: usize,
    /// Number of kinds of calls that the engine had prepared.
    kinds: u64,
    collective: u8,
    bytes: u64,
}

/// The value that stands for no tiny call: no call has this number.
const NO_TINY: LastTiny = LastTiny {
    number: usize::MAX,
    kinds: 0,
    collective: UNCOUNTED,
    bytes: 0,
};

#[derive(Clone, Copy, Default)]
struct CallUnderWay {
    collective: u8,
    bytes: u64,
    /// Number of the call's record, if calls are recorded.
    record: u64,
}

impl Recorder {
    /// Creates a recorder that shows calls on `board`.
    pub fn new(board: Board) -> Recorder {
        Recorder {
            board,
            under_way: Vec::new(),
            messages: 0,
            unsettled: None,
            waited: Duration::ZERO,
            next_peer: 0,
            last_tiny: NO_TINY,
        }
    }

    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Shows that a tiny call has begun. `kinds` is the number of kinds of calls that the engine
    /// has prepared, and `begun` the number of collectives begun.
    #[inline(always)]
    pub fn begin_tiny(&mut self, id: JobId, job: &Job, kinds: u64, begun: u64) {
        let last = &self.last_tiny;
        if (last.number, last.kinds) == (id.number(), kinds) && !job.registers {
            return self.board.show_next(begun);
        }
        self.begin_tiny_kind(id, job, kinds, begun);
    }

    #[cold]
    fn begin_tiny_kind(&mut self, id: JobId, job: &Job, kinds: u64, begun: u64) {
        let shown = JobShown::of(job);
        self.begin(id, &shown, begun);
        if !self.board.is_recording() && !job.registers {
            self.last_tiny = LastTiny {
                number: id.number(),
                kinds,
                collective: shown.collective,
                bytes: shown.call.bytes,
            };
        }
    }

    /// Shows that a job has been submitted; `begun` is the number of collectives begun.
    #[cold]
    pub fn begin(&mut self, id: JobId, job: &JobShown, begun: u64) {
        self.last_tiny = NO_TINY;
        let mut call = job.call;
        call.sequence = begun;
        if job.is_message {
            self.messages += 1;
            call.sequence = self.messages;
        }
        let record = match self.board.is_recording() {
            true => self.board.record(&call),
            false => 0,
        };
        self.board.show_begun(&call, begun);
        let number = id.number();
        if number >= self.under_way.len() {
            self.under_way.resize(number + 1, CallUnderWay::default());
        }
        self.under_way[number] = CallUnderWay {
            collective: job.collective,
            bytes: call.bytes,
            record,
        };
    }

    /// Shows the end of the tiny call that began last; `finished` is the number of collectives
    /// done.
    #[inline(always)]
    pub fn end_tiny(&mut self, id: JobId, lateness: &mut Lateness, finished: u64) {
        let LastTiny {
            number,
            collective,
            bytes,
            ..
        } = self.last_tiny;
        if number != id.number() || lateness.has_news() {
            self.end(id, None);
            return self.settle(lateness, finished);
        }
        self.board.count(collective, bytes);
        self.board.show_finished(finished);
        if finished.is_multiple_of(CALLS_BETWEEN_SHORT_WAITS) {
            self.show_lateness(lateness, finished);
        }
    }

    /// Shows the end of a job, and the source of a receive.
    pub fn end(&mut self, id: JobId, source: Option<usize>) {
        let Some(ended) = self.under_way.get(id.number()) else {
            return;
        };
        self.board.count(ended.collective, ended.bytes);
        if self.board.is_recording() {
            self.board.record_end(ended.record, source);
            let is_message = [Collective::Send as u8, Collective::Recv as u8];
            if !is_message.contains(&ended.collective) {
                // If several calls ended together, the waits count for the last one.
                self.unsettled = self.unsettled.max(Some(ended.record));
            }
        }
    }

    /// Shows the number and the waits of the calls that have ended; `finished` is the number of
    /// collectives done.
    #[inline]
    pub fn settle(&mut self, lateness: &mut Lateness, finished: u64) {
        self.board.show_finished(finished);
        if lateness.take_news() {
            self.show_news(lateness, finished);
        } else if finished.is_multiple_of(CALLS_BETWEEN_SHORT_WAITS) {
            self.show_lateness(lateness, finished);
        }
        self.unsettled = None;
    }

    #[cold]
    fn show_news(&mut self, lateness: &Lateness, finished: u64) {
        let (waited, ..) = lateness.totals(finished);
        if let Some(record) = self.unsettled {
            let late = lateness.latest();
            let late = late.map(|(rank, lateness)| (rank, ns(lateness)));
            let waited = waited.saturating_sub(self.waited);
            self.board.record_waits(record, ns(waited), late);
        }
        self.waited = waited;
        self.show_lateness(lateness, finished);
    }

    #[cold]
    fn show_lateness(&mut self, lateness: &Lateness, finished: u64) {
        let (waited, awaited, counted) = lateness.totals(finished);
        self.board.show_waits(ns(waited), awaited, counted);
        let ranks = self.board.world_size();
        for _ in 0..ranks.min(PEERS_AT_ONCE) {
            let rank = self.next_peer;
            self.next_peer = (rank + 1) % ranks;
            let (peer, short) = lateness.peer(rank);
            let known = PeerPicture {
                last: peer.last + short,
                short,
                lateness_ns: ns(peer.lateness),
                waited_ns: ns(peer.waited),
            };
            self.board.show_peer(rank, &known);
        }
    }

    /// Shows the `error` that ended the communicator; a close is no error.
    pub fn fail(&self, error: &Error) {
        if !matches!(error, Error::Closed) {
            self.board.show_fault(&error.to_string());
        }
    }
}

/// The part of a job that the board shows.
pub struct JobShown {
    call: Shown,
    collective: u8,
    is_message: bool,
}

impl JobShown {
    #[inline]
    pub fn of(job: &Job) -> JobShown {
        let collective = job.collective;
        let is_rooted = collective.has_root();
        let is_message = matches!(collective, Collective::Send | Collective::Recv);
        let has_rank = (is_rooted || is_message) && job.root != ANY_SOURCE;
        let of_host = job.input.bytes().max(job.output.bytes());
        let bytes = job.gate.as_ref().map_or(of_host, |gate| gate.bytes());
        JobShown {
            call: Shown {
                kind: KindOfCall::pack(collective, job.dtype, &job.way, job.registers),
                bytes: bytes as u64,
                sequence: 0,
                root: Shown::root(has_rank.then_some(job.root)),
                tag: job.tag,
            },
            collective: match job.registers {
                true => UNCOUNTED,
                false => collective as u8,
            },
            is_message,
        }
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
