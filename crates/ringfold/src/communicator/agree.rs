//! How the ranks of a communicator come to decide alike: by one table of constants, of limits and of rules.
//!
//! Each rank says in the exchange in which all are ready what it would go by. All take rank 0's, so that they decide alike
//! even where machines, versions of the kernel or environments differ. A way that any rank bars is barred for all. Rules that are too long for an exchange
//! are [sent](send_rules) when the ranks can call each other.
//!
//! A tuner plugin that is not on all ranks is on none: ranks that choose differently would wait for each other.
//!
//! What a rank says is text, a line a word: `limits`, `constants` (rank 0's count), `probe`, `straggler`, `plugin` and `rules`
//! with their length; behind an empty line the rules, if they are short. From a peer it is a claim: it is whole and within bounds, or
//! refused.

use std::path::Path;
use std::time::Instant;

use super::Communicator;
use super::group::{Group, Verdict};
use super::placement::Sharing;
use crate::config::Straggler;
use crate::env;
use crate::error::{Error, Result};
use crate::topology::Machine;
use crate::tune::calibration::{self, Context};
use crate::tune::{Constants, Limits, Rules};

/// Where `proc` and `sys` are.
const ROOT: &str = "/";

/// The longest rules that are told with everything else.
const TOLD_RULES_BYTES_MAX: usize = 8 << 10;

/// The longest rules that are taken from rank 0 at all: some hundred thousand lines.
const RULES_BYTES_MAX: usize = 16 << 20;

/// What all ranks of a communicator go by.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// The constants of the cost model.
    pub constants: Constants,
    /// The pieces and stores of all calls.
    pub limits: Limits,
    /// The operator's rules, as far as they are here.
    pub rules: RulesText,
    /// Whether what is doubtful is probed before the first call.
    pub is_probed: bool,
    /// What the tuner plugin of all ranks is called, if all have the same.
    pub plugin: Option<String>,
    /// How slow ranks are gone around, in words.
    policy: String,
}

/// Rules on their way.
#[derive(Clone, Debug, PartialEq)]
pub enum RulesText {
    /// All of them.
    Told(Box<Rules>),
    /// So many bytes are to come.
    Later(usize),
}

/// What this rank is ready with.
pub struct Ready<'a> {
    /// Cores of this host that its ranks have together.
    pub cores: usize,
    /// Who shares them, also from other hosts of the same machine.
    pub sharing: Sharing,
    /// Whether all ranks share memory.
    pub is_shared: bool,
    /// Whether a probe would mean anything.
    pub can_probe: bool,
    /// Its rules, if they are the ones that hold.
    pub rules: &'a Rules,
    /// What its tuner plugin is called, if it has one.
    pub plugin: Option<&'a str>,
}

/// Waits until all ranks are ready, and returns the terms that hold for all.
pub fn agree(
    group: &Group,
    ready: &Ready<'_>,
    verdict: Verdict<'_>,
    deadline: Instant,
) -> Result<Terms> {
    let own = Terms::new(group, ready).encode();
    let told = group.exchange("ready", own.as_bytes(), deadline, verdict)?;
    let terms = decide(&told)?;
    if let (Some(name), None) = (ready.plugin, &terms.plugin) {
        log::warn!(
            target: "ringfold::tuning",
            "plugin `{name}` is not on all ranks, so the model decides; set RINGFOLD_TUNER_PLUGIN alike, and have the library everywhere"
        );
    }
    let Terms {
        constants,
        limits,
        is_probed,
        ..
    } = &terms;
    let why = if *is_probed { "; a probe follows" } else { "" };
    log::info!(
        target: "ringfold::tuning",
        "limits, as rank 0 has them from its caches, its cores and RINGFOLD_LIMITS: {limits}{why}"
    );
    log::info!(target: "ringfold::tuning", "constants of the cost model, as rank 0 has them: {constants}");
    Ok(terms)
}

/// Gives all ranks the rules of rank 0 where these are `bytes` long, too long for an exchange. `own` are this rank's; those of rank 0
/// count. Every rank of the communicator calls this.
pub fn send_rules(communicator: &Communicator, own: &Rules, bytes: usize) -> Result<Rules> {
    let mut text = vec![0u8; bytes];
    if communicator.rank() == 0 {
        text.copy_from_slice(own.to_string().as_bytes());
    }
    communicator.broadcast(&mut text, 0)?;
    read_rules(&text).ok_or_else(|| nonsense(0))
}

fn read_rules(text: &[u8]) -> Option<Rules> {
    Rules::parse(std::str::from_utf8(text).ok()?, "rank 0's rules").ok()
}

fn nonsense(peer: usize) -> Error {
    Error::Corrupt {
        peer,
        what: "terms that mean nothing; use one version everywhere".into(),
        site: None,
    }
}

