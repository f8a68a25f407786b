//! Each rank's share of large all-reduces, by weights that are set, or measured by all ranks
//! together.
//!
//! The weights of a communicator change only with an agreed epoch: all ranks call
//! [`Communicator::set_weights`] or [`Communicator::rebalance`] at the same place in their order of
//! calls. The current weights are part of every weighted call. So a rank that has other weights, or
//! has them earlier, gets an `Error::Mismatch` and never a wrong sum.
//!
//! The measurement: pairs of ranks exchange messages in both directions, each pair separately, in
//! rounds in which every rank has a different partner. A pair is as fast as its slower rank, so a
//! rank is as fast as its fastest pair. Each rank also times its own additions. All times are
//! shared with all ranks, and the same pure functions compute weights from them
//! ([`tune::weights`](crate::tune::weights)). The weights are then tried, and stay only if calls
//! with them are faster than calls without. The speeds alone do not show that, because calls
//! without weights may use another path (published memory).

use std::time::Instant;

use super::{Communicator, Counts, Request, Target};
use crate::error::{Error, Result};
use crate::memory::{Owned, Region};
use crate::reduce::ReductionKernel;
use crate::schedule::Weighting;
use crate::tune::cost::weighted::RankSpeed;
use crate::tune::fit::Pairs;
use crate::tune::weights;
use crate::types::{Collective, DType, Op};

/// The maximum number of rounds of pairs: this many partners show the speed of a rank unless all of
/// them are slow.
const ROUNDS_MAX: usize = 8;

/// Bytes of the first exchange.
const BYTES_MIN: usize = 256 << 10;

/// Factor by which the exchange grows.
const GROWTH: usize = 4;

/// Time of the slowest exchange at which the growth stops: short bursts pass where a long stream
/// does not.
const LONG_ENOUGH_MS: f64 = 20.0;

/// Maximum bytes of an exchange.
const BYTES_MAX: usize = 16 << 20;

/// Number of times that the last size is measured. A rank is slow only if it was slow each time.
const REPEATS: usize = 5;

/// Number of pairs of calls, with and without weights, by which weights are tried.
const TRIALS: usize = 5;

/// Bytes of each operand that a rank times: larger than a second-level cache, as in large calls.
const REDUCED_BYTES: usize = 4 << 20;

/// The tag of the exchanged messages.
const TAG: u32 = 0xffff_5772;

impl Communicator {
    /// Assigns rank `i` `weights[i]` parts of the sum of all weights in large all-reduces from now
    /// on; `None` resets the weights.
    ///
    /// All-reduces of more than 32 KiB over messages for which no other algorithm was requested
    /// then use `direct`. If all ranks share a host, so do those larger than the tiny path takes;
    /// published memory is not used then. Each rank receives, reduces and sends out its own part. A
    /// rank that owns nothing sends its vector once and receives the result once, concurrently: the
    /// minimum for a rank with a slow link. Results are exact and the same bits on all ranks; when
    /// `weights` change, the bits of a sum of floats may change.
    ///
    /// Every rank calls this with the same weights at the same place in its order of calls. The
    /// call does not communicate and does not block. Ranks that disagree get an `Error::Mismatch`
    /// in the next all-reduce of such a size.
    ///
    /// # Errors
    /// `InvalidArgument` if there is not one weight for each rank, or all are 0. Then nothing has
    /// changed.
    pub fn set_weights(&self, weights: Option<&[u32]>) -> Result<()> {
        self.check_open()?;
        if let Some(each) = weights.filter(|each| each.len() != self.place.world_size) {
            return Err(Error::InvalidArgument(format!(
                "{} weights for {} ranks",
                each.len(),
                self.place.world_size
            )));
        }
        self.weights.set(weights)?;
        log::info!(
            target: "ringfold::tuning",
            "rank {}: large all-reduces are divided {}",
            self.place.rank,
            weights.map_or("evenly".into(), |each| format!("by the weights {each:?}"))
        );
        Ok(())
    }

