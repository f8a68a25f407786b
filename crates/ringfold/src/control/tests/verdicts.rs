//! Tests of reports, and of the one verdict that follows.

use super::*;
use crate::control::limit::Limit;

#[test]
fn a_verdict_ends_the_exchange_for_its_communicator() {
    watched(|| {
        let outcomes = job(3, unix_address(), |session| {
            let health = opened(&session, &[0, 1, 2]);
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
            let other = session.open(8, &[0, 1, 2, 3], quiet()).unwrap();
            let mine = opened(&session, &[0, 1, 2, 3]);
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
            let health = opened(&session, &[0, 1, 2, 3]);
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
