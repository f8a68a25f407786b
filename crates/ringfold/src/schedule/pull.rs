//! Pull: the ranks read each other's memory where it lies, and each writes into its own only.
//!
//! As with [`push`](super::push) each rank says where its input and output lie, hears the same from all others, and nobody
//! returns before all have said that they are done. But here nobody writes to a peer: what a peer reduced is read from its
//! output. So it serves memory that can be read from outside and should not be written from there.
//!
//! Collectives in which one rank would have to read everything are not served: whoever has the data writes it as fast into
//! published memory, and one more core works.
//!
//! Reductions go in rank order, so the bits are those of [`direct`](super::direct).

#![forbid(unsafe_code)]

use super::build::{Builder, input, output};
use super::{Cut, Peers, Ranks, Schedule, Spec};

/// The phase in which it is known where the buffers lie.
const EXPOSED: u8 = 0;
/// The phase in which a rank's own chunk is reduced.
const REDUCED: u8 = 1;
/// The phase in which a rank is done with the memory of all others.
const DONE: u8 = 2;

/// Each rank reduces its chunk, then all ranks fetch the chunks of the others.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let (own, cut) = (spec.rank, Cut::Vector(spec.world_size));
    let mut build = exposed(spec, cut, cut);
    build.push_from(Ranks::All, input(own, 1), Ranks::One(own), output(own, 1));
    build.publish(input(0, 0), REDUCED);
    for peer in spec.others() {
        build.wait_for(Peers::One(peer), REDUCED);
        let chunk = output(peer, 1);
        build.push_from(Ranks::One(peer), chunk, Ranks::One(own), chunk);
    }
    done(build)
}

/// Each rank reads its chunk of the root's buffer, then the chunks of the others where those have put them.
pub(super) fn broadcast(spec: &Spec) -> Schedule {
    let (own, root, cut) = (spec.rank, spec.root, Cut::Vector(spec.world_size));
    let mut build = exposed(spec, cut, cut);
    let into = Ranks::One(own);
    if own == root {
        let all = spec.world_size;
        build.push_from(into, input(0, all), into, output(0, all));
        return done(build);
    }
    build.push_from(Ranks::One(root), input(own, 1), into, output(own, 1));
    build.publish(input(0, 0), REDUCED);
    for peer in spec.others() {
        if peer == root {
            build.push_from(Ranks::One(root), input(root, 1), into, output(root, 1));
        } else {
            build.wait_for(Peers::One(peer), REDUCED);
            let chunk = output(peer, 1);
            build.push_from(Ranks::One(peer), chunk, into, chunk);
        }
    }
    done(build)
}

/// Each rank fetches the blocks of all.
pub(super) fn all_gather(spec: &Spec) -> Schedule {
    let own = spec.rank;
    let mut build = exposed(spec, Cut::Blocks(1), Cut::Blocks(spec.world_size));
    for from in std::iter::once(own).chain(spec.others()) {
        let source = Ranks::One(from);
        build.push_from(source, input(0, 1), Ranks::One(own), output(from, 1));
    }
    done(build)
}

/// The beginning of all: everybody knows where everybody's buffers lie.
fn exposed(spec: &Spec, input: Cut, output: Cut) -> Builder {
    let mut build = Builder::new(spec, input, output);
    build.expose(EXPOSED);
    build.wait_for(Peers::Others, EXPOSED);
    build
}

/// The end: nobody reads anybody's memory any more.
fn done(mut build: Builder) -> Schedule {
    build.publish(input(0, 0), DONE);
    build.wait_for(Peers::Others, DONE);
    build.finish(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Action, Medium};
    use crate::types::{Algorithm, Collective};

    #[test]
    fn nobody_writes_into_a_peers_memory() {
        for &collective in Collective::ALL {
            if !Schedule::algorithms(collective, Medium::Shared).contains(&Algorithm::Pull) {
                continue;
            }
            for (world_size, rank) in [(2, 0), (2, 1), (5, 3)] {
                let schedule = Schedule::new(Spec {
                    collective,
                    algorithm: Algorithm::Pull,
                    medium: Medium::Shared,
                    world_size,
                    rank,
                    root: 1,
                    domains: 1,
                })
                .expect("a schedule");
                for step in schedule.channels.iter().flatten() {
                    if let Action::Push { targets, .. } = step.action {
                        assert_eq!(targets, Ranks::One(rank), "{collective}");
                    }
                }
            }
        }
    }
}
