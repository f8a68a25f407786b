//! Who is let in, and what becomes of a job that does not come together.

use super::*;

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
