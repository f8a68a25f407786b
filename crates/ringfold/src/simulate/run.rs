//! The event loop: all ranks' engines, driven through virtual time by one thread.
//!
//! A rank's engine is polled when an event concerns the rank, and at no other time. Events at the
//! same time occur in the order in which they were created; the ranks concerned are then polled, in
//! that order, before anything else. So a scenario has one outcome.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::control::Control;
use super::oracle::Oracle;
use super::prepare::{self, RankBuffers};
use super::report::{BrokenPromise, RankReport, Report};
use super::staged::Staged;
use super::timed::Timed;
use super::{Disturbance, Payload, Scenario};
use crate::engine::{Engine, Job};
use crate::error::{Error, Result};
use crate::memory::Pool;
use crate::simulate::network::{Sim, SimNetwork};
use crate::transport::{Time, Transport};

/// Simulates one call. Deterministic; blocks until it is complete, which takes about a microsecond
/// per event, plus with real payloads the time to move and compare the data.
///
/// # Errors
///
/// `InvalidArgument` and `Unsupported` for impossible scenarios. Errors within the simulation are
/// in the report.
pub fn run(scenario: &Scenario) -> Result<Report> {
    run_over(scenario, |_, transport| Box::new(transport))
}

/// Like [`run`], but wraps each rank's transport.
pub(crate) fn run_over(
    scenario: &Scenario,
    wrap: impl FnMut(usize, Sim) -> Box<dyn Transport>,
) -> Result<Report> {
    let mut simulation = Simulation::new(scenario, wrap)?;
    simulation.run()?;
    Ok(simulation.report())
}

/// Channel of the late-merge ring's signals: no collective has as many channels.
const SIGNAL_CHANNEL: usize = 255;

/// Progress of a rank.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// The rank has not made its call.
    Away,
    /// The rank's call is in progress.
    Running,
    /// The rank's call cannot continue, and the rank waits for the reason.
    Suspecting,
    /// The rank's process has ended.
    Dead,
    /// The rank's call has returned.
    Ended(Result<()>),
}

/// A simulated rank.
pub(super) struct SimulatedRank {
    pub engine: Engine,
    /// Calls not yet made: the scenario's; with barriers, the call untimed, a barrier, the call
    /// timed, and a barrier; with devices, those of its slices.
    pub jobs: VecDeque<Job>,
    /// Its staging memory, with devices.
    pub staged: Option<Staged>,
    /// Host calls that it has made of its slices.
    pub host_calls: u32,
    /// The timed call, if there are barriers around it.
    pub timed: Option<Timed>,
    pub buffers: RankBuffers,
    pub stage: Stage,
    pub begun_ps: u64,
    pub finished_ps: u64,
    /// Time of the rank's next planned wake-up.
    wake_ps: Option<u64>,
    /// The error of a call that the rank has not made yet.
    pub refusal: Option<Error>,
    /// Contents of the output when the call failed.
    pub output_kept: Option<Vec<u8>>,
}

impl SimulatedRank {
    pub fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Dead | Stage::Ended(_))
    }
}

/// A planned event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    /// A rank makes its call.
    Begin(usize),
    /// A rank's engine is polled again.
    Wake(usize),
    /// A rank's process ends.
    Die(usize),
    /// A rank's death is detected.
    Detect(usize),
    /// A verdict, by its number, reaches a rank.
    Verdict(usize, usize),
    /// A rank is asked for its progress, in the inquiry of that number.
    Answer(usize, u64),
    /// A deadline of the hub is due.
    Tick,
}

pub(super) struct Simulation {
    pub scenario: Scenario,
    pub network: SimNetwork,
    pub members: Vec<SimulatedRank>,
    pub oracle: Oracle,
    pub now: u64,
    agenda: BinaryHeap<Reverse<(u64, u64, Item)>>,
    planned: u64,
    /// Deadlines of calls. A deadline alone never makes a call succeed.
    deadlines: BinaryHeap<Reverse<(u64, usize)>>,
    touched: Vec<usize>,
    /// Number of ranks whose call has not returned.
    pub open: usize,
    pub promises: Vec<BrokenPromise>,
    pub control: Option<Control>,
}

