//! Where data goes: a file, or standard output.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

/// Opens `path` for writing; `-` is standard output.
pub fn open(path: &Path) -> Result<Box<dyn Write>> {
    if path == "-" {
        return Ok(Box::new(std::io::stdout()));
    }
    let file = File::create(path).with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok(Box::new(file))
}

/// Fails if `path` could not be written; what it holds stays.
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