/// How a rank would go around slow ones, in words.
fn policy(straggler: Straggler, late_rank: Option<usize>) -> String {
    match late_rank {
        Some(rank) => format!("{}, late rank {rank}", straggler.name()),
        None => straggler.name().to_owned(),
    }
}

/// The terms that follow from what all ranks, in rank order, have told.
fn decide(told: &[Vec<u8>]) -> Result<Terms> {
    let mut all = Vec::with_capacity(told.len());
    for (peer, text) in told.iter().enumerate() {
        all.push(Terms::decode(text).ok_or_else(|| nonsense(peer))?);
    }
    let first = all.remove(0);
    // All ranks go around slow ones in the same way, else they would wait for each other in vain.
    if let Some(index) = all.iter().position(|terms| terms.policy != first.policy) {
        let (peer, other) = (index + 1, &all[index].policy);
        return Err(Error::InvalidArgument(format!(
            "straggler policy `{}` on rank 0 and `{other}` on rank {peer}; set RINGFOLD_STRAGGLER and RINGFOLD_LATE_RANK \
             alike on all ranks",
            first.policy
        )));
    }
    let limits = all
        .iter()
        .fold(first.limits, |limits, other| limits.barring(&other.limits));
    let plugin = first.plugin.clone();
    Ok(Terms {
        limits,
        plugin: plugin.filter(|name| all.iter().all(|terms| terms.plugin.as_ref() == Some(name))),
        ..first
    })
}

/// The constants that this rank would have: what was measured on this machine, or the defaults. Nobody looks into the file
/// whose constants do not hold.
fn constants(group: &Group, ready: &Ready<'_>) -> Constants {
    let Sharing { ranks, cores } = ready.sharing;
    let machine = Machine::read(Path::new(ROOT), cores);
    let measured = match group.rank {
        0 => calibration::find(&group.settings.calibration, &env::process, Path::new(ROOT)),
        _ => None,
    };
    let context = Context {
        is_shared: ready.is_shared,
        ranks: group.world_ranks.len(),
    };
    match measured {
        Some(calibration) => calibration.constants(context, &machine, ranks),
        None => Constants::derive(&machine, ranks),
    }
}

impl Terms {
    /// What this rank would have.
    fn new(group: &Group, ready: &Ready<'_>) -> Terms {
        let settings = &group.settings;
        let local_ranks = group.local_ranks().len();
        let measured = group
            .inherited
            .as_ref()
            .and_then(|inherited| inherited.measured.clone());
        let (constants, limits) = measured.unwrap_or_else(|| {
            let machine = Machine::read(Path::new(ROOT), ready.cores);
            (
                constants(group, ready),
                Limits::derive(&machine, local_ranks),
            )
        });
        let insists = settings.algorithm.is_some() || settings.slice_bytes.is_some();
        Terms {
            constants,
            limits: settings.limits.over(limits),
            rules: RulesText::Told(Box::new(ready.rules.clone())),
            // Only where it is the job that begins: parts are made often, and beside each other.
            is_probed: ready.can_probe && settings.is_probing && group.id == 0 && !insists,
            plugin: ready.plugin.map(str::to_owned),
            policy: policy(settings.straggler, settings.late_rank),
        }
    }

    fn encode(&self) -> String {
        let mut text = format!("limits {}\nconstants {}\n", self.limits, self.constants);
        if self.is_probed {
            text += "probe\n";
        }
        text += &format!("straggler {}\n", self.policy);
        if let Some(name) = &self.plugin {
            // Somebody else's words, of which every line would be one of ours.
            text += &format!("plugin {}\n", name.replace('\n', " "));
        }
        let rules = match &self.rules {
            RulesText::Told(rules) => rules.to_string(),
            RulesText::Later(_) => String::new(),
        };
        text += &format!("rules {}\n\n", rules.len());
        if rules.len() <= TOLD_RULES_BYTES_MAX {
            text += &rules;
        }
        text
    }

