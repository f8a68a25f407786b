//! From a job to an operation: the plan, the cut of the buffers, scratch, and what the peers are told.

use std::sync::Arc;

use super::geometry::{Blocks, Geometry};
use super::plan::Plan;
use super::steps::{Buffers, ChannelProgress, Operation, Straight};
use super::tiny::inline::Inline;
use super::tiny::{BLOCK_ALIGN_BYTES, part};
use super::{Engine, Job, PLANS_MAX, PlanKey, late_ring};
use crate::call::{Call, LISTED_MAX, PAIRWISE, REGISTRATION, list_digest};
use crate::error::{Error, Result};
use crate::memory::{Block, Region};
use crate::reduce::{self, Factor, Kernel};
use crate::schedule::{Cut, LL_SHARED_BYTES, Medium, Spec, Weights};
use crate::transport::SlotUse;
use crate::types::{Algorithm, Collective, Op, Protocol};

impl Engine {
    /// Makes `job` ready to run.
    pub(super) fn prepare(&mut self, job: Job) -> Result<Operation> {
        let is_asked_for = job.algorithm.works_in_registered();
        let tried = if is_asked_for {
            Some(job.algorithm)
        } else {
            job.tries.filter(|_| self.registry.is_used())
        };
        let Some(algorithm) = tried.filter(|_| self.world_size > 1) else {
            return self.ready(job, None);
        };
        let mut instead = job.clone();
        if is_asked_for {
            instead.algorithm = Algorithm::Direct;
        }
        Ok(self.ready(Job { algorithm, ..job }, None)?.or(instead))
    }

    /// Makes what is done instead of an operation that was refused ready to run.
    pub(super) fn prepare_instead(&mut self, refused: Operation) -> Result<Operation> {
        let job = refused
            .instead
            .expect("what can be refused was prepared with what to do instead");
        let call = instead_of(refused.call, &job);
        let mut operation = self.ready(job, Some(call))?;
        operation.buffers.owned.extend(refused.buffers.owned);
        self.keep(refused.plan, refused.channels);
        Ok(operation)
    }

    /// Whether `job` is a ring that goes around slow ranks.
    fn goes_around(&self, job: &Job) -> bool {
        let is_ring = matches!(
            job.collective,
            Collective::AllReduce | Collective::ReduceScatter
        ) && (job.algorithm, job.medium) == (Algorithm::Ring, Medium::Messages);
        // Between two ranks there is nothing to go around.
        self.late_merge.is_some() && is_ring && self.world_size > 2
    }

    /// Makes `job` ready to run as it says; `call` is what the peers are told, unless it is a new call.
    fn ready(&mut self, mut job: Job, call: Option<Call>) -> Result<Operation> {
        let goes_around = self.goes_around(&job);
        if goes_around {
            job.channels = 1;
        }
        let kernel = if job.collective.reduces() {
            Some(Kernel::new(job.op, job.dtype)?)
        } else {
            None
        };
        self.check_weights(&job)?;
        let (plan, channels) = self.plan(&job)?;
        let schedule = &plan.schedule;
        let one_slice = plan.needs_one_slice || plan.exposes;
        if one_slice
            && (job.input_blocks.is_uneven() || job.output_blocks.is_uneven())
            && plan.needs_one_slice
        {
            return Err(Error::Unsupported(format!(
                "uneven counts by `{}`; use ring or direct",
                job.algorithm
            )));
        }
        let longest = job.input_blocks.longest().max(job.output_blocks.longest());
        // Blocks of a call of one slice stand close together in their slot.
        let unit = (BLOCK_ALIGN_BYTES / job.dtype.size_bytes()) as u64;
        let whole = longest.max(1).checked_next_multiple_of(unit);
        let slice_elements = if one_slice {
            longest.max(1)
        } else {
            job.slice_elements.clamp(1, whole.unwrap_or(u64::MAX))
        };
        let slices = u32::try_from(longest.div_ceil(slice_elements).max(1)).map_err(|_| {
            Error::Unsupported("a call of more than 2^32 slices; raise the slice size".into())
        })?;
        let scales = plan.exposes || !job.output.is_empty();
        let finish = (job.op == Op::Avg && kernel.is_some() && scales).then(|| {
            let n = self.world_size as u64;
            if job.dtype.is_float() {
                Factor::Multiply(1.0 / n as f64)
            } else {
                Factor::Divide(n)
            }
        });
        let mut owned = Vec::new();
        self.scale_input(&mut job, &mut owned)?;
        let size = job.dtype.size_bytes();
        let cut = |cut: Cut, blocks: &Blocks| {
            Geometry::new(cut, blocks.clone(), size, slice_elements, slices)
                .weighted(job.weights.clone())
        };
        let input_cut = cut(schedule.input, &job.input_blocks);
        let output_cut = cut(schedule.output, &job.output_blocks);
        let mut scratch = Region::EMPTY;
        if schedule.scratch && !goes_around {
            let block = self
                .pool
                .take(input_cut.slice_bytes() * plan.slices_in_flight.min(slices) as usize);
            scratch = block.region();
            owned.push(block);
        }
        if !plan.exposes {
            self.check_slot(&job, schedule.apart, &input_cut, &output_cut)?;
        }
        let call = call.unwrap_or_else(|| self.call(&job));
        if job.medium == Medium::Shared && Inline::carries(&call) {
            check_inline(&call, self.world_size)?;
        }
        let buffers = Buffers {
            input: job.input,
            output: job.output,
            scratch,
            input_cut,
            output_cut,
            owned,
        };
        // Steps can be divided, blocks of the written-out loop are too small.
        let is_divided = self.parallel.divides(buffers.bytes());
        let is_straight = plan.has_straight_way() && !is_divided;
        #[cfg(test)]
        let is_straight = is_straight && !job.by_steps;
        let straight = is_straight.then(Straight::default);
        let mut operation = Operation {
            buffers,
            kernel,
            finish,
            slot_use: SlotUse::of(&call, self.world_size, is_divided),
            call,
            slices,
            first_generation: 0,
            is_begun: false,
            streams: job.streams,
            instead: None,
            is_refused: false,
            timeout: job.timeout,
            deadline: None,
            channels,
            straight,
            late_merge: None,
            plan,
        };
        if goes_around {
            self.prepare_late_merge(&mut operation)?;
        }
        Ok(operation)
    }

