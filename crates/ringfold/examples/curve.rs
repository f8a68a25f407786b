//! Measures how channels, chunk size and helper threads affect the time and the processor time of
//! an all-reduce.
//!
//! `ringfold run -n 4 -- curve place=loopback transport=tcp algorithm=ring sizes=64K,1M
//! channels=1,2,4 rounds=40`
//!
//! Every variant has its own communicator. All communicators are of one job and in the same
//! processes, and the variants take turns: disturbances of the machine affect all of them, and no
//! process is compared with another. Rank 0 prints a line of CSV for each variant and size: the
//! minimum and the median time of a call, and the median of the processor time that all ranks
//! together use in a call.

use std::time::{Duration, Instant};

use ringfold::env::init_logging;
use ringfold::internals::tune::Rules;
use ringfold::internals::units::bytes;
use ringfold::{Communicator, Config, Op, Result, TransportChoice};
use rustix::time::{ClockId, clock_gettime};

/// Number of calls in a turn, which makes the cost of reading the clocks negligible.
const CALLS: u32 = 4;

/// A combination of settings.
#[derive(Clone, Copy, Debug)]
struct Variant {
    channels: usize,
    chunk_bytes: usize,
    helpers: usize,
}

impl Variant {
    /// Returns the configuration of communicator `index`. A rule fixes the number of channels of an
    /// algorithm; otherwise, `channels` is the maximum.
    fn config(&self, index: usize) -> Result<Config> {
        let algorithm = value("algorithm", "tuner");
        let rules = match algorithm.as_str() {
            "tuner" => String::new(),
            name => format!("all_reduce,0,-1,{name},simple,{},-1,-1", self.channels),
        };
        let ranks = value_of("RINGFOLD_WORLD_SIZE").parse::<usize>();
        // The algorithms over messages divide a slice into a chunk for each rank and channel.
        let chunks = ranks.expect("a number of ranks") * self.channels;
        Ok(Config {
            address: Some(address(index)),
            transport: Some(value("transport", "auto").parse::<TransportChoice>()?),
            tuner_rules: Some(Rules::parse(&rules, "algorithm")?),
            max_channels: Some(self.channels),
            slice_bytes: Some(self.chunk_bytes * chunks).filter(|bytes| *bytes > 0),
            helpers: Some(self.helpers),
            ..Config::default()
        })
    }
}

/// Each variant with its communicator.
type Ranks = Vec<(Variant, Communicator)>;

fn main() -> Result<()> {
    init_logging()?;
    let ranks = connect()?;
    let is_first = ranks[0].1.rank() == 0;
    if is_first {
        println!(
            "place,ranks,algorithm,bytes,channels,chunk_bytes,helpers,rounds,min_us,median_us,\
             processor_us"
        );
    }
    let rounds = numbers("rounds", "20")[0];
    for length in numbers("sizes", "64K,1M,16M") {
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
        if is_first {
            print(&ranks, length, &times);
        }
    }
    ranks
        .iter()
        .try_for_each(|(_, communicator)| communicator.close())
}

/// Returns the value of the argument `name=value`, or `default`.
fn value(name: &str, default: &str) -> String {
    let mut words = std::env::args().skip(1);
    let word = words.find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned()));
    word.unwrap_or_else(|| default.to_owned())
}

/// Returns the numbers of the argument `name=number,number`, or of `default`.
fn numbers(name: &str, default: &str) -> Vec<usize> {
    let number = |word: &str| match word {
        "0" => 0,
        word => bytes(word).expect("a number"),
    };
    value(name, default).split(',').map(number).collect()
}

/// Joins the job once for every variant.
fn connect() -> Result<Ranks> {
    let mut ranks = Ranks::new();
    for channels in numbers("channels", "1") {
        for chunk_bytes in numbers("chunks", "0") {
            for helpers in numbers("helpers", "0") {
                let variant = Variant {
                    channels,
                    chunk_bytes,
                    helpers,
                };
                let communicator = Communicator::connect(variant.config(ranks.len())?)?;
                ranks.push((variant, communicator));
            }
        }
    }
    Ok(ranks)
}

/// Prints a line for each variant: its times for one size.
fn print(ranks: &Ranks, length: usize, times: &[Vec<(f64, f64)>]) {
    let (place, algorithm) = (value("place", "?"), value("algorithm", "tuner"));
    for ((variant, communicator), times) in ranks.iter().zip(times) {
        let Variant {
            channels,
            chunk_bytes,
            helpers,
        } = variant;
        let (size, rounds) = (communicator.world_size(), times.len());
        let (wall, processor): (Vec<f64>, Vec<f64>) = times.iter().copied().unzip();
        let (least, median) = (sorted(&wall)[0], sorted(&wall)[rounds / 2]);
        let processor = sorted(&processor)[rounds / 2];
        println!(
            "{place},{size},{algorithm},{length},{channels},{chunk_bytes},{helpers},{rounds},\
             {least:.1},{median:.1},{processor:.1}"
        );
    }
}

/// Returns the address of variant `index`, derived from the job's own.
fn address(index: usize) -> String {
    let job = value_of("RINGFOLD_ADDR");
    match job.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => {
            format!(
                "{host}:{}",
                port.parse::<u16>().expect("a port") + index as u16
            )
        }
        _ => format!("{job}-{index}"),
    }
}

/// Returns the variable `name`, as `ringfold run` sets it.
fn value_of(name: &str) -> String {
    std::env::var(name).expect(name)
}

/// Runs a turn. Returns the time of a call on the slowest rank, and the processor time of a call on
/// all ranks together, in microseconds.
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
