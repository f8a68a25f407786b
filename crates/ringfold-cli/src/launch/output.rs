//! The ranks' standard streams: whole lines, each prefixed with its rank.
//!
//! One thread per stream reads a rank's output and forwards complete lines, so that lines of two
//! ranks never mix. If the launcher's own output is closed, the rank's is closed too, and the rank
//! gets the same error as without a launcher.

use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Result;
use ringfold::internals::threads;

/// Maximum wait for the end of another stream after the last rank has ended: a process that a rank
/// left behind may hold streams open forever.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum length of a line; the rest continues on a line of its own.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Terminal colours of the ranks' prefixes, in rank order: the readable ones.
const COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];

/// Collects the output of all ranks.
pub struct Collector {
    done: mpsc::Receiver<()>,
    when_done: mpsc::Sender<()>,
}

impl Collector {
    /// Creates a collector without streams.
    pub fn new() -> Collector {
        let (when_done, done) = mpsc::channel();
        Collector { done, when_done }
    }

    /// Starts to read the streams of `child` that are pipes.
    pub fn attach(&self, rank: usize, child: &mut Child) -> Result<()> {
        if let Some(stream) = child.stdout.take() {
            let prefix = prefix(rank, use_colour(&std::io::stdout()));
            self.read(stream, std::io::stdout(), prefix)?;
        }
        if let Some(stream) = child.stderr.take() {
            let prefix = prefix(rank, use_colour(&std::io::stderr()));
            self.read(stream, std::io::stderr(), prefix)?;
        }
        Ok(())
    }

    /// Waits until all output has been forwarded, but not forever.
    pub fn finish(self) {
        let Collector { done, when_done } = self;
        // The readers hold the other senders: receiving fails once the last reader has ended.
        drop(when_done);
        while done.recv_timeout(DRAIN_TIMEOUT).is_ok() {}
    }

    fn read(
        &self,
        from: impl Read + Send + 'static,
        into: impl Write + Send + 'static,
        prefix: String,
    ) -> Result<()> {
        let when_done = self.when_done.clone();
        threads::start("ringfold-output", move || {
            // An error closes the pipe, and the rank's next write fails.
            let _ = pass_lines(from, into, prefix.as_bytes());
            let _ = when_done.send(());
        })?;
        Ok(())
    }
}

/// Returns the standard input of a rank that reads the launcher's. Terminal input goes through the
/// launcher ([`feed_stdin`]), because ranks are in the terminal's background; there is none if the
/// launcher is in the background too.
pub fn launchers_stdin() -> Stdio {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Stdio::inherit();
    }
    match rustix::termios::tcgetpgrp(&stdin) {
        Ok(foreground) if foreground == rustix::process::getpgrp() => Stdio::piped(),
        _ => Stdio::null(),
    }
}

/// Copies the launcher's standard input to a child that has a pipe for it, until either ends.
pub fn feed_stdin(child: &mut Child) -> Result<()> {
    if let Some(mut pipe) = child.stdin.take() {
        threads::start("ringfold-input", move || {
            let mut stdin = std::io::stdin();
            let mut block = [0; 4096];
            while let Ok(bytes @ 1..) = stdin.read(&mut block) {
                if pipe.write_all(&block[..bytes]).is_err() {
                    return;
                }
            }
        })?;
    }
    Ok(())
}

fn use_colour(stream: &impl IsTerminal) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && stream.is_terminal()
}

fn prefix(rank: usize, colour: bool) -> String {
    if colour {
        let code = COLOURS[rank % COLOURS.len()];
        format!("\x1b[{code}m[{rank}]\x1b[0m ")
    } else {
        format!("[{rank}] ")
    }
}

/// Writes every line with one call, whose lock keeps the line whole.
fn pass_lines(from: impl Read, mut into: impl Write, prefix: &[u8]) -> std::io::Result<()> {
    let mut from = BufReader::with_capacity(64 << 10, from);
    loop {
        let mut line = prefix.to_vec();
        let mut piece = from.by_ref().take(MAX_LINE_BYTES as u64);
        if piece.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        into.write_all(&line)?;
        into.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(input: &[u8]) -> String {
        let mut output = Vec::new();
        pass_lines(input, &mut output, b"[7] ").unwrap();
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn every_line_gets_the_prefix_and_the_last_one_an_end() {
        assert_eq!(passed(b"a\n\nb"), "[7] a\n[7] \n[7] b\n");
        assert_eq!(passed(b""), "");
    }

    #[test]
    fn a_line_without_end_is_cut_at_the_limit() {
        let output = passed(&vec![b'x'; MAX_LINE_BYTES + 100_000]);
        assert_eq!(output.lines().count(), 2);
        assert_eq!(
            output.bytes().filter(|&byte| byte == b'x').count(),
            MAX_LINE_BYTES + 100_000
        );
    }

    #[test]
    fn colour_marks_the_prefix_alone() {
        assert_eq!(prefix(1, true), "\x1b[33m[1]\x1b[0m ");
        assert_eq!(prefix(1, false), "[1] ");
    }
}
