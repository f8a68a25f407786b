//! Tests of admission, and of jobs that not all ranks join.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::absence::Absence;
use crate::control::address::addresses;
use crate::control::launch::hidden_name;
use crate::control::limit::Limit;
use crate::control::listener::RendezvousListener;
use crate::control::socket::Listener;

/// Joins rank 0 of two at `meeting`, and the other rank at `places`, both by `deadline`.
fn meet(
    meeting: RendezvousListener,
    places: Vec<RendezvousAddress>,
    secret_of_1: Secret,
    deadline: Instant,
) -> [Result<Session>; 2] {
    let mut zero = launch(0, 2, &unix_address());
    zero.addresses.clear();
    let mut one = zero.clone();
    one.rank = 1;
    one.addresses = places;
    let zero = thread::spawn(move || {
        Session::join_at(&zero, Some(meeting), Some(secret()), deadline.into())
    });
    let one = Session::join(&one, Some(secret_of_1), deadline);
    [zero.join().unwrap(), one]
}

#[test]
fn ranks_meet_at_any_of_the_places_that_rank_0_has_opened() {
    watched(|| {
        let count = addresses(&RendezvousListener::open(None).unwrap().address())
            .unwrap()
            .len();
        for index in 0..count {
            let meeting = RendezvousListener::open(None).unwrap();
            let place = addresses(&meeting.address()).unwrap().remove(index);
            let [zero, one] = meet(meeting, vec![place], secret(), ample());
            drop((one.unwrap(), zero.unwrap()));
        }
    });
}

#[test]
fn addresses_that_are_closed_silent_or_another_jobs_are_passed_over() {
    watched(|| {
        let closed = tcp_address();
        let (silent, bound) = Listener::bind_free(&["127.0.0.1".parse().unwrap()]).unwrap();
        let silent_place = bound[0].to_string().parse().unwrap();
        // Another job's rank 0, still waiting for its ranks.
        let other = RendezvousListener::open(None).unwrap();
        let other_place = addresses(&other.address()).unwrap().remove(0);
        let mut host = launch(0, 2, &unix_address());
        host.addresses.clear();
        let waiting = thread::spawn(move || {
            let another = Some(Secret::new(*b"another"));
            Session::join_at(&host, Some(other), another, soon(6000).into()).map(drop)
        });
        let meeting = RendezvousListener::open(None).unwrap();
        let mut places = vec![closed, other_place, silent_place];
        places.extend(addresses(&meeting.address()).unwrap());
        let [zero, one] = meet(meeting, places, secret(), ample());
        drop((one.unwrap(), zero.unwrap(), silent));
        waiting.join().unwrap().unwrap_err();
    });
}

#[test]
fn a_wrong_secret_is_a_clear_error_at_several_places_too() {
    watched(|| {
        let meeting = RendezvousListener::open(None).unwrap();
        let places = addresses(&meeting.address()).unwrap();
        let first = places[0].to_string();
        let [_, one] = meet(meeting, places, Secret::new(*b"another"), soon(2000));
        let error = one.unwrap_err().to_string();
        assert!(error.contains("the secrets differ"), "{error}");
        assert!(error.contains(&first), "{error}");
    });
}

#[test]
fn all_places_that_were_tried_are_named() {
    watched(|| {
        let mut one = launch(1, 2, &tcp_address());
        one.addresses.push(unix_address());
        let error = Session::join(&one, Some(secret()), soon(100)).unwrap_err();
        for place in &one.addresses {
            assert!(error.to_string().contains(&place.to_string()), "{error}");
        }
    });
}

#[test]
fn rank_0_listens_at_all_places_of_a_list() {
    watched(|| {
        let places = [tcp_address(), unix_address(), tcp_address()];
        for place in places.clone() {
            let mut zero = launch(0, 2, &place);
            zero.addresses = places.to_vec();
            let zero = thread::spawn(move || Session::join(&zero, Some(secret()), ample()));
            let one = Session::join(&launch(1, 2, &place), Some(secret()), ample()).unwrap();
            drop((one, zero.join().unwrap().unwrap()));
        }
    });
}

#[test]
fn without_a_secret_no_rank_joins() {
    let mut zero = launch(0, 2, &unix_address());
    zero.addresses.clear();
    let meeting = Some(RendezvousListener::open(None).unwrap());
    let error = Session::join_at(&zero, meeting, None, ample().into()).unwrap_err();
    assert!(error.to_string().contains("RINGFOLD_SECRET"), "{error}");
}

#[test]
fn a_wrong_secret_is_a_clear_error_and_does_not_disturb_the_others() {
    watched(|| {
        for address in [unix_address(), tcp_address()] {
            let intruder = address.clone();
            let wrong = thread::spawn(move || {
                let launch = launch(1, 2, &intruder);
                Session::join(&launch, Some(Secret::new(*b"another")), ample()).unwrap_err()
            });
            let zero = {
                let launch = launch(0, 2, &address);
                thread::spawn(move || Session::join(&launch, Some(secret()), ample()).unwrap())
            };
            let error = wrong.join().unwrap().to_string();
            assert!(error.contains("the secrets differ"), "{error}");
            let one = Session::join(&launch(1, 2, &address), Some(secret()), ample()).unwrap();
            drop((one, zero.join().unwrap()));
        }
    });
}

