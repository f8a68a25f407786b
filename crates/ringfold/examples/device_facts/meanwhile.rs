//! Measures which driver calls, and which copies in other streams, a waiting stream holds up.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use ringfold::internals::device::Device;
use ringfold::{Error, Registered, Result};

use crate::rig::{Rig, Word, numbers, us, whole};

/// Time after which a call or copy is taken to wait for the stream.
const LIMIT: Duration = Duration::from_millis(300);
/// Size of the copies in other streams, and of allocations.
const SMALL_BYTES: usize = 4096;
const PINNED_BYTES: usize = 1 << 20;

pub fn measure(rig: &Rig) -> Result<()> {
    calls(rig)?;
    let mut counts = numbers("streams", "2,4,8,16,32,40").into_iter();
    counts.try_for_each(|count| copies(rig, count))
}

/// The result of a call, which lives until the stream continues.
type Made = Result<Box<dyn Send>>;
/// A prepared call.
type Call = Box<dyn FnOnce() -> Made + Send>;
/// A function that prepares a call on a device, with memory to pin.
type Prepare = fn(Arc<Device>, Registered) -> Result<Call>;

/// The calls that programs make while collectives are in progress.
const CALLS: [(&str, Prepare); 6] = [
    ("allocate", |device, _| {
        Ok(Box::new(move || {
            Ok(Box::new(device.enter()?.allocate(SMALL_BYTES)?))
        }))
    }),
    ("free", |device, _| {
        let memory = device.enter()?.allocate(SMALL_BYTES)?;
        Ok(Box::new(move || {
            drop(memory);
            Ok(Box::new(()))
        }))
    }),
    ("pin", |device, memory| {
        Ok(Box::new(move || {
            let region = memory.region();
            Ok(Box::new(device.enter()?.pin(region, Arc::new(memory))?))
        }))
    }),
    ("unpin", |device, memory| {
        let region = memory.region();
        let pin = device.enter()?.pin(region, Arc::new(memory))?;
        Ok(Box::new(move || {
            pin.release()?;
            Ok(Box::new(()))
        }))
    }),
    ("create a stream", |device, _| {
        Ok(Box::new(move || Ok(Box::new(device.enter()?.stream()?))))
    }),
    ("create an event", |device, _| {
        Ok(Box::new(move || Ok(Box::new(device.enter()?.event()?))))
    }),
];

/// Measures how long each call takes while no stream waits and while one does, and whether a
/// waiting stream blocks it.
fn calls(rig: &Rig) -> Result<()> {
    let [word, ..] = rig.words()?;
    let stream = rig.stream()?;
    let mut value = 0;
    for (name, prepare) in CALLS {
        for is_held in [false, true] {
            let memory = rig.communicator.alloc(PINNED_BYTES)?;
            let call = prepare(rig.other()?, memory)?;
            value += 1;
            let held = Held { word: &word, value };
            if is_held {
                let current = rig.device.enter()?;
                current.wait(&stream, word.region(), value)?;
            }
            let (taken, is_blocked) = returns(call, held)?;
            rig.finish(&stream)?;
            let setting = if is_held { "a stream waits" } else { "idle" };
            rig.say(&format!("call {name}"), setting, us(taken), "us");
            if is_held {
                rig.say(&format!("blocked {name}"), setting, is_blocked, "calls");
            }
        }
    }
    Ok(())
}

/// Returns how long `call` takes on another thread, and 1 if it blocks until `held` is dropped.
fn returns(call: Call, held: Held<'_>) -> Result<(Duration, f64)> {
    let (answer, answers) = channel();
    let thread = thread::spawn(move || {
        let begin = Instant::now();
        let made = call();
        let taken = begin.elapsed();
        // Cannot fail: the receiver lives until this thread has been joined.
        let _ = answer.send(taken);
        made
    });
    let in_time = answers.recv_timeout(LIMIT).ok();
    drop(held);
    let made = thread.join().map_err(|_| Error::System {
        what: "a call of the driver has panicked".into(),
        kind: std::io::ErrorKind::Other,
    })?;
    made?;
    let is_blocked = f64::from(u8::from(in_time.is_none()));
    Ok((in_time.unwrap_or(LIMIT), is_blocked))
}

/// A guard: a stream waits until the guard is dropped.
struct Held<'a> {
    word: &'a Word,
    value: u32,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.word.store(self.value);
    }
}

/// Counts the streams, of `count`, whose copies are late because one of the streams waits.
fn copies(rig: &Rig, count: usize) -> Result<()> {
    let [word, ..] = rig.words()?;
    let (host, memory) = (
        rig.pinned(count * SMALL_BYTES)?,
        rig.allocate(count * SMALL_BYTES)?,
    );
    let streams: Result<Vec<_>> = (0..count).map(|_| rig.stream()).collect();
    let streams = streams?;
    let current = rig.device.enter()?;
    let held = Held {
        word: &word,
        value: 1,
    };
    current.wait(&streams[0], word.region(), 1)?;
    for (index, stream) in streams.iter().enumerate().skip(1) {
        let place = index * SMALL_BYTES..(index + 1) * SMALL_BYTES;
        let into = host.whole().part(place.clone());
        current.bring(stream, whole(&memory).part(place), into)?;
    }
    let begin = Instant::now();
    let mut late = count - 1;
    while late > 0 && begin.elapsed() < LIMIT {
        late = 0;
        for stream in &streams[1..] {
            late += usize::from(!current.is_idle(stream)?);
        }
    }
    drop(held);
    streams.iter().try_for_each(|stream| rig.finish(stream))?;
    let connections = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS");
    let connections = connections.unwrap_or_else(|_| "default".into());
    let setting = format!("streams={count} connections={connections}");
    rig.say("copies held back", &setting, late as f64, "streams");
    Ok(())
}
