//! The promises of the design, checked while a simulation runs and at its end.

use super::report::{BrokenPromise, Promise};
use super::run::{Simulation, Stage};
use super::{Disturbance, Payload};
use crate::control::standing::INQUIRY;
use crate::error::{Error, Ranks};

impl Simulation {
    pub fn broken(&mut self, promise: Promise, rank: Option<usize>, what: String) {
        self.promises.push(BrokenPromise {
            promise,
            at_ps: self.now,
            rank,
            what,
        });
    }

    /// Checks that a call that returned Ok has the right result.
    pub fn check_result(&mut self, rank: usize) {
        let output = self.members[rank].buffers.output();
        if let Some(byte) = self.oracle.first_wrong(rank, output) {
            let what = format!("the call returned Ok, but its result is wrong from byte {byte} on");
            self.broken(Promise::Exact, Some(rank), what);
        }
    }

    /// Saves the output of a rank whose call has failed.
    pub fn keep_output(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        if self.scenario.payload == Payload::Real && member.output_kept.is_none() {
            let output = member.buffers.output();
            let mut bytes = vec![0; output.bytes()];
            output.read(&mut bytes);
            member.output_kept = Some(bytes);
        }
    }

    /// Reports a deadlock if only deadlines are left and a rank waits, unless a fault excuses that.
    pub fn find_deadlock(&mut self) {
        let mut members = self.members.iter();
        let is_excused = self.control.is_some()
            || members.any(|member| matches!(member.stage, Stage::Dead | Stage::Ended(Err(_))));
        if is_excused
            || self
                .promises
                .iter()
                .any(|broken| broken.promise == Promise::NoDeadlock)
        {
            return;
        }
        let running = self.members.iter_mut().enumerate();
        let waits = running.filter(|(_, member)| matches!(member.stage, Stage::Running));
        let waits = waits.map(|(rank, member)| {
            format!(
                "rank {rank} waits for {}",
                Ranks(&member.engine.waiting_for())
            )
        });
        let what = waits.collect::<Vec<_>>().join("; ");
        self.broken(Promise::NoDeadlock, None, what);
    }

    /// Checks the promises that can be judged when all calls have returned.
    pub fn check_ended(&mut self) {
        self.check_untouched();
        self.check_delivered();
        self.check_classes();
        let deaths = self.deaths();
        for rank in 0..self.members.len() {
            self.check_deadline(rank);
            if !deaths.is_empty() {
                self.check_detection(rank, &deaths);
            }
        }
    }

    fn check_untouched(&mut self) {
        for rank in 0..self.members.len() {
            let member = &self.members[rank];
            let Some(kept) = &member.output_kept else {
                continue;
            };
            let mut bytes = vec![0; kept.len()];
            member.buffers.output().read(&mut bytes);
            if bytes != *kept {
                let what = "the output was written after the call had failed".into();
                self.broken(Promise::Untouched, Some(rank), what);
            }
        }
    }

    /// Checks that a successful call consumed every message: with right results, exactly once.
    fn check_delivered(&mut self) {
        let is_ok = |stage: &Stage| matches!(stage, Stage::Ended(Ok(())));
        let is_well = self.members.iter().all(|member| is_ok(&member.stage));
        if !is_well {
            return;
        }
        let left_over = self.network.world().left_over();
        for (rank, messages) in left_over {
            let what = format!("{messages} messages with data were never consumed");
            self.broken(Promise::ExactlyOnce, Some(rank), what);
        }
    }

    fn check_classes(&mut self) {
        let errors = self
            .members
            .iter()
            .enumerate()
            .filter_map(|(rank, member)| match &member.stage {
                Stage::Ended(Err(error)) => Some((rank, error.class())),
                _ => None,
            });
        let errors: Vec<_> = errors.collect();
        if let Some((first, class)) = errors.first().copied() {
            for (rank, other) in errors.into_iter().filter(|(_, other)| *other != class) {
                let what = format!("{other} on this rank, but {class} on rank {first}");
                self.broken(Promise::SameClass, Some(rank), what);
            }
        }
    }

    fn check_deadline(&mut self, rank: usize) {
        let member = &self.members[rank];
        let inquiry_ps = INQUIRY.as_nanos() as u64 * 1000;
        let latencies_ps = 4 * self.scenario.network.links.alpha_ps;
        let due_ps = member
            .begun_ps
            .saturating_add(self.scenario.timeout_ps)
            .saturating_add(inquiry_ps + latencies_ps);
        let due_ps = self.awake_from(rank, due_ps);
        if member.finished_ps > due_ps {
            let what = format!(
                "the call returned at {} ps, due by {due_ps} ps",
                member.finished_ps
            );
            self.broken(Promise::Deadline, Some(rank), what);
        }
    }

    /// Returns the deaths during the call: rank and time.
    fn deaths(&self) -> Vec<(usize, u64)> {
        let disturbances = self.scenario.disturbances.iter();
        let deaths = disturbances.filter_map(|disturbance| match *disturbance {
            Disturbance::Dead { rank, at_ps } => Some((rank, at_ps)),
            _ => None,
        });
        deaths.filter(|(_, at_ps)| *at_ps <= self.now).collect()
    }

    /// Checks that a survivor of deaths has its result, or learned in time which rank died.
    fn check_detection(&mut self, rank: usize, deaths: &[(usize, u64)]) {
        let Some((_, first_ps)) = deaths.iter().min_by_key(|(_, at_ps)| *at_ps) else {
            return;
        };
        let latency_ps = self.scenario.network.links.alpha_ps;
        let bound_ps = first_ps.saturating_add(self.scenario.detect_ps + latency_ps);
        let member = &self.members[rank];
        let due_ps = self.awake_from(rank, bound_ps.max(member.begun_ps));
        let finished_ps = member.finished_ps;
        let what = match &member.stage {
            Stage::Ended(Err(Error::PeerFailed { rank: blamed, .. })) => {
                let is_right = deaths.iter().any(|(dead, _)| dead == blamed);
                match (is_right, finished_ps <= due_ps) {
                    (true, true) => return,
                    (false, _) => format!("blamed rank {blamed}, which is alive"),
                    (true, false) => {
                        format!("learned of the death at {finished_ps} ps, due by {due_ps} ps")
                    }
                }
            }
            // The rank's own deadline was earlier.
            Stage::Ended(Err(_)) if finished_ps <= due_ps => return,
            Stage::Ended(Err(error)) => format!("{} instead of a failed peer", error.class()),
            _ => return,
        };
        self.broken(Promise::Detection, Some(rank), what);
    }

    /// Returns the end of the rank's stalls that include `at_ps`, or `at_ps` itself.
    fn awake_from(&self, rank: usize, at_ps: u64) -> u64 {
        self.scenario.frozen_until(rank, at_ps).unwrap_or(at_ps)
    }
}
