//! The parser of rule files; its errors name the line and the column.

use std::path::Path;
use std::str::FromStr;

use super::{Rule, Rules};
use crate::error::{Error, Result};
use crate::files;
use crate::tune::names::{ALGORITHMS, COLLECTIVES, Name, PROTOCOLS};

/// Maximum size of a rule file: some hundred thousand lines.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Maximum number of rules of one table.
pub const RULES_MAX: usize = 1 << 16;

/// The names of the fields, in order. The last two are optional.
const FIELDS: [&str; 10] = [
    "collective",
    "bytes_min",
    "bytes_max",
    "algorithm",
    "protocol",
    "channels",
    "hosts",
    "ranks",
    "group",
    "registered",
];

/// Minimum number of fields of a rule.
const FIELDS_MIN: usize = 8;

/// The text of a field for any value, or for no change.
const ANY: &str = "-1";

/// First words of the header that NCCL's scripts write above their tables.
const HEADERS: [&str; 3] = ["collective_type", "collective", "coll_type"];

impl Rules {
    /// Parses the text of a rule file; `source` is its name in errors and reasons.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for the first malformed line, as `source:line:column: cause; remedy`.
    pub fn parse(text: &str, source: &str) -> Result<Rules> {
        let mut rules = Rules {
            source: source.to_owned(),
            ..Rules::default()
        };
        for rule in lines(text, source) {
            let rule = rule?;
            rules.by_collective[rule.collective as usize].push(rule);
        }
        Ok(rules)
    }

    /// Reads a rule file.
    ///
    /// # Errors
    ///
    /// `System` if the file cannot be read, `InvalidArgument` if it is too large or not text, and
    /// as [`parse`](Rules::parse).
    pub fn read(path: impl AsRef<Path>) -> Result<Rules> {
        let path = path.as_ref();
        let source = path.display().to_string();
        let failed =
            |error| Error::system(format!("cannot read the tuner's rules `{source}`"), error);
        let (file, _) = files::open(path).map_err(failed)?;
        let bytes = files::content(&file, FILE_BYTES_MAX + 1).map_err(failed)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(Error::InvalidArgument(format!(
                "the tuner's rules `{source}` exceed {} MiB; name a file of rules",
                FILE_BYTES_MAX >> 20
            )));
        }
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let before = bytes[..error.valid_up_to()].iter();
            let line = before.filter(|byte| **byte == b'\n').count() + 1;
            Error::InvalidArgument(format!(
                "{source}:{line}: is not text (UTF-8); name a file of rules"
            ))
        })?;
        Rules::parse(text, &source)
    }
}

/// Parses the rules of a text, in file order.
fn lines<'a>(text: &'a str, source: &'a str) -> impl Iterator<Item = Result<Rule>> + 'a {
    // The byte-order mark that some editors write.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().zip(1u32..);
    let written = lines.filter(|(line, _)| !before_comment(line).trim().is_empty());
    written.zip(0usize..).map(move |((line, number), index)| {
        if index == RULES_MAX {
            return Err(Error::InvalidArgument(format!(
                "{source}:{number}: more than {RULES_MAX} rules; merge ranges (`ringfold tune \
                 optimize` does)"
            )));
        }
        RuleLine {
            line,
            number,
            source,
        }
        .rule()
    })
}

fn before_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default()
}

/// A line that is being parsed.
#[derive(Clone, Copy)]
struct RuleLine<'a> {
    line: &'a str,
    number: u32,
    source: &'a str,
}

/// A field: its line, its index, its text, and the byte offset of the text.
#[derive(Clone, Copy)]
struct RuleField<'a> {
    line: RuleLine<'a>,
    index: usize,
    text: &'a str,
    at: usize,
}