    /// Has `operation` go around slow ranks.
    fn prepare_late_merge(&mut self, operation: &mut Operation) -> Result<()> {
        let (rank, world_size) = (self.rank, self.world_size);
        let Some(keeper) = &mut self.late_merge else {
            return Ok(());
        };
        if world_size > late_ring::RANKS_MAX {
            return Err(Error::Unsupported(format!(
                "a straggler policy for {world_size} ranks; {} at most",
                late_ring::RANKS_MAX
            )));
        }
        let mut run = keeper.spare.take().unwrap_or_default();
        run.reset(operation, rank, world_size, keeper);
        operation.late_merge = Some(run);
        Ok(())
    }

    /// Weights cut the chunks that ranks own: there must be one for each, and a schedule that has such.
    fn check_weights(&self, job: &Job) -> Result<()> {
        let Some(weights) = &job.weights else {
            return Ok(());
        };
        let way = (job.collective, job.algorithm, job.medium);
        if way != (Collective::AllReduce, Algorithm::Direct, Medium::Messages) {
            return Err(Error::Unsupported(format!(
                "weights for {} by `{}` over {}; they are for all_reduce by direct over messages",
                job.collective, job.algorithm, job.medium
            )));
        }
        if weights.each().len() != self.world_size {
            return Err(Error::InvalidArgument(format!(
                "{} weights for {} ranks",
                weights.each().len(),
                self.world_size
            )));
        }
        Ok(())
    }

    /// Published slices must fit their slots: the chooser sees to it, and this is where it is checked.
    fn check_slot(
        &mut self,
        job: &Job,
        is_apart: bool,
        input: &Geometry,
        output: &Geometry,
    ) -> Result<()> {
        if job.medium != Medium::Shared {
            return Ok(());
        }
        let slot_bytes = match &self.windows {
            Some(windows) => windows.slot_bytes(),
            None => {
                return Err(Error::Unsupported(
                    "published memory: ranks are not all on one host".into(),
                ));
            }
        };
        let needed = match job.collective {
            Collective::AllGather | Collective::Gather => input.slice_bytes(),
            Collective::ReduceScatter | Collective::Scatter | Collective::AllToAll => {
                input.slice_bytes()
            }
            _ if is_apart => input.slice_bytes() + output.slice_bytes(),
            _ => input.slice_bytes().max(output.slice_bytes()),
        };
        if needed > slot_bytes && job.count > 0 {
            return Err(Error::InvalidArgument(format!(
                "slices of {needed} bytes do not fit slots of {slot_bytes}"
            )));
        }
        Ok(())
    }

    /// `PremulSum` is a sum of scaled inputs: into the output where that is the sum's place anyway, else into a copy.
    fn scale_input(&mut self, job: &mut Job, owned: &mut Vec<Block>) -> Result<()> {
        let Op::PremulSum(factor) = job.op else {
            return Ok(());
        };
        if !job.collective.reduces() {
            return Ok(());
        }
        // Where the peers can read it, if they are to push.
        let is_output_free = job.in_place || job.algorithm.works_in_registered();
        let target = if job.collective == Collective::AllReduce && is_output_free {
            job.output
        } else {
            let block = self.pool.take(job.input.bytes());
            let region = block.region().part(0..job.input.bytes());
            owned.push(block);
            region
        };
        reduce::scale(job.dtype, target, job.input, Factor::Multiply(factor))?;
        job.input = target;
        Ok(())
    }

