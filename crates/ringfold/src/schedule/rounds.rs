//! Schedules that are generated one round at a time, for worlds whose steps are too many to store:
//! a ring of 10,000 ranks has 10⁸ messages. The whole schedule is all of its rounds, so there is
//! one text of the algorithm.

#![forbid(unsafe_code)]

use super::build::Builder;
use super::{Cut, Schedule, Spec, Step, catalogue};
use crate::error::Result;

/// An algorithm for two ranks and more whose steps in a round follow from the round.
pub(super) struct ByRound {
    /// The cut of input and output for this many ranks.
    pub cuts: fn(u32) -> (Cut, Cut),
    /// The number of rounds for this many ranks.
    pub rounds: fn(u32) -> u32,
    /// Writes the steps of a rank in a round.
    pub write: fn(&mut Builder, &Spec, u32),
}

impl ByRound {
    /// All rounds.
    pub fn whole(&self, spec: &Spec) -> Schedule {
        let (input, output) = (self.cuts)(spec.world_size);
        let rounds = (self.rounds)(spec.world_size);
        let mut build = Builder::new(spec, input, output);
        for round in 0..rounds {
            build.round(round);
            (self.write)(&mut build, spec, round);
        }
        build.finish(rounds)
    }
}

/// The steps of all ranks, of which those of one rank in one round exist at a time.
pub struct Rounds {
    algorithm: &'static ByRound,
    spec: Spec,
    build: Builder,
}

impl Rounds {
    /// The steps of `spec`, whatever its rank; `None` if its schedules exist as a whole only.
    ///
    /// # Errors
    /// Those of [`Schedule::new`].
    pub fn new(spec: &Spec) -> Result<Option<Rounds>> {
        let algorithm = catalogue::by_round(spec)?;
        Ok(algorithm.map(|algorithm| {
            let (input, output) = (algorithm.cuts)(spec.world_size);
            Rounds {
                algorithm,
                spec: *spec,
                build: Builder::new(spec, input, output),
            }
        }))
    }

    /// How input and output are cut.
    pub fn cuts(&self) -> (Cut, Cut) {
        (self.algorithm.cuts)(self.spec.world_size)
    }

    /// The number of rounds.
    pub fn count(&self) -> u32 {
        (self.algorithm.rounds)(self.spec.world_size)
    }

    /// What `rank` does in `round`, in the order of issue.
    #[inline]
    pub fn steps(&mut self, rank: u32, round: u32) -> &[Step] {
        self.spec.rank = rank;
        self.build.restart(round);
        (self.algorithm.write)(&mut self.build, &self.spec, round);
        self.build.steps()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Access;
    use crate::types::{Algorithm, Collective};

    #[test]
    fn rounds_one_by_one_are_the_schedule() {
        for collective in [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::AllGather,
        ] {
            for world_size in 2..=9 {
                let mut spec = Spec::new(collective, Algorithm::Ring, Access::Messages, world_size);
                let mut rounds = Rounds::new(&spec).unwrap().expect("a ring");
                for rank in 0..world_size {
                    spec.rank = rank;
                    let whole = Schedule::new(spec).unwrap();
                    assert_eq!(
                        (whole.rounds, whole.input, whole.output),
                        (rounds.count(), rounds.cuts().0, rounds.cuts().1)
                    );
                    let all: Vec<Step> = (0..rounds.count())
                        .flat_map(|round| rounds.steps(rank, round).to_vec())
                        .collect();
                    assert_eq!(all, whole.channels[0]);
                }
            }
        }
    }
}
