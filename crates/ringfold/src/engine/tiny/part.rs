//! One rank's part in a tiny call: the schedules over published memory of one slice, as three
//! answers.
//!
//! The answers are: what the rank publishes, which ranks it waits for, and how it uses their data.
//! Every collective has one synchronisation, so these answers are complete. Blocks are named by
//! number; the caller knows their length.

#![forbid(unsafe_code)]

use crate::types::{Algorithm, Collective};

/// The phase in which an input of one piece is published, as in `schedule::staged`.
const WHOLE: u8 = 0;

/// The phase in which all blocks for others are published (blocks before the rank's own may be
/// published a phase earlier).
const BLOCKS: u8 = 1;

/// The data that a rank publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publishes {
    /// Nothing: the rank only announces its call.
    Presence,
    /// All of its input, as one piece.
    Input,
    /// The blocks of its input that are not its own.
    Blocks,
}

/// The ranks that a rank waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// None: the rank returns at once.
    None,
    /// The root.
    Root,
    /// All others.
    Others,
}

/// The use of the data that the awaited ranks have published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumes {
    /// Nothing.
    Nothing,
    /// This block of all ranks, including its own, combined as a tree.
    Folded(usize),
    /// This block of each awaited rank, copied into the output's block of that rank.
    Collected(usize),
    /// This block of the root, as the whole output.
    Fetched(usize),
}

/// One rank's part in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TinyRole {
    /// The data that the rank publishes.
    pub publishes: Publishes,
    /// The ranks that it waits for.
    pub waits_for: WaitsFor,
    /// The phase that the awaited ranks must have reached.
    pub phase: u8,
    /// The use of the published data.
    pub consumes: Consumes,
    /// The local copy: this block of the input to that block of the output.
    pub kept: Option<(usize, usize)>,
}

impl TinyRole {
    /// Returns the part of `rank` in `collective`, if tiny calls of it exist.
    pub fn new(collective: Collective, rank: usize, root: usize) -> Option<TinyRole> {
        use Collective::{
            AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter,
            Scatter,
        };
        let is_root = rank == root;
        let part = |publishes, waits_for, consumes, kept| {
            let phase = match collective {
                ReduceScatter | AllToAll | Scatter => BLOCKS,
                _ => WHOLE,
            };
            Some(TinyRole {
                publishes,
                waits_for,
                phase,
                consumes,
                kept,
            })
        };
        use {Consumes::*, Publishes::*};
        let (others, root_only, none) = (WaitsFor::Others, WaitsFor::Root, WaitsFor::None);
        match collective {
            Barrier => part(Input, others, Nothing, None),
            AllReduce => part(Input, others, Folded(0), None),
            Reduce if is_root => part(Presence, others, Folded(0), None),
            AllGather => part(Input, others, Collected(0), Some((0, rank))),
            Gather if is_root => part(Presence, others, Collected(0), Some((0, rank))),
            Reduce | Gather => part(Input, none, Nothing, None),
            ReduceScatter => part(Blocks, others, Folded(rank), None),
            AllToAll => part(Blocks, others, Collected(rank), Some((rank, rank))),
            Broadcast if is_root => part(Input, none, Nothing, Some((0, 0))),
            Broadcast => part(Presence, root_only, Fetched(0), None),
            Scatter if is_root => part(Blocks, none, Nothing, Some((rank, 0))),
            Scatter => part(Presence, root_only, Fetched(rank), None),
            _ => None,
        }
    }

    /// Whether the rank waits for `peer`.
    pub fn waits_for(&self, peer: usize, rank: usize, root: usize) -> bool {
        match self.waits_for {
            WaitsFor::None => false,
            WaitsFor::Root => peer == root,
            WaitsFor::Others => peer != rank,
        }
    }
}

/// Returns the algorithm of tiny calls: the schedule that they write out.
pub const fn algorithm(collective: Collective) -> Algorithm {
    match collective {
        Collective::AllReduce => Algorithm::OneShot,
        Collective::Reduce => Algorithm::Flat,
        _ => Algorithm::Direct,
    }
}

/// Returns the number of blocks of a rank's input.
pub const fn input_blocks(collective: Collective, world_size: usize) -> usize {
    match collective {
        Collective::ReduceScatter | Collective::Scatter | Collective::AllToAll => world_size,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Access, Action, AwaitedPeers, Schedule, Spec};

    /// Returns the number of blocks that a rank of three publishes.
    fn blocks_published(part: &TinyRole, collective: Collective) -> u32 {
        match part.publishes {
            Publishes::Presence => 0,
            Publishes::Input if collective == Collective::Barrier => 0,
            Publishes::Input => 1,
            Publishes::Blocks => 2,
        }
    }

    /// Checks that every part matches the schedule of the same collective.
    #[test]
    fn parts_are_the_schedules_written_out() {
        for &collective in Collective::ALL {
            for (rank, root) in [(0, 0), (1, 0), (2, 0), (1, 1), (0, 2)] {
                let Some(part) = TinyRole::new(collective, rank, root) else {
                    let shared = Schedule::methods(collective, Access::Staged).count();
                    assert_eq!(shared, 0, "{collective}");
                    continue;
                };
                let schedule = Schedule::new(Spec {
                    rank: rank as u32,
                    root: root as u32,
                    ..Spec::new(collective, algorithm(collective), Access::Staged, 3)
                })
                .expect("a schedule");
                let text = format!("{collective}, rank {rank}, root {root}: {part:?}");
                let actions: Vec<_> = schedule.channels[0].iter().map(|s| s.action).collect();
                let mut published = 0;
                let mut last_phase = None;
                let mut awaited = [false; 3];
                let mut taken = Consumes::Nothing;
                let mut kept = None;
                for action in actions {
                    match action {
                        Action::Publish { span, phase, .. } => {
                            published += span.len;
                            last_phase = Some(phase);
                        }
                        Action::Await { peers, phase } => {
                            assert_eq!(phase, part.phase, "{text}");
                            for (peer, awaited) in awaited.iter_mut().enumerate() {
                                *awaited |= match peers {
                                    AwaitedPeers::Others => peer != rank,
                                    AwaitedPeers::One(one) => peer == one as usize,
                                };
                            }
                        }
                        Action::CopyFrom { first, .. } => {
                            taken = match part.waits_for {
                                WaitsFor::Root => Consumes::Fetched(first as usize),
                                _ => Consumes::Collected(first as usize),
                            };
                        }
                        Action::ReduceFrom { own, .. } => {
                            taken = Consumes::Folded(own.first as usize)
                        }
                        Action::Copy { from, into } => {
                            kept = Some((from.first as usize, into.first as usize));
                        }
                        other => panic!("{text}: {other:?}"),
                    }
                }
                assert_eq!(published, blocks_published(&part, collective), "{text}");
                let is_heard = part.publishes != Publishes::Presence;
                assert_eq!(last_phase.is_some(), is_heard, "{text}");
                assert!(last_phase.is_none_or(|phase| phase == part.phase), "{text}");
                for (peer, awaited) in awaited.into_iter().enumerate() {
                    assert_eq!(part.waits_for(peer, rank, root), awaited, "{text}");
                }
                assert_eq!((taken, kept), (part.consumes, part.kept), "{text}");
            }
        }
    }
}