impl<'a> RuleLine<'a> {
    fn rule(self) -> Result<Rule> {
        let fields = self.fields()?;
        if HEADERS.contains(&fields[0].text) {
            return Err(fields[0].wrong("is a header; put a `#` in front of the line"));
        }
        let collective = fields[0].named(&COLLECTIVES)?.ours;
        let count = |index: usize| fields.get(index).map_or(Ok(None), RuleField::count);
        let rule = Rule {
            collective: collective
                .unwrap_or_else(|| unreachable!("there is no collective that only NCCL has")),
            bytes_min: fields[1].bytes()?,
            bytes_max: match fields[2].text {
                ANY => u64::MAX,
                _ => fields[2].bytes()?,
            },
            algorithm: fields[3].named(&ALGORITHMS)?,
            protocol: fields[4].named(&PROTOCOLS)?,
            channels: match fields[5].text {
                // 0 also means no change: NCCL then uses its own number.
                "0" => None,
                _ => fields[5].count()?,
            },
            hosts: count(6)?,
            ranks: count(7)?,
            group: count(8)?,
            is_registered: fields.get(9).map_or(Ok(None), RuleField::switch)?,
            line: self.number,
        };
        if rule.bytes_min > rule.bytes_max {
            let least = rule.bytes_min;
            let why = format!("is below bytes_min, {least}; write the range as least,most");
            return Err(fields[2].wrong(&why));
        }
        Ok(rule)
    }

    /// Splits the line into fields: none empty, and as many as a rule may have.
    fn fields(self) -> Result<Vec<RuleField<'a>>> {
        let mut fields = Vec::with_capacity(FIELDS.len());
        let mut at = 0;
        for (index, text) in before_comment(self.line).split(',').enumerate() {
            let blank = text.len() - text.trim_start().len();
            fields.push(RuleField {
                line: self,
                index,
                text: text.trim(),
                at: at + blank,
            });
            at += text.len() + 1;
        }
        let last = fields[fields.len() - 1];
        let (count, most) = (fields.len(), FIELDS.len());
        if let Some(empty) = fields.iter().find(|field| field.text.is_empty()) {
            let what = FIELDS.get(empty.index).unwrap_or(&"field after the last");
            let why = format!("the {what} is empty; write {ANY} for any");
            return Err(self.error(empty.at, &why));
        }
        if let Some(extra) = fields.get(most) {
            let why = format!("is one field too many; a rule has {FIELDS_MIN} to {most}");
            return Err(extra.wrong(&why));
        }
        if count < FIELDS_MIN {
            let why = format!(
                "{count} fields, but a rule has {FIELDS_MIN} to {most}; the first missing field is \
                 {}",
                FIELDS[count]
            );
            return Err(self.error(last.at + last.text.len(), &why));
        }
        Ok(fields)
    }

    /// Returns the error at a byte of the line; the column counts characters, from 1.
    fn error(self, at: usize, why: &str) -> Error {
        let (line, source, number) = (self.line, self.source, self.number);
        let column = line[..at.min(line.len())].chars().count() + 1;
        Error::InvalidArgument(format!("{source}:{number}:{column}: {why}"))
    }
}

impl RuleField<'_> {
    /// Returns the field's name.
    fn name(&self) -> &'static str {
        FIELDS[self.index]
    }

    fn named<T: Copy + PartialEq + FromStr>(
        &self,
        table: &'static [Name<T>],
    ) -> Result<&'static Name<T>> {
        Name::exact(table, self.text).ok_or_else(|| {
            let advice = Name::advice(table, self.text);
            self.wrong(&format!("is no {}; {advice}", self.name()))
        })
    }

    fn bytes(&self) -> Result<u64> {
        self.text.parse().map_err(|_| {
            let any = match self.index {
                2 => ", or -1 for no limit",
                _ => "",
            };
            self.wrong(&format!(
                "is no {}; write bytes as a whole number, 0 or more{any}",
                self.name()
            ))
        })
    }

    /// Parses a number of at least 1; `None` for any.
    fn count(&self) -> Result<Option<u32>> {
        if self.text == ANY {
            return Ok(None);
        }
        let number = self.text.parse().ok().filter(|count| *count > 0);
        number.map(Some).ok_or_else(|| {
            let of = match self.index {
                8 => "calls made together",
                _ => self.name(),
            };
            self.wrong(&format!(
                "is no number of {of}; write 1 or more, or {ANY} for any"
            ))
        })
    }

    fn switch(&self) -> Result<Option<bool>> {
        match self.text {
            ANY => Ok(None),
            "0" => Ok(Some(false)),
            "1" => Ok(Some(true)),
            _ => Err(self.wrong("is not 0 (not registered), 1 (registered) or -1 (either)")),
        }
    }

    fn wrong(&self, why: &str) -> Error {
        self.line.error(self.at, &format!("`{}` {why}", self.text))
    }
}
