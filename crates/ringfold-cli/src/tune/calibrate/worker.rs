//! One rank of a measured job: every way in turn, at a few sizes of a few collectives.
//!
//! A call is timed as in `ringfold perf`: every rank rewrites its input, two barriers follow, and
//! the slowest rank's time counts. The order of ways changes from round to round, so that the cache
//! contents that one way leaves do not favour another.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ringfold::internals::random::SplitMix64;
use ringfold::internals::tune::calibration::CalibrationContext;
use ringfold::internals::tune::fit::calibrate::Sample;
use ringfold::{Collective, Communicator, Config, DType, Method, Op, Protocol};

use crate::bench::memory::{Memory, carry_out};
use crate::bench::placement::Placement;
use crate::bench::{Case, Size, shuffled_order};
use crate::output;
use crate::statistics::median;

/// Sizes of the collective that matters most, in bytes; `FEW_SIZES` are those of the others.
const MANY_SIZES: [u64; 9] = [
    8,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
];
const FEW_SIZES: [u64; 4] = [1 << 10, 32 << 10, 512 << 10, 4 << 20];

/// The collectives to measure.
const COLLECTIVES: [Collective; 6] = [
    Collective::AllReduce,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
];

/// Minimum number of rounds of all ways at a size; further rounds begin within `SIZE_BUDGET`, up to
/// `ROUNDS_MAX` in all.
const ROUNDS_MIN: usize = 5;
const ROUNDS_MAX: usize = 50;
const SIZE_BUDGET: Duration = Duration::from_millis(100);

/// A way at a size, and its times.
type TimedWay = ((Method, Protocol), Vec<f64>);

/// Takes part in the job; rank 0 writes the medians to `path`.
pub fn run(path: &Path) -> Result<u8> {
    ringfold::env::init_logging()?;
    let communicator = Communicator::connect(Config::default())?;
    let mut file = match communicator.rank() {
        0 => Some(BufWriter::new(output::open(path)?)),
        _ => None,
    };
    for collective in COLLECTIVES {
        let sizes = match collective {
            Collective::AllReduce => &MANY_SIZES[..],
            _ => &FEW_SIZES,
        };
        for &bytes in sizes {
            for ((algorithm, protocol), times_us) in measure(&communicator, collective, bytes)? {
                if let Some(file) = &mut file {
                    let time_us = median(&times_us);
                    writeln!(
                        file,
                        "{collective} {bytes} {algorithm} {protocol} {time_us}"
                    )?;
                }
            }
        }
    }
    if let Some(mut file) = file {
        file.flush()?;
    }
    communicator.close()?;
    Ok(0)
}

/// Parses a line that rank 0 has written.
pub fn parse(line: &str, context: CalibrationContext) -> Result<Sample> {
    let words: Vec<&str> = line.split(' ').collect();
    let [collective, bytes, algorithm, protocol, time_us] = words[..] else {
        bail!("invalid measurement `{line}`");
    };
    Ok(Sample {
        context,
        collective: collective.parse()?,
        bytes: bytes.parse()?,
        way: (algorithm.parse()?, protocol.parse()?),
        time_us: time_us.parse()?,
    })
}

/// Returns the times of all ways at a size.
fn measure(
    communicator: &Communicator,
    collective: Collective,
    bytes: u64,
) -> Result<Vec<TimedWay>> {
    let place = (communicator.rank(), communicator.world_size());
    let case = Case {
        dtype: DType::F32,
        op: collective.reduces().then_some("sum"),
        root: collective.has_root().then_some(0),
    };
    let size = Size::nearest(collective, case.dtype, place.1, bytes);
    let room = usize::try_from(size.bytes)?;
    let memory = [Memory::new(room)?, Memory::new(room)?];
    let regions = [memory[0].region(room), memory[1].region(room)];
    let placement = Placement::new(collective, case, place, size, false, regions)
        .context("the collective has no out-of-place form")?;
    let explanation = communicator.explain(&placement.request())?;
    let ways = explanation.prices.usable();
    let mut entries: Vec<TimedWay> = ways.map(|(way, _)| (way, Vec::new())).collect();
    let time_us = |(algorithm, protocol)| -> Result<f64> {
        placement.rewrite();
        // At the first barrier, ranks may be asleep that waited for the slowest writer; after the
        // second, all are awake.
        communicator.barrier()?;
        communicator.barrier()?;
        let mut request = placement.request();
        (request.options.algorithm, request.options.protocol) = (Some(algorithm), Some(protocol));
        let begun = Instant::now();
        carry_out(communicator, &request, &[&memory[0], &memory[1]])?;
        Ok(begun.elapsed().as_secs_f64() * 1e6)
    };
    let mut random = SplitMix64(bytes);
    let start = Instant::now();
    for round in 0..=ROUNDS_MAX {
        let mut times_us = vec![0.0; entries.len()];
        for index in shuffled_order(entries.len(), &mut random) {
            times_us[index] = time_us(entries[index].0)?;
        }
        // The ranks also combine their elapsed times, so that all end with the same round.
        times_us.push(start.elapsed().as_secs_f64());
        communicator.all_reduce(&mut times_us, Op::Max)?;
        let elapsed_s = times_us.pop().unwrap_or_default();
        // The first round creates plans.
        if round > 0 {
            for ((_, known), time_us) in entries.iter_mut().zip(times_us) {
                known.push(time_us);
            }
        }
        if round >= ROUNDS_MIN && elapsed_s > SIZE_BUDGET.as_secs_f64() {
            break;
        }
    }
    Ok(entries)
}
