//! A communicator's rules: reading the file, selecting the rule for a call, and logging.
//!
//! A table is read when a communicator begins, from the first of `NCCL_TUNER_CONFIG_FILE`,
//! `RINGFOLD_TUNER_CONFIG` and `nccl_tuner.conf` in the current folder. The first rule in file
//! order that matches and whose way NCCL can use applies. A file with an error is refused entirely:
//! half a table would tune half of the calls, without showing which.
//!
//! Each decision is logged once: for the first call to which a rule, or the lack of one, applies.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use ringfold::Collective;
use ringfold::internals::tune::names::{COLLECTIVES, Name};
use ringfold::internals::tune::{Question, Rule, Rules};

use crate::journal::Journal;
use crate::ways;

/// Variables that name a file of rules: the example tuner's own, and ringfold's.
const VARIABLES: [&str; 2] = ["NCCL_TUNER_CONFIG_FILE", "RINGFOLD_TUNER_CONFIG"];

/// The file that is read if no variable names one.
const FILE: &str = "nccl_tuner.conf";

/// The tuner of a communicator.
pub struct Tuner {
    rules: Rules,
    ranks: usize,
    hosts: usize,
    journal: Journal,
    /// The decisions that were logged.
    said: Mutex<BTreeSet<Said>>,
}

/// A call as NCCL describes it.
#[derive(Clone, Copy)]
pub struct NcclCall {
    /// NCCL's number of the collective.
    pub function: c_int,
    /// Bytes of the vector, or of all blocks together.
    pub bytes: u64,
    /// Number of calls that are made together.
    pub group: c_int,
    /// Whether buffers are registered.
    pub is_registered: bool,
}

/// A rule's decision: an entry of NCCL's table, and channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The algorithm's row.
    pub row: usize,
    /// The protocol's column.
    pub column: usize,
    /// Number of channels, unless the rule leaves the number to NCCL.
    pub channels: Option<c_int>,
}

/// A decision that is logged once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    /// The rule of this line applies.
    Holds(u32),
    /// NCCL cannot use the way of this line's rule.
    CannotGo(u32),
    /// No rule applies to a call of this collective.
    Nothing(Collective),
}

impl Tuner {
    /// Begins a communicator, and reads the rules.
    pub fn begin(ranks: usize, hosts: usize, journal: Journal) -> Tuner {
        let rules = read(&journal);
        let warnings = rules.warnings_for("NCCL", ways::of);
        // Only logged at level INFO: a rule for the case that an earlier rule's way is missing is
        // doubtful, but may be intended.
        warnings.iter().for_each(|warning| journal.info(warning));
        Tuner {
            rules,
            ranks,
            hosts,
            journal,
            said: Mutex::default(),
        }
    }

    /// Returns the rules' decision for a call. `can_go` returns for a row and a column whether NCCL
    /// can use that way now.
    pub fn answer(&self, asked: NcclCall, can_go: impl Fn(usize, usize) -> bool) -> Option<Answer> {
        let collective = Name::numbered(&COLLECTIVES, asked.function)?.ours?;
        let call = Question {
            hosts: self.hosts,
            group: u32::try_from(asked.group).unwrap_or(0),
            is_registered: asked.is_registered,
            ..Question::new(collective, asked.bytes, self.ranks)
        };
        for rule in self.rules.find(&call) {
            let way = rule
                .nccl_way()
                .filter(|(row, column)| can_go(*row, *column));
            let Some((row, column)) = way else {
                self.say(Said::CannotGo(rule.line), || {
                    format!("{} is not usable", self.named(rule))
                });
                continue;
            };
            self.say(Said::Holds(rule.line), || self.held(rule, asked.bytes));
            let channels = rule.channels.and_then(|count| c_int::try_from(count).ok());
            return Some(Answer {
                row,
                column,
                channels,
            });
        }
        self.say(Said::Nothing(collective), || {
            let bytes = asked.bytes;
            format!("no rule for {collective} of {bytes} bytes, so NCCL decides")
        });
        None
    }

    fn say(&self, what: Said, text: impl FnOnce() -> String) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.insert(what) {
            drop(said);
            self.journal.info(&text());
        }
    }

    /// Returns a rule and its place in the file.
    fn named(&self, rule: &Rule) -> String {
        format!("`{rule}` of {}:{}", self.rules.source(), rule.line)
    }

    fn held(&self, rule: &Rule, bytes: u64) -> String {
        let (collective, from) = (rule.collective, self.named(rule));
        let (algorithm, protocol) = (rule.algorithm.text, rule.protocol.text);
        let channels = match rule.channels {
            Some(count) => format!("{count} channels"),
            None => "NCCL's channels".into(),
        };
        format!("{collective} of {bytes} bytes by {algorithm}/{protocol}, {channels}, by {from}")
    }
}

/// Reads a communicator's rules; none if there is no file, or if the file is refused.
fn read(journal: &Journal) -> Rules {
    let variable = |name| std::env::var(name).ok().filter(|path| !path.is_empty());
    let named = VARIABLES.into_iter().find_map(variable);
    if named.is_none() && !Path::new(FILE).exists() {
        let [first, second] = VARIABLES;
        journal.info(&format!(
            "neither {first} nor {second} names a file of rules, and there is no {FILE} here; \
             NCCL decides"
        ));
        return Rules::default();
    }
    let path = named.as_deref().unwrap_or(FILE);
    match Rules::read(path) {
        Ok(rules) => {
            journal.info(&format!("{} rules from {path}", rules.len()));
            rules
        }
        Err(error) => {
            let text = format!("{error}; no rule applies, and NCCL decides");
            journal.warn(&text);
            // NCCL logs nothing by default, and an error in a table must not go unnoticed.
            if variable("NCCL_DEBUG").is_none() {
                eprintln!("ringfold tuner: {text}");
            }
            Rules::default()
        }
    }
}
