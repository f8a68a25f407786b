//! Starts the command under a watchdog, and observes processes from outside.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Time after which a test has hung: far longer than any test takes on a busy machine.
const WATCHDOG: Duration = Duration::from_secs(120);

/// The status and the output of a finished command.
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// A running command; killed when it is dropped.
pub struct Running {
    child: Child,
    stdout: mpsc::Receiver<String>,
    stderr: mpsc::Receiver<String>,
}

/// Returns the command with these arguments, without the variables of the tests' own launcher.
pub fn ringfold(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfold"));
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let launcher = ["RINGFOLD_", "SLURM_", "OMPI_", "PMI_", "PMIX_"];
        if launcher.iter().any(|prefix| name.starts_with(prefix))
            || ["RANK", "WORLD_SIZE"].contains(&name.as_str())
        {
            command.env_remove(name);
        }
    }
    command
}

/// Starts the command and waits until it has ended.
pub fn finish(arguments: &[&str]) -> Finished {
    Running::start(ringfold(arguments)).finish()
}

impl Running {
    pub fn start(mut command: Command) -> Running {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        Running {
            stdout: lines(child.stdout.take().unwrap()),
            stderr: lines(child.stderr.take().unwrap()),
            child,
        }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .expect("the command is running");
    }

    /// Waits until the command has started a process.
    pub fn await_child(&self) {
        let id = self.child.id();
        let path = format!("/proc/{id}/task/{id}/children");
        let deadline = std::time::Instant::now() + WATCHDOG;
        while std::fs::read_to_string(&path)
            .expect("children of the command")
            .is_empty()
        {
            assert!(
                std::time::Instant::now() < deadline,
                "the command starts nothing"
            );
            thread::yield_now();
        }
    }

    /// Returns the next line of standard output.
    pub fn line(&self) -> String {
        self.stdout
            .recv_timeout(WATCHDOG)
            .expect("a line of output")
    }

    pub fn finish(mut self) -> Finished {
        let rest = |lines: &mpsc::Receiver<String>| {
            let mut text = String::new();
            loop {
                match lines.recv_timeout(WATCHDOG) {
                    Ok(line) => text += &(line + "\n"),
                    Err(mpsc::RecvTimeoutError::Disconnected) => return text,
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        panic!("the command hangs; it has printed: {text}")
                    }
                }
            }
        };
        Finished {
            stdout: rest(&self.stdout),
            stderr: rest(&self.stderr),
            status: self.child.wait().expect("the command's status"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the process is gone or a zombie.
pub fn await_end(process_id: u32) {
    await_that(process_id, "gone", |state| {
        matches!(state, None | Some('Z'))
    });
}

/// Waits until the process is in this state of `proc(5)`.
pub fn await_state(process_id: u32, wanted: char) {
    await_that(process_id, &format!("in state {wanted}"), |state| {
        state == Some(wanted)
    });
}

fn await_that(process_id: u32, what: &str, is_so: impl Fn(Option<char>) -> bool) {
    let deadline = std::time::Instant::now() + WATCHDOG;
    while !is_so(state(process_id)) {
        let late = std::time::Instant::now() > deadline;
        assert!(!late, "process {process_id} is not {what}");
        thread::yield_now();
    }
}

fn state(process_id: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process_id}/stat")).ok()?;
    // The state follows the name, which is in parentheses and may contain anything.
    stat[stat.rfind(')')?..].chars().nth(2)
}

fn lines(mut stream: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let reader = std::io::BufReader::new(&mut stream);
        for line in std::io::BufRead::lines(reader).map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
