//! Pairs at distances that are powers of two, for any number of ranks.
//!
//! The largest power of two ranks, the *core*, work in pairs. If there are `extra` ranks beyond the
//! core, the first `2 * extra` ranks *fold* first: each even rank sends its data to the odd rank
//! after it, which is in the core, and receives the result from that rank at the end (Rabenseifner,
//! "Optimization of collective reduction operations", 2004).

#![forbid(unsafe_code)]

use super::build::{Builder, input, output};
use super::spec::{Schedule, Spec};

/// The role of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HalvingRole {
    /// Sends its data to rank `into`, and receives the result from it.
    Folded { into: u32 },
    /// Works at this place of the core, for itself and perhaps for one folded rank.
    Core { place: u32, folded: Option<u32> },
}

/// The division of the ranks into core and folded ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halving {
    /// Number of ranks in the core: a power of two.
    pub core: u32,
    extra: u32,
}

impl Halving {
    pub(super) fn new(world_size: u32) -> Halving {
        let core = 1 << world_size.ilog2();
        Halving {
            core,
            extra: world_size - core,
        }
    }

    /// Returns the number of rounds of one pass over the core.
    pub(super) fn depth(&self) -> u32 {
        self.core.ilog2()
    }

    /// Returns the number of rounds of the fold, which is also that of the unfold.
    pub(super) fn fold_rounds(&self) -> u32 {
        u32::from(self.extra > 0)
    }

    pub(super) fn part(&self, rank: u32) -> HalvingRole {
        if rank >= 2 * self.extra {
            HalvingRole::Core {
                place: rank - self.extra,
                folded: None,
            }
        } else if rank % 2 == 1 {
            HalvingRole::Core {
                place: rank / 2,
                folded: Some(rank - 1),
            }
        } else {
            HalvingRole::Folded { into: rank + 1 }
        }
    }

    /// Returns the rank at a place of the core.
    pub(super) fn rank_at(&self, place: u32) -> u32 {
        if place < self.extra {
            2 * place + 1
        } else {
            place + self.extra
        }
    }
}

/// Generates the all-reduce of a core algorithm: fold, `work`, unfold, over `chunks` chunks.
///
/// `work` gets the division of the ranks, this rank's place, and whether the rank's partial result
/// is already in the output. The work takes `core_rounds` rounds, the first after the fold.
pub(super) fn all_reduce(
    spec: &Spec,
    chunks: u32,
    core_rounds: u32,
    work: impl Fn(&mut Builder, &Halving, u32, bool),
) -> Schedule {
    let halving = Halving::new(spec.world_size);
    let (own, result) = (input(0, chunks), output(0, chunks));
    let mut build = Builder::vector(spec, chunks);
    let fold_rounds = halving.fold_rounds();
    let unfold_round = fold_rounds + core_rounds;
    match halving.part(spec.rank) {
        HalvingRole::Folded { into } => {
            build.send(into, own);
            build.round(unfold_round);
            build.recv(into, result);
        }
        HalvingRole::Core { place, folded } => {
            if let Some(peer) = folded {
                build.recv_reduce(peer, own, result);
            }
            build.round(fold_rounds);
            work(&mut build, &halving, place, folded.is_some());
            if let Some(peer) = folded {
                build.round(unfold_round);
                build.send(peer, result);
            }
        }
    }
    build.finish(unfold_round + fold_rounds)
}
