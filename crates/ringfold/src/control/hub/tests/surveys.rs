//! Tests of surveys of the members' progress in a communicator.

use super::*;

fn ask(token: u64) -> Frame {
    Frame::Ask {
        communicator: 7,
        token,
        timeout_ms: 100,
    }
}

impl TestJob {
    /// Returns the answers to surveys since the last call: the receiver, its token, and the number
    /// of collectives that each member has begun.
    fn standings(&mut self) -> Vec<(u32, u64, Vec<Option<u64>>)> {
        let begun = |standings: Vec<Option<Standing>>| {
            let each = standings.into_iter();
            each.map(|standing| standing.map(|there| there.begun))
                .collect()
        };
        let frames = self.heard().into_iter();
        frames
            .filter_map(|(to, frame)| match frame {
                Frame::Standings { token, standings } => Some((to, token, begun(standings))),
                Frame::Verdict { .. } => panic!("no rank is to blame"),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn who_asks_how_far_the_others_are_is_told_when_all_have_answered() {
    let mut job = TestJob::opened();
    job.say(1, ask(9));
    let asked: Vec<u32> = job.heard().iter().map(|(to, _)| *to).collect();
    assert_eq!(asked, ALL);
    for (rank, begun) in [(2, 4), (0, 5)] {
        job.answer(rank, 1, begun);
        assert!(job.standings().is_empty());
    }
    job.answer(1, 1, 6);
    let all = vec![Some(5), Some(6), Some(4)];
    assert_eq!(job.standings(), [(1, 9, all)]);
}

#[test]
fn who_does_not_answer_in_time_is_left_out_and_not_blamed() {
    let mut job = TestJob::opened();
    job.say(0, ask(1));
    job.answer(0, 1, 5);
    job.hub.tick(job.now);
    assert!(job.standings().is_empty());
    let end = job.now + Duration::from_millis(100);
    assert_eq!(job.hub.next_deadline(), Some(end));
    job.hub.tick(end);
    assert_eq!(job.standings(), [(0, 1, vec![Some(5), None, None])]);
    // An answer that arrives after the survey is ignored.
    job.answer(1, 1, 5);
    assert!(job.standings().is_empty());
}

#[test]
fn those_that_have_left_are_neither_asked_nor_waited_for() {
    let mut job = TestJob::opened();
    job.say(2, Frame::Close { communicator: 7 });
    job.heard();
    job.say(0, ask(1));
    let asked: Vec<u32> = job.heard().iter().map(|(to, _)| *to).collect();
    assert_eq!(asked, [0, 1]);
    // The answer of a rank that has closed the communicator is ignored.
    job.answer(2, 1, 3);
    job.answer(1, 1, 5);
    job.answer(0, 1, 5);
    assert_eq!(job.standings(), [(0, 1, vec![Some(5), Some(5), None])]);
}

#[test]
fn surveys_and_the_inquiry_into_a_timeout_do_not_meddle() {
    let mut job = TestJob::opened();
    job.say(1, ask(1));
    job.say(0, report(timeout(&[1])));
    for rank in ALL {
        job.answer(rank, 1, 5);
    }
    assert_eq!(job.standings(), [(1, 1, vec![Some(5); 3])]);
    for rank in ALL {
        job.answer(rank, 2, if rank == 2 { 4 } else { 5 });
    }
    assert_eq!(job.verdict(), timeout(&[2]));
    // A communicator that has ended can still be surveyed.
    job.say(1, ask(2));
    for rank in ALL {
        job.answer(rank, 3, 5);
    }
    assert_eq!(job.standings(), [(1, 2, vec![Some(5); 3])]);
}

#[test]
fn those_that_ask_for_ever_are_told_that_nothing_is_known() {
    let mut job = TestJob::opened();
    let mut told = Vec::new();
    for token in 0..10_000 {
        job.say(0, ask(token));
        told.extend(job.standings());
    }
    let nothing = vec![None; 3];
    assert!(told.len() > 9_000, "{}", told.len());
    assert!(
        told.iter()
            .all(|(to, _, known)| (*to, known) == (0, &nothing))
    );
    // A rank that has not opened a communicator gets no answer.
    let elsewhere = Frame::Ask {
        communicator: 8,
        token: 1,
        timeout_ms: 1,
    };
    job.say(0, elsewhere);
    assert!(job.standings().is_empty());
}
