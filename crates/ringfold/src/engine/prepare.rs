//! Prepares the operation of a job: the plan, the cut of the buffers, scratch memory, and the call
//! announced to peers.

use std::sync::Arc;

use super::context::{Context, scratch};
use super::executors::AnyExecutor;
use super::gate::{Gate, OpenGate, OwnParts, OwnSlots, SharedSlots};
use super::gated::Gated;
use super::geometry::{BlockLayout, DeviceParts, Geometry, Parts};
use super::operation::{Buffers, PreparedOperation};
use super::plan::{ExecutionPlan, slices_in_flight};
use super::running::Running;
use super::slicing::Slicing;
use super::steps::PlanKey;
use super::tiny::inline::Inline;
use super::tiny::part;
use super::wide::{self, WideKernels};
use super::{Engine, Job};
use crate::call::{Call, LISTED_MAX, PAIRWISE, Qualifier, list_digest};
use crate::error::{Error, Result};
use crate::memory::{Block, Region};
use crate::reduce::{self, Factor, ReductionKernel};
use crate::schedule::{BufferCut, LL_SHARED_BYTES, Spec};
use crate::transport::{SlotUse, Windows};
use crate::types::Collective::{self, AllGather, AllToAll, Gather, ReduceScatter, Scatter};
use crate::types::{Access, Algorithm, Method, Op};

impl Engine {
    /// Makes `job` ready to run.
    pub(super) fn prepare(&mut self, mut job: Job) -> Result<Running> {
        match job.gate.take().map(|gate| *gate) {
            Some(Gate::Own(slots)) => return self.ready(job, None, None, Some(slots)),
            Some(Gate::Shared(slots)) => return Ok(self.prepare_gated(&job, slots)),
            None => {}
        }
        let way = job.way;
        let (registered, fallback) = match way.access {
            Access::Registered => (Some(way), way.unregistered()),
            _ => (way.tried().filter(|_| self.context.registry.is_used()), way),
        };
        let fallback = Job {
            way: fallback,
            ..job
        };
        let Some(way) = registered.filter(|_| self.context.world_size > 1) else {
            return self.ready(fallback, None, None, None);
        };
        let job = Job {
            way,
            ..fallback.clone()
        };
        self.ready(job, None, Some(fallback), None)
    }

    /// Makes a call ready to run whose data devices move through the `slots` of all ranks.
    fn prepare_gated(&mut self, job: &Job, slots: Arc<dyn SharedSlots>) -> Running {
        let operation = PreparedOperation {
            hears_all: true,
            // The first is the comparison of the ranks' calls.
            slices: slots.slices().saturating_add(1),
            gate: Some(Box::new(OpenGate::Shared(slots))),
            ..PreparedOperation::of_one_slice(job, self.call(job, None))
        };
        Running::new(operation, AnyExecutor::Gated(Gated::default()))
    }

    /// Makes the fallback of a refused call ready to run: the same call, with its owned memory and
    /// its deadline.
    pub(super) fn prepare_fallback(
        &mut self,
        job: Job,
        refused: PreparedOperation,
    ) -> Result<Running> {
        let call = Call {
            algorithm: job.way.algorithm,
            access: job.way.access,
            assignment: job.way.assignment,
            is_inline: job.way.is_inline,
            ..refused.call
        };
        let mut running = self.ready(job, Some(call), None, None)?;
        let operation = &mut running.operation;
        operation.buffers.owned.extend(refused.buffers.owned);
        operation.deadline = refused.deadline;
        Ok(running)
    }

