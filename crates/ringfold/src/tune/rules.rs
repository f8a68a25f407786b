//! Tuner rules: a table by which an operator sets the algorithm, protocol and channels of calls, in
//! the format of NCCL's example tuner plugin.
//!
//! A line is a rule:
//! `collective,bytes_min,bytes_max,algorithm,protocol,channels,hosts,ranks[,group[,registered]]`,
//! as in `allreduce,0,65536,tree,simple,-1,-1,8`. The range of bytes includes both ends. `group` is
//! the number of calls made together, and `registered` is 1 for calls in registered memory, else 0.
//! In `hosts`, `ranks`, `group` and `registered`, `-1` matches every call. In `channels`, `-1`
//! means no change; in `bytes_max`, no limit. Spaces around fields, blank lines and text after a
//! `#` are ignored. The first rule in file order that matches a call, and whose algorithm and
//! protocol are usable, applies.
//!
//! # Invariants
//!
//! * A file that NCCL's example reads without guessing means the same here. If the example guesses,
//!   the file is rejected with an error that names the line and the column. The example guesses if
//!   it turns an unknown collective into all-reduce, an unknown algorithm into the ring, or an
//!   invalid number into 0, and if it skips an empty field or drops a short line.
//! * Rules keep the order and the line numbers of their file, even after they are written and read
//!   again.
//!
//! Source of the format: `plugins/tuner/example` of NVIDIA's NCCL; the parser is ringfold's own.

#![forbid(unsafe_code)]

mod parse;
#[cfg(test)]
mod tests;
mod warnings;

use std::fmt;

use super::Question;
use super::names::{COLLECTIVES, Name};
use crate::types::{Collective, Method, Protocol};

/// A rule, which sets the algorithm, protocol and channels of matching calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The collective of matching calls.
    pub collective: Collective,
    /// Minimum bytes of a matching call.
    pub bytes_min: u64,
    /// Maximum bytes of a matching call, inclusive.
    pub bytes_max: u64,
    /// The algorithm; some exist only in NCCL.
    pub algorithm: &'static Name<Method>,
    /// The protocol; some exist only in NCCL.
    pub protocol: &'static Name<Protocol>,
    /// Number of channels to use; `None` for no change.
    pub channels: Option<u32>,
    /// Number of hosts of a matching call; `None` for any number.
    pub hosts: Option<u32>,
    /// Number of ranks of a matching call; `None` for any number.
    pub ranks: Option<u32>,
    /// Number of calls made together; `None` for any number.
    pub group: Option<u32>,
    /// Whether a matching call is in registered memory; `None` for either.
    pub is_registered: Option<bool>,
    /// The rule's line in its file, from 1.
    pub line: u32,
}

/// A table of rules, by which an operator decides the algorithms of calls: see
/// [`Config::tuner_rules`](crate::Config::tuner_rules). [`parse`](Rules::parse) and
/// [`read`](Rules::read) take NCCL's format, which `Display` writes.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    source: String,
    /// The rules of each collective, in wire order; those of one collective in file order.
    by_collective: [Vec<Rule>; Collective::ALL.len()],
}

impl Rule {
    /// Returns the rule's method and protocol, if ringfold has both.
    pub fn way(&self) -> Option<(Method, Protocol)> {
        Some((self.algorithm.ours?, self.protocol.ours?))
    }

    /// Returns NCCL's numbers of the rule's algorithm and protocol, if NCCL has both.
    pub fn nccl_way(&self) -> Option<(usize, usize)> {
        Some((self.algorithm.nccl?.into(), self.protocol.nccl?.into()))
    }

    /// Whether the rule matches `call`.
    pub fn matches(&self, call: &Question) -> bool {
        let is = |wanted: Option<u32>, given: usize| {
            wanted.is_none_or(|wanted| wanted as usize == given)
        };
        self.collective == call.collective
            && (self.bytes_min..=self.bytes_max).contains(&call.bytes)
            && is(self.hosts, call.hosts)
            && is(self.ranks, call.world_size)
            && self.group.is_none_or(|group| group == call.group)
            && self
                .is_registered
                .is_none_or(|wanted| wanted == call.is_registered)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let collective = Name::of(&COLLECTIVES, self.collective)
            .map_or(self.collective.name(), |name| name.text);
        let (algorithm, protocol) = (self.algorithm.text, self.protocol.text);
        write!(
            f,
            "{collective},{},{},{algorithm},{protocol}",
            self.bytes_min, self.bytes_max
        )?;
        let registered = self.is_registered.map(u32::from);
        let numbers = [
            self.channels,
            self.hosts,
            self.ranks,
            self.group,
            registered,
        ];
        numbers.into_iter().try_for_each(|number| match number {
            Some(number) => write!(f, ",{number}"),
            None => write!(f, ",-1"),
        })
    }
}

impl Rules {
    /// Returns the name of the table in error texts and in the logged reasons of choices: the path
    /// of its file, if the table was read from a file.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the table has no rules.
    pub fn is_empty(&self) -> bool {
        self.by_collective.iter().all(Vec::is_empty)
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.by_collective.iter().map(Vec::len).sum()
    }

    /// Returns all rules, in file order.
    #[doc(hidden)]
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        let mut all: Vec<_> = self.by_collective.iter().flatten().collect();
        all.sort_by_key(|rule| rule.line);
        all.into_iter()
    }

    /// Returns the rules that match a call, in file order. The caller uses the first rule whose
    /// algorithm and protocol are usable.
    #[doc(hidden)]
    pub fn find(&self, call: &Question) -> impl Iterator<Item = &Rule> {
        let call = *call;
        let rules = &self.by_collective[call.collective as usize];
        rules.iter().filter(move |rule| rule.matches(&call))
    }
}

impl PartialEq for Rules {
    /// Whether both have the same rules; their sources are not compared.
    fn eq(&self, other: &Rules) -> bool {
        self.by_collective == other.by_collective
    }
}

impl fmt::Display for Rules {
    /// Writes the rules so that they can be read again, each on its original line; comments are
    /// omitted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = 1;
        for rule in self.iter() {
            while line < rule.line {
                writeln!(f)?;
                line += 1;
            }
            writeln!(f, "{rule}")?;
            line += 1;
        }
        Ok(())
    }
}
