//! Checks that data has arrived when a word says so. In each round the device waits for a word of
//! the host, copies new contents up and down again, and then writes a word for the host.

use std::time::Instant;

use ringfold::Result;

use crate::rig::{Rig, number, whole};

/// Number of rounds in progress at the same time.
const DEPTH: usize = 64;

pub fn measure(rig: &Rig) -> Result<()> {
    let (rounds, bytes) = (number("rounds", "1000000"), number("bytes", "4096"));
    let [go, done, ..] = rig.words()?;
    let (from, into) = (rig.pinned(DEPTH * bytes)?, rig.pinned(DEPTH * bytes)?);
    let (memory, stream) = (rig.allocate(DEPTH * bytes)?, rig.stream()?);
    let current = rig.device.enter()?;
    let place = |round: usize| {
        let slot = round % DEPTH;
        slot * bytes..(slot + 1) * bytes
    };
    let mut found = vec![0; bytes];
    let (mut stale, begin) = (0, Instant::now());
    for round in 0..rounds + DEPTH {
        if let Some(over) = round.checked_sub(DEPTH) {
            done.spin(over as u32 + 1);
            into.whole().part(place(over)).region().read(&mut found);
            stale += usize::from(found != contents(over, bytes));
        }
        if round < rounds {
            let due = round as u32 + 1;
            let on_device = whole(&memory).part(place(round));
            current.wait(&stream, go.region(), due)?;
            current.take(&stream, from.whole().part(place(round)), on_device)?;
            current.bring(&stream, on_device, into.whole().part(place(round)))?;
            current.write(&stream, done.region(), due)?;
            let slot = from.whole().part(place(round)).region();
            slot.write(&contents(round, bytes));
            go.store(due);
        }
    }
    let taken = begin.elapsed().as_secs_f64();
    let all = rig.sum(stale as f64)?;
    let setting = format!("bytes={bytes} rounds={rounds}");
    rig.say("stale rounds", &setting, all, "rounds");
    rig.say("round", &setting, taken * 1e6 / rounds as f64, "us");
    Ok(())
}

/// Returns the contents of a round: the round's number, mixed with the index of each word.
fn contents(round: usize, bytes: usize) -> Vec<u8> {
    let word = |index: usize| (round as u32).wrapping_mul(0x9e37_79b9) ^ index as u32;
    let words = (0..bytes.div_ceil(4)).flat_map(|index| word(index).to_ne_bytes());
    words.take(bytes).collect()
}