impl Simulation {
    fn new(
        scenario: &Scenario,
        mut wrap: impl FnMut(usize, Sim) -> Box<dyn Transport>,
    ) -> Result<Simulation> {
        let (resolved, choice) = prepare::checked(scenario)?;
        let oracle = match scenario.payload {
            Payload::Real => Oracle::new(scenario)?,
            Payload::Hollow => Oracle::without_values(scenario),
        };
        let buffers = prepare::buffers(scenario, &oracle);
        let ranks = SimNetwork::new(scenario);
        let network = ranks[0].network.clone();
        let pool = Pool::default();
        let hosts = prepare::hosts(scenario);
        let mut members = Vec::with_capacity(scenario.ranks);
        for (rank, (transport, buffers)) in ranks.into_iter().zip(buffers).enumerate() {
            let transport = wrap(rank, transport);
            let mut engine = Engine::new(transport, rank, scenario.ranks, pool.clone());
            engine.set_hosts(hosts.clone());
            if let Some(policy) = scenario.straggler {
                engine.set_late_merge(policy, SIGNAL_CHANNEL);
            }
            let staged = Staged::new(scenario, rank)?;
            members.push(SimulatedRank {
                engine,
                jobs: match &staged {
                    Some(staged) => {
                        prepare::staged_jobs(scenario, &choice, rank, staged, &network)?
                    }
                    None => prepare::jobs(&resolved, &choice, rank, &buffers)?,
                },
                staged,
                host_calls: 0,
                timed: None,
                buffers,
                stage: Stage::Away,
                begun_ps: 0,
                finished_ps: 0,
                wake_ps: None,
                refusal: None,
                output_kept: None,
            });
        }
        let mut simulation = Simulation {
            scenario: resolved,
            network,
            open: members.len(),
            members,
            oracle,
            now: 0,
            agenda: BinaryHeap::new(),
            planned: 0,
            deadlines: BinaryHeap::new(),
            touched: Vec::new(),
            promises: Vec::new(),
            control: None,
        };
        simulation.plan_beginnings();
        Ok(simulation)
    }

    fn plan_beginnings(&mut self) {
        for (rank, at_ps) in self.scenario.begins_ps().into_iter().enumerate() {
            self.plan(at_ps, Item::Begin(rank));
        }
        for disturbance in &self.scenario.disturbances.clone() {
            if let Disturbance::Dead { rank, at_ps } = disturbance {
                self.plan(*at_ps, Item::Die(*rank));
            }
        }
    }

    /// Plans `item` for `at_ps`.
    pub fn plan(&mut self, at_ps: u64, item: Item) {
        self.agenda.push(Reverse((at_ps, self.planned, item)));
        self.planned += 1;
    }

    fn run(&mut self) -> Result<()> {
        loop {
            self.settle()?;
            if self.open == 0 {
                self.check_ended();
                return Ok(());
            }
            let planned = self.agenda.peek().map(|Reverse((at_ps, ..))| *at_ps);
            let network = self.network.world().next_event_ps();
            if planned.is_none() && network.is_none() {
                self.find_deadlock();
            }
            let deadline = self.deadlines.peek().map(|Reverse((at_ps, _))| *at_ps);
            let next = planned.into_iter().chain(network).chain(deadline).min();
            let next = next.expect("a call that has not returned has a deadline");
            self.now = self.now.max(next);
            self.network.world().advance(self.now);
            self.pass_deadlines();
        }
    }

    /// Processes everything that is due at this time.
    fn settle(&mut self) -> Result<()> {
        loop {
            while let Some(Reverse((at_ps, ..))) = self.agenda.peek()
                && *at_ps <= self.now
            {
                if let Some(Reverse((_, _, item))) = self.agenda.pop() {
                    self.come_up(item)?;
                }
            }
            self.move_copied();
            let mut touched = std::mem::take(&mut self.touched);
            self.network.world().take_touched(&mut touched);
            if touched.is_empty() {
                return Ok(());
            }
            for rank in touched.drain(..) {
                self.go_on(rank);
            }
            self.touched = touched;
        }
    }

    fn come_up(&mut self, item: Item) -> Result<()> {
        match item {
            Item::Begin(rank) => self.begin(rank)?,
            Item::Wake(rank) => {
                self.members[rank].wake_ps = None;
                self.touched.push(rank);
            }
            Item::Die(rank) => self.die(rank),
            Item::Detect(rank) => self.detect(rank),
            Item::Verdict(rank, verdict) => self.hear_verdict(rank, verdict)?,
            Item::Answer(rank, inquiry) => self.answer(rank, inquiry),
            Item::Tick => self.tick(),
        }
        Ok(())
    }

    fn begin(&mut self, rank: usize) -> Result<()> {
        if let Some(until_ps) = self.sleeps_until(rank) {
            self.plan(until_ps, Item::Begin(rank));
            return Ok(());
        }
        if !self.is_due(rank) {
            return Ok(());
        }
        let member = &self.members[rank];
        let is_away = matches!(member.stage, Stage::Away);
        if is_away && member.staged.is_some() && member.jobs.is_empty() {
            // A call of nothing has no slices.
            self.end(rank, Ok(()));
            return Ok(());
        }
        let now = self.time();
        let member = &mut self.members[rank];
        let Some(job) = member
            .jobs
            .pop_front()
            .filter(|_| matches!(member.stage, Stage::Away))
        else {
            return Ok(());
        };
        (member.stage, member.begun_ps) = (Stage::Running, self.now);
        if self.scenario.has_barriers && member.jobs.len() == 1 {
            let account = self.network.world().ranks[rank].account;
            member.timed = Some(Timed::begin(self.now, account));
        }
        if let Some(error) = member.refusal.take() {
            self.end(rank, Err(error));
            return Ok(());
        }
        member.engine.submit(job)?;
        // The first check sets the call's deadline.
        if let Err(error) = member.engine.check_deadlines(now) {
            self.fail(rank, error);
            return Ok(());
        }
        let deadline_ps = self.now.saturating_add(self.scenario.timeout_ps);
        self.deadlines.push(Reverse((deadline_ps, rank)));
        self.touched.push(rank);
        Ok(())
    }

