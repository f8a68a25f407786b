//! The terms that are the same on all ranks of a communicator: constants, limits and rules.
//!
//! Each rank sends a [`Proposal`] in the exchange that confirms that all are linked. Constants and
//! rules are rank 0's, so that all ranks decide alike even if machines, kernels or environments
//! differ. Limits are rank 0's, too, but an algorithm that any rank bars is barred for all. Rules
//! can be too long for an exchange: they are [sent](send_rules) when the ranks can call
//! collectives.
//!
//! A tuner plugin is used only if it is on all ranks: ranks that choose differently would wait for
//! each other.
//!
//! A peer's proposal is a claim: it is complete and within bounds, or refused.

use crate::communicator::Communicator;
use crate::control::wire::{Wire, WireReader, WireWriter, wire_struct};
use crate::error::{Error, Result};
use crate::topology::layout;
use crate::tune::constants;
use crate::tune::{Constants, Limits, Rules};

/// Maximum bytes of the rules from rank 0: some hundred thousand lines.
const RULES_BYTES_MAX: usize = 16 << 20;
/// Maximum bytes of the text of limits.
const LIMITS_BYTES_MAX: usize = 4 << 10;

/// One rank's part of the second exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// Limits of the rank itself.
    pub limits: Limits,
    /// The domain of all cores of the rank, if they are in one.
    pub domain: Option<usize>,
    /// Name of the rank's tuner plugin, if any.
    pub plugin: Option<String>,
    /// Whether the rank demands reproducible results.
    pub is_reproducible: bool,
    /// Rank 0's decisions for all ranks.
    pub leading: Option<Leading>,
}

/// Rank 0's part of a proposal.
#[derive(Clone, Debug, PartialEq)]
pub struct Leading {
    /// The constants of the cost model.
    pub constants: Constants,
    /// Whether doubtful choices are probed before the first call.
    pub is_probed: bool,
    /// Bytes of the operator's rules as a text, which is sent later.
    pub rules_bytes: usize,
}

/// The terms that are the same on all ranks of a communicator.
#[derive(Clone, Debug, PartialEq)]
pub struct AgreedTerms {
    /// The constants of the cost model.
    pub constants: Constants,
    /// Limits on the pieces and stores of all calls.
    pub limits: Limits,
    /// Bytes of the operator's rules as a text, which is sent later.
    pub rules_bytes: usize,
    /// Whether doubtful choices are probed before the first call.
    pub is_probed: bool,
    /// Name of the tuner plugin, if all ranks have the same.
    pub plugin: Option<String>,
    /// Whether any rank demands reproducible results.
    pub is_reproducible: bool,
    /// Domain of each rank; `None` for a rank that may run in several.
    pub domains: Vec<Option<usize>>,
}

wire_struct!(Proposal {
    limits,
    domain,
    plugin,
    is_reproducible,
    leading
});
wire_struct!(Leading { constants, is_probed, rules_bytes } if Leading::is_bounded);

impl Leading {
    fn is_bounded(&self) -> bool {
        self.rules_bytes <= RULES_BYTES_MAX
    }
}

impl Wire for Limits {
    fn write(&self, to: &mut WireWriter) {
        to.text(&self.to_string(), LIMITS_BYTES_MAX);
    }

    fn read(from: &mut WireReader<'_>) -> Option<Limits> {
        Limits::decode(from.bytes(LIMITS_BYTES_MAX)?)
    }
}

impl Wire for Constants {
    fn write(&self, to: &mut WireWriter) {
        to.text(&self.to_string(), constants::TEXT_BYTES_MAX);
    }

    fn read(from: &mut WireReader<'_>) -> Option<Constants> {
        Constants::decode(from.bytes(constants::TEXT_BYTES_MAX)?)
    }
}

impl AgreedTerms {
    /// Decides the terms from the proposals of all ranks, in rank order.
    pub fn decide(mut proposals: Vec<Proposal>) -> Result<AgreedTerms> {
        let leading = proposals[0].leading.take();
        let leading = leading.ok_or_else(|| malformed("terms without rank 0's decisions"))?;
        let (first, others) = (&proposals[0], &proposals[1..]);
        let limits = others
            .iter()
            .fold(first.limits, |limits, other| limits.barring(&other.limits));
        let is_everywhere = others.iter().all(|other| other.plugin == first.plugin);
        Ok(AgreedTerms {
            constants: leading.constants,
            limits,
            rules_bytes: leading.rules_bytes,
            is_probed: leading.is_probed,
            plugin: first.plugin.clone().filter(|_| is_everywhere),
            is_reproducible: proposals.iter().any(|proposal| proposal.is_reproducible),
            domains: proposals.iter().map(|proposal| proposal.domain).collect(),
        })
    }

