//! How the ranks of a communicator come to one table of limits.
//!
//! Each rank derives the table of its own machine and sends it in the exchange in which all say that they are ready. All
//! take rank 0's, so that they decide alike even where machines, versions of the kernel or environments differ. A way
//! that any rank bars is barred for all.

use std::path::Path;
use std::time::Instant;

use super::group::Group;
use crate::config::Straggler;
use crate::control::Health;
use crate::error::{Error, Result};
use crate::topology::Machine;
use crate::tune::Limits;

/// What all ranks of a communicator go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The thresholds of all calls.
    pub limits: Limits,
    /// Whether the ranks can read each other's memory.
    pub can_pull: bool,
    /// Whether the doubtful ones among them are probed before the first call.
    pub is_probed: bool,
}

/// What stands behind a table whose rank wants it probed.
const PROBED: &str = "\nprobe";

/// What stands behind the table of a rank that can read all others' memory.
const PULLS: &str = "\npull";

/// What stands before a rank's straggler policy, see [`policy`], behind everything else.
const POLICY: &str = "\nstraggler ";

/// Waits until all ranks are ready, and returns the terms that hold for all. The ranks of this host have `cores` cores
/// together. `can_pull`: whether it can read all others' memory; `can_probe`: whether a probe would mean anything.
pub fn agree(
    group: &Group,
    cores: usize,
    can_pull: bool,
    can_probe: bool,
    health: &Health,
    deadline: Instant,
) -> Result<Terms> {
    let own = Terms::new(group, cores, can_pull, can_probe).encode()
        + POLICY
        + &policy(group.settings.straggler, group.settings.late_rank);
    let mut tables = group.exchange("ready", own.as_bytes(), deadline, &|| health.fault())?;
    compare_policies(&mut tables)?;
    let terms = decide(&tables)?;
    let Terms {
        limits, is_probed, ..
    } = terms;
    let why = if is_probed { "; a probe follows" } else { "" };
    log::info!(
        target: "ringfold::tuning",
        "limits, as rank 0 has them from its caches, its cores and RINGFOLD_LIMITS: {limits}{why}"
    );
    Ok(terms)
}

/// How a rank would go around slow ones, in words.
fn policy(straggler: Straggler, late_rank: Option<usize>) -> String {
    match late_rank {
        Some(rank) => format!("{}, late rank {rank}", straggler.name()),
        None => straggler.name().to_owned(),
    }
}

/// Takes the straggler policies off the tables. All ranks have the same, else they would wait for each other in vain.
fn compare_policies(tables: &mut [Vec<u8>]) -> Result<()> {
    let mut first = None;
    for (peer, table) in tables.iter_mut().enumerate() {
        let mark = table
            .windows(POLICY.len())
            .rposition(|bytes| bytes == POLICY.as_bytes());
        let mark = mark.ok_or_else(|| Error::Corrupt {
            peer,
            what: "terms without a straggler policy; use one version everywhere".into(),
            site: None,
        })?;
        let own = table.split_off(mark).split_off(POLICY.len());
        let first = first.get_or_insert_with(|| own.clone());
        if *first != own {
            let names = [&*first, &own].map(|name| String::from_utf8_lossy(name).into_owned());
            return Err(Error::InvalidArgument(format!(
                "straggler policy `{}` on rank 0 and `{}` on rank {peer}; set RINGFOLD_STRAGGLER and RINGFOLD_LATE_RANK \
                 alike on all ranks",
                names[0], names[1]
            )));
        }
    }
    Ok(())
}

