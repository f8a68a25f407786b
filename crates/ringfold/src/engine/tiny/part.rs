//! What one rank does in a tiny call: the schedules over published memory of one slice, as three answers.
//!
//! Whom it tells what, for whom it waits, and what it makes of what it reads. Every collective has one synchronisation, so
//! these say everything; blocks are named by number, the caller knows how long they are.

#![forbid(unsafe_code)]

use crate::types::{Algorithm, Collective};

/// The phase in which an input of one piece is published; `schedule::direct`, `flat` and `one_shot` have the same.
const WHOLE: u8 = 0;

/// The phase in which all blocks for others are published (those before the own one may come a phase earlier).
const BLOCKS: u8 = 1;

/// What a rank publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nothing: it only says which call it is in.
    Presence,
    /// All of its input, as one piece.
    Input,
    /// The blocks of its input that are not its own.
    Blocks,
}

/// For whom a rank waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// For nobody: it returns at once.
    Nobody,
    /// For the root.
    Root,
    /// For all others.
    Others,
}

/// What a rank makes of what the awaited have published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nothing.
    Nothing,
    /// This block of all ranks, its own among them, combined in rank order.
    Folded(usize),
    /// This block of each of them, into the output's block of its rank.
    Collected(usize),
    /// This block of the root, as the whole output.
    Fetched(usize),
}

/// One rank's part in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it publishes.
    pub told: Told,
    /// For whom it waits.
    pub awaited: Awaited,
    /// The phase that these have reached then.
    pub phase: u8,
    /// What it makes of it.
    pub taken: Taken,
    /// What it copies at home: this block of its input to that block of its output.
    pub kept: Option<(usize, usize)>,
}

impl Part {
    /// The part of `rank` in `collective`, where tiny calls of it exist.
    pub fn new(collective: Collective, rank: usize, root: usize) -> Option<Part> {
        use Collective::{
            AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter,
            Scatter,
        };
        let is_root = rank == root;
        let part = |told, awaited, taken, kept| {
            let phase = match collective {
                ReduceScatter | AllToAll | Scatter => BLOCKS,
                _ => WHOLE,
            };
            Some(Part {
                told,
                awaited,
                phase,
                taken,
                kept,
            })
        };
        use {Awaited::*, Taken::*, Told::*};
        match collective {
            Barrier => part(Input, Others, Nothing, None),
            AllReduce => part(Input, Others, Folded(0), None),
            Reduce if is_root => part(Presence, Others, Folded(0), None),
            AllGather => part(Input, Others, Collected(0), Some((0, rank))),
            Gather if is_root => part(Presence, Others, Collected(0), Some((0, rank))),
            Reduce | Gather => part(Input, Nobody, Nothing, None),
            ReduceScatter => part(Blocks, Others, Folded(rank), None),
            AllToAll => part(Blocks, Others, Collected(rank), Some((rank, rank))),
            Broadcast if is_root => part(Input, Nobody, Nothing, Some((0, 0))),
            Broadcast => part(Presence, Root, Fetched(0), None),
            Scatter if is_root => part(Blocks, Nobody, Nothing, Some((rank, 0))),
            Scatter => part(Presence, Root, Fetched(rank), None),
            _ => None,
        }
    }

    /// Whether it waits for `peer`.
    pub fn awaits(&self, peer: usize, rank: usize, root: usize) -> bool {
        match self.awaited {
            Awaited::Nobody => false,
            Awaited::Root => peer == root,
            Awaited::Others => peer != rank,
        }
    }
}

/// The algorithm of tiny calls: the schedule that they are.
pub const fn algorithm(collective: Collective) -> Algorithm {
    match collective {
        Collective::AllReduce => Algorithm::OneShot,
        Collective::Reduce => Algorithm::Flat,
        _ => Algorithm::Direct,
    }
}

/// Into how many blocks a rank's input is divided.
pub const fn input_blocks(collective: Collective, world_size: usize) -> usize {
    match collective {
        Collective::ReduceScatter | Collective::Scatter | Collective::AllToAll => world_size,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Action, Medium, Peers, Schedule, Spec};

    /// Every part says what the schedule of the same collective says.
    #[test]
    fn parts_are_the_schedules_written_out() {
        for &collective in Collective::ALL {
            for (rank, root) in [(0, 0), (1, 0), (2, 0), (1, 1), (0, 2)] {
                let Some(part) = Part::new(collective, rank, root) else {
                    let shared = Schedule::algorithms(collective, Medium::Shared);
                    assert!(shared.is_empty(), "{collective}");
                    continue;
                };
                let schedule = Schedule::new(Spec {
                    collective,
                    algorithm: algorithm(collective),
                    medium: Medium::Shared,
                    world_size: 3,
                    rank: rank as u32,
                    root: root as u32,
                    domains: 1,
                })
                .expect("a schedule");
                let text = format!("{collective}, rank {rank}, root {root}: {part:?}");
                let actions: Vec<_> = schedule.channels[0].iter().map(|s| s.action).collect();
                let mut published = 0;
                let mut last_phase = None;
                let mut awaited = [false; 3];
                let mut taken = Taken::Nothing;
                let mut kept = None;
                for action in actions {
                    match action {
                        Action::Publish { span, phase } => {
                            published += span.len;
                            last_phase = Some(phase);
                        }
                        Action::Await { peers, phase } => {
                            assert_eq!(phase, part.phase, "{text}");
                            for (peer, awaited) in awaited.iter_mut().enumerate() {
                                *awaited |= match peers {
                                    Peers::Others => peer != rank,
                                    Peers::One(one) => peer == one as usize,
                                };
                            }
                        }
                        Action::CopyFrom { first, .. } => {
                            taken = match part.awaited {
                                Awaited::Root => Taken::Fetched(first as usize),
                                _ => Taken::Collected(first as usize),
                            };
                        }
                        Action::ReduceFrom { own, .. } => taken = Taken::Folded(own.first as usize),
                        Action::Copy { from, into } => {
                            kept = Some((from.first as usize, into.first as usize));
                        }
                        other => panic!("{text}: {other:?}"),
                    }
                }
                let due = match part.told {
                    Told::Presence => 0,
                    Told::Input if collective == Collective::Barrier => 0,
                    Told::Input => 1,
                    Told::Blocks => 2,
                };
                assert_eq!(published, due, "{text}");
                assert_eq!(last_phase.is_some(), part.told != Told::Presence, "{text}");
                assert!(last_phase.is_none_or(|phase| phase == part.phase), "{text}");
                for (peer, awaited) in awaited.into_iter().enumerate() {
                    assert_eq!(part.awaits(peer, rank, root), awaited, "{text}");
                }
                assert_eq!((taken, kept), (part.taken, part.kept), "{text}");
            }
        }
    }
}
