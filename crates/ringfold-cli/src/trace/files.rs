//! Reads the files that the processes of a job have left.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use ringfold::internals::board::{BEGINNING_BYTES, FILE_SUFFIX, Picture, RecordedCall};
use rustix::fs::OFlags;

use crate::numbers::plural;
use crate::output::complain;

/// A communicator of a process, and its recorded calls.
pub struct Recorded {
    pub picture: Picture,
    /// The calls, in the order of submission.
    pub calls: Vec<RecordedCall>,
}

/// Reads all files of a folder; reports and skips unreadable ones.
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
            Err(why) => complain(&format!("skipped `{}`: {why}", path.display())),
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

/// Reads a file without mapping it, so that a file cut off meanwhile causes an error and no signal.
/// The file's length is not trusted either: no more is read than its beginning accounts for.
fn read_one(path: &Path) -> Result<(Recorded, usize), String> {
    let file = open(path)?;
    let cut_off = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => "the file is truncated".to_owned(),
        _ => error.to_string(),
    };
    let mut beginning = Vec::new();
    let mut read_until = |end: usize| {
        let left = end.saturating_sub(beginning.len()) as u64;
        let read = (&file).take(left).read_to_end(&mut beginning);
        read.map_err(cut_off).map(|_| beginning.clone())
    };
    let bytes = Picture::bytes(&read_until(BEGINNING_BYTES)?)?;
    let picture = Picture::read(&read_until(bytes)?)?;
    let length = file.metadata().map_err(cut_off)?.len();
    if length < picture.whole_bytes() as u64 {
        return Err("the file is truncated".into());
    }
    let (calls, unread) =
        picture.calls(|place, into| file.read_exact_at(into, place as u64).map_err(cut_off))?;
    let before = picture
        .recorded
        .saturating_sub((calls.len() + unread) as u64);
    if before > 0 {
        complain(&format!(
            "rank {} of {}: the first {before} calls are no longer recorded; \
             RINGFOLD_TRACE_CALLS={} keeps them",
            picture.rank,
            picture.world_size,
            picture.recorded.next_power_of_two()
        ));
    }
    Ok((Recorded { picture, calls }, unread))
}

/// Opens a regular file only: opening anything else may block or have side effects.
fn open(path: &Path) -> Result<File, String> {
    let is_file = |metadata: &fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err("not a regular file".to_owned()),
    };
    // Checked before opening, and again afterwards in case the file was replaced in between.
    is_file(&fs::metadata(path).map_err(|error| error.to_string())?)?;
    let mut options = File::options();
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = options.read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| error.to_string())?;
    is_file(&file.metadata().map_err(|error| error.to_string())?)?;
    Ok(file)
}
