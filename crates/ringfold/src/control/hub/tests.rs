//! Tests of the server's decisions, without sockets and with time as an argument.

mod surveys;

use std::time::{Duration, Instant};

use super::{Hub, ProtocolViolation};
use crate::control::fault::{Class, Fault};
use crate::control::frame::{BLOB_BYTES_MAX, Frame, Presence};
use crate::control::standing::{INQUIRY, Standing};
use crate::error::LEFT;
use crate::topology::HostId;
use crate::topology::host::HOST_ID_BYTES;

const ALL: [u32; 3] = [0, 1, 2];
const SOON: Duration = Duration::from_secs(1);

struct TestJob {
    hub: Hub,
    now: Instant,
}

impl TestJob {
    /// Creates a job with ranks 0 and 1 on one host, and rank 2 on another.
    fn new() -> TestJob {
        let now = Instant::now();
        let mut job = TestJob {
            hub: Hub::new(1, [0; 32], 3, now + SOON),
            now,
        };
        for rank in ALL {
            job.say(rank, join(rank));
        }
        assert!(job.hub.is_complete());
        job.heard();
        job
    }

    fn opened() -> TestJob {
        let mut job = TestJob::new();
        for rank in ALL {
            job.say(rank, open(&ALL));
        }
        job
    }

    fn say(&mut self, rank: u32, frame: Frame) {
        assert_eq!(self.hub.receive(rank, frame, self.now), Ok(()));
    }

    /// Sends the answer of `rank` to `inquiry`.
    fn answer(&mut self, rank: u32, inquiry: u64, begun: u64) {
        let answer = Frame::Answer {
            communicator: 7,
            inquiry,
            standing: standing(begun),
        };
        self.say(rank, answer);
    }

    fn heard(&mut self) -> Vec<(u32, Frame)> {
        self.hub.take_output()
    }

    /// Returns the verdicts since the last call: the receiver and the fault of each.
    fn verdicts(&mut self) -> Vec<(u32, Fault)> {
        let frames = self.heard().into_iter();
        frames
            .filter_map(|(to, frame)| match frame {
                Frame::Verdict { fault, .. } => Some((to, fault)),
                _ => None,
            })
            .collect()
    }

    /// Returns the verdict that all ranks have received.
    fn verdict(&mut self) -> Fault {
        let verdicts = self.verdicts();
        let to: Vec<u32> = verdicts.iter().map(|(to, _)| *to).collect();
        assert_eq!(to, ALL, "{verdicts:?}");
        assert!(verdicts.iter().all(|(_, fault)| *fault == verdicts[0].1));
        verdicts[0].1.clone()
    }
}

fn join(rank: u32) -> Frame {
    let presence = Presence {
        host: HostId::from_bytes([u8::from(rank == 2); HOST_ID_BYTES]),
        pid: rank + 1,
    };
    Frame::Join { presence }
}

fn open(members: &[u32]) -> Frame {
    Frame::Open {
        communicator: 7,
        members: members.to_vec(),
    }
}

fn exchange(token: u64, blob: u8) -> Frame {
    Frame::Exchange {
        token,
        timeout_ms: 1000,
        key: "card".into(),
        members: ALL.to_vec(),
        blob: vec![blob],
    }
}

fn standing(begun: u64) -> Standing {
    Standing {
        finished: begun - 1,
        begun,
        call: format!("#{begun}"),
    }
}

fn report(fault: Fault) -> Frame {
    Frame::Report {
        communicator: 7,
        fault,
    }
}

fn timeout(ranks: &[u32]) -> Fault {
    Fault {
        class: Class::Timeout,
        ranks: ranks.to_vec(),
        text: String::new(),
        after_ms: 9,
    }
}

#[test]
fn the_first_report_is_the_verdict_and_the_rest_is_silence() {
    let mut job = TestJob::opened();
    job.say(1, report(Fault::peer_failed(2, "first")));
    job.say(0, report(Fault::peer_failed(1, "second")));
    assert_eq!(job.verdict(), Fault::peer_failed(2, "first"));
    assert!(job.verdicts().is_empty());
}

#[test]
fn who_opens_late_hears_the_verdict() {
    let mut job = TestJob::new();
    job.say(0, open(&ALL));
    job.hub.lose(2, "gone");
    assert_eq!(job.verdicts(), [(0, Fault::peer_failed(2, "gone"))]);
    job.say(1, open(&ALL));
    assert_eq!(job.verdicts(), [(1, Fault::peer_failed(2, "gone"))]);
}

#[test]
fn a_rank_that_closed_before_it_died_is_no_fault_of_that_communicator() {
    let mut job = TestJob::opened();
    job.say(2, Frame::Close { communicator: 7 });
    job.hub.lose(2, "gone");
    assert!(job.verdicts().is_empty());
}