    /// Makes `job` ready to run as specified; `call` is the call that peers see, or `None` for a
    /// new call. A device moves its data through `slots`, if there are such.
    fn ready(
        &mut self,
        mut job: Job,
        call: Option<Call>,
        mut fallback: Option<Job>,
        slots: Option<Arc<dyn OwnSlots>>,
    ) -> Result<Running> {
        let straggler_policy = match slots {
            None => self.kept.straggler_policy(&job, self.context.world_size),
            Some(_) => None,
        };
        if straggler_policy.is_some() {
            job.way.channels = 1;
        }
        let kernel = || ReductionKernel::new(job.op, job.dtype);
        let kernel = job.collective.reduces().then(kernel).transpose()?;
        self.check_weights(&job)?;
        let (plan, cut) = self.plan_and_cut(&job, slots.as_deref())?;
        let mut owned = Vec::new();
        if slots.is_none() {
            self.scale_input(&mut job, &mut owned)?;
        }
        if let Some(fallback) = &mut fallback {
            fallback.continue_after_scaling(job.input);
        }
        // A policy for slow ranks has memory of its own.
        let buffers = self.buffers(&job, straggler_policy.is_none(), &plan, &cut, owned)?;
        let call = call.unwrap_or_else(|| self.call(&job, straggler_policy));
        if job.way.access.is_shared() && Inline::carries(&call) {
            check_inline(&call, self.context.world_size)?;
        }
        let own_bytes = slots.as_ref().map(|slots| slots.bytes());
        let bytes = own_bytes.unwrap_or_else(|| buffers.bytes());
        let is_divided = self.context.parallel.divides(bytes);
        let memory = [buffers.input, buffers.output];
        let transport = &self.context.transport;
        let reads = job.way.reads && memory.iter().all(|part| transport.is_readable(*part));
        let factor = self.factor_of_result(&job, &plan, slots.is_some());
        let own = |(slots, cut)| own_parts(&job, slots, cut);
        let own = slots.zip(cut.parts).map(own);
        let operation = PreparedOperation {
            call,
            id: 0,
            kernel,
            wide: WideKernels::for_plan(&plan, job.op, job.dtype)?,
            factor,
            reads,
            non_temporal_stores: job.way.non_temporal_stores,
            slot_use: SlotUse::of(&call, self.context.world_size, is_divided),
            publishes: job.way.access.is_shared(),
            hears_all: plan.hears_all,
            slices: cut.slices,
            slices_in_flight: plan.slices_in_flight,
            first_generation: 0,
            is_begun: false,
            timeout: job.timeout,
            deadline: None,
            buffers,
            gate: own.map(|own| Box::new(OpenGate::Own(own))),
        };
        let kept = &mut self.kept;
        let executor = match straggler_policy {
            Some(_) => AnyExecutor::late_ring(&operation, kept, &self.context)?,
            None if operation.gate.is_some() => AnyExecutor::Steps(kept.steps.begin(plan)),
            None => AnyExecutor::planned(plan, is_divided, kept),
        };
        Ok(Running::new(operation, executor).or(fallback))
    }

    /// Returns the memory of `job`, and its cuts.
    fn buffers(
        &mut self,
        job: &Job,
        uses_scratch: bool,
        plan: &ExecutionPlan,
        slicing: &Slicing,
        owned: Vec<Block>,
    ) -> Result<Buffers> {
        let schedule = &plan.schedule;
        let size = job.dtype.size_bytes();
        let (slice_elements, slices) = (slicing.slice_elements, slicing.slices);
        let cut = |cut: BufferCut, blocks: &BlockLayout| {
            Geometry::new(cut, blocks.clone(), size, slice_elements, slices)
                .in_parts(slicing.parts)
                .weighted(job.weights.clone())
        };
        let input_cut = cut(schedule.input, &job.input_blocks);
        let output_cut = cut(schedule.output, &job.output_blocks);
        if !plan.is_registered() {
            self.check_slot(job, &input_cut, &output_cut)?;
        }
        let mut buffers = Buffers {
            input: job.input,
            output: job.output,
            input_place: None,
            output_place: None,
            scratch: Region::EMPTY,
            scratch_parts: Parts::default(),
            scratch_scale: wide::scale(&schedule.spec, job.dtype),
            leaf_memory: Region::EMPTY,
            leaves: if uses_scratch { schedule.leaves } else { 0 },
            leaf_bytes: 0,
            input_cut,
            output_cut,
            held: Vec::new(),
            owned,
        };
        if buffers.leaves > 0 {
            let places = (buffers.leaves * plan.slices_in_flight.min(slices)) as usize;
            buffers.leaf_bytes = buffers.input_cut.longest_chunk_bytes() * buffers.scratch_scale;
            let block = self.scratch(places * buffers.leaf_bytes);
            buffers.leaf_memory = block.region();
            buffers.owned.push(block);
        }
        if uses_scratch && schedule.scratch {
            let cut = buffers.scratch_cut();
            let channels = plan.channels.len() as u32;
            let parts = cut.scratch_parts(channels, plan.slices_in_flight);
            let block = self.scratch(cut.scratch_bytes(&parts) * buffers.scratch_scale);
            (buffers.scratch, buffers.scratch_parts) = (block.region(), parts);
            buffers.owned.push(block);
        }
        Ok(buffers)
    }

