//! A call as the caller makes it, and its check: what is wrong with it is said here, before
//! anything moves.

use std::ops::Range;
use std::time::Duration;

use crate::call::{Asked, Way};
use crate::engine::geometry::Blocks;
use crate::engine::{self, Job};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::types::{Collective, DType, Method, Op, Protocol};

/// How many elements a request is about.
///
/// `AllReduce`, `Broadcast`, `Reduce`, `Send`, `Recv`, `SendRecv`: the whole buffer. `AllGather`,
/// `Gather`: one rank's input (the output has `world_size` times that). `ReduceScatter`, `Scatter`:
/// one rank's output (the input has `world_size` times that). `AllToAll`: one block (both have
/// `world_size` blocks). `Barrier`: 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counts {
    /// The same for every rank.
    Even(u64),
    /// One count a rank, for `AllGather`, `Gather` (what each rank gives), `ReduceScatter`,
    /// `Scatter` (what each rank gets): the same list on every rank.
    PerRank(Vec<u64>),
    /// `AllToAll` only: what this rank gives to each rank, and gets from each.
    Pairwise {
        /// Elements for each rank, in rank order in the input.
        input: Vec<u64>,
        /// Elements from each rank, in rank order in the output.
        output: Vec<u64>,
    },
}

impl Counts {
    /// A number for the form that they have.
    #[inline]
    pub(super) fn kind(&self) -> u64 {
        match self {
            Counts::Even(_) => 0,
            Counts::PerRank(_) => 1,
            Counts::Pairwise { .. } => 2,
        }
    }
}

/// One call, untyped: what the typed methods, the bindings and `perf` are made of. Its memory is
/// the host's, or a device's in a [`DeviceRequest`](crate::DeviceRequest).
#[derive(Clone, Debug)]
pub struct Request<M = Region> {
    /// What to do.
    pub collective: Collective,
    /// The elements' type.
    pub dtype: DType,
    /// How they are combined; ignored where nothing is.
    pub op: Op,
    /// The root; for `Send` and `Recv` the peer, for `Recv` also
    /// [`ANY_SOURCE`](Request::ANY_SOURCE). Ignored where there is none.
    pub root: usize,
    /// For `Send` and `Recv`: the number by which a receive finds its message.
    pub tag: u32,
    /// How many elements.
    pub counts: Counts,
    /// What is read; empty on ranks that give nothing. Same memory as (its part of) `output` means
    /// in place.
    pub input: M,
    /// What is filled; empty on ranks that get nothing.
    pub output: M,
    /// How, instead of the tuner's choice. With memory of a device, how the CPUs carry it out.
    pub algorithm: Option<Method>,
    /// How its bytes travel, instead of the tuner's choice.
    pub protocol: Option<Protocol>,
    /// How many calls are made together: what the tuner takes into account, the same on all ranks.
    /// 1 of one alone.
    pub group: u32,
    /// The deadline, instead of the communicator's. With memory of a device it begins when the data
    /// has arrived.
    pub timeout: Option<Duration>,
    /// That it moves a part of a reduction by `op`, of so many elements, for devices that combine
    /// them: ranks compare both. For lanes.
    #[doc(hidden)]
    pub share: Option<u32>,
    /// Of a slice of a longer call: a digest of the counts of all of it, which ranks compare. For
    /// lanes.
    #[doc(hidden)]
    pub whole: Option<u32>,
    /// Of a barrier: the call whose data devices move meanwhile, and which ranks compare in its
    /// place. For lanes.
    #[doc(hidden)]
    pub asked: Option<Asked>,
}

impl<M> Request<M> {
    /// A request with the usual rest: `Sum`, root 0, tag 0, chosen algorithm, the communicator's
    /// deadline.
    pub fn new(
        collective: Collective,
        dtype: DType,
        counts: Counts,
        input: M,
        output: M,
    ) -> Request<M> {
        Request {
            collective,
            dtype,
            op: Op::Sum,
            root: 0,
            tag: 0,
            counts,
            input,
            output,
            algorithm: None,
            protocol: None,
            group: 1,
            timeout: None,
            share: None,
            whole: None,
            asked: None,
        }
    }
}

impl Request {
    /// As `root` of a `Recv`: the oldest message with its tag, from any sender.
    pub const ANY_SOURCE: usize = engine::ANY_SOURCE;

