//! Which algorithm, access, protocol, slice size and number of channels a call gets: policy, as one
//! pure function.
//!
//! The [model] prices every usable way: the [`CostTable`] of a [`Question`]. Then come the
//! settings, in this order: what the call or its communicator requires and what the operator's
//! variables allow exclude ways; a plugin prices usable ways anew; the first rule that matches, and
//! whose way is left, decides. Otherwise the smallest entry is the choice, and of equal ones the
//! first. An unusable way is never selected.
//!
//! The answer depends only on what all ranks know alike, so that all of them choose the same; the
//! choice is part of the call that ranks compare.

#![forbid(unsafe_code)]

use super::channels;
use super::model;
use super::{CostTable, Explanation, Question, Reason, Tuning};
use crate::call::Way;
use crate::error::{Error, Result};
use crate::schedule::{Access, Schedule, ll_bytes_max};
use crate::types::{Algorithm, Collective, Method, Protocol};

/// The modelled cost of each usable way.
pub fn cost_table(question: &Question, tuning: &Tuning) -> CostTable {
    let mut table = CostTable::unusable();
    for &at in Access::ALL {
        for method in Schedule::methods(question.collective, at) {
            if access(question, method) != at || !is_usable(question, method) {
                continue;
            }
            for protocol in protocols(question, method).into_iter().flatten() {
                let way = finish(question, tuning, (method, protocol), None);
                let price = model::price(question, &way, &tuning.constants);
                table.set((method, protocol), price);
            }
        }
    }
    table
}

/// Decides. A question about registered memory is one about memory that may be: what is registered
/// on all ranks shows when the call begins, so the choice says what is tried, and what is done
/// instead.
///
/// # Errors
///
/// `Unsupported` if nothing can be done, or not what was requested; the text names what can.
pub fn choose(question: &Question, tuning: &Tuning) -> Result<Way> {
    let first = explain(question, tuning)?;
    let tried = first.way.method();
    if question.algorithm.is_some() || !question.is_registered {
        return Ok(first.way);
    }
    let unregistered = Question {
        is_registered: false,
        ..*question
    };
    // Prices do not depend on it.
    let mut prices = first.prices;
    prices.retain(|(method, _)| !method.is_registered());
    let rest = match decide(&unregistered, tuning, prices) {
        Ok(rest) => rest,
        // A caller that requested no copies at all gets what falls back by itself.
        Err(_) if question.protocol.is_some() => first,
        Err(error) => return Err(error),
    };
    // Also where nothing is tried: a rule about ordinary memory holds for memory of which nothing
    // is known.
    Ok(Way {
        registered: tried.is_registered().then_some(tried.assignment()),
        ..rest.way
    })
}

/// The same, with what else there was and why. Of a question about registered memory the
/// explanation says how the call goes in such memory.
///
/// # Errors
///
/// As [`choose`].
pub fn explain(question: &Question, tuning: &Tuning) -> Result<Explanation> {
    decide(question, tuning, cost_table(question, tuning))
}

/// The whole way: also how it is cut, on how many channels. `channels` are those that a rule or a
/// plugin requests.
pub fn finish(
    question: &Question,
    tuning: &Tuning,
    (method, protocol): (Method, Protocol),
    channels: Option<u32>,
) -> Way {
    let access = access(question, method);
    let (channels, slice_bytes) = match access {
        Access::Messages => channels::schedule(question, tuning, method.algorithm(), channels),
        Access::Staged | Access::Registered => {
            (1, shared_slice_bytes(question, tuning, method.algorithm()))
        }
    };
    Way {
        algorithm: method.algorithm(),
        access,
        assignment: method.assignment(),
        is_inline: protocol == Protocol::Ll,
        slice_bytes: slice_bytes.max(64) / 64 * 64,
        channels,
        registered: None,
        non_temporal_stores: question.bytes >= tuning.limits.stream_bytes_min,
        is_weighted: question.is_weighted,
    }
}

/// From prices to a way.
fn decide(question: &Question, tuning: &Tuning, prices: CostTable) -> Result<Explanation> {
    let mut table = prices;
    let mut reason = Reason::Model;
    if question.bypasses_stragglers || question.is_weighted {
        reason = Reason::Policy;
    }
    let is_requested = question.algorithm.is_some() || question.protocol.is_some();
    if is_requested {
        let (algorithm, protocol) = (question.algorithm, question.protocol);
        table.retain(|way| {
            algorithm.unwrap_or(way.0) == way.0 && protocol.unwrap_or(way.1) == way.1
        });
        if table.best().is_none() {
            return Err(refusal(question, &prices));
        }
        reason = Reason::Requested;
    }
    if let (None, Some(wanted)) = (question.protocol, tuning.protocol) {
        let mut narrowed = table;
        narrowed.retain(|(_, protocol)| protocol == wanted);
        if narrowed.best().is_some() {
            (table, reason) = (narrowed, Reason::Requested);
        }
    }
    // The call has precedence over the variables, which may say something about what it leaves
    // open.
    let cheapest = table.best();
    let mut allowed = table;
    match tuning.allowed.apply(question.collective, &mut allowed) {
        Ok(is_bound) => {
            if is_bound && allowed.best() != cheapest {
                reason = Reason::Variable;
            }
            table = allowed;
        }
        Err(_) if is_requested => {}
        Err(error) => return Err(error),
    }
    let mut way = table.best().ok_or_else(|| nothing(question))?;
    let mut channels = None;
    if let Some(plugin) = &tuning.plugin {
        let (before, mut wanted) = (table, 0);
        plugin.adjust(question, &mut table, &mut wanted);
        channels = u32::try_from(wanted).ok().filter(|wanted| *wanted > 0);
        let best = table.best().unwrap_or(way);
        if best != way || table.get(best) != before.get(best) {
            (way, reason) = (best, Reason::Plugin(plugin.name().to_owned()));
        }
    }
    for rule in tuning.rules.find(question) {
        if let Some(wanted) = rule.way().filter(|way| table.reprice(*way, 0.0)) {
            (way, channels) = (wanted, rule.channels.or(channels));
            let line = rule.line as usize;
            reason = Reason::Rule { line };
            break;
        }
    }
    Ok(Explanation {
        prices,
        table,
        way: finish(question, tuning, way, channels),
        reason,
    })
}

