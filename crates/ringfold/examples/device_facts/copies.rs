//! Measures the rates of copies in one direction and in both, on all ranks at once.

use std::time::{Duration, Instant};

use ringfold::Result;
use ringfold::internals::device::{DeviceMemory, Pin, Stream};

use crate::rig::{Rig, number, numbers, whole};

/// Returns the rate in GB/s: bytes per nanosecond are 10⁹ bytes per second.
fn gbps(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_nanos() as f64
}

pub fn measure(rig: &Rig) -> Result<()> {
    let sizes = numbers("sizes", "64K,256K,1M,4M,16M,64M");
    let total = number("total", "256M");
    let longest = sizes.iter().copied().max().unwrap_or(total);
    let sides = [Side::new(rig, longest)?, Side::new(rig, longest)?];
    // Warms up: the first copies of a context are slow.
    run(rig, &sides, [true; 2], longest, longest)?;
    for bytes in sizes {
        let copied = (total / bytes).max(1) * bytes;
        let ranks = rig.communicator.world_size();
        let setting = format!("bytes={bytes} processes={ranks}");
        let say = |name: &str, time: Duration| -> Result<()> {
            let slowest = rig.most(time.as_secs_f64())?;
            let rate = gbps(ranks * copied, Duration::from_secs_f64(slowest));
            rig.say(&format!("copies {name}"), &setting, rate, "GB/s");
            Ok(())
        };
        for (name, directions) in [("down", [true, false]), ("up", [false, true])] {
            let times = run(rig, &sides, directions, copied, bytes)?;
            say(name, times[usize::from(directions[1])])?;
        }
        let times = run(rig, &sides, [true; 2], copied, bytes)?;
        say("down beside up", times[0])?;
        say("up beside down", times[1])?;
        say("duplex", times[0].max(times[1]))?;
    }
    Ok(())
}

/// The stream and the memory of one direction's copies.
struct Side {
    stream: Stream,
    host: Pin,
    memory: DeviceMemory,
}

impl Side {
    fn new(rig: &Rig, bytes: usize) -> Result<Side> {
        Ok(Side {
            stream: rig.stream()?,
            host: rig.pinned(bytes)?,
            memory: rig.allocate(bytes)?,
        })
    }
}

/// Copies `copied` bytes in pieces of `bytes` in each direction that `directions` selects; returns
/// the time until each of them is done. All ranks begin together.
fn run(
    rig: &Rig,
    sides: &[Side; 2],
    directions: [bool; 2],
    copied: usize,
    bytes: usize,
) -> Result<[Duration; 2]> {
    let current = rig.device.enter()?;
    let [down, up] = sides;
    rig.communicator.barrier()?;
    let begin = Instant::now();
    for _ in 0..copied / bytes {
        if directions[0] {
            let from = whole(&down.memory).part(0..bytes);
            current.bring(&down.stream, from, down.host.whole().part(0..bytes))?;
        }
        if directions[1] {
            let into = whole(&up.memory).part(0..bytes);
            current.take(&up.stream, up.host.whole().part(0..bytes), into)?;
        }
    }
    let mut ends = [None; 2];
    while ends.contains(&None) {
        for (end, side) in ends.iter_mut().zip(sides) {
            if end.is_none() && current.is_idle(&side.stream)? {
                *end = Some(begin.elapsed());
            }
        }
        std::thread::yield_now();
    }
    Ok(ends.map(Option::unwrap_or_default))
}
