//! Watches the processes of a job: forwards signals, and ends all processes if one fails.

use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringfold::Error;
use ringfold::internals::control::Limit;
use ringfold::internals::threads;
use ringfold::internals::wait::SPAN_MAX;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};

use super::environment::Environment;
use super::outcome::JobOutcome;
use crate::output::complain;

/// Time for the survivors of a failure to detect it themselves and to report their errors.
const REPORT_GRACE: Duration = Duration::from_millis(300);

/// Time between SIGTERM and SIGKILL, for closing files.
const TERM_GRACE: Duration = Duration::from_secs(5);

/// Maximum time that the launcher of one of several hosts stays after a failure, to notify ranks of
/// other hosts that wait for its ranks to join.
const ANNOUNCE_GRACE: Duration = Duration::from_secs(2);

/// Interval between checks whether those ranks have been notified.
const ANNOUNCE_LOOK: Duration = Duration::from_millis(20);

/// The signals that this process has received, in order.
pub struct Events {
    signals: mpsc::Receiver<i32>,
}

impl Events {
    /// Starts to listen for signals. A separate thread handles them, and they can no longer end
    /// this process.
    pub fn listen() -> Result<Events> {
        let wanted = [SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP];
        let mut incoming =
            signal_hook::iterator::Signals::new(wanted).context("cannot listen for signals")?;
        let (sender, signals) = mpsc::channel();
        threads::start("ringfold-signals", move || {
            for signal in incoming.forever() {
                if sender.send(signal).is_err() {
                    return;
                }
            }
        })?;
        Ok(Events { signals })
    }
}

/// The stage of the job's end.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Running,
    /// A rank has failed; the others get SIGTERM at this time.
    Reporting(Instant),
    /// The others have got SIGTERM; they get SIGKILL at this time.
    Terminating(Instant),
    Killed,
}

/// The processes of a job.
pub struct Supervisor<'a> {
    /// The processes, by local rank; `None` once a process has ended.
    children: Vec<Option<Child>>,
    events: Events,
    stage: Stage,
    outcome: JobOutcome,
    environment: &'a Environment,
    /// Whether the job is over, which ends the threads that report absent ranks.
    is_over: Arc<AtomicBool>,
    announcing: Vec<JoinHandle<()>>,
}

