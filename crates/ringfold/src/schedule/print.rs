//! Schedules as text to read and paste.
//!
//! The text has one line for each round and rank, then the traffic of each rank. `in`, `out` and
//! `tmp` are the input, the output and the scratch memory; `[2]` is one chunk and `[2..4]` two. The
//! listing is proved before it is printed.

#![forbid(unsafe_code)]

use std::fmt;

use super::action::{Action, AwaitedPeers, Buffer, Combine, RankRange, Span};
use super::check::{Proof, check, schedules};
use super::spec::{BufferCut, Schedule, Spec};
use crate::error::Result;
use crate::types::{Access, Algorithm, Assignment, Collective};

/// The schedules of a collective as text, with their proof.
#[derive(Clone, Debug)]
pub struct Listing {
    schedules: Vec<Schedule>,
    proof: Proof,
    bytes: u64,
    only: Option<u32>,
}

impl Listing {
    /// Proves and lists the schedules of all ranks. `bytes` is the size of the larger of a rank's
    /// two buffers; `only` limits the listed steps to one rank.
    pub fn new(spec: &Spec, bytes: u64, only: Option<u32>) -> Result<Listing> {
        check(spec, true)?;
        Ok(Listing {
            schedules: schedules(spec)?,
            proof: check(spec, false)?,
            bytes,
            only,
        })
    }

    /// Returns the counts of the proof.
    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// Returns the size of `chunks` chunks in bytes.
    fn bytes_of(&self, chunks: u64) -> u64 {
        let Schedule { input, output, .. } = self.schedules[0];
        let all = u128::from(input.chunks().max(output.chunks()));
        // The quotient fits in 64 bits, except for absurd sizes.
        let bytes = u128::from(self.bytes) * u128::from(chunks) / all;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    fn write_header(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schedule = &self.schedules[0];
        let spec = &schedule.spec;
        write!(
            f,
            "{} by {} over {}, {} ranks",
            spec.collective,
            spec.method(),
            spec.access.medium(),
            spec.world_size
        )?;
        if spec.collective.has_root() {
            write!(f, ", root {}", spec.root)?;
        } else if spec.algorithm == Algorithm::Stragglar {
            write!(f, ", rank {} late", spec.root)?;
        }
        writeln!(
            f,
            "\ninput: {}, output: {}, scratch: {}",
            Cutting(schedule.input),
            Cutting(schedule.output),
            if self.schedules.iter().any(|schedule| schedule.scratch) {
                "used"
            } else {
                "unused"
            }
        )?;
        writeln!(
            f,
            "{} rounds, {} dependent hops; proved in place and out of place",
            self.proof.rounds, self.proof.hops
        )
    }

    fn write_steps(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nround  rank  steps")?;
        let shown = |schedule: &&Schedule| self.only.is_none_or(|rank| rank == schedule.spec.rank);
        for round in 0..self.proof.rounds {
            for schedule in self.schedules.iter().filter(shown) {
                let steps = schedule.channels.iter().flatten();
                let mut steps = steps.filter(|step| step.round == round).peekable();
                if steps.peek().is_none() {
                    continue;
                }
                write!(f, "{round:>5}  {:>4}  ", schedule.spec.rank)?;
                for (number, step) in steps.enumerate() {
                    write!(f, "{}{}", if number > 0 { "; " } else { "" }, step.action)?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }

    fn write_work(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elements = if self.schedules[0].spec.collective == Collective::Barrier {
            "no data".to_owned()
        } else {
            format!("{} bytes in all", self.bytes)
        };
        writeln!(f, "\neach rank, in messages and bytes ({elements}):")?;
        writeln!(
            f,
            "rank  sends  recvs          sent      received       reduced     published       \
             fetched        stored"
        )?;
        for (rank, work) in self.proof.ranks.iter().enumerate() {
            let messages = [work.messages_sent, work.messages_received];
            write!(f, "{rank:>4}  {:>5}  {:>5}", messages[0], messages[1])?;
            for chunks in [
                work.chunks_sent,
                work.chunks_received,
                work.chunks_reduced,
                work.chunks_published,
                work.chunks_fetched,
                work.chunks_stored,
            ] {
                write!(f, "  {:>12}", self.bytes_of(chunks))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_header(f)?;
        self.write_steps(f)?;
        self.write_work(f)
    }
}

/// The division of a buffer, in words.
struct Cutting(BufferCut);

impl fmt::Display for Cutting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = match self.0 {
            BufferCut::Vector(n) => (n, "chunk"),
            BufferCut::Blocks(n) => (n, "block"),
        };
        write!(f, "{count} {unit}{}", if count == 1 { "" } else { "s" })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.buffer {
            Buffer::Input => "in",
            Buffer::Output => "out",
            Buffer::Scratch => "tmp",
            Buffer::Leaves => "leaf",
        })?;
        ChunkNumbers(self.first, self.len).fmt(f)
    }
}

/// The numbers of consecutive chunks, for display.
struct ChunkNumbers(u32, u32);

impl fmt::Display for ChunkNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ChunkNumbers(_, 0) => f.write_str("[]"),
            ChunkNumbers(first, 1) => write!(f, "[{first}]"),
            ChunkNumbers(first, len) => write!(f, "[{first}..{}]", first + len),
        }
    }
}

