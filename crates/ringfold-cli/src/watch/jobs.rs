//! Which processes are ranks of one job, and which rank each is.
//!
//! The processes of a job share communicators. PyTorch's backend makes one for each group, with
//! numbers of ranks of its own, so processes that share any communicator belong together, and a
//! process has the rank that it has in the largest one.

use std::collections::BTreeMap;
use std::path::Path;

use ringfold::internals::board::{Ended, Found, Picture, find, now_ns};

/// All that is shown on this host at one moment.
#[derive(Debug)]
pub struct Sample {
    /// The time of the look, by the host's clock.
    pub at_ns: u64,
    /// The jobs, the oldest first: those that stay keep their places when others come and go.
    pub jobs: Vec<RunningJob>,
    /// Processes whose boards cannot be read, and why.
    pub unreadable: Vec<(u32, String)>,
}

/// The processes of a job on this host.
#[derive(Debug)]
pub struct RunningJob {
    /// The number that all ranks of its largest communicator have.
    pub number: u64,
    /// The ranks of that communicator, on all hosts.
    pub world_size: usize,
    /// The time at which the first of them was made, by this host's clock.
    pub made_ns: u64,
    /// The job's processes on this host, by rank.
    pub processes: Vec<Process>,
}

/// A process, with a board for each communicator that it is in.
#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    /// Its rank in the largest communicator.
    pub rank: usize,
    pub boards: Vec<Picture>,
}

impl Sample {
    /// What there is now; with `keeps_peers`, also how late each rank was as others saw it.
    pub fn take(keeps_peers: bool) -> Sample {
        let found = find(Path::new("/"), keeps_peers);
        Sample::of(found, now_ns())
    }

    /// Whether the host shows no rank.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.unreadable.is_empty()
    }

    fn of(found: Vec<Found>, at_ns: u64) -> Sample {
        let mut unreadable = Vec::new();
        let mut processes: BTreeMap<u32, Vec<Picture>> = BTreeMap::new();
        for Found { pid, picture } in found {
            match picture {
                Ok(picture) => processes.entry(pid).or_default().push(picture),
                Err(why) => unreadable.push((pid, why)),
            }
        }
        Sample {
            at_ns,
            jobs: jobs(processes),
            unreadable,
        }
    }
}

/// Processes by number, and their boards.
type Members = Vec<(u32, Vec<Picture>)>;

/// Groups processes that share a communicator.
fn jobs(processes: BTreeMap<u32, Vec<Picture>>) -> Vec<RunningJob> {
    let mut groups: Vec<(Vec<u64>, Members)> = Vec::new();
    for (pid, boards) in processes {
        let mut numbers: Vec<u64> = boards.iter().map(|board| board.job).collect();
        let mut members = vec![(pid, boards)];
        let shares = |others: &[u64]| others.iter().any(|number| numbers.contains(number));
        let (joined, apart) = groups.into_iter().partition(|(others, _)| shares(others));
        groups = apart;
        for (others, processes) in joined {
            numbers.extend(others);
            members.extend(processes);
        }
        groups.push((numbers, members));
    }
    let mut jobs: Vec<RunningJob> = groups
        .into_iter()
        .map(|(_, members)| job(members))
        .collect();
    jobs.sort_by_key(|job| (job.made_ns, job.number));
    jobs
}

fn job(members: Members) -> RunningJob {
    let boards = members.iter().flat_map(|(_, boards)| boards);
    let main = boards
        .min_by_key(|board| order(board))
        .expect("a process has a board");
    let (number, communicator, world_size) = (main.job, main.communicator, main.world_size);
    let boards = members.iter().flat_map(|(_, boards)| boards);
    let made_ns = boards.map(|board| board.made_ns).min();
    let is_main = |board: &&Picture| (board.job, board.communicator) == (number, communicator);
    let process = |(pid, boards): (u32, Vec<Picture>)| {
        let own = boards.iter().find(is_main);
        let own = own.or_else(|| boards.iter().min_by_key(|board| order(board)));
        Process {
            pid,
            rank: own.map_or(0, |board| board.rank),
            boards,
        }
    };
    let mut processes: Vec<Process> = members.into_iter().map(process).collect();
    processes.sort_by_key(|process| (process.rank, process.pid));
    RunningJob {
        number,
        world_size,
        made_ns: made_ns.unwrap_or_default(),
        processes,
    }
}

/// The largest communicators first, and of these the first one made.
fn order(board: &Picture) -> (std::cmp::Reverse<usize>, u64, u64) {
    (
        std::cmp::Reverse(board.world_size),
        board.made_ns,
        board.job,
    )
}

impl RunningJob {
    /// The job's name for people.
    pub fn name(&self) -> String {
        format!("{:012x}", self.number >> 16)
    }

    /// What runs in it, as its first process says.
    pub fn program(&self) -> &str {
        let board = self
            .processes
            .first()
            .and_then(|process| process.boards.first());
        board.map_or("", |board| &board.program)
    }

    /// How late the other processes of this host found `process`: in how many calls that were
    /// timed, and by how much together.
    pub fn lateness_of(&self, process: &Process) -> (u64, u64) {
        let others = self
            .processes
            .iter()
            .filter(|other| other.pid != process.pid);
        let theirs = others.flat_map(|other| &other.boards);
        let mut found = (0u64, 0u64);
        for board in theirs {
            let is_same =
                |own: &&Picture| (own.job, own.communicator) == (board.job, board.communicator);
            let own = process.boards.iter().find(is_same);
            if let Some(peer) = own.and_then(|own| board.peers.get(own.rank)) {
                found.0 += peer.last.saturating_sub(peer.short);
                found.1 = found.1.saturating_add(peer.lateness_ns);
            }
        }
        found
    }
}

impl Process {
    /// The host that it is on.
    pub fn host(&self) -> &str {
        self.boards.first().map_or("", |board| &board.host)
    }

    /// The board of the call that it has waited in longest, or else the one with the last call.
    pub fn busiest(&self) -> Option<&Picture> {
        let since = |board: &&Picture| {
            let waiting = board.waiting.as_ref().map(|waiting| waiting.since_ns);
            (waiting.unwrap_or(u64::MAX), u64::MAX - board.begun)
        };
        self.boards.iter().min_by_key(since)
    }

    /// The error that has ended one of its communicators.
    pub fn fault(&self) -> Option<&str> {
        self.boards.iter().find_map(|board| match &board.ended {
            Ended::Failed(error) => Some(error.as_str()),
            Ended::No | Ended::Closed => None,
        })
    }
}