    /// Returns scratch memory of the engine for a call.
    fn scratch(&mut self, bytes: usize) -> Block {
        let Context {
            pool, transport, ..
        } = &mut self.context;
        scratch(pool, transport.as_mut(), bytes)
    }

    /// Checks that there is one weight for each rank, and that the schedule has chunks owned by
    /// ranks.
    fn check_weights(&self, job: &Job) -> Result<()> {
        let Some(weights) = &job.weights else {
            return Ok(());
        };
        let way = (job.collective, job.way.method(), job.way.access);
        if way != (Collective::AllReduce, Method::Direct, Access::Messages) {
            return Err(Error::Unsupported(format!(
                "weights for {} by `{}` over {}; only all_reduce by direct over messages has \
                    weights",
                job.collective,
                job.way.method(),
                job.way.access.medium()
            )));
        }
        if weights.each().len() != self.context.world_size {
            return Err(Error::InvalidArgument(format!(
                "{} weights for {} ranks",
                weights.each().len(),
                self.context.world_size
            )));
        }
        Ok(())
    }

    /// Checks that published slices fit their slots, for which the chooser is responsible.
    fn check_slot(&mut self, job: &Job, input: &Geometry, output: &Geometry) -> Result<()> {
        if !job.way.access.is_shared() {
            return Ok(());
        }
        let Some(slot_bytes) = self.context.windows.as_ref().map(Windows::slot_bytes) else {
            let why = "published memory: ranks are not all on one host";
            return Err(Error::Unsupported(why.into()));
        };
        let needed = match job.collective {
            AllGather | Gather | ReduceScatter | Scatter | AllToAll => input.slice_bytes(),
            _ => input.slice_bytes().max(output.slice_bytes()),
        };
        if needed > slot_bytes && job.count > 0 {
            return Err(Error::InvalidArgument(format!(
                "slices of {needed} bytes do not fit slots of {slot_bytes}"
            )));
        }
        Ok(())
    }

    /// Scales the input of `PremulSum`: into the output if the sum goes there anyway, else into a
    /// copy.
    fn scale_input(&mut self, job: &mut Job, owned: &mut Vec<Block>) -> Result<()> {
        let Op::PremulSum(factor) = job.op else {
            return Ok(());
        };
        if !job.collective.reduces() {
            return Ok(());
        }
        // The scaled input must be where peers can read it, if they are to push.
        let is_output_free = job.in_place || job.way.access == Access::Registered;
        let target = if job.collective == Collective::AllReduce && is_output_free {
            job.output
        } else {
            let block = self.scratch(job.input.bytes());
            let region = block.region().part(0..job.input.bytes());
            owned.push(block);
            region
        };
        reduce::scale(job.dtype, target, job.input, Factor::Multiply(factor))?;
        job.input = target;
        Ok(())
    }

    fn call(&mut self, job: &Job, straggler_policy: Option<u32>) -> Call {
        self.sequence += 1;
        let lists = lists(job);
        let count = match lists {
            0 => job.count,
            _ => job.count.min(LISTED_MAX),
        };
        let mut call = Call {
            sequence: self.sequence,
            ..job.announced(qualifier(job, straggler_policy), count, lists)
        };
        self.rooted.qualify(&mut call);
        call
    }

    /// Returns the factor of the results that this rank stores.
    fn factor_of_result(&self, job: &Job, plan: &ExecutionPlan, has_slots: bool) -> Option<Factor> {
        let stores = match has_slots {
            true => job.collective != Collective::Reduce || job.root == self.context.rank,
            false => plan.is_registered() || !job.output.is_empty(),
        };
        let is_scaled = job.op == Op::Avg && job.collective.reduces() && stores;
        is_scaled.then(|| Factor::average(job.dtype, self.context.world_size))
    }

