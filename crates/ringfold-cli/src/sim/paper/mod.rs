//! `--paper`: publications whose figures and tables are made again, by simulating.
//!
//! What a publication says stands here as data, with its closed forms; what comes out is simulated, and the two are
//! printed beside each other. docs/papers.md tells where they differ, and why.

mod bupt2024;
mod mpi2021;

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::arguments::Arguments;
use crate::output;

/// A publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Paper {
    /// Zhang et al., Communication Optimization Technology of Distributed Machine Learning Network, 2024: a ring that
    /// walks around a slow rank
    Bupt2024,
    /// Implementing All-Reduce with MPI, 2021: master and worker against the ring, in a table
    Mpi2021,
}

/// Prints, and draws into the folder of `--plot`.
pub fn run(paper: Paper, arguments: &Arguments) -> Result<()> {
    match paper {
        Paper::Bupt2024 => bupt2024::run(arguments),
        Paper::Mpi2021 => mpi2021::run(arguments),
    }
}

/// Writes a document to a file or, for `-`, to standard output.
fn write_json(path: &Path, document: &serde_json::Value) -> Result<()> {
    let mut file = output::open(path)?;
    serde_json::to_writer_pretty(&mut file, document).map_err(std::io::Error::from)?;
    Ok(file.write_all(b"\n")?)
}

/// Makes the folder that pictures go into.
fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder `{}` for pictures", folder.display()))
}