    /// Bytes that the tuner counts: the vector's, or one block's times the number of ranks. 0 where
    /// each pair has counts of its own, because no rank knows them all. The most there can be when
    /// the counts are absurd.
    #[inline]
    pub(crate) fn bytes(&self, world_size: usize) -> u64 {
        // Not checked yet: what saturates is refused by `check`.
        let elements = match &self.counts {
            Counts::Even(count) if is_vector(self.collective) => *count,
            Counts::Even(count) => count.saturating_mul(world_size as u64),
            Counts::PerRank(counts) => counts.iter().copied().fold(0, u64::saturating_add),
            Counts::Pairwise { .. } => 0,
        };
        elements.saturating_mul(self.dtype.size_bytes() as u64)
    }

    /// Whether counts differ from rank to rank.
    pub(crate) fn is_uneven(&self) -> bool {
        !matches!(self.counts, Counts::Even(_))
    }

    /// Checks the request as `rank` of `world_size` made it, and makes it a job.
    pub(crate) fn check(
        &self,
        rank: usize,
        world_size: usize,
        way: &Way,
        timeout: Duration,
    ) -> Result<Job> {
        let mut job = self.draft(way, timeout);
        self.check_into(rank, world_size, &mut job)?;
        Ok(job)
    }

    /// The job as far as nothing has to be checked, for `check_into`. A job is large: it is filled
    /// in where it is used, because to copy what was just written stalls a small call.
    #[inline(always)]
    pub(super) fn draft(&self, way: &Way, timeout: Duration) -> Job {
        let count = match self.counts {
            Counts::Even(count) if self.collective != Collective::Barrier => count,
            _ => 0,
        };
        Job {
            collective: self.collective,
            way: *way,
            dtype: self.dtype,
            op: self.op,
            root: self.root,
            tag: self.tag,
            count,
            input: Region::EMPTY,
            output: Region::EMPTY,
            input_blocks: Blocks::Even(count),
            output_blocks: Blocks::Even(count),
            in_place: false,
            timeout,
            registers: false,
            share: self.share,
            whole: self.whole,
            asked: self.asked,
            weights: None,
        }
    }

    /// Checks the request, of which `job` is the draft, and fills in what is read and written.
    #[inline(always)]
    pub(super) fn check_into(&self, rank: usize, world_size: usize, job: &mut Job) -> Result<()> {
        if self.is_uneven() && self.collective != Collective::Barrier {
            (job.input_blocks, job.output_blocks) = self.listed_blocks(rank, world_size)?;
            // Each pair of an all_to_all has its own lengths, compared message by message.
            if let Counts::PerRank(counts) = &self.counts {
                job.count = counts.iter().sum();
            }
        }
        let (input, output) = (&job.input_blocks, &job.output_blocks);
        (job.input, job.output, job.in_place) = self.regions(rank, world_size, input, output)?;
        Ok(())
    }

    /// What `rank` of `world_size` reads and fills, checked, and whether that is the same memory.
    fn regions(
        &self,
        rank: usize,
        world_size: usize,
        input_blocks: &Blocks,
        output_blocks: &Blocks,
    ) -> Result<(Region, Region, bool)> {
        if self.collective.reduces() {
            self.op.check(self.dtype)?;
        }
        self.check_root(world_size)?;
        let (from, into) = self.needed(rank, world_size, [input_blocks, output_blocks])?;
        if self.collective.is_message() && u32::try_from(from.max(into)).is_err() {
            let text = "a message of 4 GiB or more; send it in parts";
            return Err(Error::Unsupported(text.into()));
        }
        let input = self.exactly("input", self.input, from)?;
        let output = self.exactly("output", self.output, into)?;
        let in_place = self.in_place(rank, input, output, input_blocks, output_blocks)?;
        Ok((input, output, in_place))
    }

    /// How many bytes `rank` of `world_size` reads as input and fills as output: for bindings whose
    /// callers give addresses alone. The request's own memory does not matter.
    ///
    /// # Errors
    /// `InvalidArgument` if the counts are absurd or do not fit the collective.
    pub fn buffer_bytes(&self, rank: usize, world_size: usize) -> Result<(usize, usize)> {
        let (input, output) = self.blocks(rank, world_size)?;
        self.needed(rank, world_size, [&input, &output])
    }

    /// The bytes of input and output of `rank`.
    #[inline(always)]
    fn needed(&self, rank: usize, ranks: usize, blocks: [&Blocks; 2]) -> Result<(usize, usize)> {
        let (gives, gets) = self.roles(rank);
        let size = self.dtype.size_bytes();
        let needed = |blocks, is_input, is_used: bool| match is_used {
            true => needed_bytes(self.collective, blocks, is_input, ranks, size),
            false => Ok(0),
        };
        let [input, output] = blocks;
        Ok((needed(input, true, gives)?, needed(output, false, gets)?))
    }

