//! How the ranks of a communicator come to one table of limits.
//!
//! Each rank derives the table of its own machine and sends it in the exchange in which all say that they are ready. All
//! take rank 0's, so that they decide alike even where machines, versions of the kernel or environments differ. A way
//! that any rank bars is barred for all.

use std::path::Path;
use std::time::Instant;

use super::group::Group;
use crate::control::Health;
use crate::error::{Error, Result};
use crate::topology::Machine;
use crate::tune::Limits;

/// Waits until all ranks are ready, and returns the limits that hold for all.
/// The ranks of this host have `cores` cores together.
pub fn agree(group: &Group, cores: usize, health: &Health, deadline: Instant) -> Result<Limits> {
    let machine = Machine::read(Path::new("/"), cores);
    let own = Limits::derive(&machine, group.local_ranks().len()).with(&group.settings.limits);
    let tables = group.exchange("ready", own.to_string().as_bytes(), deadline, &|| {
        health.fault()
    })?;
    let limits = decide(&tables)?;
    log::info!(
        target: "ringfold::tuning",
        "limits, as rank 0 derived them from its caches, cores and RINGFOLD_LIMITS: {limits}"
    );
    Ok(limits)
}

/// The table that follows from those of all ranks, in rank order.
fn decide(tables: &[Vec<u8>]) -> Result<Limits> {
    let tables = tables
        .iter()
        .enumerate()
        .map(|(peer, table)| {
            Limits::decode(table).ok_or_else(|| Error::Corrupt {
                peer,
                what: "a table of limits that means nothing; use one version everywhere".into(),
                site: None,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let (first, others) = tables
        .split_first()
        .unwrap_or_else(|| unreachable!("this rank's own table is there"));
    Ok(others
        .iter()
        .fold(*first, |limits, other| limits.barring(other)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::limits::NEVER;

    fn table(overrides: &str) -> Vec<u8> {
        let limits = Limits::derive(&Machine::here(), 2);
        let overrides = overrides.parse().expect("overrides");
        limits.with(&overrides).to_string().into_bytes()
    }

    #[test]
    fn rank_0_decides_and_anyone_bars() {
        let tables = [
            table("one_shot_bytes_max=1K,cma_bytes_min=1M,stream_bytes_min=never"),
            table("one_shot_bytes_max=2K,cma_bytes_min=never,stream_bytes_min=1M"),
        ];
        let limits = decide(&tables).expect("a table");
        assert_eq!(limits.one_shot_bytes_max, 1 << 10);
        assert_eq!(
            (limits.cma_bytes_min, limits.stream_bytes_min),
            (NEVER, NEVER)
        );
    }

    #[test]
    fn nonsense_names_its_rank() {
        let error = decide(&[table("push_bytes_min=1"), b"one_shot_bytes_max=1".to_vec()]);
        assert!(
            matches!(error, Err(Error::Corrupt { peer: 1, .. })),
            "{error:?}"
        );
    }
}
