//! Processors: reductions, copies and overheads, which wait for their rank's server and their
//! machine's cores, first come, first served.
//!
//! With turns ([`Compute::has_turns`](crate::simulate::Compute::has_turns)), a rank is a thread: it
//! keeps its core while it has something to do, and then polls for a while. After that, the rank
//! sleeps, and its next job is delayed by the wake-up time.

use super::event::ScheduledEvent;
use super::job::{JobKind, ProcessorJob, Then};
use super::message::{Message, Receive};
use super::record::{PathKind, TimelineLane, TraceEvent};
use super::world::World;
use crate::simulate::model::Server;
use crate::transport::Sink;

impl World {
    /// Counts a reduction of `rank`. Returns its additional duration: 0 unless it is slow.
    pub fn count_reduction(&mut self, rank: u32) -> u64 {
        let state = &mut self.ranks[rank as usize];
        state.reductions += 1;
        let (step, random) = (state.reductions, &mut state.random);
        let slow = self.scenario.slow();
        slow.map(|slow| slow.delay_ps(rank as usize, step, random))
            .sum()
    }

    /// Records that a reduction of `duration_ps` is done.
    pub fn note_reduction(&mut self, rank: u32, duration_ps: u64) {
        let account = &mut self.ranks[rank as usize].account;
        account.reduce_ps += duration_ps;
        account.last_reduction_ps = Some(self.now);
    }

    /// Puts a job in its machine's queue.
    pub fn submit(&mut self, job: ProcessorJob) {
        let machine = self.scenario.network.machine(job.rank as usize);
        let job = self.jobs.add(job);
        self.machines[machine].queue.push_back(job);
        self.dispatch(machine);
    }

    /// Begins all jobs of a machine that can begin.
    fn dispatch(&mut self, machine: usize) {
        let mut at = 0;
        while let Some(&job) = self.machines[machine].queue.get(at) {
            if self.can_begin(machine, job) {
                self.machines[machine].queue.remove(at);
                self.begin(machine, job);
            } else {
                at += 1;
            }
        }
    }

    /// Whether a job's rank is free for the job, and has a core or can get one.
    fn can_begin(&self, machine: usize, job: u32) -> bool {
        let job = self.jobs.see(job);
        let state = &self.ranks[job.rank as usize];
        let shared = &self.machines[machine];
        if !state.keeps_core && shared.cores_free == 0 && shared.polling.is_empty() {
            return false;
        }
        match (self.scenario.compute.server, job.kind) {
            (Server::Serial, _) => !state.is_server_busy,
            (Server::Parallel, JobKind::Overhead) => !state.is_messaging,
            (Server::Parallel, _) => true,
        }
    }

    fn begin(&mut self, machine: usize, number: u32) {
        let job = self.jobs.at(number);
        let (rank, kind, bytes) = (job.rank, job.kind, job.bytes);
        let duration_ps = job.duration_ps + job.slow_ps;
        let state = &mut self.ranks[rank as usize];
        let is_first = state.turn == 0;
        state.turn += 1;
        let compute = &self.scenario.compute;
        let is_asleep = std::mem::take(&mut state.is_asleep)
            || is_first && self.now > state.begins_ps + self.spin_ps;
        let (wake_ps, switch_ps) = (compute.wake_ps, compute.switch_ps);
        let delay_ps = if self.stop_polling(machine, rank) {
            0
        } else if self.machines[machine].cores_free > 0 {
            self.machines[machine].cores_free -= 1;
            if is_asleep { wake_ps } else { 0 }
        } else {
            let polling = self.machines[machine].polling.front().copied();
            self.stop_polling(machine, polling.expect("a job that can begin has a core"));
            switch_ps
        };
        let now = self.now + delay_ps;
        let job = self.jobs.at(number);
        job.begin_ps = now;
        job.part = self
            .record
            .extend(job.part, PathKind::Queue, (rank, None), now);
        let state = &mut self.ranks[rank as usize];
        match kind {
            JobKind::Overhead if self.scenario.compute.server == Server::Parallel => {
                state.is_messaging = true;
            }
            _ => state.is_server_busy = true,
        }
        if state.computing == 0 {
            state.computing_since_ps = now;
        }
        state.computing += 1;
        let end_ps = after_stalls(&state.stalls, now, duration_ps);
        let end_ps = end_ps.max(self.pass_memory(machine, now, bytes));
        self.schedule(end_ps, ScheduledEvent::JobDone(number));
    }

