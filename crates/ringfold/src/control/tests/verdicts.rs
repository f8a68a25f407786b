//! Tests of reports and losses, and of the one verdict that follows.

use super::*;
use crate::control::limit::Limit;
use crate::control::standing::Standing;

#[test]
fn a_verdict_ends_the_exchange_for_its_communicator() {
    watched(|| {
        let outcomes = job(3, unix_address(), |session| {
            let health = session.open(7, &[0, 1, 2], quiet()).unwrap();
            session
                .exchange("opened", &[0, 1, 2], b"", ample())
                .unwrap();
            let outcome = match session.rank() {
                1 => {
                    health.give_up("no memory left");
                    Ok(vec![])
                }
                _ => {
                    let verdict = || health.fault();
                    session.exchange("card", &[0, 1, 2], b"", Limit::new(ample(), &verdict))
                }
            };
            session.exchange("end", &[0, 1, 2], b"", ample()).unwrap();
            outcome
        });
        for rank in [0, 2] {
            let error = outcomes[rank].as_ref().unwrap_err();
            assert!(matches!(error, Error::Aborted { rank: 1, .. }), "{error}");
        }
    });
}

#[test]
fn an_abort_reaches_every_member_and_no_other_rank() {
    watched(|| {
        job(4, unix_address(), |session| {
            let mine = session.open(7, &[0, 1, 2, 3], quiet()).unwrap();
            let other = session.open(8, &[0, 1, 2, 3], quiet()).unwrap();
            session
                .exchange("opened", &[0, 1, 2, 3], b"", ample())
                .unwrap();
            if session.rank() == 2 {
                mine.give_up("enough");
            }
            let error = verdict(&mine);
            assert!(
                matches!(&error, Error::Aborted { rank: 2, reason } if reason == "enough"),
                "{error}"
            );
            session
                .exchange("seen", &[0, 1, 2, 3], b"", ample())
                .unwrap();
            assert!(!other.is_faulty());
        });
    });
}

#[test]
fn the_first_of_many_reports_is_the_verdict_of_all() {
    watched(|| {
        let classes = job(4, unix_address(), |session| {
            let health = session.open(7, &[0, 1, 2, 3], quiet()).unwrap();
            session
                .exchange("opened", &[0, 1, 2, 3], b"", ample())
                .unwrap();
            let suspicion = match session.rank() {
                0 => Error::Aborted {
                    rank: 0,
                    reason: "mine".into(),
                },
                rank => Error::corrupt((rank + 1) % 4, "bits"),
            };
            let verdict = health.report_fault(suspicion, AMPLE).to_string();
            session
                .exchange("verdict", &[0, 1, 2, 3], b"", ample())
                .unwrap();
            verdict
        });
        assert!(
            classes.iter().all(|class| *class == classes[0]),
            "{classes:?}"
        );
    });
}

#[test]
fn a_lost_connection_is_a_failed_peer_and_ends_exchanges() {
    watched(|| {
        for address in [unix_address(), tcp_address()] {
            let first = address.clone();
            let puppet = thread::spawn(move || {
                let mut puppet = Puppet::join(2, 3, &first);
                puppet.say(&Frame::Open {
                    communicator: 7,
                    members: vec![0, 1, 2],
                });
            });
            let ranks: Vec<_> = (0..2)
                .map(|rank| {
                    let launch = launch(rank, 3, &address);
                    thread::spawn(move || {
                        let session = Session::join(&launch, Some(secret()), ample()).unwrap();
                        let health = session.open(7, &[0, 1, 2], quiet()).unwrap();
                        let outcome = session.exchange("never", &[0, 1, 2], b"", ample());
                        let lost =
                            |error: &Error| matches!(error, Error::PeerFailed { rank: 2, .. });
                        assert!(lost(&outcome.unwrap_err()));
                        assert!(lost(&verdict(&health)));
                        session.exchange("both", &[0, 1], b"", ample()).unwrap();
                    })
                })
                .collect();
            puppet.join().unwrap();
            ranks.into_iter().for_each(|rank| rank.join().unwrap());
        }
    });
}