#[test]
fn a_goodbye_before_the_loss_is_no_fault() {
    let mut job = TestJob::opened();
    job.say(2, Frame::Goodbye);
    job.hub.lose(2, "gone");
    let heard = job.heard();
    let departed: Vec<u32> = heard
        .iter()
        .filter(|(_, frame)| *frame == Frame::Departed { rank: 2 })
        .map(|(to, _)| *to)
        .collect();
    // The leaver is last: it may go only after the others have been told.
    assert_eq!(departed, ALL);
    assert!(
        !heard
            .iter()
            .any(|(_, frame)| matches!(frame, Frame::Verdict { .. }))
    );
}

#[test]
fn only_a_neighbour_is_a_witness_of_a_death() {
    let mut job = TestJob::opened();
    job.say(2, Frame::Suspect { rank: 1 });
    job.say(1, Frame::Suspect { rank: 1 });
    assert!(job.verdicts().is_empty());
    job.say(0, Frame::Suspect { rank: 1 });
    assert_eq!(job.verdict().ranks, [1]);
}

#[test]
fn an_exchange_ends_when_a_rank_it_waits_for_is_gone() {
    for gone in [false, true] {
        let mut job = TestJob::new();
        job.say(0, exchange(1, 0));
        match gone {
            true => job.hub.lose(2, "gone"),
            false => job.say(2, Frame::Goodbye),
        }
        // A rank that joins the exchange later gets the error, too.
        job.say(1, exchange(5, 1));
        let failed: Vec<(u32, u64, Vec<u32>)> = job
            .heard()
            .into_iter()
            .filter_map(|(to, frame)| match frame {
                Frame::Ungathered { token, fault } => Some((to, token, fault.ranks)),
                _ => None,
            })
            .collect();
        assert_eq!(failed, [(0, 1, vec![2]), (1, 5, vec![2])]);
    }
}

#[test]
fn an_exchange_is_complete_even_if_a_rank_left_after_giving_its_part() {
    let mut job = TestJob::new();
    job.say(0, exchange(1, 10));
    job.say(2, exchange(1, 12));
    job.hub.lose(2, "gone");
    job.heard();
    job.say(1, exchange(1, 11));
    let blobs = job.heard().into_iter().find_map(|(to, frame)| match frame {
        Frame::Gathered { blobs, .. } if to == 1 => Some(blobs),
        _ => None,
    });
    assert_eq!(*blobs.unwrap(), [[10], [11], [12]]);
}

#[test]
fn an_inquiry_is_concluded_at_its_deadline_against_the_silent() {
    let mut job = TestJob::opened();
    job.say(0, report(timeout(&[1])));
    let asked = job.heard();
    assert_eq!(asked.len(), 3);
    for rank in [0, 1] {
        job.answer(rank, 1, 4);
    }
    assert!(job.verdicts().is_empty());
    assert_eq!(job.hub.next_deadline(), Some(job.now + INQUIRY));
    job.hub.tick(job.now + INQUIRY);
    assert_eq!(job.verdict(), timeout(&[2]));
}

#[test]
fn an_inquiry_without_better_knowledge_confirms_the_report() {
    let mut job = TestJob::opened();
    job.say(0, report(timeout(&[0, 2])));
    job.heard();
    for rank in ALL {
        job.answer(rank, 1, 4);
    }
    assert_eq!(job.verdict(), timeout(&[0, 2]));
}

#[test]
fn a_death_during_an_inquiry_is_the_verdict() {
    let mut job = TestJob::opened();
    job.say(0, report(timeout(&[1])));
    job.heard();
    job.hub.lose(1, "gone");
    assert_eq!(job.verdict(), Fault::peer_failed(1, "gone"));
    job.hub.tick(job.now + INQUIRY);
    assert!(job.verdicts().is_empty());
}

#[test]
fn a_leaver_is_blamed_unless_a_death_explains_why_it_left() {
    let suspicion = Fault::peer_failed(0, "closed its connection");
    let expected = Fault::peer_failed(0, LEFT);
    for dies in [true, false] {
        let mut job = TestJob::opened();
        job.say(0, Frame::Close { communicator: 7 });
        job.say(2, report(suspicion.clone()));
        assert!(job.verdicts().is_empty());
        assert_eq!(job.hub.next_deadline(), Some(job.now + INQUIRY));
        if dies {
            job.hub.lose(1, "gone");
            assert_eq!(job.verdict(), Fault::peer_failed(1, "gone"));
        }
        job.hub.tick(job.now + INQUIRY);
        match dies {
            true => assert!(job.verdicts().is_empty()),
            false => assert_eq!(job.verdict(), expected),
        }
    }
}

#[test]
fn a_rank_that_left_is_the_verdict_of_a_timeout_under_inquiry() {
    let suspicion = Fault::peer_failed(0, "closed its connection");
    let mut job = TestJob::opened();
    job.say(1, report(timeout(&[0])));
    job.say(0, Frame::Close { communicator: 7 });
    job.say(2, report(suspicion.clone()));
    job.say(1, report(timeout(&[0])));
    job.heard();
    job.hub.tick(job.now + INQUIRY);
    assert_eq!(job.verdict(), Fault::peer_failed(0, LEFT));
}

