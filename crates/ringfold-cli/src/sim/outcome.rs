//! One simulation: by the engine, or by the longest path where that gives the same times and they
//! are all that is asked.

use anyhow::{Result, bail};
use clap::ValueEnum;
use ringfold::Error;
use ringfold::internals::simulate::{self, Carried, LongestPath, Payload, Report, Scenario};

use super::vary::Value;
use crate::bench::Size;
use crate::numbers::bytes_label;
use crate::status::usage;

/// Up to this many ranks the engine is fast enough to report everything.
const ENGINE_RANKS: usize = 128;

/// What a step of an engine's plan and its state take, about.
const STEP_BYTES: u128 = 256;

/// How a simulation is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimulationMethod {
    /// `sweep` for many ranks, if it applies and only times are needed; else `engine`
    Auto,
    /// The library's engine, event by event
    Engine,
    /// The longest path through the schedule; applies if nothing contends
    #[value(name = "sweep")]
    LongestPath,
}

/// The results of every simulation.
#[derive(Clone, Debug)]
pub struct Summary {
    /// What was simulated, with what the tuner chose filled in.
    pub scenario: Scenario,
    pub finished_ps: u64,
    pub results_ps: u64,
    /// How long the copies take alone, with data on devices.
    pub limit_ps: Option<u64>,
    pub messages: u64,
    pub sent_bytes: u64,
    /// Things that happened; the longest path has none.
    pub events: Option<u64>,
    pub failed_ranks: usize,
    pub broken_promises: usize,
}

/// One simulation that was run, and what distinguishes it from the others.
pub struct Outcome {
    /// Which of `--compare`'s.
    pub variant: String,
    /// Which of `--sweep`'s.
    pub value: Option<Value>,
    pub summary: Summary,
    /// All about it, unless only the longest path was computed or it is not wanted.
    pub report: Option<Report>,
}

impl Outcome {
    /// What was simulated.
    pub fn scenario(&self) -> &Scenario {
        &self.summary.scenario
    }
}

impl Summary {
    fn of_report(report: &Report) -> Result<Summary> {
        let on_devices = report.scenario.devices.is_some();
        let limit_ps = on_devices.then(|| simulate::copies_alone_ps(&report.scenario));
        let failed = report.ranks.iter().filter(|rank| rank.outcome.is_err());
        Ok(Summary {
            scenario: report.scenario.clone(),
            finished_ps: report.finished_ps,
            results_ps: report.results_ps,
            limit_ps: limit_ps.transpose()?,
            messages: report.ranks.iter().map(|rank| rank.sent_messages).sum(),
            sent_bytes: report.ranks.iter().map(|rank| rank.sent_bytes).sum(),
            events: Some(report.events),
            failed_ranks: failed.count(),
            broken_promises: report.promises.len(),
        })
    }

    fn of_longest_path(report: LongestPath) -> Summary {
        Summary {
            finished_ps: report.finished_ps,
            results_ps: report.results_ps,
            limit_ps: None,
            messages: report.ranks.iter().map(|rank| rank.sent_messages).sum(),
            sent_bytes: report.ranks.iter().map(|rank| rank.sent_bytes).sum(),
            events: None,
            failed_ranks: 0,
            broken_promises: 0,
            scenario: report.scenario,
        }
    }

    /// Whether every call returned Ok and every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.failed_ranks == 0 && self.broken_promises == 0
    }

    /// The name of what was carried out: the host's algorithm, or what devices do instead.
    pub fn algorithm(&self) -> String {
        let carried = self.scenario.devices.as_ref().and_then(|it| it.carried);
        match carried.and_then(Carried::in_place_of_algorithm) {
            Some(name) => name.to_owned(),
            None => {
                let algorithm = self.scenario.algorithm;
                algorithm.map_or(String::new(), |algorithm| algorithm.to_string())
            }
        }
    }

    /// 10^9 bytes per second of the call, as nccl-tests defines them.
    pub fn algbw_gbps(&self) -> f64 {
        match self.finished_ps {
            0 => 0.0,
            ps => self.scenario.bytes as f64 / ps as f64 * 1e3,
        }
    }

    /// How much of the rate of the copies alone was reached, with data on devices. Nothing where a
    /// call failed, because not all was copied.
    pub fn of_limit(&self) -> Option<f64> {
        let limit_ps = self.limit_ps.filter(|_| self.failed_ranks == 0)?;
        Some(limit_ps as f64 / self.finished_ps.max(1) as f64)
    }

    pub fn busbw_gbps(&self) -> f64 {
        let Scenario {
            collective, ranks, ..
        } = self.scenario;
        self.algbw_gbps() * Size::bus_factor(collective, ranks)
    }
}

impl SimulationMethod {
    /// Whether only the longest path is computed. `needs_all`: more than times is asked.
    fn takes_longest_path(self, scenario: &Scenario, needs_all: bool) -> bool {
        match self {
            SimulationMethod::Engine => false,
            SimulationMethod::LongestPath => true,
            SimulationMethod::Auto => {
                !needs_all
                    && scenario.ranks > ENGINE_RANKS
                    && scenario.payload == Payload::Hollow
                    && simulate::fits_longest_path(scenario)
            }
        }
    }

    /// Refuses what would only drive the machine into swapping: an engine's rank has a plan.
    pub fn check(self, scenario: &Scenario, needs_all: bool) -> Result<()> {
        if self.takes_longest_path(scenario, needs_all) {
            return Ok(());
        }
        let ranks = scenario.ranks;
        let needed = simulate::steps(scenario)? as u128 * STEP_BYTES;
        match crate::info::memory_available_bytes() {
            Some(available) if needed > u128::from(available) => bail!(
                "the plans of {ranks} ranks may take {}, and {} are available; choose fewer ranks, \
                 or `--method sweep` for times alone",
                bytes_label(needed as f64),
                bytes_label(available as f64),
            ),
            _ => Ok(()),
        }
    }

    /// Simulates. The report is there if `needs_all` or the engine has run.
    pub fn simulate(
        self,
        scenario: &Scenario,
        needs_all: bool,
    ) -> Result<(Summary, Option<Report>)> {
        if self.takes_longest_path(scenario, needs_all) {
            match simulate::longest_path(scenario) {
                Ok(report) => return Ok((Summary::of_longest_path(report), None)),
                // Only the pass itself finds out whether the order of things is that of the rounds.
                Err(Error::Unsupported(_)) if self == SimulationMethod::Auto => {
                    SimulationMethod::Engine.check(scenario, needs_all)?
                }
                Err(error @ Error::Unsupported(_)) => return Err(usage(error.into())),
                Err(error) => return Err(error.into()),
            }
        }
        let report = simulate::run(scenario)?;
        Ok((Summary::of_report(&report)?, Some(report)))
    }
}
