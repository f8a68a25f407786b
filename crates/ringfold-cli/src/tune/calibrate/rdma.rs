//! Costs of messages between two hosts that RDMA joins, by calls of a [`pair`](super::pair).
//!
//! Links are measured with registered memory, of which devices move every byte; the extra cost of
//! other memory is measured with a copy. The cost of registering is not measured here: each rank
//! measures that cost for its own device on joining a job.

use std::time::Instant;

use anyhow::Result;
use ringfold::Method;
use ringfold::internals::tune::RdmaCosts;

use super::links::ONE_WAY;
use super::pair::{Calls, ONE_PACKET, Pair, ROUNDS};

/// Bytes of a call whose messages need no grants; messages of `LONG` bytes need them.
const SHORT: usize = RdmaCosts::WHOLE_BYTES_MAX;
const LONG: usize = SHORT + 64;

/// Bytes to copy: more than a second-level cache holds, like the data of calls.
const COPIED_BYTES: usize = 1 << 20;

impl Pair<'_> {
    /// Measures the costs of messages; those on a core of both ranks are measured elsewhere.
    pub(super) fn measure_rdma(&self, reduce_us_per_byte: f64) -> Result<RdmaCosts> {
        let calls = Calls::registered(self, ONE_WAY[1])?;
        let (alpha_us, _) = self.single()?.latency_us();
        let overhead_us = (calls.hop_us(ONE_PACKET)? - alpha_us).max(0.0) / 2.0;
        // Both ranks post their receives when they send.
        let both = Method::RecursiveDoubling;
        let grant_us = calls.us(both, LONG)? - calls.us(both, SHORT)?;
        // A tree between two ranks has two hops in sequence, and combines once.
        let bytes_us = calls.us_per_byte(Method::Tree, ONE_WAY)? - reduce_us_per_byte;
        Ok(RdmaCosts {
            rdma_alpha_us: alpha_us,
            rdma_overhead_us: overhead_us,
            rdma_crowded_us: overhead_us,
            rdma_us_per_byte: bytes_us.max(0.0) / 2.0,
            rdma_grant_us: grant_us.max(0.0),
            staging_us_per_byte: staging(),
        })
    }
}

/// Returns the microseconds for copying a byte.
fn staging() -> f64 {
    let (from, mut to) = (vec![1u8; COPIED_BYTES], vec![0u8; COPIED_BYTES]);
    let times_us = (0..ROUNDS).map(|_| {
        let begun = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        begun.elapsed().as_secs_f64() * 1e6 / COPIED_BYTES as f64
    });
    // The minimum, because other work of the core only adds to the time.
    times_us.fold(f64::INFINITY, f64::min)
}