/// The terms that follow from those of all ranks, in rank order.
fn decide(tables: &[Vec<u8>]) -> Result<Terms> {
    let tables = tables
        .iter()
        .enumerate()
        .map(|(peer, table)| {
            Terms::decode(table).ok_or_else(|| Error::Corrupt {
                peer,
                what: "a table of limits that means nothing; use one version everywhere".into(),
                site: None,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let (first, others) = tables
        .split_first()
        .unwrap_or_else(|| unreachable!("this rank's own table is there"));
    let limits = others
        .iter()
        .fold(first.limits, |limits, other| limits.barring(&other.limits));
    let can_pull = tables.iter().all(|terms| terms.can_pull);
    Ok(Terms {
        limits: if can_pull {
            limits
        } else {
            limits.without_pull()
        },
        can_pull,
        ..*first
    })
}

impl Terms {
    /// What this rank would have.
    fn new(group: &Group, cores: usize, can_pull: bool, can_probe: bool) -> Terms {
        let settings = &group.settings;
        let machine = || Machine::read(Path::new("/"), cores);
        let derive = || Limits::derive(&machine(), group.local_ranks().len());
        let insists = settings.algorithm.is_some() || settings.slice_bytes.is_some();
        Terms {
            limits: group
                .inherited
                .unwrap_or_else(derive)
                .with(&settings.limits),
            can_pull,
            // Only where it is the job that begins: parts are made often, and beside each other.
            is_probed: can_probe && settings.is_probing && group.id == 0 && !insists,
        }
    }

    fn encode(&self) -> String {
        let probed = if self.is_probed { PROBED } else { "" };
        let pulls = if self.can_pull { PULLS } else { "" };
        format!("{}{pulls}{probed}", self.limits)
    }

    fn decode(bytes: &[u8]) -> Option<Terms> {
        let strip = |bytes, mark: &str| match <[u8]>::strip_suffix(bytes, mark.as_bytes()) {
            Some(rest) => (rest, true),
            None => (bytes, false),
        };
        let (bytes, is_probed) = strip(bytes, PROBED);
        let (bytes, can_pull) = strip(bytes, PULLS);
        Some(Terms {
            limits: Limits::decode(bytes)?,
            can_pull,
            is_probed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::limits::NEVER;

    fn table(overrides: &str, is_probed: bool) -> Vec<u8> {
        let limits = Limits::derive(&Machine::here(), 2);
        let limits = limits.with(&overrides.parse().expect("overrides"));
        let can_pull = true;
        Terms {
            limits,
            can_pull,
            is_probed,
        }
        .encode()
        .into_bytes()
    }

    #[test]
    fn rank_0_decides_and_anyone_bars() {
        let tables = [
            table(
                "one_shot_bytes_max=1K,push_bytes_min=1M,stream_bytes_min=never",
                true,
            ),
            table(
                "one_shot_bytes_max=2K,push_bytes_min=never,stream_bytes_min=1M",
                false,
            ),
        ];
        let Terms {
            limits,
            can_pull,
            is_probed,
        } = decide(&tables).expect("terms");
        assert!(can_pull);
        assert!(is_probed);
        assert_eq!(limits.one_shot_bytes_max, 1 << 10);
        assert_eq!(
            (limits.push_bytes_min, limits.stream_bytes_min),
            (NEVER, NEVER)
        );
    }

    #[test]
    fn a_rank_that_cannot_read_the_others_keeps_all_from_pulling() {
        let wish = "pull_bytes_min=1,pull_copy_bytes_min=1";
        let mut refused = table(wish, false);
        refused.truncate(refused.len() - PULLS.len());
        let decided = |other| decide(&[table(wish, false), other]).expect("terms");
        let terms = decided(table(wish, false));
        assert!(terms.can_pull && terms.limits.pull_bytes_min == 1);
        let terms = decided(refused);
        assert!(!terms.can_pull);
        assert_eq!(terms.limits, terms.limits.without_pull());
    }

    #[test]
    fn ranks_with_different_straggler_policies_are_told() {
        let with = |words: &str| [&b"table"[..], POLICY.as_bytes(), words.as_bytes()].concat();
        let mut same = [with("tail"), with("tail")];
        compare_policies(&mut same).expect("one policy");
        assert_eq!(same[1], b"table");
        let error = compare_policies(&mut [with("off"), with("off"), with("next2")]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("`off` on rank 0 and `next2` on rank 2"),
            "{text}"
        );
        let late = |rank| with(&policy(Straggler::Off, rank));
        let error = compare_policies(&mut [late(Some(1)), late(Some(2)), late(None)]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("`off, late rank 1` on rank 0 and `off, late rank 2` on rank 1"),
            "{text}"
        );
        let error = compare_policies(&mut [with("off"), b"table".to_vec()]);
        assert!(
            matches!(error, Err(Error::Corrupt { peer: 1, .. })),
            "{error:?}"
        );
    }

    #[test]
    fn nonsense_names_its_rank() {
        let error = decide(&[
            table("push_bytes_min=1", false),
            b"one_shot_bytes_max=1".to_vec(),
        ]);
        assert!(
            matches!(error, Err(Error::Corrupt { peer: 1, .. })),
            "{error:?}"
        );
    }
}
