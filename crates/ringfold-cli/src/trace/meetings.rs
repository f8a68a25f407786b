//! The collectives that ranks made together, and the rank that entered each of them last.
//!
//! Compares the beginnings of all ranks on one clock, which show more than a single rank's view: a
//! rank of a ring hears only from the rank before it.

use std::collections::BTreeMap;

use super::clocks::Clocks;
use super::files::Recorded;
use super::ranks::{Key, Ranks, key};
use crate::numbers::time;

/// The calls that at least two ranks have recorded.
pub struct Meetings {
    known: BTreeMap<(Key, u64), Meeting>,
}

/// One call of several ranks.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// The board and the call on it of each rank that has recorded the call, in order of beginning.
    pub calls: Vec<(usize, usize)>,
    /// Time at which the first rank entered, in microseconds; `last_us` is that of the last rank.
    pub first_us: f64,
    pub last_us: f64,
}

impl Meeting {
    /// Returns the time between the first and the last rank's entry.
    pub fn late_us(&self) -> f64 {
        self.last_us - self.first_us
    }

    /// Returns the board of the rank that entered last, and its call there.
    pub fn last(&self) -> (usize, usize) {
        *self.calls.last().expect("a meeting has calls")
    }
}

impl Meetings {
    /// Finds the calls that at least two ranks have recorded.
    pub fn find(boards: &[Recorded], clocks: &Clocks) -> Meetings {
        let begin_us = |&(board, call): &(usize, usize)| {
            let Recorded { picture, calls } = &boards[board];
            clocks.us(picture.clock, calls[call].begin_ns)
        };
        let mut places: BTreeMap<(Key, u64), Vec<(usize, usize)>> = BTreeMap::new();
        for (index, board) in boards.iter().enumerate() {
            let calls = board.calls.iter().enumerate();
            for (place, call) in calls.filter(|(_, call)| !call.kind.is_message()) {
                let meeting = places
                    .entry((key(&board.picture), call.sequence))
                    .or_default();
                meeting.push((index, place));
            }
        }
        let meetings = places.into_iter().filter(|(_, calls)| calls.len() > 1);
        let known = meetings.map(|(name, mut calls)| {
            calls.sort_by(|one, other| begin_us(one).total_cmp(&begin_us(other)));
            let (first_us, last_us) = (begin_us(&calls[0]), begin_us(&calls[calls.len() - 1]));
            let meeting = Meeting {
                calls,
                first_us,
                last_us,
            };
            (name, meeting)
        });
        Meetings {
            known: known.collect(),
        }
    }

    /// Returns call `sequence` of a communicator, if at least two ranks have recorded it.
    pub fn of(&self, communicator: Key, sequence: u64) -> Option<&Meeting> {
        self.known.get(&(communicator, sequence))
    }

    /// Returns all calls that at least two ranks have recorded.
    pub fn all(&self) -> impl Iterator<Item = (&(Key, u64), &Meeting)> {
        self.known.iter()
    }

    /// Describes the late ranks.
    pub fn findings(&self, ranks: &Ranks) -> Vec<String> {
        let mut late: BTreeMap<usize, (usize, f64)> = BTreeMap::new();
        for meeting in self.known.values() {
            let (board, _) = meeting.last();
            let (times, us) = late.entry(ranks.process_of[board]).or_default();
            *times += 1;
            *us += meeting.late_us();
        }
        let calls = self.known.len();
        let mut late: Vec<_> = late.into_iter().collect();
        late.sort_by(|(_, (_, one)), (_, (_, other))| other.total_cmp(one));
        let line = |(process, (times, us)): (usize, (usize, f64))| {
            format!(
                "rank {} was the last to enter {times} of {calls} collectives, by {} on average, \
                 {} in total",
                ranks.processes[process].rank,
                time(1e3 * us / times as f64),
                time(1e3 * us)
            )
        };
        late.into_iter().take(RANKS_NAMED).map(line).collect()
    }
}

/// Maximum number of late ranks to describe.
const RANKS_NAMED: usize = 8;
