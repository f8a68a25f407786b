//! The files that the processes of a job have left.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ringfold::internals::board::{FILE_SUFFIX, Picture, RecordedCall};

use crate::complain;
use crate::numbers::plural;

/// A communicator of a process, and its calls.
pub struct Recorded {
    pub picture: Picture,
    /// In the order in which they were submitted.
    pub calls: Vec<RecordedCall>,
}

/// Reads all files of a folder. One that cannot be read is left out, with a message.
pub fn read(folder: &Path) -> Result<Vec<Recorded>> {
    let entries = fs::read_dir(folder);
    let entries = entries.with_context(|| format!("cannot read `{}`", folder.display()))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(FILE_SUFFIX));
    paths.sort();
    let mut boards = Vec::new();
    for path in &paths {
        match read_one(path) {
            Ok((board, unread)) => {
                if unread > 0 {
                    let calls = plural(unread, "call");
                    complain(&format!("`{}`: {calls} cannot be read", path.display()));
                }
                boards.push(board);
            }
            Err(why) => complain(&format!("`{}` is left out: {why}", path.display())),
        }
    }
    if boards.is_empty() {
        bail!(
            "no recorded calls in `{}`; run the job with RINGFOLD_TRACE={} or with `ringfold run \
             --trace FILE`",
            folder.display(),
            folder.display()
        );
    }
    Ok(boards)
}

fn read_one(path: &Path) -> Result<(Recorded, usize), String> {
    if !path.is_file() {
        return Err("it is not a file".into());
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let picture = Picture::read(&bytes)?;
    let (calls, unread) = picture.calls(&bytes)?;
    let before = picture
        .recorded
        .saturating_sub((calls.len() + unread) as u64);
    if before > 0 {
        complain(&format!(
            "rank {} of {}: its first {before} calls are not recorded any more; \
             RINGFOLD_TRACE_CALLS={} keeps them",
            picture.rank,
            picture.world_size,
            picture.recorded.next_power_of_two()
        ));
    }
    Ok((Recorded { picture, calls }, unread))
}