    /// Returns the current weights, by rank; `None` if all are equal.
    pub fn weights(&self) -> Option<Vec<u32>> {
        self.weights
            .weights()
            .map(|weights| weights.each().to_vec())
    }

    /// Measures how fast each rank sends, receives and reduces. Sets the weights with which the
    /// slowest rank finishes earliest, or none if they gain less than a tenth, and returns them.
    /// For ranks that stay slow (a link at a fraction of its rate, a core that others use); the
    /// caller decides when to measure again.
    ///
    /// A rank counts as slow if it was slow in each of several rounds. Weights are tried before
    /// they are kept: calls with and without them alternate, and those with weights must be faster
    /// every time.
    ///
    /// Collective, and blocks like a call. Pairs of ranks exchange up to 16 MiB: some milliseconds
    /// on fast links, and about a second for each of the at most eight rounds on links of 100
    /// Mbit/s. The trial takes as long again. No other call of this communicator may be in
    /// progress. Safe from any thread.
    ///
    /// # Errors
    /// The errors of any call.
    pub fn rebalance(&self) -> Result<Option<Vec<u32>>> {
        self.check_open()?;
        let (paces, bytes) = self.measure()?;
        for (rank, pace) in paces.iter().enumerate() {
            log::info!(
                target: "ringfold::tuning",
                "rank {rank} takes {:.0} ps to exchange a byte and {:.0} ps to combine one",
                pace.link_ps,
                pace.reduce_ps
            );
        }
        let mut weights = weights::balance(&paces);
        if let Some(each) = &weights
            && !self.is_quicker_by(each, bytes)?
        {
            weights = None;
        }
        self.set_weights(weights.as_deref())?;
        Ok(weights)
    }

    /// Whether sums of `bytes` bytes are faster with these weights than without: the same on all
    /// ranks.
    fn is_quicker_by(&self, each: &[u32], bytes: usize) -> Result<bool> {
        let mut vector = vec![0.0f32; bytes / size_of::<f32>()];
        let mut time_ms = |weights| -> Result<f64> {
            self.weights.set(weights)?;
            self.barrier()?;
            let begun = Instant::now();
            self.all_reduce(&mut vector, Op::Sum)?;
            Ok(begun.elapsed().as_secs_f64() * 1e3)
        };
        // The first calls of their kind make plans and connections.
        time_ms(None)?;
        time_ms(Some(each))?;
        let mut times_ms = [0.0; 2 * TRIALS];
        for pair in times_ms.chunks_exact_mut(2) {
            (pair[1], pair[0]) = (time_ms(None)?, time_ms(Some(each))?);
        }
        // The time of a call is that of the slowest rank.
        self.all_reduce(&mut times_ms, Op::Max)?;
        let (pairs, _) = times_ms.as_chunks::<2>();
        let pairs = Pairs(pairs.to_vec());
        let does = weights::pays(&pairs);
        let times = |way: usize| -> Vec<f64> { pairs.0.iter().map(|pair| pair[way]).collect() };
        log::info!(
            target: "ringfold::tuning",
            "weights {each:?} are {}: {bytes} bytes take {:.3?} ms with them and {:.3?} ms without",
            if does { "kept" } else { "not kept" },
            times(0),
            times(1)
        );
        Ok(does)
    }

    /// Applies the setting at the creation of the communicator.
    pub(crate) fn weigh(&self, weighting: &Weighting) -> Result<()> {
        match weighting {
            Weighting::Auto => self.rebalance().map(|_| ()),
            Weighting::Each(each) => self.set_weights(Some(each)),
        }
    }

