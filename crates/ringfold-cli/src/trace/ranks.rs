//! Determines which process is which rank of the job, and numbers the communicators.
//!
//! PyTorch's backend creates a communicator for each group, each with its own numbering of ranks. A
//! process has the rank that it has in the largest communicator.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ringfold::internals::board::Picture;

use super::files::Recorded;

/// Identifier of a communicator: the same on all its ranks, and different from all others.
pub type Key = (u64, u64);

/// Returns the communicator of a board.
pub fn key(board: &Picture) -> Key {
    (board.job, board.communicator)
}

/// The processes of a job.
pub struct Ranks {
    pub processes: Vec<TracedProcess>,
    /// Index of the process of each board.
    pub process_of: Vec<usize>,
    /// Index of the process of each rank of a communicator, if the process has left a file.
    members: BTreeMap<(Key, usize), usize>,
    /// The communicators, the largest first.
    communicators: Vec<Key>,
}

/// A process' rank in the job, and its name in the timeline.
pub struct TracedProcess {
    pub rank: usize,
    pub name: String,
}

impl Ranks {
    /// Determines the processes and communicators of all boards.
    pub fn of(boards: &[Recorded]) -> Ranks {
        let mut sizes: BTreeMap<Key, (Reverse<usize>, u64)> = BTreeMap::new();
        for Recorded { picture, .. } in boards {
            let made = (Reverse(picture.world_size), picture.made_calendar_ns);
            let known = sizes.entry(key(picture)).or_insert(made);
            *known = (*known).min(made);
        }
        let mut communicators: Vec<Key> = sizes.keys().copied().collect();
        communicators.sort_by_key(|key| sizes[key]);
        let place = |key: Key| communicators.iter().position(|other| *other == key);
        // Each process, with the place of its largest communicator and the board there.
        let mut mains: BTreeMap<([u64; 3], &str, u32), (usize, usize)> = BTreeMap::new();
        for (index, Recorded { picture, .. }) in boards.iter().enumerate() {
            let process = (picture.clock, picture.host.as_str(), picture.pid);
            let found = (place(key(picture)).unwrap_or(usize::MAX), index);
            let main = mains.entry(process).or_insert(found);
            *main = (*main).min(found);
        }
        let mut order: Vec<_> = mains.into_iter().collect();
        order
            .sort_by_key(|((.., pid), (place, board))| (*place, boards[*board].picture.rank, *pid));
        let number_of: BTreeMap<_, _> = order
            .iter()
            .enumerate()
            .map(|(number, (process, _))| (*process, number))
            .collect();
        let process_of: Vec<usize> = boards
            .iter()
            .map(|Recorded { picture, .. }| {
                number_of[&(picture.clock, picture.host.as_str(), picture.pid)]
            })
            .collect();
        let members = boards.iter().zip(&process_of);
        let members =
            members.map(|(board, process)| ((key(&board.picture), board.picture.rank), *process));
        Ranks {
            members: members.collect(),
            processes: order
                .iter()
                .map(|(_, (_, board))| TracedProcess::of(&boards[*board]))
                .collect(),
            process_of,
            communicators,
        }
    }

    /// Returns the process that is `rank` of a communicator; `None` if it has left no file.
    pub fn member(&self, communicator: Key, rank: usize) -> Option<usize> {
        self.members.get(&(communicator, rank)).copied()
    }

    /// Returns the communicator's number for users: 0 is the largest.
    pub fn number(&self, communicator: Key) -> usize {
        let place = self
            .communicators
            .iter()
            .position(|other| *other == communicator);
        place.unwrap_or(self.communicators.len())
    }

    /// Names `rank` of a communicator by its rank in the largest communicator.
    pub fn name(&self, communicator: Key, rank: usize) -> String {
        match self.member(communicator, rank) {
            Some(process) => format!("rank {}", self.processes[process].rank),
            None => format!("rank {rank} of communicator {}", self.number(communicator)),
        }
    }
}

impl TracedProcess {
    fn of(board: &Recorded) -> TracedProcess {
        let Picture {
            rank, host, pid, ..
        } = &board.picture;
        TracedProcess {
            rank: *rank,
            name: format!("rank {rank} ({host}, process {pid})"),
        }
    }
}
