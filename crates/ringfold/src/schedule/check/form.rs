//! The form of an action, independent of the other ranks: its spans within their buffers, its peers
//! within the world.

#![forbid(unsafe_code)]

use crate::schedule::{Action, Buffer, Peers, Ranks, Schedule, Span};
use crate::types::Collective;

/// What is wrong with an action whatever the others do, if anything.
pub(super) fn form(schedule: &Schedule, action: &Action) -> Option<&'static str> {
    let chunks = |span: Span| match span.buffer {
        Buffer::Output => schedule.output.chunks(),
        Buffer::Input | Buffer::Scratch => schedule.input.chunks(),
    };
    let barrier = schedule.spec.collective == Collective::Barrier;
    for span in action.spans() {
        if span.len == 0 && !barrier && !matches!(action, Action::Publish { .. }) {
            return Some("an empty span");
        }
        if span.first.saturating_add(span.len) > chunks(span) {
            return Some("a span beyond the end of its buffer");
        }
        let is_elsewhere =
            matches!(action, Action::Push { .. } | Action::Serve { .. }) || span.len == 0;
        if !schedule.has(span.buffer) && !is_elsewhere {
            return Some("a buffer that this rank does not have");
        }
    }
    if let Action::Push {
        sources, targets, ..
    }
    | Action::Serve {
        sources, targets, ..
    } = *action
    {
        let one = [sources, targets];
        let strange =
            |ranks: &Ranks| matches!(ranks, Ranks::One(rank) if *rank >= schedule.spec.world_size);
        if one.iter().any(strange) {
            return Some("a rank that does not exist");
        }
    }
    if let Action::ReduceFrom { among, .. } = *action {
        let n = schedule.spec.world_size;
        if among.ranks().any(|rank| rank >= n)
            || among.ranks().all(|rank| rank != schedule.spec.rank)
        {
            return Some("a reduction among ranks that do not exist, or without this one");
        }
    }
    let peer = match *action {
        Action::Send { peer, .. }
        | Action::Recv { peer, .. }
        | Action::RecvReduce { peer, .. }
        | Action::CopyFrom { peer, .. }
        | Action::TakeBack { peer, .. }
        | Action::Await {
            peers: Peers::One(peer),
            ..
        } => Some(peer),
        _ => None,
    };
    if peer.is_some_and(|peer| peer >= schedule.spec.world_size || peer == schedule.spec.rank) {
        return Some("a peer that is no other rank");
    }
    let into = action.writes();
    let mut sources = action.reads().into_iter().flatten();
    match into {
        Some(into) if sources.any(|source| source.len != into.len) => {
            Some("spans of different lengths")
        }
        _ => None,
    }
}