fn refusal(outcome: auth::HandshakeResult<Puppet>) -> Refusal {
    match outcome {
        Err(HandshakeFailure::Refused(refusal)) => refusal,
        Err(HandshakeFailure::Broken(error)) => panic!("{error}"),
        Ok(_) => panic!("admitted"),
    }
}

#[test]
fn impossible_claims_are_refused_by_name() {
    watched(|| {
        let address = unix_address();
        let zero = {
            let launch = launch(0, 3, &address);
            thread::spawn(move || Session::join(&launch, Some(secret()), ample()).unwrap())
        };
        let one = Puppet::connect(1, 3, &address, &secret()).unwrap();
        let claim = |rank, size| refusal(Puppet::connect(rank, size, &address, &secret()));
        assert_eq!(claim(1, 3), Refusal::Duplicate);
        assert_eq!(claim(0, 3), Refusal::Rank);
        assert_eq!(claim(3, 3), Refusal::Rank);
        let (claimed, expected) = (4, 3);
        assert_eq!(claim(2, 4), Refusal::WorldSize { claimed, expected });
        // The refused processes have not disturbed those that belong here.
        let mut one = one;
        let presence = Presence {
            host: HostId::here().unwrap(),
            pid: std::process::id(),
        };
        one.say(&Frame::Join { presence });
        let _two = Puppet::join(2, 3, &address);
        one.hear(|frame| matches!(frame, Frame::Welcome { .. }));
        zero.join().unwrap();
    });
}

#[test]
fn without_a_secret_nothing_listens_on_tcp() {
    let address = tcp_address();
    let error = Session::join(&launch(0, 2, &address), None, ample()).unwrap_err();
    assert!(error.to_string().contains("RINGFOLD_SECRET"), "{error}");
}

#[test]
fn an_address_that_is_taken_is_said_long_before_the_deadline() {
    watched(|| {
        for address in [unix_address(), tcp_address()] {
            let _holder = Listener::bind(&address, ample()).unwrap();
            let far = Instant::now() + 10 * WATCHDOG;
            let error = Session::join(&launch(0, 2, &address), Some(secret()), far).unwrap_err();
            let due = match address {
                RendezvousAddress::Unix { .. } => format!("process {}", std::process::id()),
                RendezvousAddress::Tcp { .. } => "another program listens there".into(),
            };
            assert!(error.to_string().contains(&due), "{error}");
        }
    });
}

#[test]
fn who_comes_to_a_job_that_was_given_up_is_told_so() {
    watched(|| {
        let address = unix_address();
        let zero = {
            let launch = launch(0, 3, &address);
            thread::spawn(move || Session::join(&launch, Some(secret()), soon(300)).unwrap_err())
        };
        // Rank 0 gives up, and stays for a moment, so that this rank finds that out before its own
        // deadline.
        let error = loop {
            match Puppet::connect(1, 3, &address, &secret()) {
                Err(HandshakeFailure::Refused(refusal)) => break refusal,
                _ => thread::yield_now(),
            }
        };
        assert!(
            [Refusal::GivenUp, Refusal::Duplicate].contains(&error),
            "{error}"
        );
        zero.join().unwrap();
    });
}

#[test]
fn ranks_with_another_secret_or_none_find_out_where_the_name_is_public() {
    watched(|| {
        let secrets = [Some(secret()), Some(Secret::new(*b"another")), None];
        let pairs = [(0, 1), (0, 2), (2, 0)].map(|(mine, theirs)| {
            let public = unix_address();
            [(0, mine), (1, theirs)].map(|(rank, index): (usize, usize)| {
                let mut launch = launch(rank, 2, &public);
                let secret = secrets[index].clone();
                if let Some(secret) = &secret {
                    let name = hidden_name(&public, secret);
                    launch.addresses = vec![RendezvousAddress::Unix { name }];
                    launch.public_name = Some(public.clone());
                }
                thread::spawn(move || Session::join(&launch, secret, soon(3000)).unwrap_err())
            })
        });
        for rank in pairs.into_iter().flatten() {
            let error = rank.join().unwrap().to_string();
            assert!(error.contains("the secrets differ"), "{error}");
        }
    });
}

#[test]
fn ranks_are_told_of_one_whose_process_has_ended() {
    watched(|| {
        for gone in [0, 1] {
            let address = unix_address();
            let absence = Absence {
                rank: gone,
                world_size: 3,
                address: address.clone(),
                socket_ifname: None,
                secret: secret(),
                reason: format!("the process of rank {gone} has ended"),
            };
            let others = (0..3).filter(|rank| *rank != gone).map(|rank| {
                let launch = launch(rank, 3, &address);
                let far = Instant::now() + 10 * WATCHDOG;
                thread::spawn(move || Session::join(&launch, Some(secret()), far).unwrap_err())
            });
            let others: Vec<_> = others.collect();
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let over = || is_over.load(Ordering::Relaxed).then_some(Error::Closed);
                    let _ = absence.announce(Limit::new(ample(), &over), || ());
                });
                for other in others {
                    let error = other.join().unwrap().to_string();
                    let due = [
                        "process of rank 1 has ended",
                        "rank 0's process has ended",
                        "stopped waiting",
                    ];
                    assert!(due.iter().any(|due| error.contains(due)), "{error}");
                }
                is_over.store(true, Ordering::Relaxed);
            });
        }
    });
}