/// Returns the ranks blamed for a timeout. Ranks 0 and 1 are real, rank 2 is a puppet that
/// `answers` inquiries with this number of begun collectives, or not at all.
fn blamed_for_a_timeout(reported: Vec<usize>, answers: Option<u64>) -> Vec<usize> {
    let address = unix_address();
    let first = address.clone();
    let puppet = thread::spawn(move || {
        let mut puppet = Puppet::join(2, 3, &first);
        puppet.say(&Frame::Open {
            communicator: 7,
            members: vec![0, 1, 2],
        });
        let asked = puppet.hear(|frame| matches!(frame, Frame::Inquiry { .. }));
        if let (
            Frame::Inquiry {
                communicator,
                inquiry,
            },
            Some(sequence),
        ) = (asked, answers)
        {
            puppet.say(&Frame::Answer {
                communicator,
                inquiry,
                standing: Standing {
                    begun: sequence,
                    ..Standing::default()
                },
            });
        }
        puppet.hear(|frame| matches!(frame, Frame::Verdict { .. }));
        puppet.say(&Frame::Goodbye);
        puppet.hear(|frame| matches!(frame, Frame::Departed { rank: 2 }));
    });
    let ranks: Vec<_> = (0..2)
        .map(|rank| {
            let launch = launch(rank, 3, &address);
            let reported = reported.clone();
            thread::spawn(move || {
                let session = Session::join(&launch, Some(secret()), ample()).unwrap();
                let health = session.open(7, &[0, 1, 2], quiet()).unwrap();
                health.progress().note(4, 5);
                session.exchange("opened", &[0, 1], b"", ample()).unwrap();
                if rank == 1 {
                    health.report(&Error::Timeout {
                        waiting_for: reported,
                        after_ms: 9,
                        site: None,
                    });
                }
                let error = verdict(&health);
                session.exchange("seen", &[0, 1], b"", ample()).unwrap();
                error
            })
        })
        .collect();
    let errors: Vec<Error> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    puppet.join().unwrap();
    assert_eq!(errors[0].to_string(), errors[1].to_string());
    match &errors[0] {
        Error::Timeout {
            waiting_for,
            after_ms: 9,
            ..
        } => waiting_for.clone(),
        other => panic!("{other}"),
    }
}

#[test]
fn a_timeout_is_blamed_on_the_silent_rank() {
    watched(|| assert_eq!(blamed_for_a_timeout(vec![0], None), [2]));
}

#[test]
fn a_timeout_is_blamed_on_the_rank_that_is_behind() {
    watched(|| assert_eq!(blamed_for_a_timeout(vec![0], Some(4)), [2]));
}

#[test]
fn a_timeout_without_better_knowledge_is_blamed_as_reported() {
    watched(|| assert_eq!(blamed_for_a_timeout(vec![0, 2], Some(5)), [0, 2]));
}

#[test]
fn errors_keep_class_and_ranks_on_the_wire() {
    let members = [3, 5, 9];
    let errors = [
        Error::peer_failed(2, "gone"),
        Error::Timeout {
            waiting_for: vec![0, 2],
            after_ms: 8,
            site: None,
        },
        Error::Mismatch {
            ranks: [2, 1],
            calls: Box::new(["this".into(), "that".into()]),
            site: None,
        },
        Error::corrupt(0, "bits"),
        Error::Aborted {
            rank: 1,
            reason: "enough".into(),
        },
    ];
    for error in errors {
        let fault = Fault::from_error(&error, &members, 0);
        let frame = Frame::Verdict {
            communicator: 1,
            fault,
        };
        let mut splitter = Splitter::new(1000);
        splitter.push(&frame.encode());
        let Ok(Some(Frame::Verdict { fault, .. })) = splitter.next_frame() else {
            panic!("not a verdict");
        };
        assert_eq!(fault.to_error(&members).to_string(), error.to_string());
        assert_eq!(fault.to_error(&members).class(), error.class());
    }
}
