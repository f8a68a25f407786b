//! Tests of the windows of ranks that are threads.

use super::super::SegmentShape;
use super::*;
use crate::memory::Owned;
use crate::topology::layout::equal_domains;
use crate::topology::layout::tests::{EPYC, GRACE, SMALL, XEON};
use crate::transport::suite::{bytes_of, call, pattern};

fn ranks(count: usize, domains: usize) -> Vec<Windows> {
    let segment = Segment::unshared(SegmentShape::new(count, 1, 1 << 20));
    (0..count)
        .map(|rank| Windows::new(segment.clone(), rank, domains))
        .collect()
}

#[test]
fn near_are_the_bound_ranks_of_the_same_cache() {
    let machines = [
        (XEON, "xeon", vec![7, 48, 96]),
        (EPYC, "epyc", vec![2, 16, 20, 64, 128]),
        (GRACE, "grace", vec![72]),
        (SMALL, "small", vec![2]),
    ];
    for (machine, name, worlds) in machines {
        let layout = machine.layout(&format!("near-{name}"));
        for ranks in worlds {
            let of_rank: Vec<_> = (0..ranks)
                .map(|rank| layout.domain(&layout.first(rank, ranks)))
                .collect();
            let domains = equal_domains(&of_rank);
            for rank in 0..ranks {
                let near = near(rank, ranks, domains);
                let is_divided = domains > 1 && domains < ranks;
                for peer in 0..ranks {
                    let is_near = !is_divided || of_rank[peer] == of_rank[rank];
                    assert_eq!(
                        near.as_ref().is_none_or(|near| near.contains(&peer)),
                        is_near,
                        "{name}, {ranks} ranks"
                    );
                }
            }
        }
    }
}

#[test]
fn ranks_of_another_domain_look_at_lines_of_their_own() {
    let windows = ranks(4, 2);
    let place = |rank: usize, peer| std::ptr::from_ref(windows[rank].peers_head(peer, 5));
    assert_eq!(place(0, 1), place(1, 1));
    assert_eq!(place(2, 1), place(3, 1));
    assert_ne!(place(0, 1), place(2, 1));
}

#[test]
fn slots_are_reused_only_when_all_peers_have_finished() {
    let mut ranks = ranks(3, 1);
    let slots = ranks[0].slots() as u64;
    let data = pattern(64, 3);
    for generation in 0..slots {
        assert!(ranks[0].is_free(generation));
        let slot = ranks[0].slot(0, generation, 0..64);
        slot.copy_from(data.region());
        ranks[0].publish(generation, 1, &call(0), Wake::Peers);
    }
    assert!(!ranks[0].is_free(slots));
    assert_eq!(ranks[0].behind(slots), [1, 2]);
    assert!(ranks[1].has_reached(0, 0, 1, &call(0)).unwrap());
    assert!(!ranks[1].has_reached(0, 0, 2, &call(0)).unwrap());
    let seen = Owned::copy_of(ranks[1].slot(0, 0, 0..64));
    assert_eq!(bytes_of(seen.region()), bytes_of(data.region()));
    ranks[1].finish(0, Wake::Peers);
    assert!(!ranks[0].is_free(slots));
    assert_eq!(ranks[0].behind(slots), [2]);
    ranks[2].finish(0, Wake::Peers);
    assert!(ranks[0].is_free(slots));
}

#[test]
fn published_memory_of_another_call_is_a_mismatch() {
    let mut ranks = ranks(2, 1);
    ranks[0].publish(0, 1, &call(0), Wake::Peers);
    let error = ranks[1].has_reached(0, 0, 1, &call(9)).unwrap_err();
    assert_eq!(error.class(), "Mismatch");
}

#[test]
fn a_rank_that_has_claimed_a_block_and_not_completed_it_can_be_named() {
    let ranks = ranks(3, 1);
    assert_eq!(ranks[1].claim(0, 2), Some(0));
    assert_eq!(ranks[2].claim(0, 2), Some(1));
    assert_eq!(ranks[0].claim(0, 2), None);
    assert_eq!(ranks[0].claimants(0), [1, 2]);
    ranks[2].complete(0, 2);
    assert_eq!(ranks[0].claimants(0), [1]);
    assert!(!ranks[0].is_complete(0, 2));
    ranks[1].complete(0, 2);
    assert_eq!(ranks[0].claimants(0), []);
    assert!(ranks[0].is_complete(0, 2));
}
