//! Schedules generated one round at a time, for worlds whose steps are too many to store: a ring of
//! 10,000 ranks has 10⁸ messages. The whole schedule is generated from the same rounds, so the
//! algorithm is written once.

#![forbid(unsafe_code)]

use super::action::Step;
use super::build::{Builder, ByRound};
use super::catalogue;
use super::spec::{BufferCut, Spec};
use crate::error::Result;

/// The steps of all ranks, generated for one rank and one round at a time.
pub struct Rounds {
    algorithm: &'static ByRound,
    spec: Spec,
    build: Builder,
}

impl Rounds {
    /// Creates the rounds of `spec` for any rank; `None` if its schedules are only generated whole.
    ///
    /// # Errors
    /// The errors of [`Schedule::new`](super::Schedule::new).
    pub fn new(spec: &Spec) -> Result<Option<Rounds>> {
        let algorithm = catalogue::by_round(spec)?;
        Ok(algorithm.map(|algorithm| {
            let (input, output) = (algorithm.cuts)(spec.world_size);
            Rounds {
                algorithm,
                spec: spec.clone(),
                build: Builder::new(spec, input, output),
            }
        }))
    }

    /// Returns the division of input and output.
    pub fn cuts(&self) -> (BufferCut, BufferCut) {
        (self.algorithm.cuts)(self.spec.world_size)
    }

    /// Returns the number of rounds.
    pub fn count(&self) -> u32 {
        (self.algorithm.rounds)(self.spec.world_size)
    }

    /// Returns the steps of `rank` in `round`, in the order of issue.
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
    use crate::schedule::Schedule;
    use crate::types::{Access, Algorithm, Collective};

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
                    let whole = Schedule::new(spec.clone()).unwrap();
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
