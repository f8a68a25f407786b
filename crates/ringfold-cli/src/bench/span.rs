//! The sizes of a sweep.

use anyhow::{Result, bail};
use ringfold::Collective;

use crate::parse::parse_bytes;

/// The default smallest size of a sweep.
const DEFAULT_MIN_BYTES: u64 = 8;

/// The default largest size of a sweep.
const DEFAULT_MAX_BYTES: u64 = 64 << 20;

/// Maximum number of sizes of one sweep: more is a mistyped step.
const MAX_SIZES: usize = 1 << 16;

/// The smallest size, the largest size, and the step between sizes.
#[derive(clap::Args, Clone, Debug)]
pub struct SizeSpan {
    /// Smallest size [default: 8]
    #[arg(short = 'b', long, value_name = "BYTES", value_parser = parse_bytes)]
    pub minbytes: Option<u64>,

    /// Largest size [default: 64M]
    #[arg(short = 'e', long, value_name = "BYTES", value_parser = parse_bytes)]
    pub maxbytes: Option<u64>,

    /// Increment from one size to the next
    #[arg(
        short = 'i',
        long,
        value_name = "BYTES",
        value_parser = parse_bytes,
        conflicts_with = "stepfactor",
    )]
    pub stepbytes: Option<u64>,

    /// Factor from one size to the next [default: 2]
    #[arg(
        short = 'f',
        long,
        value_name = "FACTOR",
        value_parser = clap::value_parser!(u64).range(2..),
    )]
    pub stepfactor: Option<u64>,
}

impl SizeSpan {
    /// Returns the requested sizes, in bytes. If sizes are multiplied, a size of 0 is followed by
    /// one of `element_bytes`.
    pub fn sizes(&self, collective: Collective, element_bytes: u64) -> Result<Vec<u64>> {
        let (min, max) = self.bounds(collective);
        if min > max {
            bail!("the smallest size, {min} bytes, is above the largest, {max} bytes");
        }
        if self.stepbytes == Some(0) && min < max {
            bail!("`--stepbytes 0` never reaches {max} bytes from {min}");
        }
        let mut sizes = Vec::new();
        let mut next = Some(min);
        while let Some(size) = next.filter(|&size| size <= max) {
            if sizes.len() == MAX_SIZES {
                bail!("more than {MAX_SIZES} sizes; choose a larger step");
            }
            sizes.push(size);
            next = match (self.stepbytes, size) {
                (Some(0), _) => None,
                (Some(step), _) => size.checked_add(step),
                (None, 0) => Some(element_bytes.max(1)),
                (None, _) => size.checked_mul(self.stepfactor.unwrap_or(2)),
            };
        }
        Ok(sizes)
    }

    /// Returns the smallest and the largest size requested; steps need not reach the largest.
    pub fn bounds(&self, collective: Collective) -> (u64, u64) {
        if collective == Collective::Barrier {
            return (0, 0);
        }
        let min = self
            .minbytes
            .unwrap_or_else(|| DEFAULT_MIN_BYTES.min(self.maxbytes.unwrap_or(u64::MAX)));
        (min, self.maxbytes.unwrap_or(DEFAULT_MAX_BYTES.max(min)))
    }
}