    /// Returns the number of domains of equal size that the ranks occupy in rank order: 1 if they
    /// do not, if a rank may run in several, and on several hosts. All ranks have the same list, so
    /// all get the same number.
    pub fn domain_count(&self, hosts: usize) -> usize {
        if hosts > 1 || self.domains.len() < 2 {
            return 1;
        }
        let count = layout::equal_domains(&self.domains);
        let name = |domain: &Option<usize>| domain.map_or("several".into(), |it| it.to_string());
        let names: Vec<String> = self.domains.iter().map(name).collect();
        let level = match count {
            1 => log::Level::Debug,
            _ => log::Level::Info,
        };
        log::log!(
            target: "ringfold::init",
            level,
            "domains of equal size: {count}; the domain of each rank, by its first core: {}",
            names.join(", ")
        );
        count
    }
}

/// Broadcasts the rules of rank 0, a text of `bytes`, and returns them. `own` are this rank's
/// rules, which count only on rank 0. Every rank of the communicator calls this function.
pub(super) fn send_rules(communicator: &Communicator, own: &Rules, bytes: usize) -> Result<Rules> {
    let mut text = vec![0u8; bytes];
    if communicator.rank() == 0 {
        text.copy_from_slice(own.to_string().as_bytes());
    }
    communicator.broadcast(&mut text, 0)?;
    let text = std::str::from_utf8(&text).map_err(|_| malformed("rules"))?;
    Rules::parse(text, "rank 0's rules").map_err(|_| malformed("rules"))
}

