//! Reads files of rules, and says where a line is wrong.

use std::path::Path;
use std::str::FromStr;

use super::{Rule, Rules};
use crate::error::{Error, Result};
use crate::files;
use crate::tune::names::{ALGORITHMS, COLLECTIVES, Name, PROTOCOLS};

/// The largest file of rules that is read: some hundred thousand lines.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// The most rules of one table.
pub const RULES_MAX: usize = 1 << 16;

/// The names of the fields, in their order. The last two may be left out.
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

/// The fewest fields of a rule.
const FIELDS_MIN: usize = 8;

/// What stands for any, or for leaving alone.
const ANY: &str = "-1";

/// The first word of the header that NCCL's scripts write above their tables.
const HEADERS: [&str; 3] = ["collective_type", "collective", "coll_type"];

impl Rules {
    /// Reads the text of a file of rules; `source` is what errors and reasons call it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for the first line that cannot be read, as
    /// `source:line:column: what is wrong; what would do`.
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

    /// Reads a file of rules.
    ///
    /// # Errors
    ///
    /// `System` if the file cannot be read, `InvalidArgument` for one that is too large or no text,
    /// and as [`parse`](Rules::parse).
    pub fn read(path: impl AsRef<Path>) -> Result<Rules> {
        let path = path.as_ref();
        let source = path.display().to_string();
        let failed =
            |error| Error::system(format!("cannot read the tuner's rules `{source}`"), error);
        let (file, _) = files::open(path).map_err(failed)?;
        let bytes = files::content(&file, FILE_BYTES_MAX + 1).map_err(failed)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(Error::InvalidArgument(format!(
                "the tuner's rules `{source}` have more than {} MiB; name a file of rules",
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

/// The rules of a text, in file order.
fn lines<'a>(text: &'a str, source: &'a str) -> impl Iterator<Item = Result<Rule>> + 'a {
    // A mark that some editors put at the beginning.
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
        Line {
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

/// A line that is being read.
#[derive(Clone, Copy)]
struct Line<'a> {
    line: &'a str,
    number: u32,
    source: &'a str,
}

/// A field: which one it is, what it says, and the byte at which that begins.
#[derive(Clone, Copy)]
struct Field<'a> {
    index: usize,
    text: &'a str,
    at: usize,
}

impl<'a> Line<'a> {
    fn rule(self) -> Result<Rule> {
        let fields = self.fields()?;
        let [collective, bytes_min, bytes_max, algorithm, protocol, ..] = fields[..] else {
            unreachable!("`fields` counts them");
        };
        if HEADERS.contains(&collective.text) {
            return Err(self.wrong(collective, "is a header; put a `#` in front of the line"));
        }
        let optional = |index: usize| fields.get(index).copied();
        let count = |index| optional(index).map_or(Ok(None), |field| self.count(field));
        let rule = Rule {
            collective: self
                .named(&COLLECTIVES, collective)?
                .ours
                .unwrap_or_else(|| unreachable!("there is no collective that only NCCL has")),
            bytes_min: self.bytes(bytes_min)?,
            bytes_max: match bytes_max.text {
                ANY => u64::MAX,
                _ => self.bytes(bytes_max)?,
            },
            algorithm: self.named(&ALGORITHMS, algorithm)?,
            protocol: self.named(&PROTOCOLS, protocol)?,
            channels: self.channels(fields[5])?,
            hosts: count(6)?,
            ranks: count(7)?,
            group: count(8)?,
            is_registered: optional(9).map_or(Ok(None), |field| self.switch(field))?,
            line: self.number,
        };
        if rule.bytes_min > rule.bytes_max {
            let why = format!(
                "is below bytes_min, {}; write the range as least,most",
                rule.bytes_min
            );
            return Err(self.wrong(bytes_max, &why));
        }
        Ok(rule)
    }

    /// The fields, none of them empty and as many as there may be.
    fn fields(self) -> Result<Vec<Field<'a>>> {
        let mut fields = Vec::with_capacity(FIELDS.len());
        let mut at = 0;
        for text in before_comment(self.line).split(',') {
            let blank = text.len() - text.trim_start().len();
            fields.push(Field {
                index: fields.len(),
                text: text.trim(),
                at: at + blank,
            });
            at += text.len() + 1;
        }
        let last = fields[fields.len() - 1];
        if let Some(empty) = fields.iter().find(|field| field.text.is_empty()) {
            let what = FIELDS.get(empty.index).unwrap_or(&"field behind the last");
            let why = format!("the {what} is empty; write {ANY} for any");
            return Err(self.error(empty.at, &why));
        }
        if let Some(extra) = fields.get(FIELDS.len()) {
            let why = format!(
                "is one field too many; a rule has {FIELDS_MIN} to {}",
                FIELDS.len()
            );
            return Err(self.wrong(*extra, &why));
        }
        if fields.len() < FIELDS_MIN {
            let why = format!(
                "{} fields, and a rule has {FIELDS_MIN} to {}; what is missing begins with {}",
                fields.len(),
                FIELDS.len(),
                FIELDS[fields.len()]
            );
            return Err(self.error(last.at + last.text.len(), &why));
        }
        Ok(fields)
    }

    fn named<T: Copy + PartialEq + FromStr>(
        self,
        table: &'static [Name<T>],
        field: Field<'_>,
    ) -> Result<&'static Name<T>> {
        Name::exact(table, field.text).ok_or_else(|| {
            let what = FIELDS[field.index];
            let why = format!("is no {what}; {}", Name::advice(table, field.text));
            self.wrong(field, &why)
        })
    }

    fn bytes(self, field: Field<'_>) -> Result<u64> {
        field.text.parse().map_err(|_| {
            let any = if field.index == 2 {
                ", or -1 for no limit"
            } else {
                ""
            };
            let why = format!(
                "is no {}; write bytes as a whole number, 0 or more{any}",
                FIELDS[field.index]
            );
            self.wrong(field, &why)
        })
    }

    /// A number that begins with 1, or any.
    fn count(self, field: Field<'_>) -> Result<Option<u32>> {
        let number = field.text.parse().ok().filter(|count| *count > 0);
        match field.text {
            ANY => Ok(None),
            _ => number.map(Some).ok_or_else(|| {
                let why = format!(
                    "is no number of {}; write 1 or more, or {ANY} for any",
                    match field.index {
                        8 => "calls made together",
                        index => FIELDS[index],
                    }
                );
                self.wrong(field, &why)
            }),
        }
    }

    /// 0 leaves channels alone as well: NCCL takes it as its own number.
    fn channels(self, field: Field<'_>) -> Result<Option<u32>> {
        match field.text {
            "0" => Ok(None),
            _ => self.count(field),
        }
    }

    fn switch(self, field: Field<'_>) -> Result<Option<bool>> {
        match field.text {
            ANY => Ok(None),
            "0" => Ok(Some(false)),
            "1" => Ok(Some(true)),
            _ => Err(self.wrong(
                field,
                "is not 0 (not registered), 1 (registered) or -1 (either)",
            )),
        }
    }

    fn wrong(self, field: Field<'_>, why: &str) -> Error {
        self.error(field.at, &format!("`{}` {why}", field.text))
    }

    /// The error at a byte of the line; the column counts characters, from 1.
    fn error(self, at: usize, why: &str) -> Error {
        let Line {
            line,
            number,
            source,
        } = self;
        let column = line[..at.min(line.len())].chars().count() + 1;
        Error::InvalidArgument(format!("{source}:{number}:{column}: {why}"))
    }
}
