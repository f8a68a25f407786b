//! Who is let in, and what becomes of a job that does not come together.

use super::*;
use crate::control::meeting::Meeting;
use crate::control::socket::{Listener, addresses};

/// Rank 0 of two joins at `meeting`, the other one at `places`, both by `deadline`.
fn meet(
    meeting: Meeting,
    places: Vec<Address>,
    secret_of_1: Secret,
    deadline: Instant,
) -> [Result<Session>; 2] {
    let mut zero = launch(0, 2, &unix_address());
    zero.addresses.clear();
    let mut one = zero.clone();
    one.rank = 1;
    one.addresses = places;
    let zero =
        thread::spawn(move || Session::join_at(&zero, Some(meeting), Some(secret()), deadline));
    let one = Session::join(&one, Some(secret_of_1), deadline);
    [zero.join().unwrap(), one]
}

#[test]
fn ranks_meet_at_any_of_the_places_that_rank_0_has_opened() {
    watched(|| {
        let count = addresses(&Meeting::open(None).unwrap().address())
            .unwrap()
            .len();
        for index in 0..count {
            let meeting = Meeting::open(None).unwrap();
            let place = addresses(&meeting.address()).unwrap().remove(index);
            let [zero, one] = meet(meeting, vec![place], secret(), ample());
            drop((one.unwrap(), zero.unwrap()));
        }
    });
}

#[test]
fn places_that_are_closed_silent_or_somebody_elses_are_passed_over() {
    watched(|| {
        let closed = tcp_address();
        let (silent, silent_place) = Listener::bind_free("127.0.0.1".parse().unwrap()).unwrap();
        // Another job's rank 0, still waiting for its ranks.
        let other = Meeting::open(None).unwrap();
        let other_place = addresses(&other.address()).unwrap().remove(0);
        let mut host = launch(0, 2, &unix_address());
        host.addresses.clear();
        let waiting = thread::spawn(move || {
            let another = Some(Secret::new(*b"another"));
            Session::join_at(&host, Some(other), another, soon(6000)).map(drop)
        });
        let meeting = Meeting::open(None).unwrap();
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
        let meeting = Meeting::open(None).unwrap();
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
fn without_a_secret_nobody_is_met() {
    let mut zero = launch(0, 2, &unix_address());
    zero.addresses.clear();
    let meeting = Some(Meeting::open(None).unwrap());
    let error = Session::join_at(&zero, meeting, None, ample()).unwrap_err();
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

fn refusal(outcome: auth::Outcome<Puppet>) -> Refusal {
    match outcome {
        Err(Failure::Refused(refusal)) => refusal,
        Err(Failure::Broken(error)) => panic!("{error}"),
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
        assert_eq!(claim(2, 4), Refusal::WorldSize);
        // The rejected ones have not disturbed those that belong here.
        let mut one = one;
        one.say(&Frame::Join(Presence {
            host: HostId::here().unwrap(),
            pid: std::process::id(),
        }));
        let _two = Puppet::join(2, 3, &address);
        one.hear(|frame| matches!(frame, Frame::Welcome { .. }));
        zero.join().unwrap();
    });
}

#[test]
fn garbage_and_silence_at_the_door_delay_nobody() {
    watched(|| {
        let address = tcp_address();
        let zero = {
            let launch = launch(0, 2, &address);
            thread::spawn(move || Session::join(&launch, Some(secret()), ample()).unwrap())
        };
        let connect = || loop {
            if let Ok(socket) = Socket::connect(&address, ample()) {
                return socket;
            }
            thread::yield_now();
        };
        let silent: Vec<Socket> = (0..20).map(|_| connect()).collect();
        for length in [1, 71, 72, 73, 4000] {
            let socket = connect();
            // The server may end the connection in the middle of it.
            let _ = socket.write_all(&vec![0x5a; length], ample());
        }
        let one = Session::join(&launch(1, 2, &address), Some(secret()), ample()).unwrap();
        drop((one, zero.join().unwrap(), silent));
    });
}

#[test]
fn a_job_that_does_not_come_together_names_the_missing() {
    watched(|| {
        let address = unix_address();
        let join = |rank| {
            let launch = launch(rank, 3, &address);
            thread::spawn(move || {
                Session::join(&launch, None, soon(300))
                    .unwrap_err()
                    .to_string()
            })
        };
        for error in [join(0), join(1)].map(|rank| rank.join().unwrap()) {
            assert!(error.contains("missing ranks: [2]"), "{error}");
        }
    });
}

#[test]
fn without_a_secret_nothing_listens_on_tcp() {
    let address = tcp_address();
    let error = Session::join(&launch(0, 2, &address), None, ample()).unwrap_err();
    assert!(error.to_string().contains("RINGFOLD_SECRET"), "{error}");
}
