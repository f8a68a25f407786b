//! Where the ranks of a communicator run: told to each other, then decided by all ranks of a host alike.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use super::group::Group;
use crate::config::Bind;
use crate::error::{Error, Result};
use crate::topology::binding::{self, Decision, Question};
use crate::topology::cores;
use crate::topology::layout::Layout;

/// Where `proc` and `sys` are.
const ROOT: &str = "/";

/// Binds the calling thread as the settings say; where nothing is bound and all ranks of this host have one affinity, it
/// starts on a core of its own. Returns how many cores the ranks of this host have together, which of ranks that are bound
/// no rank's own affinity tells.
pub fn settle(
    group: &Group,
    local_ranks: &[usize],
    deadline: Instant,
    verdict: &dyn Fn() -> Option<Error>,
) -> Result<usize> {
    let own = cores::affinity();
    let text = cores::format_list(&own);
    let told = group.exchange("affinity", text.as_bytes(), deadline, verdict)?;
    let affinities: Vec<Vec<usize>> = local_ranks
        .iter()
        .map(|rank| decode(*rank, &told[*rank]))
        .collect::<Result<_>>()?;
    let local_rank = local_ranks
        .iter()
        .take_while(|rank| **rank < group.rank)
        .count();
    let layout = Layout::read(Path::new(ROOT), &own);
    let allowed = cores::allowed(Path::new(ROOT));
    let union: BTreeSet<usize> = affinities.iter().flatten().copied().collect();
    let cores = cores::within_quota(union.len());
    let question = Question {
        bind: group.settings.bind,
        affinities: &affinities,
        cores,
        allowed: allowed.as_deref(),
        foreign: group.settings.foreign_binding,
        layout: &layout,
    };
    match question.decide(local_rank)? {
        Decision::Bind(own) => {
            log::info!(target: "ringfold::init", "bound to cores {}", cores::format_list(&own));
            binding::bind_thread(&own)?;
        }
        Decision::Leave(why) => {
            if question.bind == Bind::Auto {
                log::info!(target: "ringfold::init", "not bound: {why}");
            }
            if affinities.iter().all(|affinity| *affinity == own) {
                binding::start_apart(&layout, local_rank, local_ranks.len());
            }
        }
    }
    Ok(cores)
}

/// The affinity that `peer` tells.
fn decode(peer: usize, blob: &[u8]) -> Result<Vec<usize>> {
    let text = std::str::from_utf8(blob).ok();
    text.and_then(cores::parse_list)
        .ok_or_else(|| Error::Corrupt {
            peer,
            what: "an affinity that means nothing".into(),
            site: None,
        })
}