impl fmt::Display for Combine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chunks = ChunkNumbers(self.from.first, self.from.len);
        if self.access == Access::Staged {
            return write!(f, "combine blocks of {chunks} of all, as a tree");
        }
        if self.assignment == Assignment::Dynamic {
            f.write_str("blocks of ")?;
        }
        write!(f, "{} of {} = ", self.into, one_or_all(self.targets))?;
        match self.sources.count {
            1 => write!(f, "{} of {}", self.from, self.sources.first),
            _ => write!(f, "sum of {} of all, as a tree", self.from),
        }
    }
}

/// Names one rank, or all.
fn one_or_all(ranks: RankRange) -> String {
    match ranks.count {
        1 => ranks.first.to_string(),
        _ => "all".to_owned(),
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Action::Send { peer, span } => write!(f, "send {span} to {peer}"),
            Action::Recv { peer, span } => write!(f, "recv {span} from {peer}"),
            Action::RecvReduce { peer, with, into } if with == into => {
                write!(f, "recv {into} += from {peer}")
            }
            Action::RecvReduce { peer, with, into } => {
                write!(f, "recv {into} = {with} + from {peer}")
            }
            Action::RecvLeaf { peer, like, into } => write!(f, "recv {into} = {like} of {peer}"),
            Action::Fold {
                leaves, own, into, ..
            } => write!(f, "{into} = {own} + {leaves}, as a tree"),
            Action::Copy { from, into } => write!(f, "{into} = {from}"),
            Action::Reduce { with, from, into } if with == into => write!(f, "{into} += {from}"),
            Action::Reduce { with, from, into } => write!(f, "{into} = {with} + {from}"),
            Action::Publish { span, phase, .. } => write!(f, "publish {span} in phase {phase}"),
            Action::Await {
                peers: AwaitedPeers::Others,
                phase,
            } => write!(f, "await phase {phase} of all"),
            Action::Await {
                peers: AwaitedPeers::One(peer),
                phase,
            } => write!(f, "await phase {phase} of {peer}"),
            Action::CopyFrom { peer, first, into } => {
                write!(f, "{into} = {} of {peer}", ChunkNumbers(first, into.len))
            }
            Action::ReduceFrom { own, into } => {
                let chunks = ChunkNumbers(own.first, own.len);
                write!(f, "{into} = {own} + {chunks} of all others, as a tree")
            }
            Action::Expose { phase, .. } => write!(f, "expose in and out in phase {phase}"),
            Action::Combine(combine) => combine.fmt(f),
            Action::Collect {
                access: Access::Registered,
                into,
            } => write!(f, "await all blocks of {into}"),
            Action::Collect { into, .. } => write!(f, "{into} = combined blocks"),
            Action::GiveBack { span, phase } => {
                let chunks = ChunkNumbers(span.first, span.len);
                write!(f, "put {span} into {chunks} of all others in phase {phase}")
            }
            Action::TakeBack { peer, into } => {
                let chunks = ChunkNumbers(into.first, into.len);
                write!(f, "{into} = {chunks} as {peer} put it")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Access, Method};

    fn listing(algorithm: impl Into<Method>, access: Access, only: Option<u32>) -> String {
        let spec = Spec::new(Collective::AllReduce, algorithm, access, 3);
        Listing::new(&spec, 3000, only).unwrap().to_string()
    }

    #[test]
    fn a_ring_of_three_reads_like_this() {
        let expected = "\
all_reduce by ring over messages, 3 ranks
input: 3 chunks, output: 3 chunks, scratch: unused
4 rounds, 4 dependent hops; proved in place and out of place

round  rank  steps
    0     1  recv out[2] = in[2] + from 0; send in[0] to 2
    1     1  recv out[1] = in[1] + from 0; send out[2] to 2
    2     1  recv out[0] from 0; send out[1] to 2
    3     1  recv out[2] from 0; send out[0] to 2

each rank, in messages and bytes (3000 bytes in all):
rank  sends  recvs          sent      received       reduced     published       fetched        stored
   0      4      4          4000          4000          2000             0             0             0
   1      4      4          4000          4000          2000             0             0             0
   2      4      4          4000          4000          2000             0             0             0
";
        assert_eq!(
            listing(Algorithm::Ring, Access::Messages, Some(1)),
            expected
        );
    }

    #[test]
    fn published_memory_is_listed_with_its_phases() {
        let text = listing(Algorithm::Direct, Access::Staged, None);
        let line = "    1     2  await phase 1 of all; out[2] = in[2] + [2] of all others, as a \
                    tree; put out[2] into [2] of all others in phase 2\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("    0     1  publish in[0] in phase 0; publish in[2] in phase 1\n"));
        assert!(text.contains("await phase 2 of 0; out[0] = [0] as 0 put it"));
    }

    #[test]
    fn work_in_each_others_buffers_is_listed_with_its_phases() {
        let text = listing(Method::Push, Access::Registered, None);
        let line = "    0     2  expose in and out in phase 0; await phase 0 of all; \
                    out[2] of all = sum of in[2] of all, as a tree; \
                    publish in[] in phase 1; await phase 1 of all\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn blocks_that_anybody_serves_are_listed() {
        let text = listing(Method::Serve, Access::Registered, None);
        let line = "    0     2  expose in and out in phase 0; await phase 0 of all; \
                    blocks of out[0] of all = sum of in[0] of all, as a tree; \
                    await all blocks of out[0]\n";
        assert!(text.contains(line), "{text}");
    }
}