    fn call(&mut self, job: &Job) -> Call {
        self.sequence += 1;
        let lists = lists(job);
        Call {
            collective: job.collective,
            dtype: job.dtype,
            op: if job.collective.reduces() {
                job.op.wire()
            } else {
                0
            },
            algorithm: job.algorithm,
            protocol: protocol(job),
            root: if job.collective.has_root() || job.algorithm == Algorithm::Stragglar {
                job.root as u32
            } else if job.registers {
                REGISTRATION
            } else if self.goes_around(job) {
                self.late_merge
                    .as_ref()
                    .map_or(0, |keeper| keeper.policy.mark())
            } else {
                job.weights.as_ref().map_or(0, Weights::mark)
            },
            count: match lists {
                0 => job.count,
                _ => job.count.min(LISTED_MAX),
            },
            lists,
            sequence: self.sequence,
            cut: Call::cut(job.channels as usize, slice_bytes(job) as u64),
        }
    }

    fn plan(&mut self, job: &Job) -> Result<(Arc<Plan>, Vec<ChannelProgress>)> {
        let in_place = job.in_place;
        let spec = Spec {
            collective: job.collective,
            algorithm: job.algorithm,
            medium: job.medium,
            world_size: self.world_size as u32,
            rank: self.rank as u32,
            root: job.root as u32,
            domains: self.domains,
        };
        let key = PlanKey {
            spec,
            in_place,
            channels: job.channels,
        };
        if let Some((_, plan, spare)) = self.plans.iter_mut().find(|(known, ..)| *known == key) {
            let plan = plan.clone();
            let channels = match spare.take() {
                Some(mut channels) => {
                    channels.iter_mut().for_each(ChannelProgress::reset);
                    channels
                }
                None => new_progress(&plan),
            };
            return Ok((plan, channels));
        }
        let plan = Arc::new(Plan::new(spec, in_place, job.channels)?);
        super::announce::plan(job, self.world_size);
        if self.plans.len() == PLANS_MAX {
            self.plans.remove(0);
        }
        self.plans.push((key, plan.clone(), None));
        let channels = new_progress(&plan);
        Ok((plan, channels))
    }
}

impl Operation {
    /// The same operation, which does `instead` when it is refused.
    fn or(mut self, mut instead: Job) -> Operation {
        if let Op::PremulSum(_) = instead.op {
            // What is left to do once the input is scaled.
            instead.op = Op::Sum;
            instead.input = self.buffers.input;
            instead.in_place |= instead.input.is_same(instead.output);
        }
        self.instead = Some(instead);
        self
    }
}

/// What a call says of the counts of each rank: ranks with different lists would take pieces of
/// each other's blocks.
fn lists(job: &Job) -> u32 {
    use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
    match job.collective {
        AllGather | Gather => job.output_blocks.counts().map_or(0, list_digest),
        ReduceScatter | Scatter => job.input_blocks.counts().map_or(0, list_digest),
        AllToAll if job.input_blocks.is_uneven() => PAIRWISE,
        _ => 0,
    }
}

/// The protocol of `job` by its algorithm: one that was refused was another's.
fn protocol(job: &Job) -> Protocol {
    match (job.algorithm.works_in_registered(), job.protocol) {
        (true, _) => Protocol::ZeroCopy,
        (false, Protocol::ZeroCopy) => Protocol::Simple,
        (false, protocol) => protocol,
    }
}

/// What the peers are told of `job`, which is done instead of what `call` said.
fn instead_of(call: Call, job: &Job) -> Call {
    Call {
        algorithm: job.algorithm,
        protocol: protocol(job),
        ..call
    }
}

/// Over published memory `ll` carries what fits into a slot's head: the chooser sees to it, and this is where it is checked.
fn check_inline(call: &Call, world_size: usize) -> Result<()> {
    if Inline::fits(call, world_size) {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "{call} over published memory: {LL_SHARED_BYTES} bytes at most from each rank, and only by {}; use the protocol simple",
        part::algorithm(call.collective)
    )))
}

/// Bytes of a slice that `job` asks for.
fn slice_bytes(job: &Job) -> usize {
    let bytes = job
        .slice_elements
        .saturating_mul(job.dtype.size_bytes() as u64);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn new_progress(plan: &Plan) -> Vec<ChannelProgress> {
    plan.channels
        .iter()
        .map(|channel| ChannelProgress::new(channel.steps.len(), plan.slices_in_flight))
        .collect()
}
