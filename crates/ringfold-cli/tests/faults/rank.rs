//! The program of a rank: joins, calls collectives in a loop, checks every result exactly, and
//! reports events.
//!
//! The rank's instructions are in the variable `RANK_SCRIPT`, as `name=value` words; see
//! [`Script`]. The rank's number is in the variables that every ringfold program knows. The program
//! prints one event per line on standard output, as [`crate::job`] reads them: `event NAME
//! NANOSECONDS name=value … | text`, with the time of the monotonic clock.

mod belongings;
mod forks;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use ringfold::{
    CallOptions, Communicator, Config, Error, Op, Registered, RendezvousListener, Result,
};
use rustix::process::Signal;

use self::belongings::{Belongings, devices_left};
use self::forks::{fork_and_drop, fork_child};
use crate::script::Script;

/// The variable with a rank's script, which marks a process of this binary as a rank.
pub const SCRIPT: &str = "RANK_SCRIPT";

/// Number of broadcasts in a row: more than a rank keeps digests of.
const BROADCASTS: usize = 100;

/// The variable with the file by which rank 0 distributes its address, if ranks join that way.
pub const MEETING: &str = "RANK_MEETING";

/// Returns the nanoseconds of the monotonic clock, which all processes share.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Runs the program of a rank and exits, if this process is a rank.
pub fn live() {
    let Ok(text) = std::env::var(SCRIPT) else {
        return;
    };
    // The test that started this process may itself be killed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .expect("the kernel knows death signals");
    // Ends the line that the test harness has begun.
    println!();
    let script = Script::decode(&text);
    let before = Belongings::count();
    work(&script);
    let after = Belongings::count_when_ended(&before);
    let (objects, due) = devices_left();
    let words = format!(
        "descriptors={} threads={} maps={} objects={objects} due={due}",
        after.descriptors - before.descriptors,
        after.threads - before.threads,
        after.maps
    );
    say("left", &words, "");
    std::process::exit(0);
}

/// Returns the ranks that an error names.
fn ranks_named(error: &Error) -> Vec<usize> {
    match error {
        Error::PeerFailed { rank, .. } | Error::Aborted { rank, .. } => vec![*rank],
        Error::Mismatch { ranks, .. } => ranks.to_vec(),
        Error::Corrupt { peer, .. } => vec![*peer],
        Error::Timeout { waiting_for, .. } => waiting_for.clone(),
        _ => Vec::new(),
    }
}

fn ranks_of(error: &Error) -> String {
    let words: Vec<String> = ranks_named(error).iter().map(usize::to_string).collect();
    words.join(",")
}

fn say(name: &str, words: &str, text: &str) {
    let text = text.replace('\n', " ");
    let line = format!("event {name} {} {words} | {text}\n", monotonic_ns());
    let mut stdout = std::io::stdout().lock();
    // If the pipe is closed, the test is over.
    let _ = stdout.write_all(line.as_bytes());
    let _ = stdout.flush();
}

/// Does all of this rank's work; its communicator is closed on return.
fn work(script: &Script) {
    let mut good = 0;
    let joined = join().and_then(|whole| {
        let color = (whole.rank() % 2) as u32;
        let half = script.in_halves.then(|| whole.split(Some(color), 0));
        Ok((half.transpose()?.flatten(), whole))
    });
    let (half, whole) = match joined {
        Ok(communicators) => communicators,
        Err(error) => return say_end(good, Err(&error)),
    };
    let communicator = half.as_ref().unwrap_or(&whole);
    let words = format!(
        "hosts={} transport={}",
        communicator.hosts(),
        communicator.transport()
    );
    say("joined", &words, "");
    let ending = repeat(communicator, script, &mut good);
    say_end(good, ending.as_ref().copied());
    let Err(error) = ending else { return };
    // Every later call returns the error that ended the communicator.
    let again = communicator.barrier().err();
    if again.as_ref().map(Error::class) != Some(error.class()) {
        say(
            "wrong",
            "",
            &format!("after {error:?} a call gives {again:?}"),
        );
    }
}

