//! From measured times to constants of the cost model: a fit, and what it leaves.
//!
//! The constants are those by which the [model](crate::tune::model) comes nearest to what was
//! measured, in the sense of the least squares of logarithms: a way that is priced at half its time
//! is as wrong as one that is priced at twice. One constant is moved at a time, by ever smaller
//! factors, as long as that helps; each is held near its default by a little, so that what nothing
//! measured depends on stays. What is still wrong then becomes a correction of that way at that
//! size, among those ranks.
//!
//! Pure: `ringfold tune calibrate` measures.

use crate::call::Way;
use crate::topology::Machine;
use crate::tune::calibration::{Calibration, Context};
use crate::tune::choose::finish;
use crate::tune::constants::Constants;
use crate::tune::corrections::{Corrections, Key};
use crate::tune::model::price;
use crate::tune::parameters::{Parameter, Table};
use crate::tune::{Limits, Question, Tuning};
use crate::types::{Collective, Method, Protocol};

/// What was measured once.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Among whom.
    pub context: Context,
    /// What was called.
    pub collective: Collective,
    /// Bytes of the vector, or of all blocks together.
    pub bytes: u64,
    /// By which way.
    pub way: (Method, Protocol),
    /// The median time.
    pub time_us: f64,
}

/// The factors by which a constant is moved, from coarse to fine.
const STEPS: [f64; 5] = [4.0, 2.0, 1.3, 1.1, 1.03];

/// Rounds over all constants with one step; most need two or three.
const ROUNDS_MAX: usize = 20;

/// How much a constant that is off its default by a factor of e weighs, against a sample that is.
const INERTIA: f64 = 0.05;

/// Times that nothing on one machine tells. What is no time (counts, factors) is not fitted
/// either.
const UNKNOWN_TIMES: [&str; 3] = ["domain_us", "grant_us", "staging_us_per_byte"];

/// What a rank can publish in one slice, unless it is set otherwise.
const SLOT_BYTES: usize = 256 << 10;

/// The calibration that follows from `samples`, all measured on `machine`.
pub fn fit(samples: &[Sample], machine: &Machine) -> Calibration {
    let samples: Vec<Call> = samples
        .iter()
        .filter(|sample| sample.time_us.is_finite() && sample.time_us > 0.0)
        .map(|sample| sample.asked(machine))
        .collect();
    let mut constants = Constants::default();
    let mut least = error(&constants, &samples, machine);
    for step in STEPS {
        for _ in 0..ROUNDS_MAX {
            let before = least;
            for parameter in Constants::PARAMETERS.iter().filter(is_fitted) {
                for factor in [step, 1.0 / step] {
                    let mut moved = constants.clone();
                    parameter.set(&mut moved, parameter.value(&constants) * factor);
                    let error = error(&moved, &samples, machine);
                    if error < least {
                        (constants, least) = (moved, error);
                        break;
                    }
                }
            }
            if least >= before {
                break;
            }
        }
    }
    Calibration {
        corrections: corrections(&constants, &samples, machine),
        constants,
        links: None,
        rdma: None,
        devices: None,
    }
}

fn is_fitted(parameter: &&Parameter<Constants>) -> bool {
    parameter.name.contains("_us") && !UNKNOWN_TIMES.contains(&parameter.name)
}

/// How far the model is from what was measured.
fn error(constants: &Constants, samples: &[Call], machine: &Machine) -> f64 {
    let origin = Constants::default();
    let off = |parameter: &Parameter<Constants>| {
        (parameter.value(constants) / parameter.value(&origin))
            .ln()
            .powi(2)
    };
    let fitted = Constants::PARAMETERS.iter().filter(is_fitted);
    let inertia: f64 = fitted.map(off).sum();
    // Samples lie side by side, so constants need be placed once a context only.
    let mut placed: Option<(Context, Constants)> = None;
    let mut sum = 0.0;
    for sample in samples {
        let context = sample.sample.context;
        if placed.as_ref().is_none_or(|(known, _)| *known != context) {
            placed = Some((context, constants.clone().on(machine, context.ranks)));
        }
        if let Some((_, here)) = &placed {
            sum += sample.residue(here).ln().powi(2);
        }
    }
    sum + INERTIA * inertia
}

impl Sample {
    /// By what factor it took longer than the model says with these constants, which are those for
    /// its ranks.
    pub fn residue(&self, placed: &Constants, machine: &Machine) -> f64 {
        self.asked(machine).residue(placed)
    }

