//! What messages cost between two hosts that RDMA joins, by calls of a [`pair`](super::pair).
//!
//! Links are measured with registered memory, of which devices move every byte, and what other
//! memory costs more with a copy. What registering costs is not measured here: each rank does so
//! when it joins a job, for its own device.

use std::time::Instant;

use anyhow::Result;
use ringfold::Method;
use ringfold::internals::tune::RdmaCosts;

use super::links::ONE_WAY;
use super::pair::{Calls, ONE_PACKET, Pair, ROUNDS};

/// The sizes of two calls, of which the larger one's messages need grants.
const SHORT: usize = RdmaCosts::WHOLE_BYTES_MAX;
const LONG: usize = SHORT + 64;

/// What is copied: more than a second cache holds, as calls have it there before.
const COPIED_BYTES: usize = 1 << 20;

impl Pair<'_> {
    /// What messages cost. On a core of both is another matter.
    pub(super) fn measure_rdma(&self, reduce_us_per_byte: f64) -> Result<RdmaCosts> {
        let calls = Calls::registered(self, ONE_WAY[1])?;
        let (alpha_us, _) = self.single()?.latency_us();
        let overhead_us = (calls.hop_us(ONE_PACKET)? - alpha_us).max(0.0) / 2.0;
        // Both ranks post their receives when they send.
        let both = Method::RecursiveDoubling;
        let grant_us = calls.us(both, LONG)? - calls.us(both, SHORT)?;
        // A tree between two ranks has one hop after another, and combines once.
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

/// What copying a byte takes.
fn staging() -> f64 {
    let (from, mut to) = (vec![1u8; COPIED_BYTES], vec![0u8; COPIED_BYTES]);
    let times_us = (0..ROUNDS).map(|_| {
        let begun = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        begun.elapsed().as_secs_f64() * 1e6 / COPIED_BYTES as f64
    });
    // What else the core does only adds to it.
    times_us.fold(f64::INFINITY, f64::min)
}