    /// Takes away the core that a rank keeps between jobs; returns whether the rank kept one.
    fn stop_polling(&mut self, machine: usize, rank: u32) -> bool {
        let state = &mut self.ranks[rank as usize];
        if std::mem::take(&mut state.polls) {
            let polling = &mut self.machines[machine].polling;
            polling.retain(|other| *other != rank);
        }
        std::mem::take(&mut state.keeps_core)
    }

    /// Reserves a machine's memory for `bytes` from `from_ps` on; returns when they have passed.
    pub fn pass_memory(&mut self, machine: usize, from_ps: u64, bytes: u64) -> u64 {
        let Some(ps_per_byte) = self.scenario.network.memory_ps_per_byte else {
            return from_ps;
        };
        if bytes == 0 {
            return from_ps;
        }
        let until = &mut self.machines[machine].memory_until_ps;
        *until = from_ps.max(*until) + bytes * ps_per_byte;
        *until
    }

    pub fn job_done(&mut self, number: u32) {
        let now = self.now;
        let job = self.jobs.take(number);
        let rank = job.rank;
        let machine = self.scenario.network.machine(rank as usize);
        let state = &mut self.ranks[rank as usize];
        if self.scenario.compute.has_turns() {
            state.keeps_core = true;
            let turn = state.turn;
            // The rank's engine sees the result first.
            if self.is_crowded {
                self.schedule(now + 1, ScheduledEvent::Poll { rank, turn });
            }
            self.schedule(
                now + self.spin_ps.max(1),
                ScheduledEvent::Sleep { rank, turn },
            );
        } else {
            self.machines[machine].cores_free += 1;
        }
        let state = &mut self.ranks[rank as usize];
        match job.kind {
            JobKind::Overhead if self.scenario.compute.server == Server::Parallel => {
                state.is_messaging = false;
            }
            _ => state.is_server_busy = false,
        }
        state.computing -= 1;
        if state.computing == 0 {
            state.account.computing_ps += now - state.computing_since_ps;
        }
        match state.is_stopped {
            true => self.abandon(job),
            false => self.finish(job),
        }
        self.dispatch(machine);
    }

    /// Drops a job of a rank that has stopped, with its message: one that has not left its sender
    /// will never arrive.
    fn abandon(&mut self, job: ProcessorJob) {
        match job.then {
            Then::Offer(number) => {
                let message = self.messages.take(number);
                let (to, source) = (message.to, (message.from, message.channel));
                self.incoming(to, source).under_way -= 1;
                self.touch(to);
            }
            Then::Deliver(number, _) | Then::Fold(number, _) => {
                self.messages.take(number);
            }
            Then::Report(_) | Then::Combined(_) => {}
        }
    }

    /// Makes a rank poll, and yield its core to others, if it has had nothing to do since `turn`.
    pub fn poll_for_work(&mut self, rank: u32, turn: u32) {
        let state = &mut self.ranks[rank as usize];
        if state.turn != turn || !state.keeps_core {
            return;
        }
        state.polls = true;
        let machine = self.scenario.network.machine(rank as usize);
        self.machines[machine].polling.push_back(rank);
        self.dispatch(machine);
    }

