//! The check of a request, which refuses an invalid call before any data moves.

use std::ops::Range;
use std::time::Duration;

use super::request::{Counts, Request, Target, is_vector};
use crate::call::Way;
use crate::engine::geometry::BlockLayout;
use crate::engine::{Gate, Job};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::types::Collective;

impl Counts {
    /// Returns the largest of the counts that this rank knows.
    pub(crate) fn longest(&self) -> u64 {
        let longest = |list: &[u64]| list.iter().copied().max().unwrap_or(0);
        match self {
            Counts::Even(count) => *count,
            Counts::PerRank(counts) => longest(counts),
            Counts::Pairwise { input, output } => longest(input).max(longest(output)),
        }
    }
}

impl Request {
    /// Checks the request of `rank` of `world_size`, and returns its job.
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

    /// Checks the request of `rank` of `world_size`, whose data devices move by `gate`, and returns
    /// its job. The memory of the request does not matter.
    pub(crate) fn check_gated(
        &self,
        rank: usize,
        world_size: usize,
        way: &Way,
        timeout: Duration,
        gate: Gate,
    ) -> Result<Job> {
        let mut job = self.draft(way, timeout);
        self.sides(rank, world_size)?;
        self.lay_out(rank, world_size, &mut job)?;
        job.gate = Some(Box::new(gate));
        Ok(job)
    }

