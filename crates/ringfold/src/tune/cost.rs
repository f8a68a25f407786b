//! What a collective should cost by the closed forms that `ringfold schedule` prints: α, β and γ
//! (Hockney, 1994; Thakur, Rabenseifner & Gropp, 2005), with the overhead of further messages set
//! apart from the latency (Culler et al., LogP, 1993).
//!
//! An algorithm is priced by its [`Terms`] alone. Links are full duplex, each rank has one port,
//! and reductions do not overlap with messages. What this does not know: contention in the network,
//! the pipelining of slices (except where an algorithm lives from it: the ring's broadcast and
//! reduce), and more ranks than cores. So it compares algorithms on a simple machine; calls are
//! tuned by the [`model`](super::model), which prices the same terms on this one.

#![forbid(unsafe_code)]

pub mod weighted;

use super::terms::{Terms, is_chain};
use crate::schedule::Spec;

/// Most slices that [`predict`] assumes for a pipelined chain.
const SLICES_MAX: f64 = 64.0;

/// What a machine's messages, copies and reductions cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// α: from the sending of an empty message until it is received.
    pub alpha_us: f64,
    /// What a rank spends on each further message that is under way at the same time.
    pub overhead_us: f64,
    /// β: the inverse of a link's bandwidth.
    pub beta_us_per_byte: f64,
    /// γ: combining two operands.
    pub gamma_us_per_byte: f64,
    /// From a publication until a peer has seen it.
    pub hop_us: f64,
    /// Copying to or from published memory, on one core.
    pub copy_us_per_byte: f64,
    /// The same when all ranks of the host do it at once, for each rank: the inverse of the host's
    /// memory bandwidth.
    pub memory_us_per_byte: f64,
}

impl Default for Costs {
    /// A 100 Gbit/s network with TCP's latency, and a host that copies 10 GB/s on a core and 40
    /// GB/s on all.
    fn default() -> Costs {
        Costs {
            alpha_us: 5.0,
            overhead_us: 0.5,
            beta_us_per_byte: 8e-5,
            gamma_us_per_byte: 5e-5,
            hop_us: 0.3,
            copy_us_per_byte: 1e-4,
            memory_us_per_byte: 2.5e-5,
        }
    }
}

/// The time of one call in microseconds; `None` if there is no such schedule. `bytes` is the
/// collective's size.
pub fn predict(spec: &Spec, bytes: u64, costs: &Costs) -> Option<f64> {
    let terms = Terms::of(spec)?;
    let (size, n) = (bytes as f64, f64::from(spec.world_size));
    let Terms { hops, busiest, .. } = terms;
    if spec.access.is_shared() {
        let at_least = n * costs.memory_us_per_byte;
        let copy = costs.copy_us_per_byte.max(at_least);
        let gamma = costs.gamma_us_per_byte.max(at_least);
        let moving = busiest.bytes * copy + busiest.reduced * gamma;
        return Some(hops * costs.hop_us + size * moving);
    }
    if is_chain(spec.collective, spec.method()) && spec.world_size > 1 {
        let reduces = f64::from(u8::from(spec.collective.reduces()));
        let per_hop = size * (costs.beta_us_per_byte + reduces * costs.gamma_us_per_byte);
        let best = ((n - 2.0) * per_hop / costs.alpha_us).sqrt().round();
        let slices = best.clamp(1.0, SLICES_MAX);
        return Some((n - 2.0 + slices) * (costs.alpha_us + per_hop / slices));
    }
    let waiting = hops * costs.alpha_us + (busiest.messages - hops) * costs.overhead_us;
    let moving = busiest.bytes * costs.beta_us_per_byte + busiest.reduced * costs.gamma_us_per_byte;
    Some(waiting + size * moving)
}

#[cfg(test)]
mod tests;
