//! Reads files that variables name, which may be pipes without a writer.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;

use crate::control::poll::wait_for;

/// Maximum wait for the writer of a pipe.
const PIPE: Duration = Duration::from_secs(10);

/// Opens `path` without blocking, and reads its metadata.
pub(crate) fn open(path: impl AsRef<Path>) -> io::Result<(File, Metadata)> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    let metadata = file.metadata()?;
    Ok((file, metadata))
}

/// Reads at most `bytes_max` bytes of an open file. Fails with `TimedOut` if a pipe stays open and
/// silent.
pub(crate) fn content(mut file: &File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + PIPE;
    let mut content = Vec::new();
    if file.metadata()?.is_file() {
        file.take(bytes_max).read_to_end(&mut content)?;
        return Ok(content);
    }
    let mut piece = [0; 4096];
    while (content.len() as u64) < bytes_max {
        let mut entries = [PollFd::new(file, PollFlags::IN)];
        if wait_for(&mut entries, Some(deadline))? == 0 {
            let why = "no data from the pipe within 10 s";
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => content.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    content.truncate(bytes_max as usize);
    Ok(content)
}