/// The error for an unusable way.
fn refusal(question: &Question, usable: &CostTable) -> Error {
    let requested = match (question.algorithm, question.protocol) {
        (Some(algorithm), Some(protocol)) => format!("`{algorithm}` ({protocol})"),
        (Some(algorithm), None) => format!("`{algorithm}`"),
        (None, protocol) => format!("`{}`", protocol.map_or("", Protocol::name)),
    };
    Error::Unsupported(format!(
        "no {} of {} bytes by {requested} here; what can: {}",
        question.collective,
        question.bytes,
        usable.list()
    ))
}

fn nothing(question: &Question) -> Error {
    let collective = question.collective;
    Error::Unsupported(format!("{collective} between ranks of several hosts"))
}

/// The access of a method: shared memory where it exists there, all ranks share a host, and nothing
/// speaks against it.
pub fn access(question: &Question, method: Method) -> Access {
    let is_shared = question.slot_bytes.is_some() && !question.is_pairwise && !question.is_weighted;
    let serves = |access: &Access| Schedule::exists(question.collective, method, *access);
    [Access::Registered, Access::Staged]
        .into_iter()
        .find(|access| is_shared && serves(access))
        .unwrap_or(Access::Messages)
}

/// Whether a call can use a method that exists for its collective.
fn is_usable(question: &Question, method: Method) -> bool {
    use Collective::{AllGather, AllToAll, ReduceScatter};
    let is_requested = question.algorithm == Some(method);
    let n = question.world_size;
    if question.bypasses_stragglers {
        return method == Method::Ring;
    }
    if question.is_weighted {
        return method == Method::Direct;
    }
    match method {
        // Who has one level only has no use for a second one.
        Method::Hierarchical if access(question, method).is_shared() => {
            is_requested || (question.domains > 1 && question.domains < n)
        }
        // What two other ranks exchange goes by this one, which does not know how much it is.
        Method::Hierarchical if question.collective == AllToAll && question.is_uneven => false,
        Method::Hierarchical | Method::Leader | Method::MultiLeader => {
            is_requested || (question.hosts > 1 && question.hosts < n)
        }
        Method::RecursiveDoubling if matches!(question.collective, AllGather | ReduceScatter) => {
            n.is_power_of_two()
        }
        // Only on request: the caller must know which rank is late.
        Method::Stragglar => is_requested,
        // These give way to another where it shows that they cannot be.
        Method::Push | Method::Serve => is_requested || question.is_registered,
        _ => true,
    }
}

/// The protocols that a method can use.
fn protocols(question: &Question, method: Method) -> [Option<Protocol>; 2] {
    if method.is_registered() {
        return [Some(Protocol::ZeroCopy), None];
    }
    let most = ll_bytes_max(question.collective, method, question.world_size);
    let carries = access(question, method) == Access::Staged
        && !question.is_uneven
        && question.bytes > 0
        && most.is_some_and(|most| question.bytes <= most);
    [carries.then_some(Protocol::Ll), Some(Protocol::Simple)]
}

/// The slice of a vector or of each block that is published.
fn shared_slice_bytes(question: &Question, tuning: &Tuning, algorithm: Algorithm) -> usize {
    use Collective::{AllToAll, ReduceScatter, Scatter};
    let (collective, limits) = (question.collective, &tuning.limits);
    // Inputs and results have places of their own.
    let places = 1 + usize::from(algorithm == Algorithm::Hierarchical);
    let blocks = match collective {
        ReduceScatter | Scatter | AllToAll => question.world_size,
        _ => 1,
    };
    // Blocks begin at whole lines.
    let largest = question.slot_bytes.unwrap_or(usize::MAX) / places / blocks / 64 * 64;
    let published = |wanted: usize| wanted.clamp(64, largest.max(64));
    let set = tuning.slice_bytes.or(tuning.chunk_bytes);
    let slice = set.unwrap_or(limits.shared_slice_bytes as usize);
    let is_rooted = collective.has_root() && !collective.reduces();
    // What fits one slice is not divided: it may be a tiny call.
    if is_rooted && set.is_none() && block_bytes(question) > published(slice) as u64 {
        return published(slice.min(limits.rooted_slice_bytes as usize));
    }
    published(slice)
}

/// Bytes of the vector, or of each block.
fn block_bytes(question: &Question) -> u64 {
    match question.collective {
        Collective::Broadcast => question.bytes,
        _ => question.bytes / question.world_size as u64,
    }
}

#[cfg(test)]
mod tests;
