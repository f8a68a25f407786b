//! Writes the timeline in the Trace Event Format.
//!
//! A rank is a process. Each of its communicators is a track, with a complete slice (`X`) for each
//! collective, which run one after the other; messages between two ranks, which overlap, have a
//! track of asynchronous slices (`b`, `e`). An arrow leads from the beginning of the rank that
//! entered a call last to the end of each rank that waited in the call, and from each message's
//! send to its receive. Times are microseconds since the first call of all.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use ringfold::Collective;
use ringfold::internals::board::{Ended, RecordedCall};
use serde_json::{Value, json};

use super::clocks::Clocks;
use super::files::Recorded;
use super::meetings::Meetings;
use super::ranks::{Key, Ranks, key};
use crate::numbers::bytes_label;
use crate::plot::events::{self, Moment, Track};

/// The data of a timeline.
struct TracedJob<'a> {
    boards: &'a [Recorded],
    ranks: &'a Ranks,
    clocks: &'a Clocks,
    meetings: &'a Meetings,
}

/// Writes the timeline to `path`.
pub fn write(
    path: &Path,
    boards: &[Recorded],
    ranks: &Ranks,
    clocks: &Clocks,
    meetings: &Meetings,
) -> Result<()> {
    let timeline = TracedJob {
        boards,
        ranks,
        clocks,
        meetings,
    };
    let slices = (0..boards.len()).flat_map(|board| timeline.slices(board));
    let events = timeline.names().into_iter().chain(slices);
    events::write(
        path,
        events.chain(timeline.waits()).chain(timeline.messages()),
    )
}

