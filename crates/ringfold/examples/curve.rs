//! The effect of channels, chunks and helper threads on an all-reduce, and their cost in processor
//! time.
//!
//! `ringfold run -n 4 -- curve place=loopback transport=tcp algorithm=ring sizes=64K,1M
//! channels=1,2,4 rounds=40`
//!
//! Every variant is a communicator of its own, all of one job in one process, and the variants
//! alternate call by call: disturbances of the machine affect all of them, and no process is
//! compared with another. Rank 0 prints a line of CSV for each variant and size: the minimum and
//! the median time of a call, and the median of the processor time that all ranks together use in
//! it.

use std::time::{Duration, Instant};

use ringfold::env::init_logging;
use ringfold::internals::units::bytes;
use ringfold::{Communicator, Config, Method, Op, Result, TransportChoice};
use rustix::time::{ClockId, clock_gettime};

/// Calls of a turn, so that the clocks cost nothing.
const CALLS: u32 = 4;

/// One setting.
#[derive(Clone, Copy, Debug)]
struct Variant {
    channels: usize,
    chunk_bytes: usize,
    helpers: usize,
}

fn main() -> Result<()> {
    init_logging()?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str, default: &'static str| {
        let word = words
            .iter()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        word.map_or(default.to_owned(), str::to_owned)
    };
    let numbers = |text: String| -> Vec<usize> {
        let number = |word: &str| {
            if word == "0" {
                0
            } else {
                bytes(word).expect("a number")
            }
        };
        text.split(',').map(number).collect()
    };
    let (place, algorithm) = (value("place", "?"), value("algorithm", "tuner"));
    let rounds = numbers(value("rounds", "20"))[0];
    let mut ranks = Vec::new();
    for channels in numbers(value("channels", "1")) {
        for chunk_bytes in numbers(value("chunks", "0")) {
            for helpers in numbers(value("helpers", "0")) {
                let variant = Variant {
                    channels,
                    chunk_bytes,
                    helpers,
                };
                let communicator = Communicator::connect(Config {
                    address: address(ranks.len()),
                    transport: Some(value("transport", "auto").parse::<TransportChoice>()?),
                    algorithm: match algorithm.as_str() {
                        "tuner" => None,
                        name => Some(name.parse::<Method>()?),
                    },
                    channels: Some(channels),
                    chunk_bytes: Some(chunk_bytes).filter(|bytes| *bytes > 0),
                    helpers: Some(helpers),
                    ..Config::default()
                })?;
                ranks.push((variant, communicator));
            }
        }
    }
    let size = ranks[0].1.world_size();
    let is_first = ranks[0].1.rank() == 0;
    if is_first {
        println!(
            "place,ranks,algorithm,bytes,channels,chunk_bytes,helpers,rounds,min_us,median_us,\
             processor_us"
        );
    }
    for length in numbers(value("sizes", "64K,1M,16M")) {
        let input = vec![1f32; length / size_of::<f32>()];
        let mut output = input.clone();
        let mut times = vec![Vec::new(); ranks.len()];
        for round in 0..=rounds {
            for turn in 0..ranks.len() {
                let index = (turn + round) % ranks.len();
                let taken = take(&ranks[index].1, &input, &mut output)?;
                // The first round warms up.
                if round > 0 {
                    times[index].push(taken);
                }
            }
        }
        for ((variant, _), times) in ranks.iter().zip(&mut times).filter(|_| is_first) {
            let Variant {
                channels,
                chunk_bytes,
                helpers,
            } = variant;
            let (wall, processor): (Vec<f64>, Vec<f64>) = times.iter().copied().unzip();
            let (least, median) = (sorted(&wall)[0], sorted(&wall)[wall.len() / 2]);
            let processor = sorted(&processor)[wall.len() / 2];
            println!(
                "{place},{size},{algorithm},{length},{channels},{chunk_bytes},{helpers},{rounds},\
                 {least:.1},{median:.1},{processor:.1}"
            );
        }
    }
    ranks
        .iter()
        .try_for_each(|(_, communicator)| communicator.close())
}

/// The address of the variant with this number: next to the job's own.
fn address(index: usize) -> Option<String> {
    let job = std::env::var("RINGFOLD_ADDR").expect("RINGFOLD_ADDR, as `ringfold run` sets it");
    Some(match job.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => {
            format!(
                "{host}:{}",
                port.parse::<u16>().expect("a port") + index as u16
            )
        }
        _ => format!("{job}-{index}"),
    })
}

/// A turn: microseconds of a call on the slowest rank, and of all ranks' processors.
fn take(communicator: &Communicator, input: &[f32], output: &mut [f32]) -> Result<(f64, f64)> {
    communicator.barrier()?;
    let (begin, processor) = (Instant::now(), processor_time());
    for _ in 0..CALLS {
        communicator.all_reduce_into(input, output, Op::Sum)?;
    }
    let (wall, processor) = (begin.elapsed(), processor_time() - processor);
    let us = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(CALLS);
    let (mut slowest, mut all) = ([us(wall)], [us(processor)]);
    communicator.all_reduce(&mut slowest, Op::Max)?;
    communicator.all_reduce(&mut all, Op::Sum)?;
    Ok((slowest[0], all[0]))
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn sorted(times: &[f64]) -> Vec<f64> {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times
}
