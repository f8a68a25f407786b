//! From a scenario to the ranks' programs: the tuner's choice, the model of the machines, each
//! rank's call and buffers.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::network::SimNetwork;
use super::oracle::Oracle;
use super::staged::Staged;
use super::{Devices, Payload, Scenario};
use crate::call::Way;
use crate::communicator::Request;
use crate::engine::Job;
use crate::error::Result;
use crate::memory::{Owned, Region};
use crate::schedule::{Access, Groups, Schedule, Spec, Weights};
use crate::topology::machine::Machine;
use crate::tune::choose::choose;
use crate::tune::{Constants, Limits, Question, RdmaCosts, Tuning};
use crate::types::Collective;

/// A rank's buffers, which it may have in common with others where no data is moved.
#[derive(Clone)]
pub(super) struct RankBuffers {
    pub input: Arc<Owned>,
    pub output: Arc<Owned>,
    input_bytes: usize,
    output_bytes: usize,
}

impl RankBuffers {
    pub fn input(&self) -> Region {
        self.input.region().part(0..self.input_bytes)
    }

    pub fn output(&self) -> Region {
        self.output.region().part(0..self.output_bytes)
    }
}

/// The buffers of all ranks, filled where data is moved.
pub(super) fn buffers(scenario: &Scenario, oracle: &Oracle) -> Vec<RankBuffers> {
    let sizes: Vec<_> = (0..scenario.ranks)
        .map(|rank| oracle.buffer_bytes(rank))
        .collect();
    let shared = (scenario.payload == Payload::Hollow).then(|| {
        let largest = |of: fn(&(usize, usize)) -> usize| sizes.iter().map(of).max().unwrap_or(0);
        let [input, output] = [largest(|sizes| sizes.0), largest(|sizes| sizes.1)];
        (
            Arc::new(Owned::zeroed(input)),
            Arc::new(Owned::zeroed(output)),
        )
    });
    let of_rank = |(rank, &(input_bytes, output_bytes)): (usize, &(usize, usize))| {
        let (input, output) = shared.clone().unwrap_or_else(|| {
            let input = Owned::zeroed(input_bytes);
            oracle.fill(rank, input.region());
            (Arc::new(input), Arc::new(Owned::zeroed(output_bytes)))
        });
        RankBuffers {
            input,
            output,
            input_bytes,
            output_bytes,
        }
    };
    sizes.iter().enumerate().map(of_rank).collect()
}

/// The scenario with what the tuner would choose filled in: the algorithm and the pipeline's unit.
///
/// # Errors
///
/// `Unsupported` where nothing serves, `InvalidArgument` for scenarios that cannot be.
pub fn resolve(scenario: &Scenario) -> Result<Scenario> {
    Ok(checked(scenario)?.0)
}

/// A scenario with what the tuner would choose filled in, and the choice.
pub(super) fn checked(scenario: &Scenario) -> Result<(Scenario, Way)> {
    scenario.check()?;
    let choice = choice(scenario)?;
    let resolved = Scenario {
        algorithm: Some(choice.method()),
        slice_bytes: Some(choice.slice_bytes as u64),
        // An algorithm that was asked for would keep devices from it.
        devices: scenario.devices.clone().map(|devices| Devices {
            carried: scenario.carried(),
            ..devices
        }),
        ..scenario.clone()
    };
    Ok((resolved, choice))
}

/// The schedule of rank 0 in a call that is carried out like this.
pub(super) fn spec(scenario: &Scenario, choice: &Way) -> Spec {
    let ranks = scenario.ranks as u32;
    Spec {
        root: scenario.root as u32,
        hosts: hosts(scenario),
        ..Spec::new(
            scenario.collective,
            choice.algorithm,
            Access::Messages,
            ranks,
        )
    }
}

/// The ranks that share a host.
pub(super) fn hosts(scenario: &Scenario) -> Groups {
    let host = |rank| scenario.network.host(rank);
    Groups::new(&(0..scenario.ranks).map(host).collect::<Vec<_>>())
}

/// About how many steps the plans of all ranks have: the root's, and the others' as rank 1 has
/// them.
///
/// # Errors
///
/// As those of [`resolve`].
pub fn steps(scenario: &Scenario) -> Result<usize> {
    let (chosen, choice) = checked(scenario)?;
    let of_rank = |rank: usize| -> Result<usize> {
        let rank = rank as u32;
        let schedule = Schedule::new(Spec {
            rank,
            ..spec(&chosen, &choice)
        })?;
        Ok(schedule.channels.iter().map(Vec::len).sum())
    };
    let other = usize::from(chosen.root == 0).min(chosen.ranks - 1);
    Ok(of_rank(chosen.root)? + of_rank(other)? * (chosen.ranks - 1))
}