    /// Returns the speeds of all ranks, by rank, and the size with which links were measured: the
    /// same on all ranks.
    fn measure(&self) -> Result<(Vec<RankSpeed>, usize)> {
        let world_size = self.place.world_size;
        let rounds = (world_size - 1 + world_size % 2).min(ROUNDS_MAX);
        let mut bytes = BYTES_MIN;
        let mut times_ms = self.exchange_all(bytes, rounds)?;
        loop {
            let mut slowest = [times_ms.iter().copied().fold(0.0, f64::max)];
            self.all_reduce(&mut slowest, Op::Max)?;
            if slowest[0] >= LONG_ENOUGH_MS || bytes >= BYTES_MAX {
                break;
            }
            bytes *= GROWTH;
            times_ms = self.exchange_all(bytes, rounds)?;
        }
        let mut repeats = Vec::new();
        for _ in 0..REPEATS {
            let mut times_ms = self.exchange_all(bytes, rounds)?;
            times_ms.push(reduction_ms()?);
            let mut all = vec![0.0; times_ms.len() * world_size];
            self.all_gather(&times_ms, &mut all)?;
            let rows: Vec<&[f64]> = all.chunks_exact(rounds + 1).collect();
            repeats.push(paces(&rows, rounds, bytes));
        }
        Ok((weights::steady(&repeats), bytes))
    }

    /// Returns the time of an exchange with the partner of each round; 0 in a round without a
    /// partner.
    fn exchange_all(&self, bytes: usize, rounds: usize) -> Result<Vec<f64>> {
        let memory = [Owned::zeroed(bytes), Owned::zeroed(bytes)];
        let [out, back] = [0, 1].map(|index| memory[index].region());
        let exchange = |round| match partner(self.place.rank, round, self.place.world_size) {
            Some(partner) => {
                // Time spent waiting for a partner that has not arrived is not counted.
                self.swap(partner, out.part(0..1), back.part(0..1))?;
                let begun = Instant::now();
                self.swap(partner, out, back)?;
                Ok(begun.elapsed().as_secs_f64() * 1e3)
            }
            None => Ok(0.0),
        };
        (0..rounds).map(exchange).collect()
    }

    /// Sends `out` to `partner` and receives `back` from it, both at once. When this returns,
    /// neither region is in use.
    fn swap(&self, partner: usize, out: Region, back: Region) -> Result<()> {
        let job = |collective, input, output| {
            let counts = Counts::Even(out.bytes() as u64);
            let mut request = Request::new(collective, DType::U8, counts, input, output);
            (request.target, request.tag) = (Target::Peer(partner), TAG);
            self.job(&request)
        };
        let receive = job(Collective::Recv, Region::EMPTY, back)?;
        // From here on no exit leaves a call in progress.
        let sending = self.works(vec![job(Collective::Send, out, Region::EMPTY)?])?;
        let received = self.driver.run(receive, &mut || Ok(()));
        let sent = sending.iter().try_for_each(super::Work::wait);
        received.and(sent)
    }
}

/// Returns the speed of each rank. A row has a rank's time in each round of exchanges and, last,
/// the time of the rank's own additions.
fn paces(rows: &[&[f64]], rounds: usize, bytes: usize) -> Vec<RankSpeed> {
    let pace = |rank: usize| {
        let pair = |round: usize| {
            let partner = partner(rank, round, rows.len())?;
            Some(rows[rank][round].max(rows[partner][round]))
        };
        let link_ms = (0..rounds).filter_map(pair).fold(f64::INFINITY, f64::min);
        RankSpeed {
            link_ps: if link_ms.is_finite() { link_ms } else { 0.0 } * 1e9 / bytes as f64,
            reduce_ps: rows[rank][rounds] * 1e9 / REDUCED_BYTES as f64,
        }
    };
    (0..rows.len()).map(pace).collect()
}

/// Returns the partner of `rank` in `round` of a tournament of `ranks`, each with each once
/// (Kirkman's circle method, 1847). With an odd number of ranks one of them rests in each round.
fn partner(rank: usize, round: usize, ranks: usize) -> Option<usize> {
    // All ranks but the last of an even number move around a circle.
    let circle = ranks - 1 + ranks % 2;
    if circle == 0 {
        return None;
    }
    if rank == circle {
        return (0..circle).find(|other| 2 * other % circle == round % circle);
    }
    let other = (round + circle - rank % circle) % circle;
    match other == rank {
        false => Some(other),
        true if ranks.is_multiple_of(2) => Some(circle),
        true => None,
    }
}