#[test]
fn false_claims_are_violations_or_ignored() {
    let mut job = TestJob::opened();
    let now = job.now;
    let mut lie = |rank, frame| job.hub.receive(rank, frame, now);
    assert!(lie(0, open(&ALL)).is_err());
    assert!(lie(0, join(0)).is_err());
    assert!(lie(0, Frame::Departed { rank: 1 }).is_err());
    let standings = vec![Some(standing(1)); 3];
    assert!(
        lie(
            0,
            Frame::Standings {
                token: 1,
                standings
            }
        )
        .is_err()
    );
    for members in [vec![], vec![1, 2], vec![0, 3], vec![1, 0], vec![0, 0]] {
        let frame = Frame::Open {
            communicator: 8,
            members,
        };
        let impossible = ProtocolViolation("sent an invalid list of members");
        assert_eq!(lie(0, frame), Err(impossible));
    }
    // Reports about a rank that is no member, or in a communicator that is not open, are ignored.
    let stranger = Fault::peer_failed(9, "x");
    assert_eq!(lie(0, report(stranger)), Ok(()));
    let elsewhere = Frame::Report {
        communicator: 99,
        fault: Fault::peer_failed(1, "x"),
    };
    assert_eq!(lie(0, elsewhere), Ok(()));
    assert!(job.verdicts().is_empty());
}

#[test]
fn who_is_in_an_exchange_has_the_verdict_before_it_fails() {
    let mut job = TestJob::opened();
    job.heard();
    job.say(0, exchange(1, 0));
    job.hub.lose(2, "gone");
    let to_rank_0: Vec<Frame> = {
        let frames = job.heard().into_iter();
        frames.filter(|(to, _)| *to == 0).map(|(_, f)| f).collect()
    };
    let [
        Frame::Verdict { fault, .. },
        Frame::Ungathered { fault: same, .. },
    ] = &to_rank_0[..]
    else {
        panic!("{to_rank_0:?}")
    };
    assert_eq!(fault, same);
}

#[test]
fn a_rank_cannot_fill_the_server_with_exchanges() {
    let mut job = TestJob::new();
    let begin = |number: u64| Frame::Exchange {
        token: number,
        timeout_ms: 1000,
        key: format!("{number}"),
        members: ALL.to_vec(),
        blob: vec![0; BLOB_BYTES_MAX],
    };
    let refused = (0..4096).find(|number| {
        let taken = job.hub.receive(2, begin(*number), job.now);
        taken.is_err()
    });
    // Far more than a correct rank has open, and a few megabytes.
    assert!(refused.is_some_and(|open| (64..=1024).contains(&open)));
    // Exchanges of other ranks are counted separately.
    job.say(1, begin(0));
}

/// Returns the frames that each rank was sent, in order.
fn told(hub: &mut Hub) -> Vec<(u32, &'static str)> {
    let name = |frame: &Frame| match frame {
        Frame::Welcome { .. } => "welcome",
        Frame::Departed { .. } => "departed",
        Frame::Cancelled { .. } => "cancelled",
        _ => "something else",
    };
    let frames = hub.take_output().into_iter();
    frames.map(|(to, frame)| (to, name(&frame))).collect()
}

#[test]
fn a_rank_that_withdraws_before_all_have_come_may_come_again() {
    let now = Instant::now();
    let mut hub = Hub::new(1, [0; 32], 3, now + SOON);
    let say = |hub: &mut Hub, rank, frame| assert_eq!(hub.receive(rank, frame, now), Ok(()));
    for rank in [0, 1] {
        say(&mut hub, rank, join(rank));
    }
    say(&mut hub, 1, Frame::Goodbye);
    assert_eq!(told(&mut hub), [(1, "departed")]);
    // The end of its connection is that of an absent rank.
    assert!(!hub.is_known(1) && !hub.is_complete());
    for rank in [2, 1] {
        say(&mut hub, rank, join(rank));
    }
    assert_eq!(told(&mut hub), ALL.map(|rank| (rank, "welcome")));
}

#[test]
fn who_comes_to_a_job_that_was_given_up_is_told_and_completes_nothing() {
    let now = Instant::now();
    let mut hub = Hub::new(1, [0; 32], 3, now + SOON);
    for rank in [0, 1] {
        assert_eq!(hub.receive(rank, join(rank), now), Ok(()));
    }
    // A launcher reports in the place of rank 2.
    let absent = Frame::Cancelled {
        ranks: vec![2],
        reason: "gone".into(),
    };
    assert_eq!(hub.receive(2, absent.clone(), now), Ok(()));
    assert_eq!(told(&mut hub), [(0, "cancelled"), (1, "cancelled")]);
    assert_eq!(hub.receive(2, join(2), now), Ok(()));
    assert_eq!(told(&mut hub), [(2, "cancelled")]);
    assert!(hub.is_cancelled() && !hub.is_in_use());
    assert_eq!(
        hub.receive(2, absent, now),
        Err(ProtocolViolation("sent a server's frame"))
    );
}
