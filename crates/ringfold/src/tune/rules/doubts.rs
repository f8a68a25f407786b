//! What is doubtful about a table of rules.

use super::{Rule, Rules};
use crate::schedule::{Access, Schedule};
use crate::types::{Method, Protocol};

/// The most sentences about one table.
const DOUBTS_MAX: usize = 16;

/// Rules of a collective that are compared with each other; a longer table was not written by hand.
const COMPARED_MAX: usize = 4096;

/// A sentence for each rule that never holds, in the file's order and up to a limit. `way` says
/// which way a rule names, if the library could ever go it for the rule's collective.
pub fn of<W: PartialEq>(
    rules: &Rules,
    library: &str,
    way: impl Fn(&Rule) -> Option<W>,
) -> Vec<String> {
    let compared = |list: &'_ [Rule]| list.len().min(COMPARED_MAX);
    let lists = rules.by_collective.iter();
    let mut doubts: Vec<_> = lists
        .flat_map(|list| {
            let way = &way;
            (0..compared(list))
                .filter_map(move |index| doubt(&list[..index], &list[index], library, way))
        })
        .collect();
    doubts.sort();
    let left_out = doubts.len().saturating_sub(DOUBTS_MAX);
    doubts.truncate(DOUBTS_MAX);
    let source = rules.source();
    let mut sentences: Vec<_> = doubts
        .into_iter()
        .map(|(line, why)| format!("{source}:{line}: {why}"))
        .collect();
    if left_out > 0 {
        sentences.push(format!("{source}: {left_out} more of this kind"));
    }
    sentences
}

/// Why a rule holds never or hardly ever behind these of the same collective, and its line.
fn doubt<W: PartialEq>(
    earlier: &[Rule],
    rule: &Rule,
    library: &str,
    way: impl Fn(&Rule) -> Option<W>,
) -> Option<(u32, String)> {
    let why = if way(rule).is_none() {
        let (algorithm, protocol) = (rule.algorithm.text, rule.protocol.text);
        format!(
            "never holds: {library} has no {} by {algorithm},{protocol}",
            rule.collective
        )
    } else {
        let first = earlier
            .iter()
            .find(|earlier| way(earlier).is_some() && covers(earlier, rule))?;
        match way(first) == way(rule) {
            true => format!("never holds: line {} matches all of its calls", first.line),
            false => format!(
                "holds only where the way of line {}, which matches all of its calls, is \
                 not usable",
                first.line
            ),
        }
    };
    Some((rule.line, format!("`{rule}` {why}")))
}

/// The way that a rule names, if ringfold could ever go it.
pub fn way_here(rule: &Rule) -> Option<(Method, Protocol)> {
    let (algorithm, protocol) = rule.way()?;
    let serves = |access: &Access| Schedule::exists(rule.collective, algorithm, *access);
    let exists = algorithm.is_registered() == (protocol == Protocol::ZeroCopy)
        && Access::ALL.iter().any(serves);
    exists.then_some((algorithm, protocol))
}

/// Whether `earlier` matches whatever `rule` matches; both are of one collective.
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