    /// Drives a rank until it makes no progress.
    pub fn go_on(&mut self, rank: usize) {
        if let Some(until_ps) = self.sleeps_until(rank) {
            self.wake_at(rank, until_ps);
            return;
        }
        let now = self.time();
        let member = &mut self.members[rank];
        match member.stage {
            Stage::Running => {}
            Stage::Away if member.staged.is_some() => return self.go_on_with_slices(rank),
            _ => return,
        }
        loop {
            match member.engine.progress(now) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return self.fail(rank, error),
            }
            if member.engine.take_finished().is_some() {
                return self.finish(rank);
            }
        }
        // The network does not know the engine's timer.
        if let Some(timer) = member.engine.next_timer() {
            self.wake_at(rank, timer.0 as u64);
        }
        let member = &self.members[rank];
        // Wake for the rank's own event only: the network's events are processed anyway.
        let own = member.engine.next_event().map(|time| time.0 as u64);
        let network = self.network.world().next_event_ps().unwrap_or(u64::MAX);
        if let Some(at_ps) = own.filter(|at_ps| *at_ps < network) {
            self.wake_at(rank, at_ps);
        }
    }

    fn wake_at(&mut self, rank: usize, at_ps: u64) {
        let at_ps = at_ps.max(self.now);
        let member = &mut self.members[rank];
        if member.wake_ps.is_none_or(|planned| at_ps < planned) {
            member.wake_ps = Some(at_ps);
            self.plan(at_ps, Item::Wake(rank));
        }
    }

    /// Returns the end of the stall that the rank's process is in, if any.
    pub fn sleeps_until(&self, rank: usize) -> Option<u64> {
        self.scenario.frozen_until(rank, self.now)
    }

    /// Ends a rank's successful call, and plans the next.
    fn finish(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        if member.staged.is_some() {
            member.stage = Stage::Away;
            self.end_host_call(rank);
            return self.go_on_with_slices(rank);
        }
        if member.jobs.is_empty() {
            return self.end(rank, Ok(()));
        }
        if let (1, Some(timed)) = (member.jobs.len(), &mut member.timed) {
            let state = &self.network.world().ranks[rank];
            timed.end(self.now, state.account, state.cause);
        }
        member.stage = Stage::Away;
        self.plan(self.now, Item::Begin(rank));
    }

    /// Ends a rank, after all of its calls or after a failed one.
    pub fn end(&mut self, rank: usize, outcome: Result<()>) {
        let is_ok = outcome.is_ok();
        let member = &mut self.members[rank];
        (member.stage, member.finished_ps) = (Stage::Ended(outcome), self.now);
        self.open -= 1;
        if !is_ok {
            self.network.world().stop(rank);
            self.keep_output(rank);
        } else if self.scenario.payload == Payload::Real {
            self.check_result(rank);
        }
    }

    fn pass_deadlines(&mut self) {
        while let Some(Reverse((at_ps, rank))) = self.deadlines.peek().copied()
            && at_ps <= self.now
        {
            self.deadlines.pop();
            let now = self.time();
            if !matches!(self.members[rank].stage, Stage::Running) {
                continue;
            }
            if let Some(until_ps) = self.sleeps_until(rank) {
                self.deadlines.push(Reverse((until_ps, rank)));
                continue;
            }
            // A call whose data has arrived succeeds.
            self.go_on(rank);
            let member = &mut self.members[rank];
            if matches!(member.stage, Stage::Running) {
                match member.engine.check_deadlines(now) {
                    Err(error) => self.fail(rank, error),
                    // It has begun since: its data came late.
                    Ok(()) => {
                        let deadline_ps = self.now.saturating_add(self.scenario.timeout_ps);
                        self.deadlines.push(Reverse((deadline_ps, rank)));
                    }
                }
            }
        }
    }

    pub fn time(&self) -> Time {
        Time(self.now.into())
    }

    fn report(self) -> Report {
        let world = self.network.world();
        let ranks = self.members.iter().zip(&world.ranks).enumerate();
        let timed: Vec<Timed> = self
            .members
            .iter()
            .filter_map(|member| member.timed)
            .collect();
        let ranks = ranks.map(|(rank, (member, state))| {
            let (begun_ps, finished_ps, account) = match &member.timed {
                Some(timed) => (0, timed.finished_ps - timed.begun_ps, &timed.account),
                None if member.staged.is_some() => {
                    (state.begins_ps, member.finished_ps, &state.account)
                }
                None => (member.begun_ps, member.finished_ps, &state.account),
            };
            let outcome = match &member.stage {
                Stage::Ended(outcome) => outcome.clone(),
                _ => Err(Error::peer_failed(rank, "its process has ended")),
            };
            RankReport {
                finished_ps,
                outcome,
                sent_bytes: account.sent_bytes,
                sent_messages: account.sent_messages,
                reduce_ps: account.reduce_ps,
                waited_ps: (finished_ps - begun_ps).saturating_sub(account.computing_ps),
            }
        });
        let ranks = ranks.collect();
        Report::new(self.scenario, &world, ranks, &timed, self.promises)
    }
}
