//! Source of the pass's steps, and the length of their chunks.

use crate::engine::geometry::{Blocks, Geometry};
use crate::error::{Error, Result};
use crate::schedule::rounds::Rounds;
use crate::schedule::{Buffer, Cut, Schedule, Span, Spec, Step};
use crate::simulate::scenario::Scenario;

/// Maximum number of steps stored, over all ranks, if they cannot be generated round by round.
const STEPS_KEPT_MAX: usize = 1 << 24;

/// The feature of a call that rules out a pass over it.
pub(super) type Refusal = &'static str;

#[cold]
pub(super) fn unsupported(what: Refusal) -> Error {
    Error::Unsupported(format!(
        "the longest path of {what} is not known; run the simulation instead"
    ))
}

/// Source of the steps.
pub(super) enum Source {
    Rounds(Rounds),
    /// All ranks' schedules, and the number of steps that each rank has used.
    Whole(Vec<Schedule>, Vec<usize>),
}

impl Source {
    pub fn new(spec: &Spec) -> Result<Source> {
        if let Some(rounds) = Rounds::new(spec)? {
            return Ok(Source::Rounds(rounds));
        }
        let ranks = spec.world_size as usize;
        let mut schedules = Vec::with_capacity(ranks);
        let mut steps = 0;
        for rank in 0..spec.world_size {
            let schedule = Schedule::new(spec.of_rank(rank))?;
            steps += schedule.channels.iter().map(Vec::len).sum::<usize>();
            if steps > STEPS_KEPT_MAX {
                return Err(unsupported("so many steps that are not made one by one"));
            }
            schedules.push(schedule);
        }
        Ok(Source::Whole(schedules, vec![0; ranks]))
    }

    pub fn needs_one_slice(&self) -> bool {
        match self {
            Source::Rounds(_) => false,
            Source::Whole(schedules, _) => schedules[0].needs_one_slice,
        }
    }

    pub fn rounds(&self) -> u32 {
        match self {
            Source::Rounds(rounds) => rounds.count(),
            Source::Whole(schedules, _) => schedules[0].rounds,
        }
    }

    pub fn cuts(&self) -> (Cut, Cut) {
        match self {
            Source::Rounds(rounds) => rounds.cuts(),
            Source::Whole(schedules, _) => (schedules[0].input, schedules[0].output),
        }
    }

    /// Returns a rank's steps in a round; rounds must be requested in order.
    #[inline(always)]
    pub fn steps(&mut self, rank: usize, round: u32) -> &[Step] {
        match self {
            Source::Rounds(rounds) => rounds.steps(rank as u32, round),
            Source::Whole(schedules, used) => {
                let begin = used[rank];
                let rest = &schedules[rank].channels[0][begin..];
                let count = rest.partition_point(|step| step.round == round);
                used[rank] = begin + count;
                &rest[..count]
            }
        }
    }
}

/// Offset of each chunk of the input and of the output, in bytes, and the end of the last one.
pub(in crate::simulate) struct Chunks([Vec<u64>; 2]);

impl Chunks {
    /// Computes the chunks of a rank's input and output.
    pub fn new((input, output): (Cut, Cut), scenario: &Scenario) -> Chunks {
        let (count, size) = (scenario.count(), scenario.dtype.size_bytes());
        Chunks([input, output].map(|cut| {
            let chunks = cut.chunks();
            let geometry = Geometry::new(cut, Blocks::Even(count), size, count, 1);
            let starts = (0..chunks).map(|chunk| geometry.range(chunk, 1, 0).start as u64);
            let end = geometry.range(0, chunks, 0).end as u64;
            starts.chain([end]).collect()
        }))
    }

    /// Returns the length of a span in bytes.
    #[inline(always)]
    pub fn bytes(&self, span: Span) -> u64 {
        let starts = match span.buffer {
            Buffer::Input => &self.0[0],
            Buffer::Output => &self.0[1],
            Buffer::Scratch => &self.0[usize::from(self.0[1].len() > self.0[0].len())],
        };
        starts[(span.first + span.len) as usize] - starts[span.first as usize]
    }
}
