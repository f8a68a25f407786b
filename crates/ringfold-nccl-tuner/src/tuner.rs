//! A communicator's rules: where they are read from, which one applies to a call, and what is
//! logged.
//!
//! A table is read when a communicator begins, from the first of `NCCL_TUNER_CONFIG_FILE`,
//! `RINGFOLD_TUNER_CONFIG` and `nccl_tuner.conf` in the current folder. The first rule in file
//! order that matches and whose way NCCL can use applies. A file with an error is refused entirely:
//! half a table would tune half of the calls, without showing which.
//!
//! Each decision is logged once: what a rule, or the lack of one, means for the first such call.

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

/// The file that is read where no variable names one.
const FILE: &str = "nccl_tuner.conf";

/// A communicator.
pub struct Tuner {
    rules: Rules,
    ranks: usize,
    hosts: usize,
    journal: Journal,
    /// What was logged.
    said: Mutex<BTreeSet<Said>>,
}

/// A call as NCCL describes it.
#[derive(Clone, Copy)]
pub struct NcclCall {
    /// NCCL's number of the collective.
    pub function: c_int,
    /// Bytes of the vector, or of all blocks together.
    pub bytes: u64,
    /// How many calls are made together.
    pub group: c_int,
    /// Whether buffers are registered.
    pub is_registered: bool,
}

/// What a rule says: an entry of NCCL's table, and channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The algorithm's row.
    pub row: usize,
    /// The protocol's column.
    pub column: usize,
    /// How many channels, where the rule does not leave them to NCCL.
    pub channels: Option<c_int>,
}

/// A decision that is logged once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    /// This line of the table holds.
    Holds(u32),
    /// NCCL cannot go its way.
    CannotGo(u32),
    /// No rule for a collective.
    Nothing(Collective),
}

impl Tuner {
    /// Begins a communicator, and reads the rules.
    pub fn begin(ranks: usize, hosts: usize, journal: Journal) -> Tuner {
        let rules = read(&journal);
        let warnings = rules.warnings_for("NCCL", ways::of);
        // No more than a note: a rule for where an earlier one's way is missing is doubtful, and
        // may be meant.
        warnings.iter().for_each(|warning| journal.info(warning));
        Tuner {
            rules,
            ranks,
            hosts,
            journal,
            said: Mutex::default(),
        }
    }

    /// The decision of the rules for a call. `can_go` returns for a row and a column whether NCCL
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

    /// A rule, and where it stands.
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

/// The rules that a communicator begins with; none where there is no file, or where it cannot be
/// read.
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
            let text = format!("{error}; no rule holds, and NCCL decides");
            journal.warn(&text);
            // NCCL logs nothing by default, and an error in a table must not pass
            // in silence.
            if variable("NCCL_DEBUG").is_none() {
                eprintln!("ringfold tuner: {text}");
            }
            Rules::default()
        }
    }
}
