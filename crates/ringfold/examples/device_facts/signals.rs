//! Measures the time until one side sees an action of the other, and the cost of enqueuing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfold::Result;
use ringfold::internals::device::{Current, Stream};

use crate::rig::{Rig, Word, median_us, number, program, time, us, whole};

/// Time within which a stream has begun to wait.
const SETTLE: Duration = Duration::from_micros(50);
/// Number of calls that are timed together; a queue holds more.
const CALLS: usize = 100;
const SMALL_BYTES: usize = 4;

pub fn measure(rig: &Rig) -> Result<()> {
    let times = number("times", "1000");
    seen(rig, times)?;
    enqueued(rig, times.div_ceil(CALLS).max(3))
}

/// Measures the time from the beginning of a call until the host sees its effect.
fn seen(rig: &Rig, times: usize) -> Result<()> {
    let [go, done, ..] = rig.words()?;
    let (stream, event) = (rig.stream()?, rig.device.enter()?.event()?);
    let (host, memory) = (rig.pinned(SMALL_BYTES)?, rig.allocate(SMALL_BYTES)?);
    let current = rig.device.enter()?;
    let mut round = 0;
    let mut until_written = |before: &dyn Fn(&Current<'_>) -> Result<()>| {
        median_us(times, || {
            round += 1;
            let begin = Instant::now();
            before(&current)?;
            current.write(&stream, done.region(), round)?;
            done.spin(round);
            Ok(begin.elapsed())
        })
    };
    let down = |current: &Current<'_>| current.bring(&stream, whole(&memory), host.whole());
    let up = |current: &Current<'_>| current.take(&stream, host.whole(), whole(&memory));
    let write = until_written(&|_| Ok(()))?;
    rig.say("signal write", "until the host sees it", write, "us");
    let with = until_written(&down)?;
    rig.say("signal copy down", "4 bytes; then write", with, "us");
    let with = until_written(&up)?;
    rig.say("signal copy up", "4 bytes; then write", with, "us");
    let there_and_back = median_us(times, || {
        round += 1;
        current.wait(&stream, go.region(), round)?;
        current.write(&stream, done.region(), round)?;
        std::thread::sleep(SETTLE);
        let begin = Instant::now();
        go.store(round);
        done.spin(round);
        Ok(begin.elapsed())
    })?;
    let text = "store of the host; wait; write; seen";
    rig.say("signal wait and write", text, there_and_back, "us");
    let reached = median_us(times, || {
        let begin = Instant::now();
        current.record(&event, &stream)?;
        while !current.is_reached(&event)? {}
        Ok(begin.elapsed())
    })?;
    rig.say("signal event", "until a query sees it", reached, "us");
    Ok(())
}

/// Measures the cost of each kind of call to its caller, while the stream has room.
fn enqueued(rig: &Rig, times: usize) -> Result<()> {
    let bytes = number("bytes", "1M");
    let [word, ..] = rig.words()?;
    let (stream, event) = (rig.stream()?, rig.device.enter()?.event()?);
    let (host, memory) = (rig.pinned(bytes)?, rig.allocate(bytes)?);
    let current = rig.device.enter()?;
    let report = |name: &str, call: &dyn Fn() -> Result<()>| -> Result<()> {
        let taken = cost(rig, &stream, times, call)?;
        rig.say("enqueue", name, taken, "us");
        Ok(())
    };
    report("write", &|| current.write(&stream, word.region(), 1))?;
    report("wait for a word that is there", &|| {
        wait(&current, &stream, &word)
    })?;
    report("record", &|| current.record(&event, &stream))?;
    report("wait for an event", &|| {
        current.join(&event, program(&stream))
    })?;
    report(&format!("copy down {bytes}"), &|| {
        current.bring(&stream, whole(&memory), host.whole())
    })?;
    report(&format!("copy up {bytes}"), &|| {
        current.take(&stream, host.whole(), whole(&memory))
    })
}

fn wait(current: &Current<'_>, stream: &Stream, word: &Word) -> Result<()> {
    current.wait(stream, word.region(), 0)
}

/// Returns the microseconds of a call: the median over `times` rows of [`CALLS`] calls.
fn cost(rig: &Rig, stream: &Stream, times: usize, call: &dyn Fn() -> Result<()>) -> Result<f64> {
    let all = median_us(times, || {
        rig.finish(stream)?;
        let begin = Instant::now();
        (0..CALLS).try_for_each(|_| call())?;
        Ok(begin.elapsed())
    })?;
    rig.finish(stream)?;
    Ok(all / CALLS as f64)
}

/// Measures the time to pin, and to unpin, memory that is mapped and written.
pub fn register(rig: &Rig) -> Result<()> {
    let bytes = number("bytes", "64M");
    for _ in 0..number("times", "5") {
        let memory = rig.communicator.alloc(bytes)?;
        memory.region().touch();
        let region = memory.region();
        let (pin, pinned) = time(|| rig.device.enter()?.pin(region, Arc::new(memory)))?;
        let ((), unpinned) = time(|| pin.release())?;
        let setting = format!("bytes={bytes}");
        rig.say("pin memfd", &setting, us(pinned), "us");
        rig.say("unpin memfd", &setting, us(unpinned), "us");
    }
    Ok(())
}
