//! Watches the processes of a job: passes signals on, and ends all when one fails.

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

use super::Outcome;
use super::environment::Environment;

/// How long the survivors of a failure may continue: time to detect it themselves and to report
/// their errors.
const REPORT_GRACE: Duration = Duration::from_millis(300);

/// How long after SIGTERM comes SIGKILL: time to close files.
const TERM_GRACE: Duration = Duration::from_secs(5);

/// How long the launcher of one of several hosts stays after a failure, to say so to ranks of other
/// hosts that wait for its ranks to join.
const ANNOUNCE_GRACE: Duration = Duration::from_secs(2);

/// How often it looks whether they know.
const ANNOUNCE_LOOK: Duration = Duration::from_millis(20);

/// The signals this process hears of, in order.
pub struct Events {
    signals: mpsc::Receiver<i32>,
}

impl Events {
    /// Starts to listen. Signals are handled by a separate thread and can no longer end this
    /// process.
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

/// How far the end of the job has come.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Running,
    /// A rank has failed; the others are asked to end at this time.
    Reporting(Instant),
    /// They have been asked; they are killed at this time.
    Terminating(Instant),
    Killed,
}

/// The processes of a job.
pub struct Supervisor<'a> {
    /// By local rank; `None` once it is gone.
    children: Vec<Option<Child>>,
    events: Events,
    stage: Stage,
    outcome: Outcome,
    environment: &'a Environment,
    /// Whether the job is over; threads that report absent ranks end then.
    is_over: Arc<AtomicBool>,
    announcing: Vec<JoinHandle<()>>,
}

impl Drop for Supervisor<'_> {
    fn drop(&mut self) {
        // A word by itself: nothing is published with it.
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Supervisor<'_> {
    /// Takes over `children`, each the leader of its own process group, which got their variables
    /// from `environment`.
    pub fn new(children: Vec<Child>, events: Events, environment: &Environment) -> Supervisor<'_> {
        Supervisor {
            children: children.into_iter().map(Some).collect(),
            events,
            stage: Stage::Running,
            outcome: Outcome {
                failure: None,
                interrupted: false,
            },
            environment,
            is_over: Arc::default(),
            announcing: Vec::new(),
        }
    }

    /// Returns when all are gone.
    pub fn watch(mut self) -> Outcome {
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

    /// Ends all now.
    pub fn end_all(mut self) {
        self.signal_all(Signal::KILL);
        self.stage = Stage::Killed;
        self.watch();
    }

    /// The next signal, or `None` when the stage's time is over.
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

    /// Ctrl-Z: stops with all ranks, which the terminal does not reach, until the launcher is
    /// continued.
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
                // A stopped process does not see SIGTERM before it continues.
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

    /// Takes note of the processes that have ended.
    fn collect(&mut self) {
        for local_rank in 0..self.children.len() {
            let Some(child) = &mut self.children[local_rank] else {
                continue;
            };
            let Some(well) = ended_well(child) else {
                continue;
            };
            if !well || !matches!(self.stage, Stage::Running) {
                // Processes that the rank started and left in its group; the group's number is ours
                // until the wait below.
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

    /// Tells the others that a process has ended, in case they wait for it to join.
    fn announce_absence(&mut self, local_rank: usize, status: ExitStatus) {
        let absence = self.environment.absence(local_rank, status);
        let rank = absence.rank;
        let is_over = self.is_over.clone();
        let announce = move || {
            let given_up = || is_over.load(Ordering::Relaxed).then_some(Error::Closed);
            let deadline = Instant::now() + SPAN_MAX;
            // The ranks that could be told have ended, or know.
            let missed = || crate::complain(&absence.reason);
            let _ = absence.announce(Limit::new(deadline, &given_up), missed);
        };
        match threads::start("ringfold-absence", announce) {
            Ok(thread) => self.announcing.push(thread),
            Err(error) => crate::complain(&format!(
                "cannot tell the others of the end of rank {rank}: {error}"
            )),
        }
    }

    /// After a failure, gives the ranks of other hosts time to learn of it.
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

    /// Sends `signal` to every rank and to what it has started.
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

/// Whether the process has ended, and well; it is not waited for, so that its number stays its own.
fn ended_well(child: &Child) -> Option<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match rustix::process::waitid(WaitId::Pid(process_id(child)), options) {
        Ok(status) => status.map(|status| status.exit_status() == Some(0)),
        // Not our child any more: another thread took its status, so it has ended.
        Err(_) => Some(true),
    }
}
