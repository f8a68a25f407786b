//! The operator's filter of algorithms and protocols: `RINGFOLD_ALGO` and `RINGFOLD_PROTO`, in the
//! grammar of NCCL's variables.
//!
//! A value is a list, or `collective:list;collective:list`. A list is comma-separated names; a
//! leading `^` means all names but these. Case and underscores are ignored. Only the first list may
//! lack a collective: it applies to all collectives, and a list with a collective overrides it.
//! Names that only NCCL has are accepted.
//!
//! A list without a collective is ignored for a call in which none of its ways is usable, so `ring`
//! serves a program that also scatters. A list with a collective is strict: if it leaves no usable
//! way, the call fails.

#![forbid(unsafe_code)]

use std::str::FromStr;

use super::CostTable;
use super::names::{ALGORITHMS, COLLECTIVES, Name, PROTOCOLS};
use crate::error::{Error, Result};
use crate::types::{Collective, Method, Protocol};

/// The variable that lists algorithms.
pub const ALGO: &str = "RINGFOLD_ALGO";

/// The variable that lists protocols.
pub const PROTO: &str = "RINGFOLD_PROTO";

/// The algorithms and protocols that the two variables allow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlgoFilter {
    algorithms: Lists<Method>,
    protocols: Lists<Protocol>,
}

/// One variable's list for each collective, in wire order; `None` allows everything.
type Lists<T> = [Option<List<T>>; Collective::ALL.len()];

/// The algorithms or protocols that are allowed for one collective.
#[derive(Clone, Debug, PartialEq, Eq)]
struct List<T> {
    allowed: Vec<T>,
    /// Whether the list names its collective.
    is_strict: bool,
    /// The list as the operator wrote it.
    text: String,
}

impl AlgoFilter {
    /// Parses the values of the two variables; an empty value allows everything.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`, which names the variable and the wrong word, with the nearest known name
    /// if the word is unknown.
    pub fn parse(algo: &str, proto: &str) -> Result<AlgoFilter> {
        Ok(AlgoFilter {
            algorithms: lists(ALGO, algo, &ALGORITHMS)?,
            protocols: lists(PROTO, proto, &PROTOCOLS)?,
        })
    }

    /// Returns the only algorithm allowed, if one list of a single algorithm applies to all
    /// collectives.
    pub fn sole(&self) -> Option<Method> {
        let first = self.algorithms[0].as_ref()?;
        let mut lists = self.algorithms.iter();
        let is_for_all = lists.all(|list| list.as_ref() == Some(first));
        match first.allowed[..] {
            [algorithm] if is_for_all && !first.is_strict => Some(algorithm),
            _ => None,
        }
    }

    /// Bars the ways that are not allowed in `table`, the cost table of a call of `collective`.
    /// Returns whether a usable way was barred.
    ///
    /// # Errors
    ///
    /// `Unsupported` if a list for this collective in particular leaves no usable way; the text
    /// names the variable and the usable ways.
    pub fn apply(&self, collective: Collective, table: &mut CostTable) -> Result<bool> {
        let before = table.usable().count();
        bar(ALGO, &self.algorithms, collective, table, |way| way.0)?;
        bar(PROTO, &self.protocols, collective, table, |way| way.1)?;
        Ok(table.usable().count() < before)
    }
}

/// Bars the ways that one variable does not allow, unless no usable way would remain.
fn bar<T: PartialEq>(
    variable: &str,
    lists: &Lists<T>,
    collective: Collective,
    table: &mut CostTable,
    key: impl Fn((Method, Protocol)) -> T,
) -> Result<()> {
    let Some(list) = &lists[collective as usize] else {
        return Ok(());
    };
    let is_allowed = |way| list.allowed.contains(&key(way));
    if table.usable().any(|(way, _)| is_allowed(way)) {
        table.retain(is_allowed);
        return Ok(());
    }
    if !list.is_strict {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "{variable} allows only `{}` for {collective}, which is not usable for this call; usable: \
         {}",
        list.text,
        table.list()
    )))
}

/// Parses the value of one variable.
fn lists<T: Copy + PartialEq + FromStr>(
    variable: &str,
    value: &str,
    table: &'static [Name<T>],
) -> Result<Lists<T>> {
    let mut lists: Lists<T> = Default::default();
    if value.trim().is_empty() {
        return Ok(lists);
    }
    let wrong = |why: String| Error::InvalidArgument(format!("{variable}=`{value}`: {why}"));
    for (index, part) in value.split(';').enumerate() {
        match part.split_once(':') {
            Some((collective, words)) => {
                let collective = collective.trim();
                let known = Name::loose(&COLLECTIVES, collective).and_then(|name| name.ours);
                let known = known.ok_or_else(|| {
                    let advice = Name::advice(&COLLECTIVES, collective);
                    wrong(format!("`{collective}` is no collective; {advice}"))
                })?;
                let list = list(words, table, true).map_err(wrong)?;
                lists[known as usize] = Some(list);
            }
            None if index == 0 => {
                let list = list(part, table, false).map_err(wrong)?;
                lists.fill(Some(list));
            }
            None => {
                return Err(wrong(format!(
                    "`{}` has no collective; write for example `allreduce:{}` (only the first list \
                     may apply to all)",
                    part.trim(),
                    table[0].text
                )));
            }
        }
    }
    Ok(lists)
}