    /// Returns the part of the job that needs no check, for `check_into`. A job is large, so it is
    /// filled in where it is used: copying freshly written data stalls a small call.
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
            root: self.root(),
            tag: self.tag,
            count,
            input: Region::EMPTY,
            output: Region::EMPTY,
            input_blocks: BlockLayout::Even(count),
            output_blocks: BlockLayout::Even(count),
            in_place: false,
            timeout,
            registers: false,
            whole: self.whole,
            gate: None,
            weights: None,
        }
    }

    /// Checks the request, of which `job` is the draft, and fills in the input and the output.
    #[inline(always)]
    pub(super) fn check_into(&self, rank: usize, world_size: usize, job: &mut Job) -> Result<()> {
        self.lay_out(rank, world_size, job)?;
        let (input, output) = (&job.input_blocks, &job.output_blocks);
        (job.input, job.output, job.in_place) = self.regions(rank, world_size, input, output)?;
        Ok(())
    }

    /// Fills in the blocks and the count of a list of counts.
    #[inline(always)]
    fn lay_out(&self, rank: usize, world_size: usize, job: &mut Job) -> Result<()> {
        if self.is_uneven() && self.collective != Collective::Barrier {
            (job.input_blocks, job.output_blocks) = self.listed_blocks(rank, world_size)?;
            // Each pair of an all_to_all has its own lengths, compared message by message.
            if let Counts::PerRank(counts) = &self.counts {
                job.count = counts.iter().sum();
            }
        }
        Ok(())
    }

    /// Returns the checked input and output of `rank`, and whether they are the same memory.
    fn regions(
        &self,
        rank: usize,
        world_size: usize,
        input_blocks: &BlockLayout,
        output_blocks: &BlockLayout,
    ) -> Result<(Region, Region, bool)> {
        if self.collective.reduces() {
            self.op.check(self.dtype)?;
        }
        self.check_target(world_size)?;
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

    /// Returns the bytes of the input and of the output of `rank` of `world_size`: for bindings
    /// whose callers pass only addresses. The request's own memory does not matter.
    ///
    /// # Errors
    /// `InvalidArgument` if the counts are absurd or do not fit the collective.
    pub fn buffer_bytes(&self, rank: usize, world_size: usize) -> Result<(usize, usize)> {
        let (input, output) = self.blocks(rank, world_size)?;
        self.needed(rank, world_size, [&input, &output])
    }

    /// Returns the bytes of the input and of the output of `rank`.
    #[inline(always)]
    fn needed(&self, rank: usize, ranks: usize, both: [&BlockLayout; 2]) -> Result<(usize, usize)> {
        let (gives, gets) = self.roles(rank);
        let size = self.dtype.size_bytes();
        let needed = |blocks, is_input, is_used: bool| match is_used {
            true => needed_bytes(self.collective, blocks, is_input, ranks, size),
            false => Ok(0),
        };
        let [input, output] = both;
        Ok((needed(input, true, gives)?, needed(output, false, gets)?))
    }

    /// Checks that the request has the root or the peer that its collective needs.
    fn check_target(&self, world_size: usize) -> Result<()> {
        let collective = self.collective;
        let role = match collective {
            _ if collective.has_root() => "root",
            _ if collective.is_message() => "peer",
            _ => return Ok(()),
        };
        let rank = self.root();
        match self.target {
            Target::AnySource if collective == Collective::Recv => Ok(()),
            target if target != Target::of(collective, rank) => Err(invalid(format!(
                "{collective} needs a {role}, got {target:?}; set `Request::target`"
            ))),
            _ if rank >= world_size => Err(invalid(format!(
                "invalid {role} {rank} in a communicator of {world_size} ranks"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the blocks of both buffers on `rank`, checked as for a call, but without memory.
    pub(crate) fn sides(&self, rank: usize, world_size: usize) -> Result<Sides> {
        if self.collective.reduces() {
            self.op.check(self.dtype)?;
        }
        self.check_target(world_size)?;
        let lists = self.blocks(rank, world_size)?;
        let (gives, gets) = self.roles(rank);
        let size = self.dtype.size_bytes();
        let side = |blocks: &BlockLayout, is_input, is_used| -> Result<Vec<_>> {
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

    /// Whether at least one of the buffers consists of blocks, one per rank.
    pub(crate) fn is_of_blocks(&self) -> bool {
        !is_vector(self.collective)
    }

    /// Returns the elements of the longest block that this rank knows.
    pub(crate) fn longest_block(&self) -> u64 {
        self.counts.longest()
    }

    /// Returns whether this rank has input, and whether it has output.
    fn roles(&self, rank: usize) -> (bool, bool) {
        let is_root = self.target == Target::Root(rank);
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

    /// Returns the blocks of both buffers.
    fn blocks(&self, rank: usize, world_size: usize) -> Result<(BlockLayout, BlockLayout)> {
        match &self.counts {
            Counts::Even(count) => Ok((BlockLayout::Even(*count), BlockLayout::Even(*count))),
            _ => self.listed_blocks(rank, world_size),
        }
    }

    /// Returns the blocks of both buffers of a call with a list of counts.
    #[cold]
    fn listed_blocks(&self, rank: usize, world_size: usize) -> Result<(BlockLayout, BlockLayout)> {
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
                    AllGather | Gather => (BlockLayout::uneven(own), BlockLayout::uneven(all)),
                    _ => (BlockLayout::uneven(all), BlockLayout::uneven(own)),
                })
            }
            (Counts::Pairwise { input, output }, AllToAll) => {
                lists(input)?;
                lists(output)?;
                if input[rank] != output[rank] {
                    return Err(invalid(format!(
                        "rank {rank} sends itself {} elements but expects {} from itself",
                        input[rank], output[rank]
                    )));
                }
                Ok((BlockLayout::uneven(input), BlockLayout::uneven(output)))
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

    /// Returns whether input and output are the same memory in the collective's in-place form; any
    /// other overlap is an error.
    fn in_place(
        &self,
        rank: usize,
        input: Region,
        output: Region,
        from: &BlockLayout,
        into: &BlockLayout,
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
            "input and output of {} overlap, but not as in its in-place form",
            self.collective
        )))
    }
}

/// The blocks of both buffers of a call on one rank, in elements; empty for a buffer without data.
pub(crate) struct Sides {
    pub input: Vec<Range<u64>>,
    pub output: Vec<Range<u64>>,
}

/// Returns the number of blocks of a buffer; a vector is one.
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

/// Returns the bytes of a buffer with these blocks: one vector, one block, or one per rank.
fn needed_bytes(
    collective: Collective,
    blocks: &BlockLayout,
    is_input: bool,
    world_size: usize,
    element_bytes: usize,
) -> Result<usize> {
    let blocks_there = block_count(collective, is_input, world_size) as u64;
    let elements = match blocks {
        BlockLayout::Even(count) => count.checked_mul(blocks_there),
        BlockLayout::Offsets(offsets) => offsets.last().copied(),
    };
    bytes_of(elements, element_bytes)
}

/// Returns the bytes of `elements`; an error on overflow, or if no buffer can be as long.
fn bytes_of(elements: Option<u64>, element_bytes: usize) -> Result<usize> {
    elements
        .and_then(|elements| elements.checked_mul(element_bytes as u64))
        .and_then(|bytes| usize::try_from(bytes).ok())
        .filter(|bytes| *bytes <= isize::MAX as usize)
        .ok_or_else(|| invalid("more bytes than the address space has".into()))
}

fn invalid(text: String) -> Error {
    Error::InvalidArgument(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Communicator;
    use crate::types::DType;

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
