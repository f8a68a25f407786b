//! Measures the time of a small all-reduce without reading the clock for each call.
//!
//! `ringfold run -n 2 -- small_calls 5000`
//!
//! Rank 0 prints the mean time of a call in each of 40 blocks, in nanoseconds; the argument is the
//! number of calls in a block. To compare two settings, alternate the runs: the time that a cache
//! line takes between two cores depends on the placement of the processes.

use std::time::Instant;

use ringfold::env::init_logging;
use ringfold::{Communicator, Op, Result};

const BLOCKS: usize = 40;

fn main() -> Result<()> {
    init_logging()?;
    let calls: u32 = match std::env::args().nth(1).map(|text| text.parse()) {
        None => 5000,
        Some(Ok(calls)) if calls > 0 => calls,
        Some(_) => {
            eprintln!("usage: small_calls [CALLS]");
            std::process::exit(2);
        }
    };
    let communicator = Communicator::init()?;
    let mut values = [0f32; 2];
    let mut means_ns = Vec::new();
    for _ in 0..BLOCKS {
        let begin = Instant::now();
        for _ in 0..calls {
            communicator.all_reduce(&mut values, Op::Max)?;
        }
        means_ns.push(begin.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    if communicator.rank() == 0 {
        let texts = means_ns.iter().map(|mean| format!("{mean:.2}"));
        println!("{}", texts.collect::<Vec<_>>().join(" "));
    }
    communicator.close()
}
