//! One rank of a job that is measured: every way in turn, at a few sizes of a few collectives.
//!
//! A call is timed as `ringfold perf` does it: every rank rewrites its input, all meet twice, and
//! the slowest rank's time counts. Ways take turns in an order that changes from round to round, so
//! that what one leaves in the caches is no other's advantage.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ringfold::Region;
use ringfold::internals::random::SplitMix64;
use ringfold::internals::tune::calibration::Context;
use ringfold::internals::tune::fit::calibrate::Sample;
use ringfold::{Collective, Communicator, Config, Counts, DType, Method, Op, Protocol, Request};

/// Sizes of the collective that matters most, and of the others, in bytes.
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

/// What is called.
const COLLECTIVES: [Collective; 6] = [
    Collective::AllReduce,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
];

/// Rounds of all ways at a size: at least, at most, and how long a round may still begin in
/// between.
const ROUNDS_MIN: usize = 5;
const ROUNDS_MAX: usize = 50;
const SIZE_BUDGET: Duration = Duration::from_millis(100);

/// Bytes of a cache line, or fewer.
const LINE_BYTES: usize = 64;

/// A way at a size, and the times that it took.
struct Entry {
    way: (Method, Protocol),
    times_us: Vec<f64>,
}

/// Takes part; rank 0 writes the medians to `path`.
pub fn run(path: &Path) -> Result<u8> {
    ringfold::env::init_logging()?;
    let communicator = Communicator::connect(Config::default())?;
    let mut file = match communicator.rank() {
        0 => {
            let file = std::fs::File::create(path);
            Some(BufWriter::new(file.with_context(|| {
                format!("cannot write `{}`", path.display())
            })?))
        }
        _ => None,
    };
    for collective in COLLECTIVES {
        let sizes = match collective {
            Collective::AllReduce => &MANY_SIZES[..],
            _ => &FEW_SIZES,
        };
        for &bytes in sizes {
            for entry in measure(&communicator, collective, bytes)? {
                if let Some(file) = &mut file {
                    let (algorithm, protocol) = entry.way;
                    let time_us = median(entry.times_us);
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

/// A line that rank 0 has written.
pub fn parse(line: &str, context: Context) -> Result<Sample> {
    let mut words = line.split(' ');
    let mut next = || words.next().unwrap_or_default();
    let words = [next(), next(), next(), next(), next()];
    Ok(Sample {
        context,
        collective: words[0].parse()?,
        bytes: words[1].parse()?,
        way: (words[2].parse()?, words[3].parse()?),
        time_us: words[4].parse()?,
    })
}

/// The times of all ways at a size.
fn measure(communicator: &Communicator, collective: Collective, bytes: u64) -> Result<Vec<Entry>> {
    let ranks = communicator.world_size();
    let elements = bytes as usize / size_of::<f32>();
    let block = elements / ranks;
    // Not zeros, of which the system would give no pages yet.
    let buffer = || vec![1f32; elements.max(ranks)];
    let (mut input, mut output) = (buffer(), buffer());
    let (count, given, got) = match collective {
        Collective::AllGather => (block, block, block * ranks),
        Collective::ReduceScatter => (block, block * ranks, block),
        Collective::AllToAll => (block, block * ranks, block * ranks),
        _ => (elements, elements, elements),
    };
    let request = |input: &mut [f32], output: &mut [f32]| {
        let region = |part: &mut [f32]| {
            let (start, bytes) = (part.as_mut_ptr().cast(), size_of_val(part));
            // SAFETY: the slices outlive the call that is made with the request, and are not used
            // otherwise meanwhile.
            unsafe { Region::new(start, bytes) }
        };
        let (input, output) = (region(&mut input[..given]), region(&mut output[..got]));
        Request::new(
            collective,
            DType::F32,
            Counts::Even(count as u64),
            input,
            output,
        )
    };
    let explanation = communicator.explain(&request(&mut input, &mut output))?;
    let mut entries: Vec<Entry> = explanation
        .prices
        .usable()
        .map(|(way, _)| Entry {
            way,
            times_us: Vec::new(),
        })
        .collect();
    let mut random = SplitMix64(bytes);
    let start = Instant::now();
    for round in 0..=ROUNDS_MAX {
        let mut order: Vec<usize> = (0..entries.len()).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        let mut times_us = vec![0.0; entries.len()];
        for &index in &order {
            for line in input.chunks_mut(LINE_BYTES / size_of::<f32>()) {
                line[0] = 0.0;
            }
            // The first finds ranks asleep that waited for the slowest writer; after the second all
            // are awake.
            communicator.barrier()?;
            communicator.barrier()?;
            let (algorithm, protocol) = entries[index].way;
            let mut request = request(&mut input, &mut output);
            (request.algorithm, request.protocol) = (Some(algorithm), Some(protocol));
            let begun = Instant::now();
            // SAFETY: the regions' vectors live in this scope.
            unsafe { communicator.run(&request, &mut || Ok(())) }?;
            times_us[index] = begun.elapsed().as_secs_f64() * 1e6;
        }
        // One more number: how long this rank has been at it, so that all end together.
        times_us.push(start.elapsed().as_secs_f64());
        communicator.all_reduce(&mut times_us, Op::Max)?;
        let elapsed_s = times_us.pop().unwrap_or_default();
        // The first round makes plans.
        if round > 0 {
            for (entry, time_us) in entries.iter_mut().zip(&times_us) {
                entry.times_us.push(*time_us);
            }
        }
        if round >= ROUNDS_MIN && elapsed_s > SIZE_BUDGET.as_secs_f64() {
            break;
        }
    }
    Ok(entries)
}

fn median(mut times_us: Vec<f64>) -> f64 {
    times_us.sort_by(f64::total_cmp);
    times_us.get(times_us.len() / 2).copied().unwrap_or(0.0)
}
