//! The host's part of a direct slice: ranks compare their calls, and know then that all data of the
//! slice stands in its slots.

use crate::call::{Asked, LISTED_MAX, Qualifier, list_digest};
use crate::communicator::{CallOptions, Counts, Request};
use crate::memory::Region;
use crate::types::Collective;

/// The barrier in which ranks compare `request`, whose data devices move: when it is done, all
/// ranks have made the same one. Counts are not those of pairs.
pub fn meeting(request: &Request) -> Request {
    let (count, lists) = match &request.counts {
        Counts::Even(count) => (*count, 0),
        Counts::PerRank(counts) => {
            let all = counts.iter().sum::<u64>().min(LISTED_MAX);
            (all, list_digest(counts.iter().copied()))
        }
        Counts::Pairwise { .. } => unreachable!("no rank knows the counts of all pairs"),
    };
    let asked = Asked {
        collective: request.collective,
        dtype: request.dtype,
        op: match request.collective.reduces() {
            true => request.op.wire(),
            false => 0,
        },
        qualifier: match request.collective.has_root() {
            true => Qualifier::Root(request.root() as u32),
            false => Qualifier::None,
        },
        count,
        lists: request.whole.unwrap_or(lists),
    };
    let (nothing, counts) = (Region::EMPTY, Counts::Even(0));
    Request {
        options: CallOptions {
            timeout: request.options.timeout,
            ..CallOptions::default()
        },
        asked: Some(asked),
        ..Request::new(Collective::Barrier, request.dtype, counts, nothing, nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::{Communicator, Target};
    use crate::error::Result;
    use crate::types::{DType, Op};

    /// What each of two ranks gets that meet in these calls.
    fn met(requests: [Request; 2]) -> Vec<Result<()>> {
        let ranks = Communicator::threads(2).into_iter().zip(requests);
        let meet = |(communicator, request): (Communicator, Request)| {
            // SAFETY: a barrier has no memory.
            let met = unsafe { communicator.run(&meeting(&request), &mut || Ok(())) };
            met.map(|_| ())
        };
        std::thread::scope(|scope| {
            let ranks = ranks.map(|rank| scope.spawn(move || meet(rank)));
            let ranks: Vec<_> = ranks.collect();
            ranks
                .into_iter()
                .map(|rank| rank.join().expect("a rank"))
                .collect()
        })
    }

    fn request(collective: Collective, counts: Counts) -> Request {
        Request::new(collective, DType::F32, counts, Region::EMPTY, Region::EMPTY)
    }

    #[test]
    fn ranks_meet_in_one_call_and_in_no_two() {
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Scatter};
        let even = || request(AllGather, Counts::Even(7));
        assert!(met([even(), even()]).iter().all(Result::is_ok));
        let listed = |first| request(Scatter, Counts::PerRank(vec![first, 9 - first]));
        let reduced = |op| Request {
            op,
            ..request(AllReduce, Counts::Even(7))
        };
        let root = |root| Request {
            target: Target::Root(root),
            ..request(Broadcast, Counts::Even(7))
        };
        let of_bytes = Request {
            dtype: DType::U8,
            ..even()
        };
        for (pair, difference) in [
            ([even(), request(AllGather, Counts::Even(8))], "counts"),
            ([even(), request(AllToAll, Counts::Even(7))], "all_to_all"),
            ([even(), of_bytes], "data types"),
            ([listed(4), listed(5)], "counts"),
            ([reduced(Op::Sum), reduced(Op::Max)], "operations"),
            ([root(0), root(1)], "root"),
        ] {
            for result in met(pair.clone()) {
                let error = result.expect_err(difference);
                assert_eq!(error.class(), "Mismatch", "{error}");
                assert!(error.to_string().contains(difference), "{error}");
            }
        }
    }
}