impl TracedJob<'_> {
    /// Returns the names of processes and tracks, and marks for failed communicators.
    fn names(&self) -> Vec<Value> {
        let processes = self.ranks.processes.iter().enumerate();
        let processes =
            processes.flat_map(|(number, process)| events::process(number, &process.name));
        let boards = self.boards.iter().enumerate();
        let boards = boards.flat_map(|(board, Recorded { picture, .. })| {
            let name = format!(
                "communicator {}: rank {} of {}, {}",
                self.ranks.number(key(picture)),
                picture.rank,
                picture.world_size,
                picture.transport
            );
            let failure = match &picture.ended {
                Ended::Failed(error) => Some(self.failure(board, error)),
                _ => None,
            };
            events::track(self.track(board), &name)
                .into_iter()
                .chain(failure)
        });
        processes.chain(boards).collect()
    }

    /// Returns a mark after the last call of a communicator that has ended by an error.
    fn failure(&self, board: usize, error: &str) -> Value {
        let Recorded { picture, calls } = &self.boards[board];
        let ends = calls
            .iter()
            .map(|call| call.end_ns.unwrap_or(call.begin_ns));
        let moment = self.moment(board, ends.max().unwrap_or(picture.made_ns));
        let mut event = events::event("i", &format!("failed: {error}"), "failure", moment);
        event["s"] = "t".into();
        event
    }

    /// Returns the track of a board.
    fn track(&self, board: usize) -> Track {
        Track {
            process: self.ranks.process_of[board],
            number: self.ranks.number(key(&self.boards[board].picture)),
        }
    }

    /// Returns a time on a board's track.
    fn moment(&self, board: usize, ns: u64) -> Moment {
        (self.track(board), self.us(board, ns))
    }

    fn us(&self, board: usize, ns: u64) -> f64 {
        self.clocks.us(self.boards[board].picture.clock, ns)
    }

    /// Returns the slices of one board's calls.
    fn slices(&self, board: usize) -> Vec<Value> {
        let Recorded { picture, calls } = &self.boards[board];
        let communicator = key(picture);
        let times = calls
            .iter()
            .map(|call| call.end_ns.unwrap_or(call.begin_ns));
        let last_ns = times.max().unwrap_or_default();
        let mut free_ns = 0;
        let mut events = Vec::new();
        for (number, call) in calls.iter().enumerate() {
            let end_ns = call.end_ns.unwrap_or(last_ns.max(call.begin_ns));
            let arguments = self.arguments(board, communicator, call);
            let name = match call.end_ns {
                Some(_) => name(call),
                None => format!("{} (never ended)", name(call)),
            };
            if call.kind.is_message() {
                for (phase, ns) in [("b", call.begin_ns), ("e", end_ns)] {
                    let mut event = events::event(phase, &name, "message", self.moment(board, ns));
                    event["id"] = format!("{board}.{number}").into();
                    event["args"] = arguments.clone();
                    events.push(event);
                }
                continue;
            }
            // Calls run one after the other; a call that was submitted early waits for its turn.
            let begin_ns = call.begin_ns.max(free_ns).min(end_ns);
            free_ns = free_ns.max(end_ns);
            let mut arguments = arguments;
            arguments["queued_us"] = us(begin_ns - call.begin_ns).into();
            let (begin, end_us) = (self.moment(board, begin_ns), self.us(board, end_ns));
            let category = call.kind.collective.name();
            events.push(events::slice(&name, category, begin, end_us, arguments));
        }
        events
    }

    fn arguments(&self, board: usize, communicator: Key, call: &RecordedCall) -> Value {
        let kind = &call.kind;
        let mut arguments = json!({
            "sequence": call.sequence,
            "bytes": call.bytes,
            "dtype": kind.dtype.name(),
        });
        if let Some(root) = call.root {
            let name = if kind.is_message() { "peer" } else { "root" };
            arguments[name] = self.ranks.name(communicator, root).into();
        }
        if kind.is_message() {
            arguments["tag"] = call.tag.into();
            return arguments;
        }
        arguments["algorithm"] = kind.method.name().into();
        arguments["protocol"] = kind.protocol.name().into();
        arguments["waited_us"] = us(call.waited_ns).into();
        if let Some((rank, lateness_ns)) = call.late {
            arguments["waited_for"] = self.ranks.name(communicator, rank).into();
            arguments["waited_for_us"] = us(lateness_ns).into();
        }
        if let Some(meeting) = self.meetings.of(communicator, call.sequence) {
            let (last, _) = meeting.last();
            let rank = self.boards[last].picture.rank;
            arguments["last_to_enter"] = self.ranks.name(communicator, rank).into();
            arguments["late_by_us"] = meeting.late_us().into();
            let own = self.us(board, call.begin_ns) - meeting.first_us;
            arguments["entered_after_first_us"] = own.into();
        }
        arguments
    }

    /// Returns arrows from the rank that entered a call last to the ranks that waited in it.
    fn waits(&self) -> impl Iterator<Item = Value> {
        let meetings = self.meetings.all();
        meetings.flat_map(move |(((job, _), sequence), meeting)| {
            let late = meeting.last();
            let waited = meeting.calls.iter().filter(move |(board, call)| {
                let call = &self.boards[*board].calls[*call];
                *board != late.0 && call.waited_ns > 0 && call.end_ns.is_some()
            });
            waited.flat_map(move |waiting| {
                let begin = self.moment(late.0, self.call(late).begin_ns);
                let end_ns = self.call(*waiting).end_ns.unwrap_or_default();
                let id = format!("{job:x}.{sequence}.{}", waiting.0);
                events::arrow("late", &id, begin, self.moment(waiting.0, end_ns))
            })
        })
    }

    fn call(&self, (board, call): (usize, usize)) -> &RecordedCall {
        &self.boards[board].calls[call]
    }

    /// Returns arrows from sends to receives. Between two ranks, messages of a tag are received in
    /// the order in which they are sent.
    fn messages(&self) -> Vec<Value> {
        // Keys: communicator, sender, receiver and tag.
        type Ends = BTreeMap<(Key, usize, usize, u32), Vec<Moment>>;
        let (mut sent, mut received) = (Ends::new(), Ends::new());
        for (board, Recorded { picture, calls }) in self.boards.iter().enumerate() {
            for call in calls.iter().filter(|call| call.kind.is_message()) {
                let (Some(peer), Some(end_ns)) = (call.root, call.end_ns) else {
                    continue;
                };
                let (ends, pair, ns) = match call.kind.collective {
                    Collective::Send => (&mut sent, (picture.rank, peer), call.begin_ns),
                    _ => (&mut received, (peer, picture.rank), end_ns),
                };
                let name = (key(picture), pair.0, pair.1, call.tag);
                ends.entry(name).or_default().push(self.moment(board, ns));
            }
        }
        events::messages(&sent, &received)
    }
}

fn name(call: &RecordedCall) -> String {
    let size = bytes_label(call.bytes as f64);
    match (call.kind.registers, call.kind.collective) {
        (true, _) => "register memory".into(),
        (false, Collective::Barrier) => "barrier".into(),
        (false, collective) => format!("{collective} {size}"),
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}