/// Returns the error for something from rank 0 that cannot be used.
fn malformed(what: &str) -> Error {
    Error::corrupt(
        0,
        format!("malformed {what}; use the same version of ringfold on all ranks"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::wire;
    use crate::topology::Machine;
    use crate::tune::limits::{LimitOverrides, NEVER};

    /// Returns the proposal of a rank other than 0.
    fn proposal(overrides: &str) -> Proposal {
        let limits = Limits::derive(&Machine::here(), 2);
        let overrides: LimitOverrides = overrides.parse().expect("overrides");
        Proposal {
            limits: overrides.over(limits),
            domain: Some(0),
            plugin: None,
            is_reproducible: false,
            leading: None,
        }
    }

    fn leading() -> Leading {
        Leading {
            constants: Constants::derive(&Machine::here(), 2),
            is_probed: false,
            rules_bytes: 0,
        }
    }

    /// Returns the terms if the first proposal is rank 0's.
    fn decide(mut proposals: Vec<Proposal>) -> AgreedTerms {
        proposals[0].leading.get_or_insert_with(leading);
        let records: Vec<Vec<u8>> = proposals.iter().map(wire::encode).collect();
        let proposals = wire::decode_all("terms", records).expect("proposals");
        AgreedTerms::decide(proposals).expect("terms")
    }

    #[test]
    fn a_plugin_that_is_not_everywhere_is_not_used() {
        let with = |name: &Option<&str>| Proposal {
            plugin: name.map(str::to_owned),
            ..proposal("shared_slice_bytes=64K")
        };
        let decided = |names: &[Option<&str>]| decide(names.iter().map(with).collect()).plugin;
        assert_eq!(
            decided(&[Some("mine\nand more"); 3]),
            Some("mine\nand more".into())
        );
        for others in [
            [Some("mine"), None],
            [None, Some("mine")],
            [Some("mine"), Some("yours")],
            [None, None],
        ] {
            assert_eq!(decided(&others), None, "{others:?}");
        }
    }

    #[test]
    fn any_rank_makes_results_reproducible() {
        let with = |demand: &bool| Proposal {
            is_reproducible: *demand,
            ..proposal("shared_slice_bytes=64K")
        };
        for (demands, expected) in [([false, false], false), ([false, true], true)] {
            let decided = decide(demands.iter().map(with).collect());
            assert_eq!(decided.is_reproducible, expected);
        }
    }

    #[test]
    fn rank_0_decides_and_any_rank_bars() {
        let mut own = leading();
        own.is_probed = true;
        own.constants.hop_us = 2.5;
        own.rules_bytes = 36;
        let overrides = "shared_slice_bytes=64K,helper_bytes_min=1M,stream_bytes_min=never";
        let first = Proposal {
            leading: Some(own.clone()),
            ..proposal(overrides)
        };
        let other = proposal("shared_slice_bytes=32K,helper_bytes_min=never,stream_bytes_min=1M");
        let decided = decide(vec![first, other]);
        assert!(decided.is_probed);
        assert_eq!(decided.limits.shared_slice_bytes, 64 << 10);
        let barred = (
            decided.limits.helper_bytes_min,
            decided.limits.stream_bytes_min,
        );
        assert_eq!(barred, (NEVER, NEVER));
        assert_eq!(decided.constants, own.constants);
        assert_eq!(decided.rules_bytes, own.rules_bytes);
    }

    #[test]
    fn domains_count_where_all_ranks_share_a_host_and_sit_in_one_each() {
        let within = |domains: &[Option<usize>]| {
            let each = domains.iter().map(|domain| Proposal {
                domain: *domain,
                ..proposal("shared_slice_bytes=64K")
            });
            decide(each.collect())
        };
        let halves = within(&[Some(0), Some(0), Some(8), Some(8)]);
        assert_eq!((halves.domain_count(1), halves.domain_count(2)), (2, 1));
        assert_eq!(within(&[Some(0), None]).domain_count(1), 1);
        assert_eq!(within(&[Some(0)]).domain_count(1), 1);
    }

    #[test]
    fn rules_come_later() {
        for lines in [1, 1000] {
            let text = "allreduce,0,64,ring,simple,-1,-1,-1\n".repeat(lines);
            let rules = Rules::parse(&text, "").expect("rules");
            let text = rules.to_string();
            on_both(|communicator| {
                let nothing = Rules::default();
                let own = [&rules, &nothing][communicator.rank()];
                let sent = send_rules(communicator, own, text.len()).expect("rank 0's rules");
                assert_eq!(sent.to_string(), text);
            });
        }
    }

    #[test]
    fn unreadable_rules_are_corrupt() {
        const BYTES: usize = 40;
        on_both(|communicator| {
            if communicator.rank() == 0 {
                let mut text = [0xffu8; BYTES];
                communicator.broadcast(&mut text, 0).expect("a broadcast");
                return;
            }
            let refused = send_rules(communicator, &Rules::default(), BYTES);
            assert!(
                matches!(refused, Err(Error::Corrupt { peer: 0, .. })),
                "{refused:?}"
            );
        });
    }

    /// Runs `part` on two ranks that are threads.
    fn on_both(part: impl Fn(&Communicator) + Sync) {
        std::thread::scope(|scope| {
            for communicator in Communicator::threads(2) {
                scope.spawn(|| {
                    let communicator = communicator;
                    part(&communicator);
                });
            }
        });
    }

    #[test]
    fn an_unreadable_proposal_names_its_rank() {
        let other = proposal("shared_slice_bytes=64K");
        let own = Leading {
            rules_bytes: RULES_BYTES_MAX,
            ..leading()
        };
        let first = Proposal {
            leading: Some(own),
            ..other.clone()
        };
        let (first, good) = (wire::encode(&first), wire::encode(&other));
        let refused = |first: &[u8], other: &[u8], blamed: usize| {
            let proposals = wire::decode_all("terms", [first, other]);
            let decided = proposals.and_then(AgreedTerms::decide);
            let is_blamed = matches!(decided, Err(Error::Corrupt { peer, .. }) if peer == blamed);
            assert!(is_blamed, "{decided:?}");
        };
        for length in 0..good.len() {
            refused(&first, &good[..length], 1);
        }
        refused(&first, &[good.clone(), vec![0]].concat(), 1);
        refused(&first, &[b"\xff\xff\xff\xff", &good[4..]].concat(), 1);
        // Rank 0 without its decisions, with half of them, or with impossible lengths.
        refused(&good, &good, 0);
        for length in good.len()..first.len() {
            refused(&first[..length], &good, 0);
        }
        let end = first.len();
        for rules in [u64::MAX, 17 << 20] {
            let cut = [&first[..end - 8], &rules.to_le_bytes()].concat();
            refused(&cut, &good, 0);
        }
    }
}