    fn check_root(&self, world_size: usize) -> Result<()> {
        let is_message = self.collective.is_message();
        if self.collective == Collective::Recv && self.root == Request::ANY_SOURCE {
            return Ok(());
        }
        if (self.collective.has_root() || is_message) && self.root >= world_size {
            let what = if is_message { "peer" } else { "root" };
            return Err(invalid(format!(
                "{what} {} of a communicator of {world_size} ranks",
                self.root
            )));
        }
        Ok(())
    }

    /// The blocks of both buffers on `rank`, checked as a call is, but without memory.
    pub(crate) fn sides(&self, rank: usize, world_size: usize) -> Result<Sides> {
        if self.collective.reduces() {
            self.op.check(self.dtype)?;
        }
        self.check_root(world_size)?;
        let lists = self.blocks(rank, world_size)?;
        let (gives, gets) = self.roles(rank);
        let size = self.dtype.size_bytes();
        let side = |blocks: &Blocks, is_input, is_used| -> Result<Vec<_>> {
            needed_bytes(self.collective, blocks, is_input, world_size, size)?;
            let count = block_count(self.collective, is_input, world_size);
            let ranges = (0..count as u32).map(|block| blocks.range(block));
            Ok(if is_used { ranges.collect() } else { vec![] })
        };
        Ok(Sides {
            input: side(&lists.0, true, gives)?,
            output: side(&lists.1, false, gets)?,
        })
    }

    /// Whether the buffers consist of blocks, one a rank, on one side at least.
    pub(crate) fn is_of_blocks(&self) -> bool {
        !is_vector(self.collective)
    }

    /// The elements of the longest block that this rank knows of.
    pub(crate) fn longest_block(&self) -> u64 {
        let longest = |list: &[u64]| list.iter().copied().max().unwrap_or(0);
        match &self.counts {
            Counts::Even(count) => *count,
            Counts::PerRank(counts) => longest(counts),
            Counts::Pairwise { input, output } => longest(input).max(longest(output)),
        }
    }

    /// Whether this rank gives data, and whether it gets some.
    fn roles(&self, rank: usize) -> (bool, bool) {
        let is_root = rank == self.root;
        match self.collective {
            Collective::Barrier => (false, false),
            Collective::Broadcast => (is_root, true),
            Collective::Scatter => (is_root, true),
            Collective::Reduce | Collective::Gather => (true, is_root),
            Collective::Send => (true, false),
            Collective::Recv => (false, true),
            _ => (true, true),
        }
    }

    /// The blocks of both buffers.
    fn blocks(&self, rank: usize, world_size: usize) -> Result<(Blocks, Blocks)> {
        match &self.counts {
            Counts::Even(count) => Ok((Blocks::Even(*count), Blocks::Even(*count))),
            _ => self.listed_blocks(rank, world_size),
        }
    }

    /// The blocks of a call with a list of counts.
    #[cold]
    fn listed_blocks(&self, rank: usize, world_size: usize) -> Result<(Blocks, Blocks)> {
        use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        let lists = |list: &[u64]| {
            if list.len() != world_size {
                let text = format!("{} counts for {world_size} ranks", list.len());
                return Err(invalid(text));
            }
            let add = |sum: u64, count: &u64| sum.checked_add(*count);
            bytes_of(list.iter().try_fold(0, add), self.dtype.size_bytes()).map(|_| ())
        };
        match (&self.counts, self.collective) {
            (Counts::PerRank(counts), AllGather | Gather | ReduceScatter | Scatter) => {
                lists(counts)?;
                let (own, all) = (&counts[rank..=rank], &counts[..]);
                Ok(match self.collective {
                    AllGather | Gather => (Blocks::uneven(own), Blocks::uneven(all)),
                    _ => (Blocks::uneven(all), Blocks::uneven(own)),
                })
            }
            (Counts::Pairwise { input, output }, AllToAll) => {
                lists(input)?;
                lists(output)?;
                if input[rank] != output[rank] {
                    return Err(invalid(format!(
                        "rank {rank} gives itself {} elements and expects {} of itself",
                        input[rank], output[rank]
                    )));
                }
                Ok((Blocks::uneven(input), Blocks::uneven(output)))
            }
            (_, collective) => Err(invalid(format!("these counts do not fit {collective}"))),
        }
    }

    fn exactly(&self, what: &str, region: Region, bytes: usize) -> Result<Region> {
        if region.bytes() < bytes {
            let (have, collective) = (region.bytes(), self.collective);
            return Err(invalid(format!(
                "{collective} needs {bytes} bytes of {what} on this rank, got {have}"
            )));
        }
        Ok(region.part(0..bytes))
    }

