//! Starts the ranks of a job as processes, listens to their events, and ends them whatever happens.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::rank::{SCRIPT, monotonic_ns};
use crate::script::Script;

/// Time after which a rank has hung: far longer than anything takes on a busy machine.
pub const WATCHDOG: Duration = Duration::from_secs(120);

/// The variable that names the library of RDMA devices.
pub const LIBRARY: &str = "RINGFOLD_VERBS_LIBRARY";

/// A job to start.
#[derive(Clone, Debug)]
pub struct Plan {
    pub world_size: usize,
    pub transport: &'static str,
    /// The deadline of every operation.
    pub timeout: Duration,
    pub connect_timeout: Duration,
    pub secret: Option<String>,
    /// The address of rank 0; `None` for a new name on this host.
    pub address: Option<String>,
    /// Seed of the software RDMA devices' delays and reordering; printed when a job starts.
    pub device_seed: u64,
    /// Further environment variables of the ranks.
    pub variables: Vec<(&'static str, String)>,
    pub script: Script,
}

impl Plan {
    /// Creates a job whose deadlines are beyond the watchdog's, so that no deadline ends the job.
    pub fn new(world_size: usize, transport: &'static str, script: Script) -> Plan {
        Plan {
            world_size,
            transport,
            timeout: 2 * WATCHDOG,
            connect_timeout: 2 * WATCHDOG,
            secret: None,
            address: None,
            device_seed: device_seed(),
            variables: Vec::new(),
            script,
        }
    }

    /// Starts all ranks with the same script.
    pub fn start(&self) -> Job {
        let mut job = self.empty();
        for rank in 0..self.world_size {
            job.add(rank, &self.script);
        }
        job
    }

    /// Starts all ranks; `odd` has a script of its own.
    pub fn start_with(&self, odd: usize, script: &Script) -> Job {
        let mut job = self.empty();
        for rank in 0..self.world_size {
            job.add(rank, if rank == odd { script } else { &self.script });
        }
        job
    }

    /// Creates the job without any rank.
    pub fn empty(&self) -> Job {
        if self.transport == "rdma" {
            println!("SOFTVERBS_SEED={}", self.device_seed);
        }
        Job {
            address: self.address.clone().unwrap_or_else(fresh_address),
            plan: self.clone(),
            ranks: Vec::new(),
        }
    }
}

/// Returns the seed in `SOFTVERBS_SEED`, or a new one.
fn device_seed() -> u64 {
    let given = std::env::var("SOFTVERBS_SEED").ok();
    let given = given.map(|text| text.parse().expect("a number as seed"));
    given.unwrap_or_else(|| monotonic_ns() >> 10)
}

fn fresh_address() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("unix:@ringfold-faults-{}-{number}", std::process::id())
}

/// A job, whose processes are killed when it is dropped.
pub struct Job {
    pub plan: Plan,
    pub address: String,
    pub ranks: Vec<Rank>,
}

/// One rank's process.
pub struct Rank {
    pub number: usize,
    child: Child,
    events: mpsc::Receiver<Event>,
    /// Everything that the rank wrote to standard error.
    complaints: Arc<Mutex<String>>,
}

/// A line that a rank has printed.
#[derive(Clone, Debug)]
pub struct Event {
    pub name: String,
    pub at_ns: u64,
    words: String,
    pub text: String,
}

/// The end of a rank that ended by itself.
#[derive(Clone, Debug)]
pub struct Ending {
    /// The class of the error; empty if there was none.
    pub class: String,
    /// The ranks that the error names.
    pub ranks: Vec<usize>,
    pub text: String,
    pub at_ns: u64,
    /// Number of calls with the right result.
    pub good: u64,
    /// Number of faults of its RDMA devices that have not occurred.
    pub due: u64,
}

impl Event {
    fn parse(line: &str) -> Option<Event> {
        let (words, text) = line.strip_prefix("event ")?.split_once(" | ")?;
        let mut parts = words.splitn(3, ' ');
        Some(Event {
            name: parts.next()?.into(),
            at_ns: parts.next()?.parse().ok()?,
            words: parts.next().unwrap_or_default().into(),
            text: text.into(),
        })
    }

    pub fn word(&self, name: &str) -> &str {
        let mut words = self
            .words
            .split(' ')
            .filter_map(|word| word.split_once('='));
        words
            .find(|(key, _)| *key == name)
            .map_or("", |(_, value)| value)
    }
}

impl Job {
    /// Starts the process of a rank.
    pub fn add(&mut self, number: usize, script: &Script) {
        let mut command = Command::new(std::env::current_exe().expect("this binary has a name"));
        self.start(number, script, &mut command);
    }

