//! The choice of a call's algorithm, access, protocol, slice size and number of channels: policy,
//! as one pure function.
//!
//! The [model] prices every usable way: the [`CostTable`] of a [`Question`]. The settings then
//! apply in this order. The requirements of the call or its communicator, and the operator's
//! variables, exclude ways. A plugin reprices usable ways. The first matching rule whose way
//! remains decides. Otherwise the cheapest entry is the choice, and the first of equal entries. An
//! unusable way is never selected.
//!
//! The choice depends only on inputs that are equal on all ranks, so all ranks choose the same way.
//! The choice is part of the call that ranks compare.

#![forbid(unsafe_code)]

use super::channels;
use super::model;
use super::reading;
use super::{CostTable, Explanation, OrderDemand, Question, Reason, Tuning};
use crate::call::Way;
use crate::error::{Error, Result};
use crate::schedule::{Access, Order, RankLayout, Schedule, ll_bytes_max};
use crate::types::{Collective, Method, Protocol};

/// Returns the modelled cost of each usable way.
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

/// Returns the way of a call. In a question, registered memory means memory that may be registered:
/// only the call itself finds out whether the memory is registered on all ranks. So the way holds
/// both an attempt and a fallback.
///
/// # Errors
///
/// `Unsupported` if no way is usable, or none that was requested or is allowed. In the latter case,
/// the text names the usable ways.
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
    // Prices do not depend on `is_registered`.
    let mut prices = first.prices;
    prices.retain(|(method, _)| !method.is_registered());
    let rest = match decide(&unregistered, tuning, prices) {
        Ok(rest) => rest,
        // A caller that requested no copies gets the registered way, which has a fallback of its
        // own.
        Err(_) if question.protocol.is_some() => first,
        Err(error) => return Err(error),
    };
    // The unregistered choice applies without an attempt, too: a rule for ordinary memory covers
    // memory of unknown registration.
    Ok(Way {
        registered: tried.is_registered().then_some(tried.assignment()),
        ..rest.way
    })
}

/// Returns the choice with its alternatives and its reason. For a question about registered memory,
/// the explanation is that of the call in such memory.
///
/// # Errors
///
/// As [`choose`].
pub fn explain(question: &Question, tuning: &Tuning) -> Result<Explanation> {
    decide(question, tuning, cost_table(question, tuning))
}

/// Completes a way with its slice size and number of channels. `channels` is the number that a rule
/// or a plugin requests.
pub fn finish(
    question: &Question,
    tuning: &Tuning,
    (method, protocol): (Method, Protocol),
    channels: Option<u32>,
) -> Way {
    let access = access(question, method);
    let (channels, slice_bytes) = match access {
        Access::Messages => channels::schedule(question, tuning, method.algorithm(), channels),
        _ => (1, shared_slice_bytes(question, tuning)),
    };
    Way {
        algorithm: method.algorithm(),
        access,
        assignment: method.assignment(),
        is_inline: protocol == Protocol::Ll,
        slice_bytes: slice_bytes.max(64) / 64 * 64,
        channels,
        registered: None,
        reads: access == Access::Messages && reading::reads(question, &tuning.constants),
        non_temporal_stores: question.bytes >= tuning.limits.stream_bytes_min,
        is_weighted: question.is_weighted,
        is_reproducible: question.collective.reduces() && question.order != OrderDemand::Any,
    }
}

/// Chooses a way from the prices and the settings.
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
    // The call has precedence over the variables, which may still restrict an algorithm or a
    // protocol that the call leaves open.
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

/// Returns the error for a requested way that is unusable.
fn refusal(question: &Question, usable: &CostTable) -> Error {
    let requested = match (question.algorithm, question.protocol) {
        (Some(algorithm), Some(protocol)) => format!("`{algorithm}` ({protocol})"),
        (Some(algorithm), None) => format!("`{algorithm}`"),
        (None, protocol) => format!("`{}`", protocol.map_or("", Protocol::name)),
    };
    let how = match question.order {
        OrderDemand::Any => "",
        _ => "reproducible ",
    };
    Error::Unsupported(format!(
        "no {how}{} of {} bytes by {requested} here; usable: {}",
        question.collective,
        question.bytes,
        usable.list()
    ))
}

/// Returns the error for a call that no method serves: one with a policy that has a method of its
/// own.
fn nothing(question: &Question) -> Error {
    let collective = question.collective;
    let policy = match (question.bypasses_stragglers, question.is_weighted) {
        (true, _) => " with a policy for slow ranks, which needs `ring`",
        (_, true) => " with ownership weights, which need `direct`",
        _ => "",
    };
    Error::Unsupported(format!("no algorithm for {collective}{policy}"))
}

/// Returns the access of a method: shared memory if the ranks share memory, the method exists
/// there, and the call is neither pairwise nor weighted; messages otherwise.
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
    let ranks = RankLayout {
        world_size: n as u32,
        hosts: question.hosts as u32,
        are_blocks: question.are_blocks,
        is_reproducible: question.order != OrderDemand::Any,
    };
    let collective = question.collective;
    let order = Order::new(collective, method.algorithm(), ranks);
    if collective.reduces() && !question.order.admits(order) {
        return false;
    }
    if question.bypasses_stragglers {
        return method == Method::Ring;
    }
    if question.is_weighted {
        return method == Method::Direct;
    }
    match method {
        // A rank would forward blocks of two other ranks without knowing their sizes.
        Method::Hierarchical if question.collective == AllToAll && question.is_uneven => false,
        // Elsewhere, `direct` consists of the same messages.
        Method::Flat if question.collective == AllToAll => {
            is_requested || question.slot_bytes.is_some()
        }
        Method::Hierarchical | Method::Leader | Method::MultiLeader => {
            is_requested || (question.hosts > 1 && question.hosts < n)
        }
        Method::RecursiveDoubling if matches!(question.collective, AllGather | ReduceScatter) => {
            n.is_power_of_two()
        }
        // Only on request: the caller must know which rank is late.
        Method::Stragglar => is_requested,
        // These methods fall back to another if the buffers turn out not to be registered.
        Method::Push | Method::Serve => is_requested || question.is_registered,
        _ => true,
    }
}

/// Returns the protocols that a method can use.
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

/// Returns the size of a published slice, in bytes of the vector or of each block.
fn shared_slice_bytes(question: &Question, tuning: &Tuning) -> usize {
    use Collective::{AllToAll, ReduceScatter, Scatter};
    let (collective, limits) = (question.collective, &tuning.limits);
    let blocks = match collective {
        ReduceScatter | Scatter | AllToAll => question.world_size,
        _ => 1,
    };
    // Blocks begin at cache-line boundaries.
    let largest = question.slot_bytes.unwrap_or(usize::MAX) / blocks / 64 * 64;
    let published = |wanted: usize| wanted.clamp(64, largest.max(64));
    let set = tuning.slice_bytes;
    let slice = set.unwrap_or(limits.shared_slice_bytes as usize);
    let is_rooted = collective.has_root() && !collective.reduces();
    // A call that fits one slice is not divided further: it may be tiny.
    if is_rooted && set.is_none() && block_bytes(question) > published(slice) as u64 {
        return published(slice.min(limits.rooted_slice_bytes as usize));
    }
    published(slice)
}

/// Returns the bytes of the vector, or of each block.
fn block_bytes(question: &Question) -> u64 {
    match question.collective {
        Collective::Broadcast => question.bytes,
        _ => question.bytes / question.world_size as u64,
    }
}

#[cfg(test)]
mod tests;