    /// Whether input and output are the same memory in the collective's in-place form; any other
    /// overlap is an error.
    fn in_place(
        &self,
        rank: usize,
        input: Region,
        output: Region,
        from: &Blocks,
        into: &Blocks,
    ) -> Result<bool> {
        if input.is_empty() || output.is_empty() || !input.overlaps(output) {
            return Ok(false);
        }
        let size = self.dtype.size_bytes();
        let part_of_output = |block: usize| output.part(into.range_bytes(block as u32, size));
        let part_of_input = |block: usize| input.part(from.range_bytes(block as u32, size));
        let fits = match self.collective {
            Collective::AllGather | Collective::Gather => input.is_same(part_of_output(rank)),
            Collective::ReduceScatter | Collective::Scatter => output.is_same(part_of_input(rank)),
            Collective::AllToAll | Collective::SendRecv => false,
            _ => input.is_same(output),
        };
        if fits {
            return Ok(true);
        }
        Err(invalid(format!(
            "input and output of {} overlap, but not as its in-place form has them",
            self.collective
        )))
    }
}

fn is_vector(collective: Collective) -> bool {
    use Collective::{AllReduce, Barrier, Broadcast, Recv, Reduce, Send, SendRecv};
    matches!(
        collective,
        AllReduce | Broadcast | Reduce | Send | Recv | SendRecv | Barrier
    )
}

/// The blocks of both buffers of a call on one rank, in elements; none where it has no part.
pub(crate) struct Sides {
    pub input: Vec<Range<u64>>,
    pub output: Vec<Range<u64>>,
}

/// Blocks of a buffer: a vector is one.
fn block_count(collective: Collective, is_input: bool, world_size: usize) -> usize {
    use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
    let has_many = match collective {
        AllGather | Gather => !is_input,
        ReduceScatter | Scatter => is_input,
        AllToAll => true,
        _ => false,
    };
    if has_many { world_size } else { 1 }
}

/// Bytes of a buffer with these blocks: one vector, one block, or a block for every rank.
fn needed_bytes(
    collective: Collective,
    blocks: &Blocks,
    is_input: bool,
    world_size: usize,
    element_bytes: usize,
) -> Result<usize> {
    let blocks_there = block_count(collective, is_input, world_size) as u64;
    let elements = match blocks {
        Blocks::Even(count) => count.checked_mul(blocks_there),
        Blocks::Offsets(offsets) => offsets.last().copied(),
    };
    bytes_of(elements, element_bytes)
}

/// Bytes of so many elements; an error if that overflowed, or is more than any buffer has.
fn bytes_of(elements: Option<u64>, element_bytes: usize) -> Result<usize> {
    elements
        .and_then(|elements| elements.checked_mul(element_bytes as u64))
        .and_then(|bytes| usize::try_from(bytes).ok())
        .filter(|bytes| *bytes <= isize::MAX as usize)
        .ok_or_else(|| invalid("more bytes than there are addresses".into()))
}

fn invalid(text: String) -> Error {
    Error::InvalidArgument(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Communicator;

    #[test]
    fn absurd_counts_are_refused_before_anything_moves() {
        use Collective::{AllGather, AllReduce, AllToAll, ReduceScatter, Scatter};
        let pairs = |first: Vec<u64>, second: Vec<u64>| Counts::Pairwise {
            input: first,
            output: second,
        };
        let cases = [
            (AllReduce, Counts::Even(u64::MAX)),
            (AllReduce, Counts::Even(1 << 61)),
            (AllGather, Counts::Even(u64::MAX / 2)),
            (AllGather, Counts::PerRank(vec![u64::MAX, 1])),
            (ReduceScatter, Counts::PerRank(vec![1 << 63, 1 << 63])),
            (Scatter, Counts::PerRank(vec![1, u64::MAX])),
            (AllToAll, pairs(vec![u64::MAX, u64::MAX], vec![0, 0])),
            (AllToAll, pairs(vec![0, 0], vec![1, 1 << 62])),
        ];
        let communicators = Communicator::threads(2);
        for (collective, counts) in cases {
            let text = format!("{collective} of {counts:?}");
            let (dtype, empty) = (DType::F64, Region::EMPTY);
            let request = Request::new(collective, dtype, counts, empty, empty);
            for communicator in &communicators {
                communicator
                    .way(&request)
                    .unwrap_or_else(|error| panic!("{text}: {error}"));
                // SAFETY: the regions are empty.
                let refused =
                    unsafe { communicator.run(&request, &mut || Ok(())) }.expect_err(&text);
                assert!(
                    matches!(refused, Error::InvalidArgument(_)),
                    "{text}: {refused}"
                );
            }
        }
    }
}
