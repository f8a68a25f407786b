//! The cost of a collective by the closed forms that `ringfold schedule` prints: α, β and γ
//! (Hockney, 1994; Thakur, Rabenseifner & Gropp, 2005), with the overhead of further messages
//! separate from the latency (Culler et al., LogP, 1993).
//!
//! An algorithm is priced by its [`CostTerms`] alone. Links are full duplex, each rank has one
//! port, and reductions do not overlap with messages. The forms omit contention in the network, the
//! pipelining of slices (except in the ring's broadcast and reduce, which depend on it), and more
//! ranks than cores. So the forms compare algorithms on a simple machine. Calls are tuned by the
//! [`model`](super::model), which prices the same terms on the actual machine.

#![forbid(unsafe_code)]

pub mod weighted;

use super::terms::{CostTerms, is_chain};
use crate::schedule::Spec;

/// Maximum number of slices that [`predict`] assumes for a pipelined chain.
const SLICES_MAX: f64 = 64.0;

/// Costs of messages, copies and reductions on a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// α: time of an empty message, from send to receive.
    pub alpha_us: f64,
    /// Time that a rank spends on each further message in flight at the same time.
    pub overhead_us: f64,
    /// β: the inverse of a link's bandwidth.
    pub beta_us_per_byte: f64,
    /// γ: time of reducing a byte of two operands.
    pub gamma_us_per_byte: f64,
    /// Time from a publication until a peer sees it.
    pub hop_us: f64,
    /// Cost of copying a byte to or from published memory, on one core.
    pub copy_us_per_byte: f64,
    /// Minimum cost of a copied or reduced byte, for each rank of the host that does so at the same
    /// time: the inverse of the host's memory bandwidth.
    pub memory_us_per_byte: f64,
}

impl Default for Costs {
    /// Returns the costs of a 100 Gbit/s network with TCP's latency, and of a host that copies 10
    /// GB/s on one core and 40 GB/s on all.
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

/// Returns the time of one call in microseconds; `None` if no such schedule exists. `bytes` is the
/// collective's size.
pub fn predict(spec: &Spec, bytes: u64, costs: &Costs) -> Option<f64> {
    let terms = CostTerms::of(spec)?;
    let (size, n) = (bytes as f64, f64::from(spec.world_size));
    let CostTerms { hops, busiest, .. } = terms;
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
