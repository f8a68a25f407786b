//! The engine's side of tiny calls, which need no plan and no poll: prepares their kinds, begins
//! and advances calls.

use super::executors::AnyExecutor;
use super::running::Running;
use super::tiny::{Tiny, TinyKinds};
use super::{Engine, Job, JobId, announce};
use crate::call::Call;
use crate::error::Result;
use crate::transport::Windows;

/// Maximum number of prepared kinds of tiny calls: programs alternate between a few.
const KINDS_MAX: usize = 4;

impl Engine {
    /// Begins `job` as a tiny call. Returns `None` if, for example, another call is under way or
    /// the slot is not free; the job is then to be submitted.
    #[inline]
    pub fn begin_tiny(&mut self, job: &Job) -> Result<Option<JobId>> {
        let generation = self.generation;
        let is_free = |windows: &mut Windows| windows.is_free(generation);
        if !self.is_idle()
            || (job.way.registered.is_some() && self.context.registry.is_used())
            || !self.context.windows.as_mut().is_some_and(is_free)
        {
            return Ok(None);
        }
        let Some(id) = self.select_tiny(job)? else {
            return Ok(None);
        };
        let Some(windows) = self.context.windows.as_mut() else {
            return Ok(None);
        };
        self.context.unverified.verify_before(windows, generation)?;
        let Some(Running {
            operation,
            executor: AnyExecutor::Tiny(tiny),
            ..
        }) = &mut self.calls[id]
        else {
            return Ok(None);
        };
        self.sequence += 1;
        self.generation += 1;
        let buffers = &mut operation.buffers;
        (buffers.input, buffers.output) = (job.input, job.output);
        (operation.timeout, operation.deadline) = (job.timeout, None);
        (operation.call.sequence, operation.first_generation) = (self.sequence, generation);
        self.rooted.qualify(&mut operation.call);
        self.queue.push_back(id);
        tiny.begin(
            operation,
            windows,
            self.context.rank,
            self.context.world_size,
        );
        Ok(Some(JobId::collective(id)))
    }

    /// Runs only the tiny call under way; returns whether the call is done. The call's end is
    /// reported here, not by [`Engine::take_finished`].
    #[inline]
    pub fn advance_tiny(&mut self) -> Result<bool> {
        let id = *self.queue.front().expect("a tiny call is under way");
        let Some(Running {
            operation,
            executor: AnyExecutor::Tiny(tiny),
            ..
        }) = &mut self.calls[id]
        else {
            unreachable!("the call under way is a tiny one");
        };
        let is_done = tiny.advance(operation, &mut self.context)?;
        if is_done {
            self.queue.pop_front();
            self.context.lateness.end_call();
            self.context.compare_calls(operation)?;
        }
        Ok(is_done)
    }

    /// Returns the prepared call of the kind of `job`; `None` if there is no such tiny call.
    #[inline]
    fn select_tiny(&mut self, job: &Job) -> Result<Option<usize>> {
        let call = job.tiny_call();
        let key = call.words();
        let TinyKinds { kinds, last, .. } = &mut self.tiny;
        if let Some(index) = kinds.iter().position(|(known, _)| *known == key) {
            *last = index;
            return Ok(Some(kinds[index].1));
        }
        self.prepare_tiny(job, call)
    }

    /// Returns the number of kinds of tiny calls prepared so far. While this count is unchanged,
    /// tiny calls with the same job number are alike but for their memory.
    #[inline]
    pub fn tiny_kinds_prepared(&self) -> u64 {
        self.tiny.prepared
    }

    #[cold]
    fn prepare_tiny(&mut self, job: &Job, call: Call) -> Result<Option<usize>> {
        let (rank, world_size) = (self.context.rank, self.context.world_size);
        let Some((operation, tiny)) = Tiny::prepare(job, call, rank, world_size)? else {
            return Ok(None);
        };
        let running = Running::new(operation, AnyExecutor::Tiny(tiny));
        let key = call.words();
        self.tiny.prepared += 1;
        let count = self.tiny.kinds.len();
        if count == 0 {
            announce::tiny(job, world_size);
        }
        if count < KINDS_MAX {
            let id = self.place(running);
            self.tiny.kinds.push((key, id));
            self.tiny.last = count;
            return Ok(Some(id));
        }
        self.tiny.last = (self.tiny.last + 1) % KINDS_MAX;
        let (known, id) = &mut self.tiny.kinds[self.tiny.last];
        *known = key;
        self.calls[*id] = Some(running);
        Ok(Some(*id))
    }
}