/// Returns this rank's time for the timed reduction.
fn reduction_ms() -> Result<f64> {
    let kernel = ReductionKernel::new(Op::Sum, DType::F32)?;
    let memory = [Owned::zeroed(REDUCED_BYTES), Owned::zeroed(REDUCED_BYTES)];
    let [into, from] = [0, 1].map(|index| memory[index].region());
    // Allocates the pages of `from`: unwritten zeros are one page.
    from.copy_from(into);
    // The first fold allocates the pages of the result.
    kernel.fold(into, &[into, from]);
    let begun = Instant::now();
    kernel.fold(into, &[into, from]);
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_all<R: Send>(ranks: usize, f: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
        std::thread::scope(|scope| {
            let f = &f;
            let spawn = |communicator| scope.spawn(move || f(&communicator));
            let threads: Vec<_> = Communicator::threads(ranks)
                .into_iter()
                .map(spawn)
                .collect();
            let joined = threads
                .into_iter()
                .map(|thread| thread.join().expect("a rank"));
            joined.collect()
        })
    }

    /// Returns data longer than the sizes at which latency decides, on any machine.
    fn data(communicator: &Communicator) -> Vec<f32> {
        vec![communicator.rank() as f32 + 1.0; (300 << 10) / size_of::<f32>()]
    }

    #[test]
    fn sums_are_exact_for_all_weights() {
        on_all(3, |communicator| {
            for weights in [None, Some([1, 0, 2]), Some([0, 0, 7]), None] {
                let weights = weights.as_ref().map(|each| &each[..]);
                communicator.set_weights(weights).expect("weights");
                assert_eq!(communicator.weights().as_deref(), weights);
                let mut sum = data(communicator);
                communicator.all_reduce(&mut sum, Op::Sum).expect("a sum");
                assert!(sum.iter().all(|value| *value == 6.0), "{weights:?}");
                let mut small = [1.0f64; 3];
                communicator
                    .all_reduce(&mut small, Op::Sum)
                    .expect("a small sum");
                assert_eq!(small, [3.0; 3]);
            }
        });
    }

    #[test]
    fn weights_changed_on_one_rank_are_a_mismatch() {
        let ended = on_all(2, |communicator| {
            if communicator.rank() == 1 {
                communicator.set_weights(Some(&[1, 1])).expect("weights");
            }
            communicator.set_weights(Some(&[3, 1])).expect("weights");
            communicator.all_reduce(&mut data(communicator), Op::Sum)
        });
        for result in ended {
            assert!(matches!(result, Err(Error::Mismatch { .. })), "{result:?}");
        }
    }

    #[test]
    fn weights_that_mean_nothing_are_refused() {
        let communicator = &Communicator::threads(3)[0];
        for each in [&[1, 1][..], &[0, 0, 0], &[]] {
            let refused = communicator.set_weights(Some(each));
            assert!(
                matches!(refused, Err(Error::InvalidArgument(_))),
                "{each:?}"
            );
            assert_eq!(communicator.weights(), None);
        }
    }

    #[test]
    fn all_ranks_measure_the_same_weights() {
        for ranks in [1, 2, 3] {
            let found = on_all(ranks, |communicator| {
                let weights = communicator.rebalance().expect("weights");
                let mut sum = data(communicator);
                communicator
                    .all_reduce(&mut sum, Op::Max)
                    .expect("a maximum");
                assert!(sum.iter().all(|value| *value == ranks as f32));
                weights
            });
            assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{found:?}");
        }
    }

    #[test]
    fn every_rank_meets_every_other_once() {
        for ranks in 1..=17usize {
            let rounds = ranks - 1 + ranks % 2;
            for rank in 0..ranks {
                let mut met: Vec<usize> = (0..rounds)
                    .filter_map(|round| {
                        let other = partner(rank, round, ranks)?;
                        assert_eq!(partner(other, round, ranks), Some(rank), "{ranks} ranks");
                        Some(other)
                    })
                    .collect();
                met.sort_unstable();
                let others: Vec<usize> = (0..ranks).filter(|other| *other != rank).collect();
                assert_eq!(met, others, "rank {rank} of {ranks}");
            }
        }
    }
}
