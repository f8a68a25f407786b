//! Warnings about rules that never apply.

use super::{Rule, Rules};
use crate::schedule::{Access, Schedule};
use crate::types::{Method, Protocol};

/// Maximum number of warnings about one table.
const WARNINGS_MAX: usize = 16;

/// Maximum number of rules of a collective that are compared with each other; a longer table was
/// not written by hand.
const COMPARED_MAX: usize = 4096;

impl Rules {
    /// Returns warnings for the log, a sentence each: of rules that never apply because an earlier
    /// one matches all of their calls, or because their way does not exist here.
    #[doc(hidden)]
    pub fn warnings(&self) -> Vec<String> {
        self.warnings_for("ringfold", way_here)
    }

    /// Returns the warnings for another library that reads the file, in file order and up to a
    /// limit. `way` returns the library's way that a rule names, if it exists for the rule's
    /// collective.
    #[doc(hidden)]
    pub fn warnings_for<W: PartialEq>(
        &self,
        library: &str,
        way: impl Fn(&Rule) -> Option<W>,
    ) -> Vec<String> {
        let way = &way;
        let of_list = |list: &'_ [Rule]| {
            let compared = list.iter().take(COMPARED_MAX).enumerate();
            let of_rule = |(index, rule)| warning(&list[..index], rule, library, way);
            compared.filter_map(of_rule).collect::<Vec<_>>()
        };
        let lists = self.by_collective.iter();
        let mut warnings: Vec<_> = lists.flat_map(|list| of_list(list)).collect();
        warnings.sort();
        let left_out = warnings.len().saturating_sub(WARNINGS_MAX);
        let source = self.source();
        let mut sentences: Vec<_> = warnings
            .into_iter()
            .take(WARNINGS_MAX)
            .map(|(line, why)| format!("{source}:{line}: {why}"))
            .collect();
        if left_out > 0 {
            sentences.push(format!("{source}: {left_out} more of this kind"));
        }
        sentences
    }
}

/// Returns a rule's line, and why it never or hardly ever applies after these earlier rules of its
/// collective.
fn warning<W: PartialEq>(
    earlier: &[Rule],
    rule: &Rule,
    library: &str,
    way: impl Fn(&Rule) -> Option<W>,
) -> Option<(u32, String)> {
    let why = if way(rule).is_none() {
        let (algorithm, protocol) = (rule.algorithm.text, rule.protocol.text);
        format!(
            "never applies: {library} has no {} by {algorithm},{protocol}",
            rule.collective
        )
    } else {
        let first = earlier
            .iter()
            .find(|earlier| way(earlier).is_some() && covers(earlier, rule))?;
        match way(first) == way(rule) {
            true => format!(
                "never applies: line {} matches all of its calls",
                first.line
            ),
            false => format!(
                "applies only if the way of line {}, which matches all of its calls, is not usable",
                first.line
            ),
        }
    };
    Some((rule.line, format!("`{rule}` {why}")))
}

/// Returns the way that a rule names, if ringfold can ever use it.
fn way_here(rule: &Rule) -> Option<(Method, Protocol)> {
    let (algorithm, protocol) = rule.way()?;
    let serves = |access: &Access| Schedule::exists(rule.collective, algorithm, *access);
    let exists = algorithm.is_registered() == (protocol == Protocol::ZeroCopy)
        && Access::ALL.iter().any(serves);
    exists.then_some((algorithm, protocol))
}

/// Whether `earlier` matches every call that `rule` matches; both are of one collective.
fn covers(earlier: &Rule, rule: &Rule) -> bool {
    fn is_wider<T: PartialEq>(earlier: Option<T>, later: Option<T>) -> bool {
        earlier.is_none() || earlier == later
    }
    earlier.bytes_min <= rule.bytes_min
        && earlier.bytes_max >= rule.bytes_max
        && is_wider(earlier.hosts, rule.hosts)
        && is_wider(earlier.ranks, rule.ranks)
        && is_wider(earlier.group, rule.group)
        && is_wider(earlier.is_registered, rule.is_registered)
}
