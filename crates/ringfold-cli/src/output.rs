//! Writes data to a file or to standard output, as text, CSV or JSON.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

/// Opens `path` for writing; `-` is standard output.
pub fn open(path: &Path) -> Result<Box<dyn Write>> {
    if path == "-" {
        return Ok(Box::new(std::io::stdout()));
    }
    let file = File::create(path).with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok(Box::new(file))
}

/// Whether a requested file is standard output.
pub fn is_stdout(path: &Option<PathBuf>) -> bool {
    path.as_deref() == Some("-".as_ref())
}

/// Fails if `path` cannot be written; keeps the file's content.
pub fn check(path: &Path) -> Result<()> {
    if path != "-" {
        let mut options = File::options();
        let opened = options.write(true).create(true).truncate(false).open(path);
        opened.with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    Ok(())
}

/// Writes text to standard output.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("cannot write to standard output")
}

/// Writes one line to stderr in one piece, so that the lines of several ranks do not mix.
pub fn complain(message: &str) {
    // If stderr is closed, there is no place to report it.
    let _ = std::io::stderr().write_all(format!("ringfold: {message}\n").as_bytes());
}

/// Writes an indented JSON document.
pub fn write_json(mut into: impl Write, document: &impl Serialize) -> Result<()> {
    serde_json::to_writer_pretty(&mut into, document).map_err(std::io::Error::from)?;
    into.write_all(b"\n")?;
    Ok(into.flush()?)
}

/// A column of rows of type `R`: its name, and the function that formats a row's field.
pub type Column<R> = (&'static str, fn(&R) -> String);

/// A CSV file that is flushed line by line, so that results are kept if the program ends early.
pub struct Csv<R> {
    writer: csv::Writer<Box<dyn Write>>,
    columns: Vec<Column<R>>,
}

impl<R> Csv<R> {
    /// Creates the file (`-`: standard output) with its heading.
    pub fn create(path: &Path, columns: Vec<Column<R>>) -> Result<Csv<R>> {
        let writer = csv::Writer::from_writer(open(path)?);
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let mut csv = Csv { writer, columns };
        csv.write(&names)?;
        Ok(csv)
    }

    /// Adds a line.
    pub fn add(&mut self, row: &R) -> Result<()> {
        let fields: Vec<String> = self.columns.iter().map(|(_, field)| field(row)).collect();
        self.write(&fields)
    }

    fn write(&mut self, fields: &[impl AsRef<[u8]>]) -> Result<()> {
        let written = self.writer.write_record(fields);
        written.map_err(std::io::Error::from)?;
        Ok(self.writer.flush()?)
    }
}
