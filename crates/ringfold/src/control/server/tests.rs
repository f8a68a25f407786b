//! Tests of the server, with ranks that are sockets held by the test.

use super::*;
use crate::control::fault::Fault;
use crate::control::frame::Presence;
use crate::topology::HostId;

/// Returns a server of three ranks that have joined and opened communicator 7, and their sockets.
fn job() -> (ServerState, Vec<Socket>) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut hub = Hub::new(1, [0; 32], 3, deadline);
    let host = HostId::here().expect("this host has a name");
    let members = vec![0, 1, 2];
    for rank in 0..3 {
        let presence = Presence {
            host,
            pid: rank + 1,
        };
        let joined = hub.receive(rank, Frame::Join { presence }, deadline);
        joined.expect("a rank may join");
    }
    for rank in 0..3 {
        let open = Frame::Open {
            communicator: 7,
            members: members.clone(),
        };
        let opened = hub.receive(rank, open, deadline);
        opened.expect("a rank may open a communicator");
    }
    let pairs = (0..3).map(|_| Socket::pair().expect("cannot create a socket pair"));
    let (ours, theirs): (Vec<_>, Vec<_>) = pairs.unzip();
    let state = ServerState {
        hub,
        listener: None,
        links: ours
            .into_iter()
            .map(RankConnection::new)
            .map(Some)
            .collect(),
        world_size: 3,
        silence: Silence::default(),
        next_ping: deadline,
        next_look: deadline,
        accusations: Vec::new(),
        leaving: None,
        stop: Arc::new(EventFd::new().expect("cannot create an eventfd")),
    };
    (state, theirs)
}

fn report(class: Class, rank: u32) -> Vec<u8> {
    let fault = Fault {
        class,
        ..Fault::peer_failed(rank, "so it is said")
    };
    let frame = Frame::Report {
        communicator: 7,
        fault,
    };
    frame.encode()
}

#[test]
fn who_hears_a_verdict_in_rank_0_can_end_without_keeping_it_from_others() {
    for _ in 0..500 {
        let (mut state, mut ranks) = job();
        let first = ranks.remove(0);
        let listener = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The thread does not sleep, so that it checks the others as soon as possible.
            while first.read(&mut buffer).is_err() {}
            ranks
                .iter()
                .all(|rank| rank.read(&mut buffer).is_ok_and(|count| count > 0))
        });
        let aborted = Fault {
            class: Class::Aborted,
            ..Fault::peer_failed(2, "so it is said")
        };
        let frame = Frame::Report {
            communicator: 7,
            fault: aborted,
        };
        // The frames that the ranks got when they joined.
        drop(state.hub.take_output());
        let told = state.hub.receive(2, frame, Instant::now());
        told.expect("a rank may report");
        state.send();
        assert!(
            listener.join().expect("it listens"),
            "a rank has no verdict"
        );
    }
}

#[test]
fn an_abort_counts_before_the_accusation_that_its_author_is_gone() {
    let (mut state, ranks) = job();
    let soon = Instant::now() + Duration::from_secs(60);
    ranks[2]
        .write_all(&report(Class::Aborted, 2), soon)
        .expect("a small frame fits");
    ranks[1]
        .write_all(&report(Class::PeerFailed, 2), soon)
        .expect("a small frame fits");
    // As in a round of the server in which both are ready.
    for rank in [1, 2] {
        state.read(rank);
    }
    state.judge_accusations();
    let verdicts = state.hub.take_output().into_iter();
    let classes: Vec<Class> = verdicts
        .filter_map(|(_, frame)| match frame {
            Frame::Verdict { fault, .. } => Some(fault.class),
            _ => None,
        })
        .collect();
    assert_eq!(classes, [Class::Aborted; 3]);
}
#[test]
fn a_rank_that_left_because_of_a_dead_one_is_not_blamed_for_it() {
    let (mut state, mut ranks) = job();
    let soon = Instant::now() + Duration::from_secs(60);
    let write =
        |rank: &Socket, bytes: &[u8]| rank.write_all(bytes, soon).expect("a small frame fits");
    // Rank 2 has died, rank 1 has seen that and left, and rank 0 has seen rank 1 leave.
    drop(ranks.pop());
    write(&ranks[1], &Frame::Suspect { rank: 2 }.encode());
    write(&ranks[1], &Frame::Close { communicator: 7 }.encode());
    write(&ranks[0], &report(Class::PeerFailed, 1));
    drop(state.hub.take_output());
    // As in a round of the server that began before the others were ready.
    state.read(0);
    state.judge_accusations();
    let verdicts = state.hub.take_output().into_iter();
    let blamed: Vec<Vec<u32>> = verdicts
        .filter_map(|(_, frame)| match frame {
            Frame::Verdict { fault, .. } => Some(fault.ranks),
            _ => None,
        })
        .collect();
    assert_eq!(blamed[0], [2]);
}
