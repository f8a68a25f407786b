//! Tests of joining as a whole: several ranks, each a thread with its own control connection.

use std::time::Duration;

use super::attempt::Attempt;
use super::discover::Discovered;
use super::*;
use crate::config::TransportChoice;
use crate::control::socket::random;
use crate::types::Op;

/// A deadline that a healthy test does not reach.
const AMPLE: Duration = Duration::from_secs(60);

fn address() -> String {
    let suffix = u64::from_le_bytes(random().expect("random bytes"));
    format!("unix:@ringfold-test-setup-{suffix:x}")
}

/// Joins ranks to one job, each with its configuration, and runs `body` on each; returns the
/// results.
fn joined<R: Send>(
    world_size: usize,
    config: impl Fn(usize) -> Config + Sync,
    body: impl Fn(Result<Communicator>) -> R + Sync,
) -> Vec<R> {
    let address = address();
    let (address, config, body) = (&address, &config, &body);
    std::thread::scope(|scope| {
        let rank = |rank| {
            let config = Config {
                rank: Some(rank),
                world_size: Some(world_size),
                address: Some(address.clone()),
                connect_timeout: Some(AMPLE),
                ..config(rank)
            };
            scope.spawn(move || body(Communicator::connect(config)))
        };
        let ranks: Vec<_> = (0..world_size).map(rank).collect();
        let ended = ranks.into_iter().map(|rank| rank.join().expect("a rank"));
        ended.collect()
    })
}

/// Returns the number of exchanges in which this rank has taken part.
fn exchanges(communicator: &Communicator) -> u64 {
    let group = communicator.membership.group();
    group.expect("ranks with a job").session.exchanges()
}

#[test]
fn a_join_takes_two_exchanges_and_a_split_one_more() {
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let config = |_| Config {
            transport: Some(transport),
            ..Config::default()
        };
        let counts = joined(3, config, |joined| {
            let whole = joined.expect("a communicator");
            let joining = exchanges(&whole);
            let color = u32::from(whole.rank() == 2);
            let part = whole.split(Some(color), 0).expect("a split");
            let part = part.expect("a part for each color");
            let mut sum = [1u32];
            part.all_reduce(&mut sum, Op::Sum).expect("a sum");
            assert_eq!(sum[0] as usize, part.world_size());
            (joining, exchanges(&whole) - joining, part.world_size())
        });
        // A part of one rank has nothing to exchange.
        assert_eq!(counts, [(2, 3, 2), (2, 3, 2), (2, 1, 1)], "{transport:?}");
    }
}

#[test]
fn ranks_that_differ_get_one_error_that_names_them() {
    let config = |rank| Config {
        straggler: (rank == 1).then_some(StragglerPolicy::Tail),
        ..Config::default()
    };
    let errors = joined(3, config, |joined| joined.unwrap_err().to_string());
    for error in errors {
        assert!(
            error.contains("`off` on rank 0 and `tail` on rank 1"),
            "{error}"
        );
    }
}

#[test]
fn a_stage_that_is_dropped_leaves_nothing_open() {
    let launch = Launch {
        addresses: vec![address().parse().expect("an address")],
        ..Launch::new(0, 2, "test")
    };
    let rank = |rank| {
        let launch = Launch {
            rank,
            ..launch.clone()
        };
        let end = Instant::now() + AMPLE;
        let session = Session::join(&launch, None, end).expect("a session");
        let environment = Environment::default();
        let settings = Settings::new(&Config::default(), &environment).expect("settings");
        let group = |id| RankGroup {
            session: session.clone(),
            settings: settings.clone(),
            id,
            world_ranks: vec![0, 1],
            rank,
            inherited: Inherited::default(),
        };
        let attempt = Attempt::open(group(7), &|| None).expect("an attempt");
        let again = Attempt::open(group(7), &|| None).map(Attempt::keep);
        again.expect_err("it is open already");
        let linked = Discovered::new(&attempt).and_then(Discovered::link);
        drop(linked.expect("two linked ranks"));
        drop(attempt);
        // The number is free again, and the others wait for no rank of the attempt.
        let attempt = Attempt::open(group(8), &|| None).expect("an attempt");
        let linked = Discovered::new(&attempt).and_then(Discovered::link);
        drop(linked.expect("two linked ranks"));
        let again = Attempt::open(group(7), &|| None);
        again.expect("the number is free").keep();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| rank(1));
        rank(0);
    });
}

#[test]
fn reproducible_results_and_a_straggler_policy_are_refused_together() {
    let check = |straggler, reproducible| {
        let config = Config {
            straggler: Some(straggler),
            reproducible: Some(reproducible),
            ..Config::default()
        };
        let settings = Settings::new(&config, &Environment::default()).expect("settings");
        check_reproducible(&settings)
    };
    let error = check(StragglerPolicy::Tail, true).unwrap_err();
    assert!(error.to_string().contains("`tail`"), "{error}");
    check(StragglerPolicy::Tail, false).expect("as it was asked for");
    check(StragglerPolicy::Off, true).expect("every order is fixed");
}