    /// Puts a rank to sleep if it has had nothing to do since `turn`.
    pub fn sleep(&mut self, rank: u32, turn: u32) {
        let state = &mut self.ranks[rank as usize];
        if state.turn != turn {
            return;
        }
        state.is_asleep = true;
        let machine = self.scenario.network.machine(rank as usize);
        if self.stop_polling(machine, rank) {
            self.machines[machine].cores_free += 1;
            self.dispatch(machine);
        }
    }

    fn finish(&mut self, job: ProcessorJob) {
        let (now, rank) = (self.now, job.rank);
        let (kind, lane) = match job.kind {
            JobKind::Overhead => (PathKind::Overhead, TimelineLane::Overhead),
            JobKind::Reduce => (PathKind::Reduce, TimelineLane::Reduce),
            JobKind::Copy => (PathKind::Copy, TimelineLane::Copy),
        };
        let slow_from_ps = match job.slow_ps {
            0 => now,
            _ => now.min(job.begin_ps + job.duration_ps),
        };
        let part = self
            .record
            .extend(job.part, kind, (rank, None), slow_from_ps);
        let part = self.record.extend(part, PathKind::Slow, (rank, None), now);
        let event = TraceEvent {
            rank: rank as usize,
            lane,
            begin_ps: job.begin_ps,
            end_ps: slow_from_ps,
            peer: job.peer.map(|peer| peer as usize),
            bytes: job.bytes,
            slice: job.slice,
        };
        self.record.note(event);
        self.record.note(TraceEvent {
            lane: TimelineLane::Slow,
            begin_ps: slow_from_ps,
            end_ps: now,
            ..event
        });
        if job.kind == JobKind::Reduce {
            self.note_reduction(rank, now - job.begin_ps);
        }
        self.follow(job.then, rank, part);
    }

    /// Carries out the action after a job of `rank`.
    pub fn follow(&mut self, then: Then, rank: u32, part: u32) {
        match then {
            Then::Offer(message) => {
                self.messages.at(message).part = part;
                self.offer(message);
            }
            Then::Deliver(message, receive) => self.deliver(message, receive, part),
            Then::Fold(message, receive) => self.fold(message, receive, part),
            Then::Report(ticket) => self.complete(rank, ticket, part),
            Then::Combined(releases) => self.share_combined(rank, part, releases),
        }
    }

    /// Reduces a message that a processor has worked on.
    fn fold(&mut self, message: u32, receive: Receive, part: u32) {
        let message = self.messages.take(message);
        self.absorb(&receive.sink, &message);
        if message.is_last() {
            self.complete(message.to, receive.ticket, part);
            self.ask_for_next(message.to);
        }
    }

    /// Stores or reduces a message's payload, if data is moved.
    pub fn absorb(&self, sink: &Sink, message: &Message) {
        if let Some(payload) = &message.payload {
            sink.absorb(message.offset as usize, payload.region());
        }
    }
}

/// Returns the completion time of work of this duration that begins at `from_ps` and pauses during
/// stalls, which are in order.
fn after_stalls(stalls: &[(u64, u64)], from_ps: u64, duration_ps: u64) -> u64 {
    let (mut at, mut left) = (from_ps, duration_ps);
    for &(begin, end) in stalls {
        if end <= at {
            continue;
        }
        if at + left <= begin {
            break;
        }
        left -= begin.saturating_sub(at);
        at = end;
    }
    at + left
}

#[cfg(test)]
mod tests {
    use super::after_stalls;

    #[test]
    fn work_rests_in_stalls() {
        let stalls = [(10, 20), (30, 40)];
        let cases = [
            ((0, 10), 10),
            ((0, 11), 21),
            ((0, 25), 45),
            ((15, 5), 25),
            ((15, 0), 20),
            ((20, 10), 30),
            ((50, 7), 57),
        ];
        for ((from, duration), due) in cases {
            assert_eq!(
                after_stalls(&stalls, from, duration),
                due,
                "{from}, {duration}"
            );
        }
    }
}