/// Parses one list.
fn list<T: Copy + PartialEq + FromStr>(
    text: &str,
    table: &'static [Name<T>],
    is_strict: bool,
) -> Result<List<T>, String> {
    let text = text.trim();
    let without = text.strip_prefix('^');
    let mut named = Vec::new();
    for word in without.unwrap_or(text).split(',').map(str::trim) {
        if word.is_empty() {
            return Err(format!(
                "a name is missing in `{text}`; write for example `{}`",
                table[0].text
            ));
        }
        let name = Name::loose(table, word)
            .ok_or_else(|| format!("`{word}` is unknown; {}", Name::advice(table, word)))?;
        named.push(name.text);
    }
    let is_allowed = |name: &&Name<T>| named.contains(&name.text) != without.is_some();
    let allowed = table.iter().filter(is_allowed);
    Ok(List {
        allowed: allowed.filter_map(|name| name.ours).collect(),
        is_strict,
        text: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAYS: [(Method, Protocol); 4] = [
        (Method::Direct, Protocol::Ll),
        (Method::Direct, Protocol::Simple),
        (Method::Push, Protocol::ZeroCopy),
        (Method::Ring, Protocol::Simple),
    ];

    fn table() -> CostTable {
        let mut table = CostTable::unusable();
        WAYS.iter().for_each(|way| table.set(*way, 1.0));
        table
    }

    /// Returns the ways of [`WAYS`] that remain usable for a collective.
    fn left(algo: &str, proto: &str, collective: Collective) -> Result<Vec<(Method, Protocol)>> {
        let mut table = table();
        let is_bound = AlgoFilter::parse(algo, proto)?.apply(collective, &mut table)?;
        let mut ways: Vec<_> = table.usable().map(|(way, _)| way).collect();
        ways.sort();
        assert_eq!(is_bound, ways.len() < WAYS.len());
        Ok(ways)
    }

    #[test]
    fn lists_prefixes_and_exclusions_read_as_nccls() {
        let [line, staged, push, ring] = WAYS;
        let reduce = Collective::AllReduce;
        let mut all = WAYS.to_vec();
        all.sort();
        let cases: [(&str, &str, Collective, &[_]); 13] = [
            ("", "", reduce, &all),
            ("ring", "", reduce, &[ring]),
            ("Ring,DIRECT", "", reduce, &[ring, line, staged]),
            ("^ring", "", reduce, &[line, staged, push]),
            ("^ring,direct", "", reduce, &[push]),
            (" allreduce : ring ; broadcast:direct", "", reduce, &[ring]),
            (
                "all_reduce:ring;Broadcast:direct",
                "",
                Collective::Broadcast,
                &[line, staged],
            ),
            ("allreduce:ring", "", Collective::Broadcast, &all),
            (
                "direct;allreduce:ring",
                "",
                Collective::Broadcast,
                &[line, staged],
            ),
            ("direct;allreduce:^direct,push", "", reduce, &[ring]),
            ("direct", "LL", reduce, &[line]),
            ("", "^ll,zero_copy", reduce, &[ring, staged]),
            ("direct", "allreduce:simple", reduce, &[staged]),
        ];
        for (algo, proto, collective, due) in cases {
            let mut due = due.to_vec();
            due.sort();
            assert_eq!(
                left(algo, proto, collective).expect(algo),
                due,
                "{algo}; {proto}"
            );
        }
    }

    #[test]
    fn a_list_for_all_leaves_alone_what_has_none_of_it() {
        for (algo, proto) in [
            ("nvls", ""),
            ("tree,CollNetDirect", ""),
            ("", "ll128"),
            ("ring", "ll"),
        ] {
            let left = left(algo, proto, Collective::AllReduce).expect(algo);
            assert_eq!(
                left.len(),
                if algo == "ring" { 1 } else { WAYS.len() },
                "{algo}; {proto}"
            );
        }
    }

    #[test]
    fn a_list_for_one_collective_is_strict_on() {
        for (algo, proto, variable) in
            [("allreduce:tree", "", ALGO), ("", "allreduce:ll128", PROTO)]
        {
            let text = left(algo, proto, Collective::AllReduce)
                .expect_err(algo)
                .to_string();
            let due = ["ring (simple)", "push (zero_copy)", variable];
            assert!(due.iter().all(|due| text.contains(due)), "{text}");
            left(algo, proto, Collective::Reduce).expect("another collective is not bound");
        }
    }

    #[test]
    fn what_means_nothing_is_told_with_what_is_nearest() {
        let cases = [
            (
                "rnig",
                "",
                "RINGFOLD_ALGO=`rnig`: `rnig` is unknown; did you mean `ring`?",
            ),
            (
                "ring",
                "simpel",
                "RINGFOLD_PROTO=`simpel`: `simpel` is unknown; did you mean `simple`?",
            ),
            (
                "alreduce:ring",
                "",
                "`alreduce` is no collective; did you mean `allreduce`?",
            ),
            (
                "ring;tree",
                "",
                "`tree` has no collective; write for example `allreduce:tree`",
            ),
            ("ring,,tree", "", "a name is missing in `ring,,tree`"),
            ("^", "", "a name is missing in `^`"),
            ("allreduce:", "", "a name is missing"),
            ("ring,^tree", "", "`^tree` is unknown"),
        ];
        for (algo, proto, due) in cases {
            let text = AlgoFilter::parse(algo, proto).expect_err(algo).to_string();
            assert!(text.contains(due), "{text}");
        }
        let sole = |algo| AlgoFilter::parse(algo, "").expect(algo).sole();
        assert_eq!(sole("Claim"), Some(Method::Claim));
        for several in [
            "",
            "ring,tree",
            "ring;reduce:tree",
            "allreduce:ring",
            "nvls",
        ] {
            assert_eq!(sole(several), None, "{several}");
        }
        let [nothing, ring] = [" ", "ring"].map(|algo| AlgoFilter::parse(algo, "").expect(algo));
        assert_eq!(nothing, AlgoFilter::default());
        assert_ne!(ring, AlgoFilter::default());
    }
}