    /// Returns the plan of `job` and its slices, for the slots of a device if there are such.
    fn plan_and_cut(
        &mut self,
        job: &Job,
        slots: Option<&dyn OwnSlots>,
    ) -> Result<(Arc<ExecutionPlan>, Slicing)> {
        let most = slices_in_flight(job.way.access);
        let plan = self.plan(job, most)?;
        let cut = Slicing::new(job, &plan, slots)?;
        let Some((slots, parts)) = slots.zip(cut.parts) else {
            return Ok((plan, cut));
        };
        let needed = match slots.parts_in_flight() {
            0 | 1 => most,
            // So many from the last slice of a part on lie in as many parts as may be in flight.
            in_flight => parts.slices.saturating_mul(in_flight - 1).saturating_add(1),
        };
        match needed < most {
            true => Ok((self.plan(job, needed)?, cut)),
            false => Ok((plan, cut)),
        }
    }

    /// Returns the plan of `job`, with at most so many slices in flight.
    fn plan(&mut self, job: &Job, slices_in_flight: u32) -> Result<Arc<ExecutionPlan>> {
        let mut spec = Spec {
            collective: job.collective,
            algorithm: job.way.algorithm,
            access: job.way.access,
            assignment: job.way.assignment,
            world_size: self.context.world_size as u32,
            rank: self.context.rank as u32,
            root: job.root as u32,
            hosts: self.hosts.clone(),
            is_reproducible: job.way.is_reproducible,
            is_wide: false,
        };
        if job.collective.reduces() {
            spec.widen(job.op, job.dtype);
        }
        let key = PlanKey {
            spec,
            in_place: job.in_place,
            channels: job.way.channels as u32,
            slices_in_flight,
        };
        let announce = || super::announce::plan(job, self.context.world_size);
        self.kept.steps.plan(key, announce)
    }
}

impl Job {
    /// Makes the job begin with an already scaled input, which is in `input`.
    fn continue_after_scaling(&mut self, input: Region) {
        if let Op::PremulSum(_) = self.op {
            self.op = Op::Sum;
            self.input = input;
            self.in_place |= input.is_same(self.output);
        }
    }
}

/// Returns the parts of `job` in `slots`, which a device brings unscaled.
fn own_parts(job: &Job, slots: Arc<dyn OwnSlots>, cut: DeviceParts) -> OwnParts {
    let factor = match job.op {
        Op::PremulSum(factor) if job.collective.reduces() => Some(Factor::Multiply(factor)),
        _ => None,
    };
    OwnParts { slots, cut, factor }
}

fn qualifier(job: &Job, straggler_policy: Option<u32>) -> Qualifier {
    match &job.weights {
        _ if job.collective.has_root() => Qualifier::Root(job.root as u32),
        _ if job.way.algorithm == Algorithm::Stragglar => Qualifier::LateRank(job.root as u32),
        _ if job.registers => Qualifier::Registration,
        weights => match (straggler_policy, weights) {
            (Some(mark), _) => Qualifier::StragglerPolicy(mark),
            (None, Some(weights)) => Qualifier::Weights(weights.mark()),
            (None, None) => Qualifier::None,
        },
    }
}

/// Returns the digest of the counts of each rank, which ranks compare: with different lists, they
/// would take pieces of each other's blocks.
fn lists(job: &Job) -> u32 {
    match job.collective {
        AllToAll if job.input_blocks.is_uneven() => PAIRWISE,
        AllGather | Gather => job.output_blocks.counts().map_or(0, list_digest),
        ReduceScatter | Scatter => job.input_blocks.counts().map_or(0, list_digest),
        _ => 0,
    }
}

/// Checks that an `ll` payload over published memory fits a slot's head, for which the chooser is
/// responsible.
fn check_inline(call: &Call, world_size: usize) -> Result<()> {
    if Inline::fits(call, world_size) {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "{call} over published memory: {LL_SHARED_BYTES} bytes at most from each rank, and only by \
         {}; use the protocol simple",
        part::algorithm(call.collective)
    )))
}