fn join() -> Result<Communicator> {
    let Some(path) = std::env::var_os(MEETING).map(PathBuf::from) else {
        return Communicator::init();
    };
    if std::env::var("RINGFOLD_RANK").is_ok_and(|rank| rank == "0") {
        let meeting = RendezvousListener::open(None)?;
        let draft = path.with_extension("draft");
        std::fs::write(&draft, meeting.address()).expect("the test's own folder");
        std::fs::rename(&draft, &path).expect("the test's own folder");
        return Communicator::connect_at(Config::default(), meeting);
    }
    let address = loop {
        match std::fs::read_to_string(&path) {
            Ok(address) => break address,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    Communicator::connect(Config {
        address: Some(address),
        ..Config::default()
    })
}

fn say_end(good: u64, ending: Result<(), &Error>) {
    let (words, text) = match ending {
        Ok(()) => (String::new(), String::new()),
        Err(error) => {
            let words = format!("class={} ranks={}", error.class(), ranks_of(error));
            (words, error.to_string())
        }
    };
    say("end", &format!("good={good} {words}"), &text);
}

/// Calls the collective until the script ends.
fn repeat(communicator: &Communicator, script: &Script, good: &mut u64) -> Result<()> {
    let mut calls = Calls::new(communicator, script)?;
    while script.iterations == 0 || *good < script.iterations {
        if script.at == *good && !script.act.is_empty() {
            calls.act(script)?;
        } else {
            calls.call(*good)?;
        }
        *good += 1;
        if *good == 1 {
            say("running", "", "");
        }
        if script.tells {
            say("call", "", "");
        }
        if script.pause_us > 0 {
            std::thread::sleep(Duration::from_micros(script.pause_us));
        }
    }
    communicator.close()
}

/// The buffers of the calls, allocated once.
struct Calls<'a> {
    communicator: &'a Communicator,
    collective: &'a str,
    input: Vec<u64>,
    output: Vec<u64>,
    /// Input and output in memory of all ranks, if the collective needs it.
    registered: Option<Registered>,
    /// Deadline of an `all_reduce`; `None` is the communicator's.
    deadline: Option<Duration>,
}

/// Returns element `index` of `rank`'s data in a call: a different number everywhere.
fn element(call: u64, rank: usize, index: usize) -> u64 {
    call * 1_000_003 + rank as u64 * 7_919_000_000_000 + index as u64
}

/// Returns the sum of element `index` of all ranks' data.
fn sum(world_size: usize, call: u64, index: usize) -> u64 {
    (0..world_size).map(|peer| element(call, peer, index)).sum()
}

impl<'a> Calls<'a> {
    fn new(communicator: &'a Communicator, script: &'a Script) -> Result<Calls<'a>> {
        let world_size = communicator.world_size();
        let count = (script.bytes / 8).max(1);
        let (input, output) = match script.collective.as_str() {
            "all_gather" => (count, count * world_size),
            "reduce_scatter" => (count * world_size, count),
            "all_to_all" => (count * world_size, count * world_size),
            _ => (count, count),
        };
        let is_registered = script.collective == "all_reduce_registered";
        let registered = is_registered.then(|| communicator.alloc(count * 8));
        Ok(Calls {
            communicator,
            collective: &script.collective,
            input: vec![0; input],
            output: vec![0; output],
            registered: registered.transpose()?,
            deadline: None,
        })
    }

    /// Makes one call of the collective, and checks its result.
    fn call(&mut self, call: u64) -> Result<()> {
        let (rank, world_size) = (self.communicator.rank(), self.communicator.world_size());
        for (index, value) in self.input.iter_mut().enumerate() {
            *value = element(call, rank, index);
        }
        let block = self.input.len().min(self.output.len());
        let sum = |index: usize| sum(world_size, call, index);
        let (input, output) = (&self.input, &mut self.output);
        output.fill(u64::MAX);
        match self.collective {
            "all_reduce" => return self.all_reduce(call),
            "all_reduce_registered" => return self.all_reduce_registered(call),
            "reduce_scatter" => {
                self.communicator.reduce_scatter(input, output, Op::Sum)?;
                expect(output, call, |index| sum(rank * block + index));
            }
            "all_gather" => {
                self.communicator.all_gather(input, output)?;
                expect(output, call, |index| {
                    element(call, index / block, index % block)
                });
            }
            "all_to_all" => {
                self.communicator.all_to_all(input, output)?;
                let each = block / world_size;
                expect(output, call, |index| {
                    element(call, index / each, rank * each + index % each)
                });
            }
            "broadcast" => {
                let root = call as usize % world_size;
                output.copy_from_slice(input);
                self.communicator.broadcast(output, root)?;
                expect(output, call, |index| element(call, root, index));
            }
            "broadcast_and_barrier" => {
                output.copy_from_slice(input);
                self.communicator.broadcast(output, 0)?;
                expect(output, call, |index| element(call, 0, index));
                self.communicator.barrier()?;
            }
            "broadcasts_and_reduce" => return self.broadcasts_and_reduce(call),
            "send_and_barrier" => return self.send_and_barrier(call),
            "barrier" => self.communicator.barrier()?,
            "alloc" => {
                let mut memory = self.communicator.alloc(block * 8)?;
                let both = memory.as_mut_slice::<u64>();
                both.copy_from_slice(input);
                self.communicator.all_reduce(both, Op::Sum)?;
                expect(both, call, sum);
            }
            "register" => {
                output.copy_from_slice(input);
                let mut memory = self.communicator.register(output)?;
                self.communicator.all_reduce(&mut memory, Op::Sum)?;
                expect(&memory, call, sum);
            }
            // The part has the opposite order, so that its ranks have other numbers.
            "split" => {
                let part = self.communicator.split(Some(0), -(rank as i64))?;
                let part = part.expect("this rank has a color");
                if let Err(in_part) = part.barrier().and_then(|()| part.close()) {
                    return Err(self.error_of_both(&in_part));
                }
            }
            other => panic!("the script wants {other}"),
        }
        Ok(())
    }

    /// Makes many broadcasts from rank 0; then rank 1 waits for all ranks, and sends nothing.
    fn broadcasts_and_reduce(&mut self, call: u64) -> Result<()> {
        let (input, output) = (&self.input, &mut self.output);
        for _ in 0..BROADCASTS {
            output.copy_from_slice(input);
            self.communicator.broadcast(output, 0)?;
            expect(output, call, |index| element(call, 0, index));
        }
        self.communicator.reduce(input, output, Op::Sum, 1)?;
        self.communicator.barrier()
    }

    /// Sums ordinary memory, with the script's deadline.
    fn all_reduce(&mut self, call: u64) -> Result<()> {
        let (input, output) = (&self.input, &mut self.output);
        let options = CallOptions {
            timeout: self.deadline,
            ..CallOptions::default()
        };
        let calls = self.communicator.with(options);
        calls.all_reduce_into(input, output, Op::Sum)?;
        let world_size = self.communicator.world_size();
        expect(output, call, |index| sum(world_size, call, index));
        Ok(())
    }

    /// Sums memory of all ranks. After a failure, reports how much of this rank's share is done.
    fn all_reduce_registered(&mut self, call: u64) -> Result<()> {
        let (rank, world_size) = (self.communicator.rank(), self.communicator.world_size());
        let sum = |index: usize| sum(world_size, call, index);
        let memory = self.registered.as_mut().expect("what `new` has made");
        let both = memory.as_mut_slice::<u64>();
        both.copy_from_slice(&self.input);
        say("calling", "", "");
        let result = self.communicator.all_reduce(both, Op::Sum);
        if result.is_err() {
            let share = both.len() / world_size;
            let own = rank * share..(rank + 1) * share;
            let done = own.filter(|index| both[*index] == sum(*index)).count();
            say("share", &format!("elements={share} done={done}"), "");
        }
        result?;
        expect(both, call, sum);
        Ok(())
    }

    /// Sends a message from rank 0 to rank 1; then all ranks enter a barrier.
    fn send_and_barrier(&mut self, call: u64) -> Result<()> {
        match self.communicator.rank() {
            0 => self.communicator.send(&self.input, 1, 0)?,
            1 => {
                self.communicator.recv(&mut self.output, 0, 0)?;
                expect(&self.output, call, |index| element(call, 0, index));
            }
            _ => {}
        }
        self.communicator.barrier()
    }

    /// Returns this communicator's error after an error of its part, whose ranks are in the
    /// opposite order. Both must name the same ranks.
    fn error_of_both(&self, in_part: &Error) -> Error {
        let whole = self.communicator.barrier().expect_err("a rank has failed");
        let last = self.communicator.world_size() - 1;
        let of_part: Vec<usize> = ranks_named(in_part)
            .iter()
            .map(|rank| last - rank)
            .collect();
        if (in_part.class(), of_part) != (whole.class(), ranks_named(&whole)) {
            say("wrong", "", &format!("{in_part:?} of the part, {whole:?}"));
        }
        whole
    }

    /// Does the script's act, mostly a mistake, instead of an all-reduce of 64-bit sums.
    fn act(&mut self, script: &Script) -> Result<()> {
        let act = script.act.as_str();
        let (communicator, output) = (self.communicator, &mut self.output);
        match act {
            "stop" => {
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, Signal::STOP).expect("this process");
                let is_given = script.deadline_ms > 0;
                self.deadline = is_given.then(|| Duration::from_millis(script.deadline_ms));
            }
            "fork" => fork_child(),
            "fork_and_drop" => fork_and_drop(communicator),
            "close" => communicator.close()?,
            "exit" => std::process::exit(0),
            "abort" => communicator.abort("the loss is not a number"),
            "count" => communicator.all_reduce(&mut output[1..], Op::Sum)?,
            "op" => communicator.all_reduce(output, Op::Max)?,
            "dtype" => communicator.all_reduce(&mut vec![0i64; output.len()], Op::Sum)?,
            "collective" => communicator.broadcast(output, 0)?,
            "root" => {
                communicator.broadcast(output, 1)?;
                communicator.barrier()?;
            }
            other => panic!("the script wants {other}"),
        }
        match act {
            // After `close` and `abort`, this rank's own communicator has ended.
            "close" | "abort" | "stop" | "fork" | "fork_and_drop" => self.call(script.at),
            // The root of a broadcast may finish before any rank objects.
            "collective" => Ok(()),
            _ => panic!("`{act}` came out well"),
        }
    }
}

/// Checks a result. A wrong one is the worst failure: it ends the process with its own event.
fn expect(output: &[u64], call: u64, wanted: impl Fn(usize) -> u64) {
    let wrong = (0..output.len()).find(|index| output[*index] != wanted(*index));
    if let Some(index) = wrong {
        let text = format!(
            "call {call}, element {index}: {} instead of {}",
            output[index],
            wanted(index)
        );
        say("wrong", "", &text);
        std::process::exit(1);
    }
}