    /// What a peer has told; `None` unless it is whole.
    fn decode(told: &[u8]) -> Option<Terms> {
        let text = std::str::from_utf8(told).ok()?;
        let (words, rules) = text.split_once("\n\n")?;
        let (mut constants, mut limits, mut policy, mut length) = (None, None, None, None);
        let (mut is_probed, mut plugin) = (false, None);
        for line in words.lines() {
            match line.split_once(' ').unwrap_or((line, "")) {
                ("limits", table) => limits = Some(Limits::decode(table.as_bytes())?),
                ("constants", table) => constants = Some(Constants::decode(table.as_bytes())?),
                ("straggler", words) => policy = Some(words.to_owned()),
                ("plugin", name) => plugin = Some(name.to_owned()),
                ("rules", bytes) => length = Some(bytes.parse().ok()?),
                ("probe", "") => is_probed = true,
                _ => return None,
            }
        }
        let rules = match length? {
            length if length == rules.len() => {
                RulesText::Told(read_rules(rules.as_bytes())?.into())
            }
            length if rules.is_empty() && length <= RULES_BYTES_MAX => RulesText::Later(length),
            _ => return None,
        };
        Some(Terms {
            constants: constants?,
            limits: limits?,
            rules,
            is_probed,
            plugin,
            policy: policy?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::limits::{NEVER, Overrides};

    fn terms(overrides: &str) -> Terms {
        let machine = Machine::here();
        let limits = Limits::derive(&machine, 2);
        Terms {
            constants: Constants::derive(&machine, 2),
            limits: overrides
                .parse::<Overrides>()
                .expect("overrides")
                .over(limits),
            rules: RulesText::Told(Box::default()),
            is_probed: false,
            plugin: None,
            policy: policy(Straggler::Off, None),
        }
    }

    fn told(terms: &[Terms]) -> Vec<Vec<u8>> {
        terms
            .iter()
            .map(|terms| terms.encode().into_bytes())
            .collect()
    }

    #[test]
    fn a_plugin_that_is_not_everywhere_is_nowhere() {
        let with = |name: Option<&str>| Terms {
            plugin: name.map(str::to_owned),
            ..terms("shared_slice_bytes=64K")
        };
        let decided = |names: &[Option<&str>]| {
            let all: Vec<_> = names.iter().map(|name| with(*name)).collect();
            decide(&told(&all)).expect("they agree otherwise").plugin
        };
        assert_eq!(decided(&[Some("mine"); 3]), Some("mine".into()));
        for others in [
            [Some("mine"), None],
            [None, Some("mine")],
            [Some("mine"), Some("yours")],
            [None, None],
        ] {
            assert_eq!(decided(&others), None, "{others:?}");
        }
        // A name is not a place for words of ours.
        assert_eq!(
            decided(&[Some("mine\nprobe"); 2]),
            Some("mine probe".into())
        );
    }

    #[test]
    fn rank_0_decides_and_anyone_bars() {
        let mut first = terms("shared_slice_bytes=64K,helper_bytes_min=1M,stream_bytes_min=never");
        first.is_probed = true;
        first.constants.hop_us = 2.5;
        let rules = Rules::parse("allreduce,0,64,ring,simple,-1,-1,-1\n", "").expect("rules");
        first.rules = RulesText::Told(rules.into());
        let other = terms("shared_slice_bytes=32K,helper_bytes_min=never,stream_bytes_min=1M");
        let decided = decide(&told(&[first.clone(), other])).expect("terms");
        assert!(decided.is_probed);
        assert_eq!(decided.limits.shared_slice_bytes, 64 << 10);
        let barred = (
            decided.limits.helper_bytes_min,
            decided.limits.stream_bytes_min,
        );
        assert_eq!(barred, (NEVER, NEVER));
        assert_eq!(decided.constants, first.constants);
        assert_eq!(decided.rules, first.rules);
    }

    #[test]
    fn ranks_with_different_straggler_policies_are_told() {
        let with = |straggler, late_rank| Terms {
            policy: policy(straggler, late_rank),
            ..terms("shared_slice_bytes=64K")
        };
        let off = || with(Straggler::Off, None);
        for (told_terms, text) in [
            (
                vec![off(), off(), with(Straggler::Tail, None)],
                "`off` on rank 0 and `tail` on rank 2",
            ),
            (
                vec![off(), with(Straggler::Tail, None), off()],
                "`off` on rank 0 and `tail` on rank 1",
            ),
            (
                vec![with(Straggler::Off, Some(1)), with(Straggler::Off, Some(2))],
                "`off, late rank 1` on rank 0 and `off, late rank 2` on rank 1",
            ),
        ] {
            let error = decide(&told(&told_terms)).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn long_rules_come_later() {
        let line = "allreduce,0,64,ring,simple,-1,-1,-1\n";
        let rules = Rules::parse(&line.repeat(1000), "").expect("rules");
        let bytes = rules.to_string().len();
        let first = Terms {
            rules: RulesText::Told(rules.into()),
            ..terms("shared_slice_bytes=64K")
        };
        let decided = decide(&told(&[first])).expect("terms");
        assert_eq!(decided.rules, RulesText::Later(bytes));
    }

    #[test]
    fn nonsense_names_its_rank() {
        let good = terms("shared_slice_bytes=64K").encode();
        for bad in [
            good.replace("straggler", "stragler"),
            good.replace("constants ", "constants hop="),
            good.replace("rules 0", "rules 99999999999"),
            good.replace("rules 0", "rules 7") + "nonsense",
            good[..good.len() / 2].to_owned(),
        ] {
            let error = decide(&[good.clone().into_bytes(), bad.clone().into_bytes()]);
            assert!(
                matches!(error, Err(Error::Corrupt { peer: 1, .. })),
                "{bad}"
            );
        }
    }
}
