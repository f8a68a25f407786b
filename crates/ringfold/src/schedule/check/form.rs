//! The form of an action, independent of the other ranks: its spans within their buffers, its peers
//! within the world.

#![forbid(unsafe_code)]

use crate::schedule::action::{Action, AwaitedPeers, Buffer, Combine, RankRange, Span, Step};
use crate::schedule::spec::Schedule;
use crate::types::{Access, Assignment, Collective};

/// Returns the fault of an action that is wrong whatever the other ranks do.
pub(super) fn form(schedule: &Schedule, action: &Action) -> Option<&'static str> {
    let barrier = schedule.spec.collective == Collective::Barrier;
    for span in action.spans() {
        if span.len == 0 && !barrier && !matches!(action, Action::Publish { .. }) {
            return Some("an empty span");
        }
        if span.first.saturating_add(span.len) > schedule.cut(span.buffer).chunks() {
            return Some("a span beyond the end of its buffer");
        }
        let is_elsewhere = matches!(action, Action::Combine(_)) || span.len == 0;
        if !schedule.has(span.buffer) && !is_elsewhere {
            return Some("a buffer that this rank does not have");
        }
    }
    if schedule.spans_blocks(action) && !schedule.needs_one_slice {
        return Some("several blocks at once, in more than one slice");
    }
    if schedule.spec.is_wide
        && matches!(
            action,
            Action::RecvReduce { .. } | Action::Reduce { .. } | Action::Publish { .. }
        )
    {
        return Some("a `RecvReduce`, `Reduce` or `Publish` in a schedule with wide elements");
    }
    let n = schedule.spec.world_size;
    let is_strange = |members: RankRange| members.ranks().any(|rank| rank >= n);
    match *action {
        Action::Combine(Combine {
            sources, targets, ..
        }) if is_strange(sources) || is_strange(targets) => {
            return Some("a rank that does not exist");
        }
        Action::Combine(combine)
            if combine.access == Access::Messages
                || (combine.access, combine.assignment) == (Access::Staged, Assignment::Owner) =>
        {
            return Some("a combination of data that is not shared by all ranks");
        }
        _ => {}
    }
    let peer = match *action {
        Action::Send { peer, .. }
        | Action::Recv { peer, .. }
        | Action::RecvReduce { peer, .. }
        | Action::RecvLeaf { peer, .. }
        | Action::CopyFrom { peer, .. }
        | Action::TakeBack { peer, .. }
        | Action::Await {
            peers: AwaitedPeers::One(peer),
            ..
        } => Some(peer),
        _ => None,
    };
    if peer.is_some_and(|peer| peer >= n || peer == schedule.spec.rank) {
        return Some("a peer that does not exist or is this rank");
    }
    if let Action::RecvLeaf { .. } | Action::Fold { .. } = action {
        return form_of_copies(action);
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

/// Whether the copies that each step combines have the type of the step's own value, if `Scratch`
/// has a type of its own.
pub(super) fn folds_one_type(steps: &[Step]) -> bool {
    let is_wide = |span: Span| span.buffer == Buffer::Scratch;
    let are_alike = |kept: Span, own: Span| {
        steps.iter().all(|step| match step.action {
            Action::RecvLeaf { like, into, .. } => {
                let is_kept = kept.first <= into.first && into.first < kept.first + kept.len;
                !is_kept || is_wide(like) == is_wide(own)
            }
            _ => true,
        })
    };
    steps.iter().all(|step| match step.action {
        Action::Fold { leaves, own, .. } => are_alike(leaves, own),
        _ => true,
    })
}

/// Returns the fault of an action on copies of chunks: copies of another length, or of none.
fn form_of_copies(action: &Action) -> Option<&'static str> {
    let is_right = match *action {
        Action::RecvLeaf { like, into, .. } => like.len == into.len,
        Action::Fold {
            leaves,
            own,
            at,
            into,
        } => {
            let is_whole = leaves.len.is_multiple_of(own.len) && own.len == into.len;
            is_whole && at <= leaves.len / own.len
        }
        _ => true,
    };
    (!is_right).then_some("copies of another length or number")
}