    /// The call as it was asked for, and its way.
    fn asked(&self, machine: &Machine) -> Call {
        let Context { is_shared, ranks } = self.context;
        let question = Question {
            slot_bytes: is_shared.then_some(SLOT_BYTES),
            algorithm: Some(self.way.0),
            protocol: Some(self.way.1),
            ..Question::new(self.collective, self.bytes, ranks)
        };
        let limits = Limits::derive(machine, ranks);
        let tuning = Tuning::new(Constants::default(), limits);
        Call {
            way: finish(&question, &tuning, self.way, None),
            question,
            sample: *self,
        }
    }
}

/// A sample with what its price depends on.
struct Call {
    sample: Sample,
    question: Question,
    way: Way,
}

impl Call {
    fn residue(&self, placed: &Constants) -> f64 {
        self.sample.time_us / f64::from(price(&self.question, &self.way, placed))
    }
}

/// What the formulas leave, by context.
fn corrections(
    constants: &Constants,
    samples: &[Call],
    machine: &Machine,
) -> Vec<(Context, Corrections)> {
    let mut contexts: Vec<Context> = samples.iter().map(|asked| asked.sample.context).collect();
    contexts.sort();
    contexts.dedup();
    let of = |context: Context| {
        let placed = constants.clone().on(machine, context.ranks);
        let mut corrections = Corrections::default();
        for asked in samples {
            let sample = &asked.sample;
            if sample.context != context {
                continue;
            }
            let key = Key {
                collective: sample.collective,
                way: sample.way,
            };
            let log2_bytes = sample.bytes.max(1).ilog2() as u8;
            corrections.set(key, log2_bytes, asked.residue(&placed));
        }
        (context, corrections)
    };
    contexts.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::model::tests::two_cores;

    /// Times as another machine would have them: its own constants, and one way that its formula
    /// misses.
    fn samples(truth: &Constants) -> Vec<Sample> {
        use Method::{Claim, Direct, OneShot, Rabenseifner, RecursiveDoubling, Ring, Tree};
        let mut samples = Vec::new();
        for (is_shared, ranks) in [(true, 2), (true, 4), (false, 4)] {
            let context = Context { is_shared, ranks };
            let placed = truth.clone().on(&two_cores(), ranks);
            for bytes in (3..=22).step_by(3).map(|shift| 1 << shift) {
                for algorithm in [
                    OneShot,
                    Direct,
                    Claim,
                    Ring,
                    Rabenseifner,
                    RecursiveDoubling,
                    Tree,
                ] {
                    if algorithm == Claim && !is_shared {
                        continue;
                    }
                    let mut sample = Sample {
                        context,
                        collective: Collective::AllReduce,
                        bytes,
                        way: (algorithm, Protocol::Simple),
                        time_us: 1.0,
                    };
                    let missed = if algorithm == Tree { 1.7 } else { 1.0 };
                    sample.time_us = missed / sample.residue(&placed, &two_cores());
                    samples.push(sample);
                }
            }
        }
        samples
    }

    #[test]
    fn the_fit_prices_as_the_machine_does() {
        let truth = Constants {
            hop_us: 0.9,
            turn_us: 6.0,
            copy_us_per_byte: 1.5e-4,
            socket_hop_us: 9.0,
            socket_work_us_per_byte: 2e-4,
            ..Constants::default()
        };
        let samples = samples(&truth);
        let calibration = fit(&samples, &two_cores());
        let asked = samples.iter().map(|sample| sample.asked(&two_cores()));
        let asked: Vec<Call> = asked.collect();
        let error = |constants: &Constants| error(constants, &asked, &two_cores());
        let before = error(&Constants::default());
        let after = error(&calibration.constants);
        assert!(after < before / 4.0, "{before} {after}");
        for sample in &samples {
            let placed = calibration.constants(sample.context, &two_cores(), sample.context.ranks);
            let residue = sample.residue(&placed, &two_cores());
            assert!((0.99..1.01).contains(&residue), "{sample:?}: {residue}");
        }
    }

    #[test]
    fn nothing_measured_leaves_the_defaults() {
        let mut absurd = samples(&Constants::default())[0];
        for time_us in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            absurd.time_us = time_us;
            let calibration = fit(&[absurd], &two_cores());
            assert_eq!(calibration, Calibration::default(), "{time_us}");
        }
    }
}