impl Drop for Supervisor<'_> {
    fn drop(&mut self) {
        // Relaxed, because the flag publishes no other data.
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Supervisor<'_> {
    /// Creates the supervisor of `children`, each the leader of its own process group, which got
    /// their variables from `environment`.
    pub fn new(children: Vec<Child>, events: Events, environment: &Environment) -> Supervisor<'_> {
        Supervisor {
            children: children.into_iter().map(Some).collect(),
            events,
            stage: Stage::Running,
            outcome: JobOutcome {
                failure: None,
                interrupted: false,
            },
            environment,
            is_over: Arc::default(),
            announcing: Vec::new(),
        }
    }

    /// Supervises the processes until all have ended.
    pub fn watch(mut self) -> JobOutcome {
        loop {
            self.collect();
            if self.children.iter().all(Option::is_none) {
                self.finish_announcing();
                return self.outcome;
            }
            match self.wait() {
                Some(SIGCHLD) => {}
                Some(SIGTSTP) => self.pause(),
                Some(signal) => self.pass_on(signal),
                None => self.escalate(),
            }
        }
    }

    /// Kills all processes and waits for their end.
    pub fn end_all(mut self) {
        self.signal_all(Signal::KILL);
        self.stage = Stage::Killed;
        self.watch();
    }

    /// Returns the next signal, or `None` when the stage's time is over.
    fn wait(&self) -> Option<i32> {
        match self.stage {
            Stage::Running | Stage::Killed => self.events.signals.recv().ok(),
            Stage::Reporting(until) | Stage::Terminating(until) => {
                let left = until.saturating_duration_since(Instant::now());
                self.events.signals.recv_timeout(left).ok()
            }
        }
    }

    fn pass_on(&mut self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else {
            return;
        };
        if matches!(number, SIGINT | SIGTERM | SIGHUP) {
            // A user who asks a second time does not want to wait.
            if self.outcome.interrupted && !matches!(self.stage, Stage::Running) {
                self.signal_all(Signal::KILL);
                self.stage = Stage::Killed;
                return;
            }
            self.outcome.interrupted = true;
        }
        self.signal_all(signal);
    }

    /// Handles Ctrl-Z: stops the ranks, which the terminal does not reach, and this process, until
    /// it is continued.
    fn pause(&self) {
        self.signal_all(Signal::STOP);
        // Returns when this process is continued.
        let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
        self.signal_all(Signal::CONT);
    }

    fn escalate(&mut self) {
        self.stage = match self.stage {
            Stage::Reporting(_) => {
                self.signal_all(Signal::TERM);
                // A stopped process handles SIGTERM only after it continues.
                self.signal_all(Signal::CONT);
                Stage::Terminating(Instant::now() + TERM_GRACE)
            }
            Stage::Terminating(_) => {
                self.signal_all(Signal::KILL);
                Stage::Killed
            }
            stage => stage,
        };
    }

    /// Records the processes that have ended.
    fn collect(&mut self) {
        for local_rank in 0..self.children.len() {
            let Some(child) = &mut self.children[local_rank] else {
                continue;
            };
            let Some(well) = ended_well(child) else {
                continue;
            };
            if !well || !matches!(self.stage, Stage::Running) {
                // Kills the processes that the rank left in its group; the group's number is not
                // reused before the wait below.
                let _ = rustix::process::kill_process_group(process_id(child), Signal::KILL);
            }
            let status = child.wait().unwrap_or_default();
            self.children[local_rank] = None;
            if !status.success() {
                self.note_failure(local_rank, status);
                if self.environment.has_other_hosts() && !self.outcome.interrupted {
                    self.announce_absence(local_rank, status);
                }
            } else if self.children.iter().any(Option::is_some) {
                self.announce_absence(local_rank, status);
            }
        }
    }

    /// Notifies the other ranks that a process has ended, in case they wait for it to join.
    fn announce_absence(&mut self, local_rank: usize, status: ExitStatus) {
        let absence = self.environment.absence(local_rank, status);
        let rank = absence.rank;
        let is_over = self.is_over.clone();
        let announce = move || {
            let given_up = || is_over.load(Ordering::Relaxed).then_some(Error::Closed);
            let deadline = Instant::now() + SPAN_MAX;
            // If the announcement fails, the ranks to be notified have ended, or know.
            let missed = || complain(&absence.reason);
            let _ = absence.announce(Limit::new(deadline, &given_up), missed);
        };
        match threads::start("ringfold-absence", announce) {
            Ok(thread) => self.announcing.push(thread),
            Err(error) => complain(&format!(
                "cannot notify the other ranks that rank {rank} has ended: {error}"
            )),
        }
    }

    /// After a failure, waits a limited time until the ranks of other hosts are notified.
    fn finish_announcing(&self) {
        if !self.environment.has_other_hosts() || self.outcome.failure.is_none() {
            return;
        }
        let until = Instant::now() + ANNOUNCE_GRACE;
        let is_busy = || self.announcing.iter().any(|thread| !thread.is_finished());
        while is_busy() && !self.outcome.interrupted && Instant::now() < until {
            thread::sleep(ANNOUNCE_LOOK);
        }
    }

    fn note_failure(&mut self, local_rank: usize, status: ExitStatus) {
        let rank = self.environment.rank(local_rank);
        self.outcome.failure.get_or_insert((rank, status));
        if let Stage::Running = self.stage {
            self.stage = Stage::Reporting(Instant::now() + REPORT_GRACE);
        }
    }

    /// Sends `signal` to every rank and to the processes in its group.
    fn signal_all(&self, signal: Signal) {
        for child in self.children.iter().flatten() {
            // A group that has just ended needs no signal.
            let _ = rustix::process::kill_process_group(process_id(child), signal);
        }
    }
}

fn process_id(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Returns whether the process succeeded; `None` while it runs. Does not reap the process, so that
/// its id is not reused.
fn ended_well(child: &Child) -> Option<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match rustix::process::waitid(WaitId::Pid(process_id(child)), options) {
        Ok(status) => status.map(|status| status.exit_status() == Some(0)),
        // No longer our child: another thread has reaped the process, so it has ended.
        Err(_) => Some(true),
    }
}
