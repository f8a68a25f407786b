//! Scenarios for other simulators: the schedules of all ranks as a GOAL text, which LogGOPSim reads
//! (Hoefler, Siebert & Lumsdaine, "Group Operation Assembly Language - a flexible way to express
//! collective communication", 2009; "LogGOPSim", 2010).
//!
//! Each step is a `send`, a `recv` or a `calc`; a receive with reduction is a `recv` and a `calc`
//! after it. `requires` names a step that must be complete before, `irequires` one that must have
//! begun: steps are issued in order. A message's tag is its number among those of its pair. A
//! `calc` is in picoseconds. The `calc`s of one `cpu` run in sequence; with a parallel server each
//! `calc` has its own `cpu`. Sizes are bytes of one slice. The text does not specify the network:
//! the simulator that reads the text does.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::longest_path::source::ChunkOffsets;
use super::{Scenario, Server, prepare};
use crate::error::{Error, Result};
use crate::schedule::check::schedules;
use crate::schedule::{Action, Schedule, Span, dependence};

/// Returns the GOAL text of a scenario's call in one slice. The text ignores disturbances, except
/// for late ranks, which begin with a `calc`.
///
/// # Errors
///
/// `InvalidArgument` for impossible scenarios, among them those of more than 512 ranks;
/// `Unsupported` for weights, straggler policies and devices, which are not part of a schedule.
pub fn export(scenario: &Scenario) -> Result<String> {
    let (_, choice) = prepare::checked(scenario)?;
    let has_more = scenario.weights.is_some() || scenario.straggler.is_some();
    if has_more || scenario.devices.is_some() {
        let text = "weights, straggler policies and devices as GOAL; export the plain schedule";
        return Err(Error::Unsupported(text.into()));
    }
    let schedules = schedules(&prepare::spec(scenario, &choice))?;
    let mut text = format!("num_ranks {}\n", scenario.ranks);
    for (schedule, begin_ps) in schedules.iter().zip(scenario.begins_ps()) {
        Exporter::new(scenario, schedule).write(begin_ps, &mut text)?;
    }
    Ok(text)
}

/// Writer of one rank's text.
struct Exporter<'a> {
    scenario: &'a Scenario,
    schedule: &'a Schedule,
    chunks: ChunkOffsets,
    /// Number of messages so far, by direction and peer.
    messages: HashMap<(bool, u32), u32>,
    labels: u32,
}

/// Labels of a step's first and last operation.
#[derive(Clone, Copy)]
struct Labels {
    first: u32,
    last: u32,
}

impl<'a> Exporter<'a> {
    fn new(scenario: &'a Scenario, schedule: &'a Schedule) -> Exporter<'a> {
        Exporter {
            scenario,
            schedule,
            chunks: ChunkOffsets::new((schedule.input, schedule.output), scenario),
            messages: HashMap::new(),
            labels: 0,
        }
    }

    fn write(mut self, begin_ps: u64, text: &mut String) -> Result<()> {
        let rank = self.schedule.spec.rank;
        let _ = writeln!(text, "\nrank {rank} {{");
        // A late rank computes before its call.
        let is_late = begin_ps > 0;
        let mut before = is_late.then(|| ("requires", self.write_calc(begin_ps, text)));
        let steps = &self.schedule.channels[0];
        let waits = dependence::dependencies(self.schedule, false);
        let mut all: Vec<Option<Labels>> = Vec::with_capacity(steps.len());
        for (step, after) in steps.iter().zip(&waits[0]) {
            let labels = self.write_step(&step.action, text)?;
            if let Some(labels) = labels {
                for awaited in after.iter().filter_map(|number| all[*number as usize]) {
                    let _ = writeln!(text, "l{} requires l{}", labels.first, awaited.last);
                }
                if let Some((how, earlier)) = before {
                    let _ = writeln!(text, "l{} {how} l{earlier}", labels.first);
                }
                before = Some(("irequires", labels.first));
            }
            all.push(labels);
        }
        text.push_str("}\n");
        Ok(())
    }

    /// Writes a step; returns `None` for a copy that costs nothing.
    fn write_step(&mut self, action: &Action, text: &mut String) -> Result<Option<Labels>> {
        let compute = &self.scenario.compute;
        let first = match *action {
            Action::Send { peer, span } => self.write_message(true, peer, span, text),
            Action::Recv { peer, span } => self.write_message(false, peer, span, text),
            Action::RecvLeaf { peer, like, .. } => self.write_message(false, peer, like, text),
            Action::Fold {
                leaves, own, into, ..
            } => {
                let pairs = u64::from(leaves.len / own.len);
                let bytes = pairs * self.chunks.bytes(into);
                self.write_calc(compute.reduction_ps(self.scenario.dtype, bytes), text)
            }
            Action::RecvReduce { peer, into, .. } => {
                let first = self.write_message(false, peer, into, text);
                let bytes = self.chunks.bytes(into);
                let duration_ps = compute.reduction_ps(self.scenario.dtype, bytes);
                let last = self.write_calc(duration_ps, text);
                let _ = writeln!(text, "l{last} requires l{first}");
                return Ok(Some(Labels { first, last }));
            }
            Action::Reduce { into, .. } => {
                let bytes = self.chunks.bytes(into);
                self.write_calc(compute.reduction_ps(self.scenario.dtype, bytes), text)
            }
            Action::Copy { into, .. } => match compute.copy_ps_per_byte * self.chunks.bytes(into) {
                0 => return Ok(None),
                duration_ps => self.write_calc(duration_ps, text),
            },
            _ => return Err(Error::Unsupported("published memory as GOAL".into())),
        };
        Ok(Some(Labels { first, last: first }))
    }

    fn write_message(&mut self, is_send: bool, peer: u32, span: Span, text: &mut String) -> u32 {
        let next = self.messages.entry((is_send, peer)).or_default();
        let tag = *next;
        *next += 1;
        let what = if is_send { "send" } else { "recv" };
        let way = if is_send { "to" } else { "from" };
        let (label, bytes) = (self.label(), self.chunks.bytes(span));
        let _ = writeln!(text, "l{label}: {what} {bytes}b {way} {peer} tag {tag}");
        label
    }

    fn write_calc(&mut self, duration_ps: u64, text: &mut String) -> u32 {
        let label = self.label();
        let cpu = match self.scenario.compute.server {
            Server::Serial => 0,
            Server::Parallel => label,
        };
        let _ = writeln!(text, "l{label}: calc {duration_ps} cpu {cpu}");
        label
    }

    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::Disturbance;
    use crate::types::Collective;

    #[test]
    fn a_ring_of_two_reads_like_this() {
        let scenario = Scenario {
            collective: Collective::ReduceScatter,
            algorithm: Some(crate::Method::Ring),
            ranks: 2,
            bytes: 2048,
            disturbances: vec![Disturbance::Late {
                rank: 1,
                delay_ps: 7,
            }],
            ..Scenario::default()
        };
        let text = "\
num_ranks 2

rank 0 {
l1: recv 1024b from 1 tag 0
l2: calc 51200 cpu 0
l2 requires l1
l3: send 1024b to 1 tag 0
l3 irequires l1
}

rank 1 {
l1: calc 7 cpu 0
l2: recv 1024b from 0 tag 0
l3: calc 51200 cpu 0
l3 requires l2
l2 requires l1
l4: send 1024b to 0 tag 0
l4 irequires l2
}
";
        assert_eq!(export(&scenario).unwrap(), text);
    }
}