    /// Starts the process of a rank by `command`, which ends with the name of this binary.
    pub fn start(&mut self, number: usize, script: &Script, command: &mut Command) {
        let plan = &self.plan;
        command
            .args(["--exact", "rank", "--ignored", "--nocapture"])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env(SCRIPT, script.encode())
            .env("RINGFOLD_RANK", number.to_string())
            .env("RINGFOLD_WORLD_SIZE", plan.world_size.to_string())
            .env("RINGFOLD_ADDR", &self.address)
            .env("RINGFOLD_TRANSPORT", plan.transport)
            .env("RINGFOLD_TIMEOUT_MS", plan.timeout.as_millis().to_string())
            .env(
                "RINGFOLD_CONNECT_TIMEOUT_MS",
                plan.connect_timeout.as_millis().to_string(),
            );
        if plan.transport == "rdma" {
            command.env(LIBRARY, software_devices());
            command.env("SOFTVERBS_SEED", plan.device_seed.to_string());
        }
        if let Some(secret) = &plan.secret {
            command.env("RINGFOLD_SECRET", secret);
        }
        command.envs(plan.variables.iter().map(|(name, value)| (name, value)));
        for name in ["RINGFOLD_DEBUG", "RINGFOLD_ALGO"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        self.ranks.push(Rank::spawn(number, command));
    }

    /// Waits until every rank has printed event `name`.
    pub fn await_all(&self, name: &str) {
        for rank in &self.ranks {
            rank.await_event(name);
        }
    }

    pub fn rank(&self, number: usize) -> &Rank {
        let found = self.ranks.iter().find(|rank| rank.number == number);
        found.expect("the job has this rank")
    }

    /// Removes a rank from the job.
    pub fn take(&mut self, number: usize) -> Rank {
        let place = self.ranks.iter().position(|rank| rank.number == number);
        self.ranks.remove(place.expect("the job has this rank"))
    }

    /// Kills a rank, and removes it from the job. Returns the time just before.
    pub fn kill(&mut self, number: usize) -> u64 {
        let mut rank = self.take(number);
        let before = monotonic_ns();
        rank.child.kill().expect("a process of our own");
        let status = rank.child.wait().expect("a process of our own");
        assert_eq!(
            status.signal(),
            Some(9),
            "rank {number} had ended before: {status}; {}",
            rank.complaints()
        );
        before
    }

    /// Waits until all ranks have ended by themselves, and checks that they leave nothing.
    pub fn finish(mut self) -> Vec<(usize, Ending)> {
        let endings = self.endings();
        crate::remains::assert_none(&self.address);
        endings
    }

    /// Waits until all ranks have ended by themselves.
    pub fn endings(&mut self) -> Vec<(usize, Ending)> {
        let ranks = self.ranks.drain(..);
        ranks.map(|rank| (rank.number, rank.finish())).collect()
    }
}

impl Rank {
    fn spawn(number: usize, command: &mut Command) -> Rank {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a rank starts");
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (sender, events) = mpsc::channel();
        thread::spawn(move || {
            let lines = BufReader::new(stdout.expect("a pipe")).lines();
            let events = lines.map_while(Result::ok);
            for event in events.filter_map(|line| Event::parse(&line)) {
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        let complaints = Arc::new(Mutex::new(String::new()));
        let book = complaints.clone();
        thread::spawn(move || {
            for line in BufReader::new(stderr.expect("a pipe"))
                .lines()
                .map_while(Result::ok)
            {
                *book.lock().expect("no thread panics while holding it") += &(line + "\n");
            }
        });
        Rank {
            number,
            child,
            events,
            complaints,
        }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the rank is running");
    }

    /// Waits until all threads of the process are stopped by a signal.
    pub fn await_stop(&self) {
        let deadline = Instant::now() + WATCHDOG;
        // If the process ends first, the methods that wait for its end report it.
        let how = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(self.pid()), how)
            .expect("a process of our own")
            .is_none()
        {
            assert!(
                Instant::now() < deadline,
                "rank {} does not stop: {}",
                self.number,
                self.whereabouts()
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn complaints(&self) -> String {
        self.complaints
            .lock()
            .expect("no thread panics while holding it")
            .clone()
    }

    /// Waits until the rank prints event `name`.
    pub fn await_event(&self, name: &str) -> Event {
        loop {
            let event = match self.events.recv_timeout(WATCHDOG) {
                Ok(event) => event,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    panic!(
                        "rank {} hangs instead of `{name}`: {}",
                        self.number,
                        self.whereabouts()
                    )
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    panic!(
                        "rank {} ended before `{name}`: {}",
                        self.number,
                        self.complaints()
                    )
                }
            };
            assert!(
                event.name != "wrong",
                "rank {} has a wrong result: {}",
                self.number,
                event.text
            );
            if event.name == name {
                return event;
            }
            assert!(
                event.name != "end",
                "rank {} ended before `{name}`: {event:?}",
                self.number
            );
        }
    }

    /// Forgets the events that the rank has printed until now.
    pub fn forget_events(&self) {
        while self.events.try_recv().is_ok() {}
    }

    /// Waits until the rank has ended by itself, and checks that its communicator has left nothing.
    pub fn finish(mut self) -> Ending {
        let end = self.await_event("end");
        let left = self.await_event("left");
        for what in ["descriptors", "threads", "maps", "objects"] {
            assert_eq!(
                left.word(what),
                "0",
                "rank {} keeps {what} after {end:?}",
                self.number
            );
        }
        let status = self.wait();
        assert!(status.success(), "rank {}: {status}", self.number);
        let ranks = end
            .word("ranks")
            .split(',')
            .filter_map(|text| text.parse().ok());
        Ending {
            class: end.word("class").into(),
            ranks: ranks.collect(),
            text: end.text.clone(),
            at_ns: end.at_ns,
            good: end.word("good").parse().expect("a number"),
            due: left.word("due").parse().expect("a number"),
        }
    }

    /// Waits for the exit of a process that has printed its last event.
    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            if let Some(status) = self.child.try_wait().expect("a process of our own") {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "rank {} does not end",
                self.number
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Describes where the threads of the process are, for a message about a hang.
    fn whereabouts(&self) -> String {
        let mut text = self.complaints();
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        for task in tasks.into_iter().flatten().flatten() {
            let read =
                |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            text += &format!("\n{} in {}", read("comm").trim(), read("wchan"));
        }
        text
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the library of software RDMA devices, which cargo has built beside this test.
pub fn software_devices() -> PathBuf {
    let test = std::env::current_exe().expect("this binary has a name");
    test.with_file_name("libringfold_softverbs.so")
}