/// How the call is carried out: as the product would between hosts.
pub(super) fn choice(scenario: &Scenario) -> Result<Way> {
    // The same on every machine.
    static TUNING: OnceLock<Tuning> = OnceLock::new();
    let no_machine = || {
        let machine = Machine::read(Path::new("/nowhere"), 1);
        Tuning::new(Constants::default(), Limits::derive(&machine, 1))
    };
    let slice_bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut tuning = Tuning {
        slice_bytes: scenario.slice_bytes.map(slice_bytes),
        ..TUNING.get_or_init(no_machine).clone()
    };
    if scenario.network.links.grants.is_some() {
        tuning.constants = RdmaCosts::default().over(tuning.constants);
    }
    tuning.constants.load = scenario.network.load(scenario.ranks);
    let question = Question {
        hosts: hosts(scenario).count() as usize,
        runs: hosts(scenario).runs() as usize,
        are_blocks: hosts(scenario).are_blocks(scenario.ranks as u32),
        algorithm: scenario.algorithm,
        ..Question::new(scenario.collective, scenario.bytes, scenario.ranks)
    };
    let (has_weights, has_bypass) = (scenario.weights.is_some(), scenario.straggler.is_some());
    let question = question.with_policies(has_weights, has_bypass, &tuning.limits);
    choose(&question, &tuning)
}

/// The calls of one rank, in order.
pub(super) fn jobs(
    scenario: &Scenario,
    way: &Way,
    rank: usize,
    buffers: &RankBuffers,
) -> Result<VecDeque<Job>> {
    let own = || job(scenario, way, rank, buffers);
    if !scenario.has_barriers {
        return Ok([own()?].into());
    }
    let barrier = barrier(scenario);
    let barrier_way = choice(&barrier)?;
    let nothing = RankBuffers {
        input_bytes: 0,
        output_bytes: 0,
        ..buffers.clone()
    };
    let barrier = || job(&barrier, &barrier_way, rank, &nothing);
    Ok([own()?, barrier()?, own()?, barrier()?].into())
}

/// A barrier of the same ranks.
fn barrier(scenario: &Scenario) -> Scenario {
    Scenario {
        collective: Collective::Barrier,
        algorithm: None,
        bytes: 0,
        slice_bytes: None,
        weights: None,
        straggler: None,
        ..scenario.clone()
    }
}

/// The host's calls of one rank with data on devices, in order: one that handles slices by `way`,
/// or barriers around direct ones.
pub(super) fn staged_jobs(
    scenario: &Scenario,
    way: &Way,
    rank: usize,
    staged: &Staged,
    network: &SimNetwork,
) -> Result<VecDeque<Job>> {
    let Some(gate) = staged.own_slots(network, rank) else {
        let barrier = barrier(scenario);
        let way = choice(&barrier)?;
        let job = checked_job(scenario, &way, rank, &barrier.request())?;
        let count = staged.program().host_calls() as usize;
        return Ok(std::iter::repeat_n(job, count).collect());
    };
    let (request, way) = (scenario.request(), way.in_parts());
    let job = request.check_gated(rank, scenario.ranks, &way, timeout(scenario), gate)?;
    Ok([with_policies(scenario, &way, job)?].into())
}

/// One call of one rank.
fn job(scenario: &Scenario, way: &Way, rank: usize, buffers: &RankBuffers) -> Result<Job> {
    let request = Request {
        input: buffers.input(),
        output: buffers.output(),
        ..scenario.request()
    };
    checked_job(scenario, way, rank, &request)
}

fn checked_job(scenario: &Scenario, way: &Way, rank: usize, request: &Request) -> Result<Job> {
    let job = request.check(rank, scenario.ranks, way, timeout(scenario))?;
    with_policies(scenario, way, job)
}

fn timeout(scenario: &Scenario) -> Duration {
    Duration::from_nanos(scenario.timeout_ps.div_ceil(1000))
}

fn with_policies(scenario: &Scenario, way: &Way, mut job: Job) -> Result<Job> {
    // `stragglar` expects the root last.
    job.root = scenario.root;
    let weights = scenario.weights.as_ref().filter(|_| way.is_weighted);
    job.weights = weights.map(|each| Weights::new(each, 1)).transpose()?;
    Ok(job)
}
