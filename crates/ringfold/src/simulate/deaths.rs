//! Deaths, suspicions and verdicts. The hub and the peers detect a death `detect_ps` after it.

use std::time::Instant;

use super::control::{COMMUNICATOR, Control};
use super::run::{Item, Simulation, Stage};
use crate::control::Standing;
use crate::control::fault::Fault;
use crate::control::frame::Frame;
use crate::control::hub::Hub;
use crate::error::{Error, Result};

impl Simulation {
    /// Ends a rank's process; no other rank knows of the death yet.
    pub fn die(&mut self, rank: usize) {
        self.network.world().stop(rank);
        let member = &mut self.members[rank];
        if !matches!(member.stage, Stage::Ended(_)) {
            member.stage = Stage::Dead;
            member.finished_ps = self.now;
            self.open -= 1;
        }
        self.plan(
            self.now.saturating_add(self.scenario.detect_ps),
            Item::Detect(rank),
        );
    }

    /// Tells the peers and the hub that a rank's process has ended.
    pub fn detect(&mut self, rank: usize) {
        self.network.world().leave(rank);
        self.with_hub(|hub, _| hub.lose(rank as u32, "its process has ended"));
    }

    /// Fails a call. On a fatal error, the hub gets a report and the rank waits for the verdict.
    pub fn fail(&mut self, rank: usize, error: Error) {
        if !error.is_fatal() {
            return self.end(rank, Err(error));
        }
        self.network.world().stop(rank);
        self.members[rank].stage = Stage::Suspecting;
        self.keep_output(rank);
        let members: Vec<u32> = (0..self.members.len() as u32).collect();
        let report = Frame::Report {
            communicator: COMMUNICATOR,
            fault: Fault::from_error(&error, &members, rank),
        };
        self.with_hub(|hub, now| {
            // The hub rejects the report of a rank that was lost meanwhile.
            let _ = hub.receive(rank as u32, report, now);
        });
    }

    /// Delivers a verdict to a rank.
    pub fn hear_verdict(&mut self, rank: usize, verdict: usize) -> Result<()> {
        if let Some(until_ps) = self.sleeps_until(rank) {
            self.plan(until_ps, Item::Verdict(rank, verdict));
            return Ok(());
        }
        // A call whose data has arrived succeeds.
        self.go_on(rank);
        let members: Vec<u32> = (0..self.members.len() as u32).collect();
        let Some(control) = &self.control else {
            return Ok(());
        };
        let error = control.verdicts[verdict].to_error(&members);
        let member = &mut self.members[rank];
        match member.stage {
            Stage::Away => member.refusal = Some(error),
            Stage::Running | Stage::Suspecting => {
                let error = match member.engine.running_site() {
                    Some(site) => error.at(site),
                    None => error,
                };
                self.end(rank, Err(error));
            }
            Stage::Dead | Stage::Ended(_) => {}
        }
        Ok(())
    }

    /// Answers an inquiry of the hub with a rank's progress.
    pub fn answer(&mut self, rank: usize, inquiry: u64) {
        if let Some(until_ps) = self.sleeps_until(rank) {
            return self.plan(until_ps, Item::Answer(rank, inquiry));
        }
        let begun = match self.members[rank].stage {
            Stage::Dead => return,
            Stage::Away => 0,
            _ => 1,
        };
        let answer = Frame::Answer {
            communicator: COMMUNICATOR,
            inquiry,
            standing: Standing {
                begun,
                ..Standing::default()
            },
        };
        self.with_hub(|hub, now| {
            let _ = hub.receive(rank as u32, answer, now);
        });
    }

    /// Makes the hub handle the deadlines that have passed.
    pub fn tick(&mut self) {
        self.with_hub(|hub, now| hub.tick(now));
    }

    /// Runs `f` on the hub, then plans the delivery of its output and its next deadline.
    fn with_hub(&mut self, f: impl FnOnce(&mut Hub, Instant)) {
        let ranks = self.members.len();
        let mut control = self.control.take().unwrap_or_else(|| Control::new(ranks));
        let now = control.instant(self.now);
        f(&mut control.hub, now);
        let latency_ps = self.scenario.network.links.alpha_ps;
        for (to, frame) in control.hub.take_output() {
            match frame {
                Frame::Verdict { fault, .. } => {
                    if control.verdicts.last() != Some(&fault) {
                        control.verdicts.push(fault);
                    }
                    let item = Item::Verdict(to as usize, control.verdicts.len() - 1);
                    self.plan(self.now + latency_ps, item);
                }
                Frame::Inquiry { inquiry, .. } => {
                    let item = Item::Answer(to as usize, inquiry);
                    self.plan(self.now + 2 * latency_ps, item);
                }
                _ => {}
            }
        }
        if let Some(deadline) = control.hub.next_deadline() {
            let after = deadline.duration_since(control.origin).as_nanos() as u64;
            self.plan(after.saturating_mul(1000), Item::Tick);
        }
        self.control = Some(control);
    }
}
