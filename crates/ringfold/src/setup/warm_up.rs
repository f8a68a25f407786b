//! The last stage of set-up: the ranks make the first calls, and the communicator is ready.

use super::agree::Agreed;
use super::{board, terms};
use crate::communicator::{Communicator, probe};
use crate::engine::Engine;
use crate::error::Result;
use crate::tune::limits::NEVER;
use crate::tune::{Rules, reading};
use crate::types::Op;

/// Bytes of the warm-up calls. Over messages: enough for the algorithms of large calls, yet few
/// enough for a slow network. Through shared memory: every slot of a window.
const WARM_UP_BYTES: [usize; 2] = [64 << 10, 2 << 20];

impl Agreed {
    /// Makes the calls that the communicator needs before it is used: for warming up, rules, a
    /// probe and weights.
    pub fn warm_up(self) -> Result<Communicator> {
        let Agreed {
            mut communicator,
            terms,
            own_rules,
        } = self;
        let group = communicator.membership.group();
        let settings = group.map(|group| group.settings.clone());
        let is_part = group.is_some_and(|group| group.inherited.rules.is_some());
        communicator.driver.set_preparing(true);
        // The log covers only the user's calls.
        communicator.policy.is_silent = true;
        call_once(&communicator)?;
        agree_on_reading(&mut communicator)?;
        let rules = match terms.rules_bytes {
            0 => Rules::default(),
            bytes => terms::send_rules(&communicator, &own_rules, bytes)?,
        };
        // A calibration tells more than a probe.
        let is_calibrated = !communicator.policy.tuning.constants.corrections.is_empty();
        if terms.is_probed && !is_calibrated {
            probe::probe(&mut communicator)?;
        }
        communicator.set_rules(rules);
        communicator.log_model();
        if let Some(settings) = settings {
            // Parts have other ranks, so the weights do not apply.
            if let (Some(weighting), false) = (&settings.weights, is_part) {
                communicator.weigh(weighting)?;
            }
            communicator.policy.timeout = settings.timeout;
        }
        communicator.policy.is_silent = false;
        communicator.driver.set_preparing(false);
        board::attach(&communicator);
        Ok(communicator)
    }
}

/// Lets ranks read long messages from the memory of senders of their host, if every rank is able
/// to, and if that is quicker here. Follows calls in which each rank depends on all others, and
/// precedes the rules, which make all choices anew.
fn agree_on_reading(communicator: &mut Communicator) -> Result<()> {
    let bytes_min = communicator.policy.tuning.limits.read_bytes_min;
    let Some(group) = communicator.membership.group() else {
        return Ok(());
    };
    let share_memory = communicator.policy.slot_bytes.is_some() && communicator.world_size() > 1;
    let known = group.inherited.reads;
    if bytes_min == NEVER || !share_memory || known == Some(false) {
        return Ok(());
    }
    let settings = &group.settings;
    let is_forced = settings.algorithm.is_some() || settings.slice_bytes.is_some();
    let is_tried = known.is_none() && settings.is_probing && !is_forced;
    let driver = &communicator.driver;
    let is_able = driver.with_engine(|engine| engine.transport().can_read_peers());
    let mut all = [is_able, is_tried].map(u8::from);
    communicator.all_reduce(&mut all, Op::Min)?;
    if all[0] == 0 {
        return Ok(());
    }
    communicator.policy.read_bytes_min = Some(bytes_min);
    // A calibration has measured both.
    let is_calibrated = !communicator.policy.tuning.constants.corrections.is_empty();
    if all[1] == 1 && !is_calibrated && !probe::is_reading_quicker(communicator)? {
        communicator.policy.read_bytes_min = None;
        return Ok(());
    }
    let single_min = reading::single_bytes_min(bytes_min);
    let engine = |engine: &mut Engine| engine.set_read_bytes_min(single_min);
    communicator.driver.with_engine(engine);
    Ok(())
}

/// Makes the calls that are most frequent in training once, on separate memory: the first real call
/// then finds plans, code and windows ready, and is as fast as the tenth.
fn call_once(communicator: &Communicator) -> Result<()> {
    let bytes = WARM_UP_BYTES[communicator.policy.slot_bytes.is_some() as usize];
    let input = vec![0f32; bytes / size_of::<f32>()];
    let mut output = input.clone();
    communicator.all_reduce_into(&input, &mut output, Op::Sum)?;
    communicator.all_reduce(&mut output, Op::Sum)?;
    communicator.all_reduce(&mut output[..1], Op::Sum)
}
