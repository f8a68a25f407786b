//! Rules: an operator's table of which calls go which way, in the form that NCCL's example tuner
//! reads.
//!
//! A line is a rule:
//! `collective,bytes_min,bytes_max,algorithm,protocol,channels,hosts,ranks[,group[,registered]]`,
//! as in `allreduce,0,65536,tree,simple,-1,-1,8`. Both ends of the range belong to it. `-1` stands
//! for any number of hosts or ranks, any number of calls made together, registered memory or not;
//! as channels it leaves them alone, and as the largest size there is none. Spaces around fields,
//! blank lines and what stands behind a `#` do not count. The first rule in file order that matches
//! a call, and whose way is usable, applies.
//!
//! # Invariants
//!
//! * A file that NCCL's example reads without guessing means the same here. Where the example
//!   guesses (an unknown collective becomes all-reduce, an unknown algorithm the ring, garbage 0,
//!   an empty field closes up, a short line is dropped) the file is refused, with the line and the
//!   column.
//! * Rules keep the order and the line numbers of their file, also when they are written and read
//!   anew.
//!
//! Source: `plugins/tuner/example` of NVIDIA's NCCL, whose format this is; the reader is our own.

#![forbid(unsafe_code)]

mod parse;
#[cfg(test)]
mod tests;
mod warnings;

use std::fmt;

use super::Question;
use super::names::{COLLECTIVES, Name};
use crate::types::{Collective, Method, Protocol};

/// Which calls go which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// For which collective.
    pub collective: Collective,
    /// The fewest bytes of a call that it matches.
    pub bytes_min: u64,
    /// The most, inclusive.
    pub bytes_max: u64,
    /// By which algorithm; it may be one that only NCCL has.
    pub algorithm: &'static Name<Method>,
    /// By which protocol; it may be one that only NCCL has.
    pub protocol: &'static Name<Protocol>,
    /// On how many channels, if it says.
    pub channels: Option<u32>,
    /// On how many hosts; `None` for any number.
    pub hosts: Option<u32>,
    /// Between how many ranks; `None` for any number.
    pub ranks: Option<u32>,
    /// For how many calls made together; `None` for any number.
    pub group: Option<u32>,
    /// Whether in registered memory; `None` for either.
    pub is_registered: Option<bool>,
    /// The line of its file, from 1.
    pub line: u32,
}

/// A table of rules.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    source: String,
    /// By collective in wire order, in file order.
    by_collective: [Vec<Rule>; Collective::ALL.len()],
}

impl Rule {
    /// The way that it names, if ringfold has it.
    pub fn way(&self) -> Option<(Method, Protocol)> {
        Some((self.algorithm.ours?, self.protocol.ours?))
    }

    /// NCCL's numbers of the algorithm and the protocol that it names, if NCCL has both.
    pub fn nccl_way(&self) -> Option<(usize, usize)> {
        Some((self.algorithm.nccl?.into(), self.protocol.nccl?.into()))
    }

    /// Whether it is for this call.
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
    /// What errors and reasons call the table: its file, if it has one.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_collective.iter().all(Vec::is_empty)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_collective.iter().map(Vec::len).sum()
    }

    /// All of them, in file order.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        let mut all: Vec<_> = self.by_collective.iter().flatten().collect();
        all.sort_by_key(|rule| rule.line);
        all.into_iter()
    }

    /// Those that match a call, in file order. The caller takes the first whose way is usable.
    pub fn find(&self, call: &Question) -> impl Iterator<Item = &Rule> {
        let call = *call;
        let rules = &self.by_collective[call.collective as usize];
        rules.iter().filter(move |rule| rule.matches(&call))
    }
}

impl PartialEq for Rules {
    /// Whether they say the same; where they come from does not count.
    fn eq(&self, other: &Rules) -> bool {
        self.by_collective == other.by_collective
    }
}

impl fmt::Display for Rules {
    /// Writes the lines so that they can be read again, each where it stood; comments are left out.
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
